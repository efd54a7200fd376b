"""Group commits off the loop, and again a little later where the process has too many files open."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.partition.store.disk_full import RETRY_SECONDS
from duramen.ports import Clock
from duramen.storage import JournalGroup, LogDirectory, NoRoomError

if TYPE_CHECKING:
    from duramen.partition.store.store import Store

Done = Callable[[LogDirectory, JournalGroup, BaseException | None], None]


class GroupCommits:
    """Of one store. put_off: how many wait for their next try; a stop waits for them."""

    def __init__(self, store: Store, clock: Clock, done: Done) -> None:
        self.put_off = 0
        self._store = store
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
        """It may take long: who waits for the group is told so."""
        self._store.room.found_none(directory, error)
        if directory.journal.failed is None:
            self.put_off += 1
            self._clock.call_later(RETRY_SECONDS, partial(self._try_again, directory, group, started))

    def _try_again(self, directory: LogDirectory, group: JournalGroup, started: float) -> None:
        self.put_off -= 1
        if directory.journal.failed is None:
            self._write(directory, group, started)
        self._store.commit_soon()
