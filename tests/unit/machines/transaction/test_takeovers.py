"""InitProducerId in each state: who gets which epoch, and who is fenced."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.transaction_world import ID, P0, Coordinator

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction import (
    DrawFailed,
    DrawProducerId,
    EndTransaction,
    InitProducer,
    machine,
)
from duramen.machines.transaction.state import LAST_EPOCH, MAX_EPOCH


def at_epoch(coordinator: Coordinator, epoch: int) -> ProducerEpoch:
    """The id's producer, with so many epochs used."""
    coordinator.init()
    known = coordinator.transaction._replace(producer=ProducerEpoch(coordinator.transaction.producer.id, epoch))
    coordinator.log.append(machine.records.record(ID, known, 2))
    coordinator.restart()
    return known.producer


def test_a_new_id_gets_a_fresh_producer_id_and_epoch_0() -> None:
    coordinator = Coordinator()
    assert coordinator.init() == (1001, 0)
    assert coordinator.init() == (1001, 1)
    assert coordinator.transaction.state.title == "Empty"
    assert coordinator.transaction.previous_id == 1001


def test_of_a_new_id_whatever_was_sent_is_taken() -> None:
    """It may have expired: the client of then goes on as a new one."""
    assert Coordinator().init((77, 5)) == (1001, 0)


def test_no_id_can_be_drawn() -> None:
    coordinator = Coordinator()
    coordinator.draws = False
    assert coordinator.ask(InitProducer(ID, 1000)) == "none"
    draw = coordinator.effects.pop()
    assert draw == DrawProducerId(1, InitProducer(ID, 1000))
    down = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert coordinator.code(DrawFailed(draw.command, down)) == "COORDINATOR_NOT_AVAILABLE"
    assert not coordinator.log


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (InitProducer("", 1000), "INVALID_REQUEST"),
        (InitProducer("t" * 4097, 1000), "INVALID_REQUEST"),
        (InitProducer(ID, 1000, 5, -1), "INVALID_REQUEST"),
        (InitProducer(ID, 1000, -1, 0), "INVALID_REQUEST"),
        (InitProducer(ID, 0), "INVALID_TRANSACTION_TIMEOUT"),
        (InitProducer(ID, -1), "INVALID_TRANSACTION_TIMEOUT"),
        (InitProducer(ID, 900_001), "INVALID_TRANSACTION_TIMEOUT"),
    ],
)
def test_what_is_refused_at_once(command: InitProducer, code: str) -> None:
    coordinator = Coordinator()
    assert coordinator.code(command) == code
    assert not coordinator.log


def test_who_sends_the_known_epoch_goes_on_and_may_ask_again() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    assert coordinator.init(first) == (1001, 1)
    assert coordinator.init(first) == (1001, 1)
    assert coordinator.code(InitProducer(ID, 1000, 1001, 7)) == "PRODUCER_FENCED"
    assert coordinator.code(InitProducer(ID, 1000, 1002, 1)) == "PRODUCER_FENCED"


def test_another_life_takes_the_answer_away_from_who_asks_again() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.init(first)
    assert coordinator.init() == (1001, 2)
    assert coordinator.code(InitProducer(ID, 1000, *first)) == "PRODUCER_FENCED"
    assert coordinator.code(InitProducer(ID, 1000, 1001, 1)) == "PRODUCER_FENCED"


def test_an_answer_that_the_log_refused_is_not_taken_for_one() -> None:
    """The epoch that was refused is given to another life: who asked for it first must not get it, too."""
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.refuses = True
    assert coordinator.ask(InitProducer(ID, 1000, *first)) == "refused"
    coordinator.refuses = False
    assert coordinator.init() == (1001, 1)
    assert coordinator.code(InitProducer(ID, 1000, *first)) == "PRODUCER_FENCED"


def test_who_missed_the_answer_to_its_endtxn_may_go_on_even_behind_a_failover() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first)
    coordinator.end(first)
    coordinator.write_markers()
    coordinator.restart()
    assert coordinator.init(first) == (1001, 1)


def test_a_prepared_transaction_is_waited_for() -> None:
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first)
    coordinator.end(first)
    for sent in ((-1, -1), first, (1001, 1), (5, 5)):
        assert coordinator.code(InitProducer(ID, 1000, *sent)) == "CONCURRENT_TRANSACTIONS"


