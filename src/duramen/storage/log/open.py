"""Opening a log: its segments, indexes, epochs and producers from what is in the directory.

Everything but the `.log` files can be missing or damaged, and is then made again from them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from duramen.errors import CorruptLogError, StorageError
from duramen.model import TopicId, TopicPartition
from duramen.ports import Disk
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.journal.journal import LogJournal
from duramen.storage.log.config import LogConfig
from duramen.storage.log.log import Log
from duramen.storage.log.open_segment import SegmentLoader, Walk, check_gap
from duramen.storage.log.snapshot_files import OURS, OURS_OR_KAFKAS
from duramen.storage.log.sync import FlushQueue
from duramen.storage.read.verified_window import VerifiedWindow
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS, EpochCache
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.replacement import NOT_IN_PLACE
from duramen.storage.segment.rollbacks import track_producer
from duramen.storage.segment.scan import scan
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
from duramen.wire.batch import BatchHeader

_BESIDE_A_LOG = frozenset({INDEX, TIME_INDEX, TXN_INDEX, SEAL, SEALING})
_REPLACED_BY_A_SEAL = frozenset({SEALING})
_LEFT_OVER = (DELETED, ".cleaned", ".tmp", ".cut")


def open_log(
    disk: Disk,
    path: str,
    tp: TopicPartition,
    topic_id: TopicId,
    config: LogConfig,
    journal: LogJournal,
    *,
    clean: bool,
    start_offset: int,
    recovery_point: int,
    known: LogPoint | None = None,
    listed: Sequence[int] = (),
    end_offset: int | None = None,
    flush_queue: FlushQueue[Log] | None = None,
    hot: VerifiedWindow | None = None,
) -> Log:
    """The log in an existing directory, whose files end where recovery let them end: at `end_offset`.

    clean: the indexes are believed after a check; else what ends beyond `recovery_point` is read to make them anew,
    but for what the checkpoint's `known` has. listed: bases on the directory's list. OSError, CorruptLogError.
    """
    log = Log(disk, path, tp, topic_id, config, journal, flush_queue, hot)
    LogLoader(log, start_offset, recovery_point, known, listed, end_offset, clean=clean).load()
    return log


class LogLoader:
    """Fills a new Log from its directory; see `open_log`."""

    def __init__(
        self,
        log: Log,
        start_offset: int,
        recovery_point: int,
        known: LogPoint | None,
        listed: Sequence[int],
        end_offset: int | None,
        *,
        clean: bool,
    ) -> None:
        self._log = log
        self._start_offset = start_offset
        self._recovery_point = recovery_point
        self._known = known
        self._listed = listed
        self._end_offset = end_offset
        self._clean = clean
        self._walk = Walk(start_offset)

    def load(self) -> None:
        """See the class. OSError, StorageError, CorruptLogError."""
        log, known, walk, clean = self._log, self._known, self._walk, self._clean
        start_offset, recovery_point, listed = self._start_offset, self._recovery_point, self._listed
        present = _present(log, ours=known is not None, clean=clean)
        bases = sorted(base for base, suffixes in present.items() if LOG in suffixes)
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
                loader = self._loader(segment)
                if not ((clean or later <= recovery_point) and loader.closed_indexes_fit(believed=believed)):
                    # Of Kafka's logs nobody knows whether they ever had what is not there.
                    needed_from = start_offset if known is not None or not clean else later
                    loader.load_rolled(None if clean else known, clean=clean, needed_from=needed_from)
                else:
                    # No list has what is behind the checkpoint, or of a log that was left offline or repaired, or
                    # whose checkpoint is lost, or the list itself: there what is missing is missing, however sound the
                    # seals are.
                    told = clean if known is None else known.state is not None and later <= known.recovery_point
                    told = told and (known is None or len(listed) > 1)  # else it names the last one alone
                    if not told and (seal := segment.load_seal()) is not None:
                        check_gap(segment, seal.last_offset + 1, later, needed_from=start_offset)
                    walk.unread = walk.unread or (known is not None and later > known.recovery_point)
                segment.release_files()
            log.active = log.segments[-1]
            self._loader(log.active).load_active(known, clean=clean, end_offset=self._end_offset)
            for segment in log.segments:
                if segment.size and segment.max_timestamp < 0:
                    segment.stored_ms = log.disk.modified_ms(segment.path)
        is_end_known = self._end_offset is not None if not clean else known is None or not known.is_least
        if not log.active.size and len(log.segments) == 1 and is_end_known:
            # Begun anew at an offset that a batch in front may hold; else there may have been some.
            log.active.next_offset = max(log.active.base_offset, start_offset)
        log.end_offset = log.durable_end = log.recovery_point = log.active.next_offset
        log.recovery_position = log.active.size
        log.start_offset = min(max(start_offset, log.segments[0].base_offset), log.end_offset)
        found = (base for base, suffixes in present.items() if SNAPSHOT in suffixes or PRODUCERS in suffixes)
        snapshots = log.snapshots
        snapshots.offsets = tuple(sorted(found))
        if known is not None and (known.state is None or (clean and known.recovery_point != log.end_offset)):
            known = None
        sound = _check_aborted(log, present, log.end_offset if clean or known is None else known.recovery_point)
        if known is None or known.state is None or known.state.transactions:
            there = sum(TXN_INDEX in suffixes for suffixes in present.values())
            fewer = known is not None and known.state is not None and there < known.state.transactions
            sound = sound and not fewer and not _lost_aborted(log, present)
        # A transaction that ended behind what the side files speak of: only a walk from the first batch knows it all.
        sound = sound and (clean or not walk.markers)
        self._load_state(known, whole=not sound)
        if len(log.producers):
            snapshots.kept = snapshots.offsets  # nobody knows which are synced, and what else they speak of
        if not clean:
            # A stop that died may have left one of the two files there: the next stop has to write both again.
            snapshots.offsets = tuple(offset for offset in snapshots.offsets if offset != log.end_offset)
        log.take_over(log.config)
        log.active.release_files()  # many partitions are opened, few are used: the first append or read opens it again

    def _loader(self, segment: Segment) -> SegmentLoader:
        return SegmentLoader(segment, self._log.config.index_interval_bytes, self._walk)

    def _load_state(self, known: LogPoint | None, *, whole: bool) -> None:
        """Leader epochs and producers: from their files, then from the batches that those do not cover.

        known: where a checkpoint knew them; without it the epoch file covers what lies below the recovery point. After
        an unclean stop everything from there on was walked. After a clean one, and without a checkpoint of ours,
        Kafka's producer snapshots may be used. They know one batch per producer; where ours is lost, and Kafka's is
        left, a client that sends an older batch again would be refused instead of recognised. whole: walk the log from
        its first batch, which makes missing `.txnindex` entries again; of producers the snapshots know more, for
        retention may have taken their batches.
        """
        log, walk, clean = self._log, self._walk, self._clean
        first = log.segments[0].base_offset
        walked_from = log.end_offset if clean else self._recovery_point if known is None else known.recovery_point
        epochs_from = walked_from
        epochs = _read_epochs(log)
        log.epochs = epochs if epochs is not None else EpochCache()
        log.epochs.truncate_from_end(log.end_offset + 1)
        if epochs is None:
            epochs_from = first
            log.epochs.changed = True
        log.snapshots.drop_beyond(log.end_offset)
        log.producers.clear()
        if whole:
            _replay(log, first, first)
            log.producers.clear()
        state = None if known is None else known.state
        # Behind that checkpoint a producer may have come and gone with its batches: only a snapshot knows of it then.
        if known is not None and state is not None and not state.producers and log.start_offset <= known.recovery_point:
            known_to = known.recovery_point
        else:
            kinds = OURS_OR_KAFKAS if clean and known is None else OURS
            known_to = log.snapshots.restore(log.producers, kinds)
            if kinds is OURS_OR_KAFKAS and log.producers.stream is None and known_to >= 0:
                _find_close(log)
        producers_from = max(first, known_to)
        start = min(epochs_from, producers_from)
        for epoch, offset in walk.epochs:  # the journal does not know of those of a page-cache topic
            log.epochs.hold(epoch, offset)
        if start < walked_from or walk.producers or walk.unread:
            _replay(log, start, producers_from)
        log.snapshots.restore_expired(log.producers, known_to, log.start_offset)
        log.producers.committed(log.end_offset)
        _persist(log)


def _replay(log: Log, start: int, producers_from: int) -> None:
    """Walk the headers from an offset on: epochs as the batches have them, producers from their own offset on."""
    for segment in log.segments:
        if segment.next_offset <= start or segment.size == 0:
            continue
        position = segment.position_before(start)
        file = segment.open_file()
        for at, header, ok in scan(file, position, segment.size, crc=False):
            if not ok or header is None:
                raise CorruptLogError(segment.path, at, segment.size, "no batch starts here", segment.base_offset)
            if header.next_offset > log.start_offset:
                log.epochs.hold(header.leader_epoch, max(header.base_offset, log.start_offset))
            if (header.producer_id >= 0 or header.is_control) and header.base_offset >= producers_from:
                data = file.pread(header.size, at) if header.is_control else b""
                track_producer(log.producers, segment, data, header)
        if segment is not log.segments[-1]:
            segment.release_files()


def _find_close(log: Log) -> None:
    """Whether the log's last batch says that it is closed: a snapshot of Kafka's does not."""
    segment = log.active
    start = segment.position_before(max(segment.base_offset, log.end_offset - 1)) if segment.size else 0
    file = segment.open_file()
    last: tuple[int, BatchHeader] | None = None
    for at, header, ok in scan(file, start, segment.size, crc=False):
        if ok and header is not None:
            last = at, header
    if last is not None and last[1].is_control and last[1].producer_id < 0:
        log.producers.take_control(file.pread(last[1].size, last[0]), last[1])


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
    aborted = log.snapshots.aborted_bases()
    if aborted is None:
        return False
    bases = {segment.base_offset for segment in log.segments}
    return any(base in bases and TXN_INDEX not in present[base] for base in aborted)


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
