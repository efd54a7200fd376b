"""What EndTxn does in each state, by the generation of the request and the epoch that it names."""

from __future__ import annotations

from enum import Enum
from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction.commands import SECOND_GENERATION, EndTransaction
from duramen.machines.transaction.state import Transaction
from duramen.machines.transaction.takeovers import fenced
from duramen.machines.transaction.transitions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TransactionState,
)
from duramen.model import NO_PRODUCER_EPOCH


class Verdict(Enum):
    PREPARE = "it is decided now"
    REPEATED = "it was decided before: the same answer"
    WAIT = "CONCURRENT_TRANSACTIONS: markers are on their way"
    OTHERWISE = "INVALID_TXN_STATE: nothing is open, or it has ended the other way"
    FENCED = "PRODUCER_FENCED"


_PREPARE, _REPEATED, _WAIT = Verdict.PREPARE, Verdict.REPEATED, Verdict.WAIT
_OTHERWISE, _FENCED = Verdict.OTHERWISE, Verdict.FENCED

FIRST_TABLE: Final[dict[TransactionState, tuple[Verdict, Verdict]]] = {
    EMPTY: (_OTHERWISE, _OTHERWISE),
    ONGOING: (_PREPARE, _PREPARE),
    PREPARE_COMMIT: (_WAIT, _WAIT),
    PREPARE_ABORT: (_WAIT, _WAIT),
    COMPLETE_COMMIT: (_OTHERWISE, _REPEATED),
    COMPLETE_ABORT: (_REPEATED, _OTHERWISE),
}
"""First generation: (abort, commit) of the known epoch; of any other it is FENCED."""

SECOND_TABLE: Final[dict[TransactionState, tuple[Verdict, Verdict, Verdict, Verdict]]] = {
    EMPTY: (_PREPARE, _OTHERWISE, _FENCED, _FENCED),
    ONGOING: (_PREPARE, _PREPARE, _FENCED, _FENCED),
    PREPARE_COMMIT: (_WAIT, _WAIT, _WAIT, _WAIT),
    PREPARE_ABORT: (_WAIT, _WAIT, _WAIT, _WAIT),
    COMPLETE_COMMIT: (_PREPARE, _OTHERWISE, _OTHERWISE, _REPEATED),
    COMPLETE_ABORT: (_PREPARE, _OTHERWISE, _REPEATED, _FENCED),
}
"""Second generation: (abort, commit) of the known epoch, then those of the one before. The last one of all: the
coordinator has aborted first (a time-out), where INVALID_TXN_STATE would end the client for good (KAFKA-20785)."""


def judge(command: EndTransaction, transaction: Transaction) -> Verdict:
    """The table's row for this request."""
    sent, known = command.producer, transaction.producer
    if command.transaction_version < SECOND_GENERATION:
        if sent.id != known.id:
            raise wrong_id(command.transactional_id, sent)
        return FIRST_TABLE[transaction.state][command.commit] if sent.epoch == known.epoch else Verdict.FENCED
    if transaction.is_prepared:
        # Before id and epoch: where the epochs are used up the client has the next id already (KAFKA-18660).
        return Verdict.WAIT
    is_repeated = is_one_before(sent, transaction)
    if sent.id != known.id and not is_repeated:
        raise wrong_id(command.transactional_id, sent)
    if sent != known and not is_repeated:
        return Verdict.FENCED
    return SECOND_TABLE[transaction.state][2 * is_repeated + command.commit]


def is_one_before(sent: ProducerEpoch, transaction: Transaction) -> bool:
    """Whether an EndTxn of this epoch has raised it to the known one: its sender may not have seen the answer.

    Kafka goes by the number alone: it repeats the answer to an older life, too, where a client of the first generation,
    whose EndTxn raises nothing, has taken the id over.
    """
    is_same_id = sent.id == (transaction.producer.id if transaction.producer.epoch else transaction.previous_id)
    return is_same_id and sent.epoch == transaction.epoch_before != NO_PRODUCER_EPOCH


def wrong_id(transactional_id: str, sent: ProducerEpoch) -> KafkaError:
    """The transactional id is unknown, or has another producer id."""
    what = f"{transactional_id} has no producer {sent.id}, or has expired: the producer has to be initialised again"
    return KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, what)


def refusal(verdict: Verdict, command: EndTransaction, transaction: Transaction) -> KafkaError:
    """The error of a verdict that is one."""
    if verdict is Verdict.FENCED:
        return fenced(command.transactional_id, command.producer, transaction)
    wanted = "commit" if command.commit else "abort"
    if verdict is Verdict.WAIT:
        return concurrent(command.transactional_id)
    what = f"{command.transactional_id} is {transaction.state.title}: there is nothing to {wanted}"
    return KafkaError(ErrorCode.INVALID_TXN_STATE, what)


def concurrent(transactional_id: str) -> KafkaError:
    """The last transaction is decided, but its markers are not all written yet: try again soon."""
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id}: markers are still being written")
