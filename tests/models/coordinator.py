"""The transaction machine as a function for the model: what it knows, a command, and what it knows then."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple
from unittest import mock

from duramen.errors import KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction import DrawProducerId, MarkersAbandoned, MarkersWritten, TransactionMachine, endings
from duramen.machines.transaction.state import FIRST_STATE, Transaction
from duramen.model import TopicPartition

ID = "id"


class Known(NamedTuple):
    """All that the machine has of the one id."""

    transaction: Transaction | None
    unmarked: frozenset[TopicPartition] | None
    continued: tuple[ProducerEpoch, int] | None


class LooseMachine(TransactionMachine):
    """Without one of the rules that stand in the machine."""

    without = ""

    def _decided(self, command: MarkersWritten | MarkersAbandoned) -> Transaction | None:
        if self.without == "this-decision":
            transaction = self.transactions[ID]
            is_one = transaction.is_prepared and transaction.producer == command.producer
            return transaction if is_one else None
        transaction_or_none = super()._decided(command)
        if transaction_or_none is not None and self.without == "all-markers":
            self.unmarked[ID].clear()
        return transaction_or_none

    def _continued_epoch(self, transactional_id: str, transaction: Transaction) -> int:
        if self.without == "new-life":
            return transaction.producer.epoch - 1
        return super()._continued_epoch(transactional_id, transaction)


def first_known(epoch: int) -> Known:
    """The id in the hands of its first producer."""
    return Known(FIRST_STATE._replace(producer=ProducerEpoch(1, epoch), previous_id=1), None, None)


def _machine(known: Known, without: str) -> LooseMachine:
    machine = LooseMachine()
    machine.without = without
    if known.transaction is not None:
        machine.transactions[ID] = known.transaction
    if known.unmarked is not None:
        machine.unmarked[ID] = set(known.unmarked)
    if known.continued is not None:
        machine._continued[ID] = known.continued
    return machine


def _known(machine: LooseMachine) -> Known:
    unmarked = machine.unmarked.get(ID)
    return Known(
        machine.transactions.get(ID), None if unmarked is None else frozenset(unmarked), machine._continued.get(ID)
    )


def _one_before(sent: ProducerEpoch, transaction: Transaction) -> bool:
    return sent.id == transaction.producer.id and sent.epoch == transaction.producer.epoch - 1


Answer = tuple[Known, Known, Any, tuple[Any, ...]]
"""(known behind it, known if the log refused it, the answer, the effects)"""


def answer_to(known: Known, command: Any, without: str) -> Answer:
    """What the machine makes of it; a producer id is drawn at once."""
    # Named tuples of two classes are equal when their fields are.
    return _answer_to(known, type(command).__name__, command, without)


@cache
def _answer_to(known: Known, kind: str, command: Any, without: str) -> Answer:
    machine = _machine(known, without)
    rule = endings.is_one_before if without != "raised-by-endtxn" else _one_before
    try:
        with mock.patch.object(endings, "is_one_before", rule):
            out = machine.decide(command, 1, 0)
    except KafkaError as error:
        return known, known, error, ()
    if out.effects and isinstance(out.effects[0], DrawProducerId):
        assert known.transaction is not None
        fresh = out.effects[0].command._replace(fresh_id=known.transaction.producer.id + 1)
        return answer_to(known, fresh, without)
    refused = _known(machine)
    for record in out.records:
        machine.apply(record, 0, 0)
    answers = dict(out.replies)
    return _known(machine), refused, answers.get(1), tuple(out.effects)


@cache
def reloaded(known: Known) -> tuple[Known, tuple[Any, ...]]:
    """Another coordinator has read the log: (what it knows, the effects that it asks for)."""
    machine = _machine(Known(known.transaction, None, None), "")
    if known.transaction is not None and known.transaction.is_prepared:
        machine.unmarked[ID] = set(known.transaction.partitions)
    out = machine.on_loaded(0)
    return _known(machine), tuple(out.effects)
