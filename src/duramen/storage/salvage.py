"""What can still be read of a damaged segment: runs of sound batches, the ranges between them, and single flipped bits.

Behind damage the next batch is searched for byte by byte. A place counts as a batch when its header can be true, its
offsets fit between its neighbours' and its CRC holds. In a sealed segment a single flipped bit can be found and turned
back: no two such flips change the CRC-32C of a block in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from duramen.errors import KafkaError
from duramen.ports import File
from duramen.storage.scan import CHUNK_BYTES, scan
from duramen.wire.batch import HEADER_SIZE, MAGIC, BatchHeader, parse_header
from duramen.wire.checksum import crc32c

_MAGIC_AT = 16
_POLYNOMIAL = 0x82F63B78
"""CRC-32C, bits reflected."""


class Run(NamedTuple):
    """Bytes start..end of a file. headers: of the sound batches that fill it, none when it is damaged."""

    start: int
    end: int
    headers: list[tuple[int, BatchHeader]]


def runs(file: File, start: int, stop: int, *, from_offset: int, below: int) -> Iterator[Run]:
    """The file's bytes start..stop as sound and damaged runs, in order.

    from_offset, below: bounds of the offsets that batches here may have. Memory follows the number of batches.
    """
    position, expected = start, from_offset
    while position < stop:
        headers: list[tuple[int, BatchHeader]] = []
        end = position
        for at, header, ok in scan(file, position, stop, expect_offset=expected):
            if not ok or header is None or header.next_offset > below:
                break
            headers.append((at, header))
            end = at + header.size
            expected = header.next_offset
        if headers:
            yield Run(position, end, headers)
        if end < stop:
            behind = next_batch(file, end, stop, from_offset=expected, below=below)
            yield Run(end, behind, [])
            end = behind
        position = end


def next_batch(file: File, start: int, stop: int, *, from_offset: int, below: int) -> int:
    """Where the first sound batch behind byte `start` begins; `stop` when there is none."""
    position = start + 1
    while position + HEADER_SIZE <= stop:
        chunk = file.pread(min(CHUNK_BYTES, stop - position), position)
        found = chunk.find(MAGIC, _MAGIC_AT)
        while found >= 0:
            at = position + found - _MAGIC_AT
            if at + HEADER_SIZE <= stop and _is_batch(file, at, stop, from_offset, below):
                return at
            found = chunk.find(MAGIC, found + 1)
        if position + len(chunk) >= stop:
            break
        position += len(chunk) - _MAGIC_AT
    return stop


def _is_batch(file: File, at: int, stop: int, from_offset: int, below: int) -> bool:
    try:
        header = parse_header(file.pread(HEADER_SIZE, at))
    except KafkaError:
        return False
    if at + header.size > stop or not from_offset <= header.base_offset < below or header.leader_epoch < -1:
        return False
    first = next(scan(file, at, at + header.size, expect_offset=from_offset), None)
    return first is not None and first[2] and header.next_offset <= below


class Segment(NamedTuple):
    """What is known of a segment some of whose blocks are not what was sealed: bytes start..end of each in `bad`.

    It begins with offset `base`, ends before `below`, and its last batch at byte `end`. entries: last offset of the
    batch at a position, by an index that a checksum vouches for; empty where there is no such index.
    """

    base: int
    below: int
    end: int
    bad: tuple[tuple[int, int], ...]
    entries: dict[int, int]

    def is_damaged(self, start: int, end: int) -> bool:
        """Whether a bad block has some of these bytes."""
        return any(first < end and start < last for first, last in self.bad)

    def confirms(self, chain: list[tuple[int, BatchHeader]]) -> bool:
        """Whether batches that follow each other belong to this segment, at these offsets.

        Its index has to agree, and something has to hold the chain: a sound block, the index, the segment's own
        beginning or end. Without an index it is enough that they are several.
        """
        (start, first), (at, last) = chain[0], chain[-1]
        end = at + last.size
        named = {at: offset for at, offset in self.entries.items() if start <= at < end}
        if not named.items() <= {at: header.last_offset for at, header in chain}.items():
            return False
        return (
            bool(named)
            or (not self.entries and len(chain) > 1)
            or (start, first.base_offset) == (0, self.base)
            or (end, last.next_offset) == (self.end, self.below)
            or any(not self.is_damaged(at, at + header.size) for at, header in chain)
        )


def without_doubtful(pieces: list[Run], segment: Segment) -> list[Run]:
    """Take out batches in damaged blocks that nothing but their own CRC speaks for.

    That CRC leaves out their first 21 bytes, and a batch of another log has one, too. A wrong offset would be that of
    neither neighbour's end, a wrong epoch neither one's epoch.
    """
    headers = [each for run in pieces for each in run.headers]
    doubtful: set[int] = set()
    for chain in _chains(headers):
        if not segment.confirms(chain):
            doubtful |= {at for at, header in chain if segment.is_damaged(at, at + header.size)}
    for number, (at, header) in enumerate(headers):
        beside = headers[max(0, number - 1) : number] + headers[number + 1 : number + 2]
        epochs = [each.leader_epoch for _, each in beside]
        if epochs and header.leader_epoch not in epochs and segment.is_damaged(at, at + header.size):
            doubtful.add(at)
    result: list[Run] = []
    for run in pieces:
        if not run.headers:
            result.append(run)
            continue
        for at, header in run.headers:
            kept = at not in doubtful
            end = at + header.size
            if result and result[-1].end == at and bool(result[-1].headers) == kept:
                last = result.pop()
                result.append(Run(last.start, end, [*last.headers, (at, header)] if kept else []))
            else:
                result.append(Run(at, end, [(at, header)] if kept else []))
    return result


def _chains(headers: list[tuple[int, BatchHeader]]) -> list[list[tuple[int, BatchHeader]]]:
    """Batches that follow each other without a gap in bytes or offsets."""
    chains: list[list[tuple[int, BatchHeader]]] = []
    end, following = -1, -1
    for at, header in headers:
        if (at, header.base_offset) != (end, following):
            chains.append([])
        chains[-1].append((at, header))
        end, following = at + header.size, header.next_offset
    return chains


def flipped_bit(block: bytes | memoryview, wanted: int) -> tuple[int, int] | None:
    """(byte, mask) of the one bit whose flip gives the block this CRC-32C; None when it is not one bit."""
    difference = crc32c(block) ^ wanted
    # The change that a flip of the last bit makes, then of the one before it, and so on to the first.
    change = _POLYNOMIAL
    for byte in range(len(block) - 1, -1, -1):
        for bit in range(7, -1, -1):
            if change == difference:
                return byte, 1 << bit
            change = change >> 1 ^ (_POLYNOMIAL if change & 1 else 0)
    return None
