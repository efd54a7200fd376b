"""Walks the batches of a segment file from front to back, headers only or with their CRCs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from duramen.errors import KafkaError
from duramen.ports import Buffer, File
from duramen.wire.batch import CRC_START, HEADER_SIZE, BatchHeader, parse_header
from duramen.wire.checksum import crc32c

CHUNK_BYTES = 256 * 1024


class Limit(NamedTuple):
    """No batch that begins in front of that byte of a segment goes beyond that offset.

    A base offset is in no CRC: the next batch tells where it is wrong, and behind the last one there is none.
    """

    position: int
    offset: int

    def is_broken(self, at: int, header: BatchHeader) -> bool:
        """By the batch at byte `at`."""
        return header.next_offset > self.offset and at < self.position


NO_LIMIT: Final = Limit(0, 0)
NO_END: Final = 1 << 62
"""Above every position and every offset."""


class Readable(Protocol):
    """What can be scanned."""

    def pread(self, length: int, offset: int) -> Buffer:
        """At most so many bytes; of those before the end the first HEADER_SIZE at least."""


def scan(
    file: Readable, start: int, stop: int, *, expect_offset: int = -1, crc: bool = True
) -> Iterator[tuple[int, BatchHeader | None, bool]]:
    """(position, header, ok) of each batch in bytes start..stop, which must start at a batch.

    The first that is not ok is the last: its header cannot be true (then header is None), it does not fit before
    `stop`, its base offset is below the end of the one before (or below `expect_offset`), or (with `crc`) its CRC
    differs. Memory used does not depend on what a header claims.
    """
    position = start
    expected = expect_offset
    chunk = memoryview(b"")
    chunk_start = start
    while position < stop:
        inside = position - chunk_start
        if inside + HEADER_SIZE > len(chunk):
            chunk = memoryview(file.pread(min(CHUNK_BYTES, stop - position), position))
            chunk_start, inside = position, 0
        try:
            header = parse_header(chunk, inside)
        except KafkaError:
            yield position, None, False
            return
        end = position + header.size
        count = header.last_offset_delta + 1
        if end > stop or header.base_offset < expected or count <= 0 or header.count > count or header.count < 0:
            yield position, header, False
            return
        if crc:
            if inside + header.size <= len(chunk):
                found = crc32c(chunk[inside + CRC_START : inside + header.size])
            else:
                found = crc_of(file, position + CRC_START, end)
            if found != header.crc:
                yield position, header, False
                return
        expected = header.base_offset + count
        yield position, header, True
        position = end


def header_at(file: File, position: int, stop: int) -> BatchHeader | None:
    """The header of the batch at `position`, reading nothing else; None when there is none that fits before `stop`."""
    data = file.pread(min(HEADER_SIZE, max(0, stop - position)), position)
    try:
        header = parse_header(memoryview(data), 0)
    except KafkaError:
        return None
    return header if position + header.size <= stop else None


def crc_of(file: Readable, start: int, end: int) -> int:
    """CRC-32C of the file's bytes start..end; -1 when it has fewer."""
    result = 0
    while start < end:
        piece = file.pread(min(CHUNK_BYTES, end - start), start)
        if not piece:
            return -1
        result = crc32c(piece, result)
        start += len(piece)
    return result
