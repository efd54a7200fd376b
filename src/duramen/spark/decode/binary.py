"""Arrow binary columns from places in a buffer: one copy of the bytes, made by Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.decode.varints import Bytes, Ints

_OFFSET_MAX: Final = 2**31 - 1


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

    Each wanted value and the gap behind it are made neighbours in one column over the arena, of which Arrow then takes
    every other one. Raises KafkaError MESSAGE_TOO_LARGE where Arrow's 32-bit offsets do not reach.
    """
    rows = len(at)
    null = size < 0
    if not rows or null.all():
        return pa.nulls(rows, pa.binary())
    origin = int(at[0])
    reach = int(at[-1]) + max(int(size[-1]), 0) - origin
    if reach > _OFFSET_MAX:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{reach} bytes of records do not fit one Arrow column")
    places = np.empty(2 * rows, np.int32)
    places[0::2] = at - origin
    places[1::2] = places[0::2] + np.maximum(size, 0)
    alternating = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(places), pa.py_buffer(arena[origin : origin + reach])]
    )
    taken = alternating.take(fixed(np.arange(0, 2 * rows, 2), pa.int64()))
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
