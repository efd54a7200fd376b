"""Opening a log: its segments, indexes, epochs and producers from what is in the directory; and cutting it.

Everything but the `.log` files can be missing or damaged and is then made again from them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from duramen.errors import CorruptLogError, StorageError
from duramen.storage.checkpoints import LEADER_EPOCHS, read_file
from duramen.storage.epochs import EpochCache
from duramen.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, decode_offset_index, decode_time_index
from duramen.storage.producer_files import decode_aborted, decode_kafka, decode_ours
from duramen.storage.producers import Producer
from duramen.storage.scan import scan
from duramen.storage.segment import (
    DELETED,
    INDEX,
    LOG,
    PRODUCERS,
    SEAL,
    SNAPSHOT,
    SUFFIXES,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    file_name,
    parse_name,
)

if TYPE_CHECKING:
    from duramen.storage.log import Log

_LEFT_OVER = (DELETED, ".cleaned", ".tmp")

SnapshotKind = tuple[str, Callable[[bytes], list[Producer] | None]]

_SNAPSHOT_KINDS: tuple[SnapshotKind, ...] = ((PRODUCERS, decode_ours), (SNAPSHOT, decode_kafka))
"""Files with producers, best first: ours has five batches of each, Kafka's the last one."""


def load(log: Log, *, clean: bool, start_offset: int, recovery_point: int) -> None:
    """Fill a new Log from its directory; see `Log.open`."""
    present = _present(log)
    bases = sorted(base for base, suffixes in present.items() if LOG in suffixes)
    if not bases:
        log.add_segment(start_offset)
        bases = [start_offset]
        log.disk.sync_directory(log.path)
        log.names_changed = False
    else:
        for base in bases:
            segment = Segment(log.disk, log.path, base)
            segment.size = segment.flushed = segment.synced = segment.open_file().size()
            segment.sealed = SEAL in present.get(base, set())
            log.segments.append(segment)
        for segment, later in zip(log.segments, bases[1:], strict=False):
            segment.next_offset = later
            _load_closed(log, segment, trusted=clean or later <= recovery_point)
            segment.release_files()
        active = log.segments[-1]
        log.active = active
        _load_active(log, active, trusted=clean)
    log.end_offset = log.durable_end = log.recovery_point = log.active.next_offset
    log.start_offset = min(max(start_offset, log.segments[0].base_offset), log.end_offset)
    sound = _check_aborted(log, present)
    log.snapshots = sorted(base for base, suffixes in present.items() if SNAPSHOT in suffixes or PRODUCERS in suffixes)
    sound = sound and not _lost_aborted(log, present) and (clean or not _has_markers(log, recovery_point))
    load_state(log, epochs_from=log.end_offset if clean else recovery_point, clean=clean, whole=not sound)
    log.configure(log.config)
    log.active.release_files()  # many partitions are opened, few are used: the first append or read opens it again


def _present(log: Log) -> dict[int, set[str]]:
    """Suffixes by base offset of the files in the directory; what a crash left half-done is removed."""
    present: dict[int, set[str]] = {}
    removed = False
    for name in log.disk.list_directory(log.path):
        if name.endswith(_LEFT_OVER):
            log.disk.remove(posixpath.join(log.path, name))
            removed = True
        elif name.endswith(".swap"):
            raise StorageError(
                f"{posixpath.join(log.path, name)}: a compaction was interrupted; start and cleanly stop the Kafka "
                "broker that owns this directory, then try again"
            )
        else:
            parsed = parse_name(name)
            if parsed is not None:
                present.setdefault(parsed[0], set()).add(parsed[1])
    if removed:
        log.disk.sync_directory(log.path)
    return present


def _check_aborted(log: Log, present: dict[int, set[str]]) -> bool:
    """Drop `.txnindex` entries beyond their segment; False when a file was damaged and has to be made again."""
    sound = True
    for segment in log.segments:
        if TXN_INDEX not in present.get(segment.base_offset, ()):
            continue
        try:
            entries = segment.aborted()
        except CorruptLogError:
            sound = False
            segment.rewrite_aborted([])
            continue
        kept = [entry for entry in entries if entry.last_offset < segment.next_offset]
        if len(kept) != len(entries):
            segment.rewrite_aborted(kept)
    return sound


def _lost_aborted(log: Log, present: dict[int, set[str]]) -> bool:
    """Whether a segment that had a `.txnindex` at the newest producer snapshot of ours has none any more."""
    for offset in reversed(log.snapshots):
        data = read_file(log.disk, posixpath.join(log.path, file_name(offset, PRODUCERS)))
        if data is not None and decode_ours(data) is not None:
            bases = {segment.base_offset for segment in log.segments}
            return any(base in bases and TXN_INDEX not in present[base] for base in decode_aborted(data))
    return False


def _has_markers(log: Log, recovery_point: int) -> bool:
    """Whether a transaction ends in a segment whose side files recovery did not trust."""
    for segment in log.segments:
        if segment.next_offset > recovery_point and segment.size:
            for _, header, ok in scan(segment.open_file(), 0, segment.size, crc=False):
                if ok and header is not None and header.is_control and header.producer_id >= 0:
                    return True
            if segment is not log.active:
                segment.release_files()
    return False


