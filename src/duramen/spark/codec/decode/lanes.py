"""Where long batches are entered in the middle, so that a walk in lock-step takes more lanes and fewer steps.

A place is guessed by what a record looks like: a length, attributes of zero, an offset delta, and behind its length
another record with the next delta. No guess is believed: the walk of each lane has to arrive exactly where the next one
began, after as many records as lie between, and then all lanes are what one walk from the batch's start would meet.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from duramen.errors import KafkaError
from duramen.spark.codec.decode.arena import ArenaChunk
from duramen.spark.codec.decode.varints import Bytes, Ints, varints_in_a_row

_LANES: Final = 256
"""About so many make a step's fixed costs small."""
_ROWS_MIN: Final = 64
"""Of a lane: looking for a place costs about as much as some ten steps."""
_WORTH_ROWS: Final = 4096
"""Fewer are walked as they are before the places are found."""
_WINDOW_RECORDS: Final = 2
_WINDOW_MAX: Final = 4096
_ZEROS_MAX: Final = 64
"""Of a window, on average: bytes that are mostly zero tell nothing, and looking at them all would take long."""
_PART_BITS: Final = 7
_PART_MAX: Final = 0x7F


class Lanes(NamedTuple):
    """Parts of batches, in order: where each begins and ends in the arena, and how many records it has."""

    starts: Ints
    ends: Ints
    records: Ints


def split(chunk: ArenaChunk) -> Lanes | None:
    """The chunk's batches in about _LANES parts of at least some _ROWS_MIN records; None where that is not to be had.

    Batches with gaps in their offsets stay whole: their deltas do not tell how many records lie before.
    """
    records, size = chunk.headers.records, chunk.ends - chunk.starts
    if int(records.sum()) < _WORTH_ROWS:
        return None
    parts = np.minimum(records // _ROWS_MIN, size * _LANES // max(1, int(size.sum())))
    parts[chunk.headers.last_offset - chunk.headers.base_offset + 1 != records] = 1
    extra = np.maximum(parts, 1) - 1
    if int(extra.sum()) < len(extra) // 2 + 1:
        return None
    batch = np.repeat(np.arange(len(extra)), extra)
    number = np.arange(len(batch)) - np.repeat(np.cumsum(extra) - extra, extra) + 1
    around = chunk.starts.take(batch) + size.take(batch) * number // parts.take(batch)
    divided = extra > 0
    longest = int((size[divided] // records[divided]).max())
    found = _entries(chunk, batch, around, min(_WINDOW_RECORDS * longest, _WINDOW_MAX))
    return None if found is None else _between(chunk, *found)


def _entries(chunk: ArenaChunk, batch: Ints, around: Ints, window: int) -> tuple[Ints, Ints, Ints] | None:
    """Behind each of these places the first record that begins in the window: (batch, position, offset delta)."""
    arena = chunk.arena
    reach = len(arena) - window
    if int(around[-1]) > reach:
        return None
    windows = np.ndarray((reach + 1, window), np.uint8, arena.data, strides=(1, 1))
    is_zero = windows[around] == 0
    if np.count_nonzero(is_zero) > _ZEROS_MAX * len(around):
        return None
    place, distance = np.divmod(np.flatnonzero(is_zero), window)
    attributes = around.take(place) + distance
    end = chunk.ends.take(batch.take(place))
    two = arena.take(attributes - 2, mode="clip") > _PART_MAX  # bytes of the length
    start = attributes - 1 - two
    likely = np.flatnonzero((attributes < end) & (arena.take(attributes - 1, mode="clip") <= _PART_MAX))
    place, start, end, attributes = (column.take(likely) for column in (place, start, end, attributes))
    jump = JUMPS.take(pairs(arena)[start])
    following = start + jump
    next_attributes = following + 1 + (arena.take(following, mode="clip") > _PART_MAX)
    likely = np.flatnonzero((jump > 0) & (next_attributes < end) & (arena.take(next_attributes, mode="clip") == 0))
    place, start, attributes, next_attributes = (
        column.take(likely) for column in (place, start, attributes, next_attributes)
    )
    try:
        (_, delta), _ = varints_in_a_row(arena, attributes + 1, 2)
        (_, next_delta), _ = varints_in_a_row(arena, next_attributes + 1, 2)
    except KafkaError:
        return None
    records = chunk.headers.records.take(batch.take(place))
    sure = np.flatnonzero((next_delta == delta + 1) & (delta > 0) & (next_delta < records))
    # Windows may overlap: a place takes what those before it did not see, so that positions ascend.
    _, seen_first = np.unique(start.take(sure), return_index=True)
    sure = sure.take(seen_first)
    _, first = np.unique(place.take(sure), return_index=True)
    chosen = sure.take(first)
    return batch.take(place.take(chosen)), start.take(chosen), delta.take(chosen)


def _between(chunk: ArenaChunk, batch: Ints, start: Ints, delta: Ints) -> Lanes | None:
    """The lanes from each batch's start over these places in it to its end; None where the deltas do not ascend."""
    order = np.argsort(np.concatenate([np.arange(len(chunk.starts)), batch]), kind="stable")
    starts = np.concatenate([chunk.starts, start]).take(order)
    before = np.concatenate([np.zeros(len(chunk.starts), np.int64), delta]).take(order)
    of = np.concatenate([np.arange(len(chunk.starts)), batch]).take(order)
    last = np.append(of[1:] != of[:-1], True)
    ends = np.where(last, chunk.ends.take(of), np.append(starts[1:], 0))
    count = np.where(last, chunk.headers.records.take(of), np.append(before[1:], 0)) - before
    return Lanes(starts, ends, count) if np.all(count > 0) else None


def pairs(arena: Bytes) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The two bytes at every place, little-endian, over the same memory."""
    return np.ndarray((len(arena) - 1,), "<u2", arena.data, strides=(1,))


def _jumps() -> Ints:
    """By a record's first two bytes (little-endian): bytes to the next one; 0 for a longer or impossible length."""
    second, first = np.divmod(np.arange(1 << 16), 256)
    coded = np.where(first <= _PART_MAX, first, (first & _PART_MAX) | second << _PART_BITS)
    taken = np.where(first <= _PART_MAX, 1, 2)
    usable = (coded & 1 == 0) & ((first <= _PART_MAX) | (second <= _PART_MAX))
    return np.where(usable, (coded >> 1) + taken, 0)


JUMPS: Final = _jumps()
