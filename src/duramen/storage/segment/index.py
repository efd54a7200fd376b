"""The sparse indexes of one segment: record offset to file position, and timestamp to record offset.

Both are Kafka's files: `.index` holds (offset - base i32, position i32), `.timeindex` (timestamp i64, offset - base
i32), big-endian, ascending. An `.index` entry names the last offset of the batch that starts at its position; a
`.timeindex` entry says that no record up to its offset is younger than its timestamp. The active segment keeps its
entries in memory; those of older segments stay in their files and are searched there.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import lt
from typing import overload

from duramen.wire.checksum import crc32c

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12

Read = Callable[[int, int], bytes | memoryview]
"""(position, length) -> exactly these bytes of an index file; may raise what its maker likes (WouldBlock)."""


def _big_endian(typecode: str, data: bytes) -> array[int]:
    values = array(typecode, data)
    if sys.byteorder == "little":
        values.byteswap()
    return values


class OffsetIndex:
    """Growing offset index of an active segment."""

    __slots__ = ("_sum", "offsets", "positions", "written")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")
        self.written = 0
        """Entries that are in the file already."""
        self._sum = (0, 0)

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def position_for(self, relative_offset: int) -> int:
        """Start of a batch at or before the one that contains the offset; 0 when the index knows none."""
        found = bisect_right(self.offsets, relative_offset)
        return self.positions[found - 1] if found else 0

    def boundary(self, limit: int) -> int:
        """Greatest indexed batch start at or below a file position; 0 when there is none."""
        found = bisect_right(self.positions, limit)
        return self.positions[found - 1] if found else 0

    def encode(self, first: int = 0) -> bytes:
        """Entries from number `first` on, as in the file."""
        both = array("i", bytes(OFFSET_ENTRY_SIZE * (len(self.offsets) - first)))
        both[0::2] = self.offsets[first:]
        both[1::2] = self.positions[first:]
        if sys.byteorder == "little":
            both.byteswap()
        return both.tobytes()

    def summary(self) -> tuple[int, int]:
        """(entries, CRC-32C of their bytes in the file); each entry is summed up once."""
        self._sum = _summed(self, self._sum)
        return self._sum

    def count_below(self, relative_offset: int) -> int:
        """Entries for batches that end below the offset."""
        return bisect_left(self.offsets, relative_offset)

    def keep_first(self, count: int) -> None:
        """Forget all entries but the first `count`."""
        self._sum = (0, 0)
        del self.offsets[count:]
        del self.positions[count:]
        self.written = min(self.written, count)


class TimeIndex:
    """Growing time index of an active segment."""

    __slots__ = ("_sum", "offsets", "timestamps", "written")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")
        self.written = 0
        self._sum = (0, 0)

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, timestamp: int, relative_offset: int) -> None:
        """Append unless it says nothing new: timestamps in the file strictly ascend."""
        if not self.timestamps or timestamp > self.timestamps[-1]:
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def encode(self, first: int = 0) -> bytes:
        """Entries from number `first` on, as in the file."""
        timestamps, offsets = self.timestamps[first:], self.offsets[first:]
        if sys.byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        halves = array("i", timestamps.tobytes())
        words = array("i", bytes(TIME_ENTRY_SIZE * len(offsets)))
        words[0::3], words[1::3], words[2::3] = halves[0::2], halves[1::2], offsets
        return words.tobytes()

    def summary(self) -> tuple[int, int]:
        """As `OffsetIndex.summary`."""
        self._sum = _summed(self, self._sum)
        return self._sum

    def offset_before(self, timestamp: int) -> int:
        """Relative offset from which to look for the first record with this timestamp or a later one."""
        found = bisect_right(self.timestamps, timestamp)
        return self.offsets[found - 1] if found else 0

    def last_before(self, relative_offset: int) -> int:
        """Last offset named by an entry that lies below `relative_offset`; 0 when there is none."""
        found = bisect_left(self.offsets, relative_offset)
        return self.offsets[found - 1] if found else 0

    def count_below(self, relative_offset: int) -> int:
        """Entries that name a lower offset."""
        return bisect_left(self.offsets, relative_offset)

    def keep_first(self, count: int) -> None:
        """Forget all entries but the first `count`."""
        self._sum = (0, 0)
        del self.timestamps[count:]
        del self.offsets[count:]
        self.written = min(self.written, count)


def decode_offset_index(data: bytes, size: int, end_relative: int) -> OffsetIndex | None:
    """The entries of an `.index` file; None when they cannot be those of a segment of `size` bytes.

    end_relative: first offset, relative to the base, behind the segment. Zeros that fill up the end, as Kafka leaves
    them in the file of an active segment, are skipped.
    """
    if len(data) % OFFSET_ENTRY_SIZE:
        return None
    both = _big_endian("i", data)
    index = OffsetIndex()
    index.offsets = both[0::2]
    index.positions = both[1::2]
    while index.offsets and index.offsets[-1] == 0 and index.positions[-1] == 0 and len(index.offsets) > 1:
        index.offsets.pop()
        index.positions.pop()
    if len(index.offsets) == 1 and index.positions[0] == 0:
        index.offsets.pop()
        index.positions.pop()
    if not _ascends(index.offsets) or not _ascends(index.positions):
        return None
    if index.offsets and (index.offsets[0] < 0 or index.positions[0] < 0):
        return None
    if index.offsets and (index.offsets[-1] >= end_relative or index.positions[-1] >= size):
        return None
    index.written = len(index.offsets)
    return index


def decode_time_index(data: bytes, end_relative: int) -> TimeIndex | None:
    """The entries of a `.timeindex` file; None when they cannot belong to the segment. Zeros at its end are skipped."""
    if len(data) % TIME_ENTRY_SIZE:
        return None
    used = -(-len(data.rstrip(b"\0")) // TIME_ENTRY_SIZE)
    words = _big_endian("i", data[: used * TIME_ENTRY_SIZE])
    index = TimeIndex()
    index.offsets = words[2::3]
    index.timestamps = _joined(words[0::3], words[1::3])
    if not _ascends(index.offsets) or not _ascends(index.timestamps):
        return None
    if index.offsets and (index.offsets[0] < 0 or index.offsets[-1] >= end_relative):
        return None
    index.written = used
    return index


def _joined(high: array[int], low: array[int]) -> array[int]:
    """Numbers of 64 bits from their halves."""
    halves = array("i", bytes(8 * len(high)))
    first, second = (low, high) if sys.byteorder == "little" else (high, low)
    halves[0::2], halves[1::2] = first, second
    return array("q", halves.tobytes())


def _summed(index: OffsetIndex | TimeIndex, known: tuple[int, int]) -> tuple[int, int]:
    entries, crc = known
    if len(index) == entries:
        return known
    return len(index), crc32c(index.encode(entries), crc)


def _ascends(values: array[int]) -> bool:
    return all(map(lt, values, values[1:]))


class Column(Sequence[int]):
    """One column of an index file as a sequence that `bisect` can search without loading the file."""

    __slots__ = ("_at", "_count", "_length", "_read", "_stride")

    def __init__(self, read: Read, count: int, stride: int, at: int, length: int) -> None:
        self._read = read
        self._count = count
        self._stride = stride
        self._at = at
        self._length = length

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> int: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[int]: ...
    def __getitem__(self, number: int | slice) -> int | Sequence[int]:
        if isinstance(number, slice):
            raise TypeError("an index column is read entry by entry")
        data = self._read(number * self._stride + self._at, self._length)
        return int.from_bytes(data, "big", signed=True)


class StoredOffsetIndex:
    """The offset index of a closed segment, searched in its file. `entries` of it count."""

    __slots__ = ("_offsets", "positions")

    def __init__(self, read: Read, entries: int) -> None:
        self._offsets = Column(read, entries, OFFSET_ENTRY_SIZE, 0, 4)
        self.positions = Column(read, entries, OFFSET_ENTRY_SIZE, 4, 4)

    def position_for(self, relative_offset: int) -> int:
        """As `OffsetIndex.position_for`."""
        found = bisect_right(self._offsets, relative_offset)
        return self.positions[found - 1] if found else 0

    def boundary(self, limit: int) -> int:
        """As `OffsetIndex.boundary`."""
        found = bisect_right(self.positions, limit)
        return self.positions[found - 1] if found else 0

    def entry_before(self, limit: int) -> tuple[int, int]:
        """(relative last offset, position) of the last indexed batch at or before `limit`; (-1, 0): none."""
        found = bisect_right(self.positions, limit)
        return (self._offsets[found - 1], self.positions[found - 1]) if found else (-1, 0)


class StoredTimeIndex:
    """The time index of a closed segment, searched in its file."""

    __slots__ = ("_offsets", "_timestamps")

    def __init__(self, read: Read, entries: int) -> None:
        self._timestamps = Column(read, entries, TIME_ENTRY_SIZE, 0, 8)
        self._offsets = Column(read, entries, TIME_ENTRY_SIZE, 8, 4)

    def offset_before(self, timestamp: int) -> int:
        """As `TimeIndex.offset_before`."""
        found = bisect_right(self._timestamps, timestamp)
        return self._offsets[found - 1] if found else 0
