"""Arrow binary columns from places in a buffer: one copy of the bytes, made by Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.codec.decode.varints import Bytes, Ints

_OFFSET_MAX: Final = 2**31 - 1
_HAS_VIEWS: Final = int(pa.__version__.split(".")[0]) >= 19
"""Older ones make no column of views."""
_INLINE_BYTES: Final = 12
"""What is no longer stands in a view itself, not in the buffer behind it."""
_VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("at", "<i4")])


def fixed(
    numbers: np.ndarray[Any, Any], type: pa.DataType, valid: np.ndarray[Any, np.dtype[np.bool_]] | None = None
) -> pa.Array:
    """The numbers as an Arrow array over the same memory, null where not valid.

    `pa.array` would first import pandas, for half a second of each Python worker.
    """
    return pa.Array.from_buffers(type, len(numbers), [None if valid is None else bits(valid), pa.py_buffer(numbers)])


def bits(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Buffer:
    """The flags as Arrow keeps them, of a column of booleans or of which rows are not null."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def not_null(values: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows are not null. Of an Arrow array `np.asarray` would first look for pandas."""
    validity = values.buffers()[0]
    if validity is None:
        return np.ones(len(values), np.bool_)
    flags = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    return flags[values.offset : values.offset + len(values)].astype(np.bool_)


def string_column(texts: Sequence[str | None]) -> pa.StringArray:
    """The texts as Arrow's; `pa.array` would first look for pandas."""
    encoded = [b"" if text is None else text.encode(errors="replace") for text in texts]
    places = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=places[1:])
    valid = bits(np.array([text is not None for text in texts], np.bool_))
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(places), pa.py_buffer(b"".join(encoded)), valid)


def literal(data: bytes) -> pa.BinaryScalar:
    """The bytes as a scalar; `pa.scalar` would first look for pandas."""
    places = np.array([0, len(data)], np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.py_buffer(places), pa.py_buffer(data)])[0]


def binary_column(arena: Bytes, at: Ints, size: Ints) -> pa.BinaryArray:
    """binary[n] of `arena[at[i] : at[i] + size[i]]`, null where the size is -1. Places ascend and do not overlap.

    Raises KafkaError MESSAGE_TOO_LARGE where Arrow's 32-bit offsets do not reach.
    """
    rows = len(at)
    if not rows:
        return pa.nulls(rows, pa.binary())
    shortest, longest = int(size.min()), int(size.max())
    if longest < 0:
        return pa.nulls(rows, pa.binary())
    origin = int(at[0])
    reach = int(at[-1]) + max(int(size[-1]), 0) - origin
    if reach > _OFFSET_MAX:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{reach} bytes of records do not fit one Arrow column")
    if shortest == longest > 0:
        return _of_one_size(arena, at, longest)
    bytes_of_rows = arena[origin : origin + reach]
    if shortest > _INLINE_BYTES and _HAS_VIEWS:
        return _by_views(bytes_of_rows, at - origin, size)
    return _every_other(bytes_of_rows, at - origin, size)


def _of_one_size(arena: Bytes, at: Ints, size: int) -> pa.BinaryArray:
    """Rows of `size` bytes each, which numpy takes for numbers of so many bytes."""
    rows = len(at)
    everywhere = np.ndarray((len(arena) - size + 1,), f"V{size}", arena.data, strides=(1,))
    places = np.arange(rows + 1, dtype=np.int32) * np.int32(size)
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(places), pa.py_buffer(everywhere[at])])


def _by_views(data: Bytes, at: Ints, size: Ints) -> pa.BinaryArray:
    """Rows of more than _INLINE_BYTES, none null: Arrow's views of them, of which it makes a column.

    A view also has its first four bytes, for those who compare. Nobody does, so they are left out.
    """
    views = np.empty(len(at), _VIEW)
    views["size"] = size
    views["at"] = at
    views["buffer"] = 0
    seen = pa.Array.from_buffers(pa.binary_view(), len(at), [None, pa.py_buffer(views), pa.py_buffer(data)])
    return seen.cast(pa.binary())


def _every_other(data: Bytes, at: Ints, size: Ints) -> pa.BinaryArray:
    """Any rows: each value and the gap behind it are neighbours in one column, of which Arrow takes every other one."""
    rows = len(at)
    places = np.empty(2 * rows, np.int32)
    places[0::2] = at
    places[1::2] = places[0::2] + np.maximum(size, 0)
    alternating = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(places), pa.py_buffer(data)]
    )
    taken = alternating.take(fixed(np.arange(0, 2 * rows, 2), pa.int64()))
    null = size < 0
    if not null.any():
        return taken
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [bits(~null), *taken.buffers()[1:]])


def equal_rows(arena: Bytes, at: Ints, size: Ints, wanted: bytes) -> Ints:
    """Indexes of the rows whose bytes are `wanted`."""
    rows = np.flatnonzero(size == len(wanted))
    for place, byte in enumerate(wanted):  # most rows are out after a byte or two
        if not rows.size:
            break
        rows = rows[arena.take(at[rows] + place, mode="clip") == byte]
    return rows
