"""The verified window: bytes of segment files that this process wrote or verified lately, and may send as they lie.

That they are sound is known; that they are still in memory is not, so who sends them asks first. What the machine took
out of memory comes back from the disk, which may have changed it: such blocks are hot again when they have been held
to their sums.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from duramen.errors import CorruptLogError, KafkaError
from duramen.ports import File
from duramen.storage.files.open_files import OpenFiles
from duramen.storage.files.read_buffers import ReadBuffers
from duramen.storage.read.tail_cache import TailCache
from duramen.storage.segment.segment import Segment
from duramen.wire.batch import HEADER_SIZE, BatchHeader, parse_header
from duramen.wire.seal import BLOCK_BYTES, Seal

GRAIN_BYTES = 1 << 20
"""Piece of a file by which the verified window remembers and forgets."""
GRAIN_BLOCKS = GRAIN_BYTES // BLOCK_BYTES
"""Of a seal: by these the window knows what the machine took out of memory, since each has its sum."""
RECENT_BYTES = 64 << 20
"""Of what was written last, how much belongs in memory even where the machine dropped it."""
WARY_READS = 256
"""How many reads look at what follows them after the machine has taken something out of memory."""
PEEK_BYTES = 4 * 1024

Fetch = Callable[[int, int], memoryview]
"""(position, length) -> exactly these bytes of the segment; WouldBlock when they are not in memory."""


class WouldBlockError(Exception):
    """The bytes are not in memory, and this thread must not wait for them."""


class DroppedError(WouldBlockError):
    """The bytes belong in memory (`VerifiedWindow.refuse`), and the machine has taken some of them out all the same."""


def nowait(file: File, most: int = sys.maxsize) -> Fetch:
    """Reads of what is in memory; WouldBlock otherwise, and for more than `most` bytes at once."""

    def fetch(position: int, length: int) -> memoryview:
        # A read that may not wait still makes the kernel read ahead, so it is not how to find out.
        if length > most or not file.resident(position, length):
            raise WouldBlockError
        buffer = memoryview(bytearray(length))
        if file.pread_nowait(buffer, position) != length:
            raise WouldBlockError
        return buffer

    return fetch


class Recall:
    """Blocks of a segment that were hot until the machine took them out of memory: read back, and held to the seal."""

    __slots__ = ("_file", "_generation", "_hot", "_offset", "_runs", "_seal", "_segment", "is_done")

    def __init__(
        self, hot: VerifiedWindow, segment: Segment, file: File, seal: Seal, blocks: Sequence[int], offset: int
    ) -> None:
        self._hot = hot
        self._segment = segment
        self._file = file
        self._seal = seal
        self._runs: list[tuple[int, int]] = []
        """(first byte, end) of blocks one behind the other, at most GRAIN_BYTES of them: each is one read."""
        for block in blocks:
            start, end = seal.block_range(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
            if self._runs and self._runs[-1][1] == start and end - self._runs[-1][0] <= GRAIN_BYTES:
                start, _ = self._runs.pop()
            self._runs.append((start, end))
        self._offset = offset
        self._generation = hot.generation
        self.is_done = False

    def run(self) -> None:
        """Any thread. OSError, CorruptLogError."""
        path = self._segment.path
        for start, end in self._runs:
            data = self._hot.buffers.view(end - start)[: end - start]
            if self._file.read_back(data, start) != end - start:
                raise CorruptLogError(path, start, end, "the file is too short", self._offset)
            self._seal.check(data, start, path, self._offset)
        self.is_done = True

    def complete(self) -> None:
        """On the loop: what was read back and held is hot again, if the log was not cut meanwhile."""
        if self.is_done and self._hot.generation == self._generation:
            for start, end in self._runs:
                self._hot.add_back(self._segment, start, end)


class VerifiedWindow:
    """Which bytes of segment files this process wrote or verified lately, all logs together; oldest first out.

    Such bytes are sound. That they are still in memory is likely, no more: who sends them asks first (`File.resident`).
    Kept per grain of a file as one run of bytes, so that memory follows the limit and not the number of writes.
    """

    __slots__ = ("_grains", "_written", "buffers", "files", "generation", "latest", "limit_bytes", "size", "wary")

    def __init__(self, limit_bytes: int = 256 << 20, files: OpenFiles | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._grains: OrderedDict[tuple[Segment, int], tuple[int, int, int, int]] = OrderedDict()
        """(first byte, end, count of `_written` behind what was last written of them, bits of the blocks among them
        that were dropped) of each."""
        self._written = 0
        self.size = 0
        self.generation = 0
        """Counts what was forgotten because it changed."""
        self.wary = 0
        """So many reads to come look at what follows them: the machine takes things out of memory."""
        self.buffers = ReadBuffers()
        self.latest = TailCache()
        self.files = OpenFiles() if files is None else files
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
            low, high, behind, gone = grains.get(key, (start, start, -RECENT_BYTES, 0))
            if stop < low or start > high:
                self.size -= high - low
                del grains[key]  # another run of the same grain: the younger one counts
                low, high, gone = start, start, 0
            if written:
                self._written += stop - start
                behind = self._written
            self.size += max(low - start, 0) + max(stop - high, 0)
            low, high = min(low, start), max(high, stop)
            if gone:  # where the run begins or ends there is no more of a block than it has
                base = number * GRAIN_BYTES
                gone &= ~_whole_blocks(start - base if start > low else 0, stop - base if stop < high else GRAIN_BYTES)
            grains[key] = (low, high, behind, gone)
            start = stop
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while self.size > self.limit_bytes:
            _, (low, high, _, _) = self._grains.popitem(last=False)
            self.size -= high - low

    def wrote(self, segment: Segment, start: int, end: int) -> None:
        """`add` of bytes that were written just now; quick where they go on from the last ones, as they mostly do."""
        key = segment, start // GRAIN_BYTES
        run = self._grains.get(key)
        if run is None or run[1] != start or run[3] or end > (key[1] + 1) * GRAIN_BYTES:
            self.add(segment, start, end, written=True)
            return
        size = end - start
        self._written += size
        self._grains[key] = run[0], end, self._written, 0
        self.size += size
        if self.size > self.limit_bytes:
            self._forget_oldest()

    def add_back(self, segment: Segment, start: int, end: int) -> None:
        """Blocks that were dropped are verified again: as hot as they were, where the window still knows of them."""
        self._mark(segment, start, end, dropped=False)

    def covers(self, segment: Segment, start: int, end: int, *, dropped: bool = False) -> bool:
        """Whether all of these bytes are hot; or were so until they were dropped."""
        grains = self._grains
        while start < end:
            number = start // GRAIN_BYTES
            stop = min(end, (number + 1) * GRAIN_BYTES)
            low, high, _, gone = grains.get((segment, number), _NEVER)
            if start < low or stop > high or (gone and not dropped and gone & _blocks(start, stop)):
                return False
            start = stop
        return True

    def assure(self, segment: Segment, file: File, start: int, stop: int) -> None:
        """WouldBlockError unless these bytes are hot, and in memory."""
        if start < stop and not (self.covers(segment, start, stop) and file.resident(start, stop - start)):
            self.refuse(segment, file, start, stop, stop)

    def refuse(self, segment: Segment, file: File, start: int, stop: int, around: int) -> NoReturn:
        """Bytes start..stop are not hot, or not in memory: raise DroppedError if they were hot and belong there.

        The last ones belong there, and those of which most still are, up to `around`. WouldBlockError for others.
        """
        if not self.covers(segment, start, stop, dropped=True):
            raise WouldBlockError
        blocks = range(start // BLOCK_BYTES, -(-around // BLOCK_BYTES))
        if file.nonresident(start, around - start):  # as old data is: the question block by block would hold the loop
            absent: Sequence[int] = blocks
        else:
            absent = [block for block in blocks if not _is_resident(file, block, start, around)]
        belongs = 2 * len(absent) < len(blocks) or self.is_recent(segment, start)
        for block in absent:
            self.drop(segment, block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
        if belongs:
            self.wary = WARY_READS
        elif len(absent) == len(blocks):
            self._give_up(segment, start, around)  # it has grown cold: not looked at so closely again
        # Not by a name: the error and this frame would keep each other, and all that callers hold.
        raise DroppedError if belongs else WouldBlockError

    def is_recent(self, segment: Segment, position: int) -> bool:
        """Whether this byte is among the last RECENT_BYTES that were written."""
        _, _, behind, _ = self._grains.get((segment, position // GRAIN_BYTES), _NEVER)
        return self._written - behind < RECENT_BYTES

    def was_written(self, segment: Segment, position: int) -> bool:
        """Whether this byte is hot because this process wrote it, or something near it."""
        return self._grains.get((segment, position // GRAIN_BYTES), _NEVER)[2] > 0

    def forget(self, segment: Segment, start: int, end: int) -> None:
        """These bytes are no longer what they were."""
        self.generation += 1
        self.latest.forget()
        self._give_up(segment, start, end)

    def _give_up(self, segment: Segment, start: int, end: int) -> None:
        for number in range(start // GRAIN_BYTES, -(-end // GRAIN_BYTES)):
            low, high, _, _ = self._grains.pop((segment, number), _NEVER)
            self.size -= high - low

    def drop(self, segment: Segment, start: int, end: int) -> None:
        """These bytes are no longer in memory: what comes back from the disk has to be verified, by whole blocks."""
        self._mark(segment, start, end, dropped=True)

    def _mark(self, segment: Segment, start: int, end: int, *, dropped: bool) -> None:
        grains = self._grains
        while start < end:
            number = start // GRAIN_BYTES
            stop = min(end, (number + 1) * GRAIN_BYTES)
            low, high, behind, gone = grains.get((segment, number), _NEVER)
            if low < high:
                blocks = _blocks(start, stop)
                grains[(segment, number)] = (low, high, behind, gone | blocks if dropped else gone & ~blocks)
            start = stop

    def recall(
        self, segment: Segment, file: File, seal: Seal | None, start: int, stop: int, offset: int
    ) -> Recall | None:
        """How to have these bytes hot again that were dropped; None where no seal has all of their sums."""
        stop = min(stop + PEEK_BYTES, segment.flushed)  # where the last batch ends is looked for behind it
        blocks = self.dropped(segment, start, stop)
        if seal is None or not blocks or seal.length < min(segment.flushed, (blocks[-1] + 1) * BLOCK_BYTES):
            return None
        return Recall(self, segment, file, seal, blocks, offset)

    def dropped(self, segment: Segment, start: int, end: int) -> list[int]:
        """Numbers of the blocks among these bytes that were dropped, and would else be hot."""
        grains = self._grains
        found = []
        for block in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            _, _, _, gone = grains.get((segment, block // GRAIN_BLOCKS), _NEVER)
            if gone >> block % GRAIN_BLOCKS & 1:
                found.append(block)
        return found


_NEVER = (0, 0, -RECENT_BYTES, 0)
"""A grain of which nothing is hot."""


def _blocks(start: int, stop: int) -> int:
    """Bits of the blocks of a grain that bytes start..stop of it touch."""
    first, last = start % GRAIN_BYTES // BLOCK_BYTES, (stop - 1) % GRAIN_BYTES // BLOCK_BYTES
    return (2 << last) - (1 << first)


def _whole_blocks(start: int, stop: int) -> int:
    """Bits of the blocks that lie within bytes start..stop, both relative to their grain."""
    first, behind = -(-start // BLOCK_BYTES), stop // BLOCK_BYTES
    return (1 << behind) - (1 << first) if first < behind else 0


def _is_resident(file: File, block: int, start: int, stop: int) -> bool:
    """Whether what start..stop has of a block is in memory."""
    start, stop = max(start, block * BLOCK_BYTES), min(stop, (block + 1) * BLOCK_BYTES)
    return file.resident(start, stop - start)


def headers(hot: VerifiedWindow, segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """The batches from `position` on; WouldBlockError where they are not hot, or not in memory any more."""
    file = segment.open_file()
    peek = nowait(file)
    chunk = memoryview(b"")
    chunk_start = position
    while position < segment.flushed:
        end = min(position + HEADER_SIZE, segment.flushed)
        inside = position - chunk_start
        gone = not hot.covers(segment, position, end)
        if not gone and inside + HEADER_SIZE > len(chunk):
            chunk_start, inside = position, 0
            try:
                chunk = peek(position, min(PEEK_BYTES, segment.flushed - position))
            except WouldBlockError:
                gone = True
        if gone:
            hot.refuse(segment, file, position, end, min(position + GRAIN_BYTES, segment.flushed))
        try:
            header = parse_header(chunk, inside)
        except KafkaError as error:
            raise CorruptLogError(segment.path, position, segment.flushed, error.message) from None
        yield position, header
        position += header.size
