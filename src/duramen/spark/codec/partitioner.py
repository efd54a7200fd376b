"""Which partition a row goes to: Kafka's default partitioner over Arrow columns.

A key decides by its murmur2 hash, bit for bit as Kafka's Java client (`BuiltInPartitioner.partitionForKey`), so that
rows of one key meet in one partition whoever wrote them. Rows without a key stick to one partition for about a
batch's worth of bytes and then move to the next, as Kafka's sticky partitioner does (KIP-480), but in a fixed order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from duramen.spark.codec.encode.arrow_buffers import plain_binary

SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_SHIFT: Final = 24
_WORD: Final = 0xFFFFFFFF
_FEW_ROWS: Final = 16
"""Below this many rows with words left, going on row by row is cheaper than by columns."""

STICKY_BYTES: Final = 1 << 20
"""Keyless rows move to the next partition after about so many bytes of records: one record batch of the sink."""

Ints = np.ndarray[Any, Any]


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned, of one key."""
    whole = len(data) & ~3
    state = SEED ^ len(data)
    for at in range(0, whole, 4):
        state = _mix(state, int.from_bytes(data[at : at + 4], "little"))
    return _finish(state, data[whole:])


def _mix(state: int, word: int) -> int:
    word = word * _FACTOR & _WORD
    word = (word ^ word >> _SHIFT) * _FACTOR & _WORD
    return state * _FACTOR & _WORD ^ word


def _finish(state: int, tail: bytes) -> int:
    if tail:
        state = (state ^ int.from_bytes(tail, "little")) * _FACTOR & _WORD
    state = (state ^ state >> 13) * _FACTOR & _WORD
    return state ^ state >> 15


def murmur2_column(keys: pa.Array) -> Ints:
    """uint32[n]: the hash of every key of a binary or string column; of a null one, that of an empty key."""
    keys = plain_binary(keys)
    offsets, data = keys.offsets, keys.data
    starts, lengths = offsets[:-1], np.diff(offsets)
    state: Ints = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    rows = np.flatnonzero(words > 0)
    index = 0
    while len(rows) >= _FEW_ROWS:
        _mix_rows(state, rows, _words_at(data, starts[rows] + 4 * index))
        index += 1
        rows = rows[words[rows] > index]
    for row in rows.tolist():
        rest = data[starts[row] + 4 * index : starts[row] + 4 * words[row]].view("<u4").tolist()
        mixed = int(state[row])
        for word in rest:
            mixed = _mix(mixed, word)
        state[row] = mixed
    _finish_rows(state, data, starts + 4 * words, lengths & 3)
    return state


def _words_at(data: Ints, at: Ints) -> Ints:
    """The little-endian word of 4 bytes at each position, which need not be aligned."""
    word = data[at].astype(np.uint32)
    for byte in (1, 2, 3):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _mix_rows(state: Ints, rows: Ints, word: Ints) -> None:
    factor = np.uint32(_FACTOR)
    word *= factor
    word ^= word >> np.uint32(_SHIFT)
    word *= factor
    if len(rows) == len(state):
        state *= factor
        state ^= word
    else:
        state[rows] = state[rows] * factor ^ word


def _finish_rows(state: Ints, data: Ints, tails: Ints, lengths: Ints) -> None:
    """The last one to three bytes of each key, then the final avalanche; in place."""
    factor = np.uint32(_FACTOR)
    for byte in (2, 1, 0):
        rows = np.flatnonzero(lengths > byte)
        state[rows] ^= data[tails[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(lengths > 0)
    state[rows] *= factor
    state ^= state >> np.uint32(13)
    state *= factor
    state ^= state >> np.uint32(15)


def partitions_of_keys(keys: pa.Array, count: int) -> Ints:
    """int32[n]: the partition, of `count`, of each key of a binary or string column without nulls."""
    positive = murmur2_column(keys) & np.uint32(0x7FFFFFFF)
    chosen: Ints = positive % np.uint32(count)
    return chosen.astype(np.int32)


class StickyPartitions:
    """Partitions of keyless rows: one after the other, each for about STICKY_BYTES."""

    def __init__(self, count: int, first: int) -> None:
        """`count` partitions, beginning with `first` modulo `count`: different tasks begin at different ones."""
        self._count = count
        self._first = first
        self._bytes = 0

    def take(self, sizes: Ints) -> Ints:
        """int32[n]: the partition of each of the next rows, whose sizes in bytes are given in order."""
        ends = self._bytes + np.cumsum(sizes, dtype=np.int64)
        steps = (ends - sizes) // STICKY_BYTES
        if len(ends):
            self._bytes = int(ends[-1])
        return ((self._first + steps) % self._count).astype(np.int32)


def assign(keys: pa.Array | None, sizes: Ints, count: int, sticky: StickyPartitions) -> Ints:
    """int32[n]: the partition of each row of a topic with `count` partitions.

    `keys` is the rows' key column (None: the table has none), `sizes` their bytes, for the rows without a key.
    """
    if keys is None:
        return sticky.take(sizes)
    if not keys.null_count:
        return partitions_of_keys(keys, count)
    keyless = np.asarray(keys.is_null())
    chosen = partitions_of_keys(keys, count)
    chosen[keyless] = sticky.take(sizes[keyless])
    return chosen
