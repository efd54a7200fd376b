"""EndTxn of both generations: a test for each row of the tables, and what a decision leads to."""

from __future__ import annotations

import pytest
from tests.worlds.transaction_world import ID, P0, P1, START, Coordinator

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction import (
    NO_PRODUCER,
    AddPartitions,
    EndTransaction,
    InitProducer,
    VerifyPartitions,
    WriteMarkers,
    records,
)
from duramen.machines.transaction.endings import FIRST_TABLE, SECOND_TABLE, Verdict
from duramen.machines.transaction.state import LAST_EPOCH, MAX_EPOCH, Transaction
from duramen.machines.transaction.transitions import IDLE, TransactionState

CODES = {
    Verdict.WAIT: "CONCURRENT_TRANSACTIONS",
    Verdict.OTHERWISE: "INVALID_TXN_STATE",
    Verdict.FENCED: "PRODUCER_FENCED",
}


def standing(state: TransactionState, version: int, epoch: int = 5) -> tuple[Coordinator, Transaction]:
    """A coordinator of an id that stands so, by a client of this generation."""
    partitions = frozenset() if state in IDLE else frozenset({P0})
    transaction = Transaction(
        ProducerEpoch(7, epoch), 60_000, START, state, partitions, START, 7, client_version=version
    )
    coordinator = Coordinator()
    coordinator.log = [records.record(ID, transaction, 2)]
    coordinator.restart()
    coordinator.effects.clear()
    return coordinator, transaction


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("state", list(TransactionState))
def test_the_first_generation(state: TransactionState, version: int, commit: bool) -> None:
    coordinator, before = standing(state, 0)
    verdict = FIRST_TABLE[state][commit]
    answer = coordinator.code(EndTransaction(ID, before.producer, commit, version))
    if verdict in CODES:
        assert answer == CODES[verdict]
    else:
        assert answer == str(NO_PRODUCER)
    if verdict is Verdict.PREPARE:
        after = coordinator.transaction
        assert after.state.title == ("PrepareCommit" if commit else "PrepareAbort")
        assert after.producer == before.producer
        assert coordinator.effects == [WriteMarkers(ID, before.producer, commit, (P0,), 0, after.updated_ms)]
    else:
        assert coordinator.transaction == before
        assert not coordinator.effects
    for other in (4, 6):
        sent = ProducerEpoch(7, other)
        coordinator, _ = standing(state, 0)
        assert coordinator.code(EndTransaction(ID, sent, commit, version)) == "PRODUCER_FENCED"
    other_id = ProducerEpoch(8, 5)
    assert coordinator.code(EndTransaction(ID, other_id, commit, version)) == "INVALID_PRODUCER_ID_MAPPING"


KAFKA = {
    "Empty": ("PF", "EB", "PF", "ITS"),
    "CompleteAbort": ("NONE", "EB", "PF", "ITS"),
    "CompleteCommit": ("ITS", "EB", "NONE", "ITS"),
}
"""The table as Kafka has it: abort of the epoch before, of the known one, commit likewise. PF: PRODUCER_FENCED, ITS:
INVALID_TXN_STATE, EB: a new epoch. One row is mended: the commit of what a time-out has aborted (KAFKA-20785)."""
NAMES = {Verdict.FENCED: "PF", Verdict.OTHERWISE: "ITS", Verdict.PREPARE: "EB", Verdict.REPEATED: "NONE"}


def test_the_second_table_is_kafkas() -> None:
    for state in IDLE:
        abort, commit, abort_before, commit_before = (NAMES[verdict] for verdict in SECOND_TABLE[state])
        assert (abort_before, abort, commit_before, commit) == KAFKA[state.title]


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("state", list(TransactionState))
def test_the_second_generation(state: TransactionState, repeated: bool, commit: bool) -> None:
    coordinator, before = standing(state, 2)
    verdict = SECOND_TABLE[state][2 * repeated + commit]
    sent = ProducerEpoch(7, 4) if repeated else before.producer
    answer = coordinator.code(EndTransaction(ID, sent, commit, 2))
    if verdict in CODES:
        assert answer == CODES[verdict]
    elif verdict is Verdict.REPEATED:
        assert answer == str(before.producer)
    if verdict is not Verdict.PREPARE:
        assert coordinator.transaction == before
        assert not coordinator.effects
        return
    raised = ProducerEpoch(7, 6)
    assert answer == str(raised)
    if state in IDLE:
        assert coordinator.transaction.state.title == "CompleteAbort"
        assert not coordinator.effects
    else:
        assert coordinator.transaction.state.title == ("PrepareCommit" if commit else "PrepareAbort")
        assert coordinator.effects == [WriteMarkers(ID, raised, commit, (P0,), 2, START + 1)]
    assert coordinator.transaction.producer == raised
    assert coordinator.code(EndTransaction(ID, sent, commit, 2)) in (str(raised), "CONCURRENT_TRANSACTIONS")


