"""Steps that look tables up, and views, on a real Spark over topics that are folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from files import FileTopics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.jvm.session import make_active
from duramen.pipelines.run import lookups
from duramen.pipelines.run.dry_runner import DryRunner
from duramen.pipelines.run.runner import QueryFailedError, Runner

pytestmark = pytest.mark.timeout(600)

CUSTOMERS = pipelines.Topic("customers", key="customer", schema="town string")
ORDERS = pipelines.Topic("orders", key="order", schema="customer string, cents int")
MAILED: list[Any] = []
"""Of the effect: workers get functions by value, the driver keeps them."""


def declared(folder: Path) -> pipelines.Pipeline:
    crm, shop = (pipelines.Pipeline(name, folder=folder / name) for name in ("crm", "shop"))

    @crm.table(CUSTOMERS, keys=["customer"], store="parquet")
    def customers(customers: DataFrame) -> DataFrame:
        return customers

    @shop.view(ORDERS, crm.lookup("customers"))
    def placed(orders: DataFrame, customers: DataFrame) -> DataFrame:
        return orders.where("cents > 0").join(customers, "customer", "left")

    @shop.table(placed, keys=["order"])
    def addressed(placed: DataFrame) -> DataFrame:
        return placed.select("order", "town", "_cause")

    @shop.table(placed, keys=["town"], aggregate=True, store="parquet")
    def towns(placed: DataFrame) -> DataFrame:
        known = placed.withColumn("town", F.coalesce("town", F.lit("none")))
        return known.groupBy("town").agg(F.sum("cents").alias("cents"), pipelines.latest_cause())

    @shop.effect(ORDERS, crm.lookup("customers"))
    def mail(orders: DataFrame, customers: DataFrame, batch: int) -> None:
        found = orders.join(customers, "customer", "left").select("order", "town").collect()
        MAILED.append((batch, sorted(map(tuple, found))))

    return shop


def run(runner: Runner, *names: str) -> None:
    runner.run(names, lambda _: None, lambda _: None, available_now=True)


def test_a_batch_that_is_repeated_looks_up_the_same_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the table moved on; the next batch sees new ones. By a broadcast and without, in an aggregate too."""
    MAILED.clear()
    topics, shop = FileTopics(tmp_path / "topics"), declared(tmp_path)
    crm = shop.step("addressed").lookups[0].pipeline
    copy = spark.newSession()  # the thread's session may be a query's copy, which knows the data source already
    make_active(copy)
    copy.dataSource.register(lookups.LookupSource)
    assert DryRunner(shop, spark, topics).plan("addressed").rows.columns[:2] == ["order", "town"]
    with pytest.raises(ConfigError, match=r"customers of pipeline crm is looked up, and holds nothing yet .* run that"):
        run(Runner(shop, spark, topics), "addressed")
    topics.append("orders", [("A0", {"customer": "ann", "cents": 1})])
    Runner(crm, spark, topics).start(Runner(crm, spark, topics).plan("customers"), True, "").query.awaitTermination()
    run(Runner(shop, spark, topics), "addressed", "mail")
    topics.append("customers", [("ann", {"town": "Bonn"}), ("bob", {"town": "Kiel"})])
    run(Runner(crm, spark, topics), "customers")
    topics.append("orders", [("A1", {"customer": "ann", "cents": 5}), ("B1", {"customer": "bob", "cents": 0})])

    def fail(name: str) -> None:
        if name == "batch computed":
            raise RuntimeError("cut off here")

    for step, bytes_max in {"addressed": lookups.BROADCAST_BYTES_MAX, "towns": -1}.items():
        monkeypatch.setattr(lookups, "BROADCAST_BYTES_MAX", bytes_max)
        with pytest.raises(QueryFailedError, match="cut off here"):
            run(Runner(shop, spark, topics, fail), step)
    run(Runner(shop, spark, topics), "mail")
    topics.append("customers", [("ann", {"town": "Ulm"}), ("bob", None)])
    run(Runner(crm, spark, topics), "customers")
    run(Runner(shop, spark, topics), "addressed", "towns")
    topics.append("orders", [("A2", {"customer": "ann", "cents": 7}), ("B2", {"customer": "bob", "cents": 2})])
    run(Runner(shop, spark, topics), "addressed", "towns", "mail")
    rows = pipelines.open_table(shop, "addressed").rows().to_pylist()
    assert {row["order"]: row["town"] for row in rows} == {"A0": None, "A1": "Bonn", "A2": "Ulm", "B2": None}
    sums = pipelines.open_table(shop, "towns").rows().to_pylist()
    # Its first batch, A0, was cut off; A1 came after customers had moved on.
    assert {row["town"]: row["cents"] for row in sums} == {"Bonn": 1, "Ulm": 12, "none": 2}
    assert MAILED == [(0, [("A0", None)]), (1, [("A1", "Bonn"), ("B1", "Kiel")]), (2, [("A2", "Ulm"), ("B2", None)])]
