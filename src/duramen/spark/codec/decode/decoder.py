"""Stored bytes of one partition in, Arrow record batches out; which records are wanted is decided before any copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.spark.codec.decode.arena import Arena, ArenaChunk
from duramen.spark.codec.decode.batches import Headers, read_headers, visible
from duramen.spark.codec.decode.binary import equal_rows
from duramen.spark.codec.decode.columns import RecordSource, record_batches
from duramen.spark.codec.decode.records import Fields, read_fields
from duramen.wire.aborted import AbortedTransaction

MAX_BATCH_BYTES: Final = 256 << 20
"""What one batch may inflate to: far above any sensible `max.message.bytes`, far below an executor's memory."""


@dataclass(frozen=True)
class RecordFilter:
    """Which records: offsets `start`..`end` (exclusive), and, where not None, one key and a range of timestamps in ms
    (exclusive at its end)."""

    start: int
    end: int
    key: bytes | None = None
    timestamps: tuple[int, int] | None = None


class Decoder:
    """Decodes one partition for one task; keeps its buffers from call to call."""

    def __init__(
        self,
        topic: str,
        partition: int,
        wanted: RecordFilter,
        schema: pa.Schema,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """schema: the columns of Spark's Kafka source that are wanted, with the types Spark expects."""
        self._source = RecordSource(topic, partition)
        self._wanted = wanted
        self._schema = schema
        self._arena = Arena(max_batch_bytes)
        self.next_offset = wanted.start
        """Behind the last batch that was seen, shown or not: where reading goes on."""

    def decode(self, data: memoryview, aborted: Sequence[AbortedTransaction] | None = None) -> Iterator[pa.RecordBatch]:
        """The wanted records of the whole batches in `data`; a partial batch at the end is left out.

        aborted: the aborted transactions that Fetch listed for these bytes, None to read uncommitted.
        Raises KafkaError: CORRUPT_MESSAGE (header, CRC), INVALID_RECORD (what the CRC covers is no records),
        MESSAGE_TOO_LARGE (inflates beyond the limit).
        """
        wanted = self._wanted
        headers = read_headers(data)
        if not len(headers.position):
            return
        shown = _timely(visible(headers, data, wanted.start, wanted.end, aborted), wanted.timestamps)
        for chunk in self._arena.chunks(shown, data):
            yield from record_batches(chunk, self._chosen(chunk), self._source, self._schema)
        self.next_offset = max(self.next_offset, int(headers.last_offset[-1]) + 1)

    def skip_to(self, offset: int) -> None:
        """Show nothing in front of `offset`, even where a batch still holds it, and go on there."""
        self._wanted = replace(self._wanted, start=max(self._wanted.start, offset))
        self.next_offset = offset

    def _chosen(self, chunk: ArenaChunk) -> Fields:
        fields = read_fields(chunk)
        wanted = self._wanted
        base, last = int(chunk.headers.base_offset[0]), int(chunk.headers.last_offset[-1])
        if base < wanted.start or last >= wanted.end:
            fields = fields.only((fields.offset >= wanted.start) & (fields.offset < wanted.end))
        return _matching(chunk, fields, wanted)


class Range(NamedTuple):
    """Offsets `start`..`end` (exclusive) of a partition, and whole batches that hold all of them."""

    partition: int
    start: int
    end: int
    data: memoryview


def decode_together(
    topic: str,
    ranges: Sequence[Range],
    wanted: RecordFilter,
    schema: pa.Schema,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """As a `Decoder` of each range of one topic, one behind the other, at the cost of one: many batches are as dear as
    one to decode. No batch may be of an aborted transaction.

    wanted: its key and its timestamps; the ranges have offsets of their own. Errors as of `Decoder.decode`.
    """
    data = memoryview(b"".join(each.data for each in ranges))
    headers = read_headers(data)
    if not len(headers.position):
        return
    behind = np.cumsum([len(each.data) for each in ranges])
    numbers, starts, ends = (np.array(column, np.int64) for column in list(zip(*ranges, strict=True))[:3])
    owner = np.searchsorted(behind, headers.position, "right")
    shown = _timely(visible(headers, data, starts[owner], ends[owner], None), wanted.timestamps)
    for chunk in Arena(max_batch_bytes).chunks(shown, data):
        owner = np.searchsorted(behind, chunk.headers.position, "right")
        fields = read_fields(chunk)
        of = owner[fields.batch]
        fields = fields.only((fields.offset >= starts[of]) & (fields.offset < ends[of]))
        yield from record_batches(
            chunk, _matching(chunk, fields, wanted), RecordSource(topic, numbers[owner].astype(np.int32)), schema
        )


def _timely(headers: Headers, timestamps: tuple[int, int] | None) -> Headers:
    """Without the batches whose header says that no record is in the range: those timed by the broker."""
    if timestamps is None:
        return headers
    since, until = timestamps
    outside = (headers.max_timestamp < since) | (headers.max_timestamp >= until)
    return headers.only(~(headers.append_time & outside))


def _matching(chunk: ArenaChunk, fields: Fields, wanted: RecordFilter) -> Fields:
    """The records with the wanted key and of the wanted time."""
    if wanted.timestamps is not None:
        since, until = wanted.timestamps
        fields = fields.only((fields.timestamp >= since) & (fields.timestamp < until))
    if wanted.key is not None:
        fields = fields.only(equal_rows(chunk.arena, fields.key_at, fields.key_size, wanted.key))
    return fields
