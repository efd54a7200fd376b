"""SIGTERM, as supervisors and `timeout` send it, ends a command as Ctrl-C does, but for the exit code."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import click


class Terminated(KeyboardInterrupt):
    """SIGTERM came. A command turns it into `quiet_end`: nobody typed ^C, so there is no line of it to be ended."""


def quiet_end() -> click.exceptions.Exit:
    """What ends a command with the exit code of who was terminated: 128 and the signal's number."""
    return click.exceptions.Exit(128 + signal.SIGTERM)


def _end(*_: object) -> None:
    raise Terminated


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside of this SIGTERM raises Terminated, outside it is the command's end: a member leaves its group before."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go elsewhere
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    except Terminated:
        raise quiet_end() from None
    finally:
        signal.signal(signal.SIGTERM, before)
