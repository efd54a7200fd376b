"""SIGTERM, as supervisors and `timeout` send it, ends a command as Ctrl-C does, but for the exit code."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""

    CODE = 143


def _end(*_: object) -> None:
    raise Terminated


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside of this SIGTERM raises Terminated: a member leaves its group, what was read is written and told."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go elsewhere
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def code_of(interruption: BaseException) -> int:
    """The exit code of who was interrupted: 128 and the signal's number."""
    causes = (interruption, interruption.__cause__, interruption.__context__)
    return Terminated.CODE if any(isinstance(cause, Terminated) for cause in causes) else 130
