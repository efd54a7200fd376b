"""Ballast file: released when the disk is full, so that deletions can still be journaled.

A deletion, a new retention and what they lead to have to be written before anything may go, and a full disk takes
nothing. So a file of zeros stands by. It is released when something that makes room is asked for, and made again when
there is room; until then the directory counts as full, or ordinary writes would have its room.

Nothing relies on it: it may be missing or short after a crash, and may be removed by hand. A file system that stores
zeros without blocks (compression) keeps no room this way.
"""

from __future__ import annotations

import errno
import posixpath
from contextlib import suppress

from duramen.ports import Disk
from duramen.storage.files.atomic import remove_file
from duramen.storage.files.disk_full import NoRoomError, retriable_write

BALLAST = "duramen-reserve"


def release_ballast(disk: Disk, directory: str, size: int) -> bool:
    """At a start that found no room: let the directory's reserve go; whether there was one. OSError."""
    ballast = Ballast(disk, directory, size)
    ballast.find()
    return ballast.release()


class Ballast:
    """Of one directory, `size` bytes; 0: none is kept. Loop thread only, but for `make`.

    lacking: there should be one and is none.
    """

    def __init__(self, disk: Disk, directory: str, size: int) -> None:
        self.size = size
        self.lacking = size > 0
        self._disk = disk
        self._directory = directory
        self._path = posixpath.join(directory, BALLAST)
        self._making = False

    def find(self) -> None:
        """At a start: what a crash left half made goes, and what is of another size. OSError."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return
        try:
            found = file.size()
        finally:
            file.close()
        if found == self.size > 0:
            self.lacking = False
        else:
            remove_file(self._disk, self._path)

    def release(self) -> bool:
        """Let its room go; whether there was any to let go. A disk that cannot remove it fails with the next write."""
        if self.lacking or not self.size:
            return False
        self.lacking = True
        try:
            return remove_file(self._disk, self._path)
        except OSError:
            return False

    def take_making(self) -> bool:
        """Whether it is to be made now: then `make` off the loop, and `made` on it."""
        if not self.lacking or self._making:
            return False
        self._making = True
        return True

    def fits(self, beside: int = 0) -> bool:
        """Whether another one of its size would fit, beside so many bytes. OSError. On any thread."""
        return self._disk.volume_space(self._directory).free >= self.size + beside

    def make(self) -> None:
        """NoRoomError: what there was is free again. OSError. On any thread."""
        if not self.fits():
            raise NoRoomError(errno.ENOSPC, f"less than {self.size} bytes are free", self._directory)
        try:
            with retriable_write():
                file = self._disk.open(self._path, create=True, write=True)
                try:
                    self._disk.preallocate(file, self.size)
                finally:
                    file.close()
        except OSError:
            with suppress(OSError):
                remove_file(self._disk, self._path)
            raise

    def made(self, error: BaseException | None) -> None:
        """`make` has run."""
        self._making = False
        self.lacking = error is not None
