"""The layout of a log: its segments, which of them are sealed, and batch boundaries about every so many bytes.

For readers that divide a log by bytes, or read sealed segments straight from their files. What is in memory is taken on
the loop; boundaries come from the index files and are held against the batch headers they lead to, in a job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing

from duramen.errors import DuramenError
from duramen.ports import Disk, File
from duramen.storage.log.log import Log
from duramen.storage.read.log_reader import segment_number
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, OffsetIndex, StoredOffsetIndex
from duramen.storage.segment.segment import INDEX, Segment
from duramen.wire.batch import HEADER_SIZE, parse_header

LEAST_TARGET_BYTES = 64 * 1024
"""Boundaries are no closer than this, whatever is asked for."""

Boundary = tuple[int, int]
"""(offset of a batch's first record, its position in the segment's file)"""


class SegmentOutline:
    """One segment as it was when the outline was taken.

    end_offset: behind its last record; size: bytes in its file; first_timestamp (see Segment) and max_timestamp
    in ms, -1 unknown. is_sealed: a direct reader may open it (ENGINE.md §7): rolled, synced, with a
    `.seal`, wholly below what any reader may see. boundaries: see `Outline.run`.
    """

    __slots__ = (
        "_entries",
        "_index",
        "base_offset",
        "boundaries",
        "end_offset",
        "first_timestamp",
        "is_sealed",
        "max_timestamp",
        "path",
        "size",
    )

    def __init__(self, segment: Segment, start: int, target_bytes: int, *, is_sealed: bool) -> None:
        self.base_offset = segment.base_offset
        self.end_offset = segment.next_offset
        self.size = segment.flushed
        self.first_timestamp = segment.first_timestamp
        self.max_timestamp = segment.max_timestamp
        self.is_sealed = is_sealed
        self.boundaries: list[Boundary] = []
        self.path: Callable[[str], str] = segment.path_of
        self._entries = segment.index_entries
        self._index: OffsetIndex | None = None
        if not self.needs_files(start, target_bytes):
            return
        if segment.index is not None:
            self._index = _thinned(segment.index, start - self.base_offset, target_bytes)
        elif segment.dormant is not None:
            self._entries = segment.dormant.index_entries

    def needs_files(self, start: int, target_bytes: int) -> bool:
        """Whether there may be boundaries besides its beginning."""
        return start > self.base_offset or self.size > target_bytes

    def find(self, disk: Disk, start: int, end: int, target_bytes: int) -> None:
        """Fill in `boundaries`. A file that is gone, or an index that is wrong, only means fewer of them. OSError."""
        if start <= self.base_offset:
            self.boundaries.append((self.base_offset, 0))
        if not self.needs_files(start, target_bytes):
            return
        try:
            log = disk.open(self.path(".log"))
        except FileNotFoundError:
            return
        with closing(log):
            index, close = self._open_index(disk)
            try:
                self._walk(log, index, start, end, target_bytes)
            finally:
                close()

    def _open_index(self, disk: Disk) -> tuple[OffsetIndex | StoredOffsetIndex, Callable[[], None]]:
        if self._index is not None:
            return self._index, lambda: None
        try:
            file = disk.open(self.path(INDEX))
        except FileNotFoundError:
            return OffsetIndex(), lambda: None
        entries = min(self._entries, file.size() // OFFSET_ENTRY_SIZE)
        return StoredOffsetIndex(lambda position, length: file.pread(length, position), entries), file.close

    def _walk(
        self,
        log: File,
        index: OffsetIndex | StoredOffsetIndex,
        start: int,
        end: int,
        target_bytes: int,
    ) -> None:
        position = index.position_for(start - self.base_offset) if start > self.base_offset else 0
        known, aim = (0, 0) if self.boundaries else (-1, 0)
        while position < self.size:
            if position > known:
                offset = self._offset_at(log, position)
                if offset is not None:
                    if offset >= end:
                        return
                    self.boundaries.append((offset, position))
                known = position
                aim = position + target_bytes
            else:
                aim += target_bytes  # no entry in between: the batches are larger than that
            if aim >= self.size:
                return
            position = index.boundary(aim)

    def _offset_at(self, log: File, position: int) -> int | None:
        """Offset of the batch at a position; None when there is none, for an index is no witness."""
        try:
            header = parse_header(log.pread(HEADER_SIZE, position))
        except DuramenError:
            return None
        fits = self.base_offset <= header.base_offset and header.next_offset <= self.end_offset
        last = self.boundaries[-1][0] if self.boundaries else -1
        return (
            header.base_offset if fits and position + header.size <= self.size and header.base_offset > last else None
        )


def _thinned(index: OffsetIndex, start: int, target_bytes: int) -> OffsetIndex:
    """The entries of an index in memory that boundaries can come from; start: relative offset."""
    thin = OffsetIndex()
    offsets, positions = index.offsets, index.positions
    number = max(0, bisect_right(offsets, start) - 1) if target_bytes else len(offsets)
    while number < len(offsets):
        thin.add(offsets[number], positions[number])
        number = max(number + 1, bisect_right(positions, positions[number] + target_bytes) - 1)
    return thin


class Outline:
    """A log's outline between two offsets. next_offset: where to go on, -1 when nothing is missing."""

    __slots__ = ("_disk", "_end", "_start", "_target_bytes", "entries", "next_offset", "segments")

    def __init__(self, log: Log, start: int, end: int, sealed_below: int, target_bytes: int, max_entries: int) -> None:
        """On the loop. target_bytes: 0 for no boundaries.

        sealed_below: what every reader may see (the last stable offset), or less. max_entries: of segments and
        boundaries together, never exceeded but for one segment.
        """
        self.segments: list[SegmentOutline] = []
        self.next_offset = -1
        self.entries = 0
        self._disk = log.disk
        self._start = start
        self._end = end
        self._target_bytes = max(target_bytes, LEAST_TARGET_BYTES) if target_bytes > 0 else 0
        for number in range(segment_number(log.segments, start), len(log.segments)):
            segment = log.segments[number]
            if segment.base_offset >= end:
                break
            if segment.next_offset <= start or not segment.flushed:
                continue
            entries = 1 + (segment.flushed // self._target_bytes + 1 if self._target_bytes else 0)
            if self.entries + entries > max_entries and self.entries:
                self.next_offset = max(start, segment.base_offset)
                break
            self.entries += entries
            is_sealed = (
                segment is not log.active
                and segment.sealed
                and segment.synced >= segment.size
                and segment.next_offset <= sealed_below
            )
            self.segments.append(SegmentOutline(segment, start, self._target_bytes, is_sealed=is_sealed))

    @property
    def needs_files(self) -> bool:
        """Whether `run` reads any."""
        target = self._target_bytes
        return target > 0 and any(segment.needs_files(self._start, target) for segment in self.segments)

    def run(self) -> None:
        """On any thread: the first batch boundary at or before the start, and one about every `target_bytes` behind it.

        Each is exact: records before that position have smaller offsets. Nothing without a target. OSError.
        """
        if not self._target_bytes:
            return
        for segment in self.segments:
            segment.find(self._disk, self._start, self._end, self._target_bytes)
