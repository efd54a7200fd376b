"""Truncation: first memory and the journal, then, when the journal's entry is durable, the files.

A crash before that finds the log as it was. The files are synced before anything journaled behind the truncation, so
bytes that were cut off are never taken for those that came later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from duramen.model import LogKey
from duramen.storage.files.sync_history import to_sync

if TYPE_CHECKING:
    from duramen.storage.journal.journal import Journal, JournaledLog
    from duramen.storage.log.log import Log


class RecoveryPoints(Protocol):
    """What a truncation needs of the directory's checkpoints: they may not say that more is synced than there is."""

    def truncated(self, key: LogKey, offset: int, segment_base: int, position: int) -> None: ...


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
        self._points.truncated(key, offset, segment_base, position)
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
                log.complete_truncation()
            except OSError as error:
                self._journal.fail(None, error)
                raise
            self._journal.sync_before_next(to_sync(log.active), log.path)
