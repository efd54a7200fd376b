"""Declared pipelines beside the same queries written by hand: ratios of each round, both sides in turn.

    python -m benchmarks.pipelines [--rounds 5] [--only history] [--quick]     # about ten minutes

Each case has two queries in one session on `local[2]`, which stay up: one that `duramen.pipelines` runs, and one as it
is written in PySpark without it, with the Delta library that Duramen's tables use (`deltalake`). Both read topics with
the same records by `format("duramen")`, so that what is compared is the pipeline, not the source. In a round each gets
the next records while the other has none, first the one, in the next round the other. The figure is Spark's
`triggerExecution` of the batches that took them; beside it stands how much of ours the store spent. At the end of a
case the two tables are compared.

upserts    a table by key, 50,000 records a batch, a hundredth of them deletions   MERGE of the newest row of each key
history    every row, 100,000 a batch                                              append to a Delta table
scd2       every version of a row with its interval, 20,000 a batch                the SCD 2 MERGE of Delta's pages
join       20,000 orders and as many payments a batch, a table by key              the same join into Parquet files
small      one row in each of two sources, united, and a table that is looked up   two file sources, a Parquet file
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

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
TRIGGER_SECONDS = 1.0
WAIT_SECONDS = 240.0
WARM_ROUNDS, WARM_SMALL = 3, 10
"""Of each side, before those that count; the first one fills the table."""
SMALL_PER_ROUND = 4
"""Batches of one row a round: each takes a fraction of a second, and varies more."""
ACCOUNT = "owner string, balance bigint"
KEPT = ("account", "owner", "balance")

Pairs = list[tuple[bytes, bytes | None]]
Batches = list[tuple[int, float]]
"""Rows and seconds of each batch that has ended and had rows."""


@dataclass
class Side:
    """A query that stays up. done: its batches so far; failure: why it has ended, empty while it runs."""

    feed: Callable[[int], int]
    done: Callable[[], Batches]
    failure: Callable[[], str]
    stop: Callable[[], None]
    table: Callable[[], pa.Table] | None = None
    taken: int = 0

    def round(self, number: int) -> float:
        """Seconds of the batches that take this round's records."""
        # Triggers come at whole seconds. What is fed right after one is in the next batch together.
        time.sleep(TRIGGER_SECONDS - time.time() % TRIGGER_SECONDS + TRIGGER_SECONDS / 5)
        wanted, patience = self.feed(number), time.monotonic() + WAIT_SECONDS
        while sum(rows for rows, _ in self.done()[self.taken :]) < wanted:
            if why := self.failure():
                raise SystemExit(why)
            if time.monotonic() > patience:
                raise SystemExit(f"{wanted} records, and {self.done()} after {WAIT_SECONDS:.0f} s")
            time.sleep(0.05)
        new = self.done()[self.taken :]
        assert sum(rows for rows, _ in new) == wanted, f"{new} of {wanted} records"
        self.taken += len(new)
        return sum(seconds for _, seconds in new)


