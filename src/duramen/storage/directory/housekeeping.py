"""What a log directory does on the side: sealing rolled segments, retention, removing files, growing the journal.

`take_jobs` looks at every log on the loop and returns jobs; each is run off the loop and completed on it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from duramen.errors import CorruptLogError, KafkaError
from duramen.model import LogKey
from duramen.ports import Disk
from duramen.storage.compaction.cleaner import Cleaner
from duramen.storage.files.atomic import remove_file
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.journal.journal import Journal
from duramen.storage.journal.ring import JournalGrowth
from duramen.storage.log.durability import writes_snapshot
from duramen.storage.log.log import Log
from duramen.storage.log.producer_retention import ProducerSnapshotJob
from duramen.storage.log.retention import (
    MoveLogJob,
    PendingRemoval,
    RemoveFilesJob,
    RenameSegmentsJob,
    active_expired,
    removable_before,
)
from duramen.storage.log.seals import complete_seal, take_seals
from duramen.storage.segment.corruption import Findings, damage_of
from duramen.storage.segment.producer_state import is_sinks
from duramen.storage.segment.seal import SealJob
from duramen.storage.segment.segment import SEAL, file_name

LOGS_AT_ONCE = 500
"""Logs looked at by one call; the others have their turn in the next ones."""
MOST_CALLS = 20

FIRST_RETENTION_DELAY_MS = 30_000
"""Milliseconds from the first maintenance to the first look at retention."""
FULL_RETENTION_MS = 10_000
"""Milliseconds between two looks at retention while the disk is full."""


class HousekeepingJob(Protocol):
    """Work for the housekeeping lane: `run` on any thread, then `complete` or `fail` on the loop."""

    def run(self) -> object: ...

    def complete(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...


@dataclass(slots=True)
class GrowJournalJob:
    """Makes the journal's next part."""

    journal: Journal
    growth: JournalGrowth

    def run(self) -> None:
        """Preallocate it."""
        self.growth.run()

    def complete(self) -> None:
        """Put it to use."""
        self.journal.complete_growth(self.growth)

    def fail(self, error: BaseException) -> None:
        """A full disk is no failure: the parts that exist are recycled."""
        self.journal.fail_growth(self.growth, error)


@dataclass(slots=True)
class SealSegmentJob:
    """Writes the seal of one rolled and synced segment."""

    log: Log
    job: SealJob
    pending: set[tuple[Log, int]]
    failed: Callable[[BaseException], None]
    findings: Findings

    def run(self) -> None:
        """Read the segment and write its sidecar."""
        self.job.run()

    def complete(self) -> None:
        """The segment is sealed; where it went meanwhile, its seal goes, too."""
        log, base = self.log, self.job.base_offset
        self.pending.discard((log, base))
        complete_seal(log, self.job)
        if all(segment.base_offset != base for segment in log.segments):
            try:
                remove_file(log.disk, posixpath.join(log.path, file_name(base, SEAL)))
            except OSError as error:
                self.failed(error)

    def fail(self, error: BaseException) -> None:
        """The segment is damaged (said once, and it stays unsealed), was deleted meanwhile, or the disk failed.

        Where there is no room, and where the log was cut meanwhile, it is tried again. A name that is missing though
        nobody deleted the segment is a disk that fails: its directory may be mounted no longer.
        """
        self.log.writers.pop(self.job, None)
        place = (self.log, self.job.base_offset)
        is_kept = place in self.pending and any(self.job.is_of(segment) for segment in self.log.segments[:-1])
        if isinstance(error, NoRoomError) or self.job.overtaken:
            self.pending.discard(place)
        if isinstance(error, CorruptLogError):
            if is_kept:  # else it was cut meanwhile
                self.findings.add(damage_of(error))
        elif not isinstance(error, NoRoomError) and (is_kept or not isinstance(error, FileNotFoundError)):
            self.failed(error)


class PendingDeletion(NamedTuple):
    """Segments below a new log start: they may go when its entry is durable, and so is the log below known_at.

    truncations: how often the log had been truncated. After a truncation retention looks again.
    """

    lsn: int
    log: Log
    start: int
    known_at: int
    truncations: int


