"""A compacted segment takes the place of those it was made from, one crash-safe step after the other.

    1  the new files are written as `.cleaned` and synced                        old segments count
    2  the SWAP entry is durable in the journal: it replays nothing below it     old segments count
    3  they are renamed to `.swap`, `.log` last, names synced before and after   new segment counts
    4  the files of the replaced segments but the first are removed, synced
    5  `.swap` is renamed away, over the first one's files, `.log` last; synced before the next copy is begun

A `.log.swap` is complete, so a start goes on from step 4 (`finish_replacements`). A `.log.cleaned` is not known to be,
and goes.
Kafka's names; its brokers finish the same way.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Final, cast

from duramen.errors import CorruptLogError, StorageError
from duramen.ports import Disk, File
from duramen.storage.files.atomic import read_file, remove_file
from duramen.storage.files.disk_full import retriable_write
from duramen.storage.segment.scan import scan
from duramen.storage.segment.seal import CheckedFile, sound_seal
from duramen.storage.segment.segment import INDEX, LOG, SEAL, SUFFIXES, TIME_INDEX, TXN_INDEX, file_name, parse_name
from duramen.wire.seal import decode_seal

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
STRAY: Final = "it is no compacted segment: a copy, or left by a compaction"
NOT_IN_PLACE: Final = "it is a copy, or a compacted segment that is damaged; `duramen log repair` tells which"
_BESIDE: Final = (INDEX, TIME_INDEX, TXN_INDEX, SEAL)


def stage(disk: Disk, path: str, base: int) -> None:
    """Step 3. OSError."""
    _rename(disk, path, base, _BESIDE, CLEANED, SWAP)
    disk.sync_directory(path)
    _rename(disk, path, base, (LOG,), CLEANED, SWAP)
    disk.sync_directory(path)


def remove_replaced(disk: Disk, home: Callable[[], str], bases: Iterable[int]) -> None:
    """Step 4, for segments with these base offsets. OSError.

    home: where the log is, asked for every file: after a deletion its old name may be another topic's.
    """
    for base in bases:
        for suffix in SUFFIXES:
            remove_file(disk, posixpath.join(home(), file_name(base, suffix)))
    disk.sync_directory(home())


def unstage(disk: Disk, path: str, base: int, renamed: Callable[[str], None] = lambda suffix: None) -> None:
    """Step 5; the caller has the names synced. renamed: told of each file. OSError."""
    for suffix in (*_BESIDE, LOG):
        _rename(disk, path, base, (suffix,), SWAP, "")
        renamed(suffix)


def drop_cleaned(disk: Disk, path: str, base: int) -> None:
    """Give up a copy before step 3. OSError."""
    for suffix in SUFFIXES:
        remove_file(disk, posixpath.join(path, file_name(base, suffix + CLEANED)))


def _rename(disk: Disk, path: str, base: int, suffixes: Iterable[str], before: str, after: str) -> None:
    for suffix in suffixes:
        source = posixpath.join(path, file_name(base, suffix + before))
        if disk.exists(source):
            with retriable_write():
                disk.rename(source, posixpath.join(path, file_name(base, suffix + after)))


def finish_replacements(disk: Disk, path: str, merged: Iterable[tuple[int, int]] = ()) -> bool:
    """Finish or undo what a crash interrupted, before a log's files are looked at; whether anything was there.

    merged: (first base, end offset) of groups, by the journal's SWAP entries. May itself be interrupted at any point
    and begun again. OSError; CorruptLogError when a `.log.swap` is no segment.
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
    # Also where the segment itself is gone: no side file of it may stay when nothing tells of the swap any more.
    bases = {each[0] for each in map(parse_name, names) if each is not None and each[1] in SUFFIXES}
    for base in sorted(staged):
        end = _check_staged(disk, path, base, staged[base], merged)
        if SEAL in staged[base]:
            remove_replaced(disk, lambda: path, sorted(each for each in bases if base < each < end))
        unstage(disk, path, base)
    disk.sync_directory(path)
    return True


