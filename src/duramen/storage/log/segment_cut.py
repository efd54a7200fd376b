"""Where a segment is cut, and what it is up to there, by its index: only what lies between two entries is read.

Nothing changes before `SegmentCut.apply`, and no file before `PendingTruncation.cut_files`.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.errors import CorruptLogError
from duramen.storage.files.atomic import read_file
from duramen.storage.files.disk_full import NoRoomError, as_disk_full
from duramen.storage.log.open_segment import SegmentLoader, Walk
from duramen.storage.segment.index import (
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    OffsetIndex,
    TimeIndex,
    decode_offset_index,
    decode_time_index,
)
from duramen.storage.segment.producer_state import AbortedTransaction
from duramen.storage.segment.scan import NO_END, Limit, header_at, scan
from duramen.storage.segment.segment import (
    INDEX,
    SUFFIXES,
    TIME_INDEX,
    Segment,
    checked_file,
    dormant_sums,
    sealed_sides,
)
from duramen.wire.checksum import crc32c


class SegmentCut(NamedTuple):
    """What is left of a segment: all below `position`. entries, time_entries: so many of its indexes' stay.

    next_offset: behind the last batch that is left, the segment's base without one. The rest as in `Segment`.
    """

    segment: Segment
    position: int
    next_offset: int
    offset_index: OffsetIndex
    time_index: TimeIndex
    entries: int
    time_entries: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int

    def apply(self) -> None:
        """In memory: the segment ends here and can grow, as one that never had more. Its files stay as they are."""
        segment = self.segment
        self.offset_index.keep_first(self.entries)
        self.time_index.keep_first(self.time_entries)
        segment.let_go_of_index()
        segment.index, segment.times, segment.dormant = self.offset_index, self.time_index, None
        segment.seal = segment.written_sums = None
        segment.sealed = False
        segment.size = segment.flushed = self.position
        segment.synced = min(segment.synced, self.position) - 1  # the truncation itself is to be synced, too
        segment.next_offset = self.next_offset
        segment.first_timestamp = self.first_timestamp
        segment.max_timestamp, segment.max_timestamp_offset = self.max_timestamp, self.max_timestamp_offset
        segment.unindexed = self.position - (self.offset_index.positions[-1] if self.entries else 0)


class PendingTruncation(NamedTuple):
    """A truncation that memory knows of and the files do not: whole segments to remove, and the place in the last.

    aborted: what is left of its aborted transactions, where that is less than its file has. anew: nothing of the log
    stays, and the last segment is a new one.
    """

    removed: list[Segment]
    segment: Segment
    position: int
    aborted: list[AbortedTransaction] | None
    anew: bool = False

    def cut_files(self) -> None:
        """Remove what is behind the cut from the files. OSError."""
        for segment in reversed(self.removed):
            segment.forget()  # a job may be about to seal it, a reply to send from it
            for suffix in SUFFIXES:
                path = segment.path_of(suffix)
                if segment.disk.exists(path):
                    segment.disk.remove(path)
        active = self.segment
        active.drop_seal()
        file = active.open_file(create=self.anew)
        file.truncate(self.position)
        write_cut_indexes(active)
        if self.aborted is not None:
            active.rewrite_aborted(self.aborted)


def find_cut(segment: Segment, offset: int, interval: int) -> SegmentCut:
    """Where the first batch begins that holds `offset` or follows it.

    interval: bytes between index entries, for where the index is lost: then all of the segment is read. Nothing may be
    queued for it. OSError; CorruptLogError where what is read is damaged.
    """
    base, size = segment.base_offset, segment.flushed
    index, times = _indexes(segment, interval)
    entries = index.count_below(offset - base)
    if entries and not _is_right(segment, index, entries - 1):
        index, times = _made_again(segment, interval)
        entries = index.count_below(offset - base)
    time_entries = times.count_below(index.offsets[entries - 1] + 1) if entries else 0
    latest, latest_offset = -1, base
    if time_entries:
        latest, latest_offset = times.timestamps[time_entries - 1], base + times.offsets[time_entries - 1]
    position = index.positions[entries - 1] if entries else 0
    next_offset = base
    stop = index.positions[entries] if entries < len(index) else size
    is_found = position == size
    while not is_found:
        for at, header, ok in scan(checked_file(segment), position, stop, expect_offset=next_offset):
            if not ok or header is None:
                raise CorruptLogError(segment.path, at, size, "a batch's header or CRC is wrong", next_offset)
            is_found = header.next_offset > offset
            if is_found:
                break
            position, next_offset = at + header.size, header.next_offset
            if header.max_timestamp > latest and header.count:
                latest, latest_offset = header.max_timestamp, next_offset - 1
        # Kafka's entries may name the end of several batches: then the cut may lie among those.
        is_found = is_found or stop == size or _goes(segment, stop, offset)
        stop = size
    first_timestamp = segment.first_timestamp
    if position and first_timestamp < 0:
        first = header_at(segment.open_file(), 0, size)
        first_timestamp = -1 if first is None else first.max_timestamp
        if first_timestamp < 0:
            first_timestamp = segment.disk.modified_ms(segment.path)
    return SegmentCut(
        segment, position, next_offset, index, times, entries, time_entries, first_timestamp, latest, latest_offset
    )


def write_cut_indexes(segment: Segment) -> None:
    """What is left of the index entries into the files, and nothing behind it: later writes only ever add. OSError.

    On a full disk the next sync adds what has no room.
    """
    for suffix, index, size in (
        (INDEX, segment.index, OFFSET_ENTRY_SIZE),
        (TIME_INDEX, segment.times, TIME_ENTRY_SIZE),
    ):
        if index is not None:
            file = segment.disk.open(segment.path_of(suffix), create=True, write=True)
            try:
                file.truncate(index.written * size)
                if len(index) > index.written:
                    file.pwritev([index.encode(index.written)], index.written * size)
            except OSError as error:
                if not isinstance(as_disk_full(error), NoRoomError):
                    raise
            else:
                index.written = len(index)
            finally:
                file.close()


def _is_right(segment: Segment, index: OffsetIndex, entry: int) -> bool:
    """Whether the batch is there that an entry names."""
    header = header_at(segment.open_file(), index.positions[entry], segment.flushed)
    return header is not None and header.last_offset == segment.base_offset + index.offsets[entry]


def _goes(segment: Segment, position: int, offset: int) -> bool:
    """Whether the batch at `position` holds `offset` or follows it."""
    header = header_at(segment.open_file(), position, segment.flushed)
    return header is not None and header.next_offset > offset


def _indexes(segment: Segment, interval: int) -> tuple[OffsetIndex, TimeIndex]:
    """Of a segment that keeps them in memory, or else from its files; where they are damaged, from its batches."""
    if segment.index is not None and segment.times is not None:
        return segment.index, segment.times
    return _stored(segment) or _made_again(segment, interval)


def _stored(segment: Segment) -> tuple[OffsetIndex, TimeIndex] | None:
    sums = dormant_sums(segment)
    if sums is None:
        sides = sealed_sides(segment)
        sums = None if sides is None else sides[:4]
    data = read_file(segment.disk, segment.path_of(INDEX)) or b""
    time_data = read_file(segment.disk, segment.path_of(TIME_INDEX)) or b""
    sizes = segment.index_entries * OFFSET_ENTRY_SIZE, segment.time_entries * TIME_ENTRY_SIZE
    if (len(data), len(time_data)) != sizes:
        return None
    if sums is not None and (len(data), crc32c(data), len(time_data), crc32c(time_data)) != sums:
        return None
    most = segment.next_offset - segment.base_offset
    index, times = decode_offset_index(data, segment.flushed, most), decode_time_index(time_data, most)
    if index is None or times is None or (len(index), len(times)) != (segment.index_entries, segment.time_entries):
        return None  # also where an entry is all zeros, as what fills a file up
    return index, times


def _made_again(segment: Segment, interval: int) -> tuple[OffsetIndex, TimeIndex]:
    copy = Segment(segment.disk, segment.directory, segment.base_offset)
    copy.staged, copy.unstaged = segment.staged, segment.unstaged
    copy.flushed = segment.flushed
    try:
        SegmentLoader(copy, interval, Walk()).rebuild(Limit(NO_END, segment.next_offset))
    finally:
        copy.close()
    if copy.index is None or copy.times is None:
        raise CorruptLogError(segment.path, 0, segment.flushed, "it cannot be indexed", segment.base_offset)
    return copy.index, copy.times
