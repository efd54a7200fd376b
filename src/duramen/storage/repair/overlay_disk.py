"""A disk as it is not: once some files are moved, for commands that say beforehand what they are going to do; or as if
all could be read.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Collection, Mapping
from typing import Any, cast

from duramen.ports import Disk, File
from duramen.storage.checkpoint.loss_record import LOSS_RECORD
from duramen.storage.files.bad_sectors import read

Gaps = dict[str, set[tuple[int, int]]]
"""By path: first byte and end of each place that could not be read."""


class _View:
    def __init__(self, disk: Disk, hidden: frozenset[str], real: Mapping[str, str]) -> None:
        self._disk = disk
        self._hidden = hidden
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        if not self._is_seen(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self._disk.open(self._real.get(path, path), create=create, write=write)

    def exists(self, path: str) -> bool:
        return path in self._real or (self._is_seen(path) and self._disk.exists(path))

    def list_directory(self, path: str) -> list[str]:
        names = {name for name in self._disk.list_directory(path) if self._is_seen(posixpath.join(path, name))}
        return sorted(names | {posixpath.basename(each) for each in self._real if posixpath.dirname(each) == path})

    def _is_seen(self, path: str) -> bool:
        return path in self._real or path not in self._hidden


_NOWHERE: Mapping[str, str] = {}


def seen_as(disk: Disk, hidden: Collection[str], real: Mapping[str, str] = _NOWHERE) -> Disk:
    """The disk as if the files at the paths `hidden` were not there, and those of `real` were; for reading.

    real: where the bytes of each of these paths are.
    """
    return cast(Disk, _View(disk, frozenset(hidden), real)) if hidden or real else disk


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
