"""Callbacks that wait until all that was journaled so far in a log directory is on stable storage."""

from __future__ import annotations

from collections.abc import Callable

from duramen.errors import ErrorCode, KafkaError
from duramen.storage import LogDirectory

WhenSynced = Callable[[KafkaError | None], None]
"""Told that it is, or why it may not be."""


class Synced:
    """Of one store. Loop thread only."""

    def __init__(self) -> None:
        self._waiting: list[tuple[LogDirectory, int, WhenSynced]] = []

    def when(self, directory: LogDirectory, callback: WhenSynced) -> bool:
        """Call back now, or later: whether it is later, so that a commit is wanted."""
        journal = directory.journal
        if journal.failed is not None:
            callback(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path} failed earlier"))
        elif journal.refuses:
            callback(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path} has no room"))
        elif journal.durable_lsn >= journal.last_lsn:
            callback(None)
        else:
            self._waiting.append((directory, journal.last_lsn, callback))
            return True
        return False

    def answer(self, failed: LogDirectory | None = None, reason: KafkaError | None = None) -> None:
        """Call back those whose entries are durable, and with the reason those of a directory that failed."""
        waiting, self._waiting = self._waiting, []
        for directory, target, callback in waiting:
            if directory is failed:
                callback(reason)
            elif directory.journal.durable_lsn >= target:
                callback(None)
            else:
                self._waiting.append((directory, target, callback))
