"""Disks to look at before anything is changed: one whose names can be changed, and one that reads what it can."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Collection
from typing import Any, cast

from duramen.ports import Disk, File
from duramen.storage.checkpoint.loss_record import LOSS_RECORD
from duramen.storage.files.atomic import remove_file
from duramen.storage.files.bad_sectors import read

Gaps = dict[str, set[tuple[int, int]]]
"""By path: first byte and end of each place that could not be read."""


class OverlayDisk:
    """Another disk on which files can be removed and renamed, for reading: the names change here, not on that disk.

    What repair and recovery do to names can so be run before it is done. Nothing can be written.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._places: dict[str, str | None] = {}
        """Path below of each name that was changed; None where it was removed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        if create or write:
            raise OSError(errno.EROFS, "Read-only file system", path)
        return self._disk.open(self._place(path))

    def exists(self, path: str) -> bool:
        place = self._places.get(path, path)
        return place is not None and self._disk.exists(place)

    def list_directory(self, path: str) -> list[str]:
        changed = {name: place for name, place in self._places.items() if posixpath.dirname(name) == path}
        names = set(self._disk.list_directory(self._place(path))) - {posixpath.basename(name) for name in changed}
        return sorted(names | {posixpath.basename(name) for name, place in changed.items() if place is not None})

    def remove(self, path: str) -> None:
        self._check(path)
        self._places[path] = None

    def rename(self, source: str, target: str) -> None:
        self._check(source)
        self._places[target] = self._place(source)
        self._places[source] = None

    def sync_directory(self, path: str) -> None:
        pass

    def _check(self, path: str) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def _place(self, path: str) -> str:
        place = self._places.get(path, path)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return place


def without_files(disk: Disk, paths: Collection[str]) -> Disk:
    """The disk as if there were nothing at these paths, for reading."""
    if not paths:
        return disk
    overlay = cast(Disk, OverlayDisk(disk))
    for path in paths:
        remove_file(overlay, path)
    return overlay


def as_readable(disk: Disk, gaps: Gaps) -> Disk:
    """The disk as if all segments, and the list of losses, could be read.

    gaps: gets what could not be read, of what was asked for.
    """
    return cast(Disk, _Readable(disk, gaps))


class _Readable:
    def __init__(self, disk: Disk, gaps: Gaps) -> None:
        self._disk = disk
        self._gaps = gaps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        file = self._disk.open(path, create=create, write=write)
        name = posixpath.basename(path)
        return cast(File, _ReadableFile(file, self._gaps)) if ".log" in name or name == LOSS_RECORD else file


class _ReadableFile:
    def __init__(self, file: File, gaps: Gaps) -> None:
        self._file = file
        self._gaps = gaps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pread(self, length: int, offset: int) -> bytes:
        found: set[tuple[int, int]] = set()
        data = read(self._file, length, offset, found)
        if found:
            self._gaps.setdefault(self._file.path, set()).update(found)
        return data
