"""Lines of the server's log, whatever clients call themselves."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from duramen.server.net.event_log import EventLog

NASTY = [
    "a\rforged",
    "a\nforged",
    "\x1b[2J\x1b]0;title\x07",
    "a\x00b\x7fc\x08",
    "a\x9b31mb\x85c",
    "a\u2028b\u2029c",
    "a\u202eb\u2066c\ufeff",
    "a\udcffb",
    "\U000e0041",
    'quote"and=more \\ \x1b',
]


def _line(value: Any, *, as_json: bool = False) -> str:
    stream = io.StringIO()
    EventLog(as_json, stream)("info", "client", {"id": value, "next": 1})
    stream.getvalue().encode()  # a surrogate would be refused by the stream, and the line lost
    return stream.getvalue()


@pytest.mark.parametrize("name", NASTY)
def test_no_name_ends_a_line_or_steers_a_terminal(name: str) -> None:
    line = _line(name)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    quoted = line.split(" id=", 1)[1].removesuffix(" next=1\n")
    assert json.loads(quoted) == name, "and it can be read back"


@pytest.mark.parametrize("name", NASTY)
def test_the_json_form_stays_json(name: str) -> None:
    line = _line(name, as_json=True)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["id"] == name


@pytest.mark.parametrize(
    ("name", "text"), [("plain", "plain"), ("Wörter", "Wörter"), ("", '""'), ("a b", '"a b"'), ("日=本", '"日=本"')]
)
def test_what_can_be_read_is_left_as_it_is(name: str, text: str) -> None:
    assert f" id={text} next=1" in _line(name)
