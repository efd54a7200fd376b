"""Says what is being waited for, where it takes longer than a second."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

SECONDS = 1.0


def on_stderr(line: str) -> None:
    """Where Java says what it has to say, too."""
    sys.stderr.write(f"{line}\n")


class Phases:
    """What goes on just now. One that lasts is told once, by a thread: whoever waits for it can say nothing."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self._say = say or on_stderr
        self._phase = ""
        self._timer: threading.Timer | None = None
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.begin("")

    def begin(self, phase: str) -> None:
        """The last one is over, and this one begins; an empty one is none."""
        with self._turn:
            if phase == self._phase:
                return
            self._phase = phase
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if phase:
                self._timer = threading.Timer(SECONDS, self._tell, (phase,))
                self._timer.daemon = True
                self._timer.start()

    def _tell(self, phase: str) -> None:
        with self._turn:
            if self._phase == phase:
                self._say(f"{phase} ...")
