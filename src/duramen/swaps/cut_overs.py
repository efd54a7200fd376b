"""What a cut is, and where a reader stands in a chain of them. Depends on its arguments alone.

The topics of a chain are counted: generation 0 is the topic that people name, generation n the one behind n cuts. After
a rollback a topic is in the chain twice, so an offset alone does not say in which generation it was committed. Commits
say it in their metadata; of several the one of the highest generation counts, and it is one record of the group's log:
that is what makes a move from one topic to the next atomic.

A commit that does not say it was made by another client, or by an operator with another tool. Readers write down the
generation of those they find, so one that lies before its topic's cut while others lie behind it is new: somebody set
the group back, and it counts. One at its cut or behind it only says that its topic is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from duramen.errors import StorageError

Where = tuple[str, int]
"""A partition: topic and number."""

PASSED_OVER: Final = -1
"""The generation of a commit that does not count any more: the group was set to a topic before it."""
_METADATA: Final = re.compile(r"duramen-generation=(-1|[0-9]{1,9}) began=([0-9]{1,9})")


class CutOver(NamedTuple):
    """Readers of `old` read it up to `until`, offsets by partition, and go on in `new` from `start`.

    Both topics hold what the same input made, up to there. A partition that is not named has 0. new_id: of the topic
    that `start` is meant in, as text; nothing where it was not known.
    """

    old: str
    until: dict[int, int]
    new: str
    start: dict[int, int]
    new_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Offsets as Spark's Kafka source writes them: topic → partition → offset."""
        told = {
            "old": self.old,
            "until": {self.old: {str(p): at for p, at in sorted(self.until.items())}},
            "new": self.new,
            "start": {self.new: {str(p): at for p, at in sorted(self.start.items())}},
        }
        return {**told, "new_id": self.new_id} if self.new_id else told

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> CutOver:
        """StorageError for anything that is no cut."""
        try:
            old, new, new_id = found["old"], found["new"], str(found.get("new_id", ""))
            until, start = (
                {int(p): int(at) for p, at in found[side].get(topic, {}).items()}
                for side, topic in (("until", old), ("start", new))
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(f"this is no cut from one topic to another: {found!r} ({error})") from None
        return cls(old, until, new, start, new_id)


class Committed(NamedTuple):
    """A group's offset in one partition, and what the commit's metadata say; None where it is another client's.

    generation: in which the commit was made. began: the generation in which the group began.
    """

    offset: int
    generation: int | None = None
    began: int | None = None

    @property
    def metadata(self) -> str:
        """What `told_by` reads again."""
        return "" if self.generation is None else f"duramen-generation={self.generation} began={self.began or 0}"

    @classmethod
    def told_by(cls, offset: int, metadata: str | None) -> Committed:
        """A commit, as the group's coordinator tells it."""
        match = _METADATA.fullmatch(metadata or "")
        return cls(offset) if match is None else cls(offset, int(match[1]), int(match[2]))


class Position(NamedTuple):
    """Where a reader stands in one partition: generation, and offset in its topic. None: nothing was committed."""

    generation: int
    offset: int | None


def topics_of(topic: str, cuts: Sequence[CutOver]) -> list[str]:
    """The topic of each generation."""
    return [cut.old for cut in cuts] + [cuts[-1].new] if cuts else [topic]


def is_read(cuts: Sequence[CutOver], spot: Position, partition: int) -> bool:
    """Whether the topic of this generation is read to its cut."""
    return spot.generation < len(cuts) and (spot.offset or 0) >= cuts[spot.generation].until.get(partition, 0)


def last_commits(topic: str, cuts: Sequence[CutOver], committed: Mapping[Where, Committed]) -> dict[int, Position]:
    """Of each partition the commit that counts."""
    found: dict[int, Position] = {}
    plain: dict[int, Position] = {}
    for (_, partition), (position, said) in _counting(topic, cuts, committed).items():
        which = found if said else plain
        if partition not in which or which[partition].generation < position.generation:
            which[partition] = position
    for partition, position in plain.items():
        said_last = found.get(partition)
        if said_last is None or said_last.generation < position.generation or not is_read(cuts, position, partition):
            found[partition] = position
    return found


def positions(
    topic: str, cuts: Sequence[CutOver], committed: Mapping[Where, Committed], partitions: Iterable[int]
) -> dict[int, Position]:
    """Where a group stands in each partition, by what it has committed in the topics of the chain.

    A group without any commit begins in the last topic; partitions without one are where the group began.
    Where the two topics of a cut have equally many partitions, each moves by itself, for a key keeps its partition;
    otherwise all wait for the last of the old topic.
    """
    last = last_commits(topic, cuts, committed)
    first = beginning(topic, cuts, committed)
    wanted = {*partitions, *last, *(partition for cut in cuts for partition in (*cut.until, *cut.start))}
    at = {partition: last.get(partition, Position(first, None)) for partition in wanted}
    for generation, cut in enumerate(cuts):
        done = {p for p, spot in at.items() if spot.generation > generation or is_read(cuts, spot, p)}
        alike = len(cut.until) == len(cut.start)
        if alike or done >= set(cut.until):
            for partition, spot in at.items():
                if spot.generation == generation and partition in done:
                    at[partition] = Position(generation + 1, cut.start.get(partition, 0))
    return {partition: at[partition] for partition in sorted(at)}


def beginning(topic: str, cuts: Sequence[CutOver], committed: Mapping[Where, Committed]) -> int:
    """The generation in which the group began: its commits there may be gone since, by a rollback or with the topic."""
    found = [len(cuts)]
    for where, (position, _) in _counting(topic, cuts, committed).items():
        began = committed[where].began
        found.append(position.generation if began is None else min(began, position.generation))
    return min(found)


def commits_of(
    topic: str, cuts: Sequence[CutOver], partition: int, before: Position, at: Position, began: int
) -> dict[Where, Committed]:
    """What a reader commits that went from `before` to `at`; the old topics too, so that tools see no lag there."""
    found = {}
    for generation in range(before.generation, at.generation):
        cut = cuts[generation]
        found[(cut.old, partition)] = Committed(cut.until.get(partition, 0), generation, began)
    found[(topics_of(topic, cuts)[at.generation], partition)] = Committed(at.offset or 0, at.generation, began)
    return found


def written_down(
    topic: str, cuts: Sequence[CutOver], committed: Mapping[Where, Committed], partition: int, generation: int
) -> dict[Where, Committed]:
    """Commits that have to be written anew so that the one of this generation counts, whatever is committed later.

    Those that do not say a generation get one, those of a later one are passed over.
    """
    found = {}
    began = min(generation, beginning(topic, cuts, committed))
    for where, (position, said) in _counting(topic, cuts, committed).items():
        if where[1] == partition and (not said or position.generation > generation):
            told = position.generation if position.generation <= generation else PASSED_OVER
            found[where] = Committed(committed[where].offset, told, began)
    return found


def _counting(
    topic: str, cuts: Sequence[CutOver], committed: Mapping[Where, Committed]
) -> dict[Where, tuple[Position, bool]]:
    """Of each commit in the chain that counts: what it says, and whether it says its generation itself."""
    names = topics_of(topic, cuts)
    found = {}
    for where, (offset, told, _) in committed.items():
        if where[0] in names and told != PASSED_OVER:
            generation = _guessed(names, cuts, where, offset) if told is None else _told(names, where[0], told)
            found[where] = Position(generation, offset), told is not None
    return found


def _told(names: Sequence[str], topic: str, told: int) -> int:
    """The generation that a commit names, unless it was made in another chain."""
    return told if told < len(names) and names[told] == topic else names.index(topic)


def _guessed(names: Sequence[str], cuts: Sequence[CutOver], where: Where, offset: int) -> int:
    """A generation for a commit that says none: the first in which its topic has that offset, or else the last."""
    visits = [generation for generation, name in enumerate(names) if name == where[0]]
    for generation in visits:
        if generation < len(cuts) and offset <= cuts[generation].until.get(where[1], 0):
            return generation
    return visits[-1]
