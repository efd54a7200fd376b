"""Real Spark writes to a real node: batch, streams over restarts, tasks that fail, commits whose answer is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_points import FaultPoints
from held_node import COMMITTED, PARTLY_MOVED, HeldNode
from kafka.partitioner.default import murmur2
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from sink_lab import SOURCE, create_topic, read_all, register, values
from tests.worlds.served_node import Served

from duramen.client import ANY, Cluster
from duramen.spark.sink.sink_calls import SinkCalls
from duramen.spark.sink.sink_points import AFTER_COMMIT, AFTER_STAGE, BEFORE_COMMIT, TASK_DONE
from duramen.wire.messages import API

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 240

ROWS = 50
"""A micro-batch of the rate source: batch n holds the values [n * ROWS, (n + 1) * ROWS)."""


class Lab:
    def __init__(self, spark: SparkSession, node: Served, points: FaultPoints, folder: Path) -> None:
        self.spark = spark
        self.node = node
        self.points = points
        self.folder = folder
        self.options = {"kafka.bootstrap.servers": node.bootstrap}

    def topic(self, name: str, partitions: int = 2) -> str:
        create_topic(self.node.bootstrap, name, partitions)
        return name

    def numbers(self, first: int, last: int) -> DataFrame:
        return self.spark.range(first, last).selectExpr("cast(id as string) key", "cast(id as string) value")

    def write(self, rows: DataFrame, topic: str, source: str = "duramen", **more: str) -> None:
        rows.write.format(source).mode("append").options(**self.options, topic=topic, **more).save()

    def start(self, topic: str, name: str, source: str = SOURCE, **more: str) -> StreamingQuery:
        rows = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        out = rows.selectExpr("cast(value as string) key", "cast(value as string) value").writeStream.format(source)
        options = {**self.options, "topic": topic, "checkpointLocation": str(self.folder / name), **more}
        return out.options(**options).trigger(processingTime="0 seconds").start()


@pytest.fixture(scope="module")
def lab(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("sink")
    (folder / "points").mkdir()
    points = FaultPoints(folder / "points")
    register(spark, points)
    node = HeldNode(folder)
    node.start()
    yield Lab(spark, node, points, folder)
    node.kill()


def until_batch(query: StreamingQuery, number: int) -> None:
    """Wait until the query has finished batch `number`, and stop it."""
    give_up = time.monotonic() + PATIENCE_S
    while (query.lastProgress or {"batchId": -1})["batchId"] < number:
        assert query.isActive, query.exception()
        assert time.monotonic() < give_up
        time.sleep(0.02)
    query.stop()


def failure(query: StreamingQuery) -> str:
    with pytest.raises(PySparkException):
        query.awaitTermination(PATIENCE_S)
    return str(query.exception())


def assert_each_once(found: Counter[bytes | None]) -> None:
    """Everything from 0 on, without a gap and without a double."""
    assert found == Counter(str(n).encode() for n in range(len(found)))
    assert len(found) % ROWS == 0
    assert found


def test_a_table_is_written_with_all_its_columns(lab: Lab) -> None:
    topic = lab.topic("columns", 3)
    rows = lab.spark.range(0, 3000, 1, 2).selectExpr(
        "concat('k', id % 100) key",
        "cast(cast(id as string) as binary) value",
        "array(struct('h' as key, cast('x' as binary) as value)) headers",
        "timestamp_millis(1700000000000 + id) timestamp",
        "if(id = 7, 2, null) partition",
    )
    lab.write(rows, topic, compression="zstd")
    found = read_all(lab.node.bootstrap, topic)
    assert sorted(int(r.value) for part in found.values() for r in part) == list(range(3000))
    for partition, records in found.items():
        for record in records:
            number = int(record.value)
            assert record.timestamp == 1_700_000_000_000 + number
            assert record.headers == [(b"h", b"x")]
            assert record.key == f"k{number % 100}".encode()
            assert partition == (2 if number == 7 else (murmur2(record.key) & 0x7FFFFFFF) % 3)


def test_save_modes_are_those_a_log_can_keep(lab: Lab) -> None:
    topic = lab.topic("modes")
    writer = lab.numbers(0, 1).write.format("duramen").options(**lab.options, topic=topic)
    with pytest.raises(PySparkException, match="only appended to"):
        writer.mode("overwrite").save()
    with pytest.raises(PySparkException, match="cannot be written in the"):
        writer.mode("ignore").save()
    with pytest.raises(PySparkException, match="unknown option topik"):
        writer.option("topik", "x").mode("append").save()
    assert not values(lab.node.bootstrap, topic)


def test_a_rerun_with_the_same_batch_id_writes_nothing_twice(lab: Lab) -> None:
    topic = lab.topic("rerun")
    for _ in range(2):
        lab.write(lab.numbers(0, 100), topic, sinkId="nightly", batchId="7")
    assert values(lab.node.bootstrap, topic) == Counter(str(n).encode() for n in range(100))


def test_a_job_of_its_own_leaves_no_sink_behind(lab: Lab) -> None:
    topic = lab.topic("alone")
    lab.write(lab.numbers(0, 10), topic)
    with Cluster(lab.node.bootstrap) as cluster:
        listed = cluster.call(ANY, 10006, API[10006].request.new()).sinks
    assert not [sink.sink_id for sink in listed if sink.sink_id.startswith("spark-job-")]


def test_at_least_once_names_each_row_in_its_headers(lab: Lab) -> None:
    topic = lab.topic("plain")
    lab.write(lab.numbers(0, 200), topic, delivery="at-least-once")
    rows = [dict(r.headers) for part in read_all(lab.node.bootstrap, topic).values() for r in part]
    assert len({(row[b"duramen.partition"], row[b"duramen.seq"]) for row in rows}) == len(rows) == 200


def test_failed_attempts_of_tasks_leave_nothing_behind(lab: Lab) -> None:
    if lab.spark.sparkContext.master == "local[2]":
        pytest.skip("this session does not try a failed task again")
    topic = lab.topic("attempts")
    for point in (AFTER_STAGE, TASK_DONE):
        lab.points.set(point, "raise")
        lab.write(lab.numbers(0, 500), topic, SOURCE)
        assert lab.points.fired(point)
    assert values(lab.node.bootstrap, topic) == Counter({str(n).encode(): 2 for n in range(500)})


def test_a_stream_goes_on_from_its_checkpoint(lab: Lab) -> None:
    topic = lab.topic("stream")
    until_batch(lab.start(topic, "stream", "duramen"), 0)
    until_batch(lab.start(topic, "stream", "duramen"), 2)
    assert_each_once(values(lab.node.bootstrap, topic))


@pytest.mark.parametrize("point", [BEFORE_COMMIT, AFTER_COMMIT])
def test_a_commit_that_fails_before_or_after_it_took_effect(lab: Lab, point: str) -> None:
    """Spark calls abort in both cases, and the batch again after the restart."""
    topic = lab.topic(f"commit-{point}")
    query = lab.start(topic, point)
    lab.points.set(point, "raise")
    assert f"injected at {point}" in failure(query)
    until_batch(lab.start(topic, point), 1)
    assert_each_once(values(lab.node.bootstrap, topic))


@pytest.mark.parametrize("point", [COMMITTED, PARTLY_MOVED])
def test_a_node_that_dies_between_commit_and_moving_goes_on_with_it(lab: Lab, point: str) -> None:
    topic = lab.topic(point)
    lab.points.set(point, "hold")
    try:
        query = lab.start(topic, point)
        give_up = time.monotonic() + PATIENCE_S
        while lab.points.held(point) is None:
            assert query.isActive, query.exception()
            assert time.monotonic() < give_up
            time.sleep(0.01)
    finally:  # who comes next has a node, and no point to be held at
        lab.node.kill()
        lab.points.clear(point)
        lab.node.start()
    until_batch(query, (query.lastProgress or {"batchId": 0})["batchId"] + 2)
    assert_each_once(values(lab.node.bootstrap, topic))


def test_a_second_driver_on_the_checkpoint_fences_the_first(lab: Lab) -> None:
    topic = lab.topic("drivers")
    query = lab.start(topic, "drivers")
    while query.lastProgress is None:
        assert query.isActive, query.exception()
        time.sleep(0.02)
    with Cluster(lab.node.bootstrap) as cluster:
        calls = SinkCalls(cluster, f"spark-query-{query.id}", timeout_s=30, wait_s=15)
        calls.claim("another driver", ephemeral=False)
    assert "another run writes as sink" in failure(query)
    assert_each_once(values(lab.node.bootstrap, topic))
