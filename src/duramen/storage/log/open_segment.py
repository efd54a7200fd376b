"""Opening one segment of a log: bounds and indexes from a checkpoint, a seal or the index files, or from its batches.

What can be believed is: then nothing of the segment is read. The rest is read and checked, and made again.
"""

from __future__ import annotations

import posixpath

from duramen.errors import CorruptLogError, DuramenError, StorageError
from duramen.ports import Disk, File
from duramen.storage.checkpoint.loss_record import gap_behind, is_left
from duramen.storage.files.atomic import read_file
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, decode_offset_index, decode_time_index
from duramen.storage.segment.recovery_point import ActiveState, LogPoint
from duramen.storage.segment.scan import CHUNK_BYTES, NO_END, NO_LIMIT, Limit, crc_of, header_at
from duramen.storage.segment.seal import SEALING, read_growing
from duramen.storage.segment.segment import (
    INDEX,
    MAX_RELATIVE,
    TIME_INDEX,
    Segment,
    checked_file,
    sealed_sides,
)
from duramen.wire.batch import CONTROL, CRC_START, HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC
from duramen.wire.checksum import crc32c

_unpack = HEADER.unpack_from


class Walk:
    """What was seen of the batches that a load had to look at.

    epochs: (leader epoch, offset) where it changes, from offset `start` on. unread: a sealed segment behind the
    checkpoint was believed unread; its producers and epochs are still to be seen.
    """

    __slots__ = ("epoch", "epochs", "markers", "producers", "start", "unread")

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.epoch = -1
        self.epochs: list[tuple[int, int]] = []
        self.producers = self.unread = False
        self.markers = False


