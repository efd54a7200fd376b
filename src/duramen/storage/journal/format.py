"""The journal's bytes: part names, the part header, entries and the mark that opens each group; pure functions.

A journal is a set of part files of one generation. A part starts with a header block and holds groups; a group starts
at a multiple of ALIGNMENT with a MARK and holds entries back to back. Big endian throughout.

    entry   magic u32 | crc u32 | length u32 | kind u8 | 3 zero bytes | lap u32 | lsn u64 | topic id 16 bytes |
            partition i32 | leader epoch i32 | offset i64 | segment base i64 | file position i64 | data
    MARK    an entry whose lsn is that of the group's first entry (it takes none itself) and whose data is
            durable lsn u64 | checkpoint lsn u64 | entries u32 | bytes of the group u64
    EXTENT  an entry whose data is length u64 | crc32c of those segment bytes u32 | next offset i64

The CRC is CRC-32C over everything behind it, data included, and starts from the part's seed, which is drawn anew for
each generation: record data that happens to contain a journal entry can never be taken for one. The lap counts how
often any part was started, so what an earlier lap left behind in a recycled part is told from the present one.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from duramen.ports import Buffer
from duramen.wire.checksum import crc32c


class EntryKind(IntEnum):
    """What a journal entry says: what a log tells the journal, and what recovery replays."""

    BATCH = 1
    """A record batch: its bytes follow."""
    EXTENT = 2
    """A batch that went to its synced segment past the journal: position, length and CRC only."""
    ROLL = 3
    """A new active segment."""
    TRUNCATE = 4
    """Everything from an offset on was removed."""
    LOG_START = 5
    """Records below an offset are gone for readers."""
    EPOCH = 6
    """A leader epoch starts at an offset; -1: those that start there or above it are no more."""
    DELETE = 7
    """The partition was deleted; where the position is STRAY its directory was moved aside, and is kept."""
    CREATE = 8
    """The partition's directory exists."""
    DURABILITY = 9
    """From a position on, batches are not journaled (page-cache), or are again (stable)."""
    MARK = 10
    """No change; records how far the journal was durable when it went idle."""
    SWAP = 11
    """A compacted segment takes the place of those from a segment base up to an offset, which were all synced."""
    BEGIN = 12
    """All of the log was dropped; it begins anew, empty, with an offset, in the segment with that base."""
    GAP = 13
    """In a log whose batches are not journaled one begins at that position with another offset than the log's end."""
    MARKER = 14
    """In a log whose batches are not journaled: one that is, since it ends a transaction; its bytes follow."""


STRAY: Final = 1
"""See DELETE."""

ALIGNMENT: Final = 512
"""Bytes. Groups start on a sector, so that writing one never touches the sectors of a durable one."""
HEADER_BLOCK: Final = 4096
"""Bytes in front of a part's first group."""
PREFIX: Final = "duramen-journal-"
SUFFIX: Final = ".part"
TEMPORARY: Final = ".new"

ENTRY_MAGIC: Final = 0xD03A4A45
ENTRY_START: Final = ENTRY_MAGIC.to_bytes(4, "big")
PART_MAGIC: Final = b"DURJRNL"
FORMAT: Final = 2
"""Of parts that are written; 1 had no MARKER entries."""

_LEAD = struct.Struct(">II")
_BODY = struct.Struct(">IB3xIQ16siiqqq")
_MARK = struct.Struct(">QQIQ")
_EXTENT = struct.Struct(">QIq")
_PART = struct.Struct(">7sBQIIQ")
_CRC = struct.Struct(">I")

LEAD_SIZE: Final = _LEAD.size
ENTRY_SIZE: Final = _LEAD.size + _BODY.size
"""Bytes of an entry without data."""
MARK_SIZE: Final = ENTRY_SIZE + _MARK.size
EXTENT_SIZE: Final = ENTRY_SIZE + _EXTENT.size
KINDS: Final = frozenset(map(int, EntryKind))

ENTRY: Final = struct.Struct(">IIIB3xIQ16siiqqq")
"""An entry without data, lead and body in one."""

pack_body = _BODY.pack
pack_lead = _LEAD.pack


class EntryHeader(NamedTuple):
    """One decoded entry header; `data_length` bytes of data follow it."""

    length: int
    kind: int
    lap: int
    lsn: int
    topic_id: bytes
    partition: int
    epoch: int
    offset: int
    segment_base: int
    position: int

    @property
    def data_length(self) -> int:
        """Bytes behind the header."""
        return self.length - ENTRY_SIZE


class Mark(NamedTuple):
    """What a group's mark says: the journal was durable up to `durable_lsn` and needed from `checkpoint_lsn` on."""

    durable_lsn: int
    checkpoint_lsn: int
    entries: int
    size: int


