"""Compactions that were interrupted while their `.log.swap` was complete: the files as if they had come to their end.

What a start finishes (`swapping.settle`) is shown so by `as_finished`. With a `.log.swap` that was damaged since no
start goes on, and it is no copy to be put aside: it is the segment, for what it replaces may be removed already. A
repair puts it in place as it is, and what it replaces aside; then it is judged as any other. Until that is done
`as_placed` shows the files as they will be.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final, NamedTuple, cast

from duramen.ports import Disk
from duramen.storage.files.atomic import remove_file
from duramen.storage.repair.overlay_disk import OverlayDisk
from duramen.storage.segment.replacement import SWAP, placed_by_start, strays, unstage
from duramen.storage.segment.seal import blocks_hold, sound_seal
from duramen.storage.segment.segment import (
    INDEX,
    LOG,
    SEAL,
    SUFFIXES,
    TIME_INDEX,
    file_name,
    log_name,
    parse_base,
    parse_name,
)
from duramen.wire.seal import Seal

DAMAGED: Final = "a compaction was interrupted, and its segment is damaged"


class InterruptedReplacement(NamedTuple):
    """In the partition directory `home`: offsets from base to in front of `end`.

    replaced: base offsets of the segments there that it replaces. outdated: side files that are the old segment's.
    """

    home: str
    base: int
    end: int
    replaced: tuple[int, ...]
    outdated: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return posixpath.join(self.home, log_name(self.base) + SWAP)

    @property
    def target(self) -> str:
        """Its path once it is in place."""
        return posixpath.join(self.home, log_name(self.base))

    @property
    def replaced_logs(self) -> list[str]:
        """Paths of the segments there that it replaces."""
        return [posixpath.join(self.home, log_name(base)) for base in self.replaced]


def damaged_replacements(disk: Disk, home: str, merged: Iterable[tuple[int, int]] = ()) -> list[InterruptedReplacement]:
    """The compacted segments in a partition's directory that no start puts in place. OSError.

    merged: (first base, end offset) of groups of segments, by the SWAP entries of the journal. Else its seal tells it
    from a copy: one beside it, or one that has its name already and is not that of the segment in place.
    """
    names = disk.list_directory(home)
    present = sorted(base for base in map(parse_base, names) if base is not None)
    by_journal = dict(merged)
    found = []
    for name in strays(disk, home, by_journal.items(), clean=False):
        parsed = parse_name(name.removesuffix(SWAP))
        if parsed is None or parsed[1] != LOG:
            continue
        base = parsed[0]
        end = _sealed_end(disk, home, base, posixpath.join(home, name))
        outdated: tuple[str, ...] = ()
        if end < 0 and base in by_journal:
            end = by_journal[base]
            outdated = tuple(file_name(base, suffix) for suffix in (INDEX, TIME_INDEX, SEAL))
        if end > base:
            replaced = tuple(each for each in present if base <= each < end)
            found.append(
                InterruptedReplacement(home, base, end, replaced, tuple(each for each in outdated if each in names))
            )
    return found


def _sealed_end(disk: Disk, home: str, base: int, swap: str) -> int:
    """The offset behind what the seal of a `.log.swap` speaks of; -1 where it has none that can be its own."""
    beside = sound_seal(disk, posixpath.join(home, file_name(base, SEAL + SWAP)))
    if beside is not None:
        return beside.last_offset + 1
    seal = sound_seal(disk, posixpath.join(home, file_name(base, SEAL)))
    log = posixpath.join(home, log_name(base))
    if seal is None or (disk.exists(log) and _is_whole(disk, log, seal)) or not _resembles(disk, swap, seal):
        return -1
    return seal.last_offset + 1


def _is_whole(disk: Disk, path: str, seal: Seal) -> bool:
    with closing(disk.open(path)) as file:
        return file.size() == seal.length and all(blocks_hold(file, seal))


def _resembles(disk: Disk, path: str, seal: Seal) -> bool:
    with closing(disk.open(path)) as file:
        return file.size() == seal.length or any(blocks_hold(file, seal))


def place_replacement(disk: Disk, swap: InterruptedReplacement) -> None:
    """Put it in place; the segments that it replaces are aside. Again after a crash is fine. OSError."""
    if not disk.exists(swap.path):
        return
    for base in swap.replaced:
        for suffix in SUFFIXES if base != swap.base else ():
            remove_file(disk, posixpath.join(swap.home, file_name(base, suffix)))
    for name in swap.outdated:
        remove_file(disk, posixpath.join(swap.home, name))
    disk.sync_directory(swap.home)
    unstage(disk, swap.home, swap.base)
    disk.sync_directory(swap.home)


def as_finished(disk: Disk, home: str, merged: Sequence[tuple[int, int]]) -> Disk:
    """The disk as if the next start after a kill had put sound compacted segments in place, for reading. OSError."""
    names = disk.list_directory(home) if disk.exists(home) else []
    ends = placed_by_start(disk, home, merged) if any(name.endswith(SWAP) for name in names) else {}
    present = sorted(base for base in map(parse_base, names) if base is not None)
    return as_placed(
        disk,
        [
            InterruptedReplacement(home, base, end, tuple(each for each in present if base <= each < end))
            for base, end in ends.items()
        ],
    )


def as_placed(disk: Disk, swaps: Sequence[InterruptedReplacement]) -> Disk:
    """The disk as if these were in place, for reading: they are put there on an overlay. OSError."""
    if not swaps:
        return disk
    overlay = cast(Disk, OverlayDisk(disk))
    for swap in swaps:
        for path in swap.replaced_logs:  # a repair quarantines them first
            remove_file(overlay, path)
        place_replacement(overlay, swap)
    return overlay
