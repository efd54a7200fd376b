"""Reading several streams as one."""

from __future__ import annotations

from duramen.dlsn import Dlsn
from duramen.streams.immediate import run
from duramen.streams.merge_cursor import MergeCursor, MergedRecord


class MergedReader:
    """An iterator over the records of several streams; `Namespace.merged` gives it. For one thread."""

    def __init__(self, cursor: MergeCursor) -> None:
        self._cursor = cursor

    @property
    def position(self) -> dict[str, Dlsn]:
        """Where another one goes on, for each stream: `start` of `Namespace.merged`."""
        return dict(self._cursor.position)

    def __iter__(self) -> MergedReader:
        return self

    def __next__(self) -> MergedRecord:
        found = run(self._cursor.next())
        if found is None:
            raise StopIteration
        return found
