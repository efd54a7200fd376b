"""A log directory in use: its lock, identity, journal, logs, checkpoints and what is to be deleted.

One directory is one unit of failure: a failed write or sync fences it, all of it, until a restart has recovered it
from what is on stable storage. A write that only lacked room is made again; until that works no others are taken.
Everything here runs on the loop thread, but for the jobs it hands out.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable, Container
from functools import partial
from typing import NamedTuple

from duramen.errors import ClosedError, ErrorCode, FencedDirectoryError, KafkaError, StorageError
from duramen.model import LogKey, TopicId, TopicPartition
from duramen.ports import Disk, Entropy
from duramen.storage.checkpoint.clean_shutdown import UNKNOWN_EPOCH, encode_clean_shutdown, last_stop
from duramen.storage.checkpoint.kafka_files import CLEAN_SHUTDOWN, LOCK
from duramen.storage.compaction.cleaner import Cleaner
from duramen.storage.directory.checkpointer import SLICE_LOGS, Checkpointer, CheckpointJob, key_of, point_of
from duramen.storage.directory.group_commit import GroupCommit
from duramen.storage.directory.housekeeping import Housekeeping, HousekeepingJob
from duramen.storage.directory.log_registry import LogRegistry
from duramen.storage.directory.scrubber import Scrubber, ScrubJob
from duramen.storage.directory.truncations import RebuildJob, Truncations
from duramen.storage.files.atomic import remove_file, replace_file
from duramen.storage.files.ballast import Ballast
from duramen.storage.files.disk_full import NoRoomError, lacks_files
from duramen.storage.files.open_files import MOST_FILES, OpenFiles
from duramen.storage.files.parallel import Together, run_serial
from duramen.storage.journal.format import HEADER_BLOCK
from duramen.storage.journal.journal import Journal, JournalGroup
from duramen.storage.journal.parts import PartMaker, remove_parts
from duramen.storage.journal.ring import JournalLimits
from duramen.storage.log.config import LogConfig, PlainLogConfig
from duramen.storage.log.create import CreateLogsJob, NewLog, Strays
from duramen.storage.log.log import Log
from duramen.storage.log.offline import Offline
from duramen.storage.log.open import open_log
from duramen.storage.log.sync import FlushQueue
from duramen.storage.log.truncation import begin_anew
from duramen.storage.read.verified_window import VerifiedWindow
from duramen.storage.recovery.open_partition import PartitionOpening, missing_log_offline
from duramen.storage.recovery.replay import RecoveryReport
from duramen.storage.recovery.startup import Startup, drop_leftover_directories, prepare
from duramen.storage.segment.corruption import Damage, Findings
from duramen.storage.segment.segment import SUFFIXES

SET_MS = 1000
"""A wall clock that is so far from where it should be was set; less is its own inaccuracy."""


class DirectorySettings(NamedTuple):
    """How a log directory is run. Sizes are bytes, times milliseconds.

    cluster_id: None takes the directory's, or a new one. default_config: for logs whose topic is not configured yet.
    hot_window_bytes: see HotWindow; -1 leaves it to the disk. open_files: see OpenFiles; -1: half of what the process
    may open, at most MOST_FILES. checkpoint_fill: the journal's fill from which a
    checkpoint begins, 0 to 1.
    """

    node_id: int = 0
    cluster_id: str | None = None
    journal_max_bytes: int = 256 << 20
    journal_max_entries: int = 250_000
    journal_part_bytes: int = 16 << 20
    journal_first_part_bytes: int = 4 << 20
    bypass_bytes: int = 1 << 20
    dirty_max_bytes: int = 64 << 20
    checkpoint_fill: float = 0.5
    checkpoint_interval_ms: int = 60_000
    hot_window_bytes: int = -1
    open_files: int = -1
    retention_check_interval_ms: int = 300_000
    producer_id_expiration_ms: int = 86_400_000
    reserve_bytes: int = 0
    scrub_bytes_per_second: int = 8 << 20
    scrub_interval_ms: int = 604_800_000
    default_config: LogConfig = PlainLogConfig()

    @property
    def journal_limits(self) -> JournalLimits:
        """The journal's share."""
        return JournalLimits(
            self.journal_max_bytes,
            self.journal_max_entries,
            self.journal_part_bytes,
            min(self.journal_first_part_bytes, self.journal_part_bytes),
            self.bypass_bytes,
        )


