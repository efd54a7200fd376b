"""A stream on a real node, a table that reads its output, and what becomes of both when the stream is reprocessed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.worlds.served_node import Served

from duramen import pipelines
from duramen.client import Cluster
from duramen.errors import ConfigError
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.reprocess import NotReadyError, Reprocessing
from duramen.pipelines.run.runner import Mark, QueryFailedError, Runner, nowhere
from duramen.swaps import CutOver, GroupReader, SwapLog

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


def reading_by_name(node: Served, folder: Path) -> pipelines.Pipeline:
    """Another pipeline: it knows of the stream nothing but its topic."""
    pipeline = pipelines.Pipeline("other", bootstrap=node.bootstrap, folder=folder / "other")

    @pipeline.history(pipelines.Topic("late", key="tail", schema="delay int"), store="parquet")
    def seen(late: DataFrame) -> DataFrame:
        return late.select("tail", "delay", "_cause")

    return pipeline


def told(node: Served) -> list[CutOver]:
    """The cuts that the node tells."""
    with Cluster(node.bootstrap) as cluster:
        return list(SwapLog(cluster).cuts("late"))


def cut_off(point: str) -> None:
    if point == "switched":
        raise RuntimeError("cut off")


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
    other = reading_by_name(node, tmp_path)
    run(other, "seen")
    assert delays() == {"N1": 20, "N3": 30}
    fly(node, N3=None)
    run(before, "late")  # the deletion lies in the old topic, before the cut, and the table has not read it

    after = declared(node, tmp_path, 5)
    work = Reprocessing(after, "late")
    assert work.build(Runner(after, spark, DuramenConnector(node.bootstrap)), "v2", quiet, quiet).behind == 0
    with pytest.raises(RuntimeError, match="cut off"):
        Reprocessing(after, "late", cut_off).swap("v2")
    assert told(node) == [], "the swap took effect, and the node does not know yet"
    assert work.swap("v2") == 0.0, "asked again, it only finishes"
    (cut,) = StepFolder(after.folder, "late").current().cuts
    assert (cut.old, cut.new) == ("late", "late.v2")
    assert told(node) == [cut]
    fly(node, N4=8, N1=3)
    run(after, "late")
    run(after, "latest")
    # N3 is gone by the old topic's last record, N1 by the new logic, N4 came by it; N2 lies before the cut in v2.
    assert delays() == {"N4": 8}
    causes = {row["_topic"] for row in pipelines.open_table(after, "latest").rows().to_pylist()}
    assert causes == {"late.v2"}

    run(other, "seen")
    seen = [(row["tail"], row["delay"]) for row in pipelines.open_table(other, "seen").rows().to_pylist()]
    # Of the pipeline that knows the topic by name: the old one to the cut, the new one from it; nothing of the replay.
    wanted = [("N1", 20), ("N2", None), ("N3", 30), ("N3", None), ("N1", None), ("N4", 8)]
    assert Counter(seen) == Counter(wanted)
    with pytest.raises(NotReadyError, match="v1 is 2 records behind v2"):
        work.rollback()
    assert work.rollback(allow_behind=2)[0] == "v1"
    assert [(cut.old, cut.new) for cut in told(node)] == [("late", "late.v2"), ("late.v2", "late")]
    with pytest.raises(NotReadyError, match="already"):
        work.rollback(allow_behind=2)


def records(node: Served, topic: str) -> list[tuple[str, dict[str, int]]]:
    """Keys and values of a topic, in the order of each partition."""
    found: list[tuple[str, dict[str, int]]] = []
    with GroupReader(node.bootstrap, "audit", topic) as reader:
        while not (found and reader.at_end):
            found += [
                (bytes(each.key() or b"").decode(), json.loads(each.value() or b""))
                for each in reader.consume(timeout=0.2)
            ]
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_change_of_a_sum_is_written_once(spark: SparkSession, node: Served, tmp_path: Path) -> None:
    """The driver dies when the sink has a batch that Spark has not noted: it comes again, under the same number."""
    pipeline = pipelines.Pipeline("tour", bootstrap=node.bootstrap, folder=tmp_path / "tables")

    @pipeline.stream(FLIGHTS, to="sums", key="tail", aggregate=True)
    def sums(flights: DataFrame) -> DataFrame:
        return flights.groupBy("tail").agg(F.sum("delay").alias("minutes"), pipelines.latest_cause())

    @pipeline.table(pipeline.output("sums", schema="minutes bigint"), keys=["tail"], store="parquet")
    def latest(sums: DataFrame) -> DataFrame:
        return sums

    def run(step: str, mark: Mark = nowhere) -> None:
        Runner(pipeline, spark, DuramenConnector(node.bootstrap), mark).run([step], quiet, quiet, available_now=True)

    def cut_off_behind(point: str) -> None:
        if point == "batch applied":
            raise RuntimeError("cut off")

    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for created in admin.create_topics([NewTopic("flights", 2, 1)], operation_timeout=20).values():
        created.result(20)
    fly(node, N1=20, N2=7)
    for delays in ({}, {"N1": 1, "N3": 4}):
        fly(node, **delays)
        with pytest.raises(QueryFailedError, match="cut off"):
            run("sums", cut_off_behind)
    run("sums")
    run("latest")
    # The run that was cut off first has its batch again in the second run, which then comes to one of its own.
    changes = [("N1", {"minutes": 20}), ("N1", {"minutes": 21}), ("N2", {"minutes": 7}), ("N3", {"minutes": 4})]
    written = [(key, {"minutes": value["minutes"]}) for key, value in records(node, "sums")]
    assert sorted(written, key=str) == sorted(changes, key=str)
    rows = pipelines.open_table(pipeline, "latest").rows().to_pylist()
    assert {row["tail"]: row["minutes"] for row in rows} == {"N1": 21, "N2": 7, "N3": 4}
    (settings,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "sums")]).values()
    assert settings.result(20)["cleanup.policy"].value == "compact"
    checkpoint = tmp_path / "tables" / "sums" / "v1" / "checkpoint-0"
    for newer in [path for kind in ("offsets", "commits") for path in (checkpoint / kind).glob("*1*")]:
        newer.unlink()
    with pytest.raises(ConfigError, match=r"has written 2 batches .*checkpoint-0 has 1: it was put back"):
        run("sums")
    shutil.rmtree(checkpoint)
    with pytest.raises(ConfigError, match=r"sums v1 .* has written 2 batches to its topic, and there is no"):
        run("sums")
