"""Syncs a producer snapshot before retention takes the batches that its state could be read from.

The side files of a roll are not synced: a power cut may take them, and they are then made again from the batches. What
retention or DeleteRecords removes can no longer be read, and a producer that is forgotten has its retry stored twice.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from duramen.storage.files.atomic import replace_file
from duramen.storage.files.disk_full import retriable_open
from duramen.storage.log.log import Log
from duramen.storage.log.sidecars import encode_snapshot
from duramen.storage.segment.segment import file_name


class ProducerSnapshotJob:
    """Writes and syncs a producer snapshot at the end the log has when this is made; then `done(end)`, on the loop.

    Not while a checkpoint is about to write the same files (`writes_snapshot`), which would not be synced then.

    A start reads it where the log ends no earlier: a power cut must not take records below that end from then on.
    """

    __slots__ = ("_done", "_failed", "_files", "_log", "_offset", "_truncations")

    def __init__(self, log: Log, done: Callable[[int], None], failed: Callable[[BaseException], None]) -> None:
        self._log = log
        self._offset = log.end_offset
        self._truncations = log.truncations
        self._files = encode_snapshot(log)
        self._done = done
        self._failed = failed
        log.snapshots.writing = self._offset

    def run(self) -> None:
        """All or nothing for each file; nothing where the log was cut meanwhile."""
        self._log.writers[self] = None  # first: what cuts the files looks for this behind the count of cuts
        if self._truncations != self._log.truncations:
            return
        with retriable_open():
            for suffix, data in self._files:
                replace_file(self._log.disk, self._path(suffix), data, durable_name=False)
            self._log.disk.sync_directory(self._log.path)

    def _path(self, suffix: str) -> str:
        return posixpath.join(self._log.path, file_name(self._offset, suffix))

    def complete(self) -> None:
        """The files stay until others like them are there; where the log was cut meanwhile they go with its end."""
        self._end()
        if self._truncations == self._log.truncations:
            self._log.snapshots.keep(self._offset, self._log.durable_end)
            self._done(self._offset)

    def fail(self, error: BaseException) -> None:
        """The log was deleted meanwhile, there is no room, or the disk failed."""
        self._end()
        if not isinstance(error, FileNotFoundError):
            self._failed(error)

    def _end(self) -> None:
        self._log.writers.pop(self, None)
        if self._log.snapshots.writing == self._offset:
            self._log.snapshots.writing = -1
