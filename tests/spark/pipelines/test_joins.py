"""Steps of several sources on a real Spark, over topics that are folders, beside a plain Python computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from files import FileTopics
from pyspark.sql import DataFrame, SparkSession

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
    run(runner, "pairs", "either", "mail")
    shop.order(("A", 3), ("A", 4))
    shop.pay(("p3", "A"))
    run(runner, "pairs", "either", "mail")
    pairs = pipelines.open_table(pipeline, "pairs")

    def shown(row: dict[str, Any], of: list[Cause]) -> tuple[Any, ...]:
        return row["order"], row["amount"], row["payment"], of

    found = sorted(shown(row, records(row)) for row in pairs.rows().to_pylist())
    assert found == sorted(shown(row, row["records"]) for row in shop.pairs())
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
