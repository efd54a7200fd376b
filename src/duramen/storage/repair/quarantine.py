"""Quarantine in `duramen-lost`: free names for side files, and moving there what is no part of a log."""

from __future__ import annotations

import posixpath

from duramen.ports import Disk, File
from duramen.storage.checkpoint.loss_record import LOST_FOLDER

_COPY_BYTES = 1 << 20


def side_path(directory: str, partition: str, name: str) -> str:
    """Where a file of this name goes, out of a partition of a data directory."""
    return posixpath.join(directory, LOST_FOLDER, partition, name)


def free_path(disk: Disk, path: str) -> str:
    """The first of `path`, `path`-2, ... that does not exist. OSError."""
    number, free = 1, path
    while disk.exists(free):
        number += 1
        free = f"{path}-{number}"
    return free


def is_free_for(disk: Disk, path: str, source: File, start: int, end: int) -> bool:
    """Whether there is no such file, or it holds just these bytes: a repair was cut short behind it."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return True
    try:
        return file.size() == end - start and all(
            file.pread(_COPY_BYTES, at) == source.pread(min(_COPY_BYTES, end - start - at), start + at)
            for at in range(0, end - start, _COPY_BYTES)
        )
    finally:
        file.close()


def quarantine_file(disk: Disk, path: str, side_file: str) -> None:
    """The file, or directory, gets a name in `duramen-lost`; again after a crash is fine. OSError."""
    folder = posixpath.dirname(side_file)
    lost = posixpath.dirname(folder)
    disk.make_directories(folder)
    for each in (lost, posixpath.dirname(lost)):
        disk.sync_directory(each)
    if disk.exists(path):
        disk.rename(path, side_file)
    disk.sync_directory(folder)
