"""What is known of one transactional id."""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction.commands import NO_PRODUCER, SECOND_GENERATION
from duramen.machines.transaction.transitions import (
    EMPTY,
    IDLE,
    ONGOING,
    PREPARED,
    TransactionEvent,
    TransactionState,
    state_behind,
)
from duramen.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

MAX_EPOCH: Final = 32_767
"""Of no client: with it alone the last one that a client may have is fenced."""
LAST_EPOCH: Final = MAX_EPOCH - 1
"""The last one that a client is given; then the transactional id gets another producer id."""


class Transaction(NamedTuple):
    """One transactional id, as its last record has it; a change is another one of these.

    previous_id: the producer id before the last change. next_id: the one that the transaction's completion switches to,
    because the epochs of this one are used up. started_ms: -1 before the first transaction. client_version: the
    `transaction.version` of who caused the last change. updated_ms: when that was; never less than before.
    """

    producer: ProducerEpoch
    timeout_ms: int
    updated_ms: int
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    previous_id: int = NO_PRODUCER_ID
    next_id: int = NO_PRODUCER_ID
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """The next life, or with the second generation the next transaction, needs another producer id."""
        return self.producer.epoch >= LAST_EPOCH

    @property
    def is_idle(self) -> bool:
        return self.state in IDLE

    @property
    def is_prepared(self) -> bool:
        return self.state in PREPARED

    @property
    def epoch_before(self) -> int:
        """The epoch that the producer ended its transaction with where that raised it, -1 otherwise: who repeats that
        EndTxn, or gives this epoch to InitProducerId, has only missed an answer."""
        if self.client_version < SECOND_GENERATION or self.state in (EMPTY, ONGOING):
            return NO_PRODUCER_EPOCH
        if self.producer.epoch == 0:
            return LAST_EPOCH if self.previous_id != self.producer.id else NO_PRODUCER_EPOCH
        return self.producer.epoch - 1

    # ------------------------------------------------------------------ changes

    def initialised(self, producer: ProducerEpoch, timeout_ms: int, now: int) -> Transaction:
        """The same id in the hands of this producer epoch."""
        return self._replace(
            producer=producer,
            timeout_ms=timeout_ms,
            updated_ms=max(now, self.updated_ms),
            state=state_behind(self.state, TransactionEvent.INITIALISED),
            partitions=frozenset(),
            started_ms=-1,
            previous_id=self.producer.id,
        )

    def added(self, partitions: tuple[TopicPartition, ...], version: int, now: int) -> Transaction:
        """The transaction with these partitions, begun now if none was open."""
        return self._replace(
            updated_ms=max(now, self.updated_ms),
            state=state_behind(self.state, TransactionEvent.ADDED),
            partitions=self.partitions.union(partitions),
            started_ms=now if self.is_idle else self.started_ms,
            previous_id=self.producer.id,
            client_version=version,
        )

    def prepared(self, event: TransactionEvent, version: int, next_id: int, now: int) -> Transaction:
        """The transaction, decided. The second generation raises the epoch, and so does a fence.

        Its time is later than that of any earlier change: it tells this decision from all others of the id.
        """
        epoch = self.producer.epoch
        if version >= SECOND_GENERATION or event is TransactionEvent.FENCED:
            epoch = min(epoch + 1, MAX_EPOCH)
        return self._replace(
            producer=ProducerEpoch(self.producer.id, epoch),
            updated_ms=max(now, self.updated_ms + 1),
            state=state_behind(self.state, event),
            started_ms=now if event is TransactionEvent.NOTHING_ABORTED else self.started_ms,
            previous_id=self.producer.id,
            next_id=next_id,
            client_version=version,
        )

    def completed(self, now: int) -> Transaction:
        """The transaction after its markers; with another producer id where one was drawn."""
        return self._replace(
            producer=self.next_producer,
            updated_ms=max(now, self.updated_ms),
            state=state_behind(self.state, TransactionEvent.MARKED),
            partitions=frozenset(),
            previous_id=self.producer.id,
            next_id=NO_PRODUCER_ID,
        )

    @property
    def next_producer(self) -> ProducerEpoch:
        """Who may write once this prepared transaction is complete."""
        if self.next_id != NO_PRODUCER_ID and self.client_version >= SECOND_GENERATION:
            return ProducerEpoch(self.next_id, 0)
        return self.producer


FIRST_STATE: Final = Transaction(NO_PRODUCER, 0, 0)
"""Of an id that nothing is known of."""
