"""What a store does besides committing: checkpoints, the journal's growth, sealing, retention, deletion, scrubbing.

Everything long runs off the loop as a job. Once a second is enough for most of it; a journal that fills faster is
checkpointed at once, and while it is nearly full the store asks its writers to pause.
"""

from __future__ import annotations

from typing import Any

from duramen.config import BrokerConfig
from duramen.errors import StorageError
from duramen.partition.store.compaction import Compaction
from duramen.partition.store.disk_full import DiskFull
from duramen.partition.store.services import StoreServices
from duramen.ports import Clock, Timer
from duramen.storage import HousekeepingJob, JournalGrowth, LogDirectory, NoRoomError

MAINTENANCE_SECONDS = 1.0
PROMPT_FILL = 0.5
"""Fill of a journal from which checkpoints are not left to the once-a-second maintenance."""

CONGESTED_FILL = 0.85
"""Fill from which no more should be read from clients until a checkpoint has made room."""

CONGESTED_DIRTY = 8.0
"""The same for unsynced bytes, in `duramen.dirty.max.bytes`: far above what the disk keeps up with, and far below where
the system would stop the writing thread itself."""


class Maintenance:
    """The maintenance cycle of one store."""

    def __init__(self, store: StoreServices, disk_full: DiskFull, compaction: Compaction, clock: Clock) -> None:
        self._store = store
        self._disk_full = disk_full
        self._compaction = compaction
        self._clock = clock
        self._timer: Timer | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin checkpoints, sealing, retention and deletions, once a second, and compaction.

        The reserve is made at once: clients can fill a disk within the first second. One that was full before the start
        is so from the beginning.
        """
        self._timer = self._clock.call_later(MAINTENANCE_SECONDS, self._maintain)
        self._compaction.start()
        for directory in self._store.directories:
            self._keep_reserve(directory)

    @property
    def running(self) -> bool:
        """Whether it has begun and was not stopped."""
        return self._timer is not None and not self._stopped

    def reconfigure(self, config: BrokerConfig) -> None:
        """Settings of the node that changed, or came from the metadata log, for the directories that are open."""
        for directory in self._store.directories:
            directory.expire_producers_after(config.integer("producer.id.expiration.ms"))

    def _maintain(self) -> None:
        if self._stopped:
            return
        self._timer = self._clock.call_later(MAINTENANCE_SECONDS, self._maintain)
        for directory in self._store.directories:
            if directory.journal.failed is None:
                self._checkpoint(directory)
                self._house_keep(directory)
                self._keep_reserve(directory)
                self._disk_full.check_relief(directory)
            self._scrub(directory)
        self._store.commit()
        self._look_at_congestion()

    def _checkpoint(self, directory: LogDirectory) -> None:
        began = self._clock.monotonic()
        try:
            checkpoint = directory.take_checkpoint()
        except NoRoomError as error:
            self._disk_full.found_none(directory, error)
            return
        except (OSError, StorageError) as error:
            self._store.fail(directory, error)
            return
        if checkpoint is None:
            return
        taken = self._clock.monotonic()
        waited = directory.waits_for_files

        def done(_: Any, error: BaseException | None) -> None:
            ended = self._clock.monotonic()
            if error is not None:
                directory.fail_checkpoint(checkpoint, error)
                if isinstance(error, NoRoomError):
                    self._disk_full.found_none(directory, error)
                else:
                    self._store.fail(directory, error)
                return
            try:
                directory.complete_checkpoint(checkpoint)
            except OSError as failure:
                self._store.fail(directory, failure)
                return
            if waited or directory.is_truncating:
                self._store.commit_soon()
            pause = taken - began + self._clock.monotonic() - ended
            self._store.statistics.checkpointed(ended - taken, pause)
            self.make_room(directory)

        self._store.submit("checkpoint", checkpoint.run, done)

    def _house_keep(self, directory: LogDirectory) -> None:
        try:
            jobs = directory.take_maintenance(self._clock.wall_ms(), self._clock.monotonic())
        except (OSError, StorageError) as error:
            self._store.fail(directory, error)
            return
        for job in jobs:
            self._submit("housekeeping", directory, job)

    def rebuild_producers(self, directory: LogDirectory) -> None:
        """Logs that were truncated take appends again when it is read what they know of producers."""
        for job in directory.take_rebuilds():
            self._submit("producers", directory, job)

    def _submit(self, lane: str, directory: LogDirectory, job: HousekeepingJob) -> None:
        def done(_: Any, error: BaseException | None) -> None:
            if error is None:
                job.complete()
            else:
                job.fail(error)
            if directory.is_truncating:
                self._store.commit_soon()  # it may have waited for this job

        self._store.submit(lane, job.run, done)

    def _keep_reserve(self, directory: LogDirectory) -> None:
        """A disk that has no room for it is full: nothing would be left for what makes room."""
        ballast = directory.ballast
        if not ballast.take_making():
            return

        def done(_: Any, error: BaseException | None) -> None:
            ballast.made(error)
            if isinstance(error, NoRoomError):
                self._disk_full.is_lacking(directory, error)
            elif error is not None:
                self._store.fail(directory, error)

        self._store.submit("housekeeping", ballast.make, done)

    def _scrub(self, directory: LogDirectory) -> None:
        job = directory.take_scrub(self._clock.wall_ms())
        if job is None:
            return

        def done(_: Any, error: BaseException | None) -> None:
            if error is None:
                directory.complete_scrub(job)
            else:
                directory.scrubber.fail(error)

        self._store.submit("scrub", job.run, done)

    def make_room(self, directory: LogDirectory) -> None:
        """Keep the journal ahead of its writers: grow it, and checkpoint early when it fills."""
        journal = directory.journal
        growth = journal.take_growth()
        if growth is not None:
            self._store.submit("housekeeping", growth.run, _Growing(self._store, directory, growth))
        if journal.fill >= PROMPT_FILL or directory.dirty_share >= 1 or directory.crowded or directory.waits_for_files:
            self._checkpoint(directory)
        self._look_at_congestion()

    def written(self, directory: LogDirectory) -> None:
        """Segments were written to: of page-cache topics, for which no group commit ends, it may be too much.

        Or some were not, for want of files.
        """
        if directory.dirty_share >= 1 or directory.waits_for_files:
            self.make_room(directory)

    def _look_at_congestion(self) -> None:
        """Ask writers to pause, or tell them that they may go on; a directory that has failed holds nobody up."""
        congested = any(map(_is_congested, self._store.directories))
        relieved = self._store.congested and not congested
        self._store.congested = congested
        if relieved:
            self._store.on_relief()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()


def _is_congested(directory: LogDirectory) -> bool:
    """Whether writers are to wait for a checkpoint; where the disk failed or is full they are refused instead."""
    journal = directory.journal
    congested = journal.fill >= CONGESTED_FILL or directory.dirty_share >= CONGESTED_DIRTY
    return congested and journal.failed is None and journal.no_room is None


class _Growing:
    """The end of a journal's growth: another part is ready, or the disk has no room for it."""

    __slots__ = ("_directory", "_growth", "_store")

    def __init__(self, store: StoreServices, directory: LogDirectory, growth: JournalGrowth) -> None:
        self._store = store
        self._directory = directory
        self._growth = growth

    def __call__(self, _: Any, error: BaseException | None) -> None:
        if error is None:
            self._directory.journal.complete_growth(self._growth)
            self._store.commit_soon()
        else:
            self._directory.journal.fail_growth(self._growth, error)
