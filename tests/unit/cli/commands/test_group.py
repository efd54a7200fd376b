"""What `duramen group reset-offsets` tells of what it could not take as it was said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duramen.cli.main import main


def test_a_reset_tells_of_a_time_without_records_and_of_a_new_group(
    run: Callable[..., Any], topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("produce", topic, lines("a"))
    reset = ["group", "reset-offsets", f"g-{topic}", "--topic", topic]
    assert main([*reset, "--to-datetime", "@9000000000000"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("no record is of that time or later; the end is taken\n")
    assert "there was no group" not in said
    assert main([*reset, "--to-datetime", "1h", "--execute"]) == 0
    assert capsys.readouterr().err == f"g-{topic} was moved\nthere was no group g-{topic} before\n"
    assert main([*reset, "--to-earliest", "--execute"]) == 0
    assert capsys.readouterr().err == f"g-{topic} was moved\n"
