"""Declared pipelines beside what a PySpark programmer writes by hand: the same records, session and cores, in turn.

    python -m benchmarks.pipelines [--rounds 5] [--small] [--only join]     # about ten minutes, on Spark 4.2

Every round adds records to topics of four partitions; then each side takes them in one micro-batch of its own query:

- table: upserts by key; by hand foreachBatch with Delta Lake's MERGE, the latest record of each key first.
- history: every row appended; by hand Delta Lake's streaming sink.
- join: orders with their payments by key; by hand the same join of Spark's into Parquet files.
- trickle: one new row a batch into a function that does nothing, from two topics with a lookup in a table;
  by hand from two folders of files with a join with Parquet files.

By hand the records come through the same `format("duramen")`. The figure is the batch's `triggerExecution`: planning,
reading, parsing, writing and Spark's own logs. A ratio above 1 says that the declared one is quicker, of trickle that
it is slower. What was written is compared in the end.
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
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import machine
from benchmarks.duramen_broker import DuramenBroker
from benchmarks.kafka_peer import ROOT, PeerUnavailableError, collected
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

POM = Path(__file__).resolve().parent / "delta_pom.xml"
PARTITIONS, PER_BATCH = 4, 2000
WARM_ROUNDS = 2
TRICKLE_WARM = 10
ACCOUNT = "owner string, balance bigint"
ORDER, PAYMENT = "customer string, cents int", "order_id string, paid int"
AIMS = {"table": 0.5, "history": 0.7, "join": 0.5, "trickle": 1.3}
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

Batch = Callable[[], float]
"""Takes what is there in one micro-batch; its seconds."""


def delta_jars() -> list[str]:
    """Paths of Delta Lake's jars for `spark.jars`. PeerUnavailableError where Maven cannot deliver them."""
    version = POM.read_text().split("<delta.version>")[1].split("<")[0]
    return sorted(str(jar) for jar in collected(POM, ROOT / ".cache" / "delta-libs", version, 300.0).glob("*.jar"))


