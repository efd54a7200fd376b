"""The bytes of a `.seal`, which holds the checksums of a finished segment in blocks of 64 KiB, and holding data to it.

File: magic, version u8, block size u32, length u64, last offset i64, greatest timestamp i64, blocks u32; since
version 2 the last offset of the batch with that timestamp i64 and, of `.index`, `.timeindex` and `.txnindex`, bytes u32
and CRC32C u32; CRC32C u32 of each block, CRC32C u32 of all before it. Big-endian.
"""

from __future__ import annotations

import functools
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from duramen.errors import CorruptLogError, StorageError
from duramen.wire.checksum import crc32c, linear

BLOCK_BYTES = 64 * 1024
_MAGIC = b"DSEAL"
_HEAD = struct.Struct(">5sBIQqqI")
_SIDES = struct.Struct(">q6I")
_CRC = struct.Struct(">I")
_VERSIONS = (1, 2)


class Sides(NamedTuple):
    """Bytes and CRC32C of a segment's index files when it was sealed; 0 bytes: there was none, or an empty one."""

    index_bytes: int
    index_crc: int
    time_bytes: int
    time_crc: int
    txn_bytes: int
    txn_crc: int


class Seal:
    """length: bytes of the segment; last_offset, max_timestamp: of its records; checksums: one per 64 KiB block.

    max_timestamp_offset: where the batch with max_timestamp ends. sides: None in a seal that knows no index files.
    """

    __slots__ = ("checksums", "last_offset", "length", "max_timestamp", "max_timestamp_offset", "sides")

    def __init__(
        self,
        length: int,
        last_offset: int,
        max_timestamp: int,
        checksums: array[int],
        max_timestamp_offset: int = -1,
        sides: Sides | None = None,
    ) -> None:
        self.length = length
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.checksums = checksums
        self.max_timestamp_offset = max_timestamp_offset
        self.sides = sides

    def encode(self) -> bytes:
        checksums = array("I", self.checksums)
        if sys.byteorder == "little":
            checksums.byteswap()
        sides = b"" if self.sides is None else _SIDES.pack(self.max_timestamp_offset, *self.sides)
        version = 2 if sides else 1
        head = _HEAD.pack(
            _MAGIC, version, BLOCK_BYTES, self.length, self.last_offset, self.max_timestamp, len(checksums)
        )
        body = head + sides + checksums.tobytes()
        return body + _CRC.pack(crc32c(body))

    def block_range(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of whole blocks around start..end."""
        return start - start % BLOCK_BYTES, min(self.length, -(-end // BLOCK_BYTES) * BLOCK_BYTES)

    def cut(self, length: int) -> Seal:
        """The seal of whole blocks below a length."""
        blocks = min(length, self.length) // BLOCK_BYTES
        return Seal(blocks * BLOCK_BYTES, -1, -1, self.checksums[:blocks])

    def check(self, data: memoryview, position: int, path: str, offset: int) -> None:
        """Whether `data`, whole blocks from `position` on, is what was sealed; CorruptLogError names the block.

        One sum over all of it is held to what the blocks' sums make together: the thread that checks then asks for the
        interpreter once and not for each block, which the loop would feel.
        """
        first, whole = position // BLOCK_BYTES, len(data) // BLOCK_BYTES
        sound = whole * BLOCK_BYTES
        if crc32c(data[:sound]) != joined(self.checksums[first : first + whole]):
            sound = 0
        for inside in range(sound, len(data), BLOCK_BYTES):
            block = data[inside : inside + BLOCK_BYTES]
            if crc32c(block) != self.checksums[(position + inside) // BLOCK_BYTES]:
                start = position + inside
                raise CorruptLogError(path, start, start + len(block), "the bytes differ from the seal", offset)


def joined(checksums: Sequence[int]) -> int:
    """The CRC-32C of whole blocks that follow each other, from the CRC-32C of each."""
    behind_a_block = _behind_a_block()
    crc = 0
    for checksum in checksums:
        crc = behind_a_block(crc) ^ checksum
    return crc


@functools.cache
def _behind_a_block() -> Callable[[int], int]:
    block = bytes(BLOCK_BYTES)
    nothing = crc32c(block)
    return linear(lambda crc: crc32c(block, crc) ^ nothing)


def decode_seal(data: bytes, path: str) -> Seal:
    """Inverse of `Seal.encode`; StorageError when the file is damaged."""
    if len(data) < _HEAD.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
        raise StorageError(f"{path} is damaged")
    magic, version, block, length, last, timestamp, count = _HEAD.unpack_from(data)
    start = _HEAD.size + (_SIDES.size if version == 2 else 0)
    if magic != _MAGIC or version not in _VERSIONS or block != BLOCK_BYTES or len(data) != start + 4 * count + 4:
        raise StorageError(f"{path} is no seal of this version")
    if count != -(-length // BLOCK_BYTES):
        raise StorageError(f"{path} does not cover its {length} bytes")
    checksums = array("I", data[start:-4])
    if sys.byteorder == "little":
        checksums.byteswap()
    if version == 1:
        return Seal(length, last, timestamp, checksums)
    offset, *sides = _SIDES.unpack_from(data, _HEAD.size)
    return Seal(length, last, timestamp, checksums, offset, Sides(*sides))
