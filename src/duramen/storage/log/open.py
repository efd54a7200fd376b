"""Opening a log: its segments, indexes, epochs and producers from what is in the directory.

Everything but the `.log` files can be missing or damaged and is then made again from them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from duramen.errors import CorruptLogError, StorageError
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.log.open_segment import Walk, check_gap, closed_indexes_fit, load_active, load_rolled
from duramen.storage.segment.index import StoredOffsetIndex
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, EpochCache
from duramen.storage.segment.producer_snapshot import Home, decode_aborted, decode_kafka, decode_ours
from duramen.storage.segment.producer_state import Producer
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.replacement import NOT_IN_PLACE
from duramen.storage.segment.scan import header_at, scan
from duramen.storage.segment.seal import SEALING, drop_torn
from duramen.storage.segment.segment import (
    DELETED,
    INDEX,
    LOG,
    PRODUCERS,
    SEAL,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    file_name,
    parse_name,
    sealed_sides,
)

if TYPE_CHECKING:
    from duramen.storage.log.log import Log

_BESIDE_A_LOG = frozenset({INDEX, TIME_INDEX, TXN_INDEX, SEAL, SEALING})
_REPLACED_BY_A_SEAL = frozenset({SEALING})
_LEFT_OVER = (DELETED, ".cleaned", ".tmp", ".cut")

SnapshotKind = tuple[str, Callable[[bytes, Home], list[Producer] | None]]

_SNAPSHOT_KINDS: tuple[SnapshotKind, ...] = ((PRODUCERS, decode_ours), (SNAPSHOT, lambda data, _: decode_kafka(data)))
"""Files with producers, best first: ours has five batches of each, Kafka's the last one."""


def load(
    log: Log,
    start_offset: int,
    recovery_point: int,
    known: LogPoint | None,
    listed: Sequence[int],
    end_offset: int | None,
    *,
    clean: bool,
) -> None:
    """Fill a new Log from its directory; see `Log.open`."""
    present = _present(log, ours=known is not None, clean=clean)
    bases = sorted(base for base, suffixes in present.items() if LOG in suffixes)
    walk = Walk(start_offset)
    if not bases:
        log.add_segment(start_offset)
        bases = [start_offset]
        log.disk.sync_directory(log.path)
        log.names_changed = False
    else:
        for base in bases:
            segment = Segment(log.disk, log.path, base, log.open_files)
            segment.size = segment.flushed = segment.synced = segment.open_file().size()
            segment.sealed = SEAL in present.get(base, set())
            segment.release_files()
            log.segments.append(segment)
        for segment, later in zip(log.segments, bases[1:], strict=False):
            segment.next_offset = later
            believed = clean and known is None  # by Kafka, or by a release whose checkpoint is gone
            if not ((clean or later <= recovery_point) and closed_indexes_fit(segment, believed=believed)):
                # Of Kafka's logs nobody knows whether they ever had what is not there.
                needed_from = start_offset if known is not None or not clean else later
                load_rolled(log, segment, None if clean else known, walk, clean=clean, needed_from=needed_from)
            else:
                # No list has what is behind the checkpoint, or of a log that was left offline or repaired, or whose
                # checkpoint is lost, or the list itself: there what is missing is missing, however sound the seals are.
                told = clean if known is None else known.state is not None and later <= known.recovery_point
                told = told and (known is None or len(listed) > 1)  # else it names the last one alone
                if not told and (seal := segment.load_seal()) is not None:
                    check_gap(log, segment, seal.last_offset + 1, later, needed_from=start_offset)
                walk.unread = walk.unread or (known is not None and later > known.recovery_point)
            segment.release_files()
        log.active = log.segments[-1]
        load_active(log, log.active, known, walk, clean=clean, end_offset=end_offset)
        for segment in log.segments:
            if segment.size and segment.max_timestamp < 0:
                segment.stored_ms = log.disk.modified_ms(segment.path)
    log.end_offset = log.durable_end = log.recovery_point = log.active.next_offset
    log.recovery_position = log.active.size
    log.start_offset = min(max(start_offset, log.segments[0].base_offset), log.end_offset)
    found = (base for base, suffixes in present.items() if SNAPSHOT in suffixes or PRODUCERS in suffixes)
    log.snapshots = tuple(sorted(found))
    if known is not None and (known.state is None or (clean and known.recovery_point != log.end_offset)):
        known = None
    sound = _check_aborted(log, present, log.end_offset if clean or known is None else known.recovery_point)
    if known is None or known.state is None or known.state.transactions:
        there = sum(TXN_INDEX in suffixes for suffixes in present.values())
        fewer = known is not None and known.state is not None and there < known.state.transactions
        sound = sound and not fewer and not _lost_aborted(log, present)
    # A transaction that ended behind what the side files speak of: only a walk from the first batch knows it all.
    sound = sound and (clean or not walk.markers)
    load_state(log, known, walk, recovery_point, clean=clean, whole=not sound)
    if len(log.producers):
        log.kept_snapshots = log.snapshots  # nobody knows which are synced, and what else they speak of
    if not clean:
        # A stop that died may have left one of the two files there: the next stop has to write both again.
        log.snapshots = tuple(offset for offset in log.snapshots if offset != log.end_offset)
    log.configure(log.config)
    log.active.release_files()  # many partitions are opened, few are used: the first append or read opens it again


