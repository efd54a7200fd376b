"""Finding stored batches and handing them out: as spans of hot files, as verified bytes, or as work for the cold pool.

A read starts with the batch that contains its offset and ends with a whole batch. Bytes in the verified window (written
or verified by this process lately) leave as a `FileSpan` for sendfile. Other bytes are read only if they are in memory,
and checked against the segment's seal, or batch by batch against their CRCs; when they are not in memory the read
becomes a `Pending`, which does the same on the cold pool. Damage is a CorruptLogError with its place, never a gap; the
whole batches before it are handed out first. A read that begins after it is not kept from there by it.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from duramen.errors import CorruptLogError, KafkaError
from duramen.page_cache import DIRECT_BYTES
from duramen.ports import Buffer, File, FileSpan
from duramen.storage.files.read_buffers import COLD_BYTES, PREFETCH_BYTES, READ_AHEAD_BYTES, ReadBuffers
from duramen.storage.read.verified_window import Fetch, Recall
from duramen.storage.segment.corruption import around, whole_at
from duramen.storage.segment.index import OffsetIndex, StoredOffsetIndex
from duramen.wire.batch import HEADER_SIZE, BatchHeader, check_crc, parse_header
from duramen.wire.seal import BLOCK_BYTES, Seal

CHECKED_BYTES = 4 * BLOCK_BYTES
"""What is held to a seal before the processor goes to who waits for it, as the loop may: 256 KiB, 30 µs."""

ReadIndex = Callable[[int, int], "bytes | memoryview"]
"""(position, length) -> exactly these bytes of the index file."""


class ColdRead(NamedTuple):
    """Whole batches in memory, checked. next_offset: behind the last; position: of the first byte."""

    data: memoryview
    next_offset: int
    position: int
    last_size: int = 0
    """Bytes of the last batch."""
    damage: CorruptLogError | None = None
    """Why it ends here, where that is for want of sound bytes; or what lies in front of it and was got around."""


class _MisledError(CorruptLogError):
    """What an index says, and what is there, differ: it may be either."""


class ReadPlan(NamedTuple):
    """Everything a read of one segment needs to know, so that it can run on any thread."""

    file: File
    path: str
    size: int
    base_offset: int
    next_offset: int
    """Behind the segment's last record."""
    seal: Seal | None
    index_file: File | None
    index_entries: int
    hint: int
    """Start of a batch at or before the one wanted, or, where there is none, behind it; -1: search the index file."""
    offset: int
    end_offset: int
    max_bytes: int
    at_least_one: bool
    piece: int = COLD_BYTES
    """Most bytes that are read at once, a single batch of more aside."""
    settled: bool = False
    """All of the file is on the disk: nobody has written to it since."""
    likely: int = 0
    """Bytes that its first batch probably has: less would be read twice."""
    live_index: OffsetIndex | None = None
    """What the loop has in memory, and appends to."""
    named: bool = False
    """An index says so of the hint: it may be wrong, and what it names is not behind the one wanted."""


