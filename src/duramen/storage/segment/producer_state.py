"""What a log knows of its producers: their last five batches, their epochs and their open transactions (KIP-98).

It is what makes a producer's retry store nothing twice, and where the last stable offset comes from. It is rebuilt from
batch headers, so it is never more than a cache of the log. `storage/segment/producer_snapshot.py` keeps it on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.model import FIRST_SINK_PRODUCER_ID
from duramen.wire.batch import ABORT, MAX_SEQUENCE, BatchHeader, Marker

REMEMBERED_BATCHES = 5
"""Batches per producer that a retry may repeat: what a producer may have in flight (KIP-98)."""
NO_TRANSACTION = -1


def is_sinks(producer_id: int) -> bool:
    """Whether the id belongs to a sink, past or present."""
    return producer_id >= FIRST_SINK_PRODUCER_ID


class Duplicate(NamedTuple):
    """The first home of a batch that a producer sent again. timestamp: greatest in the batch, ms."""

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


class Producer:
    """State of one producer id. `batches` are the latest of its current epoch, oldest first."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "id", "idle_since_ms", "last_timestamp", "transaction_start")

    def __init__(self, id: int) -> None:
        self.id = id
        self.epoch = -1
        self.batches: tuple[StoredBatch, ...] = ()
        self.coordinator_epoch = -1
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

    __slots__ = ("_ended", "_open", "_producers", "first_unstable_offset")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}  # first offset -> producer id, ascending because appends are
        self._ended: dict[int, int] = {}  # first offset -> offset of the marker, until that is committed
        self.first_unstable_offset: int | None = None
        """First offset of a transaction that is open, or ended by a marker that is not committed; None without."""

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def active(self) -> Iterator[Producer]:
        """All known producers, by ascending id (DescribeProducers)."""
        for producer_id in sorted(self._producers):
            yield self._producers[producer_id]

    # ---- appends ---------------------------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Whether a client's batch may be appended; the first home of a batch that is stored already.

        Raises KafkaError: INVALID_PRODUCER_EPOCH (an epoch older than known), OUT_OF_ORDER_SEQUENCE_NUMBER (a gap),
        INVALID_TXN_STATE (a plain batch inside the producer's open transaction). A producer that is not known, or not
        any more, may start with any sequence (Kafka 4.3).
        """
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

    def update(self, header: BatchHeader) -> None:
        """A data batch with a producer id was appended at `header.base_offset`."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer(header.producer_id)
        if header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches = ()
        base = header.base_offset
        last = base + header.last_offset_delta
        timestamp = header.max_timestamp
        sequence = header.base_sequence
        batch = (sequence, (sequence + header.last_offset_delta) & MAX_SEQUENCE, base, last, timestamp)
        batches = producer.batches
        producer.batches = (*batches, batch) if len(batches) < REMEMBERED_BATCHES else (*batches[1:], batch)
        producer.last_timestamp = timestamp
        producer.idle_since_ms = None
        if header.is_transactional and producer.transaction_start == NO_TRANSACTION:
            producer.transaction_start = base
            self._open[base] = producer.id
            self._refresh()

    def end_transaction(self, header: BatchHeader, marker: Marker) -> AbortedTransaction | None:
        """A marker was appended; what `.txnindex` must record when it rolled something back."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer(header.producer_id)
        if header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches = ()
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.idle_since_ms = None
        offset = header.base_offset
        start = producer.transaction_start
        if start == NO_TRANSACTION:
            return None
        producer.transaction_start = NO_TRANSACTION
        del self._open[start]
        self._ended[start] = offset
        stable = min(self._open, default=offset + 1)
        self._refresh()
        return AbortedTransaction(producer.id, start, offset, stable) if marker.type == ABORT else None

    def check_marker(self, header: BatchHeader, marker: Marker) -> None:
        """Whether a coordinator's marker may be appended.

        Raises KafkaError: INVALID_PRODUCER_EPOCH for an old producer epoch, TRANSACTION_COORDINATOR_FENCED for an old
        coordinator's.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id}: marker of epoch {header.producer_epoch}, known is {producer.epoch}",
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of coordinator epoch {marker.coordinator_epoch}, known is {producer.coordinator_epoch}",
            )

    def committed(self, high_watermark: int) -> None:
        """Everything below `high_watermark` is committed: ended transactions below it are stable."""
        if not self._ended:
            return
        ended = [start for start, marker in self._ended.items() if marker < high_watermark]
        if ended:
            for start in ended:
                del self._ended[start]
            self._refresh()

    def _refresh(self) -> None:
        firsts = [min(group) for group in (self._open, self._ended) if group]
        self.first_unstable_offset = min(firsts) if firsts else None

    # ---- forgetting ------------------------------------------------------------------------------------------

    def expire(self, now_ms: int, expiration_ms: int, keeps: Callable[[int], bool] = is_sinks) -> int:
        """Forget producers without an open transaction that wrote nothing for `expiration_ms`; how many.

        Measured by the clock, not by the records' times as in Kafka: who copies old data is at work, and forgotten
        between a batch and its retry it would store the batch twice. Of those that were restored from a file only
        their last record's time is known: by that they go, but not before RETRY_MS after the start.

        Not those whose id `keeps` holds for: a sink may go on after any pause, and what it wrote must be known then.
        """
        gone = []
        for producer in self._producers.values():
            if producer.idle_since_ms is None:
                producer.idle_since_ms = now_ms
            elif producer.idle_since_ms == RESTORED:
                soonest = now_ms - max(0, expiration_ms - RETRY_MS)
                producer.idle_since_ms = max(soonest, min(producer.last_timestamp, now_ms))
            if (
                producer.idle_since_ms <= now_ms - expiration_ms
                and producer.transaction_start == NO_TRANSACTION
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
        self._open.clear()
        self._ended.clear()
        self.first_unstable_offset = None

    def cut(self, end: int, rolled_back: Iterable[int]) -> None:
        """The log ends at `end` from now on: until `take_over` nobody is known, only from where on it is unstable.

        rolled_back: first offsets of the aborted transactions whose markers went. Of those that were committed, and
        whose markers went, that comes out when they are read again; readers have seen them.
        """
        again = {start for start, marker in self._ended.items() if marker >= end}
        still = {start: marker for start, marker in self._ended.items() if marker < end}
        starts = sorted(start for start in {*self._open, *again, *rolled_back} if start < end)
        self.clear()
        self._open = dict.fromkeys(starts, -1)
        self._ended = still
        self._refresh()

    def take_over(self, others: ProducerStates) -> None:
        """What was read again of the same log; nothing was appended meanwhile.

        But for what has ended: that was known all the time, unless it is committed.
        """
        self._producers, self._open = others._producers, others._open
        self._refresh()

    def restore(self, producer: Producer) -> None:
        """Take over one producer's state as it was stored."""
        producer.idle_since_ms = RESTORED
        self._producers[producer.id] = producer
        if producer.transaction_start != NO_TRANSACTION:
            self._open[producer.transaction_start] = producer.id
            self._refresh()
