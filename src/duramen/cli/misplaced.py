"""Directories where a file of a partition belongs: they are told and moved, and all else is judged as without them."""

from __future__ import annotations

import errno
import posixpath
from typing import Any, cast

from duramen.ports import Disk, File
from duramen.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, parse_partition_name
from duramen.storage.segment import PRODUCERS, SNAPSHOT, SUFFIXES, parse_name
from duramen.storage.snapshot_files import parse_snapshot_name

MISPLACED = "it is a directory where a file belongs"


class _Without:
    """A disk to read from, on which these paths are not there."""

    def __init__(self, disk: Disk, paths: frozenset[str]) -> None:
        self._disk = disk
        self._paths = paths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        if path in self._paths:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self._disk.open(path, create=create, write=write)

    def exists(self, path: str) -> bool:
        return path not in self._paths and self._disk.exists(path)

    def list_directory(self, path: str) -> list[str]:
        return [name for name in self._disk.list_directory(path) if posixpath.join(path, name) not in self._paths]


def misplaced(disk: Disk, path: str) -> list[str]:
    """Paths of directories, in the partitions of a data directory, that have a file's name. OSError."""
    found = []
    for partition in disk.list_directory(path):
        home = posixpath.join(path, partition)
        if parse_partition_name(partition) is not None and _is_directory(disk, home):
            insides = [posixpath.join(home, name) for name in disk.list_directory(home) if _is_of_a_file(name)]
            found += [inside for inside in insides if _is_directory(disk, inside)]
    return found


def without(disk: Disk, paths: list[str]) -> Disk:
    """The disk as if these were not there, for reading."""
    return cast(Disk, _Without(disk, frozenset(paths))) if paths else disk


def _is_of_a_file(name: str) -> bool:
    parsed = parse_name(name)
    if parsed is not None:
        return parsed[1] in (*SUFFIXES, PRODUCERS, SNAPSHOT)
    return name in (LEADER_EPOCHS, PARTITION_METADATA) or parse_snapshot_name(name) is not None


def _is_directory(disk: Disk, path: str) -> bool:
    try:
        disk.list_directory(path)
    except NotADirectoryError:
        return False
    return True
