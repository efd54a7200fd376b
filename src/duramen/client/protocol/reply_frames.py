"""Received bytes of one connection, as whole frames: a large frame is a view of the buffer it was received into."""

from __future__ import annotations

from duramen.wire.frame import SIZE_BYTES, read_frame_size

FIRST_BYTES = 64 * 1024
"""A buffer's first size: what one read takes while replies are small, and all that an announced size is worth before
anything of the frame has come."""

COPIED_BYTES = 4 * 1024
"""Frames up to this size are copied out: a view would keep the whole buffer."""


class ReplyFrames:
    """The bytes received and not yet taken. Memory is taken for what has come, not for what was announced.

    A frame that is not copied keeps its buffer as long as somebody keeps a view of it, and the rest is received into
    another one: record batches are slices of what the socket filled.
    """

    __slots__ = ("_buffer", "_end", "_kept", "_most", "_start", "_usual")

    def __init__(self, max_frame_bytes: int) -> None:
        self._most = max_frame_bytes
        self._buffer = memoryview(bytearray(FIRST_BYTES))
        self._start = self._end = 0
        self._kept = False
        """Whether views of the buffer were handed out."""
        self._usual = 0
        """Size of the last frames, the largest first to be forgotten: so much is taken at once for the next one."""

    def room(self) -> memoryview:
        """Where to receive next; DecodeError when a frame is announced that is larger than allowed."""
        begun = self._end - self._start
        if begun < SIZE_BYTES:
            # After large frames only the size: what follows is then received where it stays.
            ahead = SIZE_BYTES if self._usual > FIRST_BYTES else FIRST_BYTES
            if not begun and not self._kept:
                self._start = self._end = 0
            if self._kept or self._start + SIZE_BYTES > len(self._buffer):
                self._move(begun, FIRST_BYTES)
            return self._buffer[self._end : self._start + ahead]
        need = SIZE_BYTES + read_frame_size(self._buffer, self._start, self._most)
        if self._kept or self._end == len(self._buffer) or self._start + need > len(self._buffer):
            self._move(begun, min(need, max(FIRST_BYTES, self._usual, 4 * begun)))
        # Of a large frame not more than itself: the next one gets a buffer of its own.
        end = self._start + need if need > FIRST_BYTES else len(self._buffer)
        return self._buffer[self._end : end]

    def _move(self, begun: int, size: int) -> None:
        """Bring what has begun to the front of a buffer of at least this size."""
        rest = self._buffer[self._start : self._end]
        if self._kept or size > len(self._buffer):
            self._buffer = memoryview(bytearray(max(size, FIRST_BYTES)))
            self._kept = False
            self._buffer[:begun] = rest
        else:
            self._buffer[:begun] = bytes(rest)
        self._start, self._end = 0, begun

    def received(self, count: int) -> None:
        """So many bytes came into `room()`."""
        self._end += count

    def take(self) -> memoryview | None:
        """The next whole frame without its size prefix; None when more has to come. DecodeError as for `room`."""
        if self._end - self._start < SIZE_BYTES:
            return None
        size = read_frame_size(self._buffer, self._start, self._most)
        begin = self._start + SIZE_BYTES
        if self._end - begin < size:
            return None
        self._start = begin + size
        self._usual = max(SIZE_BYTES + size, self._usual // 2)
        frame = self._buffer[begin : begin + size]
        if size <= COPIED_BYTES:
            return memoryview(bytes(frame))
        self._kept = True
        return frame
