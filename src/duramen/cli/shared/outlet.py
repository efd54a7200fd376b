"""Writes records to stdout beside the caller, who learns how far it is: a reader that is slow holds nobody up."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Place = tuple[str, int]
"""A topic and a partition."""

_PIECE_BYTES = 4096
"""What a pipe takes as a whole or not at all: of what a blocked call has to write, nobody has read anything."""


class Line(NamedTuple):
    """What is printed of one record."""

    place: Place
    offset: int
    content: bytes


class Outlet:
    """Takes lines batch by batch; a thread of its own writes them in their order.

    It goes round Python's buffers: a thread that waits in one of them keeps the process from ending.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        buffer: Any = sys.stdout.buffer
        self._write = getattr(buffer, "raw", buffer).write
        self._changed = threading.Condition()
        self._waiting: deque[Line] = deque()
        self._writing: Sequence[Line] = ()
        self.written = 0
        """Lines, so far."""
        self._done: dict[Place, int] = {}
        self._error: Exception | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def put(self, lines: Sequence[Line]) -> None:
        """Write these, when those before are written."""
        with self._changed:
            if self._idle.is_set():
                self._done.clear()
            self._waiting.extend(lines)
            if self._waiting and self._error is None:
                self._idle.clear()
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stdout", daemon=True)
            self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether all is written, in this time; raises what ended the writing, such as a BrokenPipeError."""
        idle = self._idle.wait(seconds)
        if self._error is not None:
            raise self._error
        return idle

    @property
    def done(self) -> Mapping[Place, int]:
        """Behind the last record written of those that were put when all before were written, in each partition."""
        with self._changed:
            return dict(self._done)

    def take_back(self, seconds: float = 0.2) -> Mapping[Place, int]:
        """Write no more of what was put: the first record that is not written, nor about to be, in each partition.

        seconds: to wait for what is about to be.
        """
        with self._changed:
            undone: dict[Place, int] = {}
            for line in self._waiting:
                undone.setdefault(line.place, line.offset)
            self._waiting.clear()
            if not self._writing:
                self._idle.set()
        self._idle.wait(seconds)
        return undone

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    for line in self._writing:
                        self._done[line.place] = line.offset + 1
                    self.written += len(self._writing)
                    self._writing = ()
                    if not self._waiting:
                        self._idle.set()
                    while not self._waiting:
                        self._changed.wait()
                    self._writing = self._next()
                left = memoryview(b"".join(line.content for line in self._writing))
                while left:
                    left = left[self._write(left) or 0 :]
        except (OSError, ValueError) as error:
            self._error = error
            self._idle.set()

    def _next(self) -> list[Line]:
        lines = [self._waiting.popleft()]
        size = len(lines[0].content)
        while self._waiting and (size := size + len(self._waiting[0].content)) <= _PIECE_BYTES:
            lines.append(self._waiting.popleft())
        return lines
