"""The leader's decisions: epochs, in-sync replicas, the high watermark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import BugError, ErrorCode
from duramen.machines.replication.leader import Replication


def leader(isr: tuple[int, ...] = (1,), durable: int = 0) -> Replication:
    replication = Replication(1)
    replication.lead(5, (1, 2, 3), isr, durable)
    return replication


def test_one_replica_follows_its_own_durable_end() -> None:
    replication = leader(durable=4)
    assert replication.high_watermark == 4
    assert replication.durable(1, 9)
    assert replication.high_watermark == 9
    assert not replication.durable(1, 9)


def test_the_slowest_in_sync_replica_decides() -> None:
    replication = leader((1, 2))
    assert not replication.durable(1, 10)
    assert replication.durable(2, 3)
    assert replication.high_watermark == 3
    replication.durable(3, 100)
    assert replication.high_watermark == 3


@given(st.lists(st.tuples(st.sampled_from((1, 2, 3)), st.integers(0, 1000))))
def test_the_high_watermark_never_moves_back_and_never_passes_a_durable_end(moves: list[tuple[int, int]]) -> None:
    replication = leader((1, 2))
    ends = {1: 0, 2: 0, 3: 0}
    before = 0
    for node, end in moves:
        replication.durable(node, end)
        ends[node] = max(ends[node], end)
        assert before <= replication.high_watermark <= min(ends[1], ends[2])
        before = replication.high_watermark


def test_epochs_of_clients_are_checked() -> None:
    replication = leader()
    assert replication.epoch_error(-1) is None
    assert replication.epoch_error(5) is None
    assert replication.epoch_error(4) is ErrorCode.FENCED_LEADER_EPOCH
    assert replication.epoch_error(6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    replication.resign(2, 6)
    assert replication.epoch_error(-1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_log_that_is_begun_anew_takes_the_high_watermark_with_it() -> None:
    replication = leader(durable=9)
    with pytest.raises(BugError):
        replication.begin_anew(3)
    replication.resign(2, 6)
    replication.begin_anew(3)
    assert (replication.high_watermark, replication.own_end) == (3, 0)
    assert not replication.durable(1, 7), "its leader has to say so"
    assert replication.high_watermark == 3
    replication.lead(7, (1, 2), (1,), 7)
    assert replication.high_watermark == 7


def test_what_a_follower_has_moves_no_high_watermark() -> None:
    replication = leader(durable=4)
    replication.resign(2, 6)
    assert not replication.durable(1, 9)
    assert replication.high_watermark == 4


def test_an_epoch_is_never_led_twice() -> None:
    with pytest.raises(BugError):
        leader().lead(5, (1,), (1,), 0)


@pytest.mark.parametrize(
    ("fewest", "before", "after"),
    [(1, None, None), (2, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)],
)
def test_too_few_in_sync_replicas_refuse_writes(fewest: int, before: ErrorCode | None, after: ErrorCode | None) -> None:
    replication = leader()
    replication.fewest = fewest
    assert replication.in_sync_error() is before
    assert replication.in_sync_error_when_stored() is after


def test_the_high_watermark_stands_still_while_too_few_are_in_sync() -> None:
    replication = leader(durable=4)
    replication.fewest = 2
    assert not replication.durable(1, 9)
    assert (replication.high_watermark, replication.own_end) == (4, 9)
    replication.isr = (1, 2)
    assert replication.durable(2, 7)
    assert replication.high_watermark == 7


def test_one_copy_is_read_whatever_its_topic_asks_for() -> None:
    replication = Replication(1)
    replication.fewest = 2
    replication.lead(5, (1,), (1,), 0)
    assert replication.durable(1, 9)
    assert replication.high_watermark == 9
