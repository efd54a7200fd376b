"""Finding stored batches and handing them out: as spans of hot files, as verified bytes, or as work for the cold pool.

A read starts with the batch that contains its offset and ends with a whole batch. Bytes in the hot window (written or
verified by this process lately) leave as a `FileSpan` for sendfile. Other bytes are read only if they are in memory,
and checked against the segment's seal, or batch by batch against their CRCs; when they are not in memory the read
becomes a `Pending`, which does the same on the cold pool. Damage is a CorruptLogError with its place, never a gap.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from duramen.errors import CorruptLogError, KafkaError
from duramen.page_cache import DIRECT_BYTES, aligned, room_for
from duramen.ports import Buffer, File, FileSpan
from duramen.storage.index import StoredOffsetIndex
from duramen.storage.open_files import OpenFiles
from duramen.storage.segment import Segment
from duramen.wire.batch import HEADER_SIZE, BatchHeader, check_crc, parse_header
from duramen.wire.seal import BLOCK_BYTES, Seal

READ_AHEAD_BYTES = 16 * 1024
"""How much more than asked for is read, so that batches before the offset cost no second read."""
COLD_BYTES = 1 << 20
"""Most bytes one read takes from outside the hot window, its first batch aside."""
GRAIN_BYTES = 1 << 20
"""Piece of a file by which the hot window remembers and forgets."""
SPAN_BYTES = 64 * 1024
"""From this size on, bytes are sent from where they lie; smaller ones are copied together with what surrounds them."""
BUFFER_BYTES = COLD_BYTES + READ_AHEAD_BYTES + 2 * (BLOCK_BYTES + DIRECT_BYTES)
"""A read of COLD_BYTES with what belongs to it: the read-ahead, and the rest of its first and last blocks and pages."""
KEPT_BUFFERS = 8
RECENT_BYTES = 64 << 20
"""Of what was written last, how much belongs in memory even where the machine dropped it."""

Fetch = Callable[[int, int], memoryview]
"""(position, length) -> exactly these bytes of the segment; WouldBlock when they are not in memory."""
ReadIndex = Callable[[int, int], "bytes | memoryview"]
"""(position, length) -> exactly these bytes of the index file."""


class WouldBlockError(Exception):
    """The bytes are not in memory, and this thread must not wait for them."""


class DroppedError(WouldBlockError):
    """The bytes belong in memory (`HotWindow.belongs`), and the machine has taken some of them out all the same."""


class ColdRead(NamedTuple):
    """Whole batches in memory, checked. next_offset: behind the last; position: of the first byte."""

    data: memoryview
    next_offset: int
    position: int


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
    """Start of a batch at or before the one wanted; -1: search the index file."""
    offset: int
    end_offset: int
    max_bytes: int
    at_least_one: bool
    piece: int = COLD_BYTES
    """Most bytes that are read at once, a single batch of more aside."""
    settled: bool = False
    """Nobody writes the file any more, and it is on the disk."""


class Pending:
    """A piece of a reply that must be read off the loop.

    size: most bytes it can bring, a single batch above that aside. on_checked: told of what was found, on the loop.
    recent: it belongs in memory (`HotWindow.belongs`), so it stays there once it is read.
    """

    __slots__ = ("_buffers", "_bytes_read", "_on_checked", "found", "plan", "recent", "size")

    def __init__(
        self, plan: ReadPlan, buffers: ReadBuffers, on_checked: Callable[[ColdRead], bool], *, recent: bool = False
    ) -> None:
        self.plan = plan
        self.recent = recent
        self.size = min(plan.max_bytes, plan.size - max(plan.hint, 0), COLD_BYTES)
        self.found: ColdRead | None = None
        self._bytes_read = 0
        self._buffers = buffers
        self._on_checked = on_checked

    def __len__(self) -> int:
        return self.size

    def limit(self, most: int) -> None:
        """Before it runs: bring at most so many bytes, a single batch above that aside."""
        self.plan = self.plan._replace(piece=min(self.plan.piece, most))
        self.size = min(self.size, most)

    def run(self) -> ColdRead:
        """Read and check; any thread. OSError, CorruptLogError. The page cache stays as it was, unless it is recent."""
        plan = self.plan
        buffers = self._buffers

        def fetch(position: int, length: int) -> memoryview:
            if self.recent:
                data = plan.file.read_back(length, position)
                if len(data) != length:
                    raise _cut(plan, position, length)
                return memoryview(data)
            before = position % DIRECT_BYTES
            buffer = buffers.view(before + length)
            if plan.file.read_cold(buffer, position - before, settled=plan.settled) < before + length:
                raise _cut(plan, position, length)
            self._bytes_read += length
            return buffer[before : before + length]

        try:
            self.found = extract(plan, fetch, _blocking(plan.index_file))
        except CorruptLogError:
            if plan.hint == 0 and plan.index_file is None:
                raise
            # The damage may be in the index alone: only a walk from the segment's first batch can tell.
            self.found = extract(plan._replace(hint=0, index_file=None, index_entries=0), fetch, _blocking(None))
        return self.found

    def complete(self) -> int:
        """On the loop, when it has run; how many bytes it brought from the disk."""
        if self.found is not None and self._on_checked(self.found):
            return 0
        return self._bytes_read


class LogRead:
    """What a read found. parts: FileSpan | Buffer | Pending; size: their bytes (at most, while one is Pending).

    first_offset: asked for; next_offset: behind the last whole batch (while a part is Pending: as far as it can reach).
    """

    __slots__ = ("first_offset", "next_offset", "parts", "size")

    def __init__(self, offset: int) -> None:
        self.parts: list[FileSpan | Buffer | Pending] = []
        self.size = 0
        self.first_offset = offset
        self.next_offset = offset


class HotWindow:
    """Which bytes of segment files this process wrote or verified lately, all logs together; oldest first out.

    Such bytes are sound. That they are still in memory is likely, no more: who sends them asks first (`File.resident`).
    Kept per grain of a file as one run of bytes, so that memory follows the limit and not the number of writes.
    """

    __slots__ = ("_grains", "_written", "buffers", "files", "generation", "limit_bytes", "size")

    def __init__(self, limit_bytes: int = 256 << 20, most_files: int = -1) -> None:
        self.limit_bytes = limit_bytes
        self._grains: OrderedDict[tuple[Segment, int], tuple[int, int, int]] = OrderedDict()
        """(first byte, end, count of `_written` behind what was last written of them) of each."""
        self._written = 0
        self.size = 0
        self.generation = 0
        """Counts what was forgotten because it changed."""
        self.buffers = ReadBuffers()
        self.files = OpenFiles(most_files)
        """Whose bytes they are: shared, as the window is."""

    def add(self, segment: Segment, start: int, end: int, *, written: bool = False) -> None:
        """Bytes start..end of the segment were written or verified just now.

        What was only verified is no more recent for it: else who reads old data on would make it so, megabyte by
        megabyte.
        """
        grains = self._grains
        while start < end:
            number = start // GRAIN_BYTES
            stop = min(end, (number + 1) * GRAIN_BYTES)
            key = (segment, number)
            low, high, behind = grains.get(key, (start, start, -RECENT_BYTES))
            if stop < low or start > high:
                self.size -= high - low
                del grains[key]  # another run of the same grain: the younger one counts
                low = high = start
            if written:
                self._written += stop - start
                behind = self._written
            grains[key] = (min(low, start), max(high, stop), behind)
            self.size += max(low - start, 0) + max(stop - high, 0)
            start = stop
        while self.size > self.limit_bytes:
            _, (low, high, _) = grains.popitem(last=False)
            self.size -= high - low

    def covers(self, segment: Segment, start: int, end: int) -> bool:
        """Whether all of these bytes are hot."""
        grains = self._grains
        while start < end:
            number = start // GRAIN_BYTES
            stop = min(end, (number + 1) * GRAIN_BYTES)
            low, high, _ = grains.get((segment, number), (0, 0, 0))
            if start < low or stop > high:
                return False
            start = stop
        return True

    def assure(self, segment: Segment, file: File, start: int, stop: int) -> None:
        """WouldBlockError unless these bytes are hot, and in memory."""
        if not self.covers(segment, start, stop):
            raise WouldBlockError
        if start < stop and not file.resident(start, stop - start):
            belongs = self.belongs(segment, file, start, stop)
            self.drop(segment, start, stop)
            # Not by a name: the error and this frame would keep each other, and all that callers hold.
            raise DroppedError if belongs else WouldBlockError

    def belongs(self, segment: Segment, file: File, start: int, stop: int) -> bool:
        """Whether bytes that are not all in memory belong there: the last ones, and those of which most still are."""
        if self.is_recent(segment, start):
            return True
        places = range(start, stop, SPAN_BYTES)
        return 2 * sum(file.resident(at, min(SPAN_BYTES, stop - at)) for at in places) > len(places)

    def is_recent(self, segment: Segment, position: int) -> bool:
        """Whether this byte is hot and among the last RECENT_BYTES."""
        _, _, behind = self._grains.get((segment, position // GRAIN_BYTES), (0, 0, -RECENT_BYTES))
        return self._written - behind < RECENT_BYTES

    def forget(self, segment: Segment, start: int, end: int) -> None:
        """These bytes are no longer what they were."""
        self.generation += 1
        self.drop(segment, start, end)

    def drop(self, segment: Segment, start: int, end: int) -> None:
        """These bytes are no longer in memory: what comes back from the disk has to be verified."""
        for number in range(start // GRAIN_BYTES, -(-end // GRAIN_BYTES)):
            low, high, _ = self._grains.pop((segment, number), (0, 0, 0))
            self.size -= high - low


class ReadBuffers:
    """Buffers of cold reads, taken again when their last view is gone: a fresh megabyte costs as much as reading it.

    Any thread: a buffer is in the queue, or with the one who looks at it.
    """

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: deque[bytearray] = deque(maxlen=KEPT_BUFFERS)

    def view(self, length: int) -> memoryview:
        """At least `length` bytes to read into; see `room_for`."""
        if not SPAN_BYTES < length <= BUFFER_BYTES:
            return room_for(length)
        for _ in range(KEPT_BUFFERS):
            try:
                buffer = self._buffers.popleft()
            except IndexError:
                break
            try:
                buffer.append(buffer.pop())  # refused while there are views
            except BufferError:
                self._buffers.append(buffer)
                continue
            return self._lend(buffer, length)
        return self._lend(bytearray(BUFFER_BYTES + DIRECT_BYTES), length)

    def _lend(self, buffer: bytearray, length: int) -> memoryview:
        view = aligned(buffer)[: length + -length % DIRECT_BYTES]
        self._buffers.append(buffer)
        return view


def fresh(length: int) -> memoryview:
    """A buffer of its own."""
    return memoryview(bytearray(length))


def _cut(plan: ReadPlan, position: int, length: int) -> CorruptLogError:
    return CorruptLogError(plan.path, position, position + length, "the file is too short", plan.offset)


def _blocking(file: File | None) -> Callable[[int, int], bytes]:
    def read(position: int, length: int) -> bytes:
        data = file.pread(length, position) if file is not None else b""
        if len(data) != length:
            raise CorruptLogError(getattr(file, "path", "?"), position, position + length, "the index is too short")
        return data

    return read


def nowait(file: File) -> Fetch:
    """Reads of what is in memory; WouldBlock otherwise."""

    def fetch(position: int, length: int) -> memoryview:
        # A read that may not wait still makes the kernel read ahead, so it is not how to find out.
        if not file.resident(position, length):
            raise WouldBlockError
        buffer = fresh(length)
        if file.pread_nowait(buffer, position) != length:
            raise WouldBlockError
        return buffer

    return fetch


def extract(plan: ReadPlan, fetch: Fetch, read_index: ReadIndex) -> ColdRead:
    """The whole batches of a plan's segment, checked. Raises what `fetch` raises, CorruptLogError."""
    position = plan.hint
    by_index = position < 0
    if by_index:
        stored = StoredOffsetIndex(read_index, plan.index_entries)
        position = stored.position_for(plan.offset - plan.base_offset)
        by_index = position > 0
        if position >= plan.size:
            raise CorruptLogError(plan.path, 0, plan.size, f"its index leads to byte {position}", plan.offset)
    want = min(plan.max_bytes, plan.piece) + READ_AHEAD_BYTES
    while True:
        if position >= plan.size:
            return ColdRead(memoryview(b""), plan.end_offset, position)
        data = _fetch_checked(plan, fetch, position, min(plan.size, position + want))
        inside = 0
        while inside + HEADER_SIZE <= len(data):
            header = _header(plan, data, inside, position + inside)
            if by_index and header.base_offset > plan.offset:
                raise CorruptLogError(
                    plan.path, position, position + header.size, "its index leads too far", header.base_offset
                )
            if by_index and not _is_whole(plan, fetch, data[inside:], position + inside, header):
                raise CorruptLogError(
                    plan.path, position, position + header.size, "its index leads to no batch", plan.offset
                )
            by_index = False
            if header.next_offset > plan.offset:
                return _collect(plan, fetch, read_index, data[inside:], position + inside, header)
            inside += header.size
        if position + inside + HEADER_SIZE > plan.size and position + inside != plan.size:
            raise _cut(plan, position + inside, HEADER_SIZE)
        position += inside


