"""A driver of its own that writes the numbers from 0 on, as a query or as one job: python -m sink_driver --help"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from fault_points import FaultPoints
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from sink_lab import SOURCE, register

from duramen.pipelines.jvm.session import session

ROWS = 40
"""In a batch of the query."""
TOPIC = "numbers"
SINK_ID, BATCH_ID = "speculating", "0"
"""Of the job."""


def _written(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("cast(value as string) key", "cast(value as string) value")


def stream(spark: SparkSession, bootstrap: str, folder: Path, checkpoint: str) -> None:
    """Until the file `stop` is there; `progress` says which batch was the last."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    options = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, "checkpointLocation": checkpoint}
    writer = _written(numbers).writeStream.format(SOURCE).options(**options)
    query = writer.trigger(processingTime="100 milliseconds").start()
    while query.isActive and not (folder / "stop").exists():
        if query.lastProgress:
            (folder / "progress.new").write_text(str(query.lastProgress["batchId"]))
            (folder / "progress.new").rename(folder / "progress")
        time.sleep(0.02)
    reasons = _reasons(query)
    query.stop()
    if reasons:
        raise SystemExit(f"the query failed: {reasons}")


def _reasons(query: StreamingQuery) -> str:
    """The failure with all its causes, of which PySpark shows the outermost; empty without."""
    failure = query._jsq.exception()
    reasons, cause = [], failure.get() if failure.isDefined() else None
    while cause is not None:
        reasons.append(str(cause.toString()))
        cause = cause.getCause()
    return "\ncaused by: ".join(reasons)


def job(spark: SparkSession, bootstrap: str, tasks: int) -> None:
    """One batch of so many tasks, of ROWS each."""
    numbers = spark.range(0, tasks * ROWS, 1, tasks).selectExpr("id value")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, "sinkId": SINK_ID, "batchId": BATCH_ID}
    _written(numbers).write.format(SOURCE).mode("append").options(**options).save()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("bootstrap")
    options.add_argument("folder", type=Path, help="of its points, and of what it says")
    options.add_argument("--master", default="local[2,4]")
    options.add_argument("--conf", action="append", default=[], help="NAME=VALUE for Spark")
    options.add_argument("--checkpoint", help="of the query")
    options.add_argument("--tasks", type=int, help="of the job")
    given = options.parse_args()
    conf = dict(each.split("=", 1) for each in given.conf)
    spark = session(
        "sink-driver", given.master, {"spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1", **conf}
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark, FaultPoints(given.folder))
    if given.tasks:
        job(spark, given.bootstrap, given.tasks)
    else:
        stream(spark, given.bootstrap, given.folder, given.checkpoint)
    spark.stop()


if __name__ == "__main__":
    main()
