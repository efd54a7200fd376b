"""From inflated batches to the places of every record's fields: one array per field, no Python object per record.

Where a record starts is known only from the one before it, so all batches are walked in lock-step: step k reads the
length of record k in each of them. Few long batches are walked one by one instead, which is then the faster way.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from duramen.errors import KafkaError
from duramen.spark.codec.decode.arena import ArenaChunk
from duramen.spark.codec.decode.batches import check_counts
from duramen.spark.codec.decode.lanes import JUMPS, pairs, split
from duramen.spark.codec.decode.varints import Bytes, Ints, broken, varint, varints, varints_in_a_row

_PART: Final = 7
_NARROW: Final = 24
"""With fewer batches than this in a step, plain Python is faster than numpy."""
_NARROW_FAST: Final = 8
"""The same for the steps that check nothing."""


class Fields(NamedTuple):
    """One row per record, int64 each. A length of -1 is null; positions are those of the chunk's arena."""

    batch: Ints
    """Index of the record's batch in the chunk."""
    offset: Ints
    timestamp: Ints
    """Milliseconds."""
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints
    header_count: Ints
    headers_at: Ints
    end: Ints

    def only(self, chosen: Any) -> Fields:
        """The records at these indexes, or where this mask is true."""
        return Fields(*(column[chosen] for column in self))


def read_fields(chunk: ArenaChunk) -> Fields:
    """Every record of the chunk, in the order of its batches.

    Raises KafkaError INVALID_RECORD when the bytes are not the records that the headers promise.
    """
    headers, arena, starts, ends = chunk
    check_counts(headers.records, ends - starts)
    batch = np.repeat(np.arange(len(headers.records)), headers.records)
    body, end = _walk(chunk, batch)
    # behind the record's attributes, of which none are defined
    (timestamp_delta, offset_delta, key_size), key_at = varints_in_a_row(arena, body + 1, 3)
    (value_size,), value_at = varints_in_a_row(arena, _behind(key_at, key_size, end), 1)
    header_count, headers_at = _header_counts(arena, _behind(value_at, value_size, end), end)
    delta_max = headers.last_offset - headers.base_offset
    if np.any(offset_delta < 0) or np.any(offset_delta > delta_max.take(batch)):
        raise broken("a record's offset delta is outside the batch")
    timestamp = headers.base_timestamp.take(batch) + timestamp_delta
    append_time = headers.append_time
    if append_time.any():
        timestamp = np.where(append_time[batch], headers.max_timestamp[batch], timestamp)
    return Fields(
        batch=batch,
        offset=headers.base_offset.take(batch) + offset_delta,
        timestamp=timestamp,
        key_at=key_at,
        key_size=np.maximum(key_size, -1),
        value_at=value_at,
        value_size=np.maximum(value_size, -1),
        header_count=header_count,
        headers_at=headers_at,
        end=end,
    )


def _behind(at: Ints, size: Ints, end: Ints) -> Ints:
    """Where each field of `size` bytes ends. INVALID_RECORD for one that is longer than its record."""
    if np.any(size > end - at) or np.any(at > end):
        raise broken("a field is longer than its record")
    return at + np.maximum(size, 0)


def _header_counts(arena: Bytes, at: Ints, end: Ints) -> tuple[Ints, Ints]:
    """How many headers each record has, and where they start. INVALID_RECORD where they cannot end with the record."""
    if np.array_equal(at + 1, end) and not arena.take(at, mode="clip").any():
        return np.zeros(len(at), np.int64), end
    header_count, headers_at = varints(arena, at)
    room = end - headers_at
    if np.any((room < 0) | (header_count < 0) | (header_count > room) | ((header_count == 0) & (room != 0))):
        raise broken("a record's fields do not end where its length says")
    return header_count, headers_at


def _walk(chunk: ArenaChunk, batch: Ints) -> tuple[Ints, Ints]:
    """Where each record's fields start and where the record ends. batch: of each row."""
    headers, arena, starts, ends = chunk
    lanes = split(chunk)
    if lanes is not None:
        with suppress(KafkaError):  # one of them began where no record does
            row = np.repeat(np.arange(len(lanes.records)), lanes.records)
            if (found := _walk_fast(arena, *lanes, _rows_before(lanes.records), row)) is not None:
                return found
    first = _rows_before(headers.records)
    found = _walk_fast(arena, starts, ends, headers.records, first, batch)
    return found or _walk_exact(arena, starts, ends, headers.records, first)


def _rows_before(count: Ints) -> Ints:
    """For each batch, and behind the last, how many records lie before."""
    first = np.zeros(len(count) + 1, np.int64)
    np.cumsum(count, out=first[1:])
    return first


