"""Log directories that found no room: who waits is told, what was appended stays queued, maintenance tries again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duramen.storage.directory import LogDirectory
from duramen.storage.no_room import NoRoomError

if TYPE_CHECKING:
    from duramen.partition.store import Store


class Room:
    """Of one store. on_change: called when a directory is found full, and with None when it has room again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._full: list[LogDirectory] = []
        self.on_change: Callable[[LogDirectory, NoRoomError | None], None] = lambda directory, error: None

    def found_none(self, directory: LogDirectory, error: NoRoomError) -> None:
        """A write found no room: no more are taken until a checkpoint has found some.

        Where maintenance does not run, at a start and at the end, nobody would look for room: then the directory is
        failed instead, and what was acknowledged is in the journal.
        """
        if not self._store.maintenance.running or directory.journal.failed is not None:
            self._store.fail(directory, error)
            return
        directory.journal.no_room = error
        self._store.answer_unknown(directory, f"{directory.path} has no room ({error})")
        if directory not in self._full:
            self._full.append(directory)
            self.on_change(directory, error)

    def look(self, directory: LogDirectory) -> None:
        """Tell it once when a directory that was full takes writes again."""
        if directory in self._full and directory.journal.no_room is None:
            self._full.remove(directory)
            self.on_change(directory, None)