def strays(disk: Disk, path: str, merged: Iterable[tuple[int, int]] = (), *, clean: bool) -> list[str]:
    """Names of `.swap` files that no start puts in place: copies, or left by a swap that is damaged. OSError.

    A clean stop leaves none at all; else they stay where `finish_replacements` finds no compacted segment. merged: as
    there.
    """
    names = disk.list_directory(path)
    found = [name for name in names if name.endswith(SWAP)]
    if clean or not found:
        return found
    cleaned, staged = _with(names, CLEANED), _with(names, SWAP)
    sound = set()
    for base, suffixes in staged.items():
        with suppress(CorruptLogError):
            if LOG in suffixes or LOG not in cleaned.get(base, ()):
                _check_staged(disk, path, base, suffixes, merged)
            sound.add(base)
    return [name for name in found if (each := parse_name(name[: -len(SWAP)])) is None or each[0] not in sound]


def placed_by_start(disk: Disk, path: str, merged: Iterable[tuple[int, int]]) -> dict[int, int]:
    """End offset by base offset of the `.log.swap` files that a start after a kill puts in place. OSError."""
    ends = {}
    for base, suffixes in _with(disk.list_directory(path), SWAP).items():
        with suppress(CorruptLogError):
            if LOG in suffixes:
                ends[base] = _check_staged(disk, path, base, suffixes, merged)
    return ends


def _check_staged(disk: Disk, path: str, base: int, suffixes: Iterable[str], merged: Iterable[tuple[int, int]]) -> int:
    """The offset behind what a `.log.swap` holds, `base` where that is in place. CorruptLogError when it is no segment.

    Where its seal is no `.swap` any more step 5 has begun, and that is the segment's by now. A copy that somebody made
    has none: it must not take the place of the log.
    """
    if LOG not in suffixes:
        _check_beside(disk, path, base, suffixes)
        return base
    log = posixpath.join(path, file_name(base, LOG + SWAP))
    seal = posixpath.join(path, file_name(base, SEAL + SWAP if SEAL in suffixes else SEAL))
    if SEAL not in suffixes and not disk.exists(seal):
        raise CorruptLogError(log, 0, 0, f"{STRAY}; `duramen log repair` puts it aside", base)
    end, told = _end_of(disk, log, seal, base), dict(merged).get(base)
    if told is not None and end != told:
        raise CorruptLogError(log, 0, 0, f"it ends at offset {end}, its group of segments at {told}", base)
    return end


def _check_beside(disk: Disk, path: str, base: int, suffixes: Iterable[str]) -> None:
    """CorruptLogError when `.swap` files are those of a segment that is gone: the one in place is the old one then."""
    log, seal = (posixpath.join(path, file_name(base, suffix)) for suffix in (LOG, SEAL + SWAP))
    told = sound_seal(disk, seal) if SEAL in suffixes else None
    if told is None or not disk.exists(log):
        return
    with closing(disk.open(log)) as file:
        size = file.size()
    if size != told.length:
        raise CorruptLogError(log + SWAP, 0, told.length, "it is missing; a compaction was interrupted", base)


def _with(names: list[str], ending: str) -> dict[int, list[str]]:
    """Suffixes without `ending`, by base offset, of the names that end so."""
    found: dict[int, list[str]] = {}
    for name in names:
        parsed = parse_name(name[: -len(ending)]) if name.endswith(ending) else None
        if parsed is not None:
            found.setdefault(parsed[0], []).append(parsed[1])
    return found


def _end_of(disk: Disk, path: str, seal_path: str, base: int) -> int:
    """The offset behind a segment file's last batch, all of it checked: other segments below that are removed."""
    content = read_file(disk, seal_path)
    try:
        seal = None if content is None else decode_seal(content, seal_path)
    except StorageError:
        seal = None
    file = disk.open(path)
    try:
        end = base
        size = file.size()
        if seal is not None and seal.length != size:
            raise CorruptLogError(path, 0, size, f"its seal speaks of {seal.length} bytes", base)
        checked = file if seal is None else cast(File, CheckedFile(file, seal, base))
        for position, header, ok in scan(checked, 0, size):
            if not ok or header is None:
                raise CorruptLogError(path, position, size, "not a record batch", end)
            end = header.next_offset
        return end
    finally:
        file.close()
