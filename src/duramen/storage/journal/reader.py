"""Reads a journal back: which entries recovery applies, where the tail is torn, and whether something is damaged.

A part is read from its start as long as groups of one lap follow each other without a gap. Behind the first entry that
is not intact only marks are looked for: a later mark that calls a missing entry durable proves damage, because the
entry had been on stable storage. Without such a mark the tail is torn, and nothing in it was ever acknowledged.
"""

from __future__ import annotations

import posixpath
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.ports import Buffer, Disk, File
from duramen.storage.files.bad_sectors import UNREADABLE, read_whole
from duramen.storage.journal.format import (
    ALIGNMENT,
    ENTRY,
    ENTRY_MAGIC,
    ENTRY_SIZE,
    ENTRY_START,
    EXTENT_SIZE,
    HEADER_BLOCK,
    KINDS,
    LEAD_SIZE,
    MARK_SIZE,
    EntryKind,
    Extent,
    Mark,
    PartHeader,
    aligned,
    decode_entry,
    decode_extent,
    decode_mark,
    decode_part_header,
    newer_format,
    parse_part_name,
    part_name,
    part_seed,
)
from duramen.storage.journal.parts import find_parts
from duramen.wire.checksum import crc32c

HELD_BYTES = 256 << 20
"""At most so much of a journal stays in memory from the scan until recovery has written it to its places."""
_MAGIC = struct.pack(">I", ENTRY_MAGIC)
_DELTA = struct.Struct(">i")
_DELTA_AT = 23
"""Where a record batch keeps its last offset delta."""


class JournalEntry(NamedTuple):
    """One entry to replay. Its data are `size` bytes at `data_position` of part number `part`.

    next_offset: the offset behind it, for BATCH and EXTENT. extent: for EXTENT. stable: for DURABILITY.
    """

    lsn: int
    kind: int
    topic_id: bytes
    partition: int
    epoch: int
    offset: int
    segment_base: int
    position: int
    part: int
    data_position: int
    size: int
    next_offset: int
    extent: Extent | None
    stable: bool


class JournalPart:
    """One part file as recovery reads it: from memory, as it was checked, or from the file."""

    __slots__ = ("file", "held")

    def __init__(self, file: File, held: memoryview | None = None) -> None:
        self.file = file
        self.held = held

    def data(self, position: int, length: int) -> Buffer:
        """Exactly these bytes. CorruptLogError when the file has fewer; OSError."""
        if self.held is not None:
            return self.held[position : position + length]
        data = self.file.pread(length, position)
        if len(data) != length:
            raise CorruptLogError(self.file.path, position, position + length, "short read")
        return data

    def close(self) -> None:
        """The file, and the memory."""
        self.held = None
        self.file.close()


@dataclass(slots=True)
class PartScan:
    """What one part holds: the run of groups from its start, where that run ends, and where its last group begins."""

    part: int = 0
    lap: int = 0
    entries: list[JournalEntry] = field(default_factory=list)
    first_lsn: int = -1
    next_lsn: int = -1
    end: int = HEADER_BLOCK
    group: int = HEADER_BLOCK
    marks: list[Mark] = field(default_factory=list)
    later: list[tuple[int, Mark]] = field(default_factory=list)