@pytest.mark.parametrize("state", [state for state in TransactionState if not state.title.startswith("Prepare")])
def test_the_second_generation_fences_any_other_epoch(state: TransactionState) -> None:
    coordinator, _ = standing(state, 2)
    for epoch in (0, 3, 6, LAST_EPOCH):
        assert coordinator.code(EndTransaction(ID, ProducerEpoch(7, epoch), True, 2)) == "PRODUCER_FENCED"
    other_id = ProducerEpoch(8, 5)
    assert coordinator.code(EndTransaction(ID, other_id, True, 2)) == "INVALID_PRODUCER_ID_MAPPING"


def test_an_older_life_is_not_told_that_it_has_committed() -> None:
    """A client of the first generation ended its transaction without raising the epoch: what one of the second sends
    with the epoch before is not that EndTxn again. Kafka takes it for one."""
    coordinator, before = standing(TransactionState.COMPLETE_COMMIT, 0)
    for commit in (False, True):
        assert coordinator.code(EndTransaction(ID, ProducerEpoch(7, 4), commit, 2)) == "PRODUCER_FENCED"
    assert coordinator.transaction == before


def test_an_unknown_id() -> None:
    coordinator = Coordinator()
    for version in (0, 2):
        assert coordinator.code(EndTransaction(ID, ProducerEpoch(1, 1), True, version)) == "INVALID_PRODUCER_ID_MAPPING"
        assert coordinator.code(EndTransaction("", ProducerEpoch(1, 1), True, version)) == "INVALID_REQUEST"


# ---------------------------------------------------------------------- from the first record to the last


def test_a_transaction_of_the_second_generation() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first, P0, P1)
    assert coordinator.end(first) == (1001, 1)
    marker = coordinator.markers()
    assert marker == WriteMarkers(ID, ProducerEpoch(1001, 1), True, (P0, P1), 2, START + 1)
    coordinator.write_markers()
    after = coordinator.transaction
    assert (after.state.title, after.producer, after.partitions) == ("CompleteCommit", (1001, 1), frozenset())
    assert coordinator.end(first) == (1001, 1), "the answer was lost"
    coordinator.add(ProducerEpoch(1001, 1))
    assert coordinator.code(EndTransaction(ID, first, True, 2)) == "PRODUCER_FENCED", "late, in the next transaction"
    assert coordinator.code(EndTransaction(ID, first, False, 2)) == "PRODUCER_FENCED"


def test_a_transaction_of_the_first_generation() -> None:
    coordinator = Coordinator(level=0)
    first = coordinator.init()
    coordinator.add(first, P0, version=0)
    coordinator.add(first, P1, version=0)
    assert coordinator.end(first, version=0) == NO_PRODUCER
    assert coordinator.markers() == WriteMarkers(ID, first, True, (P0, P1), 0, START + 1)
    coordinator.write_markers()
    assert coordinator.end(first, version=0) == NO_PRODUCER
    assert coordinator.code(EndTransaction(ID, first, False, 0)) == "INVALID_TXN_STATE"
    assert {record.value[1] for record in coordinator.log if record.value} == {0}, "records of version 0"


def test_nothing_is_aborted_in_one_step() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    before = len(coordinator.log)
    assert coordinator.end(first, commit=False) == (1001, 1)
    assert len(coordinator.log) == before + 2
    assert not [effect for effect in coordinator.effects if isinstance(effect, WriteMarkers)]
    assert coordinator.end(first, commit=False) == (1001, 1)
    assert coordinator.transaction.state.title == "CompleteAbort"


def test_behind_the_last_epoch_the_answer_has_another_id() -> None:
    """The client has the new id while markers of the old one are written: it waits (KAFKA-18660)."""
    coordinator, before = standing(TransactionState.ONGOING, 2, epoch=LAST_EPOCH)
    fresh = coordinator.end(before.producer)
    assert fresh == (coordinator.next_id, 0)
    assert coordinator.markers().producer == (7, MAX_EPOCH)
    assert coordinator.code(AddPartitions(ID, fresh, (P0,), 2)) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.code(EndTransaction(ID, fresh, False, 2)) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.code(VerifyPartitions(ID, fresh, (P0,))) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.code(InitProducer(ID, 1000, *fresh)) == "CONCURRENT_TRANSACTIONS"
    coordinator.restart()
    coordinator.write_markers()
    assert coordinator.transaction.producer == fresh
    assert coordinator.end(before.producer) == fresh, "the answer was lost"
    assert coordinator.code(EndTransaction(ID, before.producer, False, 2)) == "INVALID_TXN_STATE"
    assert coordinator.init(before.producer) == fresh
    coordinator.add(fresh)
    assert coordinator.code(EndTransaction(ID, before.producer, True, 2)) == "INVALID_PRODUCER_ID_MAPPING"


def test_a_refused_decision_is_none() -> None:
    coordinator, before = standing(TransactionState.ONGOING, 2)
    coordinator.refuses = True
    assert coordinator.ask(EndTransaction(ID, before.producer, True, 2)) == "refused"
    assert coordinator.transaction == before
    assert not coordinator.effects
    coordinator.refuses = False
    assert coordinator.end(before.producer, commit=False) == (7, 6), "and may come out the other way"


def test_the_coordinators_own_error_reaches_who_waits() -> None:
    coordinator = Coordinator()
    with pytest.raises(KafkaError) as raised:
        coordinator.end(ProducerEpoch(1, 1))
    assert raised.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
