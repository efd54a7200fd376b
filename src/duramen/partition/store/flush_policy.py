"""Syncs of page-cache topics that `flush.messages` and `flush.ms` ask for: off the loop, one of a partition at a time.

They bound what a power cut may take; no producer waits for them (`marker_syncs.py` does). Stable topics, which lose
nothing, get none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from duramen.partition.replica.partition import Partition
from duramen.partition.store.disk_full import DiskFull
from duramen.partition.store.services import StoreServices
from duramen.ports import Clock, Timer
from duramen.storage import NoRoomError, complete_sync, give_back_sync, take_sync

NEVER_MS = 1 << 41
"""Seventy years: a `flush.ms` of this or more (Kafka's default) asks for nothing."""


class FlushPolicy:
    """The extra syncs of one store."""

    def __init__(self, store: StoreServices, disk_full: DiskFull, clock: Clock) -> None:
        self._store = store
        self._disk_full = disk_full
        self._clock = clock
        self._timers: dict[Partition, Timer] = {}
        self._syncing: dict[Partition, None] = {}
        self._stopped = False
        self.on_synced: Callable[[Partition], None] = lambda partition: None
        """Called when a sync of a partition is over, however it ended."""

    def is_syncing(self, partition: Partition) -> bool:
        """Whether one is under way."""
        return partition in self._syncing

    def appended(self, partition: Partition) -> None:
        """Something was written to a page-cache partition: sync it now, later or not at all."""
        log, config = partition.log, partition.config
        unsynced = log.end_offset - log.recovery_point
        if unsynced <= 0 or partition in self._syncing or self._stopped:
            return
        if unsynced >= config.flush_messages:
            self.sync(partition)
        elif config.flush_ms < NEVER_MS and partition not in self._timers:
            self._timers[partition] = self._clock.call_later(config.flush_ms / 1000, partial(self.sync, partition))

    def sync(self, partition: Partition) -> None:
        """Sync what a page-cache partition has by now, unless that is under way."""
        timer = self._timers.pop(partition, None)
        if timer is not None:
            timer.cancel()
        if partition.closed or partition.is_stable or self._stopped or partition in self._syncing:
            return
        home = self._store.home(partition.tp)
        if home.journal.failed is not None or home.journal.no_room is not None:
            return
        try:
            job = take_sync(partition.log)
        except NoRoomError as error:
            self._disk_full.found_none(home, error)
            return
        except OSError as error:
            self._store.fail(home, error)
            return
        if job is None:
            return
        self._syncing[partition] = None

        def synced(_: Any, error: BaseException | None) -> None:
            del self._syncing[partition]
            account(error)
            self.on_synced(partition)

        def account(error: BaseException | None) -> None:
            if partition.closed:
                return
            if isinstance(error, NoRoomError):
                give_back_sync(partition.log, job)
                self._disk_full.found_none(home, error)
                return
            if error is not None:
                self._store.fail(home, error)
                return
            try:
                complete_sync(partition.log, job)
            except OSError as failure:
                self._store.fail(home, failure)
                return
            if not partition.is_stable:
                self.appended(partition)

        self._store.submit("checkpoint", job.run, synced)  # the lane of all syncs of segments: they never overlap

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
