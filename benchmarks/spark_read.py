"""Reading a topic into Spark beside Spark reading the same rows from Parquet; and the decoder alone, on one core.

    python -m benchmarks.spark_read [--megabytes 400] [--rounds 5] [--small]

A fresh node, four partitions, lz4 batches of about 64 KiB, records of 100 B and of 1 KB of JSON-like text with 8-byte
keys. Every case is one `noop` write on `local[2]`. Cases take turns within a round, so that what disturbs the machine
disturbs all; the figure is the median of the rounds and its ratio to Parquet (snappy) of the same columns. The decoder
is measured by its processor time, over bytes in memory. Micro-batches of one row: beside those of Spark's file source.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.duramen_broker import DuramenBroker
from benchmarks.topics import KEEPS_OLD_RECORDS, create_topic
from duramen.client import Cluster
from duramen.model import TopicPartition
from duramen.spark.codec.decode import Decoder, RecordFilter
from duramen.wire.batch import NewRecord, build_batch, stamp

PARTITIONS = 4
BATCH_BYTES = 64 << 10
WARM_BATCHES = 10
"""Of each source, before those that count: what comes first in a JVM is slow, whoever it is."""
DISTINCT = 16
"""Batches that are really different; the log repeats them."""
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
ALL = "key,value,topic,partition,offset,timestamp,timestampType,headers"
THREE = "key,value,offset"


def new_records(size: int, count: int, chance: random.Random) -> list[NewRecord]:
    """Records of about `size` bytes that compress about as JSON does."""
    words = [b"%06x" % chance.getrandbits(24) for _ in range(500)]
    made: list[NewRecord] = []
    for number in range(count):
        body = b'{"id":%d,"words":"' % chance.randrange(10**9)
        while len(body) < size - 12:
            body += chance.choice(words) + b" "
        made.append((b"%08d" % chance.randrange(10**8), body[: size - 10] + b'"}', (), 1_760_000_000_000 + number))
    return made


def batches_of(size: int) -> list[bytearray]:
    """Some lz4 batches of about BATCH_BYTES before compression."""
    chance = random.Random(size)
    return [build_batch(new_records(size, BATCH_BYTES // size, chance), compression=3) for _ in range(DISTINCT)]


def fill(bootstrap: str, topic: str, size: int, megabytes: int) -> int:
    """Make the topic; how many records it got."""
    batches = batches_of(size)
    per_partition = (megabytes << 20) // BATCH_BYTES // PARTITIONS
    with Cluster(bootstrap) as cluster:
        create_topic(cluster, topic, PARTITIONS, KEEPS_OLD_RECORDS)
        for number in range(per_partition):
            for partition in range(PARTITIONS):
                cluster.produce(TopicPartition(topic, partition), batches[(number + partition) % DISTINCT])
    return per_partition * PARTITIONS * (BATCH_BYTES // size)


def decoder_rate(size: int, megabytes: int, rounds: int) -> float:
    """Records per second of processor time, all columns, lz4."""
    log, offset = bytearray(), 0
    batches = batches_of(size)
    while offset * size < megabytes << 20:
        batch = bytearray(batches[offset % DISTINCT])
        stamp(batch, offset, 0)
        log += batch
        offset += BATCH_BYTES // size
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        decoder = Decoder("flights", 3, RecordFilter(0, offset), SCHEMA)
        found = sum(batch.num_rows for batch in decoder.decode(memoryview(log)))
        best = min(best, time.process_time() - began)
        assert found == offset
    return offset / best


def source(spark: SparkSession, bootstrap: str, topic: str, columns: str, read_from: str) -> DataFrame:
    """The topic as a DataFrame of these columns."""
    reader = spark.read.format("duramen").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader = reader.option("includeHeaders", "true").option("columns", columns).option("readFrom", read_from)
    return reader.load()


def seconds(frame: Callable[[], DataFrame]) -> float:
    """Wall time of planning and reading everything."""
    began = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def compare(
    spark: SparkSession, bootstrap: str, size: int, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Medians of all cases for one size of record."""
    topic = f"bytes-{size}"
    rows = fill(bootstrap, topic, size, options.megabytes)
    path = str(folder / topic)
    source(spark, bootstrap, topic, ALL, "auto").write.parquet(path)
    assert spark.read.parquet(path).count() == rows
    cases: dict[str, Callable[[], DataFrame]] = {
        "parquet 8": lambda: spark.read.parquet(path),
        "broker 8": lambda: source(spark, bootstrap, topic, ALL, "broker"),
        "auto 8": lambda: source(spark, bootstrap, topic, ALL, "auto"),
        "parquet 3": lambda: spark.read.parquet(path).select(*THREE.split(",")),
        "broker 3": lambda: source(spark, bootstrap, topic, THREE, "broker"),
        "auto 3": lambda: source(spark, bootstrap, topic, THREE, "auto"),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.rounds + 1):
        for name, frame in cases.items():
            times[name].append(seconds(frame))
    medians = {name: statistics.median(each[1:]) for name, each in times.items()}  # the first round warms up
    found = {}
    for name, median in medians.items():
        ratio = medians[f"parquet {name[-1]}"] / median
        found[name] = {"million_rows_per_s": round(rows / median / 1e6, 2), "of_parquet": round(ratio, 2)}
        print(f"{size:5} B  {name:10} {rows / median / 1e6:6.2f} M rows/s  {ratio:5.2f} of Parquet", flush=True)
    return found


