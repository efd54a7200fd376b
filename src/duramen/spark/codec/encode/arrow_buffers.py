"""Arrow's variable-size columns as numpy sees them, and numbers as Kafka's variable-length bytes, by columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Ints = np.ndarray[Any, Any]


class PlainBinary(NamedTuple):
    """A binary column of n values: int64[n + 1] offsets into uint8 data; nulls are empty."""

    offsets: Ints
    data: Ints


def as_binary(column: pa.Array) -> pa.BinaryArray:
    """A string or binary column of whatever width as Arrow's `binary`; the bytes are not copied where they fit."""
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def lengths_of(column: pa.Array | None, rows: int) -> Ints:
    """int64[rows]: bytes of each value, -1 of a null; all -1 without a column."""
    if column is None:
        return np.full(rows, -1, np.int64)
    lengths = pc.binary_length(column)
    return np.asarray(lengths.fill_null(-1) if column.null_count else lengths).astype(np.int64)


def plain_binary(column: pa.Array) -> PlainBinary:
    """The column's own buffers, without a copy of its bytes; a null is an empty value."""
    column = as_binary(column)
    if column.null_count:
        column = column.fill_null(b"")
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1] if offsets else np.zeros(1)
    return PlainBinary(ends.astype(np.int64), np.frombuffer(data or b"", np.uint8))


def binary_column(offsets: Ints, data: Ints | pa.Buffer) -> pa.BinaryArray:
    """The inverse of `plain_binary`: values between neighbouring offsets (int32) of `data`, none of them null."""
    ends = pa.py_buffer(np.ascontiguousarray(offsets, np.int32))
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, ends, data if isinstance(data, pa.Buffer) else pa.py_buffer(data)]
    )


def zigzag(numbers: Ints) -> Ints:
    """uint64[n] of int64[n]: small magnitudes of either sign become small (Protocol Buffers' zigzag)."""
    wide = numbers.astype(np.int64)
    return ((wide << 1) ^ (wide >> 63)).view(np.uint64)


def varint_sizes(coded: Ints) -> Ints:
    """int64[n]: bytes that each zigzagged number takes, 1 to 10."""
    sizes = np.ones(len(coded), np.int64)
    greatest = int(coded.max()) if len(coded) else 0
    limit = 7
    while greatest >> limit:
        sizes += coded >= np.uint64(1 << limit)
        limit += 7
    return sizes


def varints(*fields: Ints | int) -> pa.BinaryArray:
    """binary[n]: row i holds field by field its i-th number, zigzagged and variable-length.

    A field is int64[n], or an int below 0x80 for one literal byte in every row.
    """
    rows = next(len(field) for field in fields if not isinstance(field, int))
    coded = [field if isinstance(field, int) else zigzag(field) for field in fields]
    sizes = [1 if isinstance(field, int) else varint_sizes(field) for field in coded]
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(sum(sizes, np.zeros(rows, np.int64)), out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].copy()
    for field, size in zip(coded, sizes, strict=True):
        if isinstance(field, int):
            out[at] = field
        else:
            _scatter(out, at, field, size)  # type: ignore[arg-type]
        at += size
    return binary_column(offsets, out)


def _scatter(out: Ints, at: Ints, coded: Ints, sizes: Ints) -> None:
    """Write each number from its position on: seven bits a byte, the low ones first, the top bit while more follow."""
    longest = int(sizes.max()) if len(sizes) else 0
    rows: slice | Ints = slice(None)
    for byte in range(longest):
        if byte:
            rows = np.flatnonzero(sizes > byte)
        bits = (coded[rows] >> np.uint64(7 * byte)).astype(np.uint8) & 0x7F
        out[at[rows] + byte] = bits | ((sizes[rows] > byte + 1).view(np.uint8) << 7)
