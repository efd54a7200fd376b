"""Runs the tour of docs/spark.md as a reader would: its files, its commands, its snippets, in order, on a real node."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from duramen.cli.main import main
from serving import DURAMEN, Served

PAGE = Path(__file__).resolve().parents[3] / "docs" / "spark.md"


class Block(NamedTuple):
    """A fenced block of the page: its language and note, its text."""

    kind: str
    text: str


def tour() -> list[Block]:
    text = PAGE.read_text(encoding="utf-8").split("## What can be declared")[0].split("## A tour")[1]
    return [Block(m[1].strip(), m[2]) for m in re.finditer(r"^```([\w ]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    served.start()
    try:
        yield served
        assert served.stop() == 0, served.log()
    finally:
        served.kill()


def command(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Commands of Spark run in this process, on the session that is there; the others in a shell."""
    words = shlex.split(line)
    if words[:2] != ["duramen", "spark"]:
        folder = os.path.dirname(DURAMEN)
        path = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", line], check=True, timeout=60, env=path, capture_output=True)
        return ""
    capsys.readouterr()
    code = main(words[1:])
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tour(
    spark: SparkSession,
    node: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DURAMEN_BOOTSTRAP", node.bootstrap)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file, said, printed, shown = Path("tour.py"), {}, "", []
    for block in tour():
        if block.kind == "console":
            for line in block.text.splitlines():
                said[line.removeprefix("$ ")] = command(line.removeprefix("$ "), capsys)
        elif block.kind == "python mend":
            mended = re.sub(r"    landed = .*\n", block.text, file.read_text())
            assert mended != file.read_text()
            file.write_text(mended)
        elif "@pipeline" in block.text and not file.exists():
            file.write_text(block.text)
        elif block.kind == "python":
            with redirect_stdout(StringIO()) as out:
                snippet = tmp_path / "snippet.py"
                snippet.write_text(block.text)
                runpy.run_path(str(snippet))
            printed = out.getvalue()
            shown.append(printed)
        elif block.kind == "text":
            assert printed == block.text
    assert len(shown) == 3
    assert "'_deleted': True" in shown[-1]
    traced = said["duramen spark trace tour.py aircraft --row tail=N1"]
    assert '"dest":"SFO"' in traced
    assert "flights-" in traced
    report = said["duramen spark reprocess tour.py delays --version v2"]
    assert re.search(r"late=(3.5|2.3\d*) → (3.5|11.0)", report), report
    assert "delays is v2 now" in said["duramen spark swap tour.py delays v2"]
    assert main(["spark", "run", "tour.py", "--once"]) == 0
