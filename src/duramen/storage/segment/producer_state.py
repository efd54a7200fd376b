"""What a log knows of its producers: their last five batches, their epochs and their open transactions (KIP-98).

It is what makes a producer's retry store nothing twice, and where the last stable offset comes from. It is rebuilt from
batch headers, so it is never more than a cache of the log. `storage/segment/producer_snapshot.py` keeps it on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.model import FIRST_NAMED_PRODUCER_ID, FIRST_SINK_PRODUCER_ID, is_named
from duramen.ports import Buffer
from duramen.storage.segment.open_transactions import OpenTransactions
from duramen.storage.segment.stream_state import StreamState, stream_after
from duramen.storage.segment.transaction_guards import TransactionGuard, TransactionGuards
from duramen.wire.batch import ABORT, MAX_SEQUENCE, BatchHeader, Marker

REMEMBERED_BATCHES = 5
"""Batches per producer that a retry may repeat: what a producer may have in flight (KIP-98)."""
REPEATED_OVER_THE_WRAP = 1 << 20
"""So many batches back a repeated one may have a number from before the return to 0; others leave a gap."""
NO_TRANSACTION = -1
SECOND_GENERATION = 2
"""The `transaction.version` from which on the epoch rises with each transaction (KIP-890)."""
GREATEST_EPOCH = 2**15 - 1


def is_sinks(producer_id: int) -> bool:
    """Whether the id belongs to a sink, past or present."""
    return producer_id >= FIRST_SINK_PRODUCER_ID


class Duplicate(NamedTuple):
    """The first home of a batch that a producer sent again. timestamp: greatest in the batch, ms.

    base_offset: -1 for a named writer's that is remembered no more; it lies at or below `last_offset`.
    """

    base_offset: int
    timestamp: int
    last_offset: int


class AbortedTransaction(NamedTuple):
    """An entry of `.txnindex`: records of the producer between these offsets were rolled back."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


StoredBatch = tuple[int, int, int, int, int]
"""What is remembered of one batch: base and last sequence, base and last offset, greatest timestamp. A plain tuple,
because one is made for every batch of every idempotent producer."""


RETRY_MS = 60 * 60_000
"""For so long after a start a producer may come with a batch whose answer the crash took (clients: two minutes)."""
RESTORED = -1
WRITER_EXPIRATION_MS = 7 * 24 * 3600 * 1000
"""For so long a named writer is known that writes nothing, unless its topic says otherwise."""


class Producer:
    """State of one producer id. `batches` are the latest of its current epoch, oldest first."""

    __slots__ = (
        "batches", "coordinator_epoch", "epoch", "id", "idle_since_ms", "last_marker", "last_timestamp",
        "transaction_start",
    )  # fmt: skip

    def __init__(self, id: int) -> None:
        self.id = id
        self.epoch = -1
        self.batches: tuple[StoredBatch, ...] = ()
        self.coordinator_epoch = -1
        self.last_marker = -1
        """Offset of its last marker since the log was opened: who only ends transactions here is known by that."""
        self.last_timestamp = -1
        self.idle_since_ms: int | None = None
        """When `ProducerStates.expire` first found that it had written nothing more; None: not yet. Or RESTORED."""
        self.transaction_start = NO_TRANSACTION
        """First offset of its open transaction, -1 when there is none."""

    @property
    def last_sequence(self) -> int:
        """-1 when none is known for the epoch."""
        return self.batches[-1][1] if self.batches else -1

    @property
    def last_offset(self) -> int:
        return self.batches[-1][3] if self.batches else -1


