"""Drives compaction: asks the directories for passes, runs their pieces on lanes of their own, and throttles them.

A piece is about a millisecond of a processor that the loop wants, too: threads of one process run Python one at a time.
While records are being written, each piece is followed by a pause a few times as long; without that it would cost every
request some of its time. `log.cleaner.io.max.bytes.per.second` puts pieces off as well.
"""

from __future__ import annotations

from functools import partial

from duramen.partition.store.services import StoreServices
from duramen.ports import Clock, Timer
from duramen.storage import CleanerSettings, CompactionJob, CompactionPass, LogDirectory, NoRoomError, as_disk_full

PAUSES = 3.0
"""Pause after a piece, in times of how long it took, while there are writes: compaction gets a quarter of the time."""
CHECKPOINT_SECONDS = 3.0
"""Until there is another look where only a checkpoint was missing."""
LOOKS = 10
"""How many such looks there are at most: a checkpoint of very many logs takes twenty seconds."""
WAIT_SECONDS = 0.02
"""Until a pass is asked again that waits for the journal or for a lease."""


class Compaction:
    """The passes of one store. Loop thread only. settings: take effect with the next pass, the rate at once."""

    def __init__(self, store: StoreServices, clock: Clock) -> None:
        self.settings = CleanerSettings()
        self._store = store
        self._clock = clock
        self._free_at = 0.0
        self._groups = 0
        self._lanes: dict[int, CompactionPass] = {}
        self._timer: Timer | None = None
        self._looks = 0
        self._stopped = False

    def start(self) -> None:
        """Begin to look for work, for the first time after `log.cleaner.backoff.ms`."""
        self._look_later()

    def stop(self) -> None:
        """Begin nothing more; a job under way ends."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def configure(self, settings: CleanerSettings) -> None:
        """Take over changed settings."""
        self.settings = settings

    def _look_later(self) -> None:
        if not self._stopped:
            self._timer = self._clock.call_later(max(0.001, self.settings.backoff_ms / 1000), self._look)

    def _look(self) -> None:
        self.look()
        self._look_later()
        if not self._looks and any(directory.cleaner.waits for directory in self._store.directories):
            # Maintenance begins the checkpoint within a second, and seals within one when it is done.
            self._looks = LOOKS
            self._clock.call_later(CHECKPOINT_SECONDS, self._look_again)

    def _look_again(self) -> None:
        """As long as the checkpoint is under way, and once more: what it closed may not have been sealed yet."""
        if self._stopped:
            return
        early = any(directory.checkpoint_due for directory in self._store.directories)
        self.look()
        self._looks = self._looks - 1 if early else min(self._looks - 1, 1)
        if self._looks:
            self._clock.call_later(CHECKPOINT_SECONDS, self._look_again)

    def look(self) -> None:
        """Begin as many passes as may run at once, of the logs that have it most necessary."""
        for directory in self._store.directories:
            while len(self._lanes) < self.settings.threads and not self._stopped and self._begin(directory):
                pass

    def _begin(self, directory: LogDirectory) -> bool:
        try:
            cleaning = directory.cleaner.begin_pass(self.settings, self._clock.wall_ms())
        except OSError as error:
            if not isinstance(as_disk_full(error), NoRoomError):
                self._store.fail(directory, error)
            return False
        if cleaning is None:
            return False
        lane = next(number for number in range(self.settings.threads) if number not in self._lanes)
        self._lanes[lane] = cleaning
        self._go_on(directory, lane)
        return True

    def _go_on(self, directory: LogDirectory, lane: int) -> None:
        """The next piece of a pass, now or when the rate allows it."""
        if self._stopped:
            return  # the directory finishes what may not be left half done when it is closed
        wait = self._free_at - self._clock.monotonic()
        if wait > 0:
            self._clock.call_later(wait, partial(self._go_on, directory, lane))
            return
        cleaning = self._lanes[lane]
        job = cleaning.next_job(self._clock.wall_ms(), int(1000 * self._clock.monotonic()))
        if directory.journal.failed is None:
            self._store.commit_soon()  # a swap is journaled, and waits for it
        if cleaning.over:
            del self._lanes[lane]
            if cleaning.completed:
                # What is dirtiest now may be another log: no pause between passes, as long as there is work.
                self._clock.call_soon(self.look)
        elif job is None:
            self._clock.call_later(WAIT_SECONDS, partial(self._go_on, directory, lane))
        else:
            self._submit(directory, lane, job)

    def _submit(self, directory: LogDirectory, lane: int, job: CompactionJob) -> None:
        started = self._clock.monotonic()

        def done(moved: int | None, error: BaseException | None) -> None:
            now = self._clock.monotonic()
            if error is not None:
                self._lanes[lane].fail(error)
            if moved:
                self._free_at = max(self._free_at, now) + moved / max(1.0, self.settings.bytes_per_second)
            groups, self._groups = self._groups, self._store.statistics.groups
            if self._groups != groups:
                self._free_at = max(self._free_at, now + PAUSES * (now - started))
            self._go_on(directory, lane)

        self._store.submit(f"cleaner-{lane}", job, done)