class Housekeeping:
    """The jobs of one directory. Loop thread only."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        journal: Journal,
        high_watermark: Callable[[Log], int],
        leftovers: list[str],
        findings: Findings,
        cleaner: Cleaner,
        producer_expiration_ms: int,
    ) -> None:
        self.producer_expiration_ms = producer_expiration_ms
        self._disk = disk
        self._cleaner = cleaner
        self._directory = directory
        self._journal = journal
        self._high_watermark = high_watermark
        self.keeps_producer: Callable[[int], bool] = is_sinks
        """Producer ids that do not expire."""
        self._removals: list[PendingRemoval] = [PendingRemoval(-1, leftovers)] if leftovers else []
        self._starting: list[PendingDeletion] = []
        self._unrenamed: list[HousekeepingJob] = []
        self._renaming: list[RenameSegmentsJob] = []
        self._moving: list[MoveLogJob] = []
        self.waits = False
        """For a checkpoint that names segments below a log start no longer."""
        self.retention_suspended = False
        """Nothing expires, by whatever setting: only what was deleted goes."""
        self._findings = findings
        self._sealing: set[tuple[Log, int]] = set()
        self._last_retention_ms: int | None = None
        self._turn: list[Log] = []
        self._retained: list[Log] = []
        self._now_ms = 0

    def remove_later(self, now_ms: int, log: Log, move: MoveLogJob, *, keep: bool = False) -> None:
        """A deleted log's directory goes once `file.delete.delay.ms` has passed and it has its new name. OSError.

        keep: only the files that are open are closed then.
        """
        self._starting = [each for each in self._starting if each.log is not log]
        self._sealing -= {each for each in self._sealing if each[0] is log}
        # Not before the deletion is durable: recovery would miss a directory that the journal speaks of.
        lsn = self._journal.last_lsn
        gone = [] if keep else [move.target]
        removal = PendingRemoval(now_ms + log.config.file_delete_delay_ms, gone, list(log.segments), lsn)
        self._moving.append(move)
        try:
            move.rename()
        except NoRoomError as error:
            move.done = partial(self._moved, move, removal)
            move.failed = partial(self._not_renamed, move)
            move.fail(error)
        else:
            # Not here: a topic has many partitions, and a sync for each would hold up the loop for seconds.
            self._journal.sync_names_before_next(self._directory)
            move.synced_with = lsn
            self._removals.append(removal)

    @property
    def moving(self) -> list[MoveLogJob]:
        """Deleted logs whose new names are not durable yet: the journal has to keep what it says of their deletion."""
        if self._moving:
            durable = self._journal.durable_lsn
            self._moving = [move for move in self._moving if move.synced_with is None or move.synced_with > durable]
        return self._moving

    def _moved(self, move: MoveLogJob, removal: PendingRemoval) -> None:
        self._moving.remove(move)
        self._removals.append(removal)

    def finish(self) -> None:
        """Before a clean stop, when no job is running: nothing would tell the next start of these. OSError."""
        for move in self.moving[:]:
            move.run()
            move.complete()

    def take_jobs(self, logs: Mapping[LogKey, Log], now_ms: int, interval_ms: int) -> list[HousekeepingJob]:
        """Everything that is due at `now_ms`."""
        if now_ms < self._now_ms:
            self.clock_set(logs, now_ms, now_ms - self._now_ms)
        self._now_ms = now_ms
        jobs, self._unrenamed = self._unrenamed, []
        growth = self._journal.take_growth()
        if growth is not None:
            jobs.append(GrowJournalJob(self._journal, growth))
        if (note := self._cleaner.take_note()) is not None:
            jobs.append(note)
        for log in self._next_logs(logs):
            for notice in log.take_notices():
                self._findings.add(damage_of(notice))
            if len(log.segments) > 1:  # which of a thousand at rest few have
                with suppress(NoRoomError):
                    for seal in take_seals(log):
                        if (log, seal.base_offset) not in self._sealing:
                            self._sealing.add((log, seal.base_offset))
                            jobs.append(SealSegmentJob(log, seal, self._sealing, self._fail, self._findings))
        if self._last_retention_ms is None:
            # The first look comes a while after the start, as Kafka's does (log.initial.task.delay.ms).
            self._last_retention_ms = now_ms - interval_ms + min(FIRST_RETENTION_DELAY_MS, interval_ms)
        if self._journal.no_room is not None:
            interval_ms = min(interval_ms, FULL_RETENTION_MS)
        if now_ms - self._last_retention_ms >= interval_ms:
            self._last_retention_ms = now_ms
            self._retained = list(logs.values())
        looked_at, self._retained = self._retained[:LOGS_AT_ONCE], self._retained[LOGS_AT_ONCE:]
        for log in looked_at:
            if logs.get((log.topic_id, log.tp.partition)) is log:
                writer_ms = log.config.writer_expiration_ms
                log.producers.expire(now_ms, self.producer_expiration_ms, self.keeps_producer, writer_ms)
                with suppress(KafkaError, NoRoomError):  # full, journal or disk: what may go now may go later, too
                    jobs += self._retain(log, now_ms)
        jobs += self._detach(logs)
        return jobs + self._remove(now_ms)

    def _remove(self, now_ms: int) -> list[HousekeepingJob]:
        durable = self._journal.durable_lsn
        jobs: list[HousekeepingJob] = []
        waiting = []
        for removal in self._removals:
            if removal.due_ms <= now_ms and removal.lsn <= durable and not self._cleaner.is_busy(removal.paths):
                jobs.append(RemoveFilesJob(self._disk, removal, partial(self._not_removed, removal)))
            else:
                waiting.append(removal)
        self._removals = waiting
        return jobs

    def _next_logs(self, logs: Mapping[LogKey, Log]) -> list[Log]:
        """Some of the logs, all of them in the course of some calls: however many there are, a call is short."""
        if not self._turn:
            self._turn = list(logs.values())
        count = max(LOGS_AT_ONCE, len(self._turn) // MOST_CALLS)
        now, self._turn = self._turn[:count], self._turn[count:]
        return [log for log in now if logs.get((log.topic_id, log.tp.partition)) is log]

    def clock_set(self, logs: Mapping[LogKey, Log], now_ms: int, by_ms: int) -> None:
        """The wall clock was set ahead, or back (negative), to `now_ms`: what is due keeps its distance from now.

        So do records without timestamps, and the time for which a producer was idle: its retry may be on its way.
        """
        self._now_ms += by_ms
        if self._last_retention_ms is not None:
            self._last_retention_ms += by_ms
        for removal in self._removals:
            removal.due_ms += by_ms
        for log in logs.values():
            log.producers.clock_set(by_ms)
            for segment in log.segments:
                segment.clock_set(now_ms, by_ms)

    def _retain(self, log: Log, now_ms: int) -> list[HousekeepingJob]:
        """Journal a new log start where segments may go: when it is durable, and what they say of producers."""
        if not log.is_whole:
            return []
        if len(log.producers) and writes_snapshot(log):
            self._retained.append(log)  # behind that checkpoint
            return []
        mark = self._high_watermark(log)
        if not self.retention_suspended and active_expired(log, now_ms, mark):
            with self._journal.making_room():
                log.roll()
        new_start = removable_before(log, now_ms, mark, expires=not self.retention_suspended)
        if new_start > log.segments[0].base_offset and not self._goes(log, new_start):
            with self._journal.making_room():
                if new_start > log.start_offset:
                    log.advance_start(new_start)
            going = PendingDeletion(self._journal.last_lsn, log, new_start, 0, log.truncations)
            if len(log.producers):
                return [ProducerSnapshotJob(log, partial(self._known_durably, going), partial(self._not_kept, log))]
            self._starting.append(going)
        return []

    def _goes(self, log: Log, start: int) -> bool:
        """Whether the segments below an offset are about to go already."""
        return any(
            each.log is log and each.truncations == log.truncations and each.start >= start for each in self._starting
        )

    def _known_durably(self, going: PendingDeletion, end: int) -> None:
        """What these segments say of producers is kept, in a snapshot at `end`."""
        self._starting.append(going._replace(known_at=end))

    def _not_kept(self, log: Log, error: BaseException) -> None:
        """Where there was no room the log has its turn again, before anybody takes what the reserve leaves."""
        if isinstance(error, NoRoomError):
            self._journal.give_way()
            if log not in self._retained:
                self._retained.insert(0, log)
        else:
            self._fail(error)

    def _detach(self, logs: Mapping[LogKey, Log]) -> list[HousekeepingJob]:
        jobs: list[HousekeepingJob] = []
        waiting = []
        for going in self._starting:
            lsn, log, start, known_at, truncations = going
            if truncations != log.truncations:
                continue
            if self._journal.durable_lsn < lsn or log.durable_end < known_at or self._cleaner.is_swapping(log):
                waiting.append(going)
            elif logs.get((log.topic_id, log.tp.partition)) is log:
                # Asked again: a lease may have been taken while the log start became durable.
                mark = self._high_watermark(log)
                bound = min(start, removable_before(log, self._now_ms, mark, expires=not self.retention_suspended))
                forgettable = self._forgettable(log)
                segments = log.detach_before(min(bound, forgettable))
                if segments:
                    delay = log.config.file_delete_delay_ms
                    job = RenameSegmentsJob(self._disk, log, segments, delay, self._renamed, self._not_renamed)
                    self._renaming.append(job)
                    jobs.append(job)
                if log.segments[0] is not log.active and log.segments[0].next_offset <= bound:
                    waiting.append(going)  # for a checkpoint that syncs it
                    self.waits = self.waits or forgettable < bound
        self._starting = waiting
        return jobs

    def _forgettable(self, log: Log) -> int:
        """Offset up to which no start would look for a segment.

        What is not stable has no rolls in the journal: recovery looks for the end from where the checkpoint says on.
        """
        return log.end_offset if log.stable and self._journal.knows(log) else self._cleaner.synced_below(log)

    def is_renaming(self, log: Log) -> bool:
        """Whether segments that are the log's no longer have their names still: none of its own may get one of them."""
        return any(job.log is log for job in self._renaming)

    def _renamed(self, job: RenameSegmentsJob) -> None:
        self._renaming = [each for each in self._renaming if each is not job]
        self._removals.append(PendingRemoval(self._now_ms + job.delay_ms, job.paths, job.segments))

    def _not_removed(self, removal: PendingRemoval, error: BaseException) -> None:
        if isinstance(error, NoRoomError):
            self._removals.append(removal)
        else:
            self._fail(error)

    def _not_renamed(self, job: HousekeepingJob, error: BaseException) -> None:
        if isinstance(error, NoRoomError):
            self._journal.give_way()
            self._unrenamed.append(job)
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._journal.fail(None, error)
