"""Runs docs/spark-where.md as a reader would: spark-submit, a server of Spark Connect, Spark's Declarative Pipelines,
transformWithState. Long: behind DURAMEN_SPARK_LONG=1 (`make test-spark-matrix`)."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from driver_process import environment, until
from sink_lab import read_all
from spark_processes import descendants, kill_9
from tests.spark.log_node import LogNode, log_node
from tests.worlds.served_node import DURAMEN

from duramen import pipelines
from duramen.cli.spark.pipeline import load

pytestmark = [
    pytest.mark.skipif("DURAMEN_SPARK_LONG" not in os.environ, reason="long: make test-spark-matrix runs it"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
with_connect = pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pyspark[connect]")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-where.md"
SECONDS_MAX = 600
FLIGHTS = [(b"N%d" % (n % 5), b'{"delay":%d}' % n, (), 1000 + n) for n in range(20)]
LATEST = {f"N{n}": 15 + n for n in range(5)}
LINGERING = """
import time
from pyspark.sql import SparkSession
from latest import pipeline

spark = SparkSession.builder.remote("sc://127.0.0.1:15002").getOrCreate()
pipeline.run(spark=spark, once=False, on_batch=lambda batch: print(batch.line(), flush=True))
"""

MORE = """
from duramen.errors import ConfigError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duramen import pipelines

flights = pipelines.Topic("flights", key="tail", schema="delay int")
pipeline = pipelines.Pipeline("more")


@pipeline.table(flights, keys=["tail"], expect={"short": "delay < 70"}, on_violation="quarantine", store="parquet")
def short(flights):
    return flights.select("tail", "delay", "_cause")


@pipeline.stream(flights, to="sums", key="tail", aggregate=True)
def sums(flights):
    return flights.groupBy("tail").agg(F.count("*").alias("flights"), pipelines.latest_cause())


@pipeline.effect(flights)
def heard(flights, batch):
    with open("heard", "a") as out:
        out.write(f"{batch} {flights.count()}\\n")


@pipeline.stream(flights, to="copied", key="tail")
def copied(flights):
    return flights


if __name__ == "__main__":
    spark = SparkSession.builder.remote("sc://127.0.0.1:15002").getOrCreate()
    for step, done in pipeline.run(["short", "sums", "heard"], spark=spark).items():
        print(step, done.rows, done.written, done.quarantined)
    try:
        pipeline.run(["copied"], spark=spark)
    except ConfigError as error:
        print(error)
"""


class Reader:
    """Somebody with the page, a node that has flights, and a folder."""

    def __init__(self, folder: Path, node: LogNode) -> None:
        self.folder = folder
        self.node = node
        self.page = PAGE.read_text(encoding="utf-8")
        bin_folders = os.pathsep.join([os.path.dirname(DURAMEN), str(Path(environment()["SPARK_HOME"], "bin"))])
        self.environment = environment() | {
            "PATH": f"{bin_folders}{os.pathsep}{os.environ['PATH']}",
            "DURAMEN_BOOTSTRAP": node.bootstrap,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def write(self, *names: str) -> None:
        """Files of the page."""
        for name in names:
            found = re.search(rf"^```\w+ {re.escape(name)}\n(.*?)^```$", self.page, re.MULTILINE | re.DOTALL)
            assert found, f"the page has no {name}"
            place = self.folder / name
            place.parent.mkdir(exist_ok=True)
            place.write_text(found[1])

    def command(self, part: str) -> str:
        """The one command of the page with these words."""
        (found,) = [
            line
            for block in re.findall(r"^```sh\n(.*?)^```$", self.page, re.MULTILINE | re.DOTALL)
            for line in block.splitlines()
            if part in line and "duramen.zip" not in line
        ]
        return str(found).replace("command -v python3", f"echo {sys.executable}")

    def runs(self, command: str) -> str:
        """What a command that has to succeed says."""
        ran = subprocess.run(
            ["sh", "-c", command],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-6000:]
        return ran.stdout

    @contextmanager
    def beside(self, command: str, log: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that goes on meanwhile; it is killed at the end."""
        with (self.folder / log).open("wb") as out:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"], env=self.environment, cwd=self.folder, stdout=out, stderr=out
            )
        try:
            yield process
        finally:
            kill_9([*descendants(process.pid), process.pid])
            process.wait()

    def said(self, log: str) -> str:
        """The end of what it has written."""
        return (self.folder / log).read_text(errors="replace")[-20000:]

    def rows(self, file: str, step: str, column: str) -> dict[str, int]:
        """A column of a table by the key."""
        rows = pipelines.open_table(load(self.folder / file), step).rows().to_pylist()
        return {row["tail"]: row[column] for row in rows}


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    with log_node(tmp_path, log_retention_ms="-1", offsets_topic_num_partitions="1") as node:
        node.create("flights")
        node.append("flights", 0, FLIGHTS)
        yield Reader(tmp_path, node)


