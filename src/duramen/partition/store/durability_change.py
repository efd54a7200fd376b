"""Changes of a partition's configuration: from page-cache to stable its log is synced first, off the loop."""

from __future__ import annotations

from functools import partial
from typing import Any

from duramen.config import TopicConfig
from duramen.errors import DuramenError
from duramen.partition.replica.partition import Partition
from duramen.partition.store.disk_full import DiskFull
from duramen.partition.store.services import StoreServices
from duramen.ports import Clock
from duramen.storage import LogDirectory, NoRoomError, complete_sync, give_back_sync, take_sync

ROUNDS = 3
"""Syncs off the loop by which a page-cache log catches up with its appends before it becomes stable."""
RETRY_SECONDS = 1.0
"""After which it is tried again where the disk was full."""


class DurabilityChange:
    """The partitions of one store that are becoming stable."""

    def __init__(self, store: StoreServices, disk_full: DiskFull, clock: Clock) -> None:
        self._store = store
        self._disk_full = disk_full
        self._clock = clock
        self._pending: dict[Partition, TopicConfig] = {}
        """What their topics say now."""

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._pending

    def configure(self, partition: Partition, config: TopicConfig) -> None:
        """Take the configuration over, now or when the log is synced; one that comes meanwhile counts instead."""
        if partition in self._pending:
            self._pending[partition] = config
        else:
            self._configure(partition, config, ROUNDS)

    def _configure(self, partition: Partition, config: TopicConfig, rounds: int) -> None:
        """A producer may append while a sync runs; what came after `rounds` of them is synced on the loop."""
        log = partition.log
        home = self._store.home(partition.tp)
        job = None
        if not log.is_whole:  # a truncation ends by itself
            self._try_later(partition, config)
            return
        try:
            if rounds > 0 and not log.stable and config.durability == "stable" and home.journal.failed is None:
                job = take_sync(log)
            if job is None:
                partition.configure(config)
                return
        except NoRoomError as error:
            if log.stable:  # it may not say so without an entry in the journal
                self._store.fail(home, error)
            else:
                self._wait(partition, config, home, error)
            return
        except (OSError, DuramenError) as error:
            # A journal that cannot take the change, either: how the log stands could not be told from disk.
            self._store.fail(home, error)
            return
        self._pending[partition] = config

        def synced(_: Any, error: BaseException | None) -> None:
            newest = self._pending.pop(partition)
            if partition.closed:
                return
            if isinstance(error, NoRoomError):
                give_back_sync(log, job)
                self._wait(partition, newest, home, error)
                return
            if error is not None:
                self._store.fail(home, error)
                return
            try:
                complete_sync(log, job)
            except OSError as failure:
                self._store.fail(home, failure)
                return
            self._configure(partition, newest, rounds - 1)

        self._store.submit("checkpoint", job.run, synced)

    def _wait(self, partition: Partition, config: TopicConfig, home: LogDirectory, error: NoRoomError) -> None:
        self._disk_full.found_none(home, error)
        self._try_later(partition, config)

    def _try_later(self, partition: Partition, config: TopicConfig) -> None:
        self._pending[partition] = config
        self._clock.call_later(RETRY_SECONDS, partial(self._again, partition))

    def _again(self, partition: Partition) -> None:
        config = self._pending.pop(partition)
        if not partition.closed and self._store.is_maintained:
            self._configure(partition, config, ROUNDS)
