"""The `.seal` beside a finished segment: checksums of all its bytes, in blocks so small that one read needs few.

A batch's own CRC leaves out its first 21 bytes; the seal covers everything. It is made after the roll, from synced
bytes whose batch CRCs are checked in the same pass, and is what cold reads, the scrubber and replica repair trust.

File: magic, version u8, block size u32, length u64, last offset i64, greatest timestamp i64, number of blocks u32,
CRC32C u32 of each block, CRC32C u32 of all before it. Big-endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Protocol

from duramen.errors import CorruptLogError, StorageError
from duramen.ports import Disk, File
from duramen.storage.checkpoints import replace_file
from duramen.storage.scan import scan
from duramen.wire.checksum import crc32c

BLOCK_BYTES = 64 * 1024
_MAGIC = b"DSEAL"
_HEAD = struct.Struct(">5sBIQqqI")
_CRC = struct.Struct(">I")
_VERSION = 1
_READ_BYTES = 16 * BLOCK_BYTES


class Seal:
    """length: bytes of the segment; last_offset, max_timestamp: of its records; checksums: one per 64 KiB block."""

    __slots__ = ("checksums", "last_offset", "length", "max_timestamp")

    def __init__(self, length: int, last_offset: int, max_timestamp: int, checksums: array[int]) -> None:
        self.length = length
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.checksums = checksums

    def encode(self) -> bytes:
        checksums = array("I", self.checksums)
        if sys.byteorder == "little":
            checksums.byteswap()
        head = _HEAD.pack(
            _MAGIC, _VERSION, BLOCK_BYTES, self.length, self.last_offset, self.max_timestamp, len(checksums)
        )
        body = head + checksums.tobytes()
        return body + _CRC.pack(crc32c(body))

    def block_range(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of whole blocks around start..end."""
        return start - start % BLOCK_BYTES, min(self.length, -(-end // BLOCK_BYTES) * BLOCK_BYTES)

    def check(self, data: memoryview, position: int, path: str, offset: int) -> None:
        """Whether `data`, whole blocks from `position` on, is what was sealed; CorruptLogError names the block."""
        for inside in range(0, len(data), BLOCK_BYTES):
            block = data[inside : inside + BLOCK_BYTES]
            if crc32c(block) != self.checksums[(position + inside) // BLOCK_BYTES]:
                start = position + inside
                raise CorruptLogError(path, start, start + len(block), "the bytes differ from the seal", offset)


def decode_seal(data: bytes, path: str) -> Seal:
    """Inverse of `Seal.encode`; StorageError when the file is damaged."""
    if len(data) < _HEAD.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
        raise StorageError(f"{path} is damaged")
    magic, version, block, length, last, timestamp, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or block != BLOCK_BYTES or len(data) != _HEAD.size + 4 * count + 4:
        raise StorageError(f"{path} is no seal of this version")
    if count != -(-length // BLOCK_BYTES):
        raise StorageError(f"{path} does not cover its {length} bytes")
    checksums = array("I", data[_HEAD.size : -4])
    if sys.byteorder == "little":
        checksums.byteswap()
    return Seal(length, last, timestamp, checksums)


def compute_seal(file: File, length: int, last_offset: int) -> Seal:
    """Read a finished segment once and checksum it; CorruptLogError when a batch in it is damaged."""
    checksums = array("I")
    for start in range(0, length, _READ_BYTES):
        piece = memoryview(file.pread(min(_READ_BYTES, length - start), start))
        for inside in range(0, len(piece), BLOCK_BYTES):
            checksums.append(crc32c(piece[inside : inside + BLOCK_BYTES]))
    timestamp = -1
    reached = -1
    for position, header, ok in scan(file, 0, length):
        if not ok or header is None:
            end = length if header is None else position + header.size
            raise CorruptLogError(file.path, position, end, "a batch's CRC or header is wrong", reached + 1)
        timestamp = max(timestamp, header.max_timestamp)
        reached = header.last_offset
    if reached != last_offset or len(checksums) != -(-length // BLOCK_BYTES):
        raise CorruptLogError(file.path, 0, length, f"it ends at offset {reached} instead of {last_offset}")
    return Seal(length, last_offset, timestamp, checksums)


class SealedSegment(Protocol):
    """What a seal needs of its segment."""

    disk: Disk
    base_offset: int

    def path_of(self, suffix: str) -> str: ...


class SealJob:
    """Seals one segment: `run` on any thread, then `Log.complete_seal` on the owner's."""

    __slots__ = ("_file", "_last_offset", "_length", "_segment", "base_offset", "result")

    def __init__(self, segment: SealedSegment, file: File, length: int, last_offset: int) -> None:
        self._segment = segment
        self._file = file
        self._length = length
        self._last_offset = last_offset
        self.base_offset = segment.base_offset
        self.result: Seal | None = None

    @property
    def path(self) -> str:
        """Where the sidecar goes now: a deletion may move the segment, and its old name may be another topic's."""
        return self._segment.path_of(".seal")

    def run(self) -> Seal:
        """Checksum the segment and make the sidecar durable. OSError, CorruptLogError."""
        seal = compute_seal(self._file, self._length, self._last_offset)
        replace_file(self._segment.disk, self.path, seal.encode())
        self.result = seal
        return seal
