"""One simulated file's bytes: what the page cache shows, what stable storage holds, and what a power cut leaves.

Model. `cache` is what reads see. `stable` is what the platter holds since the last successful sync. `dirty` are the
byte ranges written in between, `low_water` the smallest length the file had in between (bytes of `stable` beyond it
were cut off or replaced). A failed sync drops `dirty` without copying it: as on Linux, the cache then shows bytes
the platter does not have, and the next sync reports success.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from duramen.ports import Buffer

PAGE = 4096
"""Bytes per page of the simulated cache."""
SECTOR = 512
"""Bytes a disk writes atomically at best."""


class Inode:
    """A regular file, whatever names it has."""

    __slots__ = ("cache", "cold", "dirty", "low_water", "modified_ms", "number", "stable")

    def __init__(self, number: int) -> None:
        self.number = number
        self.cache = bytearray()
        self.stable = bytearray()
        self.dirty: list[tuple[int, int]] = []
        self.low_water = 0
        self.cold: set[int] = set()
        self.modified_ms = 0

    def copy(self) -> Inode:
        """A file of the same number, content and state."""
        other = Inode(self.number)
        other.cache, other.stable = bytearray(self.cache), bytearray(self.stable)
        other.dirty, other.low_water = self.dirty.copy(), self.low_water
        other.cold, other.modified_ms = self.cold.copy(), self.modified_ms
        return other

    # -- the page cache

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`; makes the pages resident."""
        if length <= 0 or offset >= len(self.cache):
            return b""
        if self.cold:
            self.cold.difference_update(range(offset // PAGE, (offset + length - 1) // PAGE + 1))
        with memoryview(self.cache) as view:
            return bytes(view[offset : offset + length])

    def read_resident(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from resident pages only; returns the count, -1 when the first page is not resident."""
        end = min(offset + len(buffer), len(self.cache))
        if end <= offset:
            return 0
        if self.cold:
            for page in range(offset // PAGE, (end - 1) // PAGE + 1):
                if page in self.cold:
                    end = page * PAGE
                    break
            if end <= offset:
                return -1
        with memoryview(self.cache) as view:
            buffer[: end - offset] = view[offset:end]
        return end - offset

    def is_resident(self, offset: int, length: int) -> bool:
        """Whether all pages of this range are in memory."""
        if not self.cold:
            return True
        return not any(page in self.cold for page in range(offset // PAGE, (offset + length - 1) // PAGE + 1))

    def is_nonresident(self, offset: int, length: int) -> bool:
        """Whether no page of this range is in memory."""
        return all(page in self.cold for page in range(offset // PAGE, (offset + length - 1) // PAGE + 1))

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write the buffers' concatenation at `offset`, zero-filling a gap; returns the byte count."""
        start = offset
        cache = self.cache
        if offset > len(cache):
            start = len(cache)
            cache.extend(bytes(offset - len(cache)))
        position = offset
        for buffer in buffers:
            length = memoryview(buffer).nbytes
            cache[position : position + length] = buffer
            position += length
        if position > start:
            self._mark(start, position)
        return position - offset

    def truncate(self, size: int) -> None:
        """Set the length; growing fills with zeros."""
        old = len(self.cache)
        if size < old:
            del self.cache[size:]
            self.low_water = min(self.low_water, size)
            self.dirty = [(start, min(end, size)) for start, end in self.dirty if start < size]
        elif size > old:
            self.cache.extend(bytes(size - old))
            self._mark(old, size)

    def drop(self, offset: int, length: int) -> None:
        """Make clean pages of the range non-resident."""
        first, last = offset // PAGE, (offset + length) // PAGE
        dirty: set[int] = set()
        for start, end in self.dirty:
            dirty.update(range(start // PAGE, (end - 1) // PAGE + 1))
        self.cold.update(page for page in range(first, last) if page not in dirty)

    def _mark(self, start: int, end: int) -> None:
        if self.cold:
            self.cold.difference_update(range(start // PAGE, (end - 1) // PAGE + 1))
        if self.dirty:
            last_start, last_end = self.dirty[-1]
            if last_start <= start <= last_end:
                self.dirty[-1] = (last_start, max(last_end, end))
                return
        self.dirty.append((start, end))

    # -- stable storage

    @property
    def clean(self) -> bool:
        """Whether nothing waits for a sync (a failed sync leaves a clean file that differs from the platter)."""
        return not self.dirty and self.low_water >= len(self.stable) and len(self.cache) == len(self.stable)

    def sync(self) -> None:
        """Copy what is dirty to the platter, and the length."""
        stable = self.stable
        del stable[self.low_water :]
        if len(stable) < len(self.cache):
            stable.extend(bytes(len(self.cache) - len(stable)))
        with memoryview(self.cache) as view:
            for start, end in self.dirty:
                stable[start:end] = view[start:end]
        self.dirty.clear()
        self.low_water = len(stable)

    def lose_dirty(self) -> None:
        """A sync failed: the kernel marks the pages clean although they never reached the platter."""
        self.dirty.clear()

    def crash(self, random: Random | None) -> None:
        """Power is gone. Without `random` exactly the synced bytes are left; with it, a seeded part of the rest too."""
        if random is not None and not self.clean:
            self._survive(random)
        self.cache = bytearray(self.stable)
        self.dirty.clear()
        self.low_water = len(self.stable)
        self.cold = set(range((len(self.stable) + PAGE - 1) // PAGE))

    def _survive(self, random: Random) -> None:
        """Let some unsynced blocks, a torn block, and perhaps the new length reach the platter."""
        stable, cache = self.stable, self.cache
        limit = len(cache)
        if self.low_water < len(stable):
            if random.random() < 0.5:
                del stable[self.low_water :]
            else:
                limit = min(limit, self.low_water)
        block = SECTOR if random.random() < 0.5 else PAGE
        chance = random.choice((0.0, 0.5, 0.9, 1.0))
        for start, end in self.dirty:
            position = start
            end = min(end, limit)
            while position < end:
                stop = min(end, position - position % block + block)
                if random.random() < chance:
                    if random.random() < 0.125:
                        stop_kept = random.randint(position, stop)
                    else:
                        stop_kept = stop
                    if stop_kept > position:
                        if len(stable) < position:
                            stable.extend(bytes(position - len(stable)))
                        stable[position:stop_kept] = cache[position:stop_kept]
                position = stop
        if len(stable) < limit and random.random() < 0.5:
            size = limit if random.random() < 0.5 else random.randint(len(stable), limit)
            stable.extend(bytes(size - len(stable)))
