"""Small files that are whole or absent: written beside, synced, renamed, the directory synced."""

from __future__ import annotations

import posixpath
from typing import Final

from duramen.errors import StorageError
from duramen.ports import Disk
from duramen.storage.files.disk_full import retriable_write

MAX_FILE_BYTES: Final = 64 << 20
"""No checkpoint is larger; whatever claims to be is damaged."""


MAX_SIDE_BYTES: Final = 2**31 - 1
"""The same of a log's side files, which grow with its producers (60 to 190 bytes each) and its index entries."""


_SIDES = (".producers", ".snapshot", ".index", ".timeindex", ".txnindex")


def read_file(disk: Disk, path: str) -> bytes | None:
    """Content of a small file, None when it does not exist; StorageError when it is absurdly large."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        if size > (MAX_SIDE_BYTES if path.endswith(_SIDES) else MAX_FILE_BYTES):
            raise StorageError(f"{path}: {size} bytes is too large for this kind of file")
        return file.pread(size, 0)
    finally:
        file.close()


def replace_file(disk: Disk, path: str, content: bytes, *, sync: bool = True, durable_name: bool = True) -> None:
    """Give the file this content, all or nothing. With `durable_name` the new content survives a power cut.

    Without `sync` a power cut may leave anything in the file: its reader has to tell.

    NoRoomError: the old content stays. So it is after a sync that found no room, for the next try begins by cutting off
    all that this one wrote. OSError.
    """
    temporary = path + ".tmp"
    with retriable_write():
        file = disk.open(temporary, create=True, write=True)
        try:
            file.truncate(0)
            if content:
                file.pwritev([content], 0)
            if sync:
                file.sync()
        finally:
            file.close()
        disk.rename(temporary, path)
    if durable_name:
        disk.sync_directory(posixpath.dirname(path))


def remove_file(disk: Disk, path: str) -> bool:
    """Remove a file if it is there; the caller syncs the name."""
    if not disk.exists(path):
        return False
    disk.remove(path)
    return True
