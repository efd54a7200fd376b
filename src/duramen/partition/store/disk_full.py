"""Log directories that are full: waiters are answered, what was appended stays queued, maintenance tries again.

Where it is files that cannot be opened, waiters wait for a while: what they wait for needs no more than a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from duramen.partition.store.services import StoreServices
from duramen.ports import Clock
from duramen.storage import LogDirectory, NoRoomError, lacks_files, what_lacks, without_traceback

QUIET_SECONDS = 10.0
"""A small write may fit where the next large one does not: a disk is full until nothing lacked room for so long."""
RETRY_SECONDS = 0.1
"""Between two tries of a commit: it writes all that is queued, as far as there is room, and others commit meanwhile."""
PATIENCE_SECONDS = 10.0
"""So long may files be lacking before those who wait are told that the outcome is unknown."""


class DiskFull:
    """Of one store. on_change(directory, error, lacking): called when one is found full, and when it no longer is."""

    def __init__(self, store: StoreServices, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._full: dict[LogDirectory, tuple[NoRoomError, float]] = {}
        """With the last write that found no room, and when (monotonic)."""
        self._short_since: dict[LogDirectory, float] = {}
        """Since when files cannot be opened at all."""
        self.on_change: Callable[[LogDirectory, NoRoomError, bool], None] = lambda directory, error, lacking: None

    def lacking(self, directory: LogDirectory) -> NoRoomError | None:
        """What lacked room lately; None when the disk is not full."""
        return self._full[directory][0] if directory in self._full else None

    def found_none(self, directory: LogDirectory, error: NoRoomError) -> None:
        """A write found no room: no more are taken until a checkpoint has found some.

        Where maintenance does not run, at a start and at the end, nobody would look for room: then the reserve goes,
        and without one the directory is failed instead; what was acknowledged is in the journal.
        """
        if not self._store.is_maintained or directory.journal.failed is not None:
            if directory.journal.failed is None and directory.ballast.release():
                self._store.commit_soon()
            else:
                self._store.fail(directory, error)
            return
        patient = lacks_files(error) and not self._lasts(directory)
        self.is_lacking(directory, error)
        if patient:
            return
        if directory.journal.awaits_room and directory.ballast.release():
            self._try_at_once(directory)
            self._store.commit_soon()
        else:
            self._store.answer_unknown(directory, f"{directory.path} {what_lacks(error)}")

    def _lasts(self, directory: LogDirectory) -> bool:
        """Whether files have been lacking for long: with every try, of which there is one a second."""
        now = self._clock.monotonic()
        if directory not in self._full or now - self._full[directory][1] > 3.0:
            self._short_since[directory] = now
        return now - self._short_since.setdefault(directory, now) >= PATIENCE_SECONDS

    def is_lacking(self, directory: LogDirectory, error: NoRoomError) -> None:
        """No more writes are taken, but nothing that waits for being written has failed."""
        directory.journal.no_room = error = without_traceback(error)
        news = directory not in self._full
        self._full[directory] = error, self._clock.monotonic()
        if news:
            self.on_change(directory, error, True)

    @contextmanager
    def making(self, directory: LogDirectory) -> Iterator[None]:
        """What is appended to the directory meanwhile leads to room on its disk, and is tried at once."""
        self._try_at_once(directory)
        with directory.journal.making_room():
            yield

    def _try_at_once(self, directory: LogDirectory) -> None:
        if directory in self._full:
            self._full[directory] = self._full[directory][0], self._clock.monotonic() - 2 * RETRY_SECONDS

    def is_worth_a_try(self, directory: LogDirectory) -> bool:
        """Whether a commit should write what the directory has queued: not at once again where it was full."""
        if directory.journal.no_room is None or directory not in self._full or not self._store.is_maintained:
            return True
        return self._clock.monotonic() - self._full[directory][1] >= RETRY_SECONDS

    def check_relief(self, directory: LogDirectory) -> None:
        """Now and then: tell it once when a directory that was full has room."""
        if directory not in self._full or directory.journal.no_room is not None:
            return
        if self._clock.monotonic() - self._full[directory][1] >= QUIET_SECONDS:
            error, _ = self._full.pop(directory)
            self.on_change(directory, error, False)
