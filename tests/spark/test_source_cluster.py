"""The source on executors of their own processes: nothing but plain values goes there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.log_node import log_node

PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "1g").config("spark.ui.enabled", "false").getOrCreate()
)
frame = (
    spark.read.format("duramen").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", "far")
    .option("minPartitions", "4").load()
)
print("ROWS", frame.count(), frame.selectExpr("count(distinct partition, offset)").first()[0])
stream = (
    spark.readStream.format("duramen").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", "far")
    .option("startingOffsets", "earliest").load()
)
query = (
    stream.writeStream.format("parquet").option("path", sys.argv[2] + "/out")
    .option("checkpointLocation", sys.argv[2] + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
print("STREAMED", spark.read.parquet(sys.argv[2] + "/out").count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_executors_in_processes_of_their_own_read_the_same(tmp_path: Path) -> None:
    """A driver of its own, because one process has one session."""
    with log_node(tmp_path, log_retention_ms="-1", offsets_topic_num_partitions="1") as node:
        node.create("far", 2)
        for number in range(4):
            node.append("far", number % 2, [(None, b"v", (), 1)] * 25)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, node.bootstrap, str(tmp_path)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=390,
            check=False,
        )
    assert "ROWS 100 100" in ran.stdout, ran.stderr[-3000:]
    assert "STREAMED 100" in ran.stdout, ran.stderr[-3000:]
