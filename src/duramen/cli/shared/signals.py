"""What ends a command from outside: SIGTERM of a supervisor or `timeout`, SIGHUP of a terminal that goes away.

Both end it as Ctrl-C does, but for the exit code.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import click


class Terminated(KeyboardInterrupt):
    """One of them came. A command turns it into `quiet_end`: nobody typed ^C, so no line of it has to be ended."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP where nobody (`nohup`) has chosen to outlive the terminal."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP]


def quiet_end(came: Terminated) -> click.exceptions.Exit:
    """What ends a command with the exit code of who was terminated: 128 and the signal's number."""
    return click.exceptions.Exit(128 + came.number)


def _end(number: int, _: object) -> None:
    raise Terminated(number)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside of this both raise Terminated, outside it is the command's end: a member leaves its group before."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go elsewhere
        return
    before = [(number, signal.signal(number, _end)) for number in ending_signals()]
    try:
        yield
    except Terminated as came:
        raise quiet_end(came) from None
    finally:
        for number, handler in before:
            signal.signal(number, handler)