def _is_whole(plan: ReadPlan, fetch: Fetch, data: memoryview, position: int, header: BatchHeader) -> bool:
    """Whether a batch is where an index says that one is: what looks like a header may be inside of another batch."""
    if header.size > len(data):
        data = _fetch_checked(plan, fetch, position, position + header.size)
    return check_crc(data, header)


def _collect(
    plan: ReadPlan, fetch: Fetch, read_index: ReadIndex, data: memoryview, position: int, first: BatchHeader
) -> ColdRead:
    """Whole batches from `first` on, which starts at `data`[0], until a limit of the plan."""
    if first.base_offset >= plan.end_offset:
        return ColdRead(data[:0], first.base_offset, position)
    if first.size > plan.max_bytes and not plan.at_least_one:
        return ColdRead(data[:0], plan.offset, position)
    if first.size > len(data):
        data = _fetch_checked(plan, fetch, position, position + first.size)
    limit = max(min(plan.max_bytes, plan.piece), first.size)
    taken, next_offset = _leap(plan, read_index, data, position, min(limit, len(data)))
    while taken + HEADER_SIZE <= len(data):
        header = _header(plan, data, taken, position + taken)
        if header.base_offset >= plan.end_offset or taken + header.size > min(limit, len(data)):
            break
        if header.base_offset < next_offset and taken:
            raise CorruptLogError(
                plan.path, position + taken, position + taken + header.size, "offsets go backwards", header.base_offset
            )
        is_sealed = plan.seal is not None and position + taken + header.size <= plan.seal.length
        if not is_sealed and not check_crc(data[taken:], header):
            raise CorruptLogError(
                plan.path, position + taken, position + taken + header.size, "the CRC differs", header.base_offset
            )
        taken += header.size
        next_offset = header.next_offset
    return ColdRead(data[:taken], next_offset, position)


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
                    raise CorruptLogError(plan.path, at, at + header.size, "its index leads to no batch", plan.offset)
                return inside, header.base_offset
    return 0, plan.offset


def _fetch_checked(plan: ReadPlan, fetch: Fetch, start: int, end: int) -> memoryview:
    seal = plan.seal
    if seal is None or start >= seal.length:
        return fetch(start, end - start)
    block_start, sealed_end = seal.block_range(start, min(end, seal.length))
    block_end = max(sealed_end, end)
    data = fetch(block_start, block_end - block_start)
    seal.check(data[: sealed_end - block_start], block_start, plan.path, plan.offset)
    return data[start - block_start : end - block_start]


def _header(plan: ReadPlan, data: memoryview, inside: int, position: int) -> BatchHeader:
    try:
        header = parse_header(data, inside)
    except KafkaError as error:
        raise CorruptLogError(plan.path, position, plan.size, error.message, plan.offset) from None
    if position + header.size > plan.size or header.last_offset_delta < 0:
        raise CorruptLogError(plan.path, position, plan.size, "a batch reaches beyond the segment", plan.offset)
    if header.base_offset < plan.base_offset or header.next_offset > plan.next_offset:
        # Taken for true, it would be a gap that reaches as far: readers would wait for what is behind it.
        end = position + header.size
        raise CorruptLogError(plan.path, position, end, "a batch's offsets are not of the segment", plan.offset)
    return header