def test_spark_submit_runs_a_pipeline(reader: Reader) -> None:
    reader.write("latest.py", "job.py")
    assert "aircraft rows: 20\n" in reader.runs(reader.command("job.py"))
    assert reader.rows("latest.py", "aircraft", "delay") == LATEST


def test_state_of_ones_own_is_kept_by_transform_with_state(reader: Reader) -> None:
    reader.write("landings.py")
    reader.runs(reader.command("landings.py"))
    reader.node.append("flights", 0, FLIGHTS[:3])
    reader.runs(reader.command("landings.py"))
    assert reader.rows("landings.py", "landings", "landed") == {f"N{n}": 4 + (n < 3) for n in range(5)}


@with_connect
def test_a_table_is_folded_by_a_server_of_spark_connect_while_its_run_goes_on(reader: Reader) -> None:
    """A client that is killed leaves a query on the server, which takes no batch any more; the next run goes on."""
    reader.write("latest.py", "client.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = reader.folder / "client.py"
    client.write_text(client.read_text().replace("15002", str(port)))
    for name, text in (("lingering", LINGERING), ("more", MORE)):
        (reader.folder / f"{name}.py").write_text(text.replace("15002", str(port)))
    settings = f"--conf spark.connect.grpc.binding.port={port} --conf spark.ui.enabled=false"
    server = reader.command("SparkConnectServer").replace("--class", f"{settings} --class")
    with reader.beside(server.replace("PYSPARK_PYTHON", "env PYSPARK_PYTHON", 1), "server.log"):
        server_log, run_log = (partial(reader.said, log) for log in ("server.log", "lingering.log"))
        until(lambda: listens(port), "the server", server_log)
        said = reader.runs(f"{sys.executable} client.py")
        assert "records: 20\naircraft rows: 20\n" in said
        assert reader.rows("latest.py", "aircraft", "delay") == LATEST
        with reader.beside(f"{sys.executable} lingering.py", "lingering.log") as run:
            reader.node.append("flights", 0, [(b"N0", b'{"delay":70}', (), 2000)])
            until(lambda: "aircraft v1" in run_log(), "a batch", run_log)
            run.send_signal(signal.SIGKILL)
            run.wait()
        reader.node.append("flights", 0, [(b"N1", b'{"delay":71}', (), 2001)])
        ended = "the run of aircraft v1 that started this query has ended"
        until(lambda: ended in server_log(), "the query's end", server_log)
        assert reader.rows("latest.py", "aircraft", "delay") == LATEST | {"N0": 70}
        assert "aircraft rows: 1\n" in reader.runs(f"{sys.executable} client.py")
        assert reader.rows("latest.py", "aircraft", "delay") == LATEST | {"N0": 70, "N1": 71}
        told = reader.runs(f"{sys.executable} more.py")
        sums = [pair for each in read_all(reader.node.bootstrap, "sums").values() for pair in each]
    assert "short 22 20 2\nsums 22 0 None\nheard 22 0 None\n" in told
    assert "copied is a stream, and would go on unseen on the server" in told
    assert reader.rows("more.py", "short", "delay") == LATEST
    assert (reader.folder / "heard").read_text() == "0 22\n"
    counts = {b"N%d" % n: b'{"tail":"N%d","flights":%d}' % (n, 4 + (n < 2)) for n in range(5)}
    assert sorted((record.key, record.value) for record in sums) == sorted(counts.items())


@with_connect
def test_a_declarative_pipeline_of_sparks_reads_and_writes_topics(reader: Reader) -> None:
    reader.node.create("heard")
    reader.write("spark-pipeline.yml", "transformations/flights.py")
    project = reader.folder / "spark-pipeline.yml"
    project.write_text(project.read_text().replace("/data/flights-storage", f"{reader.folder}/storage"))
    for _ in range(2):
        reader.runs(reader.command("spark-pipelines"))
        records = read_all(reader.node.bootstrap, "heard").values()
        found = Counter((record.key, record.value) for each in records for record in each)
        assert found == Counter((key, value) for key, value, _, _ in FLIGHTS), "each once"
    assert (reader.folder / "spark-warehouse").is_dir()
