"""A group in a chain of topics: over random swaps and rollbacks, each record is read once and in order."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from duramen.errors import StorageError
from duramen.swaps.cut_overs import (
    PASSED_OVER,
    Committed,
    CutOver,
    Position,
    Where,
    beginning,
    commits_of,
    last_commits,
    positions,
    topics_of,
    written_down,
)

Read = list[tuple[str, int, int]]
"""Records: topic, partition, offset."""


class Chain:
    """Topics that grow, the cuts between them, and what has to be read. counts: how many partitions topics may have."""

    def __init__(self, chance: random.Random, counts: range) -> None:
        self.chance = chance
        self.counts = counts
        self.ends: dict[str, list[int]] = {}
        self.cuts: list[CutOver] = []
        self.due: list[Read] = [[]]
        self.create("late")

    @property
    def names(self) -> list[str]:
        return topics_of("late", self.cuts)

    def create(self, topic: str) -> None:
        self.ends.setdefault(topic, [0] * self.chance.choice(self.counts))

    def append(self, topic: str, seen: bool) -> None:
        """Some records. seen: to readers of the chain."""
        for partition in range(len(self.ends[topic])):
            for _ in range(self.chance.randrange(4)):
                offset = self.ends[topic][partition]
                self.ends[topic][partition] += 1
                if seen:
                    self.due[-1].append((topic, partition, offset))

    def swap(self) -> None:
        """To a new topic, which replays what there was; or back to the one before, which was worked on meanwhile."""
        old = self.names[-1]
        back = self.cuts and self.chance.random() < 0.4
        new = self.cuts[-1].old if back else f"late.v{len(self.cuts) + 2}"
        self.create(new)
        self.append(new, seen=False)
        until, start = (dict(enumerate(self.ends[name])) for name in (old, new))
        self.cuts.append(CutOver(old, until, new, start))
        self.due.append([])


@pytest.mark.parametrize("counts", [range(3, 4), range(1, 5)], ids=["alike", "others"])
@pytest.mark.parametrize("seed", range(150))
def test_every_record_of_the_chain_is_read_once_and_in_order(seed: int, counts: range) -> None:
    chance = random.Random(seed)
    chain = Chain(chance, counts)
    committed = {("late", p): Committed(0, 0, 0) for p in range(len(chain.ends["late"]))}
    read: Read = []
    for _ in range(60):
        act = chance.random()
        if act < 0.3:
            chain.append(chain.names[-1], seen=True)
        elif act < 0.4 and len(chain.cuts) < 5:
            chain.swap()
        else:
            some = chance.sample(range(counts[-1]), chance.randint(1, counts[-1]))
            take(chain, committed, read, some, chance)
    for _ in range(10):
        take(chain, committed, read, range(counts[-1]), None)
    due = [record for generation in chain.due for record in generation]
    for partition in range(counts[-1]):
        assert [record for record in read if record[1] == partition] == [each for each in due if each[1] == partition]
    if len({len(ends) for ends in chain.ends.values()}) > 1:
        # A key may lie in another partition there: nothing is read before all of the topic in front of it.
        for cut, generation in zip(chain.cuts, chain.due, strict=False):
            if len(cut.until) != len(cut.start) and generation:
                behind = read[max(read.index(record) for record in generation) + 1 :]
                later = [record for more in chain.due[chain.due.index(generation) + 1 :] for record in more]
                assert set(later) <= set(behind)


def take(
    chain: Chain,
    committed: dict[Where, Committed],
    read: Read,
    partitions: Iterable[int],
    chance: random.Random | None,
) -> None:
    """A member reads some records of some partitions, and commits; or falls over and had read nothing that counts."""
    began = beginning("late", chain.cuts, committed)
    spots = positions("late", chain.cuts, committed, partitions)
    for partition in partitions:
        generation, offset = spots[partition]
        topic = chain.names[generation]
        if partition >= len(chain.ends[topic]):
            continue
        end = chain.ends[topic][partition]
        if generation < len(chain.cuts):
            end = min(end, chain.cuts[generation].until[partition])
        assert offset is not None or generation == 0, "only where a group began may a partition begin anywhere"
        start = offset or 0
        stop = end if chance is None else min(end, start + chance.randrange(4))
        if chance is not None and chance.random() < 0.2:
            continue
        read += [(topic, partition, at) for at in range(start, stop)]
        at = Position(generation, stop)
        before = last_commits("late", chain.cuts, committed).get(partition, at)
        committed |= commits_of("late", chain.cuts, partition, before, at, began)


def test_where_a_group_begins() -> None:
    cuts = [CutOver("late", {0: 5, 1: 2}, "late.v2", {0: 3, 1: 0})]
    nobody = positions("late", cuts, {}, [0, 1])
    assert nobody == {0: Position(1, None), 1: Position(1, None)}, "a new group reads the last topic"
    foreign = positions("late", cuts, {("late", 0): Committed(4)}, [0, 1])
    assert foreign == {0: Position(0, 4), 1: Position(0, None)}, (
        "a group that began before the cut finishes the old one"
    )
    done = positions("late", cuts, {("late", 0): Committed(5), ("late", 1): Committed(2)}, [0, 1])
    assert done == {0: Position(1, 3), 1: Position(1, 0)}
    assert positions("late", [], {("late", 0): Committed(7)}, [0]) == {0: Position(0, 7)}


def test_partitions_that_do_not_match_wait_for_the_last_one() -> None:
    cuts = [CutOver("late", {0: 5, 1: 2}, "late.v2", {0: 3})]
    waiting = positions("late", cuts, {("late", 0): Committed(5, 0), ("late", 1): Committed(1, 0)}, [0, 1])
    assert waiting == {0: Position(0, 5), 1: Position(0, 1)}
    there = positions("late", cuts, {("late", 0): Committed(5, 0), ("late", 1): Committed(2, 0)}, [0, 1])
    assert there == {0: Position(1, 3), 1: Position(1, 0)}


def test_partitions_without_a_commit_are_where_the_group_began() -> None:
    """Not where the others are: what the new topic has up to the cut, they have read in the old one."""
    cuts = [CutOver("late", {0: 10, 1: 10}, "late.v2", dict.fromkeys(range(4), 5))]
    old = {("late", p): Committed(10, 0, 0) for p in (0, 1)}
    new = {("late.v2", p): Committed(7, 1, 0) for p in (0, 1)}
    expected = {0: Position(1, 7), 1: Position(1, 7), 2: Position(1, 5), 3: Position(1, 5)}
    assert positions("late", cuts, old | new, range(4)) == expected
    assert positions("late", cuts, new, range(4)) == expected, "the commits in a topic go with it"
    back = [*cuts, CutOver("late.v2", dict.fromkeys(range(4), 8), "late", {0: 20, 1: 20})]
    there = {("late", p): Committed(21, 2, 0) for p in (0, 1)} | {("late.v2", p): Committed(8, 1, 0) for p in (0, 1)}
    assert positions("late", back, there, range(4))[3] == Position(1, 5), "nor where a rollback has brought the others"
    later = {("late.v2", 0): Committed(7, 1, 1)}
    assert positions("late", cuts, later, range(2))[1] == Position(1, None), "this group began in the new topic"


def test_a_rollback_is_told_apart_from_the_beginning() -> None:
    cuts = [CutOver("late", {0: 5}, "late.v2", {0: 3}), CutOver("late.v2", {0: 9}, "late", {0: 5})]
    behind = {("late", 0): Committed(7, 2), ("late.v2", 0): Committed(9, 1)}
    assert positions("late", cuts, behind, [0]) == {0: Position(2, 7)}
    assert positions("late", cuts, {("late", 0): Committed(5, 0)}, [0]) == {0: Position(1, 3)}


def test_a_commit_that_says_no_generation_counts_where_it_sets_the_group_back() -> None:
    cuts = [CutOver("late", {0: 5}, "late.v2", {0: 3}), CutOver("late.v2", {0: 9}, "late", {0: 12})]
    moved = {("late.v2", 0): Committed(9, 1, 0)}

    def at(offset: int, chain: list[CutOver]) -> Position:
        return positions("late", chain, {**moved, ("late", 0): Committed(offset)}, [0])[0]

    assert at(4, cuts[:1]) == Position(0, 4), "before its cut: the group was set back"
    assert at(5, cuts[:1]) == Position(1, 9), "at its cut: the topic is read, no more than that"
    assert [at(offset, cuts) for offset in (0, 4)] == [Position(0, 0), Position(0, 4)]
    assert at(5, cuts) == Position(2, 12)
    assert [at(offset, cuts) for offset in (6, 12, 99)] == [
        Position(2, 6),
        Position(2, 12),
        Position(2, 99),
    ]
    # Somebody who took himself from topic to topic stands in the last of them.
    both = {("late", 0): Committed(2), ("late.v2", 0): Committed(6)}
    assert positions("late", cuts[:1], both, [0]) == {0: Position(1, 6)}


def test_what_is_written_down_keeps_the_place() -> None:
    cuts = [CutOver("late", {0: 5}, "late.v2", {0: 3}), CutOver("late.v2", {0: 9}, "late.v3", {0: 12})]
    told = {("late", 0): Committed(5, 0, 0), ("late.v3", 0): Committed(20, 2, 0)}
    committed = {
        **told,
        ("late.v2", 0): Committed(4),
        ("late.v2", 1): Committed(4),
        ("else", 0): Committed(1),
    }
    assert written_down("late", cuts, told, 0, 2) == {}
    changed = written_down("late", cuts, committed, 0, 1)
    assert changed == {
        ("late.v2", 0): Committed(4, 1, 0),
        ("late.v3", 0): Committed(20, PASSED_OVER, 0),
    }
    assert positions("late", cuts, committed | changed, [0])[0] == Position(1, 4)
    assert written_down("late", cuts, committed | changed, 0, 1) == {}


def test_what_a_commit_says_of_its_generation() -> None:
    for told in (Committed(7, 12, 3), Committed(7, PASSED_OVER, 0), Committed(7)):
        assert Committed.told_by(7, told.metadata) == told
    assert Committed.told_by(7, None) == Committed.told_by(7, "mine") == Committed(7)


def test_cuts_are_written_and_read_again() -> None:
    cut = CutOver("late", {0: 5, 1: 0}, "late.v2", {0: 3})
    assert CutOver.from_json(cut.to_json()) == cut
    with pytest.raises(StorageError, match="no cut"):
        CutOver.from_json({"old": "late"})
