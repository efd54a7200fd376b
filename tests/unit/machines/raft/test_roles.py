"""The table of transitions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.worlds.raft_bench import SETTINGS, RaftBench

from duramen.errors import BugError
from duramen.machines.raft import TRANSITIONS, Happening, Role
from duramen.machines.raft.raft_state import RaftState
from duramen.machines.raft.roles import diagram


def test_a_later_epoch_ends_every_role() -> None:
    assert all(row[Happening.LATER_EPOCH] is Role.UNATTACHED for row in TRANSITIONS.values())
    assert all(row[Happening.LATER_LEADER] is Role.FOLLOWER for row in TRANSITIONS.values())
    assert TRANSITIONS.keys() == set(Role)


def test_only_an_elected_candidate_leads_and_who_led_does_not_again() -> None:
    to_leader = [
        (role, what) for role, row in TRANSITIONS.items() for what, after in row.items() if after is Role.LEADER
    ]
    assert to_leader == [(Role.CANDIDATE, Happening.ELECTED)]
    to_candidate = {(role, what) for role, row in TRANSITIONS.items() for what in row if row[what] is Role.CANDIDATE}
    assert to_candidate == {(Role.PROSPECTIVE, Happening.PRE_VOTE_WON)}
    assert Happening.LEADER_FOUND not in TRANSITIONS[Role.RESIGNED]


def test_every_role_and_every_happening_occurs() -> None:
    assert {after for row in TRANSITIONS.values() for after in row.values()} == set(Role)
    assert {what for row in TRANSITIONS.values() for what in row} == set(Happening)


def test_what_is_not_in_the_table_is_a_bug() -> None:
    bench = RaftBench()
    state = RaftState(bench.raft.voters.by_id[1].key, True, bench.log, None, SETTINGS, lambda: 0.5)
    with pytest.raises(BugError, match="unattached replica: a majority voted for it"):
        state.become(Happening.ELECTED)


def test_the_page_shows_this_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "internals" / "quorum.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\| (\w+) \| ([^|]+) \| (\w+) \|$", page, flags=re.MULTILINE))
    everywhere = {what for what in Happening if all(what in row for row in TRANSITIONS.values())}
    there = {("any", what.value, TRANSITIONS[Role.LEADER][what].value) for what in everywhere}
    there |= {
        (role.value, what.value, after.value)
        for role, row in TRANSITIONS.items()
        for what, after in row.items()
        if what not in everywhere
    }
    assert shown == there


def test_the_page_about_replication_shows_the_diagram_of_this_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "replication.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{diagram()}```\n" in page
    assert diagram().count("-->") == 1 + sum(len(row) - 2 for row in TRANSITIONS.values())
