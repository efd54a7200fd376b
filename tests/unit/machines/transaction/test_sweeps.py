"""What timers do: transactions that are open for too long, ids that nobody uses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.transaction_world import ID, P0, START, Coordinator

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction import (
    AbortTransaction,
    AddPartitions,
    DrawFailed,
    DrawProducerId,
    EndTransaction,
    InitProducer,
    WriteMarkers,
    records,
    sweeps,
)
from duramen.machines.transaction.state import LAST_EPOCH

DAY_MS = 24 * 3_600_000
INTERVAL_MS = 10_000


def opened(level: int = 2, timeout_ms: int = 60_000) -> tuple[Coordinator, ProducerEpoch]:
    coordinator = Coordinator(level)
    producer = coordinator.init(timeout_ms=timeout_ms)
    coordinator.add(producer, P0, version=level)
    return coordinator, producer


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_transaction_that_is_open_for_too_long_is_aborted(level: int) -> None:
    coordinator, producer = opened(level)
    for _ in range(6):
        coordinator.wait(INTERVAL_MS)
    assert coordinator.transaction.state.title == "Ongoing", "its time is just over"
    coordinator.wait(INTERVAL_MS)
    marker = coordinator.markers()
    assert marker == WriteMarkers(
        ID, ProducerEpoch(1001, 1), False, (P0,), 2 if level == 2 else 0, coordinator.now, "time-out"
    )
    coordinator.write_markers()
    assert coordinator.code(EndTransaction(ID, producer, True, level)) == "PRODUCER_FENCED"


def test_who_repeats_an_abort_behind_a_time_out_goes_on() -> None:
    coordinator, producer = opened(timeout_ms=1)
    coordinator.wait(INTERVAL_MS)
    coordinator.write_markers()
    assert coordinator.end(producer, commit=False) == (1001, 1)


def test_a_refused_abort_is_tried_again_and_the_epoch_rises_once() -> None:
    coordinator, producer = opened(level=1, timeout_ms=1)
    coordinator.refuses = True
    coordinator.wait(INTERVAL_MS)
    for _ in range(3):
        coordinator.wait(sweeps.RETRY_MS)
    assert coordinator.transaction.producer == producer
    coordinator.refuses = False
    coordinator.wait(sweeps.RETRY_MS)
    assert coordinator.markers().producer == (1001, 1)
    coordinator.wait(INTERVAL_MS)
    assert coordinator.transaction.producer == (1001, 1)


def test_behind_the_last_epoch_a_time_out_draws_an_id_first() -> None:
    coordinator, producer = opened(timeout_ms=1)
    last = coordinator.transaction._replace(producer=ProducerEpoch(producer.id, LAST_EPOCH))
    coordinator.log.append(records.record(ID, last, 2))
    coordinator.restart()
    coordinator.draws = False
    coordinator.wait(INTERVAL_MS)
    (draw,) = coordinator.effects
    assert draw == DrawProducerId(0, AbortTransaction(ID, last.producer, "time-out"))
    coordinator.code(DrawFailed(draw.command, KafkaError(ErrorCode.REQUEST_TIMED_OUT)))
    assert coordinator.transaction == last
    coordinator.draws = True
    coordinator.wait(INTERVAL_MS)
    assert coordinator.markers().producer == (1001, LAST_EPOCH + 1)
    coordinator.write_markers()
    assert coordinator.transaction.producer == (coordinator.next_id, 0)


def test_an_id_that_is_drawn_too_late_aborts_nothing() -> None:
    coordinator, producer = opened()
    after = coordinator.end(producer)
    late = AbortTransaction(ID, producer, "time-out", 4711)
    assert coordinator.ask(late) is None
    coordinator.write_markers()
    coordinator.add(after, P0)
    assert coordinator.ask(late) is None
    assert coordinator.ask(late._replace(transactional_id="other")) is None
    assert coordinator.transaction.state.title == "Ongoing"


def test_many_time_outs_are_written_in_slices(monkeypatch: Any) -> None:
    monkeypatch.setattr(sweeps, "SLICE_RECORDS", 3)
    coordinator = Coordinator()
    for number in range(8):
        producer = coordinator.ask(InitProducer(f"id-{number}", 1))
        coordinator.ask(AddPartitions(f"id-{number}", producer, (P0,), 2))
    coordinator.wait(INTERVAL_MS)
    aborted = lambda: [each for each in coordinator.effects if isinstance(each, WriteMarkers)]  # noqa: E731
    assert len(aborted()) == 3
    coordinator.wait(0)
    coordinator.wait(0)
    assert [each.transactional_id for each in aborted()] == [f"id-{number}" for number in range(8)]
    assert coordinator.timers[sweeps.TIME_OUTS] == coordinator.now + INTERVAL_MS


def test_a_clock_that_is_set_ahead_ends_nothing() -> None:
    coordinator, _ = opened()
    coordinator.now += 30 * DAY_MS
    coordinator.machine.ages.clock_set(coordinator.now, 30 * DAY_MS)
    coordinator.wait(0)
    assert coordinator.transaction.state.title == "Ongoing"
    coordinator.wait(61_000)
    assert coordinator.transaction.state.title == "PrepareAbort"


def test_behind_a_clock_that_is_set_back_a_transaction_does_not_hang() -> None:
    coordinator, _ = opened()
    coordinator.now -= DAY_MS
    coordinator.fire(sweeps.TIME_OUTS)  # timers go by another clock
    for _ in range(6):
        coordinator.wait(INTERVAL_MS)
    assert coordinator.transaction.state.title == "Ongoing", "its time counts from the first look at it"
    coordinator.wait(INTERVAL_MS)
    assert coordinator.markers().cause == "time-out"


# ---------------------------------------------------------------------- expiry


def test_an_id_that_nobody_uses_is_removed() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.wait(7 * DAY_MS - 1)
    assert ID in coordinator.machine.transactions
    coordinator.wait(3_600_000)
    assert ID not in coordinator.machine.transactions
    assert coordinator.log[-1].value is None
    coordinator.restart()
    assert not coordinator.machine.transactions
    assert coordinator.code(EndTransaction(ID, producer, True, 2)) == "INVALID_PRODUCER_ID_MAPPING"
    assert coordinator.init(producer) == (1002, 0)


def test_what_is_open_or_prepared_stays() -> None:
    coordinator, producer = opened(timeout_ms=900_000)
    coordinator.timers.pop(sweeps.TIME_OUTS)
    coordinator.wait(8 * DAY_MS)
    assert coordinator.transaction.state.title == "Ongoing"
    coordinator.end(producer)
    coordinator.wait(8 * DAY_MS)
    assert coordinator.transaction.state.title == "PrepareCommit"
    coordinator.write_markers()
    coordinator.wait(6 * DAY_MS)
    assert coordinator.transaction.state.title == "CompleteCommit"
    coordinator.wait(2 * DAY_MS)
    assert not coordinator.machine.transactions


def test_many_ids_are_removed_in_slices(monkeypatch: Any) -> None:
    monkeypatch.setattr(sweeps, "SLICE_RECORDS", 3)
    coordinator = Coordinator()
    for number in range(7):
        coordinator.ask(InitProducer(f"id-{number}", 1000))
    coordinator.wait(8 * DAY_MS)
    assert len(coordinator.machine.transactions) == 4
    coordinator.wait(0)
    coordinator.refuses = True
    coordinator.wait(0)
    assert len(coordinator.machine.transactions) == 1
    coordinator.refuses = False
    coordinator.wait(sweeps.RETRY_MS)
    assert not coordinator.machine.transactions
    assert coordinator.timers[sweeps.EXPIRY] == coordinator.now + 3_600_000


def test_a_slice_looks_at_so_many_ids(monkeypatch: Any) -> None:
    monkeypatch.setattr(sweeps, "SLICE_IDS", 2)
    coordinator = Coordinator()
    for number in range(3):
        coordinator.ask(InitProducer(f"id-{number}", 1000))
    coordinator.wait(3_600_000)
    assert coordinator.timers[sweeps.EXPIRY] == coordinator.now
    coordinator.wait(0)
    assert coordinator.timers[sweeps.EXPIRY] == coordinator.now + 3_600_000


def test_markers_of_what_expired_and_came_again_are_not_taken_for_its_own() -> None:
    coordinator, producer = opened()
    coordinator.end(producer)
    late = coordinator.written(P0)
    coordinator.write_markers()
    coordinator.wait(8 * DAY_MS)
    fresh = coordinator.init()
    coordinator.add(fresh, P0)
    coordinator.end(fresh)
    coordinator.ask(late)
    assert coordinator.transaction.state.title == "PrepareCommit"
    assert coordinator.now > START
