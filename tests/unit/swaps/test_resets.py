"""Where a group stands after somebody has set it to other offsets: there, whatever it had committed."""

from __future__ import annotations

import random

import pytest

from duramen.swaps.cut_overs import PASSED_OVER, Committed, CutOver, Position, Where, positions
from duramen.swaps.resets import chain_with, reset_commits

CUTS = [
    CutOver("late", {0: 5, 1: 5}, "late.v2", {0: 3, 1: 3}),
    CutOver("late.v2", {0: 9, 1: 9}, "late", {0: 12, 1: 12}),
    CutOver("late", {0: 20, 1: 20}, "late.v3", {0: 1, 1: 1}),
]
NAMES = ["late", "late.v2", "late", "late.v3"]
LAST = {"late": 2, "late.v2": 1, "late.v3": 3}
UNTIL = {"late": 20, "late.v2": 9, "late.v3": 99}


@pytest.mark.parametrize("seed", range(100))
def test_a_group_stands_where_it_was_set(seed: int) -> None:
    chance = random.Random(seed)
    committed: dict[Where, Committed] = {}
    for topic in chance.sample(sorted(LAST), chance.randint(0, 3)):
        for partition in (0, 1):
            generation = chance.choice([LAST[topic], None, PASSED_OVER])
            committed[(topic, partition)] = Committed(chance.randrange(25), generation, 0 if generation else None)
    before = positions("late", CUTS, committed, [0, 1])
    topic = chance.choice(sorted(LAST))
    offset = chance.randrange(UNTIL[topic])
    changed = reset_commits({"late": CUTS}, committed, {(topic, 0): offset})
    assert {partition for _, partition in changed} == {0}
    after = positions("late", CUTS, committed | changed, [0, 1])
    assert after[0] == Position(LAST[topic], offset)
    assert before[1] == after[1] or after[1].offset is None, "nobody has set this one"
    assert all(told.generation is not None for told in changed.values())


def test_of_several_topics_the_last_counts() -> None:
    wanted = {("late.v2", 0): 4, ("late", 0): 13, ("late", 1): 3}
    changed = reset_commits({"late": CUTS}, {("late.v3", 0): Committed(7, 3, 1)}, wanted)
    assert changed == {
        ("late.v2", 0): Committed(4, 1, 1),
        ("late", 0): Committed(13, 2, 1),
        ("late", 1): Committed(3, 2, 1),
        ("late.v3", 0): Committed(7, PASSED_OVER, 1),
    }


def test_a_topic_that_was_never_swapped_gets_its_offset() -> None:
    assert reset_commits({"late": CUTS}, {}, {("other", 0): 4}) == {("other", 0): Committed(4)}


def test_a_topic_in_two_chains_is_meant_in_its_own() -> None:
    own = [CutOver("late.v2", {0: 1}, "else", {0: 1})]
    assert chain_with({"late": CUTS, "late.v2": own}, "late.v2") == ("late.v2", own)
    assert chain_with({"late": CUTS}, "late.v2") == ("late", CUTS)
    assert chain_with({"late": CUTS, "late.v2": ()}, "late.v2") == ("late", CUTS)
    assert chain_with({"late": CUTS}, "other") is None