@dataclass(slots=True)
class JournalContents:
    """A journal as found on disk.

    generation: -1 when there is none. empty: its only part is a bare header, as a clean stop leaves it. entries: in LSN
    order, without gaps. torn_entries: intact ones behind a gap, not applied. seeds: of the parts' CRCs, by number.
    """

    generation: int = -1
    names: list[str] = field(default_factory=list)
    parts: list[JournalPart] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    keyless: str = ""
    """Path of a part with entries that nobody can check: its header is lost, and no other part has the seed."""
    newer: str = ""
    """Path of a part that a later release has written."""
    entries: list[JournalEntry] = field(default_factory=list)
    next_lsn: int = 1
    checkpoint_lsn: int = 1
    durable_lsn: int = 0
    laps: int = 0
    empty: bool = False
    torn_entries: int = 0
    missing: str = ""
    """What of it is not there any more, a part or a part's end: nobody knows what that held."""
    gone: bool = False
    """All of it is not there: the checkpoint speaks of a journal, and there is none, or an earlier one."""
    unproven: list[tuple[int, int, int]] = field(default_factory=list)
    """(part, first byte, end) of groups that were read, and of which no mark says that they were durable."""
    foreign: set[int] = field(default_factory=set)
    """Numbers, in `parts`, of files of another journal at a part's place: nothing in them is read."""
    damage: CorruptLogError | None = None

    def check_readable(self) -> None:
        """StorageError when nobody can tell what the journal holds."""
        if self.newer:
            raise StorageError(
                f"{self.newer}: a later release of Duramen has written this journal; start that one, and stop it "
                "cleanly before this one is started"
            )
        if self.keyless:
            raise StorageError(
                f"{self.keyless}: this is not a readable journal part: its first block is damaged, and with it the "
                "seed of its entries' checksums is lost; restore it from a copy"
            )

    def make_durable(self, disk: Disk) -> None:
        """What was read is on stable storage from here on. OSError.

        Before anything is done that relies on it: a kill leaves the last group written and perhaps not synced, and a
        power cut during the recovery would take it, and leave what the recovery has cut. It is written again: where its
        sync has failed, the system takes it for stored, and another sync would do nothing. So are entries that the
        checkpoint has: the one that this start is about to write says where the journal ends.
        """
        for number, start, end in self.unproven:
            part = self.parts[number]
            with closing(disk.open(part.file.path, write=True)) as file:
                file.pwritev([part.data(start, end - start)], start)
                file.sync()

    def close(self) -> None:
        """Close the part files."""
        for part in self.parts:
            part.close()
        self.parts.clear()


def read_journal(disk: Disk, directory: str, hold: int = 0) -> JournalContents:
    """Read the newest generation of the directory's journal; close the result when its data are no longer needed.

    hold: bytes of it that may stay in memory, so that the data of many small entries need not be read one by one.
    Damage is not raised but returned, so that `duramen log verify` can report it. A part whose header is damaged is
    read with the seed of another one, or with what stands at its place: the entries' CRCs tell whether it is right.
    """
    contents = JournalContents()
    contents.generation, contents.names = find_parts(disk, directory)
    scans: list[PartScan] = []
    unreadable, strange = _missing_part(contents, directory), None
    try:
        for name in contents.names:
            contents.parts.append(JournalPart(disk.open(posixpath.join(directory, name))))
        blocks = [read_whole(part.file, HEADER_BLOCK)[0] for part in contents.parts]
        headers = [decode_part_header(block) for block in blocks]
        newer = (part.file.path for part, block in zip(contents.parts, blocks, strict=True) if newer_format(block))
        contents.newer = next(newer, "")
        strange = _misplaced_parts(contents, headers, directory)
        likely = [
            header.seed for index, header in enumerate(headers) if header is not None and index not in contents.foreign
        ]
        for index, (part, header) in enumerate(zip(contents.parts, headers, strict=True)):
            data, gaps = read_whole(part.file)
            size = len(data)
            told = HEADER_BLOCK if header is None else header.size
            contents.empty = size <= HEADER_BLOCK == told and len(contents.names) == 1
            if size < told:
                contents.missing = f"{told - size} bytes of the journal are missing"
                unreadable = unreadable or CorruptLogError(part.file.path, size, told, f"it had {told} bytes")
            if gaps:
                contents.missing = contents.missing or "the disk cannot read some of the journal"
                unreadable = unreadable or CorruptLogError(part.file.path, *gaps[0], UNREADABLE)
            view = memoryview(data)
            if header is None:
                what = "not a journal part's header"
                unreadable = unreadable or CorruptLogError(part.file.path, 0, HEADER_BLOCK, what)
                seed, fits = _seed_of(view, [*likely, part_seed(data[:HEADER_BLOCK])])
                if not fits and not likely:
                    contents.keyless = part.file.path
            else:
                seed = header.seed
            contents.seeds.append(seed)
            scans.append(PartScan() if index in contents.foreign else scan_part(view, seed, index))
            if scans[-1].entries and size <= hold:
                part.held = view
                hold -= size
    except BaseException:
        contents.close()
        raise
    _join(contents, scans, directory)
    contents.damage = strange or contents.damage or unreadable
    return contents


