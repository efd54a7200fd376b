"""Steps of several sources on a real Spark, over topics that are folders, beside a plain Python computation."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from files import FileTopics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.offsets import Cause
from duramen.pipelines.run.runner import QueryFailedError, Runner

pytestmark = pytest.mark.timeout(600)

ORDERS = pipelines.Topic("orders", key="order", schema="amount int")
PAYMENTS = pipelines.Topic("payments", key="payment", schema="order_id string, cents int")


def declared(folder: Path) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("shop", folder=folder / "tables")

    @pipeline.table(ORDERS, PAYMENTS, keys=["order"], store="parquet")
    def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
        both = orders.join(payments, orders["order"] == payments["order_id"])
        return both.select("order", "amount", "payment", pipelines.joined_cause(orders, payments))

    @pipeline.history(ORDERS, PAYMENTS)
    def pairs(orders: DataFrame, payments: DataFrame) -> DataFrame:
        return paid(orders, payments)

    @pipeline.history(ORDERS, PAYMENTS, store="parquet")
    def either(orders: DataFrame, payments: DataFrame) -> DataFrame:
        names = orders.select("order", "_cause")
        return names.union(payments.select("payment", "_cause"))

    @pipeline.history(ORDERS, store="parquet")
    def twice(orders: DataFrame) -> DataFrame:
        both = orders.alias("a").join(orders.alias("b"), F.expr("a.order = b.order AND a.amount < b.amount"))
        return both.select("a.order", "a.amount", pipelines.joined_cause("a._cause", "b._cause"))

    @pipeline.effect(ORDERS, PAYMENTS)
    def mail(orders: DataFrame, payments: DataFrame, batch: int) -> None:
        MAILED.append(
            (batch, [row["order"] for row in orders.collect()], [row["payment"] for row in payments.collect()])
        )

    return pipeline


MAILED: list[Any] = []
"""Of the effect: workers get functions by value, the driver keeps them."""


def run(runner: Runner, *names: str) -> list[Any]:
    told: list[Any] = []
    runner.run(names, told.append, lambda said: None, available_now=True)
    return told


class Shop:
    """The topics and what follows from them, in plain Python."""

    def __init__(self, folder: Path) -> None:
        self.topics = FileTopics(folder)
        self.orders: list[tuple[str, int]] = []
        self.payments: list[tuple[str, str]] = []

    def order(self, *orders: tuple[str, int]) -> None:
        self.orders += orders
        self.topics.append("orders", [(name, {"amount": amount}) for name, amount in orders])

    def pay(self, *payments: tuple[str, str]) -> None:
        self.payments += payments
        self.topics.append("payments", [(name, {"order_id": order, "cents": 1}) for name, order in payments])

    def pairs(self) -> list[dict[str, Any]]:
        """Every order with each of its payments, and the records of both, the latest first."""
        found = []
        for o, (order, amount) in enumerate(self.orders):
            for p, (payment, of) in enumerate(self.payments):
                if of == order:
                    main, also = sorted([(o, Cause("orders", 0, o)), (p, Cause("payments", 0, p))], reverse=True)
                    row = {"order": order, "amount": amount, "payment": payment}
                    found.append({**row, "records": [main[1], also[1]], "rank": (*main, also[1].ordered)})
        return found

    def latest(self) -> dict[str, dict[str, Any]]:
        return {row["order"]: row for row in sorted(self.pairs(), key=lambda row: row["rank"])}


def records(row: dict[str, Any]) -> list[Cause]:
    return [Cause(row["_topic"], row["_partition"], row["_offset"]), *map(Cause.parse, row["_also"].split())]


def test_a_join_of_two_topics_has_each_pair_once(spark: SparkSession, tmp_path: Path) -> None:
    """The latest of each order, by time; a run is cut off at each point of a batch."""
    shop = Shop(tmp_path / "topics")
    pipeline = declared(tmp_path)
    shop.order(("A", 1), ("B", 2))
    shop.pay(("p1", "B"))
    shop.pay(("p2", "A"), ("p3", "A"), ("p4", "C"))
    for point in ("batch planned", "batch computed", "batch applied"):

        def fail(name: str, point: str = point) -> None:
            if name == point:
                raise RuntimeError("cut off here")

        with pytest.raises(QueryFailedError, match="cut off here"):
            run(Runner(pipeline, spark, shop.topics, fail), "paid")
    shop.order(("A", 3), ("C", 4))
    told = run(Runner(pipeline, spark, shop.topics), "paid")
    rows = pipelines.open_table(pipeline, "paid").rows().to_pylist()
    assert {row["order"]: (row["amount"], row["payment"], records(row)) for row in rows} == {
        order: (row["amount"], row["payment"], row["records"]) for order, row in shop.latest().items()
    }
    assert told[-1].end.to_json()[""] == {"0": 2, "1": 2}, "the ends in both sources"


def test_what_else_is_made_of_two_topics(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "topics")
    pipeline = declared(tmp_path)
    runner = Runner(pipeline, spark, shop.topics)
    shop.order(("A", 1), ("B", 2))
    shop.pay(("p1", "B"), ("p2", "B"))
    run(runner, "pairs", "either", "twice", "mail")
    shop.order(("A", 3), ("A", 4))
    shop.pay(("p3", "A"))
    run(runner, "pairs", "either", "twice", "mail")
    pairs = pipelines.open_table(pipeline, "pairs")

    def shown(row: dict[str, Any], of: list[Cause]) -> tuple[Any, ...]:
        return row["order"], row["amount"], row["payment"], of

    found = sorted(shown(row, records(row)) for row in pairs.rows().to_pylist())
    assert found == sorted(shown(row, row["records"]) for row in shop.pairs())
    twice = pipelines.open_table(pipeline, "twice").rows().to_pylist()
    assert sorted((row["order"], row["amount"], row["_offset"], row["_also"][-1]) for row in twice) == [
        ("A", 1, 2, "0"),
        ("A", 1, 3, "0"),
        ("A", 3, 3, "2"),
    ]
    either = pipelines.open_table(pipeline, "either").rows().to_pylist()
    assert sorted(row["order"] for row in either) == ["A", "A", "A", "B", "p1", "p2", "p3"]
    assert {row["_also"] for row in either} == {""}
    assert sorted(name for _, orders, _ in MAILED for name in orders) == ["A", "A", "A", "B"]
    assert [number for number, *_ in MAILED] == sorted({number for number, *_ in MAILED})
    about = StepFolder(pipeline.folder, "pairs").version("v1").about() or {}
    assert [(each["topic"], each["reads"], each["generation"]) for each in about["sources"]] == [
        ("orders", "orders", 0),
        ("payments", "payments", 0),
    ]


def test_a_join_that_leaves_two_causes_is_told_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = pipelines.Pipeline("shop", folder=tmp_path / "tables")

    @pipeline.history(ORDERS, PAYMENTS)
    def both(orders: DataFrame, payments: DataFrame) -> DataFrame:
        return orders.join(payments, orders["order"] == payments["order_id"])

    @pipeline.history(ORDERS, PAYMENTS)
    def by_name(orders: DataFrame, payments: DataFrame) -> DataFrame:
        return both(orders, payments).select("order", "_cause")

    runner = Runner(pipeline, spark, FileTopics(tmp_path / "topics"))
    for name in pipeline.steps:
        with pytest.raises(ConfigError, match=rf"{name} joins, and leaves a _cause of each side.*joined_cause"):
            runner.plan(name)


def minutes(count: float) -> str:
    """A time of the day, so many minutes after noon."""
    return (datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(minutes=count)).isoformat()


def late_ones(folder: Path) -> pipelines.Pipeline:
    """Steps whose rows come when a watermark has passed them."""
    orders = pipelines.Topic("orders", key="order", schema="at timestamp")
    payments = pipelines.Topic("payments", key="payment", schema="order_id string, paid_at timestamp")
    pipeline = pipelines.Pipeline("late", folder=folder / "tables")

    @pipeline.table(orders, payments, keys=["order"], emits="append", store="parquet")
    def paid_in_time(orders: DataFrame, payments: DataFrame) -> DataFrame:
        left, right = orders.withWatermark("at", "1 minute"), payments.withWatermark("paid_at", "1 minute")
        both = left.join(
            right, F.expr("order = order_id AND paid_at BETWEEN at AND at + INTERVAL 10 MINUTES"), "left_outer"
        )
        return both.select("order", "payment", pipelines.joined_cause(left, right))

    @pipeline.history(orders, emits="append")
    def per_hour(orders: DataFrame) -> DataFrame:
        hours = orders.withWatermark("at", "1 minute").groupBy(F.window("at", "1 hour"))
        sums = hours.agg(F.count("*").alias("orders"), pipelines.latest_cause())
        return sums.select(F.date_format("window.start", "HH:mm").alias("hour"), "orders", "_cause")

    return pipeline


def test_rows_that_come_once_and_late_are_appended(spark: SparkSession, tmp_path: Path) -> None:
    """An outer join and closed windows, cut off at points of a batch, beside plain Python."""
    topics = FileTopics(tmp_path / "topics")
    pipeline = late_ones(tmp_path)
    orders = {"A": 0, "B": 5, "C": 30, "D": 61, "E": 62, "F": 200}
    payments = {"p1": ("A", 3), "p2": ("C", 55), "p3": ("D", 70), "p4": ("F", 201)}
    batches: list[tuple[list[str], list[str]]] = [(["A", "B"], []), (["C"], ["p1"]), (["D", "E"], ["p2", "p3"])]
    for names, paid in [*batches, (["F"], ["p4"])]:
        topics.append("orders", [(name, {"at": minutes(orders[name])}) for name in names])
        if paid:
            found = [(payment, *payments[payment]) for payment in paid]
            topics.append("payments", [(p, {"order_id": o, "paid_at": minutes(at)}) for p, o, at in found])
    for point in ("batch computed", "batch applied"):
        for step in pipeline.steps:

            def fail(name: str, point: str = point) -> None:
                if name == point:
                    raise RuntimeError("cut off here")

            with pytest.raises(QueryFailedError, match="cut off here"):
                run(Runner(pipeline, spark, topics, fail), step)
    run(Runner(pipeline, spark, topics), *pipeline.steps)
    closed = max(orders.values()) - 1  # the watermark; that of payments is later
    in_time = {o: p for p, (o, at) in payments.items() if orders[o] <= at <= orders[o] + 10}
    wanted = {name: in_time.get(name) for name, at in orders.items() if name in in_time or at + 10 < closed}
    rows = pipelines.open_table(pipeline, "paid_in_time").rows().to_pylist()
    assert {row["order"]: row["payment"] for row in rows} == wanted
    assert {row["order"]: len(records(row)) for row in rows} == {o: 1 + (p is not None) for o, p in wanted.items()}
    hours = Counter(f"{12 + at // 60}:00" for at in orders.values() if (at // 60 + 1) * 60 <= closed)
    rows = pipelines.open_table(pipeline, "per_hour").rows().to_pylist()
    assert sorted((row["hour"], row["orders"]) for row in rows) == sorted(hours.items())
    about = StepFolder(pipeline.folder, "per_hour").version("v1").about() or {}
    assert about["table"] == {"store": "delta", "keys": [], "version": None, "guarded": False, "emits": "append"}
    shutil.rmtree(tmp_path / "tables" / "per_hour" / "v1" / "checkpoint-0")
    with pytest.raises(QueryFailedError, match="per_hour v1 holds rows back, and its checkpoint is gone"):
        run(Runner(pipeline, spark, topics), "per_hour")


def test_what_will_be_refused_is_found_when_it_is_planned(spark: SparkSession, tmp_path: Path) -> None:
    """Spark refused it when the query had begun, in words without a way out; a table at the first row that was late."""
    pipeline = pipelines.Pipeline("wrong", folder=tmp_path / "tables")
    seen = pipelines.Topic("seen", key="k", schema="at timestamp")
    told = {}

    def wrong(message: str, decorate: Any) -> Any:
        def register(function: Any) -> Any:
            told[function.__name__] = message
            return decorate(function)

        return register

    @wrong(r"aggregations without watermark .*; aggregate=True writes every change", pipeline.table(seen, keys=["k"]))
    def sums(rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").agg(pipelines.latest_cause())

    @wrong(r"aggregations without watermark .*has a watermark$", pipeline.stream(seen, to="sums", key="k"))
    def changes(rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").agg(pipelines.latest_cause())

    @wrong(r'long after their records, by groupBy and a watermark: .*emits="append"', pipeline.table(seen, keys=["k"]))
    def closed(rows: DataFrame) -> DataFrame:
        windows = rows.withWatermark("at", "1 minute").groupBy("k", F.window("at", "1 hour"))
        return windows.agg(pipelines.latest_cause())

    @wrong(r'LeftOuter join .* Update .*; emits="append"', pipeline.history(ORDERS, PAYMENTS, emits="update"))
    def outer(orders: DataFrame, payments: DataFrame) -> DataFrame:
        both = orders.join(payments, orders["order"] == payments["order_id"], "left_outer")
        return both.select("order", pipelines.joined_cause(orders, payments))

    @wrong(r"Sorting is not supported on streaming DataFrames", pipeline.history(seen))
    def ordered(rows: DataFrame) -> DataFrame:
        return rows.orderBy("k")

    @wrong("there is no column kay among k", pipeline.table(seen, keys=["kay"]))
    def mistyped(rows: DataFrame) -> DataFrame:
        return rows.select("k", "_cause")

    @wrong(r'joins its source with itself: version="_timestamp" orders', pipeline.table(ORDERS, keys=["order"]))
    def with_itself(orders: DataFrame) -> DataFrame:
        both = orders.alias("a").join(orders.alias("b"), F.expr("a.order = b.order"))
        return both.select("a.order", pipelines.joined_cause("a._cause", "b._cause"))

    runner = Runner(pipeline, spark, FileTopics(tmp_path / "topics"))
    for name, message in told.items():
        with pytest.raises(ConfigError, match=f"^{name}.*{message}") as raised:
            runner.sound_plan(name)
        assert len(str(raised.value).splitlines()) == 1