# ---- segments --------------------------------------------------------------------------------------------------


def _load_closed(log: Log, segment: Segment, *, trusted: bool) -> None:
    """Bounds of a rolled segment; its indexes stay in their files unless they have to be made again."""
    if trusted and _closed_indexes_fit(segment):
        return
    _rebuild(log, segment)
    for path, _, data in segment.pending_index_writes(final=True):
        _write(log, path, data)
    segment.close_indexes()


def _closed_indexes_fit(segment: Segment) -> bool:
    """Whether the index files can be those of the segment, by their sizes and last entries; takes over the bounds."""
    disk = segment.disk
    if not disk.exists(segment.path_of(INDEX)) or not disk.exists(segment.path_of(TIME_INDEX)):
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


def _load_active(log: Log, segment: Segment, *, trusted: bool) -> None:
    """The last segment: its indexes into memory, and the batches behind their last entry accounted for."""
    if segment.sealed:
        segment.drop_seal()
    if not trusted or not _load_indexes(log, segment):
        _rebuild(log, segment)
    if segment.size:
        for _, header, _ in scan(segment.open_file(), 0, segment.size, crc=False):
            if header is not None:
                segment.first_timestamp = header.max_timestamp
            break


def _load_indexes(log: Log, segment: Segment) -> bool:
    """Entries from the index files, then a look at the batches behind the last; False when they do not fit."""
    stored = read_file(log.disk, segment.path_of(INDEX))
    stored_times = read_file(log.disk, segment.path_of(TIME_INDEX))
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
    expected = -1
    for _, header, ok in scan(segment.open_file(), position, segment.size, crc=False):
        if not ok or header is None:
            return False
        if expected < 0 and len(index) and header.last_offset != segment.base_offset + index.offsets[-1]:
            return False
        expected = header.next_offset
        break
    if segment.size and expected < 0:
        return False
    segment.index, segment.times = index, times
    if len(times):
        segment.max_timestamp = times.timestamps[-1]
        segment.max_timestamp_offset = segment.base_offset + times.offsets[-1]
    return _account(log, segment, position, crc=False) and times_fit(segment)


def times_fit(segment: Segment) -> bool:
    """Whether no time entry lies behind the segment's end."""
    times = segment.times
    return times is None or not len(times) or segment.base_offset + times.offsets[-1] < segment.next_offset


def _account(log: Log, segment: Segment, start: int, *, crc: bool) -> bool:
    """Take the batches from `start` on into the segment's bounds and indexes; False at one that is not sound.

    The batch at `start` has its index entry already, unless that is 0.
    """
    size = segment.flushed
    segment.unindexed = 0
    interval = log.config.index_interval_bytes
    segment.size = start
    for position, header, ok in scan(segment.open_file(), start, size, expect_offset=segment.base_offset, crc=crc):
        if not ok or header is None:
            segment.size = size
            return False
        segment.note(header, position, interval)
    return segment.size == size


def _rebuild(log: Log, segment: Segment) -> None:
    """Read the whole segment, check it and make its indexes again. CorruptLogError."""
    segment.activate()
    segment.max_timestamp, segment.max_timestamp_offset = -1, segment.base_offset
    closed_end = segment.next_offset
    segment.next_offset = segment.base_offset
    size = segment.flushed
    reached = segment.base_offset
    position = 0
    interval = log.config.index_interval_bytes
    segment.size = segment.unindexed = 0
    for position, header, ok in scan(segment.open_file(), 0, size, expect_offset=segment.base_offset):
        if not ok or header is None:
            segment.size = size
            end = size if header is None else min(size, position + header.size)
            raise CorruptLogError(segment.path, position, end, "a batch's header or CRC is wrong", reached)
        segment.note(header, position, interval)
        reached = segment.next_offset
    if closed_end > segment.base_offset:
        if reached > closed_end:
            raise CorruptLogError(segment.path, position, size, "it overlaps the next segment", closed_end)
        segment.next_offset = closed_end


def _write(log: Log, path: str, data: bytes) -> None:
    file = log.disk.open(path, create=True, write=True)
    try:
        file.truncate(0)
        if data:
            file.pwritev([data], 0)
    finally:
        file.close()


# ---- epochs and producers --------------------------------------------------------------------------------------


