"""`duramen features`: what it shows, what it changes, and how it says what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duramen.cli.main import main

Run = Callable[..., Any]


def levels(run: Run) -> dict[str, Any]:
    return {each["feature"]: each for each in run("features", "describe", "--json")}


def test_describe(run: Run) -> None:
    found = levels(run)
    assert found["metadata.version"] == {"feature": "metadata.version", "level": 30, "lowest": 7, "highest": 30}
    assert found["kraft.version"] == {"feature": "kraft.version", "level": 1, "lowest": 0, "highest": 1}
    shown = run("features", "describe")
    assert "metadata.version" in shown
    assert "7 to 30" in shown


def test_all_are_as_high_as_they_can_be(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("features", "upgrade", "--json") == {"executed": True, "features": []}
    assert main(["features", "upgrade"]) == 0
    assert capsys.readouterr().err == "every feature has its highest level\n"


def test_a_level_that_it_has(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    change = {"feature": "metadata.version", "old_level": 30, "new_level": 30}
    said = run("features", "upgrade", "--feature", "metadata.version=30", "--json")
    assert said == {"executed": True, "features": [change]}
    assert main(["features", "upgrade", "--feature", "metadata.version=30", "--dry-run"]) == 0
    assert capsys.readouterr().err == "metadata.version is 30 already\n"


def test_the_node_s_reasons_are_told(run: Run) -> None:
    said = run("features", "downgrade", "--feature", "metadata.version=29", code=1)
    assert "Unsupported metadata.version downgrade from 30 to 29. Refusing to perform" in said
    said = run("features", "downgrade", "--feature", "metadata.version=29", "--unsafe", "--dry-run", code=1)
    assert "Unsafe metadata downgrade is not supported" in said
    said = run("features", "upgrade", "--feature", "no.such=1", code=1)
    assert "Local controller 1 does not support this feature." in said
    assert "for all features" not in said
    said = run("features", "upgrade", "--feature", "metadata.version=30", "--feature", "no.such=1", code=1)
    assert "nothing was changed: Invalid update version 1 for feature no.such." in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["downgrade"], "which one?"),
        (["upgrade", "--feature", "metadata.version"], "expected key=value"),
        (["upgrade", "--feature", "metadata.version=x"], "the level is a number"),
        (["upgrade", "--feature", "metadata.version=-1"], "the level is a number"),
        (["upgrade", "--feature", "metadata.version=99999"], "the level is a number"),
        (["upgrade", "--feature", "a=1", "--feature", "a=2"], "given twice"),
        (["upgrade", "--release-version", "4.3"], "without --feature all are raised"),
        (["disable"], "downgrade --feature NAME=0"),
    ],
)
def test_mistakes(run: Run, arguments: list[str], words: str) -> None:
    assert words in run("features", *arguments, code=2)


def test_in_plain_text_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.cli.shared.connection.ClusterAccess.probe", lambda self: self.bootstrap)
    assert "in plain text only" in run("features", "describe", "-X", "security.protocol=ssl", code=1)
