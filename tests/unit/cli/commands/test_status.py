"""`duramen status` where a part of it cannot be told."""

from __future__ import annotations

import io
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import click
import pytest

from duramen.cli.commands import status, status_look
from duramen.cli.shared.node_look import KnownNode


def test_groups_that_cannot_be_listed_hide_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a node reads what its groups committed nobody can list them; its damage and its topics are known."""

    def refuse(*_: object) -> NoReturn:
        raise click.ClickException("cannot list groups: ask again.")

    monkeypatch.setattr(status_look, "group_positions", refuse)
    nobody: Any = None
    groups, trouble = status_look._groups(nobody, nobody)
    found = status.Status("c", 1, [KnownNode(1, "a", 1)], [], groups, trouble, None, [], 0.0, 1.5)
    assert status._as_json(found)["groups"] == []
    assert status._as_json(found)["groups_trouble"] == "cannot list groups: ask again."
    assert status._as_json(found)["nodes"] == [{"id": 1, "host": "a", "port": 1, "fenced": False, "trouble": None}]
    assert status._as_json(found)["quorum"] is None
    assert status._as_json(found)["time_ms"] == 1500
    status._print(found, "bytes")
    assert capsys.readouterr().out.endswith("0 topics, 0 records, cannot list groups: ask again.\n")


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_a_live_status_draws_what_is_looked_for_and_what_keys_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (status_look.PartitionStatus(0, 1, 0, 5, 10),)
    topics = [status_look.TopicStatus(f"t-{number:02}", parts, None, None) for number in range(40)]
    nodes = [KnownNode(1, "a", 1)]
    found = status.Status("c", 1, nodes, topics, [], None, None, [], 0.0, 0.0)
    drawn = Screen()
    seen: list[str] = []

    class Looks:
        """The node is away from the second drawing on."""

        def __init__(self, *_: object) -> None:
            self.status = found
            self.trouble = None

        def start(self) -> None:
            pass

        def away(self, _now: float) -> str | None:
            return "no answer since then" if seen else None

    def pressed(_seconds: float) -> str:
        seen.append(drawn.getvalue())
        drawn.seek(0)
        drawn.truncate()
        return ["", "n", "q"][len(seen) - 1]

    keys = SimpleNamespace(can_be_pressed=True, pressed=pressed)
    monkeypatch.setattr(status, "Looks", Looks)
    monkeypatch.setattr(status, "listening", lambda: nullcontext(keys))
    monkeypatch.setattr("sys.stdout", drawn)
    for name, value in (("COLUMNS", "40"), ("LINES", "24"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    nobody: Any = None
    status._watch(nobody, nobody, found, 2.0, status.View("name"))
    assert ["no answer since then" in text for text in seen] == [False, True, True]
    assert ["t-00 " in text for text in seen] == [True, True, False]
    assert ["1/" in text for text in seen] == [True, True, False]
    assert "t-20 " in seen[2]