def empty_batches(spark: SparkSession, bootstrap: str, folder: Path, rounds: int) -> dict[str, float]:
    """Milliseconds of one micro-batch with a single new row, beside the file source's; the two take turns."""
    (folder / "in").mkdir()
    with Cluster(bootstrap) as cluster:
        create_topic(cluster, "trickle", 1, KEEPS_OLD_RECORDS)

        def one_record(number: int) -> None:
            cluster.produce(TopicPartition("trickle", 0), build_batch([(None, b"%d" % number, (), 1)]))

        def one_file(number: int) -> None:
            (folder / "new").write_text(str(number))
            (folder / "new").rename(folder / "in" / f"{number}.txt")

        log = spark.readStream.format("duramen").option("kafka.bootstrap.servers", bootstrap)
        log = log.option("subscribe", "trickle").option("startingOffsets", "earliest").load()
        files = spark.readStream.text(str(folder / "in"))
        sources = {"duramen": (log, one_record), "files": (files, one_file)}
        queries = {
            name: frame.writeStream.format("noop").option("checkpointLocation", str(folder / name)).start()
            for name, (frame, _) in sources.items()
        }
        found: dict[str, list[int]] = {name: [] for name in sources}
        for number in range(rounds + WARM_BATCHES):
            for name, (_, feed) in sources.items():
                feed(number)
                queries[name].processAllAvailable()
                if number >= WARM_BATCHES:
                    done = [each for each in queries[name].recentProgress if each["numInputRows"]]
                    found[name].append(done[-1]["batchDuration"])
        for query in queries.values():
            query.stop()
    medians = {name: statistics.median(each) for name, each in found.items()}
    ratio = statistics.median(a / b for a, b in zip(found["duramen"], found["files"], strict=True))
    print(
        f"one row a micro-batch: {medians['duramen']} ms, file source {medians['files']} ms, ratio {ratio:.2f}",
        flush=True,
    )
    return {**medians, "ratio": round(ratio, 2)}


def main() -> None:
    """Measure, print, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400, help="of records, before compression, of each size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a look in two minutes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.small:
        options.megabytes, options.rounds = 60, 2
    found: dict[str, Any] = {"decoder": {}}
    for size in (100, 1000):
        rate = decoder_rate(size, min(options.megabytes, 200), options.rounds + 1)
        found["decoder"][size] = round(rate / 1e6, 2)
        print(f"{size:5} B  decoder    {rate / 1e6:6.2f} M records/s of one core, lz4", flush=True)
    with tempfile.TemporaryDirectory(prefix="duramen-spark-read-") as name:
        folder = Path(name)
        broker = DuramenBroker(folder / "node")
        broker.prepare()
        broker.start()
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.memory", "2g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            for size in (100, 1000):
                found[f"{size} B"] = compare(spark, broker.bootstrap, size, folder, options)
            found["micro_batch_ms"] = empty_batches(spark, broker.bootstrap, folder, options.rounds * 4)
        finally:
            spark.stop()
            broker.stop()
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