def _missing_part(contents: JournalContents, directory: str) -> CorruptLogError | None:
    """The first part of a generation is the first one made, and stays as long as any."""
    if not contents.names or parse_part_name(contents.names[0]) == (contents.generation, 0):
        return None
    contents.missing = "the first part of the journal is missing"
    return CorruptLogError(posixpath.join(directory, part_name(contents.generation, 0)), 0, 0, "it is missing")


def _misplaced_parts(
    contents: JournalContents, headers: list[PartHeader | None], directory: str
) -> CorruptLogError | None:
    """A part's header is written once, when it is made: which part of which journal it is, also after many laps.

    All parts of a generation have one seed. What has another, or another generation, is no part of this journal at all;
    a part at another's place is read, and what it took the place of is missing.
    """
    told = [header for header in headers if header is not None and header.generation == contents.generation]
    ours = Counter(header.seed for header in told).most_common(1)
    damage = None
    for index, (name, header) in enumerate(zip(contents.names, headers, strict=True)):
        number = parse_part_name(name)
        if header is None or (number == (header.generation, header.number) and header.seed == ours[0][0]):
            continue
        if header not in told or header.seed != ours[0][0]:
            contents.foreign.add(index)
            what = "a part of another journal is in its place"
        else:
            what = f"{part_name(header.generation, header.number)} is in its place"
        contents.missing = contents.missing or f"{name} is missing: {what}"
        damage = damage or CorruptLogError(posixpath.join(directory, name), 0, HEADER_BLOCK, what)
    return damage


def _seed_of(view: memoryview, likely: list[int]) -> tuple[int, bool]:
    """(the one of these seeds that fits some entry of a part, else the first one; whether it fits or there is none)."""
    data = bytes(view)
    first = at = data.find(ENTRY_START, HEADER_BLOCK)
    while at >= 0:
        for seed in likely:
            if decode_entry(view, at, seed) is not None:
                return seed, True
        at = data.find(ENTRY_START, at + 1)
    return likely[0], first < 0


def scan_part(view: memoryview, seed: int, part: int) -> PartScan:
    """Read one part's bytes: the run of intact groups from its start, and the marks behind the run's end."""
    scan = PartScan(part)
    position = HEADER_BLOCK
    while True:
        head = decode_entry(view, position, seed)
        if head is None or head.kind != EntryKind.MARK:
            break
        if scan.first_lsn < 0:
            scan.lap, scan.first_lsn = head.lap, head.lsn
        elif head.lap != scan.lap or head.lsn != scan.next_lsn:
            break
        mark = decode_mark(view[position + ENTRY_SIZE : position + MARK_SIZE])
        scan.marks.append(mark)
        scan.group = position
        scan.next_lsn = head.lsn
        stop = position + mark.size
        end = _scan_group(scan, view, position + head.length, stop, seed, part)
        scan.end = end
        if end != stop:
            position = end
            break
        position = aligned(stop)
    found = position + -position % ALIGNMENT
    raw = view.obj if isinstance(view.obj, bytes) else bytes(view)
    while (found := raw.find(_MAGIC, found)) >= 0:
        if found % ALIGNMENT == 0:
            head = decode_entry(view, found, seed)
            if head is not None and head.kind == EntryKind.MARK:
                scan.later.append((found, decode_mark(view[found + ENTRY_SIZE : found + MARK_SIZE])))
        found += 1
    return scan


def _scan_group(scan: PartScan, view: memoryview, position: int, stop: int, seed: int, part: int) -> int:
    """Collect the entries of one group; returns where the first that is not intact begins, `stop` when all are.

    What `decode_entry` does and asks, written out: a full journal has half a million entries, and clients wait.
    """
    lap, expected, limit = scan.lap, scan.next_lsn, len(view)
    append, make, batch, others = scan.entries.append, tuple.__new__, EntryKind.BATCH, KINDS - {EntryKind.MARK}
    unpack, delta = ENTRY.unpack_from, _DELTA.unpack_from
    while position < stop and position + ENTRY_SIZE <= limit:
        magic, crc, length, kind, its_lap, lsn, topic_id, partition, epoch, offset, base, place = unpack(view, position)
        end = position + length
        if magic != ENTRY_MAGIC or length < ENTRY_SIZE or end > limit or its_lap != lap or lsn != expected:
            break
        if crc32c(view[position + LEAD_SIZE : end], seed) != crc:
            break
        data = position + ENTRY_SIZE
        size = length - ENTRY_SIZE
        next_offset = -1
        extent = None
        stable = False
        if kind == batch:
            if size >= _DELTA_AT + 4:
                next_offset = offset + delta(view, data + _DELTA_AT)[0] + 1
        elif kind not in others:
            break
        elif kind == EntryKind.EXTENT:
            if length != EXTENT_SIZE:
                break
            extent = decode_extent(view[data:end])
            next_offset = extent.next_offset
        elif kind == EntryKind.DURABILITY:
            stable = bytes(view[data:end]) == b"stable"
        fields = (
            lsn,
            kind,
            topic_id,
            partition,
            epoch,
            offset,
            base,
            place,
            part,
            data,
            size,
            next_offset,
            extent,
            stable,
        )
        append(make(JournalEntry, fields))
        expected += 1
        position = end
    scan.next_lsn = expected
    return stop if position >= stop else position


