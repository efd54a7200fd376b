"""Decides what may be removed from a log, and removes it: expiry by time, by size, and records deleted on request.

`removable_before` is the only place that decides. Everything that deletes data below a log start asks it, and it asks
leases, the high watermark and the active segment. Removal is in steps that a crash may separate: the log
start is journaled and durable first, files are renamed, and removed after `file.delete.delay.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from duramen.ports import Disk
from duramen.storage.files.disk_full import retriable_open, retriable_write
from duramen.storage.log.log import Log
from duramen.storage.segment.segment import SUFFIXES, Segment

DELETED_SUFFIX = ".deleted"


def removable_before(log: Log, now_ms: int, high_watermark: int, *, expires: bool = True) -> int:
    """The offset below which whole segments may go; the log's first segment base when none may.

    A segment may go when all of it is below the log start (DeleteRecords), when its greatest timestamp (its last write,
    where no record has one) is older than `retention.ms`, or when the log without it still holds `retention.bytes`.
    Never: what a lease covers, what the high watermark has not passed, or the active segment; with transaction ids
    (`duramen.txid`) not the last segment with records either, which says what the last one was, and age is counted from
    the last write there. Leases that hold back too much are broken. Without `expires` only what is below the log start.
    """
    limits = _limits(log) if expires else (-1, -1)
    free = _removable(log, log.segments[:-1], now_ms, high_watermark, limits)
    leased = log.leased_from(now_ms)
    if leased is None or leased >= free:
        return free
    log.break_greedy_leases(free)
    leased = log.leased_from(now_ms)
    return free if leased is None else _removable(log, log.segments[:-1], now_ms, min(high_watermark, leased), limits)


def _removable(log: Log, segments: Sequence[Segment], now_ms: int, bound: int, limits: tuple[int, int]) -> int:
    """The same of the first segments of a log without a look at leases: those that end at or below `bound`."""
    retention_ms, retention_bytes = limits
    excess = log.size - retention_bytes if retention_bytes >= 0 else -1
    removable = log.segments[0].base_offset
    if log.config.txid != "none" and not log.active.size:
        segments = log.segments[:-2]
    for segment in segments:
        if segment.next_offset > bound:
            break
        expired = _expired(log, segment, now_ms, retention_ms)
        if segment.next_offset <= log.start_offset or expired or segment.size <= excess:
            removable = segment.next_offset
            excess -= segment.size
        else:
            break
    return removable


def active_expired(log: Log, now_ms: int, high_watermark: int) -> bool:
    """Whether the active segment is past `retention.ms`, or nothing may stay at all, so that rolling it lets it go.

    As in Kafka not while an older segment stays (its records are from the future, or a lease has it): each further
    append that expires would leave one more small segment.
    """
    if log.producers.closed_at is not None:
        return False  # the record that closed the log is in it
    if log.config.txid != "none":
        return False  # it says what the last transaction id was
    active = log.active
    limits = retention_ms, retention_bytes = _limits(log)
    goes = retention_bytes == 0 or _expired(log, active, now_ms, retention_ms)
    if active.next_offset == active.base_offset or not goes:
        return False
    leased = log.leased_from(now_ms)
    bound = high_watermark if leased is None else min(high_watermark, leased)
    return _removable(log, log.segments, now_ms, bound, limits) == active.next_offset


def _expired(log: Log, segment: Segment, now_ms: int, retention_ms: int) -> bool:
    """By the greatest timestamp of its records, or where that is no time by when the last one was stored."""
    latest = segment.latest_ms if log.config.txid == "none" else segment.last_stored_ms(now_ms)
    return latest >= 0 and 0 <= retention_ms < now_ms - latest


def _limits(log: Log) -> tuple[int, int]:
    """(retention.ms, retention.bytes), -1 for none. A log that is compacted only, or not configured yet, keeps all."""
    config = log.config
    if "delete" not in config.cleanup_policy:
        return -1, -1
    return config.retention_ms, config.retention_bytes


@dataclass(slots=True)
class RenameSegmentsJob:
    """Gives the files of detached segments their `.deleted` names, oldest first."""

    disk: Disk
    log: Log
    segments: Sequence[Segment]
    delay_ms: int
    done: Callable[[RenameSegmentsJob], None]
    failed: Callable[[RenameSegmentsJob, BaseException], None]
    paths: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Rename; a file that is not there is no error (its topic may have been deleted meanwhile). Can be run again.

        The log is asked where it is for every file: after a deletion its old name may be another topic's.
        """
        for segment in self.segments:
            for suffix in SUFFIXES:
                path = segment.path_of(suffix, self.log.path)
                target = path + DELETED_SUFFIX
                try:
                    with retriable_write():
                        self.disk.rename(path, target)
                except FileNotFoundError:
                    continue
                self.paths.append(target)

    def complete(self) -> None:
        """On the loop: schedule the removal."""
        self.done(self)

    def fail(self, error: BaseException) -> None:
        """On the loop: the disk refused, or has no room for the names."""
        self.failed(self, error)


@dataclass(slots=True, eq=False)
class MoveLogJob:
    """Gives a deleted log's directory its `-delete` name, durably.

    synced_with: entry of the journal whose group syncs the new name before it is written; None: `run` syncs it.
    """

    disk: Disk
    directory: str
    source: str
    target: str
    done: Callable[[], None] = lambda: None
    failed: Callable[[BaseException], None] = lambda error: None
    moved: bool = False
    synced_with: int | None = None

    def rename(self) -> None:
        """Once: the old name may be another topic's by then. NoRoomError: it can be done again. OSError."""
        if not self.moved:
            with retriable_write(), suppress(FileNotFoundError):  # of a log whose directory was gone
                self.disk.rename(self.source, self.target)
            self.moved = True

    def run(self) -> None:
        """Rename, and make that durable. NoRoomError: it can be run again. OSError."""
        with retriable_open():
            self.rename()
            self.disk.sync_directory(self.directory)

    def complete(self) -> None:
        """On the loop: schedule the removal."""
        self.done()

    def fail(self, error: BaseException) -> None:
        """On the loop: the disk refused, or has no room for the name."""
        self.failed(error)


@dataclass(slots=True)
class PendingRemoval:
    """Files or directories to remove from `due_ms` on, once the journal's entry `lsn` is durable."""

    due_ms: int
    paths: list[str]
    segments: Sequence[Segment] = ()
    lsn: int = -1


@dataclass(slots=True)
class RemoveFilesJob:
    """Removes what was renamed a while ago."""

    disk: Disk
    removal: PendingRemoval
    failed: Callable[[BaseException], None]

    def run(self) -> None:
        """Remove every path; one that is gone is no error. Can be run again."""
        for path in self.removal.paths:
            try:
                with retriable_write():
                    self.disk.remove(path)
            except FileNotFoundError:
                continue

    def complete(self) -> None:
        """On the loop: release descriptors."""
        for segment in self.removal.segments:
            segment.forget()

    def fail(self, error: BaseException) -> None:
        """On the loop: the disk refused; the files are removed at the next start."""
        self.complete()
        self.failed(error)
