"""Truncation: first memory and the journal, then, when the journal's entry is durable, the files.

A crash before that finds the log as it was. The files are synced before anything journaled behind the truncation, so
bytes that were cut off are never taken for those that came later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from duramen.errors import CorruptLogError, check
from duramen.model import LogKey
from duramen.storage.files.sync_history import to_sync
from duramen.storage.journal import kinds
from duramen.storage.log.open import drop_snapshots_beyond, load_producers
from duramen.storage.log.open_segment import Walk, rebuild, write_indexes
from duramen.storage.read.log_reader import segment_number
from duramen.storage.segment.producer_state import AbortedTransaction
from duramen.storage.segment.scan import NO_END, Limit, scan
from duramen.storage.segment.segment import PRODUCERS, SNAPSHOT, SUFFIXES, Segment, parse_name

if TYPE_CHECKING:
    from duramen.storage.journal.journal import Journal, JournaledLog
    from duramen.storage.log.log import Log


class Cut(NamedTuple):
    """A truncation that memory knows of and the files do not: whole segments to remove, and the place in the last."""

    removed: list[Segment]
    segment: Segment
    position: int
    aborted: list[AbortedTransaction] | None


def end_mark(log: Log) -> None:
    """The journal is about to speak of a place in a page-cache log: without the checkpoint all before it would pass for
    synced. The next append makes a mark behind that.
    """
    if log.marked:
        log.marked = False
        if log.recovery_point < log.end_offset:
            point = log.recovery_point
            base = log.segments[segment_number(log.segments, point)].base_offset
            position = 0 if base == point else log.recovery_position  # the sync may have been that of the one before
            log.journal.append(kinds.DURABILITY, log, point, log.epochs.latest, base, position)


def cut_memory(log: Log, offset: int) -> Cut:
    """Forget the batches that hold `offset` or follow it. The files stay as they are until `cut_files`. OSError."""
    end_mark(log)
    keep = len(log.segments)
    while keep > 1 and log.segments[keep - 1].base_offset >= offset:
        keep -= 1
    active = log.segments[keep - 1]
    position = active.size
    for at, header, ok in scan(active.open_file(), _search_from(active, offset), active.flushed, crc=False):
        if not ok or header is None:
            raise CorruptLogError(active.path, at, active.size, "no batch starts here", offset)
        if header.next_offset > offset:
            position = at
            break
    aborted = active.aborted()
    removed = log.segments[keep:]
    del log.segments[keep:]
    log.active = active
    active.seal = None
    active.written_sums = None
    active.sealed = False
    active.size = active.flushed = position
    active.synced = min(active.synced, position) - 1  # the cut itself is to be synced, too
    active.index_file = None
    active.next_offset = active.base_offset
    active.index_entries = active.time_entries = 0
    rebuild(log, active, Walk(), Limit(NO_END, offset))
    log.end_offset = active.next_offset
    kept = [entry for entry in aborted if entry.last_offset < log.end_offset]
    log.epochs.truncate_from_end(log.end_offset)
    snapshots = log.snapshots  # without one that a start believed, and that is to be written again
    log.snapshots = tuple(each for each in sorted({*snapshots, *log.kept_snapshots}) if each <= log.end_offset)
    load_producers(log)
    log.snapshots = snapshots
    is_unsynced = active.aborted_unsynced
    active.take_aborted(kept)
    active.aborted_unsynced = is_unsynced
    log.kept_snapshots = tuple(each for each in log.kept_snapshots if each <= log.end_offset)
    log.cuts += 1
    log.durable_end = min(log.durable_end, log.end_offset)
    if log.end_offset <= log.recovery_point:
        log.recovery_point, log.recovery_position = log.end_offset, position
    log.start_offset = min(log.start_offset, log.end_offset)
    return Cut(removed, active, position, kept if len(kept) != len(aborted) else None)


def cut_files(log: Log, cut: Cut) -> None:
    """Bring the files to where `cut_memory` left the log; the caller has them synced. OSError.

    Not while there are `writers`: what they know from before would appear behind the cut.
    """
    check(not log.writers, "a truncation waits for whoever writes beside the log")
    for segment in reversed(cut.removed):
        segment.forget()  # somebody may be about to seal it, or send from it
        for suffix in SUFFIXES:
            path = segment.path_of(suffix)
            if log.disk.exists(path):
                log.disk.remove(path)
    active = cut.segment
    active.drop_seal()
    file = active.open_file()
    file.truncate(cut.position)
    if active.index is not None and active.times is not None:
        active.index.written = active.times.written = 0
    write_indexes(log, active)
    if cut.aborted is not None:
        active.rewrite_aborted(cut.aborted)
    names = map(parse_name, log.disk.list_directory(log.path))  # a start may not have believed all that it found
    log.snapshots = tuple(sorted({name[0] for name in names if name is not None and name[1] in (SNAPSHOT, PRODUCERS)}))
    drop_snapshots_beyond(log)
    log.names_changed = True


def _search_from(segment: Segment, offset: int) -> int:
    return segment.index.position_for(offset - segment.base_offset) if segment.index is not None else 0


class RecoveryPoints(Protocol):
    """What a truncation needs of the directory's checkpoints: they may not say that more is synced than there is."""

    def cut(self, key: LogKey, offset: int, segment_base: int, position: int) -> None: ...


class Truncations:
    """The truncations of a directory whose files have still to be cut; loop thread only."""

    def __init__(self, journal: Journal, points: RecoveryPoints, logs: Mapping[LogKey, Log]) -> None:
        self._journal = journal
        self._points = points
        self._logs = logs
        self._waiting: list[tuple[int, LogKey]] = []

    @property
    def waiting(self) -> bool:
        """Whether a log's files have still more than the log."""
        return bool(self._waiting)

    def journaled(self, log: JournaledLog, offset: int, segment_base: int, position: int) -> None:
        """The entry of a truncation was queued."""
        key = (log.topic_id, log.tp.partition)
        self._points.cut(key, offset, segment_base, position)
        self._waiting.append((self._journal.last_lsn, key))

    def nobody_writes(self) -> None:
        """No job is running any more: what is not accounted for holds no truncation up."""
        for _, key in self._waiting:
            if key in self._logs:
                self._logs[key].writers.clear()

    def carry_out(self) -> None:
        """Cut the files of truncations whose entries are durable; the next group syncs them before all else.

        So what the journal has of a log behind a truncation was written over a file that ends there on the disk, too.
        Not of a log beside which a job writes (`LogState.writers`). OSError: the directory is fenced.
        """
        if not self._waiting or self._journal.failed is not None:
            return
        durable = self._journal.durable_lsn
        waiting, due = [], []
        for lsn, key in self._waiting:
            log = self._logs.get(key)
            if lsn > durable or (log is not None and log.writers):
                waiting.append((lsn, key))
            elif log is not None:
                due.append(log)
        self._waiting = waiting
        for log in due:
            try:
                log.complete_cut()
            except OSError as error:
                self._journal.fail(None, error)
                raise
            self._journal.sync_before_next(to_sync(log.active), log.path)