def make_verified_window(disk: Disk, settings: DirectorySettings) -> VerifiedWindow:
    """A window of the size that the settings ask for."""
    size = settings.hot_window_bytes
    files, descriptors = settings.open_files, disk.descriptor_limit()
    if files < 0:
        files = min(descriptors // 2, MOST_FILES)
    # The acceptor leaves as many for them: see Acceptor.bind.
    most = min(files, descriptors // 2) + descriptors // 8
    return VerifiedWindow(disk.cache_bytes() if size < 0 else size, OpenFiles(files, most))


class LogDirectory:
    """See the module. `open` is the constructor.

    path, directory_id, cluster_id; clean_start: the last stop was clean, stopped_epoch: by a broker of this epoch (-1:
    not told, or not clean); broker_epoch: what the next clean stop will tell; recovery: what the start did.
    only_metadata: no topic but the metadata log is made here. logs: by topic id and partition. offline: those that are
    too damaged to be served. findings: damage that was met since. high_watermark: asked before anything is deleted and
    for Kafka's checkpoint.
    """

    def __init__(
        self, disk: Disk, path: str, settings: DirectorySettings, entropy: Entropy, hot: VerifiedWindow | None = None
    ) -> None:
        self.disk = disk
        self.path = path
        self.settings = settings
        self.entropy = entropy
        self.hot = make_verified_window(disk, settings) if hot is None else hot
        self.cluster_id = ""
        self.directory_id = ""
        self.clean_start = True
        self.stopped_epoch = UNKNOWN_EPOCH
        self.broker_epoch = UNKNOWN_EPOCH
        self.only_metadata = False
        self.recovery = RecoveryReport()
        self.findings = Findings()
        self.logs: dict[LogKey, Log] = {}
        self.offline: dict[LogKey, Offline] = {}
        self.high_watermark: Callable[[Log], int] = lambda log: log.durable_end
        self.strays = Strays()
        self._watermarks: dict[LogKey, int] = {}
        self.journal: Journal
        self.ballast = Ballast(disk, path, settings.reserve_bytes)
        self._queue: FlushQueue[Log] = FlushQueue(settings.reserve_bytes // 2 or sys.maxsize)
        self._together: Together = run_serial
        self._lock = disk.lock(posixpath.join(path, LOCK))
        self._checkpointer: Checkpointer
        self._housekeeping: Housekeeping
        self._registry: LogRegistry
        self._commits: GroupCommit
        self.cleaner: Cleaner
        self._last_checkpoint_ms = 0
        self._now_ms = 0
        self._monotonic: float | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        settings: DirectorySettings,
        *,
        now_ms: int,
        entropy: Entropy,
        hot: VerifiedWindow | None = None,
        together: Together = run_serial,
        forgo: bool = False,
    ) -> LogDirectory:
        """Create or recover the directory, and take it into use; `hot` is shared by the directories of a process.

        together: see ports.Executor. forgo: what a damaged journal held behind the damage. A partition whose bytes on
        stable storage are damaged is left in `offline`.
        DirectoryLockedError when another process has it; StorageError when it belongs to another node or cluster, or
        Kafka left it unclean; CorruptLogError when the journal is damaged.
        """
        path = path.rstrip("/") or "/"
        disk.make_directories(path)
        disk.sync_directory(posixpath.dirname(path) or ".")
        self = cls(disk, path, settings, entropy, hot)
        self._together = together
        try:
            self.ballast.find()
            self._start(now_ms, forgo=forgo)
        except BaseException:
            self._release()
            raise
        return self

    def _start(self, now_ms: int, *, forgo: bool) -> None:
        settings = self.settings
        state = prepare(
            self.disk, self.path, settings.node_id, settings.cluster_id, self.entropy, self._together, forgo=forgo
        )
        self.cluster_id, self.directory_id = state.meta.cluster_id, state.meta.directory_id
        self.clean_start = state.clean
        self.recovery = state.report
        self._now_ms = self._last_checkpoint_ms = now_ms
        contents = state.contents
        maker = PartMaker(
            self.disk, self.path, contents.generation + 1, int.from_bytes(self.entropy.random_bytes(4), "big")
        )
        limits = settings.journal_limits
        self.journal = journal = Journal(self.disk, maker, limits, contents.next_lsn, contents.laps)
        journal.give_way = self.ballast.release
        try:
            drop_leftover_directories(self.disk, self.path, state, self.entropy)
            self._open_logs(state)
        finally:
            contents.close()
        points = {key: point_of(log) for key, log in self.logs.items()}
        self._checkpointer = Checkpointer(
            self.disk, self.path, maker.generation, journal, self.logs, self._mark_of, points, self.offline
        )
        self._checkpointer.identity = state.meta
        self.cleaner = Cleaner(
            self.disk, self.path, journal, self.logs, lambda: self._checkpointer.persisted, self._mark_of, self.findings
        )
        self.cleaner.load(state.cuts)
        if (note := self.cleaner.take_note()) is not None:
            note.run()  # the journal, which alone says what was cut, is about to go
            note.complete()
        self._checkpointer.leaving = self.cleaner.leaving
        marks = {log.tp: self.known_watermark(log) for log in self.logs.values()}
        files = self._checkpointer.files({})._replace(high_watermarks=marks)
        files.write()
        self._checkpointer.wrote(files)
        # What was recovered is in synced files and checkpoints; the new first part's rename retires the old journal.
        journal.start(maker.make(limits.first_part))
        remove_parts(self.disk, self.path, keep=maker.generation)
        stop = last_stop(self.disk, self.path)
        self.stopped_epoch = UNKNOWN_EPOCH if stop is None or not self.clean_start else stop.broker_epoch
        self.broker_epoch = self.stopped_epoch  # who never registers has changed nothing
        remove_file(self.disk, posixpath.join(self.path, CLEAN_SHUTDOWN))
        self.disk.sync_directory(self.path)
        self._truncations = Truncations(journal, self._checkpointer, self.logs, self.findings)
        journal.on_truncate = self._truncations.journaled
        journal.on_begin = self._truncations.begun_anew
        self._truncations.on_cut = self.cleaner.cut
        self._commits = GroupCommit(
            self.path, journal, self._queue, self.ballast, self.hot.files, self._checkpointer, self._truncations
        )
        self._housekeeping = Housekeeping(
            self.disk, self.path, journal, self._mark_of, state.leftovers, self.findings, self.cleaner,
            settings.producer_id_expiration_ms,
        )  # fmt: skip
        self._registry = LogRegistry(
            self.disk, self.path, self.entropy, self.logs, self.offline,
            journal=journal, queue=self._queue, hot=self.hot, checkpointer=self._checkpointer, cleaner=self.cleaner,
            housekeeping=self._housekeeping, findings=self.findings, default_config=settings.default_config,
        )  # fmt: skip
        self.scrubber = Scrubber(
            self.disk, self.path, self.findings, settings.scrub_bytes_per_second, settings.scrub_interval_ms
        )

    def _open_logs(self, state: Startup) -> None:
        """Recover and open every partition; those that are damaged are left offline."""
        make = partial(
            open_log,
            disk=self.disk,
            config=self.settings.default_config,
            journal=self.journal,
            flush_queue=self._queue,
            hot=self.hot,
        )
        for opening in self._together(
            [PartitionOpening(self.disk, ready, state.clean, make).run for ready in state.ready]
        ):
            log, ready = opening.log, opening.ready
            if ready.recovery is not None:
                self.recovery.add(ready.recovery.report)
            if log is None:
                self.offline[opening.offline.key] = opening.offline
                continue
            self.logs[key_of(log)] = log
        self._watermarks = state.watermarks
        for key, absent in state.absent.items():
            self.offline[key] = missing_log_offline(self.path, key[0], absent)

    def _mark_of(self, log: Log) -> int:
        return self.high_watermark(log)

    def known_watermark(self, log: Log) -> int:
        """The log's high watermark as the last checkpoint before the start knew it, from its start to its durable end.

        Its start where none knew it. From here on whoever leads or follows knows better.
        """
        known = self._watermarks.get(key_of(log), log.start_offset)
        return min(max(known, log.start_offset), log.durable_end)

    # -- the logs

    def create_log(self, tp: TopicPartition, topic_id: TopicId, config: LogConfig) -> Log:
        """A new empty log, at once and on this thread: `take_creation` and what belongs to it."""
        job = self.take_creation([NewLog(tp, topic_id, config)])
        for problem in job.refused.values():
            raise problem
        try:
            job.run()
        except OSError as error:
            if not isinstance(error, NoRoomError):
                self.journal.fail(None, error)
            raise StorageError(f"{posixpath.join(self.path, str(tp))} cannot be created: {error}") from error
        return self.complete_creation(job)[0]

    def take_creation(self, new: list[NewLog], being_deleted: Container[str] = ()) -> CreateLogsJob:
        """The job that makes new, empty logs whose names are durable; one whose path exists is refused. One at a time.

        being_deleted: paths of logs that are to be deleted as soon as there is room. Of `strays` those that have the
        path of a new one are moved aside.

        OSError, StorageError: none can be made here.
        """
        self._check_usable()
        return self._registry.take_creation(new, being_deleted, self.strays, self._now_ms)

    def complete_creation(self, job: CreateLogsJob) -> list[Log]:
        """The job has run: creation is journaled before anything that is appended to the logs.

        KafkaError when the journal has no room for all of them: the rest is removed again, and may be made later.
        """
        self._check_usable()
        return self._registry.complete_creation(job)

    def begin_anew(self, log: Log, offset: int, segment_base: int | None = None) -> None:
        """Drop all that the log has: it begins with `offset`, empty. See `log/truncation.py`.

        KafkaError, retriable, also while a compaction or retention is about to give files of the log other names.
        NoRoomError: not yet. Any other OSError: the directory is fenced.
        """
        self._check_usable()
        if self.cleaner.is_swapping(log) or self._housekeeping.is_renaming(log):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.tp}: its files are getting other names")
        try:
            begin_anew(log, offset, segment_base)
        except OSError as error:
            if not isinstance(error, NoRoomError):
                self.journal.fail(None, error)  # some of what was queued is not written
            raise
        self.findings.forget(log.path)

    def delete_log(self, log: Log) -> str:
        """Forget the log and give its directory its `-delete` name, which is returned; files go later.

        KafkaError when the journal has no room for that: nothing has changed.
        """
        self._check_usable()
        return self._registry.delete(log, self._now_ms)

    def delete_offline(self, key: LogKey) -> str:
        """As `delete_log` for a partition that is not served."""
        self._check_usable()
        return self._registry.delete_offline(key, self._now_ms)

    # -- the commit cycle

    def take_group(self) -> JournalGroup | None:
        """`flush`, then the journal's next group; when there is nothing to commit, once, a mark that says so."""
        return self._commits.take_group()

    def flush(self) -> None:
        """Write what was appended since the last call, one write per log.

        NoRoomError: what is not written waits for the next call, and no more is taken until there is room. Any other
        OSError: the directory is fenced.
        """
        self._commits.flush()

    @property
    def is_truncating(self) -> bool:
        """Whether files have still to be cut: the next `take_group` does it, once nothing is in the way."""
        return self._truncations.waiting

    def take_rebuilds(self) -> list[RebuildJob]:
        """Jobs for a lane of their own: what logs know of producers, behind truncations."""
        return [] if self._closed else self._truncations.take_rebuilds()

    # -- checkpoints

    @property
    def checkpoint_due(self) -> bool:
        """Whether the journal's fill or the bytes waiting for a sync call for a checkpoint now.

        Or a disk that was full and has room for the reserve again: a checkpoint writes every kind of file that grows,
        and so shows whether there is more.
        """
        if self._checkpointer.under_way or self.journal.fill >= self.settings.checkpoint_fill:
            return True
        if self.crowded or self.waits_for_files or self.cleaner.waits or self._housekeeping.waits:
            return True
        if self.journal.no_room is not None and not self.ballast.lacking:
            return True
        waited_ms = self._now_ms - self._last_checkpoint_ms
        if waited_ms >= self.settings.checkpoint_interval_ms and (self.journal.entries or self._checkpointer.changed):
            return True
        return self._commits.dirty > self.settings.dirty_max_bytes // 2

    @property
    def crowded(self) -> bool:
        """Whether more files than there should be are open until a checkpoint has synced them."""
        return self.hot.files.crowded and bool(self._checkpointer.changed or self._checkpointer.under_way)

    @property
    def waits_for_files(self) -> bool:
        """Whether some of what was appended waits until others were synced and their files could be closed."""
        return self._commits.waits_for_files

    @property
    def dirty_share(self) -> float:
        """Bytes that wait in segments for a sync, as a share of `dirty_max_bytes`."""
        return self._commits.dirty / self.settings.dirty_max_bytes

    def keep_order(self) -> None:
        """What is appended from now on is durable only where all that was appended before is, in whichever log."""
        self.journal.end_extents()
        self._checkpointer.ordered_lsn = self.journal.last_lsn

    def take_checkpoint(self, force: bool = False) -> CheckpointJob | None:
        """The next job of a checkpoint, or None when none is due or one is running. `force` begins one anyway.

        Call it about once a second: a checkpoint is spread over several calls unless the journal is nearly full.
        """
        if self.journal.failed is not None or not (force or self.checkpoint_due):
            return None
        self._truncations.carry_out()
        if self._truncations.waiting or self._housekeeping.moving or self.cleaner.is_outdated:
            # A round that covered its entry would have to have synced the cut, or the new name, or known of the cut.
            scarce = self.waits_for_files or lacks_files(self.journal.no_room)
            return self._checkpointer.take_written() if scarce else None
        try:
            self.flush()
        except NoRoomError as error:
            if not lacks_files(error) or (job := self._checkpointer.take_written()) is None:
                raise
            return job
        if self.waits_for_files and (
            (job := self._checkpointer.take_written()) is not None or not self._checkpointer.under_way
        ):
            return job  # a round begins when everything is written
        if not self._checkpointer.under_way:
            self._last_checkpoint_ms = self._now_ms
            self.cleaner.waits = self._housekeeping.waits = False
            self._checkpointer.begin()
        return self._checkpointer.take_job(len(self.logs) if force else SLICE_LOGS)

    def complete_checkpoint(self, job: CheckpointJob) -> None:
        """The job has run; at the end of a round a disk that was full has room. OSError: the directory is fenced."""
        try:
            self._checkpointer.complete(job)
            self.hot.files.trim(again=True)
        except OSError as error:
            self.fail_checkpoint(job, error)
            raise
        if job.files is not None or self._commits.dirty > self.settings.dirty_max_bytes // 4:
            # Of all logs: that is not asked after each job for nothing.
            self._commits.dirty = self._checkpointer.dirty_bytes
        if job.files is not None and not self.ballast.lacking:
            self.journal.no_room = None

    def fail_checkpoint(self, job: CheckpointJob, error: BaseException) -> None:
        """The job failed: a failed sync is never retried, the directory is fenced; not so where it only lacked room."""
        if isinstance(error, NoRoomError):
            self._checkpointer.give_up(job)
            self._commits.found_no_room(error)
        else:
            self._checkpointer.fail(job)
            self.journal.fail(None, error)

    # -- housekeeping and the end

    def keep_producers(self, keeps: Callable[[int], bool]) -> None:
        """Producer ids for which `keeps` holds do not expire; every sink's until this is called."""
        self._housekeeping.keeps_producer = keeps

    def suspend_retention(self) -> None:
        """Nothing expires and nothing is compacted: what the topics' settings say is not to be believed."""
        self._housekeeping.retention_suspended = self.cleaner.suspended = True

    def expire_producers_after(self, milliseconds: int) -> None:
        """From now on instead of what the settings said."""
        self._housekeeping.producer_expiration_ms = milliseconds

    def take_maintenance(self, now_ms: int, monotonic: float | None = None) -> list[HousekeepingJob]:
        """Jobs for the housekeeping lane: sealing, retention, removals, the journal's next part.

        monotonic: seconds; by them it is found out that the wall clock was set since the last call.
        """
        if monotonic is not None:
            if self._monotonic is not None:
                by_ms = now_ms - self._now_ms - int(1000 * (monotonic - self._monotonic))
                if abs(by_ms) >= SET_MS:
                    self._housekeeping.clock_set(self.logs, now_ms, by_ms)
            self._monotonic = monotonic
        self._now_ms = now_ms
        self._last_checkpoint_ms = min(self._last_checkpoint_ms, now_ms)  # the wall clock may have been set back
        if self.journal.failed is not None or self._closed:
            return []
        return self._housekeeping.take_jobs(self.logs, now_ms, self.settings.retention_check_interval_ms)

    def close(self, clean: bool) -> None:
        """Stop using the directory. clean: sync everything, drain the journal and say so, so that nothing is replayed.

        No group, checkpoint or other job may be running. A fenced directory is never closed cleanly.
        """
        if self._closed:
            return
        try:
            if clean and self.journal.failed is None and not self.journal.in_flight:
                self._stop_cleanly()
        finally:
            self._closed = True
            self._release()

    def _stop_cleanly(self) -> None:
        try:
            if self.journal.no_room is not None or not self.ballast.fits():
                self.ballast.release()
            self._truncations.nobody_writes()
            while (group := self.take_group()) is not None or self._close_written():
                if group is not None:
                    group.run()
                    self.journal.complete(group)
            self._registry.drop_half_made()
            self.cleaner.finish()
            self._truncations.finish()
            self._housekeeping.finish()
            self._checkpointer.sync_and_close(self._together)
            self.cleaner.take_checkpoint()()  # before the checkpoint after which no journal says what was cut
            self._checkpointer.files({}).write()
            maker = self.journal.maker
            bare = PartMaker(self.disk, self.path, maker.generation + 1, maker.seed)
            bare.make(HEADER_BLOCK).file.close()
            remove_parts(self.disk, self.path, keep=bare.generation)
            replace_file(self.disk, posixpath.join(self.path, CLEAN_SHUTDOWN), encode_clean_shutdown(self.broker_epoch))
        except OSError as error:
            self.journal.fail(None, error)
            raise

    def _close_written(self) -> bool:
        """Where some of what was appended waits for others' files: whether some of those are closed now. OSError."""
        job = self._checkpointer.take_written() if self.waits_for_files else None
        if job is not None:
            job.run()
            self.complete_checkpoint(job)
        return job is not None

    def _release(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
        for log in self.logs.values():
            for segment in log.segments:
                segment.close()
        self._lock.release()

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path} was closed")
        if self.journal.failed is not None:
            raise FencedDirectoryError(f"{self.path}: no writes since a failure of the disk: {self.journal.failed}")

    # -- damage

    def take_scrub(self, now_ms: int) -> ScrubJob | None:
        """The scrubber's next job for a lane of its own, None when there is none; a failed directory is read, too."""
        return None if self._closed else self.scrubber.take_job(self.logs, now_ms)

    def complete_scrub(self, job: ScrubJob) -> None:
        """The job has run."""
        self.scrubber.complete(job, self.logs)

    def known_damage(self) -> list[Damage]:
        """What is known to be damaged in files that are still there, sorted by place; no file is looked at."""
        homes = {log.path: {segment.base_offset for segment in log.segments} for log in self.logs.values()}
        found = []
        for damage in self.findings.known.values():
            home, _, name = damage.path.rpartition("/")
            stem = name.partition(".")[0]
            gone = home in homes and stem.isdecimal() and name.endswith(SUFFIXES) and int(stem) not in homes[home]
            if not gone:
                found.append(damage)
        return sorted(found)

    def sealed_bytes(self) -> int:
        """Bytes in sealed segments: what a round of the scrubber reads."""
        return sum(segment.size for log in self.logs.values() for segment in log.segments if segment.sealed)
