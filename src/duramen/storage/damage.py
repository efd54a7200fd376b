"""What was found damaged: a range of bytes of a file, the offsets in it, and the list of it that a directory keeps."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any, NamedTuple

from duramen.errors import CorruptLogError
from duramen.model import TopicPartition
from duramen.ports import File
from duramen.storage.checkpoints import parse_partition_name
from duramen.storage.index import OffsetIndex
from duramen.storage.no_room import is_no_room, lacks_files
from duramen.storage.scan import scan

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
    return Damage(error.path, error.start, error.end, error.offset, -1, error.reason)


class Findings:
    """The damage a directory knows of since it was opened. Loop thread only.

    on_found: told of each range once. count: how many there were.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, int, int], Damage] = {}
        self.count = 0
        self.on_found: Callable[[Damage], None] = lambda damage: None

    def add(self, damage: Damage) -> None:
        """Remember and tell, unless it is known."""
        place = (damage.path, damage.start, damage.end)
        if place in self.known or (len(self.known) >= MOST_FINDINGS and self.count > MOST_FINDINGS * 2):
            return
        self.count += 1
        if len(self.known) < MOST_FINDINGS:
            self.known[place] = damage
        self.on_found(damage)

    def forget(self, directory: str) -> None:
        """The files of this partition are gone."""
        self.known = {place: each for place, each in self.known.items() if posixpath.dirname(place[0]) != directory}

    def of(self, directory: str) -> list[Damage]:
        """What is known of one partition's files."""
        return [each for place, each in self.known.items() if posixpath.dirname(place[0]) == directory]


def offsets_between(
    file: File, index: OffsetIndex | None, bounds: tuple[int, int], size: int, start: int, end: int
) -> tuple[int, int]:
    """(first, last) offset of the batches that touch bytes start..end of a segment.

    bounds: (base offset, next offset) of the segment. Headers outside the range are believed, those inside are not;
    an index that leads nowhere widens the answer, it never narrows it.
    """
    base, following = bounds
    first, position = base, 0
    if index is not None:
        position = index.boundary(start)
    for at, header, ok in scan(file, position, start, crc=False):
        # The batch that reaches over `start` is the one that does not fit.
        if header is not None and base <= header.base_offset <= following:
            first = max(first, header.base_offset if at + header.size > start else header.next_offset)
        if not ok:
            break
    last = following - 1
    behind = None if index is None else next((at for at in index.positions if at >= end), None)
    if behind is not None:
        for _, header, _ in scan(file, behind, size, crc=False):
            if header is not None and first < header.base_offset <= following:
                last = header.base_offset - 1
            break
    return first, max(first, last)