def _present(log: Log, *, ours: bool, clean: bool) -> dict[int, set[str]]:
    """Suffixes by base offset of the files in the directory; what a crash left half-done is removed.

    ours: a checkpoint of ours knows the log, so what was half-compacted at the last clean stop is damage of ours.
    """
    present: dict[int, set[str]] = {}
    removed = False
    for name in log.disk.list_directory(log.path):
        if name.endswith(_LEFT_OVER):
            log.disk.remove(posixpath.join(log.path, name))
            removed = True
        elif name.endswith(".swap") and ours:
            raise CorruptLogError(posixpath.join(log.path, name), 0, 0, NOT_IN_PLACE)
        elif name.endswith(".swap"):
            raise StorageError(
                f"{posixpath.join(log.path, name)}: a compaction was interrupted; start and cleanly stop the Kafka "
                "broker that owns this directory, then try again"
            )
        else:
            parsed = parse_name(name)
            if parsed is not None:
                present.setdefault(parsed[0], set()).add(parsed[1])
    newest = max((base for base, suffixes in present.items() if LOG in suffixes), default=-1)
    for base, suffixes in present.items():
        # A power cut can keep the name of an index and lose that of its segment, or bring back what a seal replaced:
        # compaction changes the segment and its seal only.
        stray = _BESIDE_A_LOG if LOG not in suffixes else _REPLACED_BY_A_SEAL if SEAL in suffixes else frozenset()
        for suffix in sorted(suffixes & stray):
            log.disk.remove(posixpath.join(log.path, file_name(base, suffix)))
            suffixes.discard(suffix)
            removed = True
        if SEALING in suffixes and not (clean and base == newest):  # a clean stop syncs the active segment's
            removed = drop_torn(log.disk, posixpath.join(log.path, file_name(base, SEALING))) or removed
    if removed:
        log.disk.sync_directory(log.path)
    return present


def _check_aborted(log: Log, present: dict[int, set[str]], limit: int) -> bool:
    """Drop `.txnindex` entries from offset `limit` on, or beyond their segment; False when a file was damaged."""
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
        kept = [entry for entry in entries if entry.last_offset < min(segment.next_offset, limit)]
        if len(kept) != len(entries):
            segment.rewrite_aborted(kept)
    return sound