def load_state(log: Log, *, epochs_from: int, clean: bool, whole: bool) -> None:
    """Leader epochs and producers: from their files, then from the batches that those do not cover.

    epochs_from: everything below is covered by the epoch file, if that can be read. clean: Kafka's producer snapshots
    may be used. They know one batch per producer; after a power cut one may be left where ours is lost, and whoever
    then sends an older batch again would be refused instead of recognised. whole: walk the log from its first batch,
    which also makes missing `.txnindex` entries again.
    """
    epochs = _read_epochs(log)
    log.epochs = epochs if epochs is not None else EpochCache()
    log.epochs.truncate_from_end(log.end_offset + 1)
    if epochs is None:
        epochs_from = log.segments[0].base_offset
        log.epochs.changed = True
    producers_from = _read_snapshot(log, _SNAPSHOT_KINDS if clean else _SNAPSHOT_KINDS[:1])
    if whole:
        log.producers.clear()
        producers_from = log.segments[0].base_offset
    _replay(log, min(epochs_from, producers_from), producers_from)
    log.producers.map_end = log.end_offset
    log.producers.committed(log.end_offset)


def _read_epochs(log: Log) -> EpochCache | None:
    data = read_file(log.disk, posixpath.join(log.path, LEADER_EPOCHS))
    if data is None:
        return None
    try:
        return EpochCache.decode(data)
    except StorageError:
        return None  # a cache of what the batches say: made again


def _read_snapshot(log: Log, kinds: Sequence[SnapshotKind]) -> int:
    """Restore producers from the newest readable snapshot of the best kind; returns the offset up to which it speaks.

    Snapshots beyond the log's end describe a history that was cut off: they are removed.
    """
    log.producers.clear()
    beyond = [offset for offset in log.snapshots if offset > log.end_offset]
    for offset in beyond:
        log.snapshots.remove(offset)
        for suffix in (SNAPSHOT, PRODUCERS):
            path = posixpath.join(log.path, file_name(offset, suffix))
            if log.disk.exists(path):
                log.disk.remove(path)
    if beyond:
        log.disk.sync_directory(log.path)
    for suffix, decode in kinds:
        for offset in reversed(log.snapshots):
            data = read_file(log.disk, posixpath.join(log.path, file_name(offset, suffix)))
            found = decode(data) if data is not None else None
            if found is not None:
                for producer in found:
                    log.producers.restore(producer)
                return offset
    return log.segments[0].base_offset


def _replay(log: Log, start: int, producers_from: int) -> None:
    """Walk the headers from an offset on: epochs that are missing, and producers from their own offset on."""
    for segment in log.segments:
        if segment.next_offset <= start or segment.size == 0:
            continue
        position = 0
        if start > segment.base_offset and segment.index is not None:
            position = segment.index.position_for(start - segment.base_offset)
        file = segment.open_file()
        for at, header, ok in scan(file, position, segment.size, crc=False):
            if not ok or header is None:
                raise CorruptLogError(segment.path, at, segment.size, "no batch starts here", segment.base_offset)
            if header.base_offset >= start and header.leader_epoch > log.epochs.latest:
                log.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0 and header.base_offset >= producers_from:
                data = file.pread(header.size, at) if header.is_control else b""
                log.track_producer(data, header, segment)
        if segment is not log.segments[-1]:
            segment.release_files()


# ---- cutting ---------------------------------------------------------------------------------------------------


def truncate(log: Log, offset: int) -> None:
    """Remove the batches that hold `offset` or follow it, with everything that speaks of them. OSError."""
    while len(log.segments) > 1 and log.segments[-1].base_offset >= offset:
        segment = log.segments.pop()
        segment.close()
        for suffix in SUFFIXES:
            path = segment.path_of(suffix)
            if log.disk.exists(path):
                log.disk.remove(path)
    active = log.active = log.segments[-1]
    file = active.open_file()
    cut = active.size
    for position, header, ok in scan(file, _search_from(active, offset), active.flushed, crc=False):
        if not ok or header is None:
            raise CorruptLogError(active.path, position, active.size, "no batch starts here", offset)
        if header.next_offset > offset:
            cut = position
            break
    active.drop_seal()
    aborted = active.aborted()
    file.truncate(cut)
    active.size = active.flushed = cut
    active.synced = min(active.synced, cut)
    active.index_file = None
    _rebuild_bounds(log, active)
    log.end_offset = active.next_offset
    kept = [entry for entry in aborted if entry.last_offset < log.end_offset]
    if len(kept) != len(aborted):
        active.rewrite_aborted(kept)
    log.names_changed = True
    log.epochs.truncate_from_end(log.end_offset)
    load_producers(log)


def _search_from(segment: Segment, offset: int) -> int:
    return segment.index.position_for(offset - segment.base_offset) if segment.index is not None else 0


def _rebuild_bounds(log: Log, segment: Segment) -> None:
    """Indexes and bounds of a segment that was cut, from its bytes."""
    segment.next_offset = segment.base_offset
    segment.index_entries = segment.time_entries = 0
    _rebuild(log, segment)
    for path, _, data in segment.pending_index_writes(final=False):
        _write(log, path, data)
    if segment.index is not None and segment.times is not None:
        segment.index.written, segment.times.written = len(segment.index), len(segment.times)


def load_producers(log: Log) -> None:
    """Producers again, after a cut."""
    producers_from = _read_snapshot(log, _SNAPSHOT_KINDS)
    _replay(log, producers_from, producers_from)
    log.producers.map_end = log.end_offset
    log.producers.committed(log.end_offset)