@pytest.mark.parametrize(("level", "version", "after"), [(2, 2, 2), (2, 0, 2), (1, 0, 2), (0, 0, 2)])
def test_an_open_transaction_is_fenced_and_aborted(level: int, version: int, after: int) -> None:
    """The epoch rises once with either generation (KAFKA-19367), and the next life gets another one."""
    coordinator = Coordinator(level)
    first = coordinator.init()
    coordinator.add(first, version=version)
    assert coordinator.code(InitProducer(ID, 1000)) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.transaction.state.title == "PrepareAbort"
    marker = coordinator.markers()
    assert marker.producer == (1001, 1)
    assert not marker.commit
    assert marker.transaction_version == (2 if level == 2 else 0)
    assert marker.cause == "another InitProducerId"
    assert coordinator.code(EndTransaction(ID, first, True, version)) in ("CONCURRENT_TRANSACTIONS", "PRODUCER_FENCED")
    coordinator.write_markers()
    assert coordinator.code(EndTransaction(ID, first, True, version)) == "PRODUCER_FENCED"
    assert coordinator.init() == (1001, after)
    assert coordinator.machine.fenced == 1


def test_the_client_that_fences_is_named() -> None:
    coordinator = Coordinator(2)
    coordinator.add(coordinator.init(), version=2)
    assert coordinator.code(InitProducer(ID, 1000, client_id="duramen-cli")) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.markers().cause == "another InitProducerId of client duramen-cli"


@pytest.mark.parametrize("level", [1, 2])
def test_a_fence_that_the_log_refused_has_raised_nothing(level: int) -> None:
    """KAFKA-9666."""
    coordinator = Coordinator(level)
    first = coordinator.init()
    coordinator.add(first, version=0)
    coordinator.refuses = True
    for _ in range(3):
        assert coordinator.ask(InitProducer(ID, 1000)) == "refused"
    coordinator.refuses = False
    assert coordinator.transaction.producer == first
    assert coordinator.code(InitProducer(ID, 1000)) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.markers().producer == (1001, 1)


def test_who_comes_late_from_an_older_life_aborts_nothing() -> None:
    """Kafka would fence by any epoch of the known producer id."""
    coordinator = Coordinator()
    first = coordinator.init()
    second = coordinator.init()
    coordinator.add(second)
    assert coordinator.code(InitProducer(ID, 1000, *first)) == "PRODUCER_FENCED"
    assert coordinator.transaction.state.title == "Ongoing"
    assert coordinator.code(InitProducer(ID, 1000, *second)) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.transaction.state.title == "PrepareAbort"


# ---------------------------------------------------------------------- epochs that are used up


@pytest.mark.parametrize("sends", [False, True])
def test_behind_the_last_epoch_the_id_gets_another_producer_id(sends: bool) -> None:
    coordinator = Coordinator()
    known = at_epoch(coordinator, LAST_EPOCH - 1)
    last = coordinator.init(known)
    assert last == (1001, LAST_EPOCH)
    after = coordinator.init(last if sends else (-1, -1))
    assert after == (1002, 0)
    if sends:
        assert coordinator.init(last) == after
    else:
        assert coordinator.code(InitProducer(ID, 1000, *last)) == "PRODUCER_FENCED"
    assert coordinator.code(InitProducer(ID, 1000, 1001, 3)) == "PRODUCER_FENCED"


def test_a_fence_uses_the_epoch_that_no_client_has() -> None:
    coordinator = Coordinator(level=1)
    last = at_epoch(coordinator, LAST_EPOCH)
    coordinator.add(last, version=0)
    assert coordinator.code(InitProducer(ID, 1000)) == "CONCURRENT_TRANSACTIONS"
    assert coordinator.markers().producer == (1001, MAX_EPOCH)
    coordinator.write_markers()
    assert coordinator.transaction.producer == (1001, MAX_EPOCH)
    assert coordinator.init() == (1002, 0)


def test_a_fence_of_the_second_generation_replaces_the_producer_id() -> None:
    """KAFKA-20090."""
    coordinator = Coordinator()
    last = at_epoch(coordinator, LAST_EPOCH)
    coordinator.add(last)
    assert coordinator.code(InitProducer(ID, 1000)) == "CONCURRENT_TRANSACTIONS"
    marker = coordinator.markers()
    assert marker.producer == (1001, MAX_EPOCH)
    coordinator.restart()
    coordinator.ask(coordinator.written(P0))
    assert coordinator.transaction.producer == (1002, 0)
    assert coordinator.init() == (1002, 1)


def test_there_are_only_so_many_ids(monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "MAX_IDS", 2)
    coordinator = Coordinator()
    assert coordinator.code(InitProducer("a", 1000)) == "ProducerEpoch(id=1001, epoch=0)"
    coordinator.ask(InitProducer("b", 1000))
    assert coordinator.code(InitProducer("c", 1000)) == "COORDINATOR_NOT_AVAILABLE"
    assert coordinator.code(InitProducer("a", 1000)) == "ProducerEpoch(id=1001, epoch=1)"