def _lost_aborted(log: Log, present: dict[int, set[str]]) -> bool:
    """Whether a segment that had a `.txnindex` when it was sealed, or at our newest snapshot of producers, has none."""
    for segment in log.segments:
        sides = sealed_sides(segment) if TXN_INDEX not in present.get(segment.base_offset, ()) else None
        if sides is not None and sides.txn_bytes:
            return True
    for offset in reversed(log.snapshots):
        data = read_file(log.disk, posixpath.join(log.path, file_name(offset, PRODUCERS)))
        aborted = None if data is None else decode_aborted(data, Home(log.topic_id, log.tp.partition, offset))
        if aborted is not None:
            bases = {segment.base_offset for segment in log.segments}
            return any(base in bases and TXN_INDEX not in present[base] for base in aborted)
    return False


# ---- epochs and producers --------------------------------------------------------------------------------------


def load_state(log: Log, known: LogPoint | None, walk: Walk, recovery_point: int, *, clean: bool, whole: bool) -> None:
    """Leader epochs and producers: from their files, then from the batches that those do not cover.

    known: where a checkpoint knew them. recovery_point: without that, the epoch file covers what lies below; after an
    unclean stop everything from there on was walked. clean, and no checkpoint of ours: Kafka's producer snapshots may
    be used. They know one batch per producer; where ours is lost, and Kafka's is left, whoever sends an older batch
    again would be refused instead of recognised. whole: walk the log from its first batch, which makes missing
    `.txnindex` entries again; of producers the snapshots know more, for retention may have taken their batches.
    """
    first = log.segments[0].base_offset
    walked_from = log.end_offset if clean else recovery_point if known is None else known.recovery_point
    epochs_from = walked_from
    epochs = _read_epochs(log)
    log.epochs = epochs if epochs is not None else EpochCache()
    log.epochs.truncate_from_end(log.end_offset + 1)
    if epochs is None:
        epochs_from = first
        log.epochs.changed = True
    drop_snapshots_beyond(log)
    log.producers.clear()
    if whole:
        _replay(log, first, first)
        log.producers.clear()
    state = None if known is None else known.state
    # Behind that checkpoint a producer may have come and gone with its batches: only a snapshot knows of it then.
    if known is not None and state is not None and not state.producers and log.start_offset <= known.recovery_point:
        known_to = known.recovery_point
    else:
        known_to = _read_snapshot(log, _SNAPSHOT_KINDS if clean and known is None else _SNAPSHOT_KINDS[:1])
    producers_from = max(first, known_to)
    start = min(epochs_from, producers_from)
    _hold_epochs(log, walk)
    if start < walked_from or walk.producers or walk.unread:
        _replay(log, start, producers_from)
    _restore_gone(log, known_to)
    log.producers.committed(log.end_offset)
    _persist(log)


def _hold_epochs(log: Log, walk: Walk) -> None:
    """Epochs begin where the batches say: the journal does not know of those of a page-cache topic."""
    for epoch, offset in walk.epochs:
        log.epochs.hold(epoch, offset)


def _persist(log: Log) -> None:
    """What was found in the batches alone goes to synced side files: the checkpoint of this start will vouch for it."""
    names_changed = log.epochs.changed
    if log.epochs.changed:
        path = posixpath.join(log.path, LEADER_EPOCHS)
        replace_file(log.disk, path, log.epochs.encode(), durable_name=False)
        log.epochs.changed = False
    for segment in log.segments:
        if segment.aborted_unsynced:
            index = log.disk.open(segment.path_of(TXN_INDEX), write=True)
            try:
                index.sync()
            finally:
                index.close()
            segment.aborted_unsynced = False
            names_changed = True
    if names_changed:
        log.disk.sync_directory(log.path)


def _read_epochs(log: Log) -> EpochCache | None:
    data = read_file(log.disk, posixpath.join(log.path, LEADER_EPOCHS))
    if data is None:
        return None
    try:
        return EpochCache.decode(data)
    except StorageError:
        return None  # a cache of what the batches say: made again


