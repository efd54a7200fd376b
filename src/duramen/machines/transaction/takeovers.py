"""Who may write for a transactional id: what InitProducerId gives, and to whom it is refused."""

from __future__ import annotations

from typing import NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction.commands import NO_PRODUCER, InitProducer
from duramen.machines.transaction.state import LAST_EPOCH, Transaction
from duramen.model import NO_PRODUCER_EPOCH


class Takeover(NamedTuple):
    """What an InitProducerId gives. producer: None when it takes a new producer id.

    continued: the epoch that its sender had before, and may send again should the answer be lost; -1 when it sent none,
    for then a producer of an older life may have it, too.
    """

    producer: ProducerEpoch | None
    continued: int = NO_PRODUCER_EPOCH


def check_claim(command: InitProducer, transaction: Transaction | None) -> None:
    """PRODUCER_FENCED when the sender says that it was somebody whom another life has replaced."""
    sent = ProducerEpoch(command.producer_id, command.producer_epoch)
    if sent == NO_PRODUCER or transaction is None:
        return
    is_retry_with_new_id = sent.id == transaction.previous_id and sent.epoch >= LAST_EPOCH
    if sent.id != transaction.producer.id and not is_retry_with_new_id:
        raise fenced(command.transactional_id, sent, transaction)
    # Kafka lets any epoch of this id end the transaction that is open; a request that comes late would do it, too.
    if not transaction.is_idle and not transaction.is_prepared and sent != transaction.producer:
        raise fenced(command.transactional_id, sent, transaction)


def take_over(command: InitProducer, transaction: Transaction, continued: int) -> Takeover:
    """Of an id without an open transaction. continued: as in the Takeover that its producer has, if it is known."""
    known = transaction.producer
    sent = ProducerEpoch(command.producer_id, command.producer_epoch)
    is_new_life = sent == NO_PRODUCER
    if transaction.is_exhausted and (is_new_life or sent.epoch == known.epoch):
        return Takeover(None, NO_PRODUCER_EPOCH if is_new_life else known.epoch)
    if is_new_life:
        return Takeover(ProducerEpoch(known.id, known.epoch + 1))
    if sent == known:
        return Takeover(ProducerEpoch(known.id, known.epoch + 1), known.epoch)
    if sent.epoch == continued and sent.epoch != NO_PRODUCER_EPOCH:
        return Takeover(known, continued)
    raise fenced(command.transactional_id, sent, transaction)


def fenced(transactional_id: str, sent: ProducerEpoch, transaction: Transaction) -> KafkaError:
    """Another producer has taken the id over: the newest code, which old versions get as 47."""
    known = transaction.producer
    what = f"producer {known.id} epoch {known.epoch} by now, not to {sent.id} epoch {sent.epoch}"
    return KafkaError(ErrorCode.PRODUCER_FENCED, f"{transactional_id} belongs to {what}")