class Bench:
    """A node, the session, and the folder of everything."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, options: argparse.Namespace) -> None:
        self.spark, self.bootstrap, self.folder, self.options = spark, bootstrap, folder, options
        self.cluster = Cluster(bootstrap)
        self.chance = random.Random(43)

    # ---- records ---------------------------------------------------------------------------------------------

    def topic(self, name: str, partitions: int = PARTITIONS) -> str:
        create_topic(self.cluster, name, partitions)
        return name

    def add(self, topic: str, records: Iterable[tuple[int, bytes]], partitions: int = PARTITIONS) -> None:
        """Records of (key's number, JSON value), each in its key's partition."""
        waiting: list[list[NewRecord]] = [[] for _ in range(partitions)]
        now = time.time_ns() // 1_000_000
        for key, value in records:
            waiting[key % partitions].append((b"%08d" % key, value, (), now))
        for partition, each in enumerate(waiting):
            for first in range(0, len(each), PER_BATCH):
                self.cluster.produce(TopicPartition(topic, partition), build_batch(each[first : first + PER_BATCH]))

    def accounts(self, keys: Iterable[int]) -> Iterable[tuple[int, bytes]]:
        for key in keys:
            yield (
                key,
                b'{"owner":"owner-%06x","balance":%d}' % (self.chance.getrandbits(24), self.chance.getrandbits(30)),
            )

    # ---- both sides ------------------------------------------------------------------------------------------

    def declared(self, step: str, pipeline: pipelines.Pipeline) -> Batch:
        """One batch of a step, by `run --once`."""

        def batch() -> float:
            found: list[BatchProgress] = []
            runner = Runner(pipeline, self.spark, DuramenConnector(self.bootstrap))
            runner.run([step], found.append, _hush, available_now=True)
            return _only([each.latency_ms for each in found if each.rows])

        return batch

    def by_hand(self, started: Callable[[], StreamingQuery]) -> Batch:
        """One batch of a query with `availableNow`."""

        def batch() -> float:
            query = started()
            query.awaitTermination()
            return _only(
                [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
            )

        return batch

    def stream(self, topic: str, key: str, schema: str) -> DataFrame:
        """The records' columns, as a Topic of a pipeline gives them."""
        reader = self.spark.readStream.format("duramen").option("kafka.bootstrap.servers", self.bootstrap)
        rows = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        parsed = F.from_json(F.col("value").cast("string"), schema).alias("row")
        return rows.select(F.col("key").cast("string").alias(key), "offset", parsed).select(key, "offset", "row.*")

    def compare(self, name: str, feed: Callable[[int], int], ours: Batch, theirs: Batch) -> dict[str, Any]:
        """Rounds of both, who begins taking turns; the first ones warm up."""
        times: dict[str, list[float]] = {"declared": [], "by hand": []}
        for number in range(self.options.rounds + WARM_ROUNDS):
            rows = feed(number)
            sides = [("declared", ours), ("by hand", theirs)]
            for side, batch in sides if number % 2 else reversed(sides):
                times[side].append(batch())
        counted = {side: each[WARM_ROUNDS:] for side, each in times.items()}
        ratio = statistics.median(b / a for a, b in zip(counted["declared"], counted["by hand"], strict=True))
        medians = {side: statistics.median(each) for side, each in counted.items()}
        print(
            f"{name:8} {rows:,} rows a batch: declared {medians['declared']:.2f} s, by hand "
            f"{medians['by hand']:.2f} s, {ratio:.2f} of its speed (aim {AIMS[name]})",
            flush=True,
        )
        return {"rows": rows, "ratio": round(ratio, 3), "rounds_s": counted}

    # ---- the rows --------------------------------------------------------------------------------------------

    def table(self) -> dict[str, Any]:
        rows, upserts, path = self.options.rows, self.options.rows // 10, str(self.folder / "by-hand-table")
        topic = self.topic("accounts")
        pipeline = pipelines.Pipeline("accounts", bootstrap=self.bootstrap, folder=self.folder)

        @pipeline.table(pipelines.Topic(topic, key="account", schema=ACCOUNT), keys=["account"])
        def balances(records: DataFrame) -> DataFrame:
            return records.select("account", "owner", "balance", "_cause")

        empty = self.spark.createDataFrame([], "account string, owner string, balance bigint")
        empty.write.format("delta").save(path)
        latest = Window.partitionBy("account").orderBy(F.col("offset").desc())

        def merge(records: DataFrame, number: int) -> None:
            last = records.withColumn("nth", F.row_number().over(latest)).where("nth = 1").drop("nth", "offset")
            last.createOrReplaceTempView("updates")
            records.sparkSession.sql(
                f"MERGE INTO delta.`{path}` AS old USING updates ON old.account = updates.account "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

        def started() -> StreamingQuery:
            frame = self.stream(topic, "account", ACCOUNT)
            return self._start(frame.writeStream.foreachBatch(merge), "table")

        def feed(number: int) -> int:
            keys = list(range(rows)) if not number else [self.chance.randrange(rows * 11 // 10) for _ in range(upserts)]
            self.add(topic, self.accounts(keys))
            return len(keys)

        found = self.compare("table", feed, self.declared("balances", pipeline), self.by_hand(started))
        columns = ["account", "owner", "balance"]
        ours = pipelines.open_table(pipeline, "balances").rows().select(columns).sort_by("account")
        theirs = self.spark.read.format("delta").load(path).select(*columns).orderBy("account").toArrow()
        assert ours.to_pylist() == theirs.to_pylist(), "the tables differ"
        return found

    def history(self) -> dict[str, Any]:
        topic, path = self.topic("movements"), str(self.folder / "by-hand-history")
        pipeline = pipelines.Pipeline("movements", bootstrap=self.bootstrap, folder=self.folder)

        @pipeline.history(pipelines.Topic(topic, key="account", schema=ACCOUNT))
        def movements(records: DataFrame) -> DataFrame:
            return records.select("account", "owner", "balance", "_cause")

        def started() -> StreamingQuery:
            frame = self.stream(topic, "account", ACCOUNT).drop("offset")
            return self._start(frame.writeStream.format("delta").option("path", path), "history")

        count: int = self.options.rows // 2

        def feed(number: int) -> int:
            self.add(topic, self.accounts(range(count)))
            return count

        found = self.compare("history", feed, self.declared("movements", pipeline), self.by_hand(started))
        ours = pipelines.open_table(pipeline, "movements").rows().num_rows
        assert ours == self.spark.read.format("delta").load(path).count(), "the histories differ"
        return found

    def join(self) -> dict[str, Any]:
        orders, payments = self.topic("orders"), self.topic("payments")
        path, count = str(self.folder / "by-hand-join"), self.options.rows // 10
        pipeline = pipelines.Pipeline("shop", bootstrap=self.bootstrap, folder=self.folder)
        sources = (
            pipelines.Topic(orders, key="order", schema=ORDER),
            pipelines.Topic(payments, key="payment", schema=PAYMENT),
        )

        @pipeline.table(*sources, keys=["payment"])
        def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
            both = orders.join(payments, orders["order"] == payments["order_id"])
            return both.select("payment", "order", "customer", "cents", pipelines.joined_cause(orders, payments))

        def started() -> StreamingQuery:
            left, right = self.stream(orders, "order", ORDER), self.stream(payments, "payment", PAYMENT)
            both = left.join(right, left["order"] == right["order_id"])
            frame = both.select("payment", "order", "customer", "cents")
            return self._start(frame.writeStream.format("parquet").option("path", path), "join")

        def feed(number: int) -> int:
            numbers = range(number * count, (number + 1) * count)
            self.add(orders, ((key, b'{"customer":"c%d","cents":%d}' % (key % 997, key % 10_007)) for key in numbers))
            self.add(payments, ((key, b'{"order_id":"%08d","paid":%d}' % (key, key % 10_007)) for key in numbers))
            return 2 * len(numbers)

        found = self.compare("join", feed, self.declared("paid", pipeline), self.by_hand(started))
        columns = ["payment", "order", "customer", "cents"]
        ours = pipelines.open_table(pipeline, "paid").rows().select(columns).sort_by("payment")
        theirs = self.spark.read.parquet(path).select(*columns).orderBy("payment").toArrow()
        assert ours.to_pylist() == theirs.to_pylist(), "the joins differ"
        return found

    def trickle(self) -> dict[str, Any]:
        """Milliseconds of a batch of one row. When one of ours has ended, one by hand follows, then the next."""
        left, right, known = self.topic("left", 1), self.topic("right", 1), self.topic("known", 1)
        pipeline = pipelines.Pipeline("trickle", bootstrap=self.bootstrap, folder=self.folder)

        @pipeline.table(pipelines.Topic(known, key="account", schema=ACCOUNT), keys=["account"])
        def accounts(records: DataFrame) -> DataFrame:
            return records.select("account", "owner", "_cause")

        sources = [pipelines.Topic(each, key="account", schema=ACCOUNT) for each in (left, right)]

        @pipeline.effect(*sources, pipeline.lookup("accounts"))
        def nothing(left: DataFrame, right: DataFrame, accounts: DataFrame, number: int) -> None:
            both = left.select("account", "balance").union(right.select("account", "balance"))
            both.join(accounts, "account", "left").write.format("noop").mode("overwrite").save()

        self.add(known, self.accounts(range(1000)), 1)
        self.declared("accounts", pipeline)()
        rows = pipelines.open_table(pipeline, "accounts").rows().select(["account", "owner"])
        static = str(self.folder / "by-hand-known")
        self.spark.createDataFrame(rows).write.parquet(static)
        folders = [self.folder / "left-files", self.folder / "right-files"]
        for folder in folders:
            folder.mkdir()
        files = [self.spark.readStream.schema(f"account string, {ACCOUNT}").json(str(each)) for each in folders]
        two = files[0].select("account", "balance").union(files[1].select("account", "balance"))
        looked_up = two.join(self.spark.read.parquet(static), "account", "left")

        def consume(frame: DataFrame, number: int) -> None:
            frame.write.format("noop").mode("overwrite").save()

        writer = looked_up.writeStream.foreachBatch(consume)
        query = writer.option("checkpointLocation", str(self.folder / "by-hand-trickle")).start()
        rounds, ours, theirs = self.options.rounds * 4 + TRICKLE_WARM, list[float](), list[float]()

        def feed() -> None:
            self.add((left, right)[len(ours) % 2], self.accounts([len(ours) % 1000]), 1)

        def ended(progress: BatchProgress) -> None:
            if not progress.rows:
                return
            ours.append(progress.latency_ms)
            new = self.folder / "new.json"
            new.write_text(json.dumps({"account": f"{len(ours):08}", "owner": "x", "balance": 1}))
            new.rename(folders[len(ours) % 2] / f"{len(ours)}.json")
            query.processAllAvailable()
            done = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
            theirs.append(done[-1])
            feed()

        feed()
        runner = Runner(pipeline, self.spark, DuramenConnector(self.bootstrap))
        runner.run(["nothing"], ended, _hush, trigger="0 seconds", until=lambda: len(ours) >= rounds)
        query.stop()
        ours, theirs = ours[TRICKLE_WARM:], theirs[TRICKLE_WARM:]
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        print(
            f"trickle  one row a batch, two sources and a lookup: declared {statistics.median(ours):.0f} ms, "
            f"from files by hand {statistics.median(theirs):.0f} ms, {ratio:.2f} of its time (aim {AIMS['trickle']})",
            flush=True,
        )
        return {"ratio": round(ratio, 3), "declared_ms": ours, "by_hand_ms": theirs}

    def _start(self, writer: Any, name: str) -> StreamingQuery:
        writer = writer.option("checkpointLocation", str(self.folder / f"by-hand-{name}-checkpoint"))
        query: StreamingQuery = writer.trigger(availableNow=True).start()
        return query


def _hush(said: str) -> None:
    """Nothing a run says is of interest."""


def _only(milliseconds: list[int]) -> float:
    assert len(milliseconds) == 1, f"{len(milliseconds)} batches instead of one"
    return milliseconds[0] / 1000


PARTS = ("table", "history", "join", "trickle")


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=500_000, help="of the table; a tenth of it in each later batch")
    parser.add_argument("--small", action="store_true", help="a tenth of the rows, two rounds")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    if options.small:
        options.rows, options.rounds = options.rows // 10, 2
    try:
        jars = delta_jars()
    except PeerUnavailableError as why:
        print(f"cannot compare: {why}", file=sys.stderr)
        return 1
    facts: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds"), **machine.commit(), "aims": AIMS}
    facts["settings"] = {name: getattr(options, name) for name in ("rounds", "rows")}
    with tempfile.TemporaryDirectory(prefix="duramen-pipelines-") as name:
        folder = Path(name)
        facts |= {"versions": machine.versions(), "machine": machine.describe(folder)}
        broker = DuramenBroker(folder / "node")
        broker.prepare()
        broker.start()
        settings = {"spark.driver.memory": "2g", "spark.jars": ",".join(jars), "spark.sql.shuffle.partitions": "4"}
        spark = session("pipelines", "local[2]", settings | DELTA)
        try:
            bench = Bench(spark, broker.bootstrap, folder, options)
            for part in [options.only] if options.only else PARTS:
                facts[part] = getattr(bench, part)()
            bench.cluster.close()
        finally:
            spark.stop()
            broker.stop()
        facts["load_average_after"] = machine.describe(folder)["load_average"]
    complete = all(vars(options)[each] == parser.get_default(each) for each in vars(options))
    place = RESULTS if complete else PARTIAL_RESULTS
    place.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M")
    path = place / f"{stamp}-{facts['commit'][:9]}-pipelines.json"
    path.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"stored as {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