def drop_snapshots_beyond(log: Log) -> None:
    """Snapshots beyond the log's end describe a history that was cut off: they are removed."""
    beyond = [offset for offset in log.snapshots if offset > log.end_offset]
    log.snapshots = tuple(offset for offset in log.snapshots if offset <= log.end_offset)
    for offset in beyond:
        for suffix in (SNAPSHOT, PRODUCERS):
            path = posixpath.join(log.path, file_name(offset, suffix))
            if log.disk.exists(path):
                log.disk.remove(path)
    if beyond:
        log.disk.sync_directory(log.path)


def _read_snapshot(log: Log, kinds: Sequence[SnapshotKind]) -> int:
    """Restore producers from the newest readable snapshot of the best kind; returns the offset it speaks up to, or -1.

    A damaged snapshot of ours is answered by an older one or by the batches, not by Kafka's: that knows one batch of
    each producer, and whoever sends an older one again would be refused instead of recognised.
    """
    for suffix, decode in kinds:
        damaged = False
        for offset in reversed(log.snapshots):
            data = read_file(log.disk, posixpath.join(log.path, file_name(offset, suffix)))
            found = decode(data, Home(log.topic_id, log.tp.partition, offset)) if data is not None else None
            damaged = damaged or (data is not None and found is None)
            if found is not None:
                for producer in found:
                    log.producers.restore(producer)
                return offset
        if damaged:
            break
    return -1


def _restore_gone(log: Log, known_to: int) -> None:
    """Producers whose batches retention took, by a snapshot of Kafka's kind behind `known_to`, where ours is lost."""
    for offset in reversed(log.snapshots):
        if offset <= known_to:
            return
        data = read_file(log.disk, posixpath.join(log.path, file_name(offset, SNAPSHOT)))
        found = None if data is None else decode_kafka(data)
        if found is not None:
            for producer in found:
                if producer.last_offset < log.start_offset and log.producers.get(producer.id) is None:
                    log.producers.restore(producer)
            return


def _replay(log: Log, start: int, producers_from: int) -> None:
    """Walk the headers from an offset on: epochs as the batches have them, and producers from their own offset on."""
    for segment in log.segments:
        if segment.next_offset <= start or segment.size == 0:
            continue
        position = _position_before(segment, start)
        file = segment.open_file()
        for at, header, ok in scan(file, position, segment.size, crc=False):
            if not ok or header is None:
                raise CorruptLogError(segment.path, at, segment.size, "no batch starts here", segment.base_offset)
            if header.next_offset > log.start_offset:
                log.epochs.hold(header.leader_epoch, max(header.base_offset, log.start_offset))
            if header.producer_id >= 0 and header.base_offset >= producers_from:
                data = file.pread(header.size, at) if header.is_control else b""
                log.track_producer(data, header, segment)
        if segment is not log.segments[-1]:
            segment.release_files()


def _position_before(segment: Segment, offset: int) -> int:
    """The start of a batch at or before the one that holds `offset`, by whichever index there is."""
    if offset <= segment.base_offset:
        return 0
    if segment.index is not None:
        return segment.index.position_for(offset - segment.base_offset)
    if not segment.index_entries:
        return 0
    file = segment.open_index_file()
    index = StoredOffsetIndex(lambda position, length: file.pread(length, position), segment.index_entries)
    position = index.position_for(offset - segment.base_offset)
    header = header_at(segment.open_file(), position, segment.size)
    return position if header is not None and header.base_offset <= offset else 0


def load_producers(log: Log) -> None:
    """Producers again, after a cut."""
    log.producers.clear()
    known_to = _read_snapshot(log, _SNAPSHOT_KINDS[:1])  # of Kafka's the last batch of each alone would be known
    producers_from = max(log.segments[0].base_offset, known_to)
    _replay(log, producers_from, producers_from)
    _restore_gone(log, known_to)
    log.producers.committed(log.end_offset)
