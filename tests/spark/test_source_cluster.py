"""Source, sink and a pipeline on executors in processes of their own: `local-cluster`, a standalone master.

The short form runs both after another from one driver. The long one is test_standalone_kills.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from driver_process import environment
from sink_lab import read_all
from tests.spark.clusters import LOCAL_CLUSTER, standalone
from tests.spark.log_node import LogNode, log_node

from duramen import pipelines
from duramen.cli.spark.pipeline import load

PIPELINE = """
from pyspark.sql import DataFrame

from duramen import pipelines

flights = pipelines.Topic("flights", key="tail", schema="delay int")
pipeline = pipelines.Pipeline("NAME", folder="tables-NAME")


@pipeline.table(flights, keys=["tail"], store="parquet")
def latest(flights: DataFrame) -> DataFrame:
    return flights.select("tail", "delay", "_cause")


@pipeline.stream(flights, to="late-NAME", key="tail")
def late(flights: DataFrame) -> DataFrame:
    return pipelines.where(flights, "delay > 10")
"""
FLIGHTS = [(b"N%d" % (n % 20), b'{"delay":%d}' % n, (), 1000 + n) for n in range(60)]


def fly(node: LogNode, first: int = 0, last: int = 60) -> None:
    """Each aircraft has its one partition."""
    for number in (0, 1):
        node.append(
            "flights", number, [flight for n, flight in enumerate(FLIGHTS[first:last], first) if n % 2 == number]
        )


def values(node: LogNode, topic: str) -> Counter[tuple[bytes | None, bytes | None]]:
    found = read_all(node.bootstrap, topic).values()
    return Counter((record.key, record.value) for records in found for record in records)


def late() -> Counter[tuple[bytes | None, bytes | None]]:
    """What the stream makes of all flights: those that were on time delete what was said of their aircraft."""
    rows = ((n, b"N%d" % (n % 20)) for n in range(60))
    return Counter((tail, b'{"tail":"%s","delay":%d}' % (tail, n) if n > 10 else None) for n, tail in rows)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_cluster_runs_what_one_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("near", "far")
    for name in names:
        (tmp_path / f"{name}.py").write_text(PIPELINE.replace("NAME", name))
    with (
        log_node(tmp_path, log_retention_ms="-1", offsets_topic_num_partitions="1") as node,
        standalone(tmp_path / "standalone") as cluster,
    ):
        for topic in ("flights", *(f"copy-{name}" for name in names)):
            node.create(topic, 2)
        fly(node)
        masters = (f"near={LOCAL_CLUSTER}", f"far={cluster.url}")
        ran = subprocess.run(
            [sys.executable, "-m", "tests.spark.cluster_driver", node.bootstrap, *masters],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1100,
            check=False,
        )
        said = ran.stdout + ran.stderr[-4000:]
        assert ran.returncode == 0, said
        assert "2 of 2 answered" in said
        assert "WARNING" not in ran.stderr, "which a stranger could do nothing about"
        monkeypatch.chdir(tmp_path)
        for name in names:
            assert f'{{"{name}": {{"rows": 60, "places": 60, "tasks": 4}}}}' in said
            assert values(node, f"copy-{name}") == Counter((key, value) for key, value, _, _ in FLIGHTS)
            assert values(node, f"late-{name}") == late()
            table = pipelines.open_table(load(tmp_path / f"{name}.py"), "latest").rows()
            assert {row["tail"]: row["delay"] for row in table.to_pylist()} == {f"N{n}": 40 + n for n in range(20)}
