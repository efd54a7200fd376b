"""Directories where a file of a partition belongs: they are told and moved, and all else is judged as without them."""

from __future__ import annotations

import posixpath

from duramen.ports import Disk
from duramen.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, parse_partition_name
from duramen.storage.segment import PRODUCERS, SNAPSHOT, SUFFIXES, parse_name
from duramen.storage.snapshot_files import parse_snapshot_name

MISPLACED = "it is a directory where a file belongs"


def misplaced(disk: Disk, path: str) -> list[str]:
    """Paths of directories, in the partitions of a data directory, that have a file's name. OSError."""
    found = []
    for partition in disk.list_directory(path):
        home = posixpath.join(path, partition)
        if parse_partition_name(partition) is not None and _is_directory(disk, home):
            insides = [posixpath.join(home, name) for name in disk.list_directory(home) if _is_of_a_file(name)]
            found += [inside for inside in insides if _is_directory(disk, inside)]
    return found


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
