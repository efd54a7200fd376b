"""What a cut is, and where a reader stands in a chain of them. Depends on its arguments alone.

The topics of a chain are counted: generation 0 is the topic that people name, generation n the one behind n cuts. After
a rollback a topic is in the chain twice, so an offset alone does not say in which generation it was committed. Commits
say it in their metadata; of several the one of the highest generation counts, and it is one record of the group's log:
that is what makes a move from one topic to the next atomic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from duramen.errors import StorageError

_METADATA = "duramen-generation="


class Cut(NamedTuple):
    """Readers of `old` read it up to `until`, offsets by partition, and go on in `new` from `start`.

    Both topics hold what the same input made, up to there. A partition that is not named has 0.
    """

    old: str
    until: dict[int, int]
    new: str
    start: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        """Offsets as Spark's Kafka source writes them: topic → partition → offset."""
        return {
            "old": self.old,
            "until": {self.old: {str(p): at for p, at in sorted(self.until.items())}},
            "new": self.new,
            "start": {self.new: {str(p): at for p, at in sorted(self.start.items())}},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Cut:
        """StorageError for anything that is no cut."""
        try:
            old, new = found["old"], found["new"]
            until, start = (
                {int(p): int(at) for p, at in found[side].get(topic, {}).items()}
                for side, topic in (("until", old), ("start", new))
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(f"this is no cut from one topic to another: {found!r} ({error})") from None
        return cls(old, until, new, start)


class Committed(NamedTuple):
    """A group's offset in one partition. generation: None where the commit does not say, as those of other readers."""

    offset: int
    generation: int | None = None


class Position(NamedTuple):
    """Where a reader stands in one partition: generation, and offset in its topic. None: nothing was committed."""

    generation: int
    offset: int | None


def metadata_of(generation: int) -> str:
    """What a commit says of its generation."""
    return f"{_METADATA}{generation}"


def generation_in(metadata: str | None) -> int | None:
    """The generation that a commit's metadata name; None when they do not."""
    text = (metadata or "").removeprefix(_METADATA)
    return int(text) if metadata and metadata.startswith(_METADATA) and text.isdigit() else None


def topics_of(topic: str, cuts: Sequence[Cut]) -> list[str]:
    """The topic of each generation."""
    return [cut.old for cut in cuts] + [cuts[-1].new] if cuts else [topic]


def last_commits(names: Sequence[str], committed: Mapping[tuple[str, int], Committed]) -> dict[int, Position]:
    """Of each partition the commit that counts. names: the topic of each generation."""
    found: dict[int, Position] = {}
    for (topic, partition), spot in committed.items():
        if topic in names:
            position = Position(_generation(names, topic, spot), spot.offset)
            if partition not in found or found[partition].generation < position.generation:
                found[partition] = position
    return found


def positions(
    topic: str, cuts: Sequence[Cut], committed: Mapping[tuple[str, int], Committed], partitions: Iterable[int]
) -> dict[int, Position]:
    """Where a group stands in each partition, by what it has committed in the topics of the chain.

    A group without any commit begins in the last topic. Where the two topics of a cut have equally many partitions,
    each moves by itself, for a key keeps its partition; otherwise all wait for the last of the old topic.
    """
    names = topics_of(topic, cuts)
    last = last_commits(names, committed)
    first = min((spot.generation for spot in last.values()), default=len(cuts))
    wanted = {*partitions, *last, *(partition for cut in cuts for partition in (*cut.until, *cut.start))}
    at = {partition: last.get(partition, Position(first, None)) for partition in wanted}
    for generation, cut in enumerate(cuts):
        done = {p for p, spot in at.items() if spot.generation > generation or _reached(spot, generation, cut, p)}
        alike = len(cut.until) == len(cut.start)
        if alike or done >= set(cut.until):
            for partition, spot in at.items():
                if spot.generation == generation and partition in done:
                    at[partition] = Position(generation + 1, cut.start.get(partition, 0))
    return {partition: at[partition] for partition in sorted(at)}


def _reached(spot: Position, generation: int, cut: Cut, partition: int) -> bool:
    return spot.generation == generation and (spot.offset or 0) >= cut.until.get(partition, 0)


def _generation(names: Sequence[str], topic: str, spot: Committed) -> int:
    told = spot.generation
    if told is not None and told < len(names) and names[told] == topic:
        return told
    return names.index(topic)
