"""The truncations of a directory's logs that are under way: files to cut, and producers to read again.

`log/truncation.py` has what is done to each log, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from duramen.errors import CorruptLogError
from duramen.model import LogKey
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.files.sync_history import to_sync
from duramen.storage.journal.journal import Journal, JournaledLog
from duramen.storage.log.log import Log
from duramen.storage.log.producer_rebuild import ProducerRebuild
from duramen.storage.log.truncation import complete_rebuild, complete_truncation, take_rebuild
from duramen.storage.segment.corruption import Findings, damage_of


class RecoveryPoints(Protocol):
    """What a truncation needs of the directory's checkpoints: they may not say that more is synced than there is."""

    def truncated(self, key: LogKey, offset: int, segment_base: int, position: int) -> None: ...

    def begun_anew(self, key: LogKey, offset: int, segment_base: int) -> None: ...


@dataclass(slots=True)
class RebuildJob:
    """Reads what a log knows of its producers: `run` on any thread, then `complete` or `fail` on the loop."""

    truncations: Truncations
    log: Log
    rebuild: ProducerRebuild

    def run(self) -> None:
        """Read it. NoRoomError, OSError, CorruptLogError."""
        self.rebuild.run()

    def complete(self) -> None:
        """The log takes it over; once more where a compaction renamed what was read."""
        if self.truncations.knows(self.log) and not complete_rebuild(self.log, self.rebuild):
            self.truncations.rebuild_later(self.log)

    def fail(self, error: BaseException) -> None:
        """As `complete` where it was overtaken or found no room; damage is told, and the log takes no appends."""
        self.truncations.rebuild_failed(self.log, error, overtaken=self.rebuild.overtaken)


class Truncations:
    """The truncations of a directory that are not over; loop thread only.

    Files have still to be cut, or producers to be rebuilt.
    """

    def __init__(
        self, journal: Journal, points: RecoveryPoints, logs: Mapping[LogKey, Log], findings: Findings
    ) -> None:
        self._journal = journal
        self._points = points
        self._logs = logs
        self._findings = findings
        self._waiting: list[tuple[int, LogKey]] = []
        self._unread: list[LogKey] = []
        self.on_cut: Callable[[LogKey, int], None] = lambda key, offset: None
        """Files were cut, where, or at -1 of a log that begins anew; no checkpoint speaks of that yet."""

    @property
    def waiting(self) -> bool:
        """Whether a log's files have still more than the log."""
        return bool(self._waiting)

    def journaled(self, log: JournaledLog, offset: int, segment_base: int, position: int) -> None:
        """The entry of a truncation was queued."""
        key = (log.topic_id, log.tp.partition)
        self._points.truncated(key, offset, segment_base, position)
        self._waiting.append((self._journal.last_lsn, key))
        self._unread.append(key)

    def knows(self, log: Log) -> bool:
        """Whether the log is in use."""
        return self._logs.get((log.topic_id, log.tp.partition)) is log

    def take_rebuilds(self) -> list[RebuildJob]:
        """Jobs that read what is known of producers behind truncations; one for each log at a time."""
        if not self._unread or self._journal.failed is not None:
            return []
        jobs = []
        due, self._unread = self._unread, []
        for key in due:
            log = self._logs.get(key)
            rebuild = None if log is None else take_rebuild(log)
            if log is not None and rebuild is not None:
                jobs.append(RebuildJob(self, log, rebuild))
        return jobs

    def rebuild_later(self, log: Log) -> None:
        """By another job."""
        self._unread.append((log.topic_id, log.tp.partition))

    def rebuild_failed(self, log: Log, error: BaseException, *, overtaken: bool) -> None:
        """See RebuildJob. A disk that cannot be read is fenced."""
        if not self.knows(log):
            return
        if overtaken or isinstance(error, NoRoomError):
            self.rebuild_later(log)
        elif isinstance(error, CorruptLogError):
            self._findings.add(damage_of(error))
        else:
            self._journal.fail(None, error)

    def finish(self) -> None:
        """The same here and now, before a clean stop, when no job is running. OSError.

        Where damage is in the way the next start has to find them out.
        """
        for log in self._logs.values():
            rebuild = take_rebuild(log)
            if rebuild is not None:
                with suppress(CorruptLogError):
                    rebuild.run()
                    complete_rebuild(log, rebuild)
        self._unread.clear()

    def begun_anew(self, log: JournaledLog, offset: int, segment_base: int) -> None:
        """The entry that drops all of a log was queued: the same way, for its files go when that is durable."""
        key = (log.topic_id, log.tp.partition)
        self._points.begun_anew(key, offset, segment_base)
        self._waiting.append((self._journal.last_lsn, key))

    def nobody_writes(self) -> None:
        """No job is running any more: what is not accounted for holds no truncation up."""
        for _, key in self._waiting:
            if key in self._logs:
                self._logs[key].writers.clear()

    def carry_out(self) -> None:
        """Cut the files of truncations whose entries are durable; the next group syncs them before all else.

        So what the journal has of a log behind a truncation was written over a file that ends there on the disk, too.
        Not of a log beside which a job writes (`Log.writers`). OSError: the directory is fenced.
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
            anew = log.pending_truncation is not None and log.pending_truncation.anew
            try:
                complete_truncation(log)
            except OSError as error:
                self._journal.fail(None, error)
                raise
            self._journal.sync_before_next(to_sync(log.active), log.path)
            self.on_cut((log.topic_id, log.tp.partition), -1 if anew else log.end_offset)
