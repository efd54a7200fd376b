"""Files of a data directory that cannot be used: they are reported, quarantined, and all else is judged without them.

A directory by a file's name, and a small file that the disk cannot read: what it said, others say as well, or the next
start finds out anew. A segment is none of these: of that, what can be read is kept. Neither is the journal.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import suppress

from duramen.ports import Disk
from duramen.storage.checkpoint.clean_shutdown import kafka_was_here
from duramen.storage.checkpoint.kafka_files import (
    CHECKPOINT,
    CLEAN_SHUTDOWN,
    CLEANED,
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    META_PROPERTIES,
    RECOVERY_POINT,
    read_checkpoint,
)
from duramen.storage.checkpoint.manifest import MANIFEST
from duramen.storage.checkpoint.metadata_snapshot import parse_snapshot_name
from duramen.storage.files.bad_sectors import UNREADABLE
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS
from duramen.storage.segment.partition_metadata import PARTITION_METADATA, parse_partition_name
from duramen.storage.segment.segment import LOG, PRODUCERS, SNAPSHOT, SUFFIXES, parse_name

MISPLACED = "it is a directory where a file belongs"

_OF_THE_DIRECTORY = (
    CHECKPOINT, CLEANED, CLEANER, CLEAN_SHUTDOWN, HIGH_WATERMARK, LOG_START, META_PROPERTIES, RECOVERY_POINT, MANIFEST,
)  # fmt: skip
_READ_BYTES = 1 << 20


def unusable_files(disk: Disk, path: str) -> dict[str, str]:
    """Of a data directory: paths of what is not to be used, and why. Reads all but segments and journal. OSError."""
    found: dict[str, str] = {}
    for name in disk.list_directory(path):
        inside = posixpath.join(path, name)
        if name in _OF_THE_DIRECTORY and _cannot_be_read(disk, inside):
            found[inside] = UNREADABLE
        elif parse_partition_name(name) is not None and _is_directory(disk, inside):
            found.update(_in_partition(disk, inside))
    for name in _said_by_nobody_else(disk, path, found):
        found.pop(posixpath.join(path, name), None)
    return found


def _said_by_nobody_else(disk: Disk, path: str, found: Mapping[str, str]) -> Iterator[str]:
    """Files of the directory that cannot be done without: who reads them ends with the system's error."""

    def is_there(name: str) -> bool:
        inside = posixpath.join(path, name)
        return inside not in found and disk.exists(inside)

    if not is_there(MANIFEST):
        yield from (META_PROPERTIES, MANIFEST) if not is_there(META_PROPERTIES) else ()
    if not is_there(CHECKPOINT) or read_checkpoint(disk, path) is None:
        yield from (LOG_START, CLEAN_SHUTDOWN)  # deleted records would be there again; Kafka would have crashed
    elif is_there(CLEAN_SHUTDOWN) and kafka_was_here(disk, path):
        yield LOG_START


def _in_partition(disk: Disk, home: str) -> dict[str, str]:
    found = {}
    for name in disk.list_directory(home):
        path = posixpath.join(home, name)
        if _is_directory(disk, path):
            if _is_of_a_file(name):
                found[path] = MISPLACED
        elif LOG in name:
            pass  # of a segment what can be read counts
        elif _cannot_be_read(disk, path):
            found[path] = UNREADABLE
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


def _cannot_be_read(disk: Disk, path: str) -> bool:
    try:
        with suppress(FileNotFoundError, IsADirectoryError):
            file = disk.open(path)
            try:
                for position in range(0, file.size(), _READ_BYTES):
                    file.pread(_READ_BYTES, position)
            finally:
                file.close()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return True
    return False
