"""`duramen spark lag` against a node: it follows what a step's query reads, not what its topic is called."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from tests.spark.log_node import LogNode, log_node

from duramen.cli.main import main
from duramen.pipelines.model.folders import StepFolder
from duramen.spark.source.stream_reader import DuramenStreamReader

PIPELINE = """
from duramen import pipelines

pipeline = pipelines.Pipeline("tour", bootstrap={bootstrap!r})


@pipeline.table(pipelines.Topic({topic!r}, key="k", schema="v string", options={options!r}), keys=["k"])
def latest(rows):
    return rows
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogNode]:
    with log_node(tmp_path_factory.mktemp("log"), log_retention_ms="-1", offsets_topic_num_partitions="2") as served:
        yield served


def _fill(node: LogNode, topic: str, count: int) -> None:
    node.append(topic, 0, [(b"k", b"v", (), 1000 + n) for n in range(count)])


def _read_all(node: LogNode, folder: Path, options: dict[str, str]) -> None:
    """The checkpoint of a query that has read everything there is."""
    given = {"kafka.bootstrap.servers": node.bootstrap, "startingOffsets": "earliest", "readFrom": "broker", **options}
    query = DuramenStreamReader(given, StructType().add("value", "binary"))
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    query.stop()
    version = StepFolder(folder, "latest").version("v1")
    version.describe({"generation": 0, "first_generation": 0})
    for kind in ("offsets", "commits"):
        (version.checkpoint(0) / kind).mkdir(parents=True)
        (version.checkpoint(0) / kind / "0").write_text(f"v1\n{{}}\n{json.dumps(end)}")


class _Lag:
    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.path", sys.path.copy())
        self._folder, self._file, self._capsys = tmp_path, tmp_path / "tour.py", capsys

    def __call__(self, node: LogNode, topic: str, options: dict[str, str]) -> tuple[int, list[tuple[str, int]], str]:
        """(exit code, (topic, lag) of each partition, what is said beside it)."""
        self._file.write_text(PIPELINE.format(bootstrap=node.bootstrap, topic=topic, options=options))
        code = main(["spark", "lag", str(self._file), "--folder", str(self._folder), "--json"])
        told = self._capsys.readouterr()
        return code, [(row["topic"], row["lag"]) for row in json.loads(told.out)], told.err


@pytest.fixture
def lag(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> _Lag:
    return _Lag(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    "options",
    [
        {"subscribePattern": "^chosen[.].*"},
        {"subscribe": "chosen.a,chosen.b"},
        {"assign": '{"chosen.a":[0],"chosen.b":[0]}'},
    ],
)
def test_topics_that_options_choose_are_those_that_it_counts(
    node: LogNode, tmp_path: Path, lag: _Lag, options: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """It looked for a topic of the source's name, which nobody reads, and found none."""
    for topic in ("chosen.a", "chosen.b", "other"):
        node.create(topic)
        request.addfinalizer(lambda topic=topic: node.delete(topic))  # type: ignore[misc]
        _fill(node, topic, 3)
    assert lag(node, "everything", options) == (0, [("chosen.a", 3), ("chosen.b", 3)], "")
    _read_all(node, tmp_path, options)
    _fill(node, "chosen.b", 4)
    assert lag(node, "everything", options) == (0, [("chosen.a", 0), ("chosen.b", 4)], "")


def test_a_topic_that_was_made_anew_is_said(node: LogNode, tmp_path: Path, lag: _Lag) -> None:
    """The offsets of the one that is gone were taken for those of the new one: the step seemed to be up to date."""
    node.create("anew")
    _fill(node, "anew", 5)
    _read_all(node, tmp_path, {"subscribe": "anew"})
    assert lag(node, "anew", {}) == (0, [("anew", 0)], "")
    node.delete("anew")
    node.create("anew")
    _fill(node, "anew", 4)
    code, rows, told = lag(node, "anew", {})
    assert (code, rows) == (1, [("anew", 4)])
    assert "latest: topic anew was deleted and made anew" in told


def test_lag_is_of_every_source(
    node: LogNode,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """One checkpoint has the ends of all sources, a line each, in the order of Spark's plan."""
    for topic, count in {"one": 3, "two": 5}.items():
        node.create(topic)
        request.addfinalizer(lambda topic=topic: node.delete(topic))  # type: ignore[misc]
        _fill(node, topic, count)
    monkeypatch.setattr("sys.path", sys.path.copy())
    file = tmp_path / "tour.py"
    both = 'pipelines.Topic("one"), pipelines.Topic("two")'
    file.write_text(
        "from duramen import pipelines\n"
        f"pipeline = pipelines.Pipeline('tour', bootstrap={node.bootstrap!r})\n"
        f"@pipeline.history({both})\n"
        "def both(one, two): ...\n"
    )
    version = StepFolder(tmp_path, "both").version("v1")
    version.describe({"generation": 0, "sources": [{"topic": t, "reads": t, "generation": 0} for t in ("one", "two")]})
    for kind in ("offsets", "commits"):
        (version.checkpoint(0) / kind).mkdir(parents=True)
        (version.checkpoint(0) / kind / "0").write_text('v1\n{}\n{"two":{"0":4}}\n{"one":{"0":1}}')
    code = main(["spark", "lag", str(file), "--folder", str(tmp_path), "--json"])
    rows = [(row["topic"], row["at"], row["lag"]) for row in json.loads(capsys.readouterr().out)]
    assert (code, rows) == (0, [("one", 1, 2), ("two", 4, 1)])
