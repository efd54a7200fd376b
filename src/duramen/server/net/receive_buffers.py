"""Receive buffers: pooled, reclaimed when nobody refers to their bytes any more, and bounded in total.

A frame gets its memory as it arrives, but is promised all of it before: what has begun can always be finished.

A produced batch stays in the buffer it arrived in until segment and journal have it (ENGINE.md §1). Who still refers
to a buffer is not tracked by hand: a bytearray with live memoryviews refuses to change its length.
"""

from __future__ import annotations

from collections import deque

SMALLEST = 4 * 1024


class BufferPool:
    """Buffers in sizes of powers of two. `cap_bytes` bounds what is lent and promised; sockets pause beyond it."""

    def __init__(self, cap_bytes: int, keep_bytes: int = 16 * 1024 * 1024) -> None:
        self.cap_bytes = cap_bytes
        self._keep_bytes = keep_bytes
        self._idle: dict[int, list[bytearray]] = {}
        self._idle_bytes = 0
        self._lent: deque[bytearray] = deque()
        self.lent_bytes = 0
        self.promised_bytes = 0
        """For frames that have begun, beyond the buffers that they have."""

    def bound(self, cap_bytes: int) -> None:
        """Lend no more than this; what is kept idle is at most a quarter of it."""
        self.cap_bytes = cap_bytes
        self._keep_bytes = min(self._keep_bytes, cap_bytes // 4)

    @property
    def exhausted(self) -> bool:
        """Whether the cap is reached even after taking back what nobody uses."""
        return not self._has(1)

    def promise(self, size: int) -> int:
        """Set memory aside for a frame of `size` bytes: how much, 0 if it has to wait.

        Where nothing else is held any frame has its turn.
        """
        capacity = _capacity(size)
        if not self._has(capacity) and self.lent_bytes + self.promised_bytes > 0:
            return 0
        self.promised_bytes += capacity
        return capacity

    def _has(self, more: int) -> bool:
        if self.lent_bytes + self.promised_bytes + more <= self.cap_bytes:
            return True
        self.reclaim()
        return self.lent_bytes + self.promised_bytes + more <= self.cap_bytes

    def acquire(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes."""
        capacity = _capacity(size)
        if self._lent:
            self.reclaim(4)
        idle = self._idle.get(capacity)
        if idle:
            self._idle_bytes -= capacity
            buffer = idle.pop()
        else:
            buffer = bytearray(capacity)
        self.lent_bytes += capacity
        return buffer

    def release(self, buffer: bytearray) -> None:
        """The holder is done with it; its bytes may still be referred to, so it is reused only when they are not."""
        self._lent.append(buffer)

    def reclaim(self, most: int = 1 << 30) -> None:
        """Look at up to `most` released buffers, oldest first, and take back those that nobody uses."""
        for _ in range(min(most, len(self._lent))):
            buffer = self._lent[0]
            try:
                buffer.pop()
                buffer.append(0)
            except BufferError:
                # Rotate: one slow group must not hide others that are free.
                self._lent.rotate(-1)
                continue
            self._lent.popleft()
            self.take_back(buffer)

    def take_back(self, buffer: bytearray) -> None:
        """Nobody refers to its bytes."""
        capacity = len(buffer)
        self.lent_bytes -= capacity
        if self._idle_bytes + capacity <= self._keep_bytes:
            self._idle.setdefault(capacity, []).append(buffer)
            self._idle_bytes += capacity


def _capacity(size: int) -> int:
    capacity = SMALLEST
    while capacity < size:
        capacity *= 2
    return capacity
