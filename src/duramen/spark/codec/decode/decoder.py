"""Stored bytes of one partition in, Arrow record batches out; which records are wanted is decided before any copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from duramen.spark.codec.decode.arena import Arena, ArenaChunk
from duramen.spark.codec.decode.batches import AbortedTransaction, Headers, read_headers, visible
from duramen.spark.codec.decode.binary import equal_rows
from duramen.spark.codec.decode.columns import RecordSource, record_batches
from duramen.spark.codec.decode.records import Fields, read_fields

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
        shown = self._timely(visible(headers, data, wanted.start, wanted.end, aborted))
        for chunk in self._arena.chunks(shown, data):
            yield from record_batches(chunk, self._chosen(chunk), self._source, self._schema)
        self.next_offset = max(self.next_offset, int(headers.last_offset[-1]) + 1)

    def skip_to(self, offset: int) -> None:
        """Show nothing in front of `offset`, even where a batch still holds it, and go on there."""
        self._wanted = replace(self._wanted, start=max(self._wanted.start, offset))
        self.next_offset = offset

    def _timely(self, headers: Headers) -> Headers:
        """Without the batches whose header says that no record is in the range: those timed by the broker."""
        if self._wanted.timestamps is None:
            return headers
        since, until = self._wanted.timestamps
        outside = (headers.max_timestamp < since) | (headers.max_timestamp >= until)
        return headers.only(~(headers.append_time & outside))

    def _chosen(self, chunk: ArenaChunk) -> Fields:
        fields = read_fields(chunk)
        wanted = self._wanted
        base, last = int(chunk.headers.base_offset[0]), int(chunk.headers.last_offset[-1])
        if base < wanted.start or last >= wanted.end:
            fields = fields.only((fields.offset >= wanted.start) & (fields.offset < wanted.end))
        if wanted.timestamps is not None:
            since, until = wanted.timestamps
            fields = fields.only((fields.timestamp >= since) & (fields.timestamp < until))
        if wanted.key is not None:
            fields = fields.only(equal_rows(chunk.arena, fields.key_at, fields.key_size, wanted.key))
        return fields
