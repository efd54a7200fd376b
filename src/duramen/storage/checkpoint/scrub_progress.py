"""The file `duramen-scrub`: where the scrubber's round stands, and the damage that was known when it was written.

It may be lost: then the round begins anew and finds the damage again. What it says of damage is never believed as it
is, because a repair may have been here since: those places are read again before everything else.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from duramen.model import LogKey
from duramen.ports import Disk
from duramen.storage.files.atomic import read_file
from duramen.storage.files.crc_lines import decode_lines, encode_lines
from duramen.storage.segment.corruption import Damage

PROGRESS = "duramen-scrub"
NO_KEY: LogKey = (b"", 0)


class ScrubProgress(NamedTuple):
    """Where a round stands. key, base_offset, position: of the next block; a key of nothing: between two rounds.

    started_ms: wall clock, of the round's beginning; bytes: read in it. known: damage, paths relative to the directory.
    """

    started_ms: int
    bytes: int
    key: LogKey
    base_offset: int
    position: int
    known: tuple[Damage, ...] = ()


def encode_progress(progress: ScrubProgress) -> bytes:
    """A line, one JSON array for each damaged range, and the CRC-32C of all that."""
    topic_id, partition = progress.key
    head = (
        f"{PROGRESS} 2 {progress.started_ms} {progress.bytes} {topic_id.hex() or '-'} {partition} "
        f"{progress.base_offset} {progress.position}"
    )
    return encode_lines([head, *map(json.dumps, progress.known)])


def decode_progress(content: bytes) -> ScrubProgress | None:
    """Inverse of `encode_progress`; None when it is damaged, or of another version."""
    found = decode_lines(content, f"{PROGRESS} 2 ")
    if found is None:
        return None
    head, *lines = found
    words = head.split()
    topic_id = b"" if words[4] == "-" else bytes.fromhex(words[4])
    started, checked, partition, base_offset, position = (int(words[n]) for n in (2, 3, 5, 6, 7))
    known = tuple(Damage(*json.loads(line)) for line in lines)
    return ScrubProgress(started, checked, (topic_id, partition), base_offset, position, known)


def read_progress(disk: Disk, directory: str) -> ScrubProgress | None:
    """The directory's progress, paths made whole; None when it is missing or damaged. OSError, StorageError."""
    content = read_file(disk, posixpath.join(directory, PROGRESS))
    found = None if content is None else decode_progress(content)
    if found is None:
        return None
    return found._replace(known=tuple(each._replace(path=posixpath.join(directory, each.path)) for each in found.known))


def write_progress(disk: Disk, directory: str, progress: ScrubProgress, more: Sequence[Damage] = ()) -> None:
    """Replace the file; not synced, for it may be lost. more: damage besides what is known. OSError."""
    inside = posixpath.join(directory, "")
    known = tuple(
        each._replace(path=each.path.removeprefix(inside)) for each in dict.fromkeys((*progress.known, *more))
    )
    path = posixpath.join(directory, PROGRESS)
    file = disk.open(path + ".tmp", create=True, write=True)
    try:
        file.truncate(0)
        file.pwritev([encode_progress(progress._replace(known=known))], 0)
    finally:
        file.close()
    disk.rename(path + ".tmp", path)