def _walk_fast(
    arena: Bytes, starts: Ints, ends: Ints, count: Ints, first: Ints, batch: Ints
) -> tuple[Ints, Ints] | None:
    """As `_walk`, if the length of every record has one or two bytes and nothing is wrong; else None.

    A step is three operations of numpy: two bytes of each batch, a look-up of how far the next record is, a jump.
    Nothing is checked on the way. A jump goes forward or, from anything unusual, nowhere: whoever is at the end of the
    batch after as many jumps as it has records has met all of them. Positions are written step by step, and brought
    into the order of the rows at the end.
    """
    if len(count) < _NARROW_FAST or np.any(count < 1):
        return None
    two_bytes = pairs(arena)
    order = np.argsort(-count, kind="stable")
    widths = (len(count) - np.cumsum(np.bincount(count)))[:-1]
    steps = int(np.count_nonzero(widths >= _NARROW_FAST))
    left = int(widths[steps]) if steps < len(widths) else 0
    lines = np.zeros(steps + 1, np.int64)
    np.cumsum(widths[:steps], out=lines[1:])
    met = np.empty(int(lines[-1]) + len(count), np.int64)
    at = met[: len(count)]
    at[:] = starts[order]
    try:
        for width, line in zip(widths[:steps].tolist(), lines[1:].tolist(), strict=True):
            if width != len(at):
                at = _finished(at, ends, order, width)
            at = np.add(at, JUMPS.take(two_bytes[at]), out=met[line : line + width])
        at = _finished(at, ends, order, left).copy()
    except (IndexError, _NotAtEndError):
        return None
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    step = np.arange(len(batch)) - first.take(batch)
    start = met.take(lines.take(step, mode="clip") + place.take(batch))
    body = start + 1 + (arena.take(start) >> 7)
    end = np.empty_like(start)
    end[:-1] = start[1:]
    end[first[1:] - 1] = ends  # the last record of a batch ends with it, all others where the next one starts
    _walk_narrow(arena, order[:left], at, ends, count, first, steps, body, end)
    return None if np.any(at != ends[order[:left]]) else (body, end)


class _NotAtEndError(Exception):
    """A batch whose records were all jumped over does not end there."""


def _finished(at: Ints, ends: Ints, order: Ints, width: int) -> Ints:
    """The batches that go on, after those behind them were seen to be at their end."""
    if not np.array_equal(at[width:], ends[order[width : len(at)]]):
        raise _NotAtEndError
    return at[:width]


def _walk_exact(arena: Bytes, starts: Ints, ends: Ints, count: Ints, first: Ints) -> tuple[Ints, Ints]:
    """As `_walk`, for lengths of any size, with every jump checked."""
    body = np.empty(int(first[-1]), np.int64)
    end = np.empty(int(first[-1]), np.int64)
    order = np.argsort(-count, kind="stable")
    at = starts[order]
    limit = ends[order]
    row = first[:-1][order]
    width_at = len(count) - np.cumsum(np.bincount(count)) if len(count) else np.zeros(0, np.int64)
    step = 0
    steps = int(count.max()) if len(count) else 0
    while step < steps and (width := int(width_at[step])) >= _NARROW:
        size, here = varints(arena, at[:width])
        behind = here + size
        if np.any((size < 0) | (size > limit[:width] - here)):
            raise broken("a record is longer than its batch")
        slots = row[:width] + step
        body[slots] = here
        end[slots] = behind
        at[:width] = behind
        step += 1
    if step < steps:
        _walk_narrow(arena, order[: int(width_at[step])], at, ends, count, first, step, body, end)
    if np.any(at != limit):
        raise broken("there are bytes behind the last record")
    return body, end


def _walk_narrow(
    arena: Bytes, batches: Ints, at: Ints, ends: Ints, count: Ints, first: Ints, step: int, body: Ints, end: Ints
) -> None:
    """What is left of a few batches, each to its end; `at` is kept up to date."""
    data = memoryview(arena.data)
    for place, batch in enumerate(batches.tolist()):
        position, limit = int(at[place]), int(ends[batch])
        bodies: list[int] = []
        stops: list[int] = []
        for _ in range(int(count[batch]) - step):
            byte = data[position] if position < limit else 0x80
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            elif position + 1 < limit and not byte & 1 and (high := data[position + 1]) < 0x80:
                size = (byte & 0x7F) >> 1 | high << _PART - 1
                position += 2
            else:
                size, position = varint(data, position)
            bodies.append(position)
            position += size
            if size < 0 or position > limit:
                raise broken("a record is longer than its batch")
            stops.append(position)
        row = int(first[batch]) + step
        body[row : row + len(bodies)] = bodies
        end[row : row + len(bodies)] = stops
        at[place] = position
