"""A stream on a real node, a table that reads its output, and what becomes of both when the stream is reprocessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from duramen import pipelines
from duramen.pipelines.connector import DuramenConnector
from duramen.pipelines.layout import StepFolder
from duramen.pipelines.reprocess import Reprocessing
from duramen.pipelines.runner import Runner
from serving import Served

FLIGHTS = pipelines.Topic("flights", key="tail", schema="delay int")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    served.start()
    try:
        yield served
    finally:
        served.kill()


def fly(node: Served, **delays: int | None) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for tail, delay in delays.items():
        producer.produce("flights", None if delay is None else json.dumps({"delay": delay}), tail)
    assert producer.flush(20) == 0


def declared(node: Served, folder: Path, threshold: int) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("tour", bootstrap=node.bootstrap, folder=folder / "tables")

    def late(flights: DataFrame) -> DataFrame:
        return pipelines.where(flights, f"delay > {threshold}")

    # Logic is told apart by its text; the threshold is not in it.
    def late_v2(flights: DataFrame) -> DataFrame:
        return pipelines.where(flights, f"delay > {threshold} AND delay IS NOT NULL")

    chosen = late if threshold == 10 else late_v2
    chosen.__name__ = "late"
    pipeline.stream(FLIGHTS, to="late", key="tail")(chosen)

    @pipeline.table(pipeline.output("late", schema="delay int"), keys=["tail"], store="parquet")
    def latest(late: DataFrame) -> DataFrame:
        return late.select("tail", "delay", "_cause")

    return pipeline


def quiet(_: object) -> None:
    """Nobody listens."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_readers_of_a_stream_go_on_behind_the_cut(spark: SparkSession, node: Served, tmp_path: Path) -> None:
    topic = NewTopic("flights", num_partitions=2, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for created in admin.create_topics([topic], operation_timeout=20).values():
        created.result(20)
    fly(node, N1=20, N2=7, N3=30)
    before = declared(node, tmp_path, 10)

    def run(pipeline: pipelines.Pipeline, step: str) -> None:
        Runner(pipeline, spark, DuramenConnector(node.bootstrap)).run([step], quiet, quiet, available_now=True)

    def delays() -> dict[str, int]:
        rows = pipelines.open_table(before, "latest").rows().to_pylist()
        return {row["tail"]: row["delay"] for row in rows}

    run(before, "late")
    run(before, "latest")
    assert delays() == {"N1": 20, "N3": 30}
    fly(node, N3=None)
    run(before, "late")  # the deletion lies in the old topic, before the cut, and the table has not read it

    after = declared(node, tmp_path, 5)
    work = Reprocessing(after, "late")
    assert work.build(Runner(after, spark, DuramenConnector(node.bootstrap)), "v2", quiet, quiet).behind == 0
    work.swap("v2")
    (cut,) = StepFolder(after.folder, "late").current().cuts
    assert (cut.old, cut.new) == ("late", "late.v2")
    fly(node, N4=8, N1=3)
    run(after, "late")
    run(after, "latest")
    # N3 is gone by the old topic's last record, N1 by the new logic, N4 came by it; N2 lies before the cut in v2.
    assert delays() == {"N4": 8}
    causes = {row["_topic"] for row in pipelines.open_table(after, "latest").rows().to_pylist()}
    assert causes == {"late.v2"}
