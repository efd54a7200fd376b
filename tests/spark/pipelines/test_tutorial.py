"""Runs docs/spark.md as a reader would: its files, its commands, its snippets, in order, on a real node."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from tests.worlds.served_node import DURAMEN, Served

from duramen.cli.main import main
from duramen.client import LATEST, Cluster
from duramen.model import TopicPartition

PAGE = Path(__file__).resolve().parents[3] / "docs" / "spark.md"


ELSEWHERE = {
    "python3 -m venv .venv && .venv/bin/pip install '.[spark]'": "the tests of the wheel and of `doctor`",
    "spark-class org.apache.spark.deploy.master.Master": "`make test-spark-matrix` starts a master and workers",
}
"""Blocks that are not run here, by how they begin, and what runs them."""


CHECKPOINT = re.compile(r'"([a-z-]+-checkpoint)"')
"""Relative to the folder in which the JVM was started, which is not the test's."""


class Block(NamedTuple):
    """A fenced block of the page: its language and note, its text."""

    kind: str
    text: str


def blocks() -> list[Block]:
    """Every block of the page but those that something else runs."""
    text = PAGE.read_text(encoding="utf-8")
    found = [
        Block(m[1].strip(), m[2]) for m in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    here = [block for block in found if not block.text.startswith(tuple(ELSEWHERE))]
    assert len(found) == len(here) + len(ELSEWHERE)
    assert {block.kind for block in here if not block.kind.endswith(".py")} == {
        "console",
        "python",
        "python mend",
        "text",
    }
    return here


def command(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Commands of Spark run in this process, on the session that is there; the others in a shell."""
    words = shlex.split(line)
    if words[:2] != ["duramen", "spark"]:
        folder = os.path.dirname(DURAMEN)
        path = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", line], check=True, timeout=200, env=path, capture_output=True)
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
    for block in blocks():
        if block.kind == "console":
            for line in block.text.splitlines():
                said[line.removeprefix("$ ")] = command(line.removeprefix("$ "), capsys)
        elif block.kind == "python mend":
            begins = re.escape(re.split(r" = |\(", block.text)[0])
            mended = re.sub(f"^{begins}.*\n", block.text, file.read_text(), count=1, flags=re.MULTILINE)
            assert mended != file.read_text()
            file.write_text(mended)
        elif block.kind.endswith(".py"):
            Path(block.kind.removeprefix("python ")).write_text(block.text)
        elif block.kind == "python":
            for path in tmp_path.glob(
                "*.py"
            ):  # a snippet is a program of its own, which reads the files as they are now
                sys.modules.pop(path.stem, None)
            with redirect_stdout(StringIO()) as out:
                snippet = tmp_path / "snippet.py"
                here = CHECKPOINT.sub(rf'"{tmp_path}/\1"', block.text)
                snippet.write_text(here.replace("127.0.0.1:9092", node.bootstrap))
                runpy.run_path(str(snippet))
            printed = out.getvalue()
            shown.append(printed)
        elif block.kind == "text":
            assert printed == block.text
    assert len(shown) == 15
    assert "'_deleted': True" in shown[2]
    traced = said["duramen spark trace tour.py aircraft --row tail=N1"]
    assert '"dest":"SFO"' in traced
    assert "flights-" in traced
    joined = said["duramen spark trace shop.py paid --row order=A1"]
    assert re.search(
        r"record +payments-0@0.*also +record=orders-[01]@0  value={\"customer\":\"ann\"", joined, re.DOTALL
    ), joined
    assert "order=A1" in said["duramen spark trace shop.py paid --record payments-0@0"]
    lag = said["duramen spark lag audit.py"].splitlines()
    assert [line.split()[2:] for line in lag[1:]] == [["refunds.repaid@v1", "0", "2", "2", "0"]] * 2
    changed = said["duramen spark trace audit.py repayments --row cents=250"]
    assert "(changed in version 1 of the table repaid of pipeline refunds)" in changed
    report = said["duramen spark reprocess tour.py delays --version v2"]
    assert re.search(r"late=(3.5|2.3\d*) → (3.5|11.0)", report), report
    assert "delays is v2 now" in said["duramen spark swap tour.py delays v2"]
    assert main(["spark", "run", "tour.py", "--once"]) == 0
    assert said["duramen spark rollback tour.py delays"].startswith("delays is v1 now")
    assert re.search(r"rows .* late 1 ", said["duramen spark run landings.py --once"])
    assert "hourly: late 1, watermark 2026-01-01 12:10:00" in said["duramen spark status landings.py"]
    status = said["duramen spark status tour.py --env dev"].splitlines()
    assert status[-1] == "environment dev: tour-tables/env-dev"
    assert re.match(r"aircraft +table +v1 +- +ready ", status[1])
    assert main(["spark", "init", "started"]) == 0
    capsys.readouterr()
    assert main(["spark", "dry-run", "started.py"]) == 0
    planned = capsys.readouterr().out
    assert "latest: table v1\n  reads     events\n  writes    started-tables/latest/v1/table\n" in planned
    assert max(map(len, planned.splitlines())) <= 80
    with Cluster(node.bootstrap) as cluster:
        ends = cluster.list_offsets({TopicPartition("flights-copy", p): LATEST for p in range(3)})
        per_tail = cluster.list_offsets({TopicPartition("flights-per-tail", 0): LATEST})
    assert sum(end.offset for end in per_tail.values()) == 4
    assert sum(end.offset for end in ends.values()) == 6
