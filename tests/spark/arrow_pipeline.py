"""The pipeline that is killed: a topic, a stream into another, a table that follows it; and the driver that runs it.

    PYTHONPATH=.:tests/spark python -m arrow_pipeline FOLDER BOOTSTRAP MASTER ROWS

Input record `o` of partition `p` has the value `p:o`. The stream hands it on, the table is the history of the second
topic, so every row of either is traced to the record it came from.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fault_points
import pyarrow as pa
from clusters import BRIEF
from fault_points import FaultPoints
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from sink_lab import SOURCE, register

from duramen.pipelines import Pipeline, Topic
from duramen.pipelines.jvm.session import session
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.runner import Runner

NUMBERS, COPIED = "numbers", "copied"
"""The topics; the steps are called `copy` and `kept`."""
TABLE_TASK = "table-task"
"""Task of the table's batch: its rows are read from the topic, the driver has none of them."""
BATCH_PLANNED, BATCH_COMPUTED, BATCH_APPLIED = "batch planned", "batch computed", "batch applied"
"""Marks of the runner, on the driver: see `Runner`."""
TRIGGER = "200 milliseconds"

cloudpickle.register_pickle_by_value(fault_points)


def declared(folder: Path, bootstrap: str, rows: int, points: FaultPoints) -> Pipeline:
    """rows: the most in a batch; 0: no limit."""
    pipeline = Pipeline("arrows", bootstrap=bootstrap, folder=folder / "pipeline")
    limit = {"maxOffsetsPerTrigger": str(rows)} if rows else {}

    def at_point(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            points.reach(TABLE_TASK)
            yield batch

    @pipeline.stream(Topic(NUMBERS, options=limit), to=COPIED)
    def copy(numbers: DataFrame) -> DataFrame:
        return numbers

    @pipeline.history(Topic(COPIED, options=limit))
    def kept(copied: DataFrame) -> DataFrame:
        number = copied.selectExpr("cast(value as string) number", "_cause")
        return number.mapInArrow(at_point, number.schema)

    return pipeline


class PointsConnector(DuramenConnector):
    """Reads and writes through the data source with faults."""

    def read(
        self, spark: SparkSession, topic: Topic, start: Offsets, until: Offsets | None, topic_id: str = ""
    ) -> DataFrame:
        assert not start.of(topic.name), "nobody swaps these topics"
        assert until is None, "nobody swaps these topics"
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic.name, "startingOffsets": "earliest"}
        return spark.readStream.format(SOURCE).options(**options, **topic.options).load()

    def write(self, records: DataFrame, topic: str | None, sink: str) -> DataStreamWriter:
        return records.writeStream.format(SOURCE).options(**self._sink(topic, sink))

    def write_batch(self, records: DataFrame, topic: str | None, sink: str, batch: int) -> None:
        writer = records.write.format(SOURCE).options(**self._sink(topic, sink), batchId=str(batch))
        writer.mode("append").save()


def drive(folder: Path, master: str, declare: Callable[[FaultPoints], Pipeline], *, endless: bool) -> None:
    """Run all steps until the file `stop` is there, or one after the other until everything is done."""
    spark = session("arrows", master, {**BRIEF, "spark.sql.streaming.minBatchesToRetain": "10000"})
    spark.sparkContext.setLogLevel("OFF")
    points = FaultPoints(folder / "points")
    register(spark, points)
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    (folder / "driver.new").write_text(f"{java}")
    (folder / "driver.new").rename(folder / "driver")
    threading.Thread(target=_die_with, args=[java], daemon=True).start()
    pipeline = declare(points)
    runner = Runner(pipeline, spark, PointsConnector(pipeline.bootstrap), points.reach)
    tell = lambda progress: print(progress.line(), flush=True)  # noqa: E731
    say = lambda said: print(said, flush=True)  # noqa: E731
    steps = list(pipeline.steps)
    if endless:
        runner.run(steps, tell, say, trigger=TRIGGER, until=(folder / "stop").exists)
    else:
        for step in steps:
            runner.run([step], tell, say, available_now=True)
    spark.stop()


def _die_with(java: int) -> None:
    """A driver is two processes: when Java's half is killed, ours has nothing more to do."""
    stat = Path(f"/proc/{java}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        threading.Event().wait(0.05)
    os._exit(9)


if __name__ == "__main__":
    folder, bootstrap, master, rows = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    drive(folder, master, lambda points: declared(folder, bootstrap, rows, points), endless=rows > 0)
