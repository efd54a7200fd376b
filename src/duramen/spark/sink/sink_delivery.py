"""The two ways from a task to the log: staged for the driver, or appended at once by an idempotent producer."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.spark.codec.encode.arrow_buffers import lengths_of, varints
from duramen.spark.codec.encode.records import Encoded, HeaderEntries, joined
from duramen.spark.codec.partitioner import Ints
from duramen.spark.sink.sink_calls import Claim, SinkCalls, SinkShare
from duramen.spark.sink.sink_points import AFTER_STAGE, BEFORE_STAGE, Points
from duramen.wire.batch import MAX_SEQUENCE, stamp_producer

CALL_BYTES: Final = 4 << 20
"""Staged with one call, about; a partition that has so much does not wait for more."""
BUFFER_BYTES: Final = 32 << 20
"""Of a task's batches that wait for others of their partition. Where there are many partitions, so much makes what is
stored of each piece by piece larger, and the pieces fewer."""

HEADER_SINK: Final = "duramen.sink"
HEADER_BATCH: Final = "duramen.batch"
HEADER_PARTITION: Final = "duramen.partition"
HEADER_SEQUENCE: Final = "duramen.seq"


class _UnstagedBatches:
    """Batches of one partition that are not staged yet."""

    __slots__ = ("batches", "bytes")

    def __init__(self) -> None:
        self.batches: list[bytearray] = []
        self.bytes = 0


class Staging:
    """Exactly once: batches are stored where nobody sees them; their handles go to the driver.

    Batches wait for others of their partition, the longest first to go when they are too many; those of one partition
    leave in the order in which they came.
    """

    def __init__(self, calls: SinkCalls, claim: Claim, batch_id: int, task: str, points: Points) -> None:
        """task: who stages, for people who look at it."""
        self._calls = calls
        self._claim = claim
        self._batch_id = batch_id
        self._task = task
        self._points = points
        self._waiting: dict[tuple[str, int], _UnstagedBatches] = {}
        self._waiting_bytes = 0
        self.handles: list[int] = []
        """In the order in which their records shall stand in each partition."""
        self.finished = False
        self.bytes = 0

    def tag(self, numbers: Ints) -> HeaderEntries | None:
        return None

    def take(self, topic: str, batch: Encoded) -> None:
        place = topic, batch.partition
        waiting = self._waiting.get(place)
        if waiting is not None and waiting.bytes + len(batch.data) > self._claim.max_staged_bytes:
            self._stage([place])
            waiting = None
        if waiting is None:
            waiting = self._waiting[place] = _UnstagedBatches()
        waiting.batches.append(batch.data)
        waiting.bytes += len(batch.data)
        self._waiting_bytes += len(batch.data)
        if waiting.bytes >= CALL_BYTES:
            self._stage([place])
        elif self._waiting_bytes >= BUFFER_BYTES:
            self._stage(self._longest())

    def finish(self) -> None:
        while self._waiting and not self.finished:
            self._stage(self._longest())

    def _longest(self) -> list[tuple[str, int]]:
        """The partitions of the next call."""
        chosen: list[tuple[str, int]] = []
        size = 0
        for place, waiting in sorted(self._waiting.items(), key=lambda item: item[1].bytes, reverse=True):
            if size >= CALL_BYTES:
                break
            chosen.append(place)
            size += waiting.bytes
        return chosen

    def _stage(self, places: list[tuple[str, int]]) -> None:
        shares = [SinkShare(*place, b"".join(self._waiting.pop(place).batches)) for place in places]
        size = sum(len(share.records) for share in shares)
        self.bytes += size
        self._waiting_bytes -= size
        self._points.reach(BEFORE_STAGE)
        handles = self._calls.stage(self._claim.epoch, self._batch_id, self._task, shares)
        if handles is None:
            self.finished = True
            self.handles = []
        else:
            self.handles += handles
        self._points.reach(AFTER_STAGE)


class Appender(Protocol):
    """What of `client.Cluster` is used to append."""

    def init_producer_id(self) -> tuple[int, int]: ...

    def produce(self, tp: TopicPartition, batch: Any, *, timeout_s: float | None = ...) -> Any: ...


class AppendDelivery:
    """At least once: batches are appended as they come, by an idempotent producer of the task's own.

    A task that is run again appends its rows again. Every record says by its headers which row of which task of which
    batch it is.
    """

    finished: Final = False

    def __init__(self, appender: Appender, sink_id: str, batch_id: int, task: int, points: Points, timeout_s: float):
        self._appender = appender
        self._timeout_s = timeout_s
        self._points = points
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        fixed = ((HEADER_SINK, sink_id), (HEADER_BATCH, str(batch_id)), (HEADER_PARTITION, str(task)))
        self._fixed = b"".join(_entry(name, value.encode()) for name, value in fixed)
        self._fixed += _sized(HEADER_SEQUENCE.encode())
        self.bytes = 0

    def tag(self, numbers: Ints) -> HeaderEntries | None:
        text = pa.array(numbers).cast(pa.string()).cast(pa.binary())
        entries = joined(pa.scalar(self._fixed, pa.binary()), varints(lengths_of(text, len(text))), text)
        return HeaderEntries(4, entries)

    def take(self, topic: str, batch: Encoded) -> None:
        if self._producer is None:
            self._producer = self._appender.init_producer_id()
        tp = TopicPartition(topic, batch.partition)
        sequence = self._sequences.get(tp, 0)
        stamp_producer(batch.data, *self._producer, sequence)
        self._points.reach(BEFORE_STAGE)
        try:
            self._appender.produce(tp, batch.data, timeout_s=self._timeout_s)
        except KafkaError as error:
            # An answer was lost and the batch came twice: it is there.
            if error.code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise
        self._sequences[tp] = (sequence + batch.count) & MAX_SEQUENCE
        self.bytes += len(batch.data)
        self._points.reach(AFTER_STAGE)

    def finish(self) -> None:
        """Every batch was acknowledged when `take` returned."""


def _sized(data: bytes) -> bytes:
    length: bytes = varints(np.array([len(data)], np.int64))[0].as_py()
    return length + data


def _entry(name: str, value: bytes) -> bytes:
    return _sized(name.encode()) + _sized(value)
