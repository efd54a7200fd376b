"""What can still be read of a damaged segment: runs of sound batches, the ranges between them, and single flipped bits.

Behind damage the next batch is searched for byte by byte. A place counts as a batch when its header can be true, its
offsets fit between its neighbours' and its CRC holds. In a sealed segment a single flipped bit can be found and turned
back: no two such flips change the CRC-32C of a block in the same way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby, pairwise
from typing import NamedTuple

from duramen.errors import KafkaError
from duramen.ports import File
from duramen.storage.segment.scan import CHUNK_BYTES, NO_LIMIT, Limit, scan
from duramen.wire.batch import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, parse_header
from duramen.wire.checksum import crc32c, linear

_MAGIC_AT = 16
_POLYNOMIAL = 0x82F63B78
"""CRC-32C, bits reflected."""
_PAGE_BYTES = 4096
_STRIDE_BYTES = 256
"""By which a flipped bit is looked for."""

Chain = list[tuple[int, BatchHeader]]
"""Positions and headers of batches that follow each other."""


class BatchRun(NamedTuple):
    """Bytes start..end of a file. headers: of the sound batches that fill it, none when it is damaged."""

    start: int
    end: int
    headers: list[tuple[int, BatchHeader]]


class PatchedFile:
    """A file read with some bytes changed."""

    def __init__(self, file: File, patches: dict[int, int]) -> None:
        self.path = file.path
        self._file = file
        self.patches = patches
        """New value by position."""

    def pread(self, length: int, offset: int) -> bytes:
        """As File.pread."""
        data = self._file.pread(length, offset)
        inside = [at for at in self.patches if offset <= at < offset + len(data)]
        if inside:
            changed = bytearray(data)
            for at in inside:
                changed[at - offset] = self.patches[at]
            data = bytes(changed)
        return data


def runs(
    file: File, start: int, stop: int, *, from_offset: int, below: int, limit: Limit = NO_LIMIT
) -> Iterator[BatchRun]:
    """The file's bytes start..stop as sound and damaged runs, in order.

    from_offset, below, limit: bounds of the offsets that batches here may have. Memory follows the number of batches.
    """
    position, expected = start, from_offset
    while position < stop:
        headers: list[tuple[int, BatchHeader]] = []
        end = position
        for at, header, ok in scan(file, position, stop, expect_offset=expected):
            if not ok or header is None or header.next_offset > below or limit.is_broken(at, header):
                break
            headers.append((at, header))
            end = at + header.size
            expected = header.next_offset
        if headers:
            yield BatchRun(position, end, headers)
        if end < stop:
            behind = next_batch(file, end, stop, from_offset=expected, below=below, doubt=False)
            yield BatchRun(end, behind, [])
            end = behind
        position = end


def is_doubtful(start: int, end: int, expected: int, offset: int) -> bool:
    """Whether what begins with `offset` at the end of damaged bytes start..end may be a part of the batch they were.

    What was long enough for a batch had offsets, from `expected` on, so none behind it has the first of them. In its
    records there may be what looks like one.
    """
    return end - start >= HEADER_SIZE and offset == expected


def next_batch(file: File, start: int, stop: int, *, from_offset: int, below: int, doubt: bool = True) -> int:
    """Where the first sound batch behind byte `start`, where damage begins, itself begins; `stop` when there is none.

    from_offset: of what was at `start`. doubt: not one that `is_doubtful`.
    """
    position = start + 1
    while position + HEADER_SIZE <= stop:
        chunk = file.pread(min(CHUNK_BYTES, stop - position), position)
        found = chunk.find(MAGIC, _MAGIC_AT)
        while found >= 0:
            inside = found - _MAGIC_AT
            at = position + inside
            # Before anything else is read: a value may consist of what could be the magic byte.
            offset = int.from_bytes(chunk[inside : inside + 8], "big", signed=True)
            fits = from_offset <= offset < below and not (doubt and is_doubtful(start, at, from_offset, offset))
            if fits and at + HEADER_SIZE <= stop and _is_batch(file, at, stop, from_offset, below):
                return at
            found = chunk.find(MAGIC, found + 1)
        if position + len(chunk) >= stop or len(chunk) < HEADER_SIZE:
            break
        position += len(chunk) - _MAGIC_AT
    return stop


def _is_batch(file: File, at: int, stop: int, from_offset: int, below: int) -> bool:
    try:
        header = parse_header(file.pread(HEADER_SIZE, at))
    except KafkaError:
        return False
    if at + header.size > stop or header.leader_epoch < -1:
        return False
    first = next(scan(file, at, at + header.size, expect_offset=from_offset), None)
    return first is not None and first[2] and header.next_offset <= below


class Landmarks(NamedTuple):
    """What a seal that is surely this segment's, or the checkpoint, tells of its batches. Timestamps in ms.

    max_timestamp: the greatest of all batches, -1 none; the batch that ends with max_timestamp_offset has it.
    first_timestamp: the greatest of the first batch. -1 where the last two are not known.
    """

    max_timestamp: int
    max_timestamp_offset: int = -1
    first_timestamp: int = -1

    def fit(self, headers: Iterable[BatchHeader]) -> bool:
        """Whether a segment with these landmarks may have these batches."""
        return all(
            header.max_timestamp <= self.max_timestamp
            and (header.last_offset != self.max_timestamp_offset or header.max_timestamp == self.max_timestamp)
            for header in headers
            if header.count
        )

    def name(self, header: BatchHeader) -> bool:
        """Whether this is the batch that is known."""
        place = (header.last_offset, header.max_timestamp)
        return header.count > 0 <= self.max_timestamp and place == (self.max_timestamp_offset, self.max_timestamp)


class DamagedSegment(NamedTuple):
    """What is known of a segment some of whose blocks are not what was sealed: bytes start..end of each in `bad`.

    It begins with offset `base`, ends before `below`, and its last batch at byte `end`. sealed: bytes that were sealed.
    bad: ascending. entries: last offset of the batch at a position, by an index that a checksum vouches for; empty
    where there is none. has_gaps: compaction may have taken any batch. landmarks: None where nothing sure is known.
    """

    base: int
    below: int
    end: int
    sealed: int
    bad: tuple[tuple[int, int], ...]
    entries: dict[int, int]
    has_gaps: bool
    landmarks: Landmarks | None

    def block_of(self, at: int) -> tuple[int, int] | None:
        """The last bad block that has some of what the CRC of a batch at this byte leaves out."""
        before = bisect_left(self.bad, (at + CRC_START,)) - 1
        return self.bad[before] if before >= 0 and at < self.bad[before][1] else None

    def confirmed(self, chains: list[Chain]) -> Iterator[Chain]:
        """The chains that belong to this segment.

        What holds none of them may be a file of another log: many begin at the same offset. So beginning where this
        segment does speaks for a chain only where a held one begins on the same page, for a disk mixes up whole pages.
        Without a landmark it is enough, and so is, without an index, that they are several.
        """
        named = self._named(chains)
        agreeing = [chain for chain in chains if self._agrees(chain, named.get(chain[0][0], set()))]
        held = {chain[0][0] for chain in agreeing if chain[0][0] in named or self._holds(chain)}
        lenient = self.landmarks is None
        begun = lenient or min(held, default=_PAGE_BYTES) < _PAGE_BYTES
        for chain in agreeing:
            several = lenient and not self.entries and len(chain) > 1
            if chain[0][0] in held or several or (begun and self._begins(chain)):
                yield chain

    def _named(self, chains: list[Chain]) -> dict[int, set[tuple[int, int]]]:
        """Position and last offset of the index entries for bytes of a chain, by where that begins."""
        starts = [chain[0][0] for chain in chains]
        named: dict[int, set[tuple[int, int]]] = {}
        for at, offset in self.entries.items():
            number = bisect_right(starts, at) - 1
            if number >= 0 and at < _end(chains[number]):
                named.setdefault(starts[number], set()).add((at, offset))
        for number, chain in enumerate(chains):
            self._look_behind_a_hole(chain, chains[number + 1 : number + 2], named)
        return named

    def _look_behind_a_hole(self, chain: Chain, behind: list[Chain], named: dict[int, set[tuple[int, int]]]) -> None:
        """Where bytes are gone from the middle of a file, what lies behind them is that much nearer to its beginning.

        How much that is tells what follows by offset, and does not follow by its place.
        """
        start, (at, offset) = chain[0][0], (max(self.sealed, self.end), self.below)
        for following in behind:
            at, offset = following[0][0], following[0][1].base_offset
        gone = at - _end(chain)
        if gone > 0 and chain[-1][1].next_offset == offset and not _has(chain, named.get(start, set())):
            named.pop(start)
            if moved := {(at - gone, last) for at, last in self.entries.items() if start <= at - gone < _end(chain)}:
                named[start] = moved

    def _agrees(self, chain: Chain, named: set[tuple[int, int]]) -> bool:
        """Whether nothing that is known of the segment speaks against it."""
        if not _has(chain, named):
            return False
        return self.landmarks is None or self.landmarks.fit(header for _, header in chain)

    def _holds(self, chain: Chain) -> bool:
        """Whether a sound block has a batch of it, a landmark is in it, or it ends where the segment did."""
        known, (_, first) = self.landmarks, chain[0]
        if self._ends(chain) and (known is None or self.sealed <= self.end):
            return True
        if known is not None and 0 <= known.first_timestamp == first.max_timestamp and self._begins(chain):
            return True
        if known is not None and any(known.name(header) for _, header in chain):
            return True
        return any(at + CRC_START <= self.sealed and self.block_of(at) is None for at, _ in chain)

    def _begins(self, chain: Chain) -> bool:
        start, first = chain[0]
        return (start, first.base_offset) == (0, self.base)

    def _ends(self, chain: Chain) -> bool:
        return (_end(chain), chain[-1][1].next_offset) == (self.end, self.below)


def without_doubtful(pieces: list[BatchRun], segment: DamagedSegment) -> list[BatchRun]:
    """Take out batches in damaged blocks that nothing but their own CRC speaks for.

    That CRC leaves out their first 21 bytes, and a batch of another log has one, too. A wrong offset would be that of
    neither neighbour's end, a wrong epoch neither one's epoch.
    """
    chains = _chains(_headers(pieces), has_gaps=segment.has_gaps)
    confirmed = {chain[0][0] for chain in segment.confirmed(chains)}
    foreign = (at for chain in chains if chain[0][0] not in confirmed for at, _ in chain)
    pieces = _without(pieces, {at for at in foreign if segment.block_of(at) is not None})
    return _without(pieces, set(_misplaced(pieces, segment)))


def without_impostors(pieces: list[BatchRun], base: int, entries: Mapping[int, int]) -> list[BatchRun]:
    """Take out what `is_doubtful`, unless an index names it. base, entries: see `DamagedSegment`."""
    expected, doubtful = base, set()
    for run, behind in pairwise([*pieces, BatchRun(0, 0, [])]):
        if run.headers:
            expected = run.headers[-1][1].next_offset
            continue
        for at, header in behind.headers:
            if at in entries or not is_doubtful(run.start, at, expected, header.base_offset):
                break
            doubtful.add(at)
    return _without(pieces, doubtful)


def _misplaced(pieces: list[BatchRun], segment: DamagedSegment) -> Iterator[int]:
    """Where batches begin whose own offset or epoch is in doubt.

    Between the gaps of compaction neighbours do not speak for an offset. There, damage in one place of a block is taken
    for all that is wrong with it, but for what begins right behind that place.
    """
    headers = _headers(pieces)
    starts, ends = _damaged_places(pieces, segment)
    for number, (at, header) in enumerate(headers):
        block = segment.block_of(at)
        if block is None:
            continue
        before, behind = headers[max(0, number - 1) : number], headers[number + 1 : number + 2]
        follows = any((_end([each]), each[1].next_offset) == (at, header.base_offset) for each in before)
        leads = any(each[0] == at + header.size and each[1].base_offset == header.next_offset for each in behind)
        begins = (at, header.base_offset) == (0, segment.base)
        is_placed = not segment.has_gaps or at in segment.entries or begins or (follows and leads)
        epoch, lower, upper = header.leader_epoch, _epochs(before), _epochs(behind)
        if is_placed and (epoch in lower + upper or not lower + upper):
            continue
        first, last = bisect_right(ends, block[0]), bisect_left(starts, block[1]) - 1
        is_local = first == last and (leads or ends[first] != at)
        ascends = all(each <= epoch for each in lower) and all(epoch <= each for each in upper)
        if not (segment.has_gaps and is_local and ascends):
            yield at


def _epochs(headers: Chain) -> list[int]:
    return [header.leader_epoch for _, header in headers]


def _damaged_places(pieces: list[BatchRun], segment: DamagedSegment) -> tuple[list[int], list[int]]:
    """Where bytes without a sound batch begin and end; the missing end of a file is one such place."""
    starts = [run.start for run in pieces if not run.headers]
    ends = [run.end for run in pieces if not run.headers]
    if segment.end < segment.sealed:
        if ends[-1:] == [segment.end]:
            ends.pop()
        else:
            starts.append(segment.end)
        ends.append(segment.sealed)
    return starts, ends


def _without(pieces: list[BatchRun], doubtful: set[int]) -> list[BatchRun]:
    """The runs when the batches at these positions are damage, too."""
    parts: list[tuple[int, int, BatchHeader | None]] = []
    for run in pieces:
        if not run.headers:
            parts.append((run.start, run.end, None))
        parts += [(at, at + header.size, None if at in doubtful else header) for at, header in run.headers]
    result: list[BatchRun] = []
    for _, group in groupby(parts, key=lambda part: part[2] is None):
        same = list(group)
        headers = [(at, header) for at, _, header in same if header is not None]
        result.append(BatchRun(same[0][0], same[-1][1], headers))
    return result


def _headers(pieces: list[BatchRun]) -> Chain:
    return [each for run in pieces for each in run.headers]


def _has(chain: Chain, named: set[tuple[int, int]]) -> bool:
    """Whether a batch of it is wherever one is named by position and last offset."""
    return named <= {(at, header.last_offset) for at, header in chain}


def _end(chain: Chain) -> int:
    at, header = chain[-1]
    return at + header.size


def _chains(headers: Chain, *, has_gaps: bool) -> list[Chain]:
    """Batches that follow each other without a gap in bytes, nor, unless there may be such, in offsets."""
    chains: list[Chain] = []
    end, following = -1, -1
    for at, header in headers:
        if at != end or (header.base_offset != following and not has_gaps):
            chains.append([])
        chains[-1].append((at, header))
        end, following = at + header.size, header.next_offset
    return chains


def flipped_bit(block: bytes | memoryview, wanted: int) -> tuple[int, int] | None:
    """(byte, mask) of the one bit whose flip gives the block this CRC-32C; None when it is not one bit."""
    near, later = _last_flips(), _later()
    change = crc32c(block) ^ wanted
    for end in range(len(block), 0, -_STRIDE_BYTES):
        if change in near:
            before, mask = near[change]
            return (end - before, mask) if before <= end else None
        change = later(change)
    return None


@cache
def _last_flips() -> dict[int, tuple[int, int]]:
    """(bytes before the end, mask) of each bit of the last _STRIDE_BYTES, by how its flip changes the CRC-32C."""
    near = {}
    change = _POLYNOMIAL
    for before in range(1, _STRIDE_BYTES + 1):
        for bit in range(7, -1, -1):
            near[change] = before, 1 << bit
            change = change >> 1 ^ (_POLYNOMIAL if change & 1 else 0)
    return near


@cache
def _later() -> Callable[[int], int]:
    """How the CRC-32C would change if the flip were _STRIDE_BYTES nearer to the end."""

    def later(change: int) -> int:
        for _ in range(8 * _STRIDE_BYTES):
            change = (change ^ _POLYNOMIAL) << 1 | 1 if change >> 31 else change << 1
        return change

    return linear(later)
