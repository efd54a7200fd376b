"""The Spark sink beside Spark's own Parquet writer: the same rows, in turn, ratios of each round.

    python -m benchmarks.spark_sink --rounds 5        # ten minutes; --small tries it out and stores nothing

Input is a Parquet file of rows with an 8-byte key and a value of random bytes, read anew for every write. `noop` is
what reading alone costs. The node runs with its defaults: all is synced before it is committed. Encoding alone is
measured in this process, on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks import machine
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.report import RESULTS
from benchmarks.topics import create_topic
from duramen.client import Cluster
from duramen.spark.codec.encode.arrow_buffers import binary_column
from duramen.spark.codec.encode.records import Rows, encode
from duramen.spark.codec.partitioner import StickyPartitions, assign
from duramen.wire.compression import NAMES

KEY_BYTES = 8
PARTITIONS = 4
SIZES = {"100 B": (92, 2_000_000), "1 KB": (1016, 400_000)}


def table(rows: int, value_bytes: int) -> pa.Table:
    """Random keys and values."""
    random = np.random.default_rng(rows)

    def column(size: int) -> pa.Array:
        offsets = np.arange(rows + 1, dtype=np.int64) * size
        return binary_column(offsets, random.integers(0, 256, rows * size, dtype=np.uint8))

    return pa.table({"key": column(KEY_BYTES), "value": column(value_bytes)})


def encode_rate(rows: pa.Table, codec: int) -> float:
    """Records a second of one core: partitions and batches of windows of 100,000 rows, best of three."""
    best = float("inf")
    for _ in range(3):
        sticky = StickyPartitions(PARTITIONS, 0)
        began = time.process_time()
        for piece in rows.to_batches(max_chunksize=100_000):
            plain = Rows(piece.column("key"), piece.column("value"), None, np.zeros(len(piece), np.int64))
            sizes = plain.sizes()
            chosen = assign(plain.key, sizes, PARTITIONS, sticky)
            for _batch in encode(plain, chosen, compression=codec, batch_bytes=1_000_000, sizes=sizes):
                pass
        best = min(best, time.process_time() - began)
    return len(rows) / best


def session(jars: Sequence[str] = ()) -> SparkSession:
    """On both cores and on loopback, with these jars."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.jars", ",".join(jars))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Writers:
    """The ways of writing that are compared, each as a call that writes everything once."""

    def __init__(self, spark: SparkSession, source: str, bootstrap: str, folder: Path) -> None:
        self.rows: DataFrame = spark.read.parquet(source)
        self.bootstrap = bootstrap
        self.folder = folder
        self._written = 0

    def noop(self) -> None:
        self.rows.write.format("noop").mode("overwrite").save()

    def parquet(self) -> None:
        self.rows.write.mode("overwrite").parquet(str(self.folder / "out"))

    def log(self, **options: str) -> Callable[[], None]:
        def write() -> None:
            self._written += 1
            topic = f"out-{self._written}"
            with Cluster(self.bootstrap) as cluster:
                create_topic(cluster, topic, PARTITIONS)
            given = {"kafka.bootstrap.servers": self.bootstrap, "topic": topic, **options}
            self.rows.write.format("duramen").mode("append").options(**given).save()

        return write

    def all(self) -> dict[str, Callable[[], None]]:
        return {
            "read only (noop)": self.noop,
            "Parquet, snappy": self.parquet,
            "exactly-once": self.log(),
            "exactly-once, lz4": self.log(compression="lz4"),
            "at-least-once": self.log(delivery="at-least-once"),
        }


def measure(spark: SparkSession, folder: Path, size: str, scale: int, rounds: int) -> dict[str, Any]:
    """Rows a second of each way, by round; every round has its own node and directory."""
    value_bytes, count = SIZES[size]
    rows = table(count // scale, value_bytes)
    source = folder / "rows.parquet"
    pq.write_table(rows, source, compression="none", use_dictionary=False, row_group_size=len(rows) // 8)
    rates: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            broker = DuramenBroker(Path(place) / "node")
            broker.prepare()
            broker.start()
            try:
                for name, write in Writers(spark, str(source), broker.bootstrap, Path(place)).all().items():
                    began = time.perf_counter()
                    write()
                    if number:  # the first one warms up
                        rates.setdefault(name, []).append(len(rows) / (time.perf_counter() - began))
            finally:
                broker.stop()
    encoding = {name: round(encode_rate(rows, codec)) for codec, name in enumerate(NAMES)}
    parquet = rates["Parquet, snappy"]
    ratios = {
        name: round(statistics.median(a / b for a, b in zip(found, parquet, strict=True)), 3)
        for name, found in rates.items()
    }
    medians = {name: round(statistics.median(found)) for name, found in rates.items()}
    return {"rows": len(rows), "rows_per_second": medians, "to_parquet": ratios, "encode_per_core": encoding}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--small", action="store_true", help="a tenth of the rows; nothing is stored")
    given = options.parse_args()
    facts: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds"), **machine.commit()}
    with tempfile.TemporaryDirectory() as place:
        facts |= {"versions": machine.versions(), "machine": machine.describe(Path(place)), "rounds": given.rounds}
        spark = session()
        try:
            for size in SIZES:
                facts[size] = measure(spark, Path(place), size, 10 if given.small else 1, given.rounds)
                print(size, json.dumps(facts[size], indent=2), flush=True)
        finally:
            spark.stop()
    if not given.small:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M")
        path = RESULTS / f"{stamp}-{facts['commit'][:9]}-spark-sink.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=2) + "\n")
        print(f"stored in {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
