"""A real streaming query into a real node; driver, tasks and node are killed at every arrow of the staged commit.

    PYTHONPATH=tests:tests/spark python -m sink_driver_kills --kills 40 --seed 1

The query writes the numbers from 0 on. A victim dies at a named point of the sink (sink_points); at the commit
also some milliseconds later, so that it falls between the request, the commit point and the moving of records, and
after the commit, before Spark's own commit log. At the end the topic must hold 0, 1, 2, ... once each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from sink_lab import SOURCE, FaultPoints, create_topic, register, values

from duramen.spark.sink_points import AFTER_COMMIT, AFTER_STAGE, BEFORE_COMMIT, BEFORE_STAGE, CLAIMED, TASK_DONE
from serving import Served
from torture.sink_kills import Keeper

ROWS = 40
TOPIC = "numbers"
PATIENCE_S = 180.0

NODE, DRIVER, TASK = "node", "driver", "task"
PLAN = [
    *((point, victim, 0.0) for point in (BEFORE_STAGE, AFTER_STAGE, TASK_DONE) for victim in (NODE, TASK, DRIVER)),
    *((point, victim, 0.0) for point in (CLAIMED, BEFORE_COMMIT, AFTER_COMMIT) for victim in (NODE, DRIVER)),
    *((BEFORE_COMMIT, victim, delay) for delay in (0.002, 0.005, 0.01, 0.02) for victim in (NODE, DRIVER)),
]
"""One round: where, who, and how many seconds later."""


def drive(folder: Path, bootstrap: str) -> None:
    """The driver: runs the query until the file `stop` is there, and writes down what it is and how far it got."""
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark, FaultPoints(folder / "points"))
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    query = (
        rows.selectExpr("cast(value as string) key", "cast(value as string) value")
        .writeStream.format(SOURCE)
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, "checkpointLocation": str(folder / "query")})
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    (folder / "driver.new").write_text(str(java))
    (folder / "driver.new").rename(folder / "driver")
    while query.isActive and not (folder / "stop").exists():
        if query.lastProgress:
            (folder / "progress").write_text(str(query.lastProgress["batchId"]))
        time.sleep(0.02)
    error = query.exception()
    query.stop()
    if error is not None:
        raise SystemExit(f"the query failed: {error}")


class Drivers:
    """The driver's processes, one life after the other."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.process: subprocess.Popen[bytes] | None = None
        self.java = 0
        self.lives = 0

    def ensure(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.end()
        (self.folder / "driver").unlink(missing_ok=True)
        with (self.folder / "driver.log").open("ab") as log:
            command = [sys.executable, "-m", "sink_driver_kills", "--drive", str(self.folder), self.bootstrap]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.lives += 1
        while not (self.folder / "driver").exists() and self.process.poll() is None:
            time.sleep(0.05)
        if (self.folder / "driver").exists():
            self.java = int((self.folder / "driver").read_text())

    def end(self) -> None:
        """Both halves of a driver, Python's and Java's, are gone afterwards."""
        if self.process is not None:
            if self.java:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.java, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            self.process, self.java = None, 0

    def progress(self) -> int:
        try:
            return int((self.folder / "progress").read_text() or -1)
        except FileNotFoundError:
            return -1


def run(folder: Path, kills: int, seed: int, plan: list[tuple[str, str, float]] = PLAN) -> tuple[Counter[str], str]:
    """(what was killed where, what is wrong: empty when nothing is)"""
    chosen = random.Random(seed)
    (folder / "points").mkdir()
    points = FaultPoints(folder / "points")
    keeper = Keeper(Served(folder))
    drivers = Drivers(folder, keeper.node.bootstrap)
    done: Counter[str] = Counter()
    try:
        create_topic(keeper.node.bootstrap, TOPIC, 3)
        waiting: list[tuple[str, str, float]] = []
        while done.total() < kills:
            waiting = waiting or chosen.sample(plan, len(plan))
            point, victim, delay = waiting.pop()
            drivers.ensure()
            if chosen.random() < 0.5:  # not only the first batch of a driver's life
                before = drivers.progress()
                _until(lambda before=before: drivers.progress() > before)
            node = keeper.node.process
            if node is None:
                waiting.append((point, victim, delay))
                continue
            pid = {NODE: f" {node.pid}", DRIVER: f" {drivers.java}", TASK: ""}[victim]
            points.set(point, f"kill{pid} {delay}" if delay else f"kill{pid}")
            if not _until(lambda point=point: points.fired(point)):
                return done, f"{victim} at {point}: the query does not get there\n{_tail(folder)}"
            points.clear(point)
            done[f"{victim} at {point}" + (" + some ms" if delay else "")] += 1
            if victim == DRIVER:
                time.sleep(delay)
                drivers.end()
            print(f"{done.total():4} {victim} at {point} + {delay * 1000:g} ms, batch {drivers.progress()}", flush=True)
        reached = drivers.progress()
        if not _until(lambda: drivers.ensure() or drivers.progress() >= reached + 2):
            return done, f"the query does not go on\n{_tail(folder)}"
        (folder / "stop").touch()
        assert drivers.process is not None
        drivers.process.wait(PATIENCE_S)
        return done, _judge(values(keeper.node.bootstrap, TOPIC))
    finally:
        drivers.end()
        keeper.close()


def _until(there: Callable[[], object]) -> bool:
    give_up = time.monotonic() + PATIENCE_S
    while not there():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True


def _judge(found: Counter[bytes | None]) -> str:
    expected = Counter(str(number).encode() for number in range(len(found)))
    if found == expected and len(found) % ROWS == 0 and found:
        return ""
    return f"lost {sorted(expected - found)[:5]}, doubled {sorted(found - expected)[:5]} of {found.total()} records"


def _tail(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-3000:]


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        drive(Path(sys.argv[2]), sys.argv[3])
        return
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=40)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # cleans up as Ctrl-C does
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        done, wrong = run(Path(folder), given.kills, given.seed)
    print(f"{done.total()} kill -9: {dict(sorted(done.items()))}")
    print(wrong or "every number is in the topic exactly once")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