@dataclass
class Bench:
    """What the cases share: a session, a node, a folder."""

    spark: SparkSession
    bootstrap: str
    folder: Path
    rounds: int
    scale: int
    stored: list[float] = field(default_factory=list)
    """Seconds in our store, of each batch."""

    def topic(self, name: str, *rounds: Pairs) -> Callable[[int], int]:
        """Make a topic; what gives it the records of a round and says how many."""
        cluster = Cluster(self.bootstrap)
        create_topic(cluster, name, PARTITIONS)

        def feed(number: int) -> int:
            for partition, batch in ready.pop(number):
                cluster.produce(TopicPartition(name, partition), batch)
            return len(rounds[number])

        ready = {number: packed(pairs) for number, pairs in enumerate(rounds)}
        return feed

    def records(self, topic: str, schema: str, key: str) -> DataFrame:
        """A topic of JSON values as a person reads it: its columns, `key`, `offset` and whether it `deleted`."""
        reader = self.spark.readStream.format("duramen").option("kafka.bootstrap.servers", self.bootstrap)
        found = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        parsed = F.from_json(F.col("value").cast("string"), schema)
        columns = [F.col("key").cast("string").alias(key), "offset", F.isnull("value").alias("deleted")]
        return found.select(*columns, parsed.alias("row")).select(key, "offset", "deleted", "row.*")

    def declared(self, pipeline: pipelines.Pipeline, step: str, feed: Callable[[int], int]) -> Side:
        """Run a step of a pipeline, in a thread, until the side is stopped."""
        runner = Runner(pipeline, self.spark, DuramenConnector(self.bootstrap))
        began, batches, failures, over = [0.0], Batches(), list[str](), threading.Event()

        def mark(point: str) -> None:
            if point == "batch computed":
                began[0] = time.perf_counter()
            elif point == "batch applied":
                self.stored.append(time.perf_counter() - began[0])

        def tell(progress: BatchProgress) -> None:
            if progress.rows:
                batches.append((progress.rows, progress.latency_ms / 1000))

        def run() -> None:
            try:
                runner.run([step], tell, print, trigger=f"{TRIGGER_SECONDS} seconds", until=over.is_set)
            except Exception as error:  # noqa: BLE001 - the main thread reports it
                failures.append(f"{step}: {error!r}")

        def stop() -> None:
            over.set()
            thread.join()

        runner.mark = mark
        thread = threading.Thread(target=run)
        thread.start()
        table = lambda: pipelines.open_table(pipeline, step).rows()  # noqa: E731
        return Side(feed, lambda: list(batches), lambda: "".join(failures), stop, table)

    def by_hand(self, writer: DataStreamWriter, feed: Callable[[int], int], table: Callable[[], pa.Table]) -> Side:
        """Start a query of Spark's."""
        place = tempfile.mkdtemp(prefix="checkpoint-", dir=self.folder)
        writer = writer.option("checkpointLocation", place).trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
        query: StreamingQuery = writer.start()
        batches: dict[int, tuple[int, float]] = {}

        def done() -> Batches:
            for each in query.recentProgress:
                if each["numInputRows"]:
                    batches[each["batchId"]] = (each["numInputRows"], each["durationMs"]["triggerExecution"] / 1000)
            return list(batches.values())

        def failure() -> str:
            return "" if query.isActive else f"the query by hand has ended: {query.exception()}"

        return Side(feed, done, failure, query.stop, table)

    def pipeline(self, name: str) -> pipelines.Pipeline:
        return pipelines.Pipeline(name, bootstrap=self.bootstrap, folder=self.folder / f"{name}-tables")

    def delta(self, name: str, schema: pa.Schema) -> str:
        """An empty table."""
        path = str(self.folder / name)
        DeltaTable.create(path, schema)
        return path


def packed(pairs: Pairs) -> list[tuple[int, bytearray]]:
    """Records as batches, by the partition of their key."""
    waiting: list[list[NewRecord]] = [[] for _ in range(PARTITIONS)]
    now = time.time_ns() // 1_000_000
    for key, value in pairs:
        waiting[int(key[-4:]) % PARTITIONS].append((key, value, (), now))
    firsts = [(at, first) for at, records in enumerate(waiting) for first in range(0, len(records), PER_BATCH)]
    return [(at, build_batch(waiting[at][first : first + PER_BATCH])) for at, first in firsts]


def accounts(keys: Sequence[int], since: int = 0, deleted: float = 0.0) -> Pairs:
    """A record for each of these accounts."""
    chance = random.Random(since)

    def value() -> bytes:
        owner, balance = chance.getrandbits(24), chance.getrandbits(30)
        return b'{"owner":"owner-%06x","balance":%d,"since":%d}' % (owner, balance, since)

    return [(b"%08d" % key, None if chance.random() < deleted else value()) for key in keys]


def at_delta(path: str) -> Callable[[], pa.Table]:
    return lambda: DeltaTable(path).to_pyarrow_table()


def fields(*names: str) -> pa.Schema:
    """The columns of the tables by hand."""
    kinds = {
        "balance": pa.int64(),
        "since": pa.int64(),
        "valid_to": pa.int64(),
        "current": pa.bool_(),
        "cents": pa.int32(),
    }
    return pa.schema([(name, kinds.get(name, pa.string())) for name in names])


def upserts(bench: Bench) -> dict[str, Side]:
    chance, size = random.Random(1), 50_000 // bench.scale
    keys = [list(range(4 * size)), *([chance.randrange(5 * size) for _ in range(size)] for _ in range(bench.rounds))]
    rounds = [accounts(each, number, 0.01) for number, each in enumerate(keys)]
    pipeline = bench.pipeline("upserts")
    feed = bench.topic("upserts", *rounds)

    @pipeline.table(pipelines.Topic("upserts", key="account", schema=ACCOUNT), keys=["account"])
    def latest(records: DataFrame) -> DataFrame:
        return records.select(*KEPT, "_cause")

    path = bench.delta("upserts-by-hand", fields(*KEPT))

    def merge(rows: DataFrame, batch: int) -> None:
        row = F.max_by(F.struct("owner", "balance", "deleted"), "offset").alias("row")
        newest = rows.groupBy("account").agg(row).select("account", "row.*")
        every = {name: f"source.{name}" for name in KEPT}
        merging = DeltaTable(path).merge(
            newest.toArrow(), "target.account = source.account", source_alias="source", target_alias="target"
        )
        merging = merging.when_matched_delete("source.deleted").when_matched_update(every)
        merging.when_not_matched_insert(every, "NOT source.deleted").execute()

    by_hand = bench.topic("upserts-by-hand", *rounds)
    writer = bench.records("upserts-by-hand", ACCOUNT, "account").writeStream.foreachBatch(merge)
    return {
        "declared": bench.declared(pipeline, "latest", feed),
        "by hand": bench.by_hand(writer, by_hand, at_delta(path)),
    }


