"""Kafka's five compression codecs: bytes in, bytes out, never more than the caller allows.

Codec numbers are the low three bits of a batch's attributes. A batch is produced by anybody, so inflating stops at a
limit given by the caller: a few bytes can otherwise claim gigabytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import cramjam

from duramen.errors import ErrorCode, KafkaError

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_Buffer = bytes | bytearray | memoryview

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# Version 1, independent blocks of at most 64 KiB, no checksums; the last byte is xxHash32 of the two before it.
# Kafka's Java reader cannot follow linked blocks, which general LZ4 encoders write.
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_SIZE = struct.Struct("<I")
_LZ4_STORED = 0x80000000
_LZ4_BLOCK_CHECKSUM = 0x10
_LZ4_CONTENT_SIZE = 0x08
_FIRST_GUESS_BYTES = 64 * 1024
_MAX_GZIP_MEMBERS = 1000
"""Each member costs a copy of everything behind it, and empty ones are 20 bytes."""


LZ4_FAST_LEVEL = 9
"""Kafka's default level stands for the fast compressor; every other one is a level of the thorough one."""


def compress(codec: int, data: _Buffer, level: int | None = None) -> bytes:
    """`data` compressed as Kafka's clients expect it; `level` is the codec's own scale (KIP-390), None its default.

    Raises KafkaError UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _xerial(data)
    if codec == LZ4:
        return _lz4_frame(data, LZ4_FAST_LEVEL if level is None else level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise _unknown(codec)


def decompress(codec: int, data: _Buffer, max_bytes: int) -> bytes:
    """The original of `data`, which is at most `max_bytes` long.

    Raises KafkaError: MESSAGE_TOO_LARGE when it would be longer (found while inflating, not afterwards),
    INVALID_RECORD when `data` is no such stream, UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    if codec == NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return bytes(data)
    if codec == GZIP:
        return _gunzip(data, max_bytes)
    if codec == SNAPPY:
        return _unsnap(data, max_bytes)
    if codec == LZ4:
        return _grow(cramjam.lz4.decompress_into, data, max_bytes, "lz4")
    if codec == ZSTD:
        return _grow(cramjam.zstd.decompress_into, data, max_bytes, "zstd")
    raise _unknown(codec)


def decompress_into(codec: int, data: _Buffer, out: memoryview) -> int:
    """The original of `data` at the front of `out`, which is writable; how many bytes it has.

    For readers that inflate many batches into one buffer. Raises KafkaError as `decompress`; MESSAGE_TOO_LARGE means
    that `out` cannot hold it, and what lies in `out` is then undefined.
    """
    if codec == LZ4:
        size = _lz4_blocks_into(data, out)
        return _fill(cramjam.lz4.decompress_into, data, out, "lz4") if size is None else size
    if codec == ZSTD:
        return _fill(cramjam.zstd.decompress_into, data, out, "zstd")
    original = decompress(codec, data, len(out))
    out[: len(original)] = original
    return len(original)


def _unknown(codec: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


def _too_large(max_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"decompressed records exceed {max_bytes} bytes")


def _damaged(name: str, reason: object) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"the {name} stream cannot be read: {reason}")


def _gunzip(data: _Buffer, max_bytes: int) -> bytes:
    """All members of a gzip stream, one after the other, as Java's reader takes them."""
    pieces: list[bytes] = []
    room = max_bytes
    rest: _Buffer = data
    while rest:
        if len(pieces) == _MAX_GZIP_MEMBERS:
            raise _damaged("gzip", f"it has more than {_MAX_GZIP_MEMBERS} members")
        inflater = zlib.decompressobj(31)
        try:
            # One byte more than allowed tells "exactly the limit" from "beyond it"; 0 would mean "no limit".
            piece = inflater.decompress(rest, room + 1)
        except zlib.error as error:
            raise _damaged("gzip", error) from None
        if len(piece) > room:
            raise _too_large(max_bytes)
        if not inflater.eof:
            raise _damaged("gzip", "it ends too early")
        pieces.append(piece)
        room -= len(piece)
        rest = inflater.unused_data
    return b"".join(pieces)


