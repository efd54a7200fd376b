"""Keys of a terminal, one by one, and the terminal as it was behind them."""

from __future__ import annotations

import os
import pty
import termios
from types import SimpleNamespace

import pytest

from duramen.cli.shared.keys import listening


def test_each_key_comes_at_once_and_the_terminal_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    person, terminal = pty.openpty()
    try:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(fileno=lambda: terminal))
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
        before = termios.tcgetattr(terminal)
        with listening() as keys:
            assert keys.can_be_pressed
            assert keys.pressed(0.0) == ""
            for given, meant in ((b"r", "r"), (b"Q", "q"), (b"\x1b[6~", "n"), (b"\x1b[A", "p"), (b" ", "n")):
                os.write(person, given)
                assert keys.pressed(30.0) == meant
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(person)
        os.close(terminal)


@pytest.mark.parametrize("case", ["no terminal", "another job's", "closed"])
def test_where_there_is_no_terminal_of_ours_nothing_is_touched(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    person, terminal = pty.openpty()
    reading, writing = os.pipe()
    try:
        found = {"no terminal": SimpleNamespace(fileno=lambda: reading), "closed": None}
        monkeypatch.setattr("sys.stdin", found.get(case, SimpleNamespace(fileno=lambda: terminal)))
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
        before = termios.tcgetattr(terminal)
        os.write(person, b"q\n")
        with listening() as keys:
            assert not keys.can_be_pressed
            assert termios.tcgetattr(terminal) == before
            assert keys.pressed(0.0) == ""
    finally:
        for end in (person, terminal, reading, writing):
            os.close(end)
