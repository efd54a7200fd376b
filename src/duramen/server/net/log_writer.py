"""A stream of text that never keeps its writer waiting: a thread of its own carries the text to the descriptor.

Who reads a node's log may stop reading (a paused terminal, a stalled collector), and a full pipe keeps its writer until
there is room. The loop must not be that writer: what finds no room in the queue is dropped, counted, and told later.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TextIO

QUEUE_BYTES = 1 << 20
"""What waits for a reader at most: some thousands of lines."""


class _Piece(NamedTuple):
    data: bytes
    lines: int
    is_notice: bool = False
    """It stands for so many lines that were dropped."""


class LogWriter(io.TextIOBase):
    """Writes what it is given to the descriptor of `stream`, in order, from a thread of its own.

    notice: the line that tells of so many dropped ones; on_dropped: told of them at once, for a metric.
    """

    def __init__(self, stream: TextIO, limit: int = QUEUE_BYTES) -> None:
        stream.flush()
        self.notice: Callable[[int], str] = lambda lines: ""
        self.on_dropped: Callable[[int], None] = lambda lines: None
        self._descriptor = stream.fileno()
        self._encoding = stream.encoding
        self._limit = limit
        self._queue: deque[_Piece] = deque()
        self._queued = 0
        self._untold = 0
        self._dropping = False
        self._writing = False
        self._closed = False
        self._failed = False
        self._torn = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # held for moments only, never during a write

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Of what is written to in the end."""
        return self._descriptor

    def write(self, text: str, /) -> int:
        """Leave it to the thread, or drop it where the queue is full; returns at once."""
        piece = _Piece(self._encoded(text), text.count("\n") or 1)
        with self._changed:
            # Once full, half of the queue has to drain first: one notice tells of many lines.
            room = self._limit // 2 if self._dropping else self._limit
            if self._queued + len(piece.data) > room or not self._running():
                self._dropping = True
                self._drop(piece.lines)
            else:
                self._tell_dropped()
                self._put(piece)
                self._changed.notify_all()
        return len(text)

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._encoding, "backslashreplace")

    def finish(self, seconds: float) -> bool:
        """Wait so long at most for all of it to be written; whether it was. Nothing is to be written after this."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._changed.wait_for(self._drained, seconds)

    # ---- with the lock held ----------------------------------------------------------------------------------

    def _running(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._carry, name=f"log-{self._descriptor}", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread to be had now: this line is dropped, the next one asks
                thread.start()
                self._thread = thread
        return self._thread is not None

    def _put(self, piece: _Piece) -> None:
        self._queue.append(piece)
        self._queued += len(piece.data)

    def _drop(self, lines: int) -> None:
        self._untold += lines
        self.on_dropped(lines)

    def _tell_dropped(self) -> None:
        lines, self._untold, self._dropping = self._untold, 0, False
        if lines:
            self._put(_Piece(self._encoded(self.notice(lines)), lines, True))

    def _drained(self) -> bool:
        return self._thread is None or not (self._queue or self._writing or (self._untold and not self._failed))

    # ---- in the thread ---------------------------------------------------------------------------------------

    def _carry(self) -> None:
        while (piece := self._next()) is not None:
            sent = self._sent(piece.data)
            with self._changed:
                self._writing, self._failed = False, not sent
                if not sent and piece.is_notice:
                    self._untold += piece.lines
                elif not sent:
                    self._drop(piece.lines)
                self._changed.notify_all()

    def _next(self) -> _Piece | None:
        with self._changed:
            while True:
                if not self._queue and not self._failed:  # after a failure the next line tries, not this
                    self._tell_dropped()
                if self._queue:
                    piece = self._queue.popleft()
                    self._queued -= len(piece.data)
                    self._writing = True
                    return piece
                if self._closed:
                    return None
                self._changed.wait()

    def _sent(self, data: bytes) -> bool:
        """Write all of it, however long that takes; False when that cannot be: nobody reads any more, a full disk."""
        rest = memoryview(b"\n" + data if self._torn else data)
        whole = len(rest)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # somebody who shares the pipe has made it so
                    waiting = select.poll()
                    waiting.register(self._descriptor, select.POLLOUT)
                    waiting.poll()
        except OSError:
            self._torn |= len(rest) < whole
            return False
        self._torn = False
        return True
