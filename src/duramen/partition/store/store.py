"""All partitions of this process on their log directories: the engine that `server` and `embedded` share.

Here is the commit cycle: whatever was appended during one turn of the loop is written with one call per log, handed to
the journal as one group, and when the group's sync has returned the partitions learn their new durable end. What can
wait is in `store/maintenance.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from duramen.config import TopicConfig
from duramen.errors import CorruptLogError, DuramenError, ErrorCode, KafkaError, StorageError, check
from duramen.model import METADATA_TOPIC_ID, TopicId, TopicPartition
from duramen.partition.replica.partition import Partition
from duramen.partition.replica.retry_gate import RetryGate
from duramen.partition.replica.rewrite_queue import MAX_QUEUED_BEHIND_REWRITE
from duramen.partition.store.commit_cycle import GroupCommits, SyncWaiters, WhenSynced, WriteWaiters
from duramen.partition.store.compaction import Compaction
from duramen.partition.store.delete_partitions import PartitionDeletions
from duramen.partition.store.disk_full import DiskFull
from duramen.partition.store.durability_change import DurabilityChange
from duramen.partition.store.flush_policy import FlushPolicy
from duramen.partition.store.hosted_partitions import HostedPartitions, OfflineCause
from duramen.partition.store.maintenance import Maintenance
from duramen.partition.store.marker_syncs import MarkerSyncs
from duramen.partition.store.services import CommitStatistics
from duramen.ports import World
from duramen.storage import (
    DirectorySettings,
    JournalGroup,
    Log,
    LogDirectory,
    NoRoomError,
    Offline,
    Strays,
    configure_log,
    damage_of,
    is_disk_full,
    release_ballast,
)


class Store:
    """Partitions by name and by topic id. Owned by the loop thread; call `commit_soon` after touching one."""

    def __init__(self, world: World, node_id: int) -> None:
        self._world = world
        self._node_id = node_id
        self.directories: list[LogDirectory] = []
        self.metadata_directory: LogDirectory | None = None
        """Where the metadata log is made; None: where the fewest logs are."""
        self.partitions: dict[TopicPartition, Partition] = {}
        self._by_log: dict[tuple[TopicId, int], Partition] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._touched: dict[Partition, None] = {}
        self.disk_full = DiskFull(self, world.clock)
        self._durability_change = DurabilityChange(self, self.disk_full, world.clock)
        self._group_commits = GroupCommits(self, self.disk_full, world.clock, self._group_done)
        self._commit_scheduled = False
        self._failed: list[LogDirectory] = []
        """Directories whose failure is reported."""
        self.compaction = Compaction(self, world.clock)
        self.maintenance = Maintenance(self, self.disk_full, self.compaction, world.clock)
        self.flush_policy = FlushPolicy(self, self.disk_full, world.clock)
        self.marker_syncs = MarkerSyncs(self, self.flush_policy, world.clock)
        self.hosted = HostedPartitions(world.clock.monotonic)
        self.deletions = PartitionDeletions(
            self.directories, self.hosted, world.clock, self.delete_log, self.commit_soon
        )
        self._jobs = 0
        self._on_idle: Callable[[], None] | None = None
        self._sync_waiters = SyncWaiters()
        self._write_waiters = WriteWaiters()
        self.statistics = CommitStatistics()
        self.congested = False
        """A journal is nearly full: whoever feeds this store should pause until `on_relief`."""
        self.on_relief: Callable[[], None] = lambda: None
        self.strays = Strays()
        """Logs that make way for new ones of their names."""
        self.on_failure: Callable[[LogDirectory, BaseException], None] = lambda directory, error: None
        self.most_queued = MAX_QUEUED_BEHIND_REWRITE
        """See Partition; of those that are opened from now on."""

    # ---- directories -----------------------------------------------------------------------------------------

    def open_directory(self, path: str, settings: DirectorySettings) -> LogDirectory:
        """Lock, recover and own the log directory `path`; its logs become partitions by `adopt`."""
        disk = self._world.disk
        begin = partial(
            LogDirectory.open,
            disk,
            path,
            settings,
            now_ms=self._world.clock.wall_ms(),
            entropy=self._world.entropy,
            hot=self.directories[0].hot if self.directories else None,
            together=self._world.executor.together,
        )
        try:
            directory = begin()
        except (OSError, StorageError) as error:
            if not is_disk_full(error) or not release_ballast(disk, path, settings.reserve_bytes):
                raise
            directory = begin()  # all over again, as after a crash
        directory.high_watermark = partial(self._high_watermark, directory)
        directory.journal.on_failed = self.commit_soon
        directory.strays = Strays(lambda topic_id: self.strays.contain(topic_id), lambda log: self.strays.moved(log))
        self.directories.append(directory)
        return directory

    @property
    def data_directories(self) -> list[LogDirectory]:
        """Those that topics are made in."""
        return [directory for directory in self.directories if not directory.only_metadata]

    def _high_watermark(self, directory: LogDirectory, log: Log) -> int:
        """What the directory asks before it deletes anything, and writes down for the next start."""
        partition = self._by_log.get((log.topic_id, log.tp.partition))
        return directory.known_watermark(log) if partition is None else partition.high_watermark

    def find_log(self, topic_id: TopicId, partition: int) -> tuple[LogDirectory, Log] | None:
        """The log of a partition as recovered from disk, in whichever directory holds it."""
        for directory in self.directories:
            log = directory.logs.get((topic_id, partition))
            if log is not None:
                return directory, log
        return None

    def unclaimed(self) -> Iterator[tuple[LogDirectory, Log]]:
        """Logs on disk that no partition was opened for: their topic was deleted while we were away."""
        for directory in self.directories:
            for key, log in list(directory.logs.items()):
                if key not in self._by_log:
                    yield directory, log

    # ---- partitions ------------------------------------------------------------------------------------------

    def open_partition(
        self, tp: TopicPartition, topic_id: TopicId, config: TopicConfig, kind: type[Partition] = Partition
    ) -> Partition:
        """The partition on its existing log, or a new one where the fewest are. CorruptLogError, OSError: damaged."""
        present = self.partitions.get(tp)
        if present is not None:
            check(present.topic_id == topic_id, f"{tp} is open under another topic id")
            return present
        key = topic_id, tp.partition
        left = self.offline_log(*key)
        if left is not None:
            raise left.error
        self.hosted.mark_opening(key)
        try:
            directory, log = self._open_log(*key, config) or self._create_log(tp, topic_id, config)
        except (OSError, DuramenError) as error:
            self.hosted.mark_offline(key, OfflineCause.NOT_OPENED, str(error))
            raise
        return self.adopt(directory, log, config, kind)

    def _open_log(self, topic_id: TopicId, partition: int, config: TopicConfig) -> tuple[LogDirectory, Log] | None:
        found = self.find_log(topic_id, partition)
        if found is not None:
            configure_log(found[1], config)
        return found

    def _create_log(self, tp: TopicPartition, topic_id: TopicId, config: TopicConfig) -> tuple[LogDirectory, Log]:
        wanted = self.data_directories
        if topic_id == METADATA_TOPIC_ID and self.metadata_directory is not None:
            wanted = [self.metadata_directory]
        writable = [d for d in wanted if d.journal.failed is None]
        if not writable:
            raise StorageError(f"no log directory takes writes; {tp} cannot be created")
        directory = min(writable, key=lambda d: len(d.logs))
        return directory, directory.create_log(tp, topic_id, config)

    def offline_log(self, topic_id: TopicId, partition: int) -> Offline | None:
        """The log of a partition that is in a directory here, or should be, and cannot be opened."""
        for directory in self.directories:
            left = directory.offline.get((topic_id, partition))
            if left is not None:
                return left
        return None

    def mark_offline_logs(self) -> None:
        """At start: the partitions of those logs are offline."""
        for directory in self.directories:
            for key, left in directory.offline.items():
                self.hosted.mark_offline(key, OfflineCause.LOG_DAMAGED, str(left.error))

    def adopt(
        self, directory: LogDirectory, log: Log, config: TopicConfig, kind: type[Partition] = Partition
    ) -> Partition:
        """The partition on a log that is in one of the directories."""
        tp, topic_id = log.tp, log.topic_id
        retry_gate = RetryGate(log.producers, self._world.clock.monotonic)
        partition = kind(log, config, self._node_id, self.submit, self._touch, retry_gate)
        partition.rewrites.limit = self.most_queued
        partition.harden = self.marker_syncs.wait_for
        self.partitions[tp] = partition
        key = topic_id, tp.partition
        partition.replication.high_watermark = directory.known_watermark(log)
        self.hosted.retry_gates.made(topic_id, tp.partition, partition.retry_gate)
        self.hosted.mark_online(key)
        self._by_log[key] = partition
        self._homes[tp] = directory
        self.commit_soon()
        return partition

    def partition_by_id(self, topic_id: TopicId, index: int) -> Partition | None:
        """The partition of the topic with this id."""
        return self._by_log.get((topic_id, index))

    def configure(self, partition: Partition, config: TopicConfig) -> None:
        """Give an open partition its topic's new configuration.

        From page-cache to stable the log is synced first: once a record is acknowledged as stable, everything before
        it has to be, too. Until that is done nothing is acknowledged in the old way, for whoever made the change may
        know of it already; a configuration that comes meanwhile is taken over afterwards.
        """
        self._durability_change.configure(partition, config)

    def home(self, tp: TopicPartition) -> LogDirectory:
        """The directory that holds this partition."""
        return self._homes[tp]

    def found_damage(self, tp: TopicPartition, error: CorruptLogError) -> None:
        """A read met damage: its directory keeps the finding and tells it once."""
        home = self._homes.get(tp)
        if home is not None:
            home.findings.add(damage_of(error))

    def delete_partition(self, tp: TopicPartition) -> None:
        """Forget the partition and delete its log (see PartitionDeletions); whoever waits is told that it is gone."""
        partition = self.partitions.pop(tp, None)
        if partition is None:
            return
        key = partition.topic_id, tp.partition
        self._by_log.pop(key, None)
        self._touched.pop(partition, None)
        directory = self._homes.pop(tp)
        partition.closed = True
        partition.fail(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} was deleted"))
        self.hosted.mark_deleting(key)
        self.deletions.delete_soon(directory, partition.log)

    def delete_log(self, directory: LogDirectory, log: Log) -> None:
        """Delete a log's files: renamed away now, removed by the housekeeping lane later."""
        with self.disk_full.making(directory):
            directory.delete_log(log)
        self.commit_soon()

    # ---- the commit cycle ------------------------------------------------------------------------------------

    def _touch(self, partition: Partition) -> None:
        self._touched[partition] = None
        if not self._commit_scheduled:
            self._commit_scheduled = True
            self._world.clock.call_soon(self.commit)

    def commit_soon(self) -> None:
        """Run `commit` after the current event, once, however often this is called."""
        if not self._commit_scheduled:
            self._commit_scheduled = True
            self._world.clock.call_soon(self.commit)

    def commit(self) -> None:
        """Write what was appended, start the journal's next group, advance page-cache topics."""
        self._commit_scheduled = False
        for directory in self.directories:
            if (failure := directory.journal.failed) is not None:
                if directory not in self._failed:
                    self.fail(directory, failure)  # by a job, a creation or a deletion: not reported yet
                continue
            if not self.disk_full.is_worth_a_try(directory):
                continue
            try:
                directory.flush()
                self._start_group(directory)
                self.maintenance.written(directory)
                self.maintenance.rebuild_producers(directory)
            except NoRoomError as error:
                self.disk_full.found_none(directory, error)
            except (OSError, StorageError) as error:
                self.fail(directory, error)
        self._advance_page_cache()
        self._check_idle()

    def _advance_page_cache(self) -> None:
        """Acknowledge what was written to page-cache topics, once the journal says where recovery finds it."""
        touched, self._touched = self._touched, {}
        for partition in touched:
            journal = self._homes[partition.tp].journal
            if partition.is_stable or journal.failed is not None:
                continue
            if journal.knows(partition.log) and not partition.log.dirty and partition not in self._durability_change:
                partition.durable(partition.durable_end)
                self.flush_policy.appended(partition)
                if partition.durable_end < partition.log.end_offset:
                    self.marker_syncs.harden_close(partition)
            else:
                self._touched[partition] = None
        self._write_waiters.answer_written(self._touched, self._failure)

    def _start_group(self, directory: LogDirectory) -> None:
        if (group := directory.take_group()) is not None:
            self._group_commits.write(directory, group)

    def _group_done(self, directory: LogDirectory, group: JournalGroup, error: BaseException | None) -> None:
        if error is not None:
            directory.journal.fail(group, error)
            self.fail(directory, error)
            return
        self.statistics.groups += 1
        for log in directory.journal.complete(group):
            partition = self._by_log.get((log.topic_id, log.tp.partition))
            if partition is not None and log.stable:
                partition.durable(log.durable_end)
        self._sync_waiters.answer_synced()
        self.maintenance.make_room(directory)
        if directory.journal.has_pending or self._touched or directory.is_truncating:
            # Appended while the group was being written, or waiting for it: no need to wait for the next event.
            self.commit()

    def when_synced(self, tp: TopicPartition, callback: WhenSynced) -> None:
        """Call back once everything journaled so far for this partition's directory is on stable storage."""
        self.when_directory_synced(self._homes[tp], callback)

    def when_written(self, partitions: Iterable[Partition], callback: WhenSynced) -> None:
        """Call back once what was appended to these partitions of page-cache topics is written, and would be found."""
        self._write_waiters.wait_for(partitions, callback)
        self.commit_soon()

    def keep_order(self, first: Partition, second: Partition, *, of_markers: bool = False) -> bool:
        """Whether no crash leaves `second` what is appended to it from now on without all that `first` has now.

        Then it need not wait for that to be committed. So it is in one journal, where neither has a copy elsewhere.
        of_markers: of `first` only the transaction markers are asked for: they are journaled where nothing else is.
        """
        home = self._homes.get(first.tp)
        if home is None or home is not self._homes.get(second.tp):
            return False
        for partition in (first, second):
            is_journaled = partition.is_stable or (of_markers and partition is first)
            is_changing = partition in self._durability_change
            if not is_journaled or is_changing or len(partition.replication.replicas) != 1:
                return False
        home.keep_order()
        return True

    def is_settled(self, partition: Partition) -> bool:
        """Whether all of the partition is where its topic's durability wants it, and no other one is under way."""
        if partition in self._durability_change:
            return False
        log = partition.log
        return log.durable_end >= log.end_offset if log.stable else partition not in self._touched

    def _failure(self, partition: Partition) -> KafkaError | None:
        directory = self._homes.get(partition.tp)
        failed = None if directory is None else directory.journal.failed
        if failed is None:
            return None
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.tp}: its directory failed ({failed})")

    def when_directory_synced(self, directory: LogDirectory, callback: WhenSynced) -> None:
        """The same for a directory."""
        if self._sync_waiters.wait_for(directory, callback):
            self.commit_soon()

    def fail(self, directory: LogDirectory, error: BaseException) -> None:
        """A write or sync failed: this directory takes no more writes until a restart (ENGINE.md §1)."""
        self.statistics.failures += 1
        if directory not in self._failed:
            self._failed.append(directory)
        if directory.journal.failed is None:
            directory.journal.fail(None, error)
        self.answer_unknown(directory, f"{directory.path} failed ({error})")
        self.on_failure(directory, error)

    def answer_unknown(self, directory: LogDirectory, what: str) -> None:
        """Tell everybody who waits for something to be written in the directory."""
        reason = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}; the outcome of this write is unknown")
        for tp, partition in list(self.partitions.items()):
            if self._homes[tp] is directory:
                partition.fail(reason)
        self._sync_waiters.answer_synced(directory, reason)

    @property
    def is_maintained(self) -> bool:
        """Whether maintenance has begun and was not stopped."""
        return self.maintenance.running

    # ---- work off the loop ---------------------------------------------------------------------------------

    def submit(self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` off the loop, and know that it is under way."""
        self._jobs += 1

        def finished(result: Any, error: BaseException | None) -> None:
            self._jobs -= 1
            done(result, error)
            self._check_idle()

        self._world.executor.submit(lane, work, finished)

    # ---- the end ---------------------------------------------------------------------------------------------

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Begin no more maintenance; `on_idle` once all that was appended is settled and no job is under way."""
        self.maintenance.stop()
        self.compaction.stop()
        self.flush_policy.stop()
        self._on_idle = on_idle
        self.commit()
        self._check_idle()

    def _check_idle(self) -> None:
        if self._on_idle is None or self._jobs or self._group_commits.put_off or self._commit_scheduled:
            return
        if not self.deletions.is_over:
            return  # each is committed afterwards
        if any(d.journal.has_pending and d.journal.failed is None for d in self.directories):
            self.commit_soon()
            return
        on_idle, self._on_idle = self._on_idle, None
        on_idle()

    def close(self, *, clean: bool) -> None:
        """Close every directory; `clean` (only after `stop`) leaves it so that the next start replays nothing."""
        self.maintenance.stop()
        self.compaction.stop()
        self.flush_policy.stop()
        for partition in self.partitions.values():
            partition.close()
        for directory in self.directories:
            directory.close(clean=clean and directory.journal.failed is None)
