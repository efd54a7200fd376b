"""Syncs of one file by several jobs: one after the other, and none after one that failed.

A group commit and a checkpoint may sync the same segment on two threads. The kernel tells of lost pages once: whoever
syncs the file after that is told that all is well, and would take for durable what is on no disk.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple, Protocol

from duramen.ports import File


class SyncHistory:
    """Whether a sync of a file has failed. Any thread."""

    __slots__ = ("_failed", "_lock")

    def __init__(self) -> None:
        self._failed: OSError | None = None
        self._lock = Lock()

    def run(self, file: File) -> None:
        """Sync it. OSError, and from then on always."""
        with self._lock:
            if self._failed is not None:
                raise OSError(self._failed.errno, "an earlier sync of it failed", file.path)
            try:
                file.sync()
            except OSError as error:
                self._failed = error
                raise


class FileSync(NamedTuple):
    """A file that a job is going to sync."""

    file: File
    history: SyncHistory

    def run(self) -> None:
        """Any thread. OSError."""
        self.history.run(self.file)


class Synced(Protocol):
    """What is synced by several jobs: a segment."""

    syncs: SyncHistory | None

    def open_file(self) -> File: ...


def to_sync(segment: Synced) -> FileSync:
    """The segment's file for a job to sync; on the loop. OSError."""
    if segment.syncs is None:
        segment.syncs = SyncHistory()
    return FileSync(segment.open_file(), segment.syncs)
