"""Salvage of a damaged journal: it is quarantined whole, with what it may have held that the segments do not.

The entries before the damage are recovered as ever; behind them the batches that the segments hold are accepted where
they follow without a gap. What is intact in the journal behind the damage tells which offsets were acknowledged.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from duramen.model import LogKey
from duramen.ports import Disk
from duramen.storage.checkpoint.loss_record import LOST_FOLDER
from duramen.storage.files.bad_sectors import read_whole
from duramen.storage.journal.format import ENTRY_START, HEADER_BLOCK, EntryKind, decode_entry, decode_extent
from duramen.storage.journal.reader import JournalContents

_COPY_BYTES = 1 << 20
_DELTA = slice(23, 27)
"""Where a record batch keeps its last offset delta."""


class JournalLoss(NamedTuple):
    """What a damaged journal may have held. first_lsn..last_lsn: entries that were durable and are not applied.

    intact: how many of them can still be read; ends: by log, the offset behind the last record that those speak of.
    missing: what of the journal is not there any more, and may have held more entries than anybody knows of.
    """

    paths: tuple[str, ...]
    what: str
    first_lsn: int
    last_lsn: int
    intact: int
    ends: dict[LogKey, int]
    missing: str = ""


def survey_journal(disk: Disk, directory: str, contents: JournalContents) -> JournalLoss:
    """Read the parts of a damaged journal once more. OSError, StorageError when nobody can tell what they hold."""
    contents.check_readable()
    lsns: set[int] = set()
    ends: dict[LogKey, int] = {}
    paths = tuple(posixpath.join(directory, name) for name in contents.names)
    for number, (path, seed) in enumerate(zip(paths, contents.seeds, strict=True)):
        if number in contents.foreign:
            continue
        raw = read_part(disk, path)
        view = memoryview(raw)
        at = raw.find(ENTRY_START, HEADER_BLOCK)
        while at >= 0:
            entry = decode_entry(view, at, seed)
            if entry is None or entry.lsn < contents.next_lsn or entry.kind == EntryKind.MARK:
                at = raw.find(ENTRY_START, at + 1)
                continue
            lsns.add(entry.lsn)
            data = view[at + entry.length - entry.data_length : at + entry.length]
            end = -1
            if entry.kind == EntryKind.BATCH and len(data) >= _DELTA.stop:
                end = entry.offset + int.from_bytes(data[_DELTA], "big", signed=True) + 1
            elif entry.kind == EntryKind.EXTENT:
                end = decode_extent(data).next_offset
            if end >= 0:
                key = entry.topic_id, entry.partition
                ends[key] = max(ends.get(key, -1), end)
            at = raw.find(ENTRY_START, at + entry.length)
    last = max(contents.durable_lsn, contents.next_lsn - 1)
    intact = sum(lsn <= last for lsn in lsns)
    return JournalLoss(paths, str(contents.damage), contents.next_lsn, last, intact, ends, contents.missing)


def read_part(disk: Disk, path: str) -> bytes:
    """A whole part file, with other bytes where the disk cannot read it. OSError."""
    file = disk.open(path)
    try:
        return read_whole(file)[0]
    finally:
        file.close()


def quarantine_journal(disk: Disk, directory: str, loss: JournalLoss) -> list[str]:
    """Copy the parts to `duramen-lost/journal`, synced; returns the copies. Again after a crash is fine. OSError."""
    lost = posixpath.join(directory, LOST_FOLDER)
    folder = posixpath.join(lost, "journal")
    disk.make_directories(folder)
    copies = []
    for path in loss.paths:
        copy = posixpath.join(folder, posixpath.basename(path))
        content = memoryview(read_part(disk, path))
        target = disk.open(copy, create=True, write=True)
        try:
            target.truncate(0)
            for at in range(0, len(content), _COPY_BYTES):
                target.pwritev([content[at : at + _COPY_BYTES]], at)
            target.sync()
        finally:
            target.close()
        copies.append(copy)
    for each in (folder, lost, directory):
        disk.sync_directory(each)
    return copies
