"""Group commits off the loop, and the callbacks that wait until what was journaled is on stable storage."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.partition import Partition
from duramen.partition.store.disk_full import RETRY_SECONDS, DiskFull
from duramen.partition.store.services import StoreServices
from duramen.ports import Clock
from duramen.storage import JournalGroup, LogDirectory, NoRoomError

Done = Callable[[LogDirectory, JournalGroup, BaseException | None], None]

WhenSynced = Callable[[KafkaError | None], None]
"""Called when it is, or with why it may not be."""


class GroupCommits:
    """Of one store. A group is tried again a little later where the process has too many files open.

    put_off: how many wait for their next try; a stop waits for them.
    """

    def __init__(self, store: StoreServices, disk_full: DiskFull, clock: Clock, done: Done) -> None:
        self.put_off = 0
        self._store = store
        self._disk_full = disk_full
        self._clock = clock
        self._done = done

    def write(self, directory: LogDirectory, group: JournalGroup) -> None:
        """Have it written and synced, then `done`."""
        self._write(directory, group, self._clock.monotonic())

    def _write(self, directory: LogDirectory, group: JournalGroup, started: float) -> None:
        def done(_: Any, error: BaseException | None) -> None:
            # It must not name itself: such a circle keeps the group's records until garbage is collected.
            if isinstance(error, NoRoomError) and directory.journal.failed is None:
                self._put_off(directory, group, started, error)
            else:
                self._store.statistics.committed(self._clock.monotonic() - started)
                self._done(directory, group, error)

        self._store.submit(f"journal:{directory.path}", group.run, done)

    def _put_off(self, directory: LogDirectory, group: JournalGroup, started: float, error: NoRoomError) -> None:
        """It may take long: those that wait for the group are answered that its outcome is unknown."""
        self._disk_full.found_none(directory, error)
        if directory.journal.failed is None:
            self.put_off += 1
            self._clock.call_later(RETRY_SECONDS, partial(self._try_again, directory, group, started))

    def _try_again(self, directory: LogDirectory, group: JournalGroup, started: float) -> None:
        self.put_off -= 1
        if directory.journal.failed is None:
            self._write(directory, group, started)
        self._store.commit_soon()


class SyncWaiters:
    """Callbacks of one store that wait for all that was journaled so far in a directory. Loop thread only."""

    def __init__(self) -> None:
        self._waiting: list[tuple[LogDirectory, int, WhenSynced]] = []

    def wait_for(self, directory: LogDirectory, callback: WhenSynced) -> bool:
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

    def answer_synced(self, failed: LogDirectory | None = None, reason: KafkaError | None = None) -> None:
        """Call back those whose entries are durable, and with the reason those of a directory that failed."""
        waiting, self._waiting = self._waiting, []
        for directory, target, callback in waiting:
            if directory is failed:
                callback(reason)
            elif directory.journal.durable_lsn >= target:
                callback(None)
            else:
                self._waiting.append((directory, target, callback))


class WriteWaiters:
    """Callbacks of one store that wait until page-cache partitions have what was appended to them written."""

    def __init__(self) -> None:
        self._waiting: list[tuple[tuple[Partition, ...], WhenSynced]] = []

    def wait_for(self, partitions: Iterable[Partition], callback: WhenSynced) -> None:
        """Call back after a commit."""
        self._waiting.append((tuple(partitions), callback))

    def answer_written(
        self, unwritten: Container[Partition], failure_of: Callable[[Partition], KafkaError | None]
    ) -> None:
        """Call back those of whose partitions none is left unwritten; with the reason, where a directory failed."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for partitions, callback in waiting:
            failure = next(filter(None, map(failure_of, partitions)), None)
            if failure is None and any(each in unwritten for each in partitions):
                self._waiting.append((partitions, callback))
            else:
                callback(failure)
