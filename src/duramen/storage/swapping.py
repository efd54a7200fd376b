"""A compacted segment takes the place of those it was made from, one crash-safe step after the other.

    1  the new files are written as `.cleaned` and synced                        old segments count
    2  the SWAP entry is durable in the journal: it replays nothing below it     old segments count
    3  they are renamed to `.swap`, `.log` last, names synced before and after   new segment counts
    4  the files of the replaced segments but the first are removed, synced
    5  `.swap` is renamed away, over the first one's files, `.log` last

A `.log.swap` is complete, so a start goes on from step 4 (`settle`). A `.log.cleaned` is not known to be, and goes.
Kafka's names; its brokers finish the same way.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Final

from duramen.errors import CorruptLogError
from duramen.ports import Disk
from duramen.storage.checkpoints import remove_file
from duramen.storage.scan import scan
from duramen.storage.segment import (
    INDEX,
    LOG,
    SEAL,
    SUFFIXES,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_base,
    parse_name,
)

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
_BESIDE: Final = (INDEX, TIME_INDEX, TXN_INDEX, SEAL)


def stage(disk: Disk, path: str, base: int) -> None:
    """Step 3. OSError."""
    _rename(disk, path, base, _BESIDE, CLEANED, SWAP)
    disk.sync_directory(path)
    _rename(disk, path, base, (LOG,), CLEANED, SWAP)
    disk.sync_directory(path)


def remove_replaced(disk: Disk, path: str, bases: Iterable[int]) -> None:
    """Step 4, for segments with these base offsets. OSError."""
    for base in bases:
        for suffix in SUFFIXES:
            remove_file(disk, posixpath.join(path, file_name(base, suffix)))
    disk.sync_directory(path)


def unstage(disk: Disk, path: str, base: int) -> None:
    """Step 5; the caller has the names synced. OSError."""
    _rename(disk, path, base, (*_BESIDE, LOG), SWAP, "")


def drop_cleaned(disk: Disk, path: str, base: int) -> None:
    """Give up a copy before step 3. OSError."""
    for suffix in SUFFIXES:
        remove_file(disk, posixpath.join(path, file_name(base, suffix + CLEANED)))


def _rename(disk: Disk, path: str, base: int, suffixes: Iterable[str], before: str, after: str) -> None:
    for suffix in suffixes:
        source = posixpath.join(path, file_name(base, suffix + before))
        if disk.exists(source):
            disk.rename(source, posixpath.join(path, file_name(base, suffix + after)))


def settle(disk: Disk, path: str) -> bool:
    """Finish or undo what a crash interrupted, before a log's files are looked at; whether anything was there.

    May itself be interrupted at any point and begun again. OSError; CorruptLogError when a `.log.swap` is no segment.
    """
    names = disk.list_directory(path)
    cleaned, staged = _with(names, CLEANED), _with(names, SWAP)
    if not cleaned and not staged:
        return False
    for base in sorted(cleaned):
        if LOG in cleaned[base] and LOG not in staged.get(base, ()):
            for suffix in staged.pop(base, ()):  # step 3 had not come to the log: the old one counts
                disk.remove(posixpath.join(path, file_name(base, suffix + SWAP)))
    disk.sync_directory(path)
    for base in sorted(cleaned):
        drop_cleaned(disk, path, base)
    disk.sync_directory(path)
    bases = [base for base in map(parse_base, names) if base is not None]
    for base in sorted(staged):
        if LOG in staged[base]:
            end = _end_of(disk, posixpath.join(path, file_name(base, LOG + SWAP)), base)
            remove_replaced(disk, path, [each for each in bases if base < each < end])
        unstage(disk, path, base)
    disk.sync_directory(path)
    return True


def _with(names: list[str], ending: str) -> dict[int, list[str]]:
    """Suffixes without `ending`, by base offset, of the names that end so."""
    found: dict[int, list[str]] = {}
    for name in names:
        parsed = parse_name(name[: -len(ending)]) if name.endswith(ending) else None
        if parsed is not None:
            found.setdefault(parsed[0], []).append(parsed[1])
    return found


def _end_of(disk: Disk, path: str, base: int) -> int:
    """The offset behind the last batch of a segment file."""
    file = disk.open(path)
    try:
        end = base
        size = file.size()
        for position, header, ok in scan(file, 0, size, crc=False):
            if not ok or header is None:
                raise CorruptLogError(path, position, size, "not a record batch", end)
            end = header.next_offset
        return end
    finally:
        file.close()
