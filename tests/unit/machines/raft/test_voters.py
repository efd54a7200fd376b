"""Voters are told apart by id and directory id."""

from __future__ import annotations

import pytest
from tests.worlds.raft_bench import key, quorum

from duramen.machines.raft import Voters


def test_another_disk_of_a_voter_is_no_voter() -> None:
    voters = quorum(3)
    assert voters.is_voter(key(2))
    assert not voters.is_voter(key(2, disk=1))
    assert not voters.is_voter(key(4))


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_more_than_half_decide(count: int, majority: int) -> None:
    assert quorum(count).majority == majority


def test_the_only_voter() -> None:
    assert quorum(1).only(key(1))
    assert not quorum(1).only(key(1, disk=1))
    assert not quorum(2).only(key(1))


def test_equal_voters_are_equal() -> None:
    assert quorum(3) == quorum(3)
    assert quorum(3) != quorum(2)
    assert quorum(3) != Voters(voter._replace(endpoints=()) for voter in quorum(3))
