"""A disk as it will be once some files are moved: for commands that say beforehand what they are going to do."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Collection, Mapping
from typing import Any, cast

from duramen.ports import Disk, File


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