class Pending:
    """A piece of a reply that must be read off the loop.

    size: most bytes it can bring, a single batch above that aside. on_checked: called with what was found, on the loop.
    recent: it belongs in memory (`VerifiedWindow.refuse`), so it stays there once it is read. recall: a cheaper way to
    have it there, after which the same read finds it hot. follows: it goes on where an earlier read ended.
    """

    __slots__ = (
        "_buffers", "_bytes_read", "_is_hot", "_on_checked", "_stays", "follows", "found", "plan", "recall", "recent",
        "size",
    )  # fmt: skip

    def __init__(
        self,
        plan: ReadPlan,
        buffers: ReadBuffers,
        on_checked: Callable[[ColdRead], bool],
        *,
        recent: bool = False,
        follows: bool = False,
    ) -> None:
        self.plan = plan
        self.recent = self._stays = recent
        self.follows = follows
        self.recall: Recall | None = None
        self.size = min(plan.max_bytes, plan.size - max(plan.hint, 0), COLD_BYTES)
        self.found: ColdRead | None = None
        self._is_hot = False
        self._bytes_read = 0
        self._buffers = buffers
        self._on_checked = on_checked

    def __len__(self) -> int:
        return self.size

    def limit(self, most: int, *, stays: bool = False) -> None:
        """Before it runs: bring at most so many bytes, a single batch above that aside.

        stays: what it brings stays in memory, where the next who reads it finds it.
        """
        self._stays = self.recent or stays
        most = max(most, self.plan.likely)
        self.plan = self.plan._replace(piece=min(self.plan.piece, most))
        self.size = min(self.size, most)

    def bring_back(self) -> bool:
        """Run the recall, if there is one; any thread. False where `run` has to read."""
        if self.recall is None:
            return False
        try:
            self.recall.run()
        except (CorruptLogError, OSError):
            return False  # `run` finds what lies in front of it
        return True

    def run(self) -> ColdRead:
        """Read and check; any thread. OSError, CorruptLogError. But for what `stays`, the page cache is left alone."""
        plan = self.plan
        buffers = self._buffers

        def fetch(position: int, length: int) -> memoryview:
            self._bytes_read += length
            if self._stays:
                ahead = PREFETCH_BYTES if self.follows and not self.recent else 0
                buffer = buffers.view(length)[:length]
                count = plan.file.read_back(buffer, position, ahead=ahead)
                if count != length:
                    raise _cut(plan, position + count)
                return buffer
            before = position % DIRECT_BYTES
            buffer = buffers.view(before + length)
            count = plan.file.read_cold(buffer, position - before, settled=plan.settled)
            if count < before + length:
                raise _cut(plan, position - before + count)
            return buffer[before : before + length]

        try:
            found = _extract_surely(plan, fetch)
        except CorruptLogError as error:
            raise _around(plan, error.with_traceback(None))[0] from None  # its frames know it, too, and the file
        self.found = found if found.damage is None else found._replace(damage=_around(plan, found.damage)[0])
        return self.found

    def complete(self) -> int:
        """On the loop, when it or its recall has run; how many bytes it brought from the disk."""
        if self.recall is not None:
            self.recall.complete()
        self._is_hot = self.found is not None and self._on_checked(self.found)
        was_there = self.recent or (self._is_hot and not self._stays)
        return 0 if was_there else self._bytes_read

    @property
    def span(self) -> FileSpan | None:
        """What it found, to be sent from where it lies; None unless that is hot, and stays so."""
        found = self.found
        if found is None or not (self._stays and self._is_hot):
            return None
        return FileSpan(self.plan.file, found.position, len(found.data))


class LogRead:
    """What a read found. parts: FileSpan | Buffer | Pending; size: their bytes (at most, while one is Pending).

    first_offset: asked for; next_offset: behind the last whole batch (while a part is Pending: as far as it can reach).
    is_old: much of it is in memory because somebody read it, and not because it was written.
    """

    __slots__ = ("first_offset", "is_old", "next_offset", "parts", "size")

    def __init__(self, offset: int) -> None:
        self.parts: list[FileSpan | Buffer | Pending] = []
        self.size = 0
        self.first_offset = offset
        self.next_offset = offset
        self.is_old = False


def _cut(plan: ReadPlan, end: int) -> CorruptLogError:
    return CorruptLogError(plan.path, end, plan.size, "the file is too short", plan.offset)


class _Source:
    """Bytes of a plan's segment, held to its seal. cut: the damage that a piece ended in front of."""

    __slots__ = ("_fetch", "_plan", "cut")

    def __init__(self, plan: ReadPlan, fetch: Fetch) -> None:
        self._plan = plan
        self._fetch = fetch
        self.cut: CorruptLogError | None = None

    def read(self, start: int, end: int, least: int) -> memoryview:
        """Bytes start..end; where some are damaged or cannot be read, those in front of them, if they are `least`.

        Else CorruptLogError or OSError.
        """
        try:
            return self._checked(start, end)
        except CorruptLogError as error:
            stop = min(error.start, end)
            seal = self._plan.seal
            if seal is not None and stop < seal.length:
                stop -= stop % BLOCK_BYTES
            if stop - start < least:
                raise
            self.cut = error.with_traceback(None)  # which would keep the buffer
        except OSError:
            stop = start - start % BLOCK_BYTES + BLOCK_BYTES  # which of the bytes it was about is not known
            if stop >= end or stop - start < least:
                raise
        return self._checked(start, stop)

    def _checked(self, start: int, end: int) -> memoryview:
        plan, seal = self._plan, self._plan.seal
        if seal is None or start >= seal.length:
            return self._fetch(start, end - start)
        block_start, sealed_end = seal.block_range(start, min(end, seal.length))
        block_end = max(sealed_end, end)
        data = self._fetch(block_start, block_end - block_start)
        for at in range(block_start, sealed_end, CHECKED_BYTES):
            if at > block_start:
                os.sched_yield()
            piece = data[at - block_start : min(at + CHECKED_BYTES, sealed_end) - block_start]
            seal.check(piece, at, plan.path, plan.offset)
        return data[start - block_start : end - block_start]


