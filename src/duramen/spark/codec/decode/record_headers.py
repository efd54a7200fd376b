"""The headers of records: list<struct<key: string, value: binary>>, null for a record without any, as Spark has it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from duramen.spark.codec.decode.binary import binary_column, bits, fixed
from duramen.spark.codec.decode.records import Fields
from duramen.spark.codec.decode.varints import Bytes, Ints, broken, varint, varints

_NARROW = 24
_HEADER_BYTES_MIN = 2


def headers_column(arena: Bytes, fields: Fields, type: pa.ListType) -> pa.ListArray:
    """One list per record. Raises KafkaError INVALID_RECORD for bytes that are no headers."""
    rows = len(fields.offset)
    count = fields.header_count
    if not count.any():
        return pa.nulls(rows, type)
    if np.any(count * _HEADER_BYTES_MIN > fields.end - fields.headers_at):
        raise broken("a record claims more headers than its bytes can hold")
    first = np.zeros(rows + 1, np.int64)
    np.cumsum(count, out=first[1:])
    key_at, key_size, value_at, value_size = _walk(arena, fields, first)
    struct = type.value_type
    keys = _text(binary_column(arena, key_at, key_size))
    values = binary_column(arena, value_at, value_size)
    entries = pa.StructArray.from_arrays([keys, values], fields=[struct.field(0), struct.field(1)])
    none = pa.Array.from_buffers(pa.bool_(), rows, [None, bits(count == 0)])
    return pa.ListArray.from_arrays(fixed(first.astype(np.int32), pa.int32()), entries, type=type, mask=none)


def _text(keys: pa.BinaryArray) -> pa.StringArray:
    """Keys are UTF-8 by convention only: where they are not, the bytes that are none become replacement characters."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


def _walk(arena: Bytes, fields: Fields, first: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Places of all headers, record by record: step k reads header k of every record that has so many."""
    columns = tuple(np.empty(int(first[-1]), np.int64) for _ in range(4))
    key_at, key_size, value_at, value_size = columns
    count = fields.header_count
    order = np.argsort(-count, kind="stable")
    at = fields.headers_at[order]
    limit = fields.end[order]
    row = first[:-1][order]
    sorted_count = count[order]
    step = 0
    width = int(np.count_nonzero(sorted_count))
    while width >= _NARROW:
        size, here = varints(arena, at[:width])
        if np.any((size < 0) | (size > limit[:width] - here)):
            raise broken("a record header without a key, or with one that is longer than its record")
        slots = row[:width] + step
        key_at[slots], key_size[slots] = here, size
        size, here = varints(arena, here + size)
        if np.any((size > limit[:width] - here) | (here > limit[:width])):
            raise broken("a record header is longer than its record")
        value_at[slots], value_size[slots] = here, np.maximum(size, -1)
        at[:width] = here + np.maximum(size, 0)
        step += 1
        width = int(np.searchsorted(-sorted_count[:width], -step, side="left"))
    for place in range(width):
        _walk_one(memoryview(arena.data), place, step, int(sorted_count[place]), at, limit, int(row[place]), columns)
    if np.any(at != limit):
        raise broken("a record's headers do not end where its length says")
    return key_at, key_size, value_at, value_size


def _walk_one(
    data: memoryview, place: int, step: int, count: int, at: Ints, limit: Ints, row: int, columns: tuple[Ints, ...]
) -> None:
    """The remaining headers of one record."""
    position, end = int(at[place]), int(limit[place])
    for slot in range(row + step, row + count):
        size, position = varint(data, position)
        if size < 0 or size > end - position:
            raise broken("a record header without a key, or with one that is longer than its record")
        columns[0][slot], columns[1][slot] = position, size
        size, position = varint(data, position + size)
        if size > end - position or position > end:
            raise broken("a record header is longer than its record")
        columns[2][slot], columns[3][slot] = position, max(size, -1)
        position += max(size, 0)
    at[place] = position