def history(bench: Bench) -> dict[str, Side]:
    size = 100_000 // bench.scale
    rounds = [accounts(range(size), number) for number in range(bench.rounds + 1)]
    pipeline = bench.pipeline("history")
    feed = bench.topic("history", *rounds)

    @pipeline.history(pipelines.Topic("history", key="account", schema=ACCOUNT))
    def every(records: DataFrame) -> DataFrame:
        return records.select(*KEPT, "_cause")

    path = bench.delta("history-by-hand", fields(*KEPT))

    def append(rows: DataFrame, batch: int) -> None:
        write_deltalake(path, rows.toArrow(), mode="append")

    by_hand = bench.topic("history-by-hand", *rounds)
    rows = bench.records("history-by-hand", ACCOUNT, "account").select(*KEPT)
    return {
        "declared": bench.declared(pipeline, "every", feed),
        "by hand": bench.by_hand(rows.writeStream.foreachBatch(append), by_hand, at_delta(path)),
    }


def scd2(bench: Bench) -> dict[str, Side]:
    chance, size = random.Random(2), 20_000 // bench.scale
    # A key has one version in a batch, and each is later than the one before: other ones that MERGE does not take.
    keys = [list(range(2 * size)), *(chance.sample(range(3 * size), size) for _ in range(bench.rounds))]
    rounds = [accounts(each, number) for number, each in enumerate(keys)]
    schema, kept = f"{ACCOUNT}, since bigint", (*KEPT, "since")
    pipeline = bench.pipeline("scd2")
    feed = bench.topic("scd2", *rounds)

    @pipeline.table(
        pipelines.Topic("scd2", key="account", schema=schema), keys=["account"], version="since", history="scd2"
    )
    def versions(records: DataFrame) -> DataFrame:
        return records.select(*kept, "_cause")

    path = bench.delta("scd2-by-hand", fields(*kept, "valid_to", "current"))

    def merge(rows: DataFrame, batch: int) -> None:
        updates, table = rows.toArrow(), DeltaTable(path)
        # Those that end a version come twice: once to end it, once, with no key to merge by, to be inserted.
        there = table.to_pyarrow_dataset().to_table(columns=["account"], filter=pc.field("current"))
        beside = updates.join(there, "account", join_type="left semi")
        nulls = pa.nulls(beside.num_rows, pa.string())
        beside, found = beside.append_column("key", nulls), updates.append_column("key", updates["account"])
        merging = table.merge(
            pa.concat_tables([beside, found.cast(beside.schema)]),
            "target.account = source.key",
            source_alias="source",
            target_alias="target",
        )
        ends = {"current": "false", "valid_to": "source.since"}
        merging = merging.when_matched_update(ends, "target.current = true")
        merging.when_not_matched_insert({**{name: f"source.{name}" for name in kept}, "current": "true"}).execute()

    by_hand = bench.topic("scd2-by-hand", *rounds)
    rows = bench.records("scd2-by-hand", schema, "account").select(*kept)
    return {
        "declared": bench.declared(pipeline, "versions", feed),
        "by hand": bench.by_hand(rows.writeStream.foreachBatch(merge), by_hand, at_delta(path)),
    }