def _blocking(file: File | None) -> Callable[[int, int], bytes]:
    def read(position: int, length: int) -> bytes:
        data = file.pread(length, position) if file is not None else b""
        if len(data) != length:
            raise CorruptLogError(getattr(file, "path", "?"), position, position + length, "the index is too short")
        return data

    return read


def _extract_surely(plan: ReadPlan, fetch: Fetch) -> ColdRead:
    """Also where an index is wrong, and from behind damage that the way leads through."""
    try:
        return extract(plan, fetch, _blocking(plan.index_file))
    except CorruptLogError as error:
        met = error.with_traceback(None)  # which would keep the buffer
    for hint in _other_ways(plan, met):
        try:
            way = plan._replace(hint=hint, named=hint > 0, index_file=None, index_entries=0)
            read = extract(way, fetch, _blocking(None))
            if not (isinstance(met, _MisledError) and _begins_behind(read, plan.offset)):
                return read
            break  # the index knows of what is not there any more
        except CorruptLogError as error:
            is_nearer = met.path == plan.path and met.start > error.start and not isinstance(met, _MisledError)
            met = met if is_nearer else error.with_traceback(None)
            if error.path == plan.path and error.start > hint:
                break  # what was named is a batch, and damage is behind it
    met, behind = _around(plan, met)
    if behind < 0 or met.last_offset >= plan.offset:
        raise met
    read = extract(plan._replace(hint=behind, named=False), fetch, _blocking(plan.index_file))
    return read if read.damage is not None else read._replace(damage=met)


def _begins_behind(read: ColdRead, offset: int) -> bool:
    return len(read.data) > 0 and parse_header(read.data, 0).base_offset > offset


def _other_ways(plan: ReadPlan, met: CorruptLogError) -> Iterator[int]:
    """From where else to walk: an index may lead to no batch. From another one that it names in front of the damage,
    and, when there is none there either, from the segment's first batch."""
    if plan.hint >= 0 and not plan.named and not isinstance(met, _MisledError):
        if met.path != plan.path:  # of the index, which need not be asked
            yield plan.hint
        return
    if met.path == plan.path:
        try:
            positions = _positions(plan)
            number = bisect_left(positions, met.start) - 1
            if number >= 0 and positions[number] > 0:
                yield positions[number]
        except CorruptLogError:
            pass  # of the index
    yield 0


def _positions(plan: ReadPlan) -> Sequence[int]:
    """What is known of where batches begin, on any thread. Where there is an index, CorruptLogError may come of it."""
    if plan.live_index is not None:
        return plan.live_index.positions[:]
    if plan.index_file is not None:
        return StoredOffsetIndex(_blocking(plan.index_file), plan.index_entries).positions
    return (plan.hint,) if plan.hint > 0 else ()


def _around(plan: ReadPlan, error: CorruptLogError) -> tuple[CorruptLogError, int]:
    """With the offsets that are damaged, which are hardly ever the one that was asked for; see `around`."""
    if error.path != plan.path:
        return error, -1

    def positions() -> Sequence[int]:
        return _positions(plan)

    if plan.seal is None or error.start >= plan.seal.length:
        error = _up_to_a_named(plan, error)
    return around(error, plan.file, positions, (plan.base_offset, plan.next_offset), plan.size)


def _up_to_a_named(plan: ReadPlan, error: CorruptLogError) -> CorruptLogError:
    """Its end is what a damaged header says: the next batch that the index names may be nearer."""
    try:
        positions = _positions(plan)
        behind = bisect_right(positions, error.start)
        if behind == len(positions) or whole_at(plan.file, positions[behind], plan.size) is None:
            return error
        end = min(error.end, positions[behind])
    except (OSError, CorruptLogError):
        return error
    return CorruptLogError(error.path, error.start, end, error.reason, error.offset, error.last_offset)


def extract(plan: ReadPlan, fetch: Fetch, read_index: ReadIndex) -> ColdRead:
    """The whole batches of a plan's segment, checked. Raises what `fetch` raises, CorruptLogError."""
    position = plan.hint
    by_index = position < 0 or plan.named
    if position < 0:
        stored = StoredOffsetIndex(read_index, plan.index_entries)
        position = stored.position_for(plan.offset - plan.base_offset)
        by_index = position > 0
        if position >= plan.size:
            raise _MisledError(plan.path, 0, plan.size, f"its index leads to byte {position}", plan.offset)
    want = min(plan.max_bytes, plan.piece) + READ_AHEAD_BYTES
    source = _Source(plan, fetch)
    while True:
        if position >= plan.size:
            return ColdRead(memoryview(b""), plan.end_offset, position, damage=source.cut)
        left = plan.size - position
        data = source.read(position, position + min(left, want), min(left, HEADER_SIZE))
        inside = 0
        while inside + HEADER_SIZE <= len(data):
            header = _header(plan, data, inside, position + inside)
            if by_index and header.base_offset > plan.offset:
                raise _MisledError(
                    plan.path, position, position + header.size, "its index leads too far", header.base_offset
                )
            if by_index and not _is_whole(source, data[inside:], position + inside, header):
                raise _MisledError(
                    plan.path, position, position + header.size, "its index leads to no batch", plan.offset
                )
            by_index = False
            if header.next_offset > plan.offset:
                return _collect(plan, source, read_index, data[inside:], position + inside, header)
            inside += header.size
        if position + inside + HEADER_SIZE > plan.size and position + inside != plan.size:
            raise _cut(plan, position + inside)
        position += inside