class SegmentLoader:
    """Opens one segment: its bounds, timestamps and indexes.

    interval: bytes between index entries (`index.interval.bytes`). walk: collects what the batches say that are read.
    """

    __slots__ = ("_interval", "_segment", "_walk")

    def __init__(self, segment: Segment, interval: int, walk: Walk) -> None:
        self._segment = segment
        self._interval = interval
        self._walk = walk

    def closed_indexes_fit(self, *, believed: bool) -> bool:
        """Whether the index files can be those of the segment, by their sizes and last entries; takes over the bounds.

        Without a seal only where they are `believed`: nothing else syncs them, and the bytes that a power cut leaves of
        them may say that every record is ages old, which retention would act upon.
        """
        segment, disk = self._segment, self._segment.disk
        if not disk.exists(segment.path_of(INDEX)) or not disk.exists(segment.path_of(TIME_INDEX)):
            return False
        if segment.take_bounds_from_seal():
            return True
        if not believed:
            return False
        index, times = disk.open(segment.path_of(INDEX)), disk.open(segment.path_of(TIME_INDEX))
        try:
            index_size, time_size = index.size(), times.size()
            if index_size % OFFSET_ENTRY_SIZE or time_size % TIME_ENTRY_SIZE or (segment.size and not time_size):
                return False
            relative_end = segment.next_offset - segment.base_offset
            if index_size:
                last = index.pread(OFFSET_ENTRY_SIZE, index_size - OFFSET_ENTRY_SIZE)
                offset, position = int.from_bytes(last[:4], "big"), int.from_bytes(last[4:], "big")
                if not 0 < position < segment.size or not 0 <= offset < relative_end:
                    return False
            if time_size:
                last = times.pread(TIME_ENTRY_SIZE, time_size - TIME_ENTRY_SIZE)
                offset = int.from_bytes(last[8:], "big", signed=True)
                if not 0 <= offset < relative_end or (time_size > TIME_ENTRY_SIZE and not any(last)):
                    return False
                segment.max_timestamp = int.from_bytes(last[:8], "big", signed=True)
                segment.max_timestamp_offset = segment.base_offset + offset
        finally:
            index.close()
            times.close()
        segment.index_entries = index_size // OFFSET_ENTRY_SIZE
        segment.time_entries = time_size // TIME_ENTRY_SIZE
        return True

    def load_rolled(self, known: LogPoint | None, *, clean: bool, needed_from: int) -> None:
        """A rolled segment whose side files cannot be believed as they are: they are made again from where they can.

        needed_from: offsets from here on have to be there, unless compaction or a repair has taken them.
        CorruptLogError, also where the file has not the bytes that were sealed: then nothing changes that says how it
        was.
        """
        segment = self._segment
        end = segment.next_offset
        if segment.sealed:
            _check_length(segment)
        elif clean:
            _check_sealed(segment)
        limit = Limit(NO_END, end)
        if not self._resume(known, limit):
            self.rebuild(limit)
        check_gap(segment, segment.next_offset, end, needed_from=needed_from)
        segment.next_offset = end
        if sealed_sides(segment) is not None:
            # It speaks of other index files, which may have more entries. It goes first, and is made again after them.
            segment.drop_seal()
            segment.disk.sync_directory(segment.directory)
        for path, position, data in segment.pending_index_writes(final=True):
            write_end(segment.disk, path, position, data)
        segment.close_indexes()

    def load_active(self, known: LogPoint | None, *, clean: bool, end_offset: int | None) -> None:
        """The last segment, as far as possible without reading it. end_offset: of the log, by its recovery.

        After a clean stop whose checkpoint fits the files it stays as that describes it until its first append.
        """
        segment = self._segment
        limit = NO_LIMIT if end_offset is None else Limit(NO_END, end_offset)
        if clean and known is not None and known.segment_base == segment.base_offset and not known.is_least:
            limit = Limit(known.position, known.recovery_point)
        if segment.sealed:
            segment.drop_seal()
            # Should it come back when the segment has grown, it would speak of damage.
            segment.disk.sync_directory(segment.directory)
        if clean and known is not None and known.position != segment.size:
            _check_sealed(segment)
            is_shorter = known.segment_base == segment.base_offset and segment.size < known.position
            if is_shorter and not is_left(segment.disk, segment.path, segment.size):
                what = f"it has {segment.size} bytes, it had {known.position} at the clean stop"
                raise CorruptLogError(segment.path, segment.size, known.position, what, known.recovery_point)
        if clean and known is not None and known.state is not None and _is_as_known(segment, known):
            segment.next_offset = known.recovery_point
            segment.sleep(known.state)
        elif clean and known is None and self._load_indexes():
            pass  # Kafka's, who syncs them
        elif not self._resume(known, limit):
            self.rebuild(limit)
        write_indexes(segment)
        if segment.size and segment.first_timestamp < 0:
            first = header_at(segment.open_file(), 0, segment.size)
            segment.first_timestamp = -1 if first is None else first.max_timestamp
            if segment.first_timestamp < 0:
                segment.first_timestamp = segment.disk.modified_ms(segment.path)

    def wake(self) -> None:
        """The dormant active segment is about to grow: its indexes into memory, made again if they are damaged.

        OSError, CorruptLogError: it sleeps on, and takes no append.
        """
        segment, state = self._segment, self._segment.dormant
        if state is None:
            return
        if _read_indexes(segment, state):
            segment.dormant = None
            index = segment.index
            segment.unindexed = segment.size - (index.positions[-1] if index is not None and len(index) else 0)
            return
        end, size = segment.next_offset, segment.size
        try:
            self.rebuild(Limit(NO_END, end))
            if segment.next_offset != end:
                raise CorruptLogError(segment.path, 0, segment.size, f"it ends at offset {segment.next_offset}", end)
            write_indexes(segment)
        except (OSError, DuramenError):
            segment.size, segment.next_offset = size, end
            segment.index = segment.times = None
            segment.sleep(state)
            raise

    def rebuild(self, limit: Limit) -> None:
        """Read the whole segment, check it and make its indexes again. CorruptLogError."""
        segment = self._segment
        segment.activate()
        segment.max_timestamp, segment.max_timestamp_offset = -1, segment.base_offset
        segment.next_offset = segment.base_offset
        segment.size = segment.unindexed = 0
        file = checked_file(segment)
        if not self._account_batches(file, 0, limit, crc=True):
            position, size = segment.size, segment.flushed
            header = header_at(file, position, size)
            segment.size = size
            stop = size if header is None else position + header.size
            raise CorruptLogError(segment.path, position, stop, "a batch's header or CRC is wrong", segment.next_offset)

    def _resume(self, known: LogPoint | None, limit: Limit) -> bool:
        """Go on from where a checkpoint knows the segment's indexes to be sound; False when there is no such place.

        All from there on is read and checked: a bounded part before the recovery point, and what recovery accepted.
        """
        segment = self._segment
        state = known.state if known is not None and known.segment_base == segment.base_offset else None
        if known is None or state is None or known.position > segment.size:
            return False
        if not _read_indexes(segment, state) or segment.index is None or segment.times is None:
            return False
        index, times = segment.index, segment.times
        start = index.positions[-1] if len(index) else 0
        first = header_at(segment.open_file(), start, segment.size)
        if len(index) and (first is None or first.last_offset != segment.base_offset + index.offsets[-1]):
            return False
        segment.first_timestamp = state.first_timestamp
        if len(times):
            segment.max_timestamp = times.timestamps[-1]
            segment.max_timestamp_offset = segment.base_offset + times.offsets[-1]
        segment.next_offset = segment.base_offset
        return self._account(start, limit, crc=True)

    def _load_indexes(self) -> bool:
        """Entries from the index files, then a look at the batches behind the last; False when they do not fit."""
        segment, disk = self._segment, self._segment.disk
        stored = read_file(disk, segment.path_of(INDEX))
        stored_times = read_file(disk, segment.path_of(TIME_INDEX))
        if stored is None or stored_times is None:
            return False
        limit = 2**31
        index = decode_offset_index(stored, segment.size, limit)
        times = decode_time_index(stored_times, limit)
        if index is None or times is None:
            return False
        # Kafka preallocates the files of an active segment; what follows the entries is cut off with the next write.
        if len(stored) != len(index) * OFFSET_ENTRY_SIZE:
            index.written = 0
        if len(stored_times) != len(times) * TIME_ENTRY_SIZE:
            times.written = 0
        position = index.positions[-1] if len(index) else 0
        first = header_at(segment.open_file(), position, segment.size)
        if segment.size and first is None:
            return False
        if len(index) and first is not None and first.last_offset != segment.base_offset + index.offsets[-1]:
            return False
        segment.index, segment.times = index, times
        if len(times):
            segment.max_timestamp = times.timestamps[-1]
            segment.max_timestamp_offset = segment.base_offset + times.offsets[-1]
        return self._account(position, NO_LIMIT, crc=False) and times_fit(segment)

    def _account(self, start: int, limit: Limit, *, crc: bool) -> bool:
        """Take the batches from `start` on into the segment's bounds and indexes; False at one that is not sound.

        The batch at `start` has its index entry already, unless that is 0.
        """
        segment = self._segment
        segment.unindexed = 0
        segment.size = start
        if self._account_batches(checked_file(segment), start, limit, crc=crc):
            return True
        segment.size = segment.flushed
        return False

    def _account_batches(self, file: File, start: int, limit: Limit, *, crc: bool) -> bool:
        """Take the batches from `start` on into the segment's bounds and indexes; False at one that is unsound.

        That is also one whose offsets no index can hold.
        What `scan` asks, `Segment.note` and `Walk.see` do, written out: after a kill there is up to a whole journal of
        batches to look at, and clients wait. The bounds are then those of the sound batches.
        """
        segment, interval, walk = self._segment, self._interval, self._walk
        stop, expected, unindexed = segment.flushed, segment.base_offset, segment.unindexed
        latest, latest_offset = segment.max_timestamp, segment.max_timestamp_offset
        position, chunk, chunk_start = start, memoryview(b""), start
        first = -1
        limited, end_offset = limit
        most = segment.base_offset + MAX_RELATIVE
        while position < stop:
            inside = position - chunk_start
            if inside + HEADER_SIZE > len(chunk):
                chunk, chunk_start, inside = (
                    memoryview(file.pread(min(CHUNK_BYTES, stop - position), position)),
                    position,
                    0,
                )
                if len(chunk) < HEADER_SIZE:
                    break
            offset, length, epoch, magic, told, attributes, delta, _, stamp, producer, _, _, count = _unpack(
                chunk, inside
            )
            size = length + LOG_OVERHEAD
            end = position + size
            if size < HEADER_SIZE or magic != MAGIC or end > stop or offset < expected or not 0 <= count <= delta + 1:
                break
            last = offset + delta
            if delta < 0 or last > most or (last >= end_offset and position < limited):
                break
            if crc:
                if inside + size <= len(chunk):
                    found = crc32c(chunk[inside + CRC_START : inside + size])
                else:
                    found = crc_of(file, position + CRC_START, end)
                if found != told:
                    break
            expected = last + 1
            if not position:
                first = stamp
            if stamp > latest and count:
                latest, latest_offset = stamp, expected - 1
            if unindexed > interval:
                segment.max_timestamp, segment.max_timestamp_offset = latest, latest_offset
                segment.add_index_entry(expected - 1, position)
                unindexed = 0
            unindexed += size
            if epoch != walk.epoch and expected > walk.start:
                walk.epoch = epoch
                walk.epochs.append((epoch, max(offset, walk.start)))
            if producer >= 0 or attributes & CONTROL:
                walk.producers = True
                walk.markers = walk.markers or (producer >= 0 and bool(attributes & CONTROL))
            position = end
        if not start and position:
            segment.first_timestamp = first
        segment.size, segment.unindexed = position, unindexed
        if position > start:
            segment.next_offset = expected
        segment.max_timestamp, segment.max_timestamp_offset = latest, latest_offset
        return position == stop


