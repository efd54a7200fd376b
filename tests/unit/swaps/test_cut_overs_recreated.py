"""A cut to a topic that was deleted and made anew under its name: its offsets are of the topic that was there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.swaps import test_group_reader as group

from duramen.swaps import GroupReader
from duramen.swaps.cut_overs import Committed

install = group.install
"""The fixture: readers are those of a node in memory."""


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_behind_a_cut_to_a_topic_that_was_made_anew_its_first_records_are_read(
    anew: bool, begun: bool, install: Callable[[group.Node], group.Node]
) -> None:
    """The offset of the cut is of the topic that was there: as many of the other one's records were passed over."""
    node, said = install(group.Node()), list[str]()
    node.put("late", 2, 3)
    if begun:  # else the group is new to the topic, and begins in the last one
        node.commits = {("late", p): Committed(0, 0, 0) for p in range(2)}
    else:
        node.due = []
    node.make("late.v2", 2)
    node.ids["late.v2"] = bytes([1] * 16)
    node.put("late.v2", 4, 4, seen=not begun)
    node.swap("late.v2")
    if anew:
        node.make("late.v2", 2)
        node.ids["late.v2"] = bytes([2] * 16)
        node.due = [record for record in node.due if record[0] == "late"]
    node.put("late.v2", 6, 5)
    read: list[group.Record] = []
    for _ in range(2):  # who is killed goes on where he was
        reader = GroupReader("", "audit", "late", tell=said.append)
        while not group.resting(node, reader):
            read += group.records(reader.consume(3, 0.1))
            reader.commit()
        reader.close()
    assert sorted(read) == sorted(node.due)
    assert [line for line in said if "made anew since its swap" in line] == said
    assert bool(said) == anew
