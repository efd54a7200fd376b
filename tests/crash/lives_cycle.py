"""What the engine has other threads do, in parts, so that whatever else a directory does may come between them.

A group of the journal, a round of checkpoints, maintenance and a compaction are under way until a later step goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from tests.crash.session import CLEANER, Session, require_not_early

from duramen.errors import DuramenError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.compaction.compaction_pass import CompactionPass
from duramen.storage.directory.checkpointer import CheckpointJob
from duramen.storage.directory.housekeeping import HousekeepingJob
from duramen.storage.directory.truncations import RebuildJob
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.journal.journal import JournalGroup
from duramen.storage.log.leases import Lease
from duramen.storage.log.log import Log
from duramen.storage.log.sync import SyncJob


class Cycle(Session):
    """The directory of one life, with what is under way in it.

    dice: what draws the steps. trace: their names, and what they raised. met: how often something was met, by name.
    """

    disk: CrashDisk  # type: ignore[assignment] # one that crashes by itself needs no tape

    def __init__(self, seed: int, disk: Callable[..., CrashDisk] = CrashDisk) -> None:
        self.dice = Random(seed * 7919 + 1)
        super().__init__(seed, disk(Random(seed), torn=self.dice.random() < 0.7))  # type: ignore[arg-type]
        self.trace: list[str] = []
        self.met: Counter[str] = Counter()
        self.next_topic = 1
        self.disk.wall_ms = lambda: self.now
        self.nothing_under_way()

    def nothing_under_way(self) -> None:
        """As after a start."""
        self.group: JournalGroup | None = None
        self.round: tuple[CheckpointJob, bool] | None = None
        self.jobs: list[HousekeepingJob] = []
        self.ran: list[tuple[HousekeepingJob, Exception | None]] = []
        self.rebuilds: list[RebuildJob] = []
        self.cleaning: CompactionPass | None = None
        self.cleaning_job: Callable[[], object] | None = None
        self.leases: list[tuple[Log, Lease]] = []
        self._waiting.clear()

    def mark(self) -> None:
        """There is no tape."""

    def has_run(self, lane: str, work: Callable[[], object]) -> bool:
        """Do a job that another thread does; False: a part of it, and it is to be asked for again. What it raises."""
        work()
        return True

    @property
    def is_faulty(self) -> bool:
        """Whether the disk may have been at fault for an error that was just met."""
        return self.disk.fault is not None

    def take_group(self) -> None:
        """What is queued becomes a group; others go on meanwhile."""
        if self.group is None:
            self.group = self.directory.take_group()

    def end_group(self) -> None:
        """The group that was taken is written and synced."""
        group = self.group
        if group is None:
            return
        try:
            if not self.has_run("journal", group.run):
                return
        except NoRoomError:
            return  # it is tried again
        except OSError as error:
            self.group = None
            self.directory.journal.fail(group, error)
            raise
        self.group = None
        self.directory.journal.complete(group)
        self.settle()
        for log in self.directory.logs.values():
            log.producers.committed(log.durable_end)
        self.met["groups"] += 1

    def commit_some(self) -> None:
        """Some groups."""
        for _ in range(3):
            self.take_group()
            self.end_group()
        self.go_on_with_rebuilds()

    def go_on_with_rebuilds(self) -> None:
        """Take the jobs that read what truncated logs know of producers, or run the first."""
        if not self.rebuilds:
            self.rebuilds = self.directory.take_rebuilds()
            return
        job = self.rebuilds[0]
        try:
            if not self.has_run("producers", job.run):
                return
        except (OSError, DuramenError) as error:
            self.rebuilds.pop(0)
            overtaken = job.rebuild.overtaken  # the log may have begun anew, and then its files go
            job.fail(error)
            if not isinstance(error, NoRoomError) and not overtaken:
                raise
            return
        self.rebuilds.pop(0)
        job.complete()
        self.rebuilt(job.log)
        self.met["producers rebuilt"] += job.log.is_whole

    def rebuilt(self, log: Log) -> None:
        """Its producers may be known by now."""

    def go_on_with_checkpoint(self) -> None:
        """Take a job of it, run it, or account for it."""
        if self.round is None:
            job = self.directory.take_checkpoint(self.dice.random() < 0.5)
            self.round = None if job is None else (job, False)
            return
        job, has_run = self.round
        if not has_run:
            try:
                has_run = self.has_run("checkpoint", job.run)
            except OSError as error:
                self.round = None
                self.directory.fail_checkpoint(job, error)
                raise
            self.round = job, has_run
            return
        self.round = None
        syncs = job.syncs  # which the job lets go
        self.directory.complete_checkpoint(job)
        for log, sync, _ in syncs:
            self.note_sync(log, sync)
        self.met["checkpoints"] += job.files is not None

    def note_sync(self, log: Log, sync: SyncJob) -> None:
        """What a sync promises of a page-cache log, once the journal says that it is one.

        Behind a cut nothing: the job may speak of what was cut off.
        """
        promise = self.promises[log.topic_id]
        if not promise.cuts_asked and not log.stable and self.directory.journal.knows(log):
            promise.synced_end = max(promise.synced_end, min(sync.end_offset, log.end_offset))

    def checkpoint_some(self) -> None:
        """Some parts of checkpoints."""
        for _ in range(self.dice.randrange(1, 12)):
            self.go_on_with_checkpoint()

    def go_on_with_maintenance(self) -> None:
        """Take what is due, run the first job, or account for it."""
        if self.ran:
            self.account_for_maintenance()
        elif self.jobs:
            self.run_maintenance()
        else:
            self.take_maintenance()

    def account_for_maintenance(self) -> None:
        """Of the first job that has run."""
        job, error = self.ran.pop(0)
        if error is None:
            job.complete()
            self.met[f"maintenance: {type(job).__name__}"] += 1
        else:
            job.fail(error)

    def run_maintenance(self) -> None:
        """Its first job that has not run."""
        job = self.jobs[0]
        failed = None
        try:
            if not self.has_run("housekeeping", job.run):
                return
        except (OSError, DuramenError) as error:
            failed = error
        self.jobs.pop(0)
        self.ran.append((job, failed))

    def take_maintenance(self) -> None:
        """What is due."""
        asked = {log: self.promises[log.topic_id].start_asked for log in self.directory.logs.values()}
        self.now += 1
        starts = {log: log.start_offset for log in asked}
        allowed = self.allow_retention(self.now)
        self.jobs += self.directory.take_maintenance(self.now)
        require_not_early(allowed)
        self.met["starts moved by retention"] += any(log.start_offset > start for log, start in starts.items())
        for log in self.directory.logs.values():
            promise = self.promises[log.topic_id]
            before = 0 if promise.cut_asked is None and promise.anew is None else asked[log]
            promise.start_asked = max(promise.start, log.start_offset, before)

    def leased_from(self, log: Log, now_ms: int) -> list[int]:
        """Of those that it knows."""
        return [lease.from_offset for of, lease in self.leases if of is log and lease.expires_ms > now_ms]

    def keep_house_some(self) -> None:
        """Some parts of maintenance: seals, retention, removals, the journal's growth."""
        for _ in range(self.dice.randrange(1, 10)):
            self.go_on_with_maintenance()

    def go_on_with_compaction(self) -> None:
        """Begin a pass, take a job of it, or run it."""
        if self.cleaning is None:
            self.now += 1000
            self.cleaning = self.directory.cleaner.begin_pass(CLEANER, self.now)
            return
        if self.cleaning_job is None:
            self.cleaning_job = self.cleaning.next_job(self.now)
        else:
            try:
                if not self.has_run("cleaner", self.cleaning_job):
                    return
            except (OSError, DuramenError) as error:
                self.cleaning.fail(error)
            self.cleaning_job = None
        if self.cleaning.over:
            self.cleaning = self.cleaning_job = None
            self.met["compactions"] += 1

    def compact_some(self) -> None:
        """Some parts of compactions."""
        for _ in range(self.dice.randrange(1, 20)):
            self.go_on_with_compaction()
