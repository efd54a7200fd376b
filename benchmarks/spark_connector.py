"""Spark with Duramen beside Spark's own connector with Apache Kafka: the same records, cores and session, in turn.

    python -m benchmarks.spark_connector [--rounds 5] [--megabytes 400] [--small] [--only write]

Reading: both brokers hold the same lz4 batches in four partitions; all eight columns go to a `noop` sink on `local[2]`.
Writing: the same rows of a Parquet file go into a new topic of four partitions. Durability is equal in "synced":
Duramen as it ships, Kafka's topics with flush.messages=1. The connector is at-least-once. Each figure is the median
of the rounds, each ratio that of the rounds' own; the first round warms up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks import machine, spark_read, spark_sink
from benchmarks.broker_process import BrokerProcess
from benchmarks.connector_jars import connector_jars, connector_version
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.kafka_peer import KafkaPeer, PeerUnavailableError, java_version, kafka_version
from benchmarks.report import RECORDED_RESULTS, RESULTS
from benchmarks.topics import create_topic
from duramen.client import CONTROLLER, LATEST, Cluster
from duramen.model import TopicPartition
from duramen.wire.messages import API

PARTITIONS = spark_read.PARTITIONS
DELETE_TOPICS = 20
SYNCED = {"flush.messages": "1"}
LARGE_BATCHES = {"kafka.batch.size": "1000000", "kafka.linger.ms": "50"}
"""What our sink does by itself."""
READ = {"duramen": "format(duramen) from Duramen", "kafka": "connector from Kafka", "wire": "connector from Duramen"}
AIMS = {"read": 1.0, "write": 0.5}

Case = Callable[[], None]


class Bench:
    """Two brokers and the session that talks to both."""

    def __init__(self, spark: SparkSession, ours: BrokerProcess, theirs: BrokerProcess, rounds: int) -> None:
        self.spark = spark
        self.ours = ours.bootstrap
        self.theirs = theirs.bootstrap
        self.rounds = rounds
        self._topics = 0

    def reading(self, size: int, megabytes: int) -> dict[str, Any]:
        """Rows per second of each way to read."""
        topic = f"bytes-{size}"
        rows = spark_read.fill(self.ours, topic, size, megabytes)
        assert spark_read.fill(self.theirs, topic, size, megabytes) == rows

        def connector(bootstrap: str) -> DataFrame:
            reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
            return reader.option("subscribe", topic).option("includeHeaders", "true").load()

        frames: dict[str, Callable[[], DataFrame]] = {
            READ["duramen"]: lambda: spark_read.source(self.spark, self.ours, topic, spark_read.ALL, "auto"),
            READ["kafka"]: lambda: connector(self.theirs),
            READ["wire"]: lambda: connector(self.ours),
        }
        for name, frame in frames.items():
            counted = frame().count()
            assert counted == rows, f"{name}: {counted} of {rows} rows"
        cases = {name: self._noop(frame) for name, frame in frames.items()}
        return {"rows": rows, **self._compare(cases, rows, READ["kafka"])}

    @staticmethod
    def _noop(frame: Callable[[], DataFrame]) -> Case:
        return lambda: frame().write.format("noop").mode("overwrite").save()

    def writing(self, folder: Path, size: str, scale: int) -> dict[str, Any]:
        """Rows per second of each way to write."""
        value_bytes, count = spark_sink.SIZES[size]
        table = spark_sink.table(count // scale, value_bytes)
        path = folder / f"{value_bytes}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=max(1, len(table) // 8))
        rows = self.spark.read.parquet(str(path))

        def into(format: str, bootstrap: str, config: dict[str, str], **options: str) -> Case:
            def write() -> None:
                with self._topic(bootstrap, config, len(table)) as topic:
                    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}
                    self._clock(lambda: rows.write.format(format).mode("append").options(**given).save())

            return write

        synced = "connector to Kafka, synced"
        cases = {
            "format(duramen) to Duramen, exactly-once": into("duramen", self.ours, {}),
            "format(duramen) to Duramen, at-least-once": into("duramen", self.ours, {}, delivery="at-least-once"),
            synced: into("kafka", self.theirs, SYNCED),
            "connector to Kafka, synced, large batches": into("kafka", self.theirs, SYNCED, **LARGE_BATCHES),
            "connector to Kafka, page cache": into("kafka", self.theirs, {}),
        }
        return {"rows": len(table), **self._compare(cases, len(table), synced)}

    @contextlib.contextmanager
    def _topic(self, bootstrap: str, config: dict[str, str], expected: int) -> Iterator[str]:
        """A new topic, which holds so many records afterwards and then is deleted."""
        self._topics += 1
        topic = f"out-{self._topics}"
        delete = API[DELETE_TOPICS].request
        with Cluster(bootstrap) as cluster:
            create_topic(cluster, topic, PARTITIONS, config)
            yield topic
            ends = cluster.list_offsets({TopicPartition(topic, number): LATEST for number in range(PARTITIONS)})
            written = sum(end.offset for end in ends.values())
            assert written >= expected, f"{written} of {expected} records are there"
            gone = delete.new(topics=[delete.DeleteTopicState(name=topic)], topic_names=[topic], timeout_ms=60_000)
            cluster.call(CONTROLLER, DELETE_TOPICS, gone, resend=False)

    def _clock(self, what: Case) -> None:
        began = time.perf_counter()
        what()
        self._seconds = time.perf_counter() - began

    def _compare(self, cases: dict[str, Case], rows: int, against: str) -> dict[str, Any]:
        """Medians of the rounds; the cases take turns within a round."""
        rates: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(self.rounds + 1):
            for name, case in cases.items():
                self._seconds = 0.0
                began = time.perf_counter()
                case()
                seconds = self._seconds or time.perf_counter() - began
                if number:
                    rates[name].append(rows / seconds)
        found = {}
        for name, each in rates.items():
            ratio = statistics.median(a / b for a, b in zip(each, rates[against], strict=True))
            median = statistics.median(each)
            found[name] = {
                "rows_per_s": round(median),
                "ratio": round(ratio, 3),
                "rounds": [round(one) for one in each],
            }
            print(f"  {name:45} {median / 1e6:7.3f} M rows/s  {ratio:5.2f} of the {against}", flush=True)
        return found


def measure(options: argparse.Namespace, folder: Path, jars: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    scale = 10 if options.small else 2
    with contextlib.ExitStack() as stack:
        brokers: list[BrokerProcess] = [DuramenBroker(folder / "duramen"), KafkaPeer(folder / "kafka")]
        for broker in brokers:
            broker.prepare()
            broker.start()
            stack.callback(broker.stop)
        spark = spark_sink.session(jars)
        stack.callback(spark.stop)
        bench = Bench(spark, *brokers, options.rounds)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "read 100 B": lambda: bench.reading(100, options.megabytes),
            "read 1 KB": lambda: bench.reading(1000, options.megabytes),
            "write 100 B": lambda: bench.writing(folder, "100 B", scale),
            "write 1 KB": lambda: bench.writing(folder, "1 KB", scale),
        }
        for name, part in parts.items():
            if options.only in name:
                print(name, flush=True)
                found[name] = part()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=400, help="what is read of each size of record")
    parser.add_argument("--small", action="store_true", help="a tenth of it, one round; nothing is stored")
    parser.add_argument(
        "--only", default="", help="read, write, or one of the four parts; only a run of everything is stored"
    )
    options = parser.parse_args()
    if options.small:
        options.rounds, options.megabytes = 1, options.megabytes // 10
    try:
        jars = connector_jars()
        facts: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds"), **machine.commit()}
        facts["versions"] = machine.versions() | {
            "kafka": kafka_version(),
            "connector": connector_version(),
            "java": java_version(),
        }
    except PeerUnavailableError as why:
        print(f"cannot compare: {why}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="duramen-spark-connector-") as place:
        facts |= {"machine": machine.describe(Path(place)), "rounds": options.rounds, "aims": AIMS}
        facts |= measure(options, Path(place), jars)
    facts["load_average_after"] = machine.describe(RECORDED_RESULTS)["load_average"]
    if all(vars(options)[name] == parser.get_default(name) for name in vars(options)):
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M")
        path = RESULTS / f"{stamp}-{facts['commit'][:9]}-spark-connector.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=2) + "\n")
        print(f"stored in {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