class Extent(NamedTuple):
    """A range of a segment that was synced before its entry was written; `next_offset` follows its last batch."""

    length: int
    crc: int
    next_offset: int


class PartHeader(NamedTuple):
    """A part's first block. size: bytes that the whole part has; HEADER_BLOCK in those of releases that did not say."""

    generation: int
    number: int
    seed: int
    size: int = HEADER_BLOCK


def part_name(generation: int, index: int) -> str:
    """File name of a part."""
    return f"{PREFIX}{generation:08d}-{index:04d}{SUFFIX}"


def parse_part_name(name: str) -> tuple[int, int] | None:
    """(generation, index) of a part's file name; None for every other name."""
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    generation, _, index = name[len(PREFIX) : -len(SUFFIX)].partition("-")
    if not (generation.isdecimal() and index.isdecimal()):
        return None
    return int(generation), int(index)


def encode_part_header(header: PartHeader) -> bytes:
    """The header block, HEADER_BLOCK bytes: the header twice, so that a lost sector does not take the seed with it."""
    body = _PART.pack(PART_MAGIC, FORMAT, *header)
    return (body + _CRC.pack(crc32c(body))).ljust(HEADER_BLOCK // 2, b"\x00") * 2


def decode_part_header(block: bytes) -> PartHeader | None:
    """Inverse of `encode_part_header`; None when the block has no intact header of a part that can be read."""
    version, header = _intact_header(block)
    return header if version <= FORMAT else None


def newer_format(block: bytes) -> int:
    """The format of a part by its header, where that is a later release's; else 0."""
    version, _ = _intact_header(block)
    return version if version > FORMAT else 0


def _intact_header(block: bytes) -> tuple[int, PartHeader | None]:
    if len(block) >= HEADER_BLOCK:
        for copy in (block, block[HEADER_BLOCK // 2 :]):
            magic, version, generation, number, seed, size = _PART.unpack_from(copy)
            if magic == PART_MAGIC and _CRC.unpack_from(copy, _PART.size)[0] == crc32c(copy[: _PART.size]):
                return version, PartHeader(generation, number, seed, size)
    return 0, None


def part_seed(block: bytes) -> int:
    """What stands where a part's header has the seed, whatever else is wrong with it."""
    seed: int = _PART.unpack_from(block.ljust(_PART.size, b"\x00"))[4]
    return seed


def encode_entry(
    seed: int,
    kind: int,
    lap: int,
    lsn: int,
    topic_id: bytes,
    partition: int,
    epoch: int,
    offset: int,
    segment_base: int,
    position: int,
    data: Buffer = b"",
) -> bytes:
    """Header of an entry; its CRC covers `data`, which the caller writes behind it."""
    length = ENTRY_SIZE + len(data)
    body = pack_body(length, kind, lap, lsn, topic_id, partition, epoch, offset, segment_base, position)
    crc = crc32c(body, seed)
    if data:
        crc = crc32c(data, crc)
    return pack_lead(ENTRY_MAGIC, crc) + body


def encode_mark(seed: int, lap: int, lsn: int, mark: Mark) -> bytes:
    """A whole MARK, data included."""
    data = _MARK.pack(*mark)
    return encode_entry(seed, EntryKind.MARK, lap, lsn, bytes(16), -1, -1, -1, 0, 0, data) + data


def encode_extent(extent: Extent) -> bytes:
    """Data of an EXTENT entry."""
    return _EXTENT.pack(*extent)


def decode_mark(data: Buffer) -> Mark:
    """Data of a MARK whose CRC was checked."""
    return Mark(*_MARK.unpack(data))


def decode_extent(data: Buffer) -> Extent:
    """Data of an EXTENT whose CRC was checked."""
    return Extent(*_EXTENT.unpack(data))


def decode_entry(view: memoryview, position: int, seed: int) -> EntryHeader | None:
    """The entry at `position` of a part's bytes, or None when there is no intact one (magic, length, kind, CRC)."""
    if position + ENTRY_SIZE > len(view):
        return None
    magic, crc = _LEAD.unpack_from(view, position)
    if magic != ENTRY_MAGIC:
        return None
    entry = EntryHeader(*_BODY.unpack_from(view, position + LEAD_SIZE))
    end = position + entry.length
    if entry.length < ENTRY_SIZE or end > len(view) or entry.kind not in KINDS:
        return None
    if crc32c(view[position + LEAD_SIZE : end], seed) != crc:
        return None
    if entry.kind == EntryKind.MARK and entry.data_length != _MARK.size:
        return None
    if entry.kind == EntryKind.EXTENT and entry.data_length != _EXTENT.size:
        return None
    return entry


def aligned(size: int) -> int:
    """`size` rounded up to the next group boundary."""
    return size + -size % ALIGNMENT