def _join(contents: JournalContents, scans: list[PartScan], directory: str) -> None:
    """Chain the parts' runs by lap, from the newest checkpoint LSN that any mark records to the first gap."""
    marks = [mark for scan in scans for mark in scan.marks] + [mark for scan in scans for _, mark in scan.later]
    if not marks:
        return
    contents.checkpoint_lsn = max(mark.checkpoint_lsn for mark in marks)
    contents.durable_lsn = max(mark.durable_lsn for mark in marks)
    runs = sorted((scan for scan in scans if scan.first_lsn >= 0), key=lambda scan: scan.lap)
    contents.laps = runs[-1].lap if runs else 0
    expected = contents.checkpoint_lsn
    last: PartScan | None = None
    for scan in runs:
        if scan.next_lsn <= expected:
            if scan.next_lsn == expected:
                last = scan
            continue
        if scan.first_lsn > expected:
            contents.torn_entries += len(scan.entries)
            continue
        contents.entries += scan.entries[expected - scan.first_lsn :] if scan.first_lsn < expected else scan.entries
        expected = scan.next_lsn
        last = scan
    contents.next_lsn = expected
    contents.unproven = list(_unproven(runs, contents.durable_lsn, expected))
    newest = runs[-1] if runs else None
    if newest is not None and newest.marks[-1].durable_lsn >= newest.next_lsn:
        # Of what is behind its own end a part speaks only when it is done with. The checkpoint may have all of that.
        contents.damage = _next_missing(contents, scans.index(newest), newest.next_lsn, directory)
    elif contents.durable_lsn >= expected:
        index = scans.index(last) if last is not None else 0
        path = posixpath.join(directory, contents.names[index])
        end = min((at for at, _ in scans[index].later), default=contents.parts[index].file.size())
        what = (
            f"journal entry {expected} is missing or not intact, but entries up to {contents.durable_lsn} were durable"
        )
        contents.damage = CorruptLogError(path, scans[index].end, end, what)


def _unproven(runs: list[PartScan], durable_lsn: int, next_lsn: int) -> Iterator[tuple[int, int, int]]:
    """Where the groups behind `durable_lsn` are, with the mark in front of each; a mark speaks of whole groups.

    And the last group of all, whose mark may be all there is of it: where the checkpoint has what is behind that, the
    journal ends there.
    """
    for scan in runs:
        theirs = scan.entries[max(0, durable_lsn + 1 - scan.first_lsn) : max(0, next_lsn - scan.first_lsn)]
        start = theirs[0].data_position - ENTRY_SIZE - MARK_SIZE if theirs else scan.group
        if theirs or scan is runs[-1]:
            yield scan.part, start - start % ALIGNMENT, scan.end


def _next_missing(contents: JournalContents, index: int, lsn: int, directory: str) -> CorruptLogError:
    """The part behind the newest one that is there, which says that entry `lsn` was durable in it."""
    contents.missing = contents.missing or f"the part that goes on with entry {lsn} is missing"
    numbers = {parsed[1] for name in contents.names if (parsed := parse_part_name(name)) is not None}
    free = min(number for number in range(len(numbers) + 1) if number not in numbers)
    front = contents.names[index]
    what = f"it is missing, or another one behind {front} is an older copy: entry {lsn} was durable in it"
    return CorruptLogError(posixpath.join(directory, part_name(contents.generation, free)), 0, 0, what)