def _is_whole(source: _Source, data: memoryview, position: int, header: BatchHeader) -> bool:
    """Whether a batch is where an index says that one is: what looks like a header may be inside of another batch."""
    if header.size > len(data):
        data = source.read(position, position + header.size, header.size)
    return check_crc(data, header)


def _collect(
    plan: ReadPlan, source: _Source, read_index: ReadIndex, data: memoryview, position: int, first: BatchHeader
) -> ColdRead:
    """Whole batches from `first` on, which starts at `data`[0], until a limit of the plan or damage behind it."""
    if first.base_offset >= plan.end_offset:
        return ColdRead(data[:0], first.base_offset, position)
    if first.size > plan.max_bytes and not plan.at_least_one:
        return ColdRead(data[:0], plan.offset, position)
    if first.size > len(data):
        data = source.read(position, position + first.size, first.size)
    limit = max(min(plan.max_bytes, plan.piece), first.size)
    taken, next_offset = _leap(plan, read_index, data, position, min(limit, len(data)))
    last_size = 0
    damage = source.cut
    try:
        while taken + HEADER_SIZE <= len(data):
            header = _header(plan, data, taken, position + taken)
            if header.base_offset >= plan.end_offset or taken + header.size > min(limit, len(data)):
                break
            end = position + taken + header.size
            if header.base_offset < next_offset and taken:
                raise CorruptLogError(plan.path, position + taken, end, "offsets go backwards", header.base_offset)
            is_sealed = plan.seal is not None and end <= plan.seal.length
            if not is_sealed and not check_crc(data[taken:], header):
                raise CorruptLogError(plan.path, position + taken, end, "the CRC differs", header.base_offset)
            taken += header.size
            next_offset = header.next_offset
            last_size = header.size
    except CorruptLogError as error:
        if not taken:
            raise
        damage = error.with_traceback(None)
    return ColdRead(data[:taken], next_offset, position, last_size, damage)


def _leap(plan: ReadPlan, read_index: ReadIndex, data: memoryview, position: int, limit: int) -> tuple[int, int]:
    """(bytes, next offset) of leading batches that need not be walked.

    The seal vouches for them, and the index knows where the last one before `limit` begins. What is there has to be the
    batch that the index names, whole and with its CRC: bytes inside a value may look like a header.
    """
    if plan.seal is not None and plan.index_entries and plan.index_file is not None:
        last, at = StoredOffsetIndex(read_index, plan.index_entries).entry_before(position + limit)
        inside = at - position
        if 0 < inside <= limit - HEADER_SIZE and position + limit <= plan.seal.length:
            header = _header(plan, data, inside, at)
            if inside + header.size <= len(data) and plan.offset < header.base_offset < plan.end_offset:
                if header.last_offset != plan.base_offset + last or not check_crc(data[inside:], header):
                    raise _MisledError(plan.path, at, at + header.size, "its index leads to no batch", plan.offset)
                return inside, header.base_offset
    return 0, plan.offset


def _header(plan: ReadPlan, data: memoryview, inside: int, position: int) -> BatchHeader:
    try:
        header = parse_header(data, inside)
    except KafkaError as error:
        end = min(position + HEADER_SIZE, plan.size)
        raise CorruptLogError(plan.path, position, end, error.message, plan.offset) from None
    if position + header.size > plan.size or header.last_offset_delta < 0:
        end = min(position + HEADER_SIZE, plan.size)
        raise CorruptLogError(plan.path, position, end, "a batch reaches beyond the segment", plan.offset)
    if header.base_offset < plan.base_offset or header.next_offset > plan.next_offset:
        # Taken for true, it would be a gap that reaches as far: readers would wait for what is behind it.
        end = position + header.size
        raise CorruptLogError(plan.path, position, end, "a batch's offsets are not of the segment", plan.offset)
    return header
