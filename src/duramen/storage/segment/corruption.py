"""Corruption that was found: a range of bytes of a file, the offsets in it, and the list that a directory keeps."""

from __future__ import annotations

import errno
import posixpath
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.model import TopicPartition
from duramen.ports import Disk, File
from duramen.storage.files.atomic import read_file
from duramen.storage.files.disk_full import is_disk_full, lacks_files
from duramen.storage.segment.index import decode_offset_index
from duramen.storage.segment.partition_metadata import parse_partition_name
from duramen.storage.segment.scan import crc_of, header_at, scan
from duramen.wire.batch import CRC_START, BatchHeader

MOST_FINDINGS = 1000
"""Findings a directory remembers; more are only counted."""

MOST_WALKED = 8 << 20
"""Bytes that are walked from damage, or the end of a larger batch with it, to the next one that an index names."""


def disk_advice(failure: BaseException) -> str:
    """What to do about what a directory lacks, or about a disk that fails."""
    if lacks_files(failure):
        return "let the process have more files open (ulimit -n), or lower duramen.open.files.max"
    return "free space on its volume" if is_disk_full(failure) else "mend its disk"


def remedy_of(failure: BaseException) -> str:
    """What to do about the error that fenced a directory."""
    return f"{disk_advice(failure)}, then restart the node"


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


def as_corruption(error: OSError, path: str, start: int, end: int, base_offset: int) -> OSError | CorruptLogError:
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


def around(
    error: CorruptLogError, file: File, positions: Callable[[], Sequence[int]], bounds: tuple[int, int], size: int
) -> tuple[CorruptLogError, int]:
    """The error of this segment with the offsets that it concerns, and where the first sound batch behind it begins.

    As it is, and -1, where that is not to be found. Reads from the disk; see `touched`.
    """
    if error.last_offset >= 0 or error.start >= error.end:
        return error, -1
    try:
        first, last, behind = touched(file, positions(), bounds, size, error.start, error.end)
    except (OSError, CorruptLogError):
        return error, -1
    return CorruptLogError(error.path, error.start, error.end, error.reason, first, last), behind


def located(
    error: CorruptLogError, file: File, positions: Callable[[], Sequence[int]], bounds: tuple[int, int], size: int
) -> CorruptLogError:
    """As `around`, the error alone."""
    return around(error, file, positions, bounds, size)[0]


def touched(
    file: File, positions: Sequence[int], bounds: tuple[int, int], size: int, start: int, end: int
) -> tuple[int, int, int]:
    """(first, last) offset of the batches that touch bytes start..end of a segment, and where the next one begins.

    That is -1 where none behind them can be believed. positions: where batches begin that an index knows, ascending.
    bounds: (base offset, next offset) of the segment. Headers in front of the range are believed; behind it the first
    whole batch that the index names, and what begins in front of that where the headers say so, if whole batches lead
    from there exactly to the named one or to the segment's end. Nothing is searched for: bytes in a value
    may look like a batch. An index that leads nowhere widens the answer, it never narrows it.
    """
    following = bounds[1]
    first = _first_damaged(file, positions, bounds, start)
    walked = end
    named, base = _named_behind(file, positions, walked, size, first + 1, following)
    if named == size and size - end > MOST_WALKED:
        # The batch may be larger than what is walked: from where it ends, then.
        walked = max(end, _begun_behind(file, positions, end, size))
        named, base = _named_behind(file, positions, walked, size, first + 1, following)
    if named - walked <= MOST_WALKED and file.size() >= named:
        for at in (walked, _begun_behind(file, positions, end, named)):
            begun = _leads_to(file, at, named, first + 1, following) if end <= at < named else -1
            if begun >= 0:
                return first, begun - 1, at
    if named < size:
        return first, base - 1, named
    return first, max(first, following - 1), -1


def offsets_between(
    file: File, positions: Sequence[int], bounds: tuple[int, int], size: int, start: int, end: int
) -> tuple[int, int]:
    """(first, last) offset of the batches that touch bytes start..end of a segment; see `touched`."""
    return touched(file, positions, bounds, size, start, end)[:2]


def _first_damaged(file: File, positions: Sequence[int], bounds: tuple[int, int], start: int) -> int:
    """The first offset that damage at byte `start` concerns; see `touched`."""
    base, following = bounds
    before = bisect_left(positions, start)
    first = base
    for at, header, ok in scan(file, positions[before - 1] if before else 0, start, crc=False):
        # The batch that reaches over `start` is the one that does not fit.
        if header is not None and base <= header.base_offset <= following:
            first = max(first, header.base_offset if at + header.size > start else header.next_offset)
        if not ok:
            break
    return first


def _named_behind(
    file: File, positions: Sequence[int], start: int, size: int, from_offset: int, below: int
) -> tuple[int, int]:
    """(position, base offset) of the first whole batch from byte `start` on that an index names; `size`: none."""
    for number in range(bisect_left(positions, start), len(positions)):
        at = positions[number]
        if at >= size or at - start > MOST_WALKED:
            break
        header = whole_at(file, at, size)
        if header is not None and from_offset <= header.base_offset < below:
            return at, header.base_offset
    return size, below


def _begun_behind(file: File, positions: Sequence[int], start: int, stop: int) -> int:
    """Where the first batch from byte `start` on begins, by what headers in front of it say; -1 where they do not."""
    before = bisect_left(positions, start)
    for at, _, ok in scan(file, positions[before - 1] if before else 0, stop, crc=False):
        if at >= start:
            return at
        if not ok:
            break
    return -1


def _leads_to(file: File, start: int, stop: int, from_offset: int, below: int) -> int:
    """The base offset of the batch that begins at `start`, if whole ones from it on fill the bytes up to `stop`.

    Else -1. Their offsets are from_offset..below.
    """
    base, end = -1, start
    for at, header, ok in scan(file, start, stop, expect_offset=from_offset):
        if not ok or header is None or header.next_offset > below:
            return -1
        base = header.base_offset if at == start else base
        end = at + header.size
    return base if end == stop else -1


def whole_at(file: File, position: int, stop: int) -> BatchHeader | None:
    """The header of the batch that begins there, is whole and ends before `stop`; None when there is none."""
    header = header_at(file, position, stop)
    if header is None or crc_of(file, position + CRC_START, position + header.size) != header.crc:
        return None
    return header
