"""The open files of segments, all logs of a process together: a bound on them, least recently used closed first.

A file that was written since its last sync stays open whatever the bound says: the kernel tells an error of the
write-back once, to who has the file open, and after close and reopen nobody would hear of it. When such files alone
exceed the bound, `crowded` asks for a checkpoint, which syncs them. When they are `full` no other file is written to
before it has: the process may not open many more.
"""

from __future__ import annotations

import sys
from typing import Protocol
from weakref import ref

MOST_FILES = 10_000
"""The bound where the process may open very many."""


class Holder(Protocol):
    """Who has files open: a segment."""

    synced: int
    flushed: int

    def release_files(self) -> None: ...


class OpenFiles:
    """Open files in the order of their last use, as far as `used` notes it. `opened` and `closed` on any thread, the
    rest on the loop.

    limit: files; -1 stands for none. most: how many there may be at worst, the same.
    """

    __slots__ = ("_files", "_next", "_noted_from", "limit", "most")

    def __init__(self, limit: int = -1, most: int = -1) -> None:
        self.limit = limit
        self.most = most
        # Every change is one call into the dict, which is why no lock is needed.
        # Weak, so that the files of a log that was given up close with it.
        self._files: dict[tuple[ref[Holder], str], None] = {}
        self._next = limit
        self._noted_from = limit // 2 if limit >= 0 else sys.maxsize

    def __len__(self) -> int:
        return len(self._files)

    def opened(self, holder: Holder, which: str) -> None:
        """The holder has opened one of its files."""
        self._files[ref(holder), which] = None

    def closed(self, holder: Holder, which: str) -> None:
        """The holder has let go of it, or never had it."""
        self._files.pop((ref(holder), which), None)

    def used(self, holder: Holder, which: str) -> None:
        """It was read or written just now: others are closed before it. Not noted before half of the bound is open."""
        files = self._files
        if len(files) < self._noted_from:
            return
        key = ref(holder), which
        if key in files:
            del files[key]
            files[key] = None

    @property
    def crowded(self) -> bool:
        """Whether unsynced files exceed the bound, as far as the last `trim` knows."""
        return 0 <= self.limit < self._next

    @property
    def full(self) -> bool:
        """Whether another file might be one too many for the process, also after closing those that may be closed."""
        if not 0 <= self.most <= len(self._files):
            return False
        self.trim(again=True)
        return self.most <= len(self._files)

    def trim(self, *, again: bool = False) -> None:
        """Close what was not used for longest while there are too many.

        Some room is made at once, and after a pass that could not make any the next one waits until the files have
        grown further in number, or until `again`: something was synced.
        """
        if again:
            self._next = self.limit
        if self.limit < 0 or len(self._files) <= self._next:
            return
        wanted = self.limit - self.limit // 8
        for key in list(self._files):
            if len(self._files) <= wanted:
                break
            holder = key[0]()
            if holder is None:
                self._files.pop(key, None)
            elif holder.synced >= holder.flushed:
                holder.release_files()
        left = len(self._files)
        self._next = self.limit if left <= self.limit else left + self.limit // 8 + 1
