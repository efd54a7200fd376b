"""How much is read from the disk at once, and the buffers that it is read into."""

from __future__ import annotations

import ctypes
from collections import deque
from weakref import finalize

from duramen.page_cache import DIRECT_BYTES, room_for, rooms_for
from duramen.wire.seal import BLOCK_BYTES

READ_AHEAD_BYTES = 16 * 1024
"""How much more than asked for is read, so that batches before the offset cost no second read."""
PREFETCH_BYTES = 4 << 20
"""How much of what follows is on its way while a client takes what was read, where that may stay in memory."""
COLD_BYTES = 1 << 20
"""Most bytes one read takes from outside the verified window, its first batch aside."""
SPAN_BYTES = 64 * 1024
"""From this size on, bytes are sent from where they lie; smaller ones are copied together with what surrounds them."""
BUFFER_BYTES = COLD_BYTES + READ_AHEAD_BYTES + 2 * (BLOCK_BYTES + DIRECT_BYTES)
"""A read of COLD_BYTES with what belongs to it: the read-ahead, and the rest of its first and last blocks and pages."""
KEPT_BUFFERS = 8
_Lent = ctypes.c_char * BUFFER_BYTES
"""What every view of a buffer looks into: it is gone when the last of them is."""


class ReadBuffers:
    """Buffers of cold reads, taken again when their last view is gone: a fresh megabyte costs as much as reading it.

    They lie in huge pages (`rooms_for`): of 1 MiB, a direct read takes the thread half as long. While all of them are
    in use, others are made, and as many of those kept: clients may leave their replies unread for hours. Any thread: a
    room is in one of the queues, or with the one who reads into it.
    """

    __slots__ = ("_rooms", "_spare")

    def __init__(self) -> None:
        self._rooms = deque(rooms_for(KEPT_BUFFERS, BUFFER_BYTES))
        self._spare: deque[memoryview] = deque(maxlen=KEPT_BUFFERS)

    def view(self, length: int) -> memoryview:
        """At least `length` bytes to read into; see `room_for`."""
        if not SPAN_BYTES < length <= BUFFER_BYTES:
            return room_for(length)
        home = self._rooms
        try:
            room = home.pop()
        except IndexError:
            home = self._spare
            try:
                room = home.pop()
            except IndexError:
                room = room_for(BUFFER_BYTES)
        lent = _Lent.from_buffer(room)
        finalize(lent, home.append, room).atexit = False
        return memoryview(lent).cast("B")[: length + -length % DIRECT_BYTES]
