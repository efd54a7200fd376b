"""AddPartitions that comes while markers of the last transaction are on their way waits for them, for a moment."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.transaction_world import ID, P0, P1, Coordinator

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction.commands import AddPartitions, ResumeParked

WAIT_MS = 100


@pytest.fixture
def world() -> Coordinator:
    world = Coordinator()
    world.machine.parks_ms = WAIT_MS
    return world


def prepared(world: Coordinator) -> ProducerEpoch:
    """The producer of the transaction that follows one whose markers are not written."""
    producer = world.init()
    world.add(producer)
    return world.end(producer)


def parked(world: Coordinator, producer: ProducerEpoch) -> int:
    """The ticket of a request that waits."""
    assert world.ask(AddPartitions(ID, producer, (P1,), 2)) == "none"
    return world._ticket


def answer(world: Coordinator, ticket: int) -> Any:
    found = world.answers.get(ticket, "none")
    return getattr(found, "code", found)


def test_it_is_added_to_the_next_transaction_once_the_last_one_is_complete(world: Coordinator) -> None:
    producer = prepared(world)
    ticket = parked(world, producer)
    world.ask(world.written(P0))
    assert answer(world, ticket) == "none"
    assert world.effects.pop() == ResumeParked(ID)
    world.ask(ResumeParked(ID))
    assert answer(world, ticket) is None
    assert world.transaction.partitions == {P1}
    world.ask(ResumeParked(ID))
    world.wait(WAIT_MS)
    assert answer(world, ticket) is None, "answered once"


def test_it_waits_no_longer_than_a_moment_and_one_at_a_time(world: Coordinator) -> None:
    producer = prepared(world)
    ticket = parked(world, producer)
    assert world.code(AddPartitions(ID, producer, (P0,), 2)) == "CONCURRENT_TRANSACTIONS"
    world.wait(WAIT_MS)
    assert answer(world, ticket) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.ask(world.written(P0))
    assert ResumeParked(ID) not in world.effects


def test_who_was_fenced_meanwhile_is_told_so(world: Coordinator) -> None:
    producer = prepared(world)
    ticket = parked(world, ProducerEpoch(producer.id, producer.epoch - 1))
    world.ask(world.written(P0))
    world.effects.clear()
    world.ask(ResumeParked(ID))
    assert answer(world, ticket) is ErrorCode.PRODUCER_FENCED


def test_it_waits_on_where_the_log_does_not_take_the_completion(world: Coordinator) -> None:
    producer = prepared(world)
    ticket = parked(world, producer)
    world.refuses = True
    world.ask(world.written(P0))
    world.refuses = False
    assert answer(world, ticket) == "none"
    world.wait(WAIT_MS)
    assert answer(world, ticket) is ErrorCode.CONCURRENT_TRANSACTIONS