def _xerial(data: _Buffer) -> bytes:
    """Snappy blocks behind the header of snappy-java, the framing that every Kafka client reads."""
    view = memoryview(data)
    pieces = [_XERIAL_HEADER]
    # At least one block: some readers take a bare header for a bare block.
    for start in range(0, max(1, len(view)), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        pieces.append(struct.pack(">i", len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _unsnap(data: _Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _snappy_block(view, max_bytes, max_bytes)  # librdkafka and others send one bare block
    pieces: list[bytes] = []
    room = max_bytes
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if position + 4 > len(view):
            raise _damaged("snappy", "it ends inside a block length")
        (length,) = struct.unpack_from(">i", view, position)
        position += 4
        if length < 0 or position + length > len(view):
            raise _damaged("snappy", "a block is longer than the stream")
        piece = _snappy_block(view[position : position + length], room, max_bytes)
        pieces.append(piece)
        room -= len(piece)
        position += length
    return b"".join(pieces)


def _snappy_block(block: memoryview, room: int, max_bytes: int) -> bytes:
    """One block; its stated length is checked before anything is allocated for it."""
    stated = shift = 0
    for byte in block[:5]:
        stated |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _damaged("snappy", "it has no length")
    if stated > room:
        raise _too_large(max_bytes)
    out = bytearray(stated)
    try:
        written = cramjam.snappy.decompress_raw_into(block, out)
    except (cramjam.DecompressionError, ValueError) as error:
        raise _damaged("snappy", error) from None
    if written != stated:
        raise _damaged("snappy", f"{written} bytes instead of the {stated} it states")
    return bytes(out)


def _lz4_frame(data: _Buffer, level: int) -> bytes:
    view = memoryview(data)
    pieces = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        packed = _lz4_block(block, level)
        if len(packed) < len(block):
            pieces.append(struct.pack("<I", len(packed)))
            pieces.append(packed)
        else:
            pieces.append(struct.pack("<I", len(block) | _LZ4_STORED))
            pieces.append(bytes(block))
    pieces.append(b"\0\0\0\0")
    return b"".join(pieces)


def _lz4_block(block: memoryview, level: int) -> bytes:
    """One independent block. cramjam has levels only for whole frames, so that others are cut out of one."""
    if level != LZ4_FAST_LEVEL:
        frame = bytes(cramjam.lz4.compress(block, level=level))
        start = 15 if frame[4] & _LZ4_CONTENT_SIZE else 7
        size = int.from_bytes(frame[start : start + 4], "little")
        end = start + 4 + size
        behind = end + 4 if frame[4] & _LZ4_BLOCK_CHECKSUM else end
        if not size & _LZ4_STORED and frame[behind : behind + 4] == b"\0\0\0\0":  # the frame's only block
            return frame[start + 4 : end]
    return bytes(cramjam.lz4.compress_block(block, store_size=False))


def _lz4_blocks_into(data: _Buffer, out: memoryview) -> int | None:
    """As `decompress_into`, for frames as clients write them: each block to its place, without the codec's own buffer.

    None for every other frame, and where anything is wrong: the codec then says what.
    """
    end = len(data) - _LZ4_SIZE.size
    if end < len(_LZ4_HEADER) or data[: len(_LZ4_HEADER)] != _LZ4_HEADER:
        return None
    at = len(_LZ4_HEADER)
    written = 0
    try:
        while at <= end:
            (size,) = _LZ4_SIZE.unpack_from(data, at)
            at += _LZ4_SIZE.size
            if not size:
                return written if at == len(data) else None
            if size > len(data) - at:  # or it is stored as it was
                return None
            room = out[written : written + _LZ4_BLOCK_BYTES]
            written += int(cramjam.lz4.decompress_block_into(data[at : at + size], room))
            at += size
    except (cramjam.DecompressionError, ValueError):
        pass
    return None


def _grow(inflate_into: object, data: _Buffer, max_bytes: int, name: str) -> bytes:
    """Inflate into buffers of growing size: the codec stops at the end of each, so the limit holds while it works."""
    size = min(max_bytes, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        out = memoryview(bytearray(size))
        try:
            return bytes(out[: _fill(inflate_into, data, out, name)])
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or size == max_bytes:
                raise
        size = min(max_bytes, size * 4)


def _fill(inflate_into: object, data: _Buffer, out: memoryview, name: str) -> int:
    if not data:
        raise _damaged(name, "it is empty")
    try:
        return int(inflate_into(data, out))  # type: ignore[operator]
    except (cramjam.DecompressionError, ValueError) as error:
        if "whole buffer" in str(error):
            raise _too_large(len(out)) from None
        raise _damaged(name, error) from None
