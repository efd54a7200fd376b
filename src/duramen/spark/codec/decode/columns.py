"""Places of fields to Arrow record batches of the schema that Spark asked for: one column per function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.spark.codec.decode.arena import ArenaChunk
from duramen.spark.codec.decode.binary import binary_column, fixed
from duramen.spark.codec.decode.record_headers import headers_column
from duramen.spark.codec.decode.records import Fields

EMIT_BYTES: Final = 1 << 20
"""About so many bytes go into one Arrow batch: larger ones fall out of the cache before they are sent to the JVM."""
_ROWS_MAX: Final = 1 << 16
_MICROS: Final = 1000
_MICROS_LIMIT: Final = (2**63 - 1) // _MICROS


class RecordSource(NamedTuple):
    """Which partition the records come from: one, or for each batch its own (int32 each)."""

    topic: str
    partition: int | np.ndarray[Any, np.dtype[np.int32]]


def record_batches(
    chunk: ArenaChunk, fields: Fields, source: RecordSource, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows in order, in batches of about EMIT_BYTES; only the schema's columns are made."""
    rows = len(fields.offset)
    if not rows:
        return
    spread = int(fields.end[-1] - fields.key_at[0])
    parts = max(1, round(spread / EMIT_BYTES))
    per_batch = min(_ROWS_MAX, -(-rows // parts))
    for start in range(0, rows, per_batch):
        piece = fields.only(slice(start, start + per_batch))
        columns = [_COLUMNS[field.name](chunk, piece, source, field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _key(chunk: ArenaChunk, fields: Fields, source: RecordSource, type: pa.DataType) -> pa.Array:
    return _typed(binary_column(chunk.arena, fields.key_at, fields.key_size), type)


def _value(chunk: ArenaChunk, fields: Fields, source: RecordSource, type: pa.DataType) -> pa.Array:
    return _typed(binary_column(chunk.arena, fields.value_at, fields.value_size), type)


def _typed(column: pa.BinaryArray, type: pa.DataType) -> pa.Array:
    return column


def _topic(chunk: ArenaChunk, fields: Fields, source: RecordSource, type: pa.DataType) -> pa.Array:
    name = source.topic.encode()
    rows = len(fields.offset)
    ends = np.arange(0, len(name) * rows + 1, max(len(name), 1), dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(name * rows))


def _partition(chunk: ArenaChunk, fields: Fields, source: RecordSource, type: pa.DataType) -> pa.Array:
    if isinstance(source.partition, np.ndarray):
        return fixed(source.partition[fields.batch], type)
    return fixed(np.full(len(fields.offset), source.partition, np.int32), type)


def _offset(chunk: ArenaChunk, fields: Fields, source: RecordSource, type: pa.DataType) -> pa.Array:
    return fixed(fields.offset, type)


def _timestamp(chunk: ArenaChunk, fields: Fields, source: RecordSource, type: pa.DataType) -> pa.Array:
    """Microseconds; null where a producer's milliseconds cannot be said in microseconds of 64 bits."""
    beyond = np.abs(fields.timestamp) > _MICROS_LIMIT
    if beyond.any():
        return pa.array(np.where(beyond, 0, fields.timestamp) * _MICROS, pa.int64(), mask=beyond).view(type)
    return fixed(fields.timestamp * _MICROS, type)


def _timestamp_type(chunk: ArenaChunk, fields: Fields, source: RecordSource, type: pa.DataType) -> pa.Array:
    return fixed(chunk.headers.append_time.astype(np.int32)[fields.batch], type)


def _headers(chunk: ArenaChunk, fields: Fields, source: RecordSource, type: pa.DataType) -> pa.Array:
    return headers_column(chunk.arena, fields, type)


_COLUMNS: Final[dict[str, Callable[[ArenaChunk, Fields, RecordSource, Any], pa.Array]]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
}
