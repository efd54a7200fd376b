"""Commands of `duramen spark` that start no Spark: what they say when something is not there."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from duramen.cli import spark_status
from duramen.cli.main import main
from duramen.cli.spark_run import tell_if_away
from duramen.pipelines.offsets import Offsets

PIPELINE = """
from duramen import pipelines

pipeline = pipelines.Pipeline("typo")


@pipeline.table(pipelines.Topic("flihgts", key="tail", schema="carrier string"), keys=["tail"])
def aircraft(flights):
    return flights
"""


class Empty:
    """A node without topics."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def ends(self, _topic: str) -> Offsets:
        return Offsets()

    starts = ends


def test_the_lag_behind_a_topic_that_is_not_there_is_no_empty_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr(spark_status, "Node", Empty)
    file = tmp_path / "typo.py"
    file.write_text(PIPELINE)
    assert main(["spark", "lag", str(file), "--folder", str(tmp_path)]) == 1
    assert "aircraft: there is no topic flihgts at" in capsys.readouterr().err


def test_a_run_says_at_once_that_nothing_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        tell_if_away(f"nonsense,{address}")
        assert capsys.readouterr().err == ""
    tell_if_away(f"nonsense,{address}")
    assert f"nothing listens at nonsense,{address} now" in capsys.readouterr().err
