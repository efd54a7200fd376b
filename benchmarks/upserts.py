"""50,000 upserts into a table of a million rows, through Spark: from records in a topic to a version on the disk.

    python -m benchmarks.upserts [--rounds 7] [--stores delta,parquet] [--small]     # about four minutes

A pipeline as people write them: a topic of four partitions with JSON values, a table by key of three columns beside the
trace of its rows. First it takes a million records in one batch; then each round adds 50,000 records of random keys
(a tenth of them new, some more than once) and waits for the one micro-batch that takes them. The figure is that batch's
`triggerExecution`: planning, reading, parsing, the merge with its sync, and Spark's own logs. What of it was spent
in the store is told beside. The table is compared with a fold in plain Python at the end.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession

from benchmarks import machine
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.report import PARTIAL_RESULTS, RESULTS
from benchmarks.topics import create_topic
from duramen import pipelines
from duramen.client import Cluster
from duramen.model import TopicPartition
from duramen.pipelines.jvm.session import session
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.runner import Runner
from duramen.wire.batch import NewRecord, build_batch

PARTITIONS = 4
PER_BATCH = 2000
WAIT_SECONDS = 600.0
ROUNDS, ROWS, STORES = 7, 1_000_000, "delta,parquet"
"""A run of less is not kept among the results."""

Rows = dict[str, tuple[str, int]]


class Feed:
    """Fills the topic, and knows what the table has to hold."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._cluster = Cluster(bootstrap)
        self._topic = topic
        self._chance = random.Random(topic)
        self.rows: Rows = {}
        create_topic(self._cluster, topic, PARTITIONS)

    def add(self, keys: list[int]) -> None:
        """A record for each key, in its partition, in order."""
        waiting: list[list[NewRecord]] = [[] for _ in range(PARTITIONS)]
        now = time.time_ns() // 1_000_000
        for key in keys:
            name, owner, balance = (
                f"{key:08}",
                f"owner-{self._chance.getrandbits(24):06x}",
                self._chance.getrandbits(30),
            )
            self.rows[name] = (owner, balance)
            value = b'{"owner":"%s","balance":%d}' % (owner.encode(), balance)
            waiting[key % PARTITIONS].append((name.encode(), value, (), now))
        for partition, records in enumerate(waiting):
            for first in range(0, len(records), PER_BATCH):
                batch = build_batch(records[first : first + PER_BATCH])
                self._cluster.produce(TopicPartition(self._topic, partition), batch)

    def some_keys(self, count: int, rows: int) -> list[int]:
        """Random keys of a table of so many rows, and a tenth beyond."""
        return [self._chance.randrange(rows + rows // 10) for _ in range(count)]

    def close(self) -> None:
        self._cluster.close()


class Script:
    """What happens when a batch has ended: the next records are added, until all rounds are over."""

    def __init__(self, feed: Feed, rows: int, upserts: int, rounds: int) -> None:
        self.feed, self.rows, self.upserts = feed, rows, upserts
        self.left = rounds
        self.done: list[BatchProgress] = []

    def tell(self, progress: BatchProgress) -> None:
        expected = self.rows if not self.done else self.upserts
        assert progress.rows == expected, f"a batch took {progress.rows} records, not {expected}"
        self.done.append(progress)
        if self.left:
            self.left -= 1
            self.feed.add(self.feed.some_keys(self.upserts, self.rows))

    def over(self, rounds: int) -> bool:
        return len(self.done) > rounds


def declared(folder: Path, bootstrap: str, store: str, upserts: int) -> pipelines.Pipeline:
    """The pipeline. A batch waits until the round's records are all there."""
    pipeline = pipelines.Pipeline("accounts", bootstrap=bootstrap, folder=folder)
    waits = {"minOffsetsPerTrigger": str(upserts), "maxTriggerDelay": "10m"}
    source = pipelines.Topic(f"accounts-{store}", key="account", schema="owner string, balance bigint", options=waits)

    @pipeline.table(source, keys=["account"], store=store)
    def accounts(records: DataFrame) -> DataFrame:
        return records.select("account", "owner", "balance", "_cause")

    return pipeline


def merging(runner: Runner) -> list[float]:
    """Seconds in the store of every batch from now on, in a list that grows."""
    spent: list[float] = []
    began = [0.0]

    def mark(point: str) -> None:
        if point == "batch computed":
            began[0] = time.perf_counter()
        elif point == "batch applied":
            spent.append(time.perf_counter() - began[0])

    runner.mark = mark
    return spent


def measure(
    spark: SparkSession, bootstrap: str, folder: Path, store: str, options: argparse.Namespace
) -> dict[str, Any]:
    """All rounds of one store; the first does not count."""
    pipeline = declared(folder / store, bootstrap, store, options.upserts)
    feed = Feed(bootstrap, f"accounts-{store}")
    feed.add(list(range(options.rows)))
    script = Script(feed, options.rows, options.upserts, options.rounds + 1)
    runner = Runner(pipeline, spark, DuramenConnector(bootstrap))
    spent = merging(runner)
    patience = time.monotonic() + WAIT_SECONDS

    def over() -> bool:
        assert time.monotonic() < patience, "no end"
        return script.over(options.rounds + 1)

    runner.run(["accounts"], script.tell, print, trigger="0 seconds", until=over)
    feed.close()
    found = pipelines.open_table(pipeline, "accounts").rows()
    table = zip(*(found[name].to_pylist() for name in ("account", "owner", "balance")), strict=True)
    assert {key: (owner, balance) for key, owner, balance in table} == feed.rows, "the table is not the fold of the log"
    batches = [progress.latency_ms / 1000 for progress in script.done]
    return {
        "load_s": batches[0],
        "batch_s": statistics.median(batches[2:]),
        "batches_s": batches[2:],
        "store_s": round(statistics.median(spent[2:]), 3),
        "rows": len(feed.rows),
    }


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--upserts", type=int, default=50_000)
    parser.add_argument("--stores", default=STORES)
    parser.add_argument("--small", action="store_true", help="a tenth of the rows, two rounds")
    options = parser.parse_args()
    if options.small:
        options.rows, options.upserts, options.rounds = options.rows // 10, options.upserts // 10, 2
    facts: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds"), **machine.commit()}
    facts["settings"] = {name: getattr(options, name) for name in ("rounds", "rows", "upserts")}
    with tempfile.TemporaryDirectory(prefix="duramen-upserts-") as name:
        folder = Path(name)
        facts |= {"versions": machine.versions(), "machine": machine.describe(folder)}
        broker = DuramenBroker(folder / "node")
        broker.prepare()
        broker.start()
        spark = session("upserts", "local[2]", {"spark.driver.memory": "2g"})
        try:
            for store in options.stores.split(","):
                found = facts[store] = measure(spark, broker.bootstrap, folder, store, options)
                print(
                    f"{store:8} {options.upserts:,} upserts into {found['rows']:,} rows: {found['batch_s']:.2f} s a "
                    f"batch (median of {options.rounds}), of which {found['store_s']:.2f} s in the store; "
                    f"the first {options.rows:,} took {found['load_s']:.1f} s",
                    flush=True,
                )
        finally:
            spark.stop()
            broker.stop()
        facts["load_average_after"] = machine.describe(folder)["load_average"]
    complete = all(vars(options)[name] == parser.get_default(name) for name in vars(options))
    place = RESULTS if complete else PARTIAL_RESULTS
    place.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M")
    path = place / f"{stamp}-{facts['commit'][:9]}-upserts.json"
    path.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"stored as {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
