"""A stream is swapped and swapped back while its run, its readers and its producer go on: each has each record once.

It takes minutes: `make swaps`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from test_live_swap import Background, quiet
from tests.worlds.served_node import Served

from duramen import pipelines
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.reprocess import Reprocessing
from duramen.pipelines.run.runner import Runner
from duramen.swaps import GroupReader

pytestmark = [
    pytest.mark.skipif("DURAMEN_SPARK_LONG" not in os.environ, reason="minutes: make swaps"),
    pytest.mark.timeout(1800),
]
SECONDS_MAX = 900.0
PARTITIONS = 2
FLIGHTS = pipelines.Topic("flights", key="tail", schema="n int")
Record = tuple[str, int, str]
"""Key, number of the flight, version that wrote it."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, {"group.initial.rebalance.delay.ms": "0"})
    served.start()
    try:
        yield served
    finally:
        served.kill()


def by_v1(flights: DataFrame) -> DataFrame:
    return flights.selectExpr("tail", "n", "'v1' AS by", "_cause")


def by_v2(flights: DataFrame) -> DataFrame:
    return flights.selectExpr("tail", "n", "'v2' AS by", "_cause")


def declared(node: Served, folder: Path, logic: Callable[[DataFrame], DataFrame]) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("tour", bootstrap=node.bootstrap, folder=folder / "tables")
    logic.__name__ = "late"
    pipeline.stream(FLIGHTS, to="late", key="tail")(logic)
    return pipeline


def reading_by_name(node: Served, folder: Path) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("other", bootstrap=node.bootstrap, folder=folder / "other")

    @pipeline.history(pipelines.Topic("late", key="tail", schema="n int, by string"), store="parquet")
    def seen(late: DataFrame) -> DataFrame:
        return late.select("tail", "n", "by", "_cause")

    return pipeline


class Flying(Background):
    """Flights that never rest, until it is stopped."""

    def __init__(self, node: Served) -> None:
        self.stop = threading.Event()
        self.count = 0
        self.producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
        super().__init__(self.fly)

    def fly(self) -> None:
        while not self.stop.wait(0.05):
            key = f"N{self.count % 7}"
            self.producer.produce("flights", json.dumps({"n": self.count}), key)
            self.producer.poll(0)
            self.count += 1
        assert self.producer.flush(60) == 0


class Group(Background):
    """A member of a group that follows the stream."""

    def __init__(self, node: Served) -> None:
        self.stop = threading.Event()
        self.read: list[Record] = []
        self.node = node
        super().__init__(self.follow)

    def follow(self) -> None:
        with GroupReader(self.node.bootstrap, "audit", "late") as reader:
            while not self.stop.is_set():
                for message in reader.consume(timeout=0.2):
                    assert message.error() is None
                    value = json.loads(message.value() or b"")
                    self.read.append(((message.key() or b"").decode(), value["n"], value["by"]))
                reader.commit()


def wait_for(condition: Callable[[], bool], *alive: Background) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < until
        for one in alive:
            if one.failure is not None:
                raise one.failure
        time.sleep(0.1)


def check(read: list[Record], count: int) -> None:
    """Each flight once; of a key in order; the versions one behind the other."""
    assert sorted(n for _, n, _ in read) == list(range(count))
    for key in {key for key, _, _ in read}:
        mine = [(n, by) for tail, n, by in read if tail == key]
        assert mine == sorted(mine)
        versions = [by for place, (_, by) in enumerate(mine) if place == 0 or mine[place - 1][1] != by]
        assert versions == ["v1", "v2", "v1"]


def test_readers_of_a_live_stream_have_each_record_once(
    spark: SparkSession, node: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine does not start a worker in the ten seconds that Spark gives it, however often that is tried.
    monkeypatch.setattr("duramen.pipelines.run.runner.RESTARTS_MAX", 1000)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    topics = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=1) for name in ("flights", "late")]
    for created in admin.create_topics(topics, operation_timeout=20).values():
        created.result(20)
    connector = DuramenConnector(node.bootstrap)
    before, after = declared(node, tmp_path, by_v1), declared(node, tmp_path, by_v2)
    file, other = [before], reading_by_name(node, tmp_path)
    stop, said = threading.Event(), list[str]()

    def running(pipeline: pipelines.Pipeline, step: str) -> Callable[[], None]:
        def run() -> None:
            spark.createDataFrame([(0,)], "n int")  # Spark finds formats of Python by the session of the thread
            Runner(pipeline, spark, connector).run(
                [step], quiet, said.append, trigger="500 milliseconds", until=stop.is_set, reload=lambda: file[0]
            )

        return run

    def history() -> list[Record]:
        rows = pipelines.open_table(other, "seen").rows().to_pylist()
        return [(row["tail"], row["n"], row["by"]) for row in rows]

    def switch(pipeline: pipelines.Pipeline, version: str) -> None:
        """As `duramen spark reprocess --version ... --swap`."""
        file[0] = pipeline
        runner, work = Runner(pipeline, spark, connector), Reprocessing(pipeline, "late")
        work.build(runner, version, quiet, said.append)
        work.swap(version, catch_up=lambda: work.catch_up(runner, version, quiet, said.append))
        wait_for(lambda: f"late goes on as {version}" in said, *alive)
        seen = len(group.read)
        wait_for(lambda: any(by == version for _, _, by in group.read[seen:]), *alive)

    flying, group = Flying(node), Group(node)
    runs = [Background(running(declared(node, tmp_path, by_v1), "late")), Background(running(other, "seen"))]
    alive = [flying, group, *runs]
    wait_for(lambda: len(group.read) > 20, *alive)
    wait_for(lambda: (StepFolder(other.folder, "seen").version("v1").progress() or {}).get("batch", -1) >= 0, *alive)
    switch(after, "v2")
    switch(before, "v1")
    flying.stop.set()
    flying.finish()
    wait_for(lambda: len(group.read) >= flying.count and len(history()) >= flying.count, *alive)
    time.sleep(3)  # whatever would come twice
    group.stop.set()
    stop.set()
    for one in (group, *runs):
        one.finish()
    check(group.read, flying.count)
    check(sorted(history(), key=lambda record: record[1]), flying.count)
    print(f"{flying.count} flights, {len(StepFolder(before.folder, 'late').current().cuts)} cuts")
