"""Keys that are pressed while a command shows something, one by one and unseen."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

_NAMES = {b"\x1b[6~": "n", b"\x1b[B": "n", b"\x1b[C": "n", b" ": "n", b"\x1b[5~": "p", b"\x1b[A": "p", b"\x1b[D": "p"}
"""What keys that have no letter mean: page and arrow keys, the space bar."""


class Keys:
    """The keys of the terminal that stdin is; none where it is none, or somebody else's."""

    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal

    @property
    def can_be_pressed(self) -> bool:
        """Whether there will ever be one."""
        return self._terminal is not None

    def pressed(self, seconds: float) -> str:
        """The letter of the key that was pressed, in this time; else an empty string."""
        if self._terminal is None:
            time.sleep(seconds)
            return ""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return ""
        given = os.read(self._terminal, 16)
        if not given:  # the terminal is gone
            self._terminal = None
        return _NAMES.get(given) or given[:1].decode("ascii", "ignore").lower()


@contextlib.contextmanager
def listening() -> Iterator[Keys]:
    """The terminal hands out each key at once, and shows none, inside of this."""
    terminal = _own_terminal()
    if terminal is None:
        yield Keys(None)
        return
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield Keys(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _own_terminal() -> int | None:
    try:
        terminal = sys.stdin.fileno()
        # A command in the background is stopped where it changes the terminal.
        return terminal if os.isatty(terminal) and os.tcgetpgrp(terminal) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):
        return None