class ProducerStates:
    """All producers of one log. Timestamps and times in ms."""

    __slots__ = ("_guards", "_producers", "_transactions", "first_unstable_offset", "markers_end", "stream")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        # None where no transaction was ever seen: most logs have none, and there are many logs.
        self._transactions: OpenTransactions | None = None
        self._guards: TransactionGuards | None = None
        self.first_unstable_offset: int | None = None
        """First offset of a transaction that is open, or ended by a marker that is not committed; None without."""
        self.markers_end = 0
        """Behind the last marker that was appended, a transaction's or a stream's; a log that was cut below it ends
        there.
        """

        self.stream: StreamState | None = None
        """What control records of ours said; None where there was none."""

    def __len__(self) -> int:
        """How many producers are known; what is known of the stream counts as one more."""
        return len(self._producers) + (self.stream is not None)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def active(self) -> Iterator[Producer]:
        """All known producers, by ascending id (DescribeProducers); those that are forgotten meanwhile are left out."""
        for producer_id in sorted(self._producers):
            producer = self._producers.get(producer_id)
            if producer is not None:
                yield producer

    @property
    def open_transactions(self) -> int:
        """How many are open."""
        return 0 if self._transactions is None else len(self._transactions)

    @property
    def oldest_transaction(self) -> Producer | None:
        """Whose transaction has been open for longest; None where none is."""
        transactions = self._transactions
        id = None if transactions is None else transactions.oldest_producer
        return None if id is None else self._producers.get(id)

    # ---- appends ---------------------------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Whether a client's batch may be appended; the first home of a batch that is stored already.

        Raises KafkaError: INVALID_PRODUCER_EPOCH (an epoch older than known), OUT_OF_ORDER_SEQUENCE_NUMBER (a gap),
        INVALID_TXN_STATE (a plain batch inside the producer's open transaction). A producer that is not known, or not
        any more, may start with any sequence (Kafka 4.3); but a named writer with 0 alone.
        """
        if FIRST_NAMED_PRODUCER_ID <= header.producer_id < FIRST_SINK_PRODUCER_ID:
            return self._check_named(header)
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        epoch = header.producer_epoch
        first, last = header.base_sequence, header.last_sequence
        if epoch == producer.epoch:
            for base_sequence, last_sequence, base_offset, last_offset, timestamp in producer.batches:
                if base_sequence == first and last_sequence == last:
                    return Duplicate(base_offset, timestamp, last_offset)
            known = producer.last_sequence
            if first != (known + 1 if known != MAX_SEQUENCE else 0):
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id}: sequence {first} after {known}",
                )
        elif epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id}: epoch {epoch} is older than {producer.epoch}",
            )
        elif first != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: epoch {epoch} begins with sequence {first} instead of 0",
            )
        if producer.transaction_start != NO_TRANSACTION and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction; this batch is not part of one",
            )
        return None

    def _check_named(self, header: BatchHeader) -> Duplicate | None:
        """The same for a named writer's, of which each has one sequence; all up to the last are stored."""
        producer = self._producers.get(header.producer_id)
        epoch, sequence = header.producer_epoch, header.base_sequence
        if producer is not None and epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"writer {header.producer_id}: epoch {epoch} is older than {producer.epoch}",
            )
        expected = 0
        if producer is not None and epoch == producer.epoch and producer.batches:
            last = producer.last_sequence
            behind = (last - sequence) & MAX_SEQUENCE
            if behind <= MAX_SEQUENCE // 2 and (sequence <= last or behind < REPEATED_OVER_THE_WRAP):
                for base_sequence, _, base_offset, last_offset, timestamp in producer.batches:
                    if base_sequence == sequence:
                        return Duplicate(base_offset, timestamp, last_offset)
                return Duplicate(-1, -1, producer.batches[0][2] - 1)
            expected = (last + 1) & MAX_SEQUENCE
        if sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"writer {header.producer_id}: sequence {sequence} of epoch {epoch}, expected is {expected}",
            )
        return None

    def update(self, header: BatchHeader) -> None:
        """A data batch with a producer id was appended at `header.base_offset`."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer(header.producer_id)
        if header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches = ()
        base = header.base_offset
        timestamp = header.max_timestamp
        sequence = header.base_sequence
        if sequence >= 0:  # a coordinator's has none, and is nobody's last batch
            last = base + header.last_offset_delta
            last_sequence = sequence
            if not FIRST_NAMED_PRODUCER_ID <= producer.id < FIRST_SINK_PRODUCER_ID:
                last_sequence = (sequence + header.last_offset_delta) & MAX_SEQUENCE
            batch = (sequence, last_sequence, base, last, timestamp)
            batches = producer.batches
            producer.batches = (*batches, batch) if len(batches) < REMEMBERED_BATCHES else (*batches[1:], batch)
        producer.last_timestamp = timestamp
        producer.idle_since_ms = None
        if header.is_transactional:
            if self._guards is not None:
                self._guards.appended(producer.id)
            if producer.transaction_start == NO_TRANSACTION:
                producer.transaction_start = base
                if self._transactions is None:
                    self._transactions = OpenTransactions()
                self._transactions.begin(base, producer.id)
                self._refresh()

    @property
    def closed_at(self) -> int | None:
        """Offset of the record that closed the log; None while it is open."""
        return None if self.stream is None else self.stream.closed_at

    def take_control(self, data: Buffer, header: BatchHeader) -> None:
        """A control batch without a producer was appended, or is read again: if it is of ours it changes the stream."""
        stream = stream_after(self.stream, data, header)
        if stream is not self.stream:
            self.stream = stream
            self.markers_end = header.next_offset

    def rolled_back(self, header: BatchHeader, marker: Marker) -> AbortedTransaction | None:
        """What `.txnindex` must record before this marker is appended; None where it rolls nothing back."""
        producer, transactions = self._producers.get(header.producer_id), self._transactions
        if marker.type != ABORT or producer is None or transactions is None:
            return None
        start, offset = producer.transaction_start, header.base_offset
        if start == NO_TRANSACTION:
            return None
        first = transactions.first_open_but(start)
        return AbortedTransaction(producer.id, start, offset, offset + 1 if first is None else first)

    def end_transaction(self, header: BatchHeader, marker: Marker) -> None:
        """A marker is appended."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer(header.producer_id)
        if header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches = ()
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_marker = header.base_offset
        self.markers_end = header.next_offset
        producer.last_timestamp = header.max_timestamp
        producer.idle_since_ms = None
        if self._guards is not None:
            self._guards.ended(header)
        start, transactions = producer.transaction_start, self._transactions
        if start != NO_TRANSACTION and transactions is not None:
            producer.transaction_start = NO_TRANSACTION
            transactions.end(start, header.base_offset)
            self._refresh()

    def committed(self, high_watermark: int) -> None:
        """Everything below `high_watermark` is committed: ended transactions below it are stable."""
        if self._transactions is not None and self._transactions.committed(high_watermark):
            self._refresh()

    def _refresh(self) -> None:
        self.first_unstable_offset = None if self._transactions is None else self._transactions.first_unstable

    # ---- transactions ----------------------------------------------------------------------------------------

    def has_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether one of this epoch is open."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.transaction_start != NO_TRANSACTION and producer.epoch == epoch

    def guard(self, producer_id: int, epoch: int, sequence: int, is_second_generation: bool) -> TransactionGuard:
        """The guard under which this producer's coordinator is asked whether the log is part of its transaction.

        Raises KafkaError INVALID_PRODUCER_EPOCH.
        """
        self.check_epoch(producer_id, epoch)
        if self._guards is None:
            self._guards = TransactionGuards()
        return self._guards.take(producer_id, epoch, sequence, is_second_generation)

    def drop_guard(self, guard: TransactionGuard) -> None:
        """The coordinator has said no."""
        if self._guards is not None:
            self._guards.drop(guard)

    def check_transactional(self, header: BatchHeader, guard: TransactionGuard | None) -> Duplicate | None:
        """As `check`, for a client's transactional batch; the guard that its coordinator's word came under, if it was
        asked.

        Raises INVALID_TXN_STATE where no transaction of that epoch is open, and the guard holds no more.
        """
        producer = self._producers.get(header.producer_id)
        is_known = producer is not None and producer.epoch == header.producer_epoch
        is_late = guard is not None and guard.is_ended
        if producer is not None and is_known and (is_late or producer.transaction_start == NO_TRANSACTION):
            first, last = header.base_sequence, header.last_sequence
            is_known = any(batch[:2] == (first, last) for batch in producer.batches)
        if not is_known:
            self.check_guard(header.producer_id, header.producer_epoch, guard)
            first = header.base_sequence
            if guard is not None and guard.is_second_generation and first != 0 and producer is None:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} is not known here and begins with sequence {first} instead of 0",
                )
            if guard is not None and guard.is_behind(first):
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id}: sequence {guard.lowest_sequence} has to come before {first}",
                )
        return self.check(header)

    def check_guard(self, producer_id: int, epoch: int, guard: TransactionGuard | None) -> None:
        """Whether the producer may write to its transaction now, sequences aside. Raises KafkaError as
        `check_transactional`.
        """
        self.check_epoch(producer_id, epoch)
        is_late = guard is not None and guard.is_ended  # one is open, perhaps, but not the one that was asked about
        if not is_late and self.has_transaction(producer_id, epoch):
            return
        if guard is None or self._guards is None or not self._guards.holds(guard, producer_id, epoch):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has no open transaction here, and nobody has said by now that it may",
            )

    def check_marker(self, header: BatchHeader, marker: Marker, transaction_version: int) -> bool:
        """Whether a coordinator's marker is there already; transaction_version: under which it ended the transaction.

        Raises KafkaError: INVALID_PRODUCER_EPOCH for an old producer epoch, TRANSACTION_COORDINATOR_FENCED for an old
        coordinator's. In the second generation the epoch was raised for the marker, and one that is known already is
        of another transaction; but where none is open here it is the same marker once more: its answer was lost, or
        another coordinator goes on (KAFKA-19999).
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return False
        epoch = header.producer_epoch
        is_second = transaction_version >= SECOND_GENERATION
        is_again = is_second and epoch == producer.epoch
        is_open = producer.transaction_start != NO_TRANSACTION
        if epoch < producer.epoch or (is_again and is_open and epoch != GREATEST_EPOCH):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id}: marker of epoch {epoch}, known is {producer.epoch}",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of coordinator epoch {marker.coordinator_epoch}, known is {producer.coordinator_epoch}",
            )
        return is_again and not is_open and marker.coordinator_epoch == producer.coordinator_epoch

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raises KafkaError INVALID_PRODUCER_EPOCH for one older than known."""
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id}: epoch {epoch} is older than {producer.epoch}",
            )

    # ---- forgetting ------------------------------------------------------------------------------------------

    def expire(
        self,
        now_ms: int,
        expiration_ms: int,
        keeps: Callable[[int], bool] = is_sinks,
        writer_expiration_ms: int = WRITER_EXPIRATION_MS,
    ) -> int:
        """Forget producers without an open transaction that wrote nothing for `expiration_ms`; how many.

        Measured by the clock, not by the records' times as in Kafka: who copies old data is at work, and forgotten
        between a batch and its retry it would store the batch twice. Of those that were restored from a file only
        their last record's time is known: by that they go, but not before RETRY_MS after the start.

        Not those whose id `keeps` holds for: a sink may go on after any pause, and what it wrote must be known then.
        So may the exclusive writer that the log is open for.
        Named writers after `writer_expiration_ms`, which begins with a start: their records may have any times.
        """
        gone = []
        stream = self.stream
        exclusive_id = -1 if stream is None or stream.writer is None else stream.writer.producer_id
        for producer in self._producers.values():
            limit_ms = expiration_ms
            if is_named(producer.id):
                limit_ms = writer_expiration_ms
                if producer.idle_since_ms == RESTORED:
                    producer.idle_since_ms = now_ms
            if producer.idle_since_ms is None:
                producer.idle_since_ms = now_ms
            elif producer.idle_since_ms == RESTORED:
                soonest = now_ms - max(0, expiration_ms - RETRY_MS)
                producer.idle_since_ms = max(soonest, min(producer.last_timestamp, now_ms))
            if (
                producer.idle_since_ms <= now_ms - limit_ms
                and producer.transaction_start == NO_TRANSACTION
                and producer.id != exclusive_id
                and not keeps(producer.id)
            ):
                gone.append(producer.id)
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def clock_set(self, by_ms: int) -> None:
        """The clock that `expire` measures by was set ahead, or back (negative): who was idle was so no longer."""
        for producer in self._producers.values():
            if producer.idle_since_ms is not None and producer.idle_since_ms != RESTORED:
                producer.idle_since_ms += by_ms

    def forget(self, producer_id: int) -> None:
        """Let a producer without an open transaction go: its next batch may have any sequence."""
        producer = self._producers.get(producer_id)
        if producer is not None and producer.transaction_start == NO_TRANSACTION:
            del self._producers[producer_id]

    def clear(self) -> None:
        """Forget everything, before it is rebuilt."""
        self._producers.clear()
        self._transactions = self._guards = self.first_unstable_offset = self.stream = None
        self.markers_end = 0

    def cut(self, end: int, rolled_back: Iterable[int]) -> None:
        """The log ends at `end` from now on: until `take_over` nobody is known, only from where on it is unstable.

        rolled_back: first offsets of the aborted transactions whose markers went. Of those that were committed, and
        whose markers went, that comes out when they are read again; readers have seen them.
        """
        self._producers.clear()
        self._guards = self.stream = None
        self.markers_end = min(self.markers_end, end)
        starts = list(rolled_back)
        if self._transactions is None and starts:
            self._transactions = OpenTransactions()
        if self._transactions is not None:
            self._transactions.cut(end, starts)
        self._refresh()

    def take_over(self, others: ProducerStates) -> None:
        """What was read again of the same log; nothing was appended meanwhile.

        But for what has ended: that was known all the time, unless it is committed.
        """
        self._producers = others._producers
        self.stream = others.stream
        if self._transactions is None:
            self._transactions = others._transactions
        else:
            self._transactions.take_open(others._transactions)
        self._refresh()

    def restore(self, producers: Iterable[Producer]) -> None:
        """Take over producers' states as they were stored."""
        transactions = {}
        for producer in producers:
            producer.idle_since_ms = RESTORED
            self._producers[producer.id] = producer
            if producer.transaction_start != NO_TRANSACTION:
                transactions[producer.transaction_start] = producer.id
        if transactions:
            if self._transactions is None:
                self._transactions = OpenTransactions()
            self._transactions.take(transactions.items())
            self._refresh()
