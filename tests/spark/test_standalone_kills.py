"""The command line on a standalone master while its driver, its executors and a worker are killed. Long: behind
DURAMEN_SPARK_LONG=1 (`make test-spark-matrix`)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sink_lab import read_all
from spark_processes import executors, kill_9
from tests.spark.clusters import BRIEF, Standalone, standalone
from tests.spark.log_node import LogNode, log_node
from tests.worlds.served_node import DURAMEN

from duramen import pipelines
from duramen.cli.spark.pipeline import load

pytestmark = [
    pytest.mark.skipif("DURAMEN_SPARK_LONG" not in os.environ, reason="long: make test-spark-matrix runs it"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]
PIPELINE = """
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duramen import pipelines

flights = pipelines.Topic("flights", key="tail", schema="number int", options={"maxOffsetsPerTrigger": "40"})
pipeline = pipelines.Pipeline("killed")


@pipeline.table(flights, keys=["tail"])
def latest(flights: DataFrame) -> DataFrame:
    return flights.select("tail", "number", "_cause")


@pipeline.table(flights, keys=["tail"], aggregate=True, store="parquet")
def sums(flights: DataFrame) -> DataFrame:
    return flights.groupBy("tail").agg(
        F.count("*").alias("flights"), F.sum("number").alias("numbers"), pipelines.latest_cause()
    )


@pipeline.stream(flights, to="copied", key="tail")
def copied(flights: DataFrame) -> DataFrame:
    return flights
"""
AIRCRAFT = 16
PER_ROUND = 400
ROUNDS = 4


class Run:
    """`duramen spark run` in a session of processes of its own."""

    def __init__(self, folder: Path, node: LogNode, cluster: Standalone, *words: str) -> None:
        self._log = folder / f"run-{time.monotonic_ns()}.log"
        command = [DURAMEN, "spark", "run", "killed.py", "-b", node.bootstrap, "--json", "--trigger", "0 seconds"]
        command += ["--master", cluster.url, *words, *(w for k, v in BRIEF.items() for w in ("--conf", f"{k}={v}"))]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def batches(self) -> int:
        lines = (line for line in self.log().splitlines() if line.startswith("{"))
        return sum(json.loads(line)["rows"] > 0 for line in lines)

    def await_batches(self, more: int) -> None:
        wanted = self.batches() + more
        give_up = time.monotonic() + 300
        while self.batches() < wanted:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < give_up, self.log()
            time.sleep(0.05)

    def kill(self) -> None:
        """Driver and JVM at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def fly(node: LogNode, first: int) -> None:
    """Numbers from `first` on, each aircraft in its one partition."""
    for start in range(first, first + PER_ROUND, 50):
        for partition in (0, 1):
            node.append(
                "flights",
                partition,
                [
                    (b"N%d" % (n % AIRCRAFT), b'{"number":%d}' % n, (), 1000 + n)
                    for n in range(start, start + 50)
                    if n % 2 == partition
                ],
            )


@contextmanager
def killed(run: Run) -> Iterator[Run]:
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()


def check(node: LogNode, folder: Path, total: int) -> None:
    """Every output holds each input exactly once."""
    copies = Counter(record.value for records in read_all(node.bootstrap, "copied").values() for record in records)
    assert copies == Counter(b'{"tail":"N%d","number":%d}' % (n % AIRCRAFT, n) for n in range(total))
    pipeline = load(folder / "killed.py")
    latest = pipelines.open_table(pipeline, "latest").rows().to_pylist()
    assert {row["tail"]: row["number"] for row in latest} == {
        f"N{n % AIRCRAFT}": n for n in range(total - AIRCRAFT, total)
    }
    sums = pipelines.open_table(pipeline, "sums").rows().to_pylist()
    assert {row["tail"]: (row["flights"], row["numbers"]) for row in sums} == {
        f"N{tail}": (len(range(tail, total, AIRCRAFT)), sum(range(tail, total, AIRCRAFT))) for tail in range(AIRCRAFT)
    }


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds executors in /proc")
def test_whatever_is_killed_each_record_is_in_every_output_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "killed.py").write_text(PIPELINE)
    drivers = gone = 0
    with (
        log_node(tmp_path, log_retention_ms="-1", offsets_topic_num_partitions="1") as node,
        standalone(tmp_path / "standalone") as cluster,
    ):
        for topic in ("flights", "copied"):
            node.create(topic, 2)
        for number in range(ROUNDS):
            fly(node, number * PER_ROUND)
            with killed(Run(tmp_path, node, cluster)) as run:
                run.await_batches(1 + number)
                if number % 2:
                    there = [pid for worker in cluster.processes[1:] for pid in executors(worker.pid)]
                    gone += len(kill_9(there[:1]))
                    run.await_batches(2)
                run.kill()
                drivers += 1
        with killed(Run(tmp_path, node, cluster, "--once")) as last:
            assert last.process.wait(600) == 0, last.log()
        check(node, tmp_path, ROUNDS * PER_ROUND)
    assert (drivers, gone) == (ROUNDS, ROUNDS // 2)


def test_the_doctor_asks_every_executor_and_names_a_master_that_is_not_there(tmp_path: Path) -> None:
    with (
        log_node(tmp_path, offsets_topic_num_partitions="1") as node,
        standalone(tmp_path / "standalone") as cluster,
    ):
        settings = [word for key, value in BRIEF.items() for word in ("--conf", f"{key}={value}")]
        doctor = [DURAMEN, "spark", "doctor", "-b", node.bootstrap, *settings, "--master"]
        well = subprocess.run([*doctor, cluster.url], capture_output=True, text=True, timeout=600, check=False)
        assert well.returncode == 0, well.stdout + well.stderr
        assert "2 of 2 answered" in well.stdout
        bare = {**os.environ, "PYSPARK_PYTHON": "/no/python"}
        wrong = subprocess.run(
            [*doctor, cluster.url], capture_output=True, text=True, timeout=600, check=False, env=bare
        )
        assert wrong.returncode == 1
        assert re.search('BAD  workers .*Cannot run program "/no/python"', wrong.stdout), wrong.stdout + wrong.stderr
    away = subprocess.run([*doctor, cluster.url], capture_output=True, text=True, timeout=120, check=False)
    assert away.returncode == 1
    assert "BAD  master" in away.stdout