def check_gap(segment: Segment, end: int, following: int, *, needed_from: int) -> None:
    """CorruptLogError unless a segment that ends at `end` may be followed by one that begins at `following`."""
    if end < following and needed_from < following:
        directory, name = posixpath.split(segment.directory)
        gap = gap_behind(segment.disk, directory, name, end, following)
        if gap is not None:
            what = f"it ends at offset {gap[0]}, the next segment begins at {following}"
            raise CorruptLogError(segment.path, segment.size, segment.size, what, gap[0])


def _check_length(segment: Segment) -> None:
    """CorruptLogError when the segment's seal speaks of another length; one that cannot be read says nothing."""
    try:
        segment.load_seal()
    except CorruptLogError:
        raise
    except StorageError:
        return


def _check_sealed(segment: Segment) -> None:
    """CorruptLogError when more was sealed than there is: the end is missing, or the bytes are another log's."""
    try:
        seal = read_growing(segment.disk, segment.path_of(SEALING), MAX_RELATIVE)
    except StorageError:
        return
    if seal is not None and seal.length > segment.size:
        what = f"it has {segment.size} bytes, {seal.length} were sealed"
        raise CorruptLogError(segment.path, segment.size, seal.length, what, segment.base_offset)


def write_indexes(segment: Segment) -> None:
    """The entries in memory into the files: the checkpoint that a start writes speaks of them.

    What else is in the files goes: later writes only ever add.
    """
    for path, position, data in segment.pending_index_writes(final=False):
        if data or _size(segment.disk, path) > position:
            write_end(segment.disk, path, position, data)
    if segment.index is not None and segment.times is not None:
        segment.index.written, segment.times.written = len(segment.index), len(segment.times)