def join(bench: Bench) -> dict[str, Side]:
    size = 20_000 // bench.scale
    chance = random.Random(3)
    orders, payments = list[Pairs](), list[Pairs]()
    for number in range(bench.rounds + 1):
        keys = range(number * size, (number + 1) * size)
        orders.append([(b"%08d" % key, b'{"customer":"c-%05d","cents":%d}' % (key % 9999, key)) for key in keys])
        paid = chance.sample(keys, size)
        payments.append([(b"%08d" % key, b'{"order_id":"%08d"}' % of) for key, of in zip(keys, paid, strict=True)])

    def both(suffix: str) -> Callable[[int], int]:
        first, second = bench.topic(f"orders{suffix}", *orders), bench.topic(f"payments{suffix}", *payments)
        return lambda number: first(number) + second(number)

    of_orders, of_payments = "customer string, cents int", "order_id string"
    feed, by_hand = both(""), both("-by-hand")
    pipeline = bench.pipeline("join")

    @pipeline.table(
        pipelines.Topic("orders", key="order", schema=of_orders),
        pipelines.Topic("payments", key="payment", schema=of_payments),
        keys=["order"],
    )
    def paid_orders(orders: DataFrame, payments: DataFrame) -> DataFrame:
        found = orders.join(payments, orders["order"] == payments["order_id"])
        return found.select("order", "customer", "cents", "payment", pipelines.joined_cause(orders, payments))

    left = bench.records("orders-by-hand", of_orders, "order").select("order", "customer", "cents")
    right = bench.records("payments-by-hand", of_payments, "payment").select("payment", "order_id")
    rows = left.join(right, left["order"] == right["order_id"]).select("order", "customer", "cents", "payment")
    path = str(bench.folder / "join-by-hand")
    writer = rows.writeStream.format("parquet").option("path", path)
    return {
        "declared": bench.declared(pipeline, "paid_orders", feed),
        "by hand": bench.by_hand(writer, by_hand, lambda: bench.spark.read.parquet(path).toArrow()),
    }


