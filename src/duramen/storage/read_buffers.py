"""How much is read from the disk at once, and the buffers that it is read into."""

from __future__ import annotations

from collections import deque

from duramen.page_cache import DIRECT_BYTES, aligned, room_for
from duramen.wire.seal import BLOCK_BYTES

READ_AHEAD_BYTES = 16 * 1024
"""How much more than asked for is read, so that batches before the offset cost no second read."""
PREFETCH_BYTES = 4 << 20
"""How much of what follows is on its way while a client takes what was read, where that may stay in memory."""
COLD_BYTES = 1 << 20
"""Most bytes one read takes from outside the hot window, its first batch aside."""
SPAN_BYTES = 64 * 1024
"""From this size on, bytes are sent from where they lie; smaller ones are copied together with what surrounds them."""
BUFFER_BYTES = COLD_BYTES + READ_AHEAD_BYTES + 2 * (BLOCK_BYTES + DIRECT_BYTES)
"""A read of COLD_BYTES with what belongs to it: the read-ahead, and the rest of its first and last blocks and pages."""
KEPT_BUFFERS = 8


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
