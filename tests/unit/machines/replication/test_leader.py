"""The leader's decisions: epochs, in-sync replicas, the high watermark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import BugError, ErrorCode
from duramen.machines.replication.leader import Replication

MUCH = 1 << 40


def leader(isr: tuple[int, ...] = (1,), durable: int = 0, log_end: int = 0, fewest: int = 1) -> Replication:
    replication = Replication(1)
    replication.fewest = fewest
    replication.lead(5, (1, 2, 3), isr, 0, durable, max(durable, log_end))
    return replication


def fetch(replication: Replication, node: int, end: int, broker_epoch: int = 7, log_end: int = MUCH) -> bool:
    return replication.fetched(node, broker_epoch, end, log_end, 1.0)


# ---- the high watermark ------------------------------------------------------------------------------------------


def test_one_replica_follows_its_own_durable_end() -> None:
    replication = leader(durable=4)
    assert replication.high_watermark == 4
    assert replication.durable(9)
    assert replication.high_watermark == 9
    assert not replication.durable(9)


def test_the_slowest_in_sync_replica_decides() -> None:
    replication = leader((1, 2))
    assert not replication.durable(10)
    assert fetch(replication, 2, 3)
    assert replication.high_watermark == 3
    fetch(replication, 3, 100)
    assert replication.high_watermark == 3


def test_the_leader_itself_may_be_the_slowest() -> None:
    replication = leader((1, 2))
    assert not fetch(replication, 2, 8)
    assert replication.durable(6)
    assert replication.high_watermark == 6


@given(st.lists(st.tuples(st.sampled_from((1, 2, 3)), st.integers(0, 1000))))
def test_the_high_watermark_never_moves_back_and_never_passes_a_durable_end(moves: list[tuple[int, int]]) -> None:
    replication = leader((1, 2))
    ends = {1: 0, 2: 0, 3: 0}
    before = 0
    for node, end in moves:
        if node == 1:
            replication.durable(end)
            ends[1] = max(ends[1], end)
        else:
            fetch(replication, node, end)
            ends[node] = end
        assert before <= replication.high_watermark
        if replication.high_watermark > before:
            assert replication.high_watermark <= min(ends[1], ends[2])
        before = replication.high_watermark


def test_the_high_watermark_stands_still_while_too_few_are_in_sync() -> None:
    replication = leader(durable=4)
    replication.fewest = 2
    assert not replication.durable(9)
    assert (replication.high_watermark, replication.own_end) == (4, 9)
    replication.adopt((1, 2, 3), (1, 2), 1)
    assert fetch(replication, 2, 7)
    assert replication.high_watermark == 7
    replication.durable(20)
    replication.adopt((1, 2, 3), (1,), 2)
    assert replication.high_watermark == 7
    replication.fewest = 1
    assert replication.advance()
    assert replication.high_watermark == 20


def test_one_copy_is_read_whatever_its_topic_asks_for() -> None:
    replication = Replication(1)
    replication.fewest = 2
    replication.lead(5, (1,), (1,), 0, 0, 0)
    assert replication.durable(9)
    assert replication.high_watermark == 9


# ---- what the others tell ----------------------------------------------------------------------------------------


def test_what_a_newer_process_says_replaces_what_the_older_said() -> None:
    replication = leader((1, 2))
    replication.durable(10)
    assert fetch(replication, 2, 6, broker_epoch=7)
    assert not fetch(replication, 2, 4, broker_epoch=8), "it lost its tail"
    assert not fetch(replication, 2, 9, broker_epoch=7), "late, from the process before"
    replication.durable(20)
    assert replication.high_watermark == 6
    assert fetch(replication, 2, 8, broker_epoch=8)
    assert replication.high_watermark == 8


def test_an_end_beyond_the_log_is_of_another_history() -> None:
    replication = leader((1, 2))
    replication.durable(5)
    assert not fetch(replication, 2, 9, log_end=5)
    replication.durable(12)
    assert replication.high_watermark == 0, "what was appended since is not what the follower has"


def test_who_is_no_replica_says_nothing() -> None:
    replication = leader((1,))
    assert not fetch(replication, 9, 3)
    replication.adopt((1, 2), (1, 2), 1)
    assert not fetch(replication, 3, 3)


def test_a_new_epoch_knows_nothing_of_the_others() -> None:
    replication = leader((1, 2), durable=4)
    assert fetch(replication, 2, 4)
    replication.lead(6, (1, 2, 3), (1, 2), 1, 9, 9)
    assert (replication.high_watermark, replication.epoch_start) == (4, 9)
    replication.durable(12)
    assert replication.high_watermark == 4, "what it told may have been cut"
    assert fetch(replication, 2, 9)
    assert replication.high_watermark == 9


def test_the_same_epoch_takes_over_who_is_in_sync_and_keeps_their_ends() -> None:
    replication = leader((1, 2, 3), durable=4)
    fetch(replication, 2, 4)
    assert replication.high_watermark == 0
    replication.adopt((1, 2, 3), (1, 2), 1)
    assert (replication.high_watermark, replication.isr, replication.partition_epoch) == (4, (1, 2), 1)
    replication.adopt((1, 2, 3), (1, 2, 3), 2)
    replication.durable(9)
    fetch(replication, 2, 9)
    assert replication.high_watermark == 4


# ---- leading and following ---------------------------------------------------------------------------------------


def test_epochs_of_clients_are_checked() -> None:
    replication = leader()
    assert replication.epoch_error(-1) is None
    assert replication.epoch_error(5) is None
    assert replication.epoch_error(4) is ErrorCode.FENCED_LEADER_EPOCH
    assert replication.epoch_error(6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    replication.resign(2, 6)
    assert replication.epoch_error(-1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replication.epoch_error(-1, of_leader=False) is None


def test_a_log_that_is_begun_anew_takes_the_high_watermark_with_it() -> None:
    replication = leader(durable=9)
    with pytest.raises(BugError):
        replication.begin_anew(3)
    replication.resign(2, 6)
    replication.begin_anew(3)
    assert (replication.high_watermark, replication.own_end) == (3, 0)
    assert not replication.durable(7), "its leader has to say so"
    assert replication.high_watermark == 3
    replication.lead(7, (1, 2), (1,), 0, 7, 7)
    assert replication.high_watermark == 7


def test_a_follower_takes_its_leaders_high_watermark_as_far_as_it_has_that() -> None:
    replication = leader(durable=4)
    replication.resign(2, 6, (1, 2), (1, 2), 4)
    assert not replication.durable(6), "what is here says nothing of the others"
    assert replication.told(9)
    assert replication.high_watermark == 6
    assert replication.durable(8)
    assert replication.high_watermark == 8
    assert not replication.told(5), "a leader that has just begun may know less"
    assert replication.high_watermark == 8
    replication.told(11)
    replication.resign(2, 6, (1, 2, 3), (1, 2), 8)
    assert replication.replicas == (1, 2, 3)
    assert replication.durable(9), "the same leader in the same epoch"
    assert replication.high_watermark == 9
    replication.resign(3, 7, (1, 2, 3), (2, 3), 12)
    assert not replication.durable(20), "what the leader before told counts no more"
    assert replication.high_watermark == 9


def test_a_leader_is_told_nothing() -> None:
    replication = leader((1, 2))
    replication.durable(5)
    assert not replication.told(5)
    assert replication.high_watermark == 0


def test_a_cut_lowers_what_a_follower_has() -> None:
    replication = leader(durable=9)
    with pytest.raises(BugError):
        replication.cut(3)
    replication.resign(2, 6, durable_end=9)
    replication.cut(12)
    assert (replication.own_end, replication.high_watermark) == (9, 9)
    replication.cut(6)
    assert (replication.own_end, replication.high_watermark) == (6, 6)
    assert not replication.told(9)
    assert replication.durable(7)
    assert replication.high_watermark == 7


def test_an_epoch_is_never_led_twice() -> None:
    with pytest.raises(BugError):
        leader().lead(5, (1,), (1,), 0, 0, 0)


@pytest.mark.parametrize(
    ("fewest", "before", "after"),
    [(1, None, None), (2, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)],
)
def test_too_few_in_sync_replicas_refuse_writes(fewest: int, before: ErrorCode | None, after: ErrorCode | None) -> None:
    replication = leader()
    replication.fewest = fewest
    assert replication.in_sync_error() is before
    assert replication.in_sync_error_when_stored() is after