def small(bench: Bench) -> dict[str, Side]:
    """The third side writes nowhere: what Spark itself takes for a batch of such a query."""
    count = bench.rounds + 1
    values = [b'{"customer":"%08d","cents":%d}' % (number, number) for number in range(count)]
    first = bench.topic("sold", *([(b"%08d" % number, value)] for number, value in enumerate(values)))
    second = bench.topic("returned", *([(b"%08d" % (number + 10**6), value)] for number, value in enumerate(values)))
    customers = [(b"%08d" % number, b'{"name":"name-%d"}' % number) for number in range(1000)]
    bench.topic("customers", customers)(0)
    pipeline = bench.pipeline("small")
    schema = "customer string, cents int"

    @pipeline.table(pipelines.Topic("customers", key="customer", schema="name string"), keys=["customer"])
    def known(records: DataFrame) -> DataFrame:
        return records.select("customer", "name", "_cause")

    @pipeline.table(
        pipelines.Topic("sold", key="id", schema=schema),
        pipelines.Topic("returned", key="id", schema=schema),
        pipeline.lookup("known"),
        keys=["id"],
    )
    def named(sold: DataFrame, returned: DataFrame, known: DataFrame) -> DataFrame:
        found = sold.unionByName(returned).join(known, "customer", "left")
        return found.select("id", "customer", "name", "cents", "_cause")

    Runner(pipeline, bench.spark, DuramenConnector(bench.bootstrap)).run(["known"], str, print, available_now=True)
    looked_up = bench.folder / "customers.parquet"
    pq.write_table(
        pa.table({"customer": [key.decode() for key, _ in customers], "name": [f"name-{n}" for n in range(1000)]}),
        looked_up,
    )

    def files(name: str) -> tuple[DataFrame, Callable[[int], int]]:
        places = [bench.folder / name / each for each in ("sold", "returned")]
        for place in places:
            place.mkdir(parents=True)

        def feed(number: int) -> int:
            for at, place in enumerate(places):
                line = b'{"id":"%08d",' % (number + at * 10**6) + values[number][1:]
                (bench.folder / "new").write_bytes(line + b"\n")
                (bench.folder / "new").rename(place / f"{number}.json")
            return 2

        reader = bench.spark.readStream.schema(f"id string, {schema}")
        one, other = (reader.json(str(place)) for place in places)
        rows = one.unionByName(other).join(bench.spark.read.parquet(str(looked_up)), "customer", "left")
        return rows.select("id", "customer", "name", "cents"), feed

    path = bench.delta("small-by-hand", fields("id", "customer", "name", "cents"))

    def merge(rows: DataFrame, batch: int) -> None:
        merging = DeltaTable(path).merge(
            rows.toArrow(), "target.id = source.id", source_alias="source", target_alias="target"
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    (merged, feed_merged), (read, feed_read) = files("merged"), files("read")
    return {
        "declared": bench.declared(pipeline, "named", lambda number: first(number) + second(number)),
        "by hand": bench.by_hand(merged.writeStream.foreachBatch(merge), feed_merged, at_delta(path)),
        "noop sink": bench.by_hand(read.writeStream.format("noop"), feed_read, at_delta(path)),
    }


@dataclass(frozen=True)
class Case:
    """aim: of the declared side's speed beside the one by hand, at least; of its time, at most, where `slower`."""

    sides: Callable[[Bench], dict[str, Side]]
    title: str
    aim: float
    slower: bool = False


CASES = {
    "upserts": Case(upserts, "table by key / MERGE by foreachBatch", 0.5),
    "history": Case(history, "history / append by foreachBatch", 0.7),
    "scd2": Case(scd2, "history=scd2 / SCD 2 MERGE by foreachBatch", 0.7),
    "join": Case(join, "joined table / Spark's join into Parquet", 0.5),
    "small": Case(small, "one row each, two sources, lookup / files", 1.3, slower=True),
}


def same(sides: dict[str, Side]) -> None:
    """AssertionError unless the declared table holds what the one by hand does."""
    theirs, ours = (sides[name].table() for name in ("by hand", "declared"))  # type: ignore[misc]
    names = [name for name in theirs.column_names if name in ours.column_names]
    order = [(name, "ascending") for name in names]
    left, right = (each.select(names).sort_by(order).to_pylist() for each in (theirs, ours))
    assert left == right, f"{len(left)} and {len(right)} rows that differ, such as {left[:1]} and {right[:1]}"


def measure(case: Case, bench: Bench, rounds: int, warm: int) -> dict[str, Any]:
    """Medians of seconds of each side and of the rounds' ratios."""
    bench.rounds, bench.stored = rounds + warm - 1, []
    sides = case.sides(bench)
    times: dict[str, list[float]] = {name: [] for name in sides}
    try:
        for number in range(rounds + warm):
            for name in list(sides) if number % 2 else list(sides)[::-1]:
                times[name].append(sides[name].round(number))
    finally:
        for side in sides.values():
            side.stop()
    same(sides)
    times = {name: each[warm:] for name, each in times.items()}
    found: dict[str, Any] = {"seconds": {name: round(statistics.median(each), 3) for name, each in times.items()}}
    for name in list(times)[1:]:
        pairs = list(zip(times["declared"], times[name], strict=True))
        ratio = statistics.median(a / b if case.slower else b / a for a, b in pairs)
        found["ratio" if name == "by hand" else f"ratio to {name}"] = round(ratio, 3)
    found["store_s"] = round(statistics.median(bench.stored[-rounds:]), 3)
    met = found["ratio"] <= case.aim if case.slower else found["ratio"] >= case.aim
    return {**found, "aim": case.aim, "met": met, "rounds": {n: [round(t, 3) for t in e] for n, e in times.items()}}


def shown(case: Case, found: dict[str, Any]) -> str:
    """A line of the table."""
    seconds, aim = found["seconds"], f"{'≤' if case.slower else '≥'}{case.aim}"
    line = f"{case.title:44} {seconds['declared']:8.2f} s {seconds['by hand']:8.2f} s {found['ratio']:7.2f}  {aim:>5} "
    line += f"{'✓' if found['met'] else '✗'}  store {found['store_s']:.2f} s"
    return line + "".join(f"; {name} {each:.2f}" for name, each in found.items() if name.startswith("ratio to"))


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=CASES, help="one of the cases")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, one round: does it run?")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    facts: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds"), **machine.commit()}
    facts["settings"] = {"rounds": rounds, "quick": options.quick}
    with tempfile.TemporaryDirectory(prefix="duramen-pipelines-") as name:
        folder = Path(name)
        facts |= {"versions": machine.versions(), "machine": machine.describe(folder), "cases": {}}
        broker = DuramenBroker(folder / "node")
        broker.prepare()
        broker.start()
        spark = session("pipelines", "local[2]", {"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        try:
            print(f"{'':44} {'declared':>10} {'by hand':>10} {'ratio':>7}  {'aim':>5}", flush=True)
            for which in [options.only] if options.only else CASES:
                case, is_small = CASES[which], which == "small"
                bench = Bench(spark, broker.bootstrap, folder, rounds, 10 if options.quick else 1)
                times, warm = (SMALL_PER_ROUND, WARM_SMALL) if is_small else (1, WARM_ROUNDS)
                warm = 2 if options.quick else warm
                found = facts["cases"][which] = measure(case, bench, rounds * times, warm)
                print(shown(case, found), flush=True)
        finally:
            spark.stop()
            broker.stop()
        facts["load_average_after"] = machine.describe(folder)["load_average"]
    complete = all(vars(options)[name] == parser.get_default(name) for name in vars(options))
    place = RESULTS if complete else PARTIAL_RESULTS
    place.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M")
    path = place / f"{stamp}-{facts['commit'][:9]}-pipelines.json"
    path.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"stored as {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
