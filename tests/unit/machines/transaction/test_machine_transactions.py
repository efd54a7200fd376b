"""Partitions, markers, loads, and what administrators are told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.transaction_world import ID, P0, P1, P2, START, Coordinator

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord, ProducerEpoch
from duramen.machines.transaction import (
    AddPartitions,
    DescribeTransactions,
    InitProducer,
    ListTransactions,
    MarkersAbandoned,
    TransactionMachine,
    VerifyPartitions,
    WriteMarkers,
    machine,
    records,
    sweeps,
)
from duramen.machines.transaction.transitions import TransactionState
from duramen.model import TopicPartition


def opened(*partitions: TopicPartition) -> tuple[Coordinator, ProducerEpoch]:
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, *partitions)
    return coordinator, producer


# ---------------------------------------------------------------------- partitions


def test_partitions_add_up_and_what_is_there_is_not_written_again() -> None:
    coordinator, producer = opened(P0)
    coordinator.now += 5
    coordinator.add(producer, P1)
    assert coordinator.transaction.partitions == {P0, P1}
    assert coordinator.transaction.started_ms == START
    written = len(coordinator.log)
    coordinator.add(producer, P0)
    coordinator.add(producer, P1, P0)
    assert len(coordinator.log) == written


def test_who_may_add_and_verify() -> None:
    coordinator, producer = opened(P0)
    for command, verify in (
        (AddPartitions(ID, ProducerEpoch(5, 0), (P1,), 2), VerifyPartitions(ID, ProducerEpoch(5, 0), (P1,))),
        (AddPartitions("other", producer, (P1,), 2), VerifyPartitions("other", producer, (P1,))),
    ):
        assert coordinator.code(command) == coordinator.code(verify) == "INVALID_PRODUCER_ID_MAPPING"
    for epoch in (-1, 1):
        sent = ProducerEpoch(producer.id, epoch)
        assert coordinator.code(AddPartitions(ID, sent, (P1,), 2)) == "PRODUCER_FENCED"
        assert coordinator.code(VerifyPartitions(ID, sent, (P1,))) == "PRODUCER_FENCED"
    assert coordinator.code(AddPartitions("", producer, (P1,), 2)) == "INVALID_REQUEST"
    assert coordinator.code(VerifyPartitions("", producer, (P1,))) == "INVALID_REQUEST"
    verified = coordinator.ask(VerifyPartitions(ID, producer, (P0, P1)))
    assert verified == {P0: ErrorCode.NONE, P1: ErrorCode.TRANSACTION_ABORTABLE}


@pytest.mark.parametrize("commit", [False, True])
def test_while_markers_are_written_nothing_is_added(commit: bool) -> None:
    coordinator, producer = opened(P0)
    after = coordinator.end(producer, commit)
    assert coordinator.code(AddPartitions(ID, after, (P1,), 2)) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.code(AddPartitions(ID, producer, (P1,), 2)) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.code(VerifyPartitions(ID, after, (P0,))) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.code(VerifyPartitions(ID, producer, (P0,))) == "PRODUCER_FENCED"
    coordinator.write_markers()
    assert coordinator.code(AddPartitions(ID, producer, (P1,), 2)) == "PRODUCER_FENCED"
    verified = coordinator.ask(VerifyPartitions(ID, after, (P0,)))
    assert verified == {P0: ErrorCode.TRANSACTION_ABORTABLE}, "it was part of the last one"
    coordinator.add(after, P1)
    assert coordinator.transaction.partitions == {P1}


def test_a_transaction_has_so_many_partitions(monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "MAX_PARTITIONS", 3)
    coordinator, producer = opened(P0, P1, P2)
    assert coordinator.code(AddPartitions(ID, producer, (TopicPartition("t", 0),), 2)) == "POLICY_VIOLATION"
    monkeypatch.setattr(machine, "MAX_PARTITIONS", 10)
    monkeypatch.setattr(machine, "MAX_NAME_BYTES", 10)
    assert coordinator.code(AddPartitions(ID, producer, (TopicPartition("longer", 0),), 2)) == "POLICY_VIOLATION"
    assert coordinator.transaction.partitions == {P0, P1, P2}
    coordinator.add(producer, TopicPartition("t", 0))


def test_the_largest_transaction_fits_a_batch() -> None:
    coordinator = Coordinator()
    producer = coordinator.init()
    length = machine.MAX_NAME_BYTES // 2_000 - 4
    names = [f"{number:04}" + "n" * length for number in range(2_000)]
    coordinator.add(producer, *(TopicPartition(name, index) for name in names for index in range(5)))
    assert len(coordinator.transaction.partitions) == machine.MAX_PARTITIONS
    assert sum(len(part or b"") for part in coordinator.log[-1]) < 1_000_000


# ---------------------------------------------------------------------- markers


def test_the_last_marker_completes() -> None:
    coordinator, producer = opened(P0, P1)
    coordinator.end(producer)
    coordinator.markers()
    coordinator.ask(coordinator.written(P0))
    assert coordinator.transaction.state is TransactionState.PREPARE_COMMIT
    assert coordinator.ask(coordinator.written(P1)._replace(producer=producer)) is None, "of another epoch: nothing"
    assert coordinator.ask(coordinator.written(P1)._replace(transactional_id="other")) is None
    assert coordinator.transaction.state is TransactionState.PREPARE_COMMIT
    coordinator.ask(coordinator.written(P0, P1, P2))
    assert coordinator.transaction.state is TransactionState.COMPLETE_COMMIT
    written = len(coordinator.log)
    coordinator.ask(coordinator.written(P0, P1))
    assert len(coordinator.log) == written


def test_late_word_of_markers_ends_no_later_transaction() -> None:
    """Of the first generation, where producer epoch and partition are the same, and all in one millisecond."""
    coordinator = Coordinator(level=1)
    producer = coordinator.init()
    coordinator.add(producer, P0, version=0)
    coordinator.end(producer, version=0)
    late = coordinator.written(P0)
    coordinator.ask(late)
    coordinator.add(producer, P0, version=0)
    coordinator.ask(late)
    assert coordinator.transaction.state is TransactionState.ONGOING
    coordinator.end(producer, commit=False, version=0)
    coordinator.ask(late)
    assert coordinator.transaction.state is TransactionState.PREPARE_ABORT
    coordinator.write_markers()
    assert coordinator.transaction.state is TransactionState.COMPLETE_ABORT


def test_a_completion_that_the_log_refused_is_tried_again() -> None:
    coordinator, producer = opened(P0)
    coordinator.end(producer)
    coordinator.refuses = True
    assert coordinator.ask(coordinator.written(P0)) == "refused"
    assert coordinator.transaction.state is TransactionState.PREPARE_COMMIT
    coordinator.wait(sweeps.RETRY_MS)
    assert coordinator.transaction.state is TransactionState.PREPARE_COMMIT
    coordinator.refuses = False
    coordinator.wait(sweeps.RETRY_MS)
    assert coordinator.transaction.state is TransactionState.COMPLETE_COMMIT


def test_markers_that_were_given_up_are_asked_for_again() -> None:
    coordinator, producer = opened(P0, P1)
    coordinator.end(producer)
    marker = coordinator.markers()
    coordinator.ask(coordinator.written(P0))
    coordinator.effects.clear()
    coordinator.ask(MarkersAbandoned(ID, producer, marker.decided_ms))
    coordinator.wait(sweeps.ABANDONED_MS)
    assert not coordinator.effects
    coordinator.ask(MarkersAbandoned(ID, marker.producer, marker.decided_ms))
    assert not coordinator.effects
    coordinator.wait(sweeps.ABANDONED_MS)
    assert coordinator.effects == [marker._replace(partitions=(P1,))]


# ---------------------------------------------------------------------- loads


@pytest.mark.parametrize("commit", [False, True])
def test_a_load_asks_for_the_markers_of_all_that_is_prepared(commit: bool) -> None:
    coordinator, producer = opened(P0, P1)
    after = coordinator.end(producer, commit)
    coordinator.ask(coordinator.written(P0))
    before = coordinator.transaction
    out = coordinator.restart()
    assert coordinator.transaction == before
    assert out.effects == [WriteMarkers(ID, after, commit, (P0, P1), 2, before.updated_ms)]
    coordinator.write_markers()
    assert coordinator.restart().effects == []


def test_what_was_prepared_without_partitions_is_completed_by_a_load() -> None:
    """Kafka writes the two records one after the other, and may have stopped in between."""
    coordinator, producer = opened(P0)
    coordinator.end(producer, commit=False)
    bare = coordinator.transaction._replace(partitions=frozenset())
    coordinator.log.append(records.record(ID, bare, 2))
    out = coordinator.restart()
    assert out.effects == []
    coordinator.wait(0)
    assert coordinator.transaction.state is TransactionState.COMPLETE_ABORT


def test_what_is_newer_is_read_over_and_what_is_damaged_is_refused() -> None:
    machine = TransactionMachine()
    machine.apply(LogRecord(b"\0\7key of another kind", b"value"), 0, START)
    machine.apply(LogRecord(b"\0\0\0\1a", b"\0\2a newer value"), 1, START)
    assert not machine.transactions
    for bad in (LogRecord(None, b""), LogRecord(b"\0\0\0\1a", b"\0\0short"), LogRecord(b"\0", None)):
        with pytest.raises(KafkaError) as raised:
            machine.apply(bad, 2, START)
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    coordinator, _ = opened(P0)
    odd = coordinator.log[-1]
    assert odd.value is not None
    broken = LogRecord(odd.key, odd.value[:16] + b"\6" + odd.value[17:])
    with pytest.raises(KafkaError, match="status 6"):
        machine.apply(broken, 3, START)


def test_a_replay_knows_what_the_live_machine_knows() -> None:
    coordinator, producer = opened(P0)
    for commit in (True, False, True):
        producer = coordinator.end(producer, commit)
        coordinator.write_markers()
        live = coordinator.machine
        coordinator.restart()
        assert coordinator.machine.transactions == live.transactions
        assert coordinator.machine.ongoing == live.ongoing
        coordinator.add(producer, P1)
        live = coordinator.machine
        coordinator.restart()
        assert (coordinator.machine.transactions, coordinator.machine.ongoing) == (live.transactions, live.ongoing)


def test_no_other_command_is_known() -> None:
    with pytest.raises(TypeError, match="not a transaction command"):
        TransactionMachine().decide("nonsense", 1, START)


# ---------------------------------------------------------------------- administration


def test_a_transaction_is_described_as_it_stands() -> None:
    coordinator, producer = opened(P1, P0)
    (open_one, unknown, empty) = coordinator.ask(DescribeTransactions((ID, "other", "")))
    assert (open_one.state, open_one.producer, open_one.timeout_ms, open_one.start_ms) == (
        "Ongoing", producer, 60_000, START,
    )  # fmt: skip
    assert open_one.partitions == (P0, P1)
    assert unknown.error is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error is ErrorCode.INVALID_REQUEST
    coordinator.end(producer)
    coordinator.ask(coordinator.written(P0))
    (prepared,) = coordinator.ask(DescribeTransactions((ID,)))
    assert (prepared.state, prepared.partitions) == ("PrepareCommit", (P1,))


def test_lists_are_filtered() -> None:
    coordinator, producer = opened(P0)
    coordinator.ask(InitProducer("other", 1000))
    coordinator.now += 100

    def listed(**filters: Any) -> list[str]:
        return [each.transactional_id for each in coordinator.ask(ListTransactions(**filters))]

    assert listed() == [ID, "other"]
    assert listed(states=frozenset({"Ongoing"})) == [ID]
    assert listed(states=frozenset({"Ongoing", "Empty"})) == [ID, "other"]
    assert listed(states=frozenset({"Nonsense"})) == []
    assert listed(producer_ids=frozenset({producer.id})) == [ID]
    assert listed(duration_ms=99) == [ID, "other"], "one that never began counts as old"
    assert listed(duration_ms=100) == ["other"]
    assert listed(matches=lambda text: text.startswith("o")) == ["other"]
    (first, _) = coordinator.ask(ListTransactions())
    assert (first.producer_id, first.state) == (producer.id, "Ongoing")
    assert coordinator.machine.oldest_open_ms(coordinator.now) == 100
    coordinator.end(producer)
    assert coordinator.machine.oldest_open_ms(coordinator.now) == 0
