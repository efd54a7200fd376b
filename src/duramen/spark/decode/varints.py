"""Zigzag numbers of variable length, read at many places of a buffer at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from duramen.errors import ErrorCode, KafkaError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

_BITS_MAX: Final = 63
_PART: Final = 7


def broken(reason: str) -> KafkaError:
    """The refusal of records that are not what their batch says."""
    return KafkaError(ErrorCode.INVALID_RECORD, reason)


def varints(arena: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The numbers that start at each position, and the positions behind them.

    Positions may lie outside of the buffer: what comes back for them means nothing, and the position behind shows it.
    Raises KafkaError INVALID_RECORD for a number of more than ten bytes.
    """
    byte = arena.take(at, mode="clip")
    value = (byte & 0x7F).astype(np.uint64)
    behind = at + 1
    more = np.flatnonzero(byte > 0x7F)
    shift = _PART
    if more.size == at.size and at.size:  # usual for the lengths of records: no need to pick them out
        byte = arena.take(behind, mode="clip")
        value |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind += 1
        more = np.flatnonzero(byte > 0x7F)
        shift += _PART
    while more.size:
        if shift > _BITS_MAX:
            raise broken("a number of more than ten bytes")
        byte = arena.take(behind[more], mode="clip")
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[more] += 1
        more = more[byte > 0x7F]
        shift += _PART
    return _unzigzag(value), behind


def _unzigzag(value: np.ndarray[Any, np.dtype[np.uint64]]) -> Ints:
    sign = (value & np.uint64(1)).view(np.int64)
    half: Ints = (value >> np.uint64(1)).view(np.int64)
    half ^= -sign
    return half


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """One number and the position behind it. Raises KafkaError INVALID_RECORD as `varints`, and at the buffer's end."""
    result = shift = 0
    size = len(data)
    while at < size:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at
        shift += _PART
        if shift > _BITS_MAX:
            raise broken("a number of more than ten bytes")
    raise broken("the records end inside a number")
