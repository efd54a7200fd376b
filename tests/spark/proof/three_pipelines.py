"""The three pipelines that are killed, as a user would write them; their input is that of `made_records`.

rows: the most that a batch has of each topic, 0 for no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from proof.made_records import BOUGHT, CLICKS, CUSTOMERS, ORDERS, PAYMENTS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from duramen.pipelines import Pipeline, Topic, joined_cause, latest_cause

SENT, PAGES = "orders.sent", "clicks.pages"
"""The topics that `sent` and `pages` write."""


def shop(folder: Path, bootstrap: str, rows: int) -> Pipeline:
    """Orders, of which some are bad, beside a Debezium-shaped topic."""
    pipeline = Pipeline("shop", bootstrap=bootstrap, folder=folder)
    orders = Topic(
        ORDERS,
        schema="order_id string, customer_id int, amount double, status string, ordered_at timestamp",
        key="order_id",
        corrupt="quarantine",
        options={"includeHeaders": "true", **_limit(rows)},
    )
    changes = Topic(
        CUSTOMERS,
        schema="customer_id int, name string, city string, updated_at timestamp, __ts_ms timestamp",
        key="customer_id",
        envelope="debezium",
        options=_limit(rows),
    )

    @pipeline.table(orders, keys=["order_id"], expect={"paid": "amount > 0"}, on_violation="quarantine")
    def latest(orders: DataFrame) -> DataFrame:
        return orders.select("order_id", "customer_id", "amount", "status", "ordered_at", "_cause")

    @pipeline.stream(replace(orders, corrupt="keep"), to=SENT, key="order_id")
    def sent(orders: DataFrame) -> DataFrame:
        gone = orders.where("_corrupt is null and amount > 0 and status = 'sent'")
        return gone.select("order_id", "amount", "ordered_at", "headers", "timestamp", "_cause")

    @pipeline.table(changes, keys=["customer_id"], store="parquet")
    def customers(changes: DataFrame) -> DataFrame:
        return changes.select("customer_id", "name", "city", "updated_at", "_cause")

    @pipeline.table(changes, keys=["customer_id"], history="scd2", version="changed_at")
    def every_customer(changes: DataFrame) -> DataFrame:
        moment = F.col("__ts_ms").alias("changed_at")
        return changes.select("customer_id", "name", "city", "updated_at", moment, "_cause")

    return pipeline


def clicks(folder: Path, bootstrap: str, rows: int) -> Pipeline:
    """Clicks in windows of five minutes, as they come and when they are done with."""
    pipeline = Pipeline("clicks", bootstrap=bootstrap, folder=folder)
    topic = Topic(CLICKS, schema="page string, clicked_at timestamp", corrupt="keep", options=_limit(rows))

    def counted(clicks: DataFrame) -> DataFrame:
        sound = clicks.where("_corrupt is null and not _cause.deleted").withWatermark("clicked_at", "10 minutes")
        windows = sound.groupBy(F.window("clicked_at", "5 minutes"), "page")
        counts = windows.agg(F.count("*").alias("clicks"), latest_cause())
        return counts.select(F.col("window.start").alias("start"), "page", "clicks", "_cause")

    @pipeline.table(topic, keys=["start", "page"], aggregate=True)
    def visits(clicks: DataFrame) -> DataFrame:
        return counted(clicks)

    @pipeline.history(topic, emits="append")
    def closed(clicks: DataFrame) -> DataFrame:
        return counted(clicks)

    @pipeline.stream(topic, to=PAGES, key="page", aggregate=True)
    def pages(clicks: DataFrame) -> DataFrame:
        sound = clicks.where("_corrupt is null and not _cause.deleted")
        return sound.groupBy("page").agg(F.count("*").alias("clicks"), latest_cause())

    return pipeline


def joins(folder: Path, bootstrap: str, rows: int) -> Pipeline:
    """Orders with their payments: the latest of both, and whether one came within the hour."""
    pipeline = Pipeline("joins", bootstrap=bootstrap, folder=folder)
    bought = Topic(
        BOUGHT,
        schema="order_id string, amount double, ordered_at timestamp",
        key="order_id",
        corrupt="keep",
        options=_limit(rows),
    )
    payments = Topic(
        PAYMENTS,
        schema="payment_id string, order_id string, amount double, paid_at timestamp",
        corrupt="keep",
        options=_limit(rows),
    )

    @pipeline.table(bought, payments, keys=["order_id", "payment_id"])
    def paid(bought: DataFrame, payments: DataFrame) -> DataFrame:
        order, payment = bought.where("_corrupt is null").alias("o"), payments.where("_corrupt is null").alias("p")
        pairs = order.join(payment, F.col("o.order_id") == F.col("p.order_id"))
        amounts = F.col("o.amount").alias("ordered"), F.col("p.amount").alias("paid")
        return pairs.select("o.order_id", "payment_id", *amounts, joined_cause("o._cause", "p._cause"))

    @pipeline.history(bought, payments, emits="append")
    def outcome(bought: DataFrame, payments: DataFrame) -> DataFrame:
        order = bought.where("_corrupt is null and not _cause.deleted").withWatermark("ordered_at", "10 minutes")
        payment = payments.where("_corrupt is null").withWatermark("paid_at", "20 minutes")
        order, payment = order.alias("o"), payment.alias("p")
        within = "o.order_id = p.order_id AND paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 1 HOUR"
        found = order.join(payment, F.expr(within), "left_outer")
        return found.select("o.order_id", "payment_id", joined_cause("o._cause", "p._cause"))

    return pipeline


def _limit(rows: int) -> Mapping[str, str]:
    return {"maxOffsetsPerTrigger": str(rows)} if rows else {}


PIPELINES: Final[Mapping[str, Callable[[Path, str, int], Pipeline]]] = {"shop": shop, "clicks": clicks, "joins": joins}