def _is_as_known(segment: Segment, known: LogPoint) -> bool:
    """Whether the files have the sizes that the checkpoint of a clean stop gives them; an empty one needs no sleep."""
    state = known.state
    if state is None or not segment.size or known.segment_base != segment.base_offset or known.position != segment.size:
        return False
    wanted = ((INDEX, state.index_entries * OFFSET_ENTRY_SIZE), (TIME_INDEX, state.time_entries * TIME_ENTRY_SIZE))
    return all(_size(segment.disk, segment.path_of(suffix)) == size for suffix, size in wanted)


def _size(disk: Disk, path: str) -> int:
    """Bytes of a file; 0 when it is not there."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def _read_indexes(segment: Segment, state: ActiveState) -> bool:
    """The index entries that a checkpoint vouches for, into memory; False when the files do not hold them."""
    found = []
    for suffix, count, crc in (
        (INDEX, state.index_entries * OFFSET_ENTRY_SIZE, state.index_crc),
        (TIME_INDEX, state.time_entries * TIME_ENTRY_SIZE, state.time_crc),
    ):
        data = read_file(segment.disk, segment.path_of(suffix)) or b""
        if len(data) < count or crc32c(data[:count]) != crc:
            return False
        if len(data) > count:
            write_end(segment.disk, segment.path_of(suffix), count, b"")
        found.append(data[:count])
    index, times = decode_offset_index(found[0], segment.size, 2**31), decode_time_index(found[1], 2**31)
    if index is None or times is None or (len(index), len(times)) != (state.index_entries, state.time_entries):
        return False
    segment.index, segment.times = index, times
    return True


def times_fit(segment: Segment) -> bool:
    """Whether no time entry lies behind the segment's end."""
    times = segment.times
    return times is None or not len(times) or segment.base_offset + times.offsets[-1] < segment.next_offset


def write_end(disk: Disk, path: str, position: int, data: bytes) -> None:
    """The file ends with these bytes at `position`."""
    file = disk.open(path, create=True, write=True)
    try:
        file.truncate(position)
        if data:
            file.pwritev([data], position)
    finally:
        file.close()
