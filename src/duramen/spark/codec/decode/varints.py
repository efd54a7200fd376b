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


def varints_in_a_row(arena: Bytes, at: Ints, count: int) -> tuple[list[Ints], Ints]:
    """`count` numbers (four at most), one behind the other, from each position on; and the positions behind them.

    As `varints`, and faster for numbers of one or two bytes: eight bytes are read of each place, and the numbers
    in them are looked up.
    """
    found: list[Ints] = []
    windows = _windows(arena, at)
    for left in range(count - 1, -1, -1):
        if windows is not None:
            entry = _SHORT.take(windows & 0xFFFF)
            size = entry & _SIZE_MASK
            if size.all():
                found.append(entry >> _SIZE_BITS)
                at = at + size
                if left:
                    windows >>= size << 3
                continue
        value, at = varints(arena, at)
        found.append(value)
        windows = _windows(arena, at) if left else None
    return found, at


def _windows(arena: Bytes, at: Ints) -> Ints | None:
    """Eight bytes from each position on, the first one lowest; None where one would reach out of the buffer."""
    reach = len(arena) - 7
    if reach < 1 or not at.size or int(at.max()) >= reach or int(at.min()) < 0:
        return None
    bytes_at: Ints = np.ndarray((reach,), "<i8", arena.data, strides=(1,))[at]
    return bytes_at


def _short() -> Ints:
    """By two bytes (little-endian): the number that starts there and its size, as `number << 2 | size`; 0: longer."""
    second, first = np.divmod(np.arange(1 << 16), 256)
    one = first < 0x80
    raw = np.where(one, first, (first & 0x7F) | second << _PART)
    size = np.where(one, 1, 2)
    number = (raw >> 1) ^ -(raw & 1)
    return np.where(one | (second < 0x80), number << _SIZE_BITS | size, 0)


_SIZE_BITS: Final = 2
_SIZE_MASK: Final = 3
_SHORT: Final = _short()


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
