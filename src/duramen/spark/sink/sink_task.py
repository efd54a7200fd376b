"""What one task of a write does: rows to record batches, and these to wherever the query's delivery wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.codec.encode.records import Encoded, HeaderEntries, Rows, encode
from duramen.spark.codec.partitioner import Ints, StickyPartitions, assign
from duramen.spark.sink.sink_rows import COLUMNS, TopicRows, by_topic
from duramen.spark.sink.sink_topics import TopicLimits

WINDOW_BYTES: Final = 16 << 20
"""Rows that are encoded together: enough for full batches in several partitions, little enough for an executor."""
_WINDOW_PIECES: Final = 1024


class SinkDelivery(Protocol):
    """Where a task's batches go."""

    @property
    def finished(self) -> bool:
        """Whether the batch is known to be committed already, so that nothing needs to be written."""

    def take(self, topic: str, batch: Encoded) -> None:
        """The next batch of a partition."""

    def tag(self, numbers: Ints) -> HeaderEntries | None:
        """Header entries to add to the rows with these numbers (int64[n], counted within the task)."""

    def finish(self) -> None:
        """All batches were given: returns when they are where they belong."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """How a task makes its batches."""

    topic: str | None
    codec: int
    task: int
    """The task's number: it decides where keyless rows begin."""


class TaskWriter:
    """Writes the rows of one task."""

    def __init__(self, plan: TaskPlan, delivery: SinkDelivery, limits_of: Callable[[str], TopicLimits]) -> None:
        """limits_of: asked once for each topic."""
        self._plan = plan
        self._delivery = delivery
        self._limits_of = limits_of
        self._limits: dict[str, TopicLimits] = {}
        self._sticky: dict[str, StickyPartitions] = {}
        self.rows = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Everything that comes, to the end: Spark's worker wants its input read even when it is of no use."""
        for table in _windows(batches):
            if not self._delivery.finished:
                for rows in by_topic(table, self._plan.topic, self.rows):
                    self._write(rows)
            self.rows += len(table)
        if not self._delivery.finished:
            self._delivery.finish()

    def _write(self, found: TopicRows) -> None:
        limits = self._limits_for(found.topic)
        rows: Rows = found.rows._replace(tags=self._delivery.tag(found.numbers))
        sizes = rows.sizes()
        chosen = self._choose(found, sizes, limits.partitions)
        for batch in encode(rows, chosen, compression=self._plan.codec, batch_bytes=limits.batch_bytes, sizes=sizes):
            self._delivery.take(found.topic, batch)
            if self._delivery.finished:
                return

    def _limits_for(self, topic: str) -> TopicLimits:
        if topic not in self._limits:
            limits = self._limits_of(topic)
            self._limits[topic] = limits
            self._sticky[topic] = StickyPartitions(limits.partitions, first=self._plan.task)
        return self._limits[topic]

    def _choose(self, found: TopicRows, sizes: Ints, count: int) -> Ints:
        """int32[n]: the partition the table names, Kafka's default where it names none."""
        sticky = self._sticky[found.topic]
        named = found.partitions
        if named is None:
            return assign(found.rows.key, sizes, count, sticky)
        chosen = np.asarray(named.fill_null(0)).astype(np.int32)
        if named.null_count:
            free = np.flatnonzero(np.asarray(named.is_null()))
            keys = None if found.rows.key is None else found.rows.key.take(pa.array(free))
            chosen[free] = assign(keys, sizes[free], count, sticky)
        wrong = np.flatnonzero((chosen < 0) | (chosen >= count))
        if len(wrong):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"a row names partition {chosen[wrong[0]]} of topic {found.topic}, which has {count}",
            )
        return chosen


def _windows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches' columns that are written, several batches together, each column in one piece."""
    pieces: list[pa.RecordBatch] = []
    waiting = 0
    for batch in batches:
        piece = batch.select([name for name in COLUMNS if name in batch.schema.names])
        pieces.append(piece)
        waiting += piece.nbytes
        if waiting >= WINDOW_BYTES or len(pieces) >= _WINDOW_PIECES:
            yield pa.Table.from_batches(pieces)
            pieces, waiting = [], 0
    if pieces:
        yield pa.Table.from_batches(pieces)
