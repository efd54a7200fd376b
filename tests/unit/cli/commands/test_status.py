"""`duramen status` where a part of it cannot be told."""

from __future__ import annotations

from typing import Any, NoReturn

import click
import pytest

from duramen.cli.commands import status, status_look


def test_groups_that_cannot_be_listed_hide_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a node reads what its groups committed nobody can list them; its damage and its topics are known."""

    def refuse(*_: object) -> NoReturn:
        raise click.ClickException("cannot list groups: ask again.")

    monkeypatch.setattr(status_look, "group_positions", refuse)
    nobody: Any = None
    groups, trouble = status_look._groups(nobody, nobody)
    found = status.Status("c", 1, [status_look.NodeStatus(1, "a", 1)], [], groups, trouble, None, [], 0.0, 1.5)
    assert status._as_json(found)["groups"] == []
    assert status._as_json(found)["groups_trouble"] == "cannot list groups: ask again."
    assert status._as_json(found)["nodes"] == [{"id": 1, "host": "a", "port": 1}]
    assert status._as_json(found)["time_ms"] == 1500
    status._print(found, "bytes")
    assert capsys.readouterr().out.endswith("0 topics, 0 records, cannot list groups: ask again.\n")
