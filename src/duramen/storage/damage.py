"""What was found damaged: a range of bytes of a file, the offsets in it, and the list of it that a directory keeps."""

from __future__ import annotations

import errno
import posixpath
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.model import TopicPartition
from duramen.ports import Disk, File
from duramen.storage.checkpoints import parse_partition_name, read_file
from duramen.storage.index import decode_offset_index
from duramen.storage.no_room import is_no_room, lacks_files
from duramen.storage.scan import crc_of, header_at, scan
from duramen.wire.batch import CRC_START

MOST_FINDINGS = 1000
"""Findings a directory remembers; more are only counted."""


def way_out(failure: BaseException) -> str:
    """What to do about what a directory lacks, or about a disk that fails."""
    if lacks_files(failure):
        return "let the process have more files open (ulimit -n), or lower duramen.open.files.max"
    return "free space on its volume" if is_no_room(failure) else "mend its disk"


def remedy_of(failure: BaseException) -> str:
    """What to do about the error that fenced a directory."""
    return f"{way_out(failure)}, then restart the node"


class Damage(NamedTuple):
    """Bytes start..end of a file are not what was written (0..0: no range).

    first_offset, last_offset: the records it concerns, -1 where that is not known or none are concerned.
    """

    path: str
    start: int
    end: int
    first_offset: int
    last_offset: int
    what: str

    @property
    def partition(self) -> TopicPartition | None:
        """Whose file it is; None for a file of the whole directory."""
        return parse_partition_name(posixpath.basename(posixpath.dirname(self.path)))

    @property
    def is_located(self) -> bool:
        """Whether it is known which records it concerns."""
        return self.last_offset >= 0

    def fields(self) -> dict[str, Any]:
        """As an event or JSON tells it."""
        tp = self.partition
        return {
            "partition": None if tp is None else str(tp),
            "path": self.path,
            "start": self.start,
            "end": self.end,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "what": self.what,
        }


def damage_of(error: CorruptLogError) -> Damage:
    """What an error of a read, a seal or a start says."""
    return Damage(error.path, error.start, error.end, error.offset, error.last_offset, error.reason)


def unreadable(error: OSError, path: str, start: int, end: int, base_offset: int) -> OSError | CorruptLogError:
    """What it means that reading bytes start..end of a segment failed: they are damaged (EIO), or that error itself."""
    if error.errno != errno.EIO:
        return error
    return CorruptLogError(path, start, end, f"it cannot be read: {error}", base_offset)


class Findings:
    """The damage a directory knows of since it was opened. Loop thread only.

    on_found: told of each range once, and again when it is known which records it concerns. count: how many there were.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, int, int], Damage] = {}
        self.count = 0
        self.on_found: Callable[[Damage], None] = lambda damage: None

    def add(self, damage: Damage) -> None:
        """Remember and tell, unless it is known, and so is which records it concerns."""
        place = (damage.path, damage.start, damage.end)
        known = self.known.get(place)
        if known is None:
            if len(self.known) >= MOST_FINDINGS and self.count > MOST_FINDINGS * 2:
                return
            self.count += 1
        elif known.is_located or not damage.is_located:
            return
        if known is not None or len(self.known) < MOST_FINDINGS:
            self.known[place] = damage
        self.on_found(damage)

    def forget(self, directory: str) -> None:
        """The files of this partition are gone."""
        self.known = {place: each for place, each in self.known.items() if posixpath.dirname(place[0]) != directory}

    def of(self, directory: str) -> list[Damage]:
        """What is known of one partition's files."""
        return [each for place, each in self.known.items() if posixpath.dirname(place[0]) == directory]


def indexed_positions(disk: Disk, path: str, bounds: tuple[int, int], size: int) -> Sequence[int]:
    """Where the batches begin that an `.index` names; none when it is lost or cannot be the segment's. OSError."""
    try:
        content = read_file(disk, path)
    except StorageError:
        return ()
    index = None if content is None else decode_offset_index(content, size, bounds[1] - bounds[0])
    return () if index is None else index.positions


def located(
    error: CorruptLogError, file: File, positions: Callable[[], Sequence[int]], bounds: tuple[int, int], size: int
) -> CorruptLogError:
    """The error of this segment with the offsets of the batches that it touches, if they can be found.

    Reads from the disk; positions, bounds: see `offsets_between`.
    """
    if error.last_offset >= 0 or error.start >= error.end:
        return error
    try:
        first, last = offsets_between(file, positions(), bounds, size, error.start, error.end)
    except (OSError, CorruptLogError):
        return error
    return CorruptLogError(error.path, error.start, error.end, error.reason, first, last)


def offsets_between(
    file: File, positions: Sequence[int], bounds: tuple[int, int], size: int, start: int, end: int
) -> tuple[int, int]:
    """(first, last) offset of the batches that touch bytes start..end of a segment.

    positions: where batches begin that an index knows, ascending. bounds: (base offset, next offset) of the segment.
    Headers outside the range are believed, those inside are not; an index that leads nowhere widens the answer, it
    never narrows it.
    """
    base, following = bounds
    before = bisect_left(positions, start)
    first = base
    for at, header, ok in scan(file, positions[before - 1] if before else 0, start, crc=False):
        # The batch that reaches over `start` is the one that does not fit.
        if header is not None and base <= header.base_offset <= following:
            first = max(first, header.base_offset if at + header.size > start else header.next_offset)
        if not ok:
            break
    behind = bisect_left(positions, end)
    for at in (end, positions[behind]) if behind < len(positions) else (end,):
        header = header_at(file, at, size)
        if header is None or not first < header.base_offset <= following:
            continue
        # Where the range ends a batch may begin: if it is a whole one.
        if at != end or crc_of(file, at + CRC_START, at + header.size) == header.crc:
            return first, header.base_offset - 1
    return first, max(first, following - 1)
