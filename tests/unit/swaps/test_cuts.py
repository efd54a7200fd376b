"""A group in a chain of topics: over random swaps and rollbacks, each record is read once and in order."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from duramen.errors import StorageError
from duramen.swaps.cuts import Committed, Cut, Position, generation_in, metadata_of, positions, topics_of

PARTITIONS = 3


class Chain:
    """Topics that grow, the cuts between them, and what has to be read of each partition."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.ends = {("late", p): 0 for p in range(PARTITIONS)}
        self.cuts: list[Cut] = []
        self.due: dict[int, list[tuple[str, int]]] = {p: [] for p in range(PARTITIONS)}

    @property
    def names(self) -> list[str]:
        return topics_of("late", self.cuts)

    def append(self, topic: str, seen: bool) -> None:
        """Some records. seen: to readers of the chain."""
        for partition in range(PARTITIONS):
            for _ in range(self.chance.randrange(4)):
                offset = self.ends[(topic, partition)]
                self.ends[(topic, partition)] += 1
                if seen:
                    self.due[partition].append((topic, offset))

    def swap(self) -> None:
        """To a new topic, which replays what there was; or back to the one before, which was worked on meanwhile."""
        old = self.names[-1]
        back = self.cuts and self.chance.random() < 0.4
        new = self.cuts[-1].old if back else f"late.v{len(self.cuts) + 2}"
        for partition in range(PARTITIONS):
            self.ends.setdefault((new, partition), 0)
        self.append(new, seen=False)
        until, start = ({p: self.ends[(name, p)] for p in range(PARTITIONS)} for name in (old, new))
        self.cuts.append(Cut(old, until, new, start))


@pytest.mark.parametrize("seed", range(150))
def test_every_record_of_the_chain_is_read_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    chain = Chain(chance)
    committed = {("late", p): Committed(0, 0) for p in range(PARTITIONS)}
    read: dict[int, list[tuple[str, int]]] = {p: [] for p in range(PARTITIONS)}
    for _ in range(60):
        act = chance.random()
        if act < 0.3:
            chain.append(chain.names[-1], seen=True)
        elif act < 0.4 and len(chain.cuts) < 5:
            chain.swap()
        else:
            some = chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS))
            take(chain, committed, read, some, chance)
    for _ in range(10):
        take(chain, committed, read, range(PARTITIONS), None)
    assert read == chain.due


def take(
    chain: Chain,
    committed: dict[tuple[str, int], Committed],
    read: dict[int, list[tuple[str, int]]],
    partitions: Iterable[int],
    chance: random.Random | None,
) -> None:
    """A member reads some records of some partitions, and commits; or falls over and had read nothing that counts."""
    spots = positions("late", chain.cuts, committed, partitions)
    for partition in partitions:
        generation, offset = spots[partition]
        topic = chain.names[generation]
        end = chain.ends[(topic, partition)]
        if generation < len(chain.cuts):
            end = min(end, chain.cuts[generation].until[partition])
        assert offset is not None
        stop = end if chance is None else min(end, offset + chance.randrange(4))
        if chance is not None and chance.random() < 0.2:
            continue
        read[partition] += [(topic, at) for at in range(offset, stop)]
        committed[(topic, partition)] = Committed(stop, generation)


def test_where_a_group_begins() -> None:
    cuts = [Cut("late", {0: 5, 1: 2}, "late.v2", {0: 3, 1: 0})]
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
    cuts = [Cut("late", {0: 5, 1: 2}, "late.v2", {0: 3})]
    waiting = positions("late", cuts, {("late", 0): Committed(5, 0), ("late", 1): Committed(1, 0)}, [0, 1])
    assert waiting == {0: Position(0, 5), 1: Position(0, 1)}
    there = positions("late", cuts, {("late", 0): Committed(5, 0), ("late", 1): Committed(2, 0)}, [0, 1])
    assert there == {0: Position(1, 3), 1: Position(1, 0)}


def test_a_rollback_is_told_apart_from_the_beginning() -> None:
    cuts = [Cut("late", {0: 5}, "late.v2", {0: 3}), Cut("late.v2", {0: 9}, "late", {0: 5})]
    behind = {("late", 0): Committed(7, 2), ("late.v2", 0): Committed(9, 1)}
    assert positions("late", cuts, behind, [0]) == {0: Position(2, 7)}
    assert positions("late", cuts, {("late", 0): Committed(5, 0)}, [0]) == {0: Position(1, 3)}
    assert (generation_in(metadata_of(12)), generation_in("mine"), generation_in(None)) == (12, None, None)


def test_cuts_are_written_and_read_again() -> None:
    cut = Cut("late", {0: 5, 1: 0}, "late.v2", {0: 3})
    assert Cut.from_json(cut.to_json()) == cut
    with pytest.raises(StorageError, match="no cut"):
        Cut.from_json({"old": "late"})
