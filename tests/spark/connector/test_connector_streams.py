"""Streaming queries of Spark's own connector: restarts, a node that dies, losses, gaps, a change of format."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka_format import EVERYTHING, FAILURES, WAIT_S, KafkaFormat, once, records, values, waited
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from tests.spark.log_node import log_node

pytestmark = [EVERYTHING, pytest.mark.timeout(600)]


def rows_of(progress: list[dict[str, Any]]) -> list[int]:
    return [each["numInputRows"] for each in progress]


def test_a_restart_goes_on_also_in_new_partitions(kafka: KafkaFormat, tmp_path: Path) -> None:
    kafka.fill("restarted", 2)
    frame = kafka.stream("restarted", maxOffsetsPerTrigger=8)
    progress = kafka.drain(frame, tmp_path)
    assert rows_of(progress) == [8, 8, 4]
    assert [each["sources"][0]["metrics"]["maxOffsetsBehindLatest"] for each in progress] == ["6", "2", "0"]
    kafka.node.append("restarted", 0, records(20, 6))
    kafka.node.grow("restarted", 3)
    kafka.node.append("restarted", 2, records(26, 4))
    assert sum(rows_of(kafka.drain(frame, tmp_path))) == 10
    once(kafka.written(tmp_path), 30)
    assert kafka.drain(frame, tmp_path) == []


def test_starts_by_time_and_at_the_end(kafka: KafkaFormat, tmp_path: Path) -> None:
    kafka.fill("begun", 2)
    by_time = kafka.stream("begun", startingTimestamp=1006, startingOffsetsByTimestampStrategy="latest")
    kafka.drain(by_time, tmp_path / "time")
    assert values(kafka.written(tmp_path / "time")) == [6, 7, 8, 9, *range(10, 20)]
    at_the_end = kafka.stream("begun", startingOffsets="latest")
    assert kafka.drain(at_the_end, tmp_path / "end") == []
    kafka.node.append("begun", 1, records(20, 3))
    kafka.drain(at_the_end, tmp_path / "end")
    assert values(kafka.written(tmp_path / "end")) == [20, 21, 22]


def follow(kafka: KafkaFormat, frame: Any, folder: Path, topic: str) -> StreamingQuery:
    """A query that stays, in small batches, from topic to topic."""
    writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", kafka.node.bootstrap)
    writer = writer.option("topic", topic).option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(processingTime="200 milliseconds").start()


def test_a_query_that_stays_is_stopped_and_restarted_while_records_come(kafka: KafkaFormat, tmp_path: Path) -> None:
    source, copy = kafka.node.create("lively", 2), kafka.node.create("lively-copy", 2)
    total = 3000

    def write() -> None:
        producer = Producer({"bootstrap.servers": kafka.node.bootstrap})
        for number in range(total):
            producer.produce(source, b"v%d" % number, b"%d" % number)
            if number % 50 == 0:
                assert producer.flush(60) == 0
        assert producer.flush(60) == 0

    writer = threading.Thread(target=write)
    writer.start()
    frame = kafka.stream(source)
    for least in (500, 1500, total):
        query = follow(kafka, frame, tmp_path, copy)
        try:
            waited(lambda: query.exception() is not None or kafka.load(copy).count() >= least, "it reads no more")  # noqa: B023
            assert query.exception() is None
            if least == total:
                writer.join()
                query.processAllAvailable()
        finally:
            query.stop()
    found = {bytes(row.value) for row in kafka.load(copy).collect()}
    assert found == {b"v%d" % number for number in range(total)}  # a batch that was cut off is written twice: theirs


def test_a_node_that_is_killed_under_a_query(kafka: KafkaFormat, tmp_path: Path) -> None:
    with log_node(tmp_path, log_retention_ms="-1") as node:
        own = KafkaFormat(kafka.spark, node)
        source, copy = own.fill("killed", 2, 100), node.create("killed-copy", 2)
        query = follow(own, own.stream(source, maxOffsetsPerTrigger=40), tmp_path, copy)
        try:
            for round in range(1, 4):
                waited(lambda: own.load(copy).count() >= 60 * round, "it writes no more")  # noqa: B023
                node.kill()
                node.start()
                node.append(source, round % 2, records(100 + 100 * round, 100))
            query.processAllAvailable()
            assert query.exception() is None
        finally:
            query.stop()
        assert {bytes(row.value) for row in own.load(copy).collect()} == {b"v%d" % number for number in range(500)}


@pytest.mark.parametrize(
    "trigger", [{"continuous": "1 second"}, {"realTime": "6 seconds"}], ids=lambda each: next(iter(each))
)
def test_tasks_that_stay_and_poll(kafka: KafkaFormat, tmp_path: Path, trigger: dict[str, str]) -> None:
    """Continuous processing and real-time mode, which goes by Spark's Kafka source only; both go on after a stop.

    Their tasks take both cores, so that nothing else may be asked of Spark meanwhile.
    """
    name = next(iter(trigger))
    source, copy = kafka.fill(f"stay-{name}", 2), kafka.node.create(f"stay-{name}-copy", 2)
    for last in (20, 30):
        wanted = {b"v%d" % number for number in range(last)}
        writer = kafka.stream(source).writeStream.format("kafka").option("topic", copy).outputMode("update")
        writer = writer.option("kafka.bootstrap.servers", kafka.node.bootstrap)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger).start()
        try:
            waited(lambda: {each.value() for each in kafka.consumed(copy)} == wanted, "records are missing")  # noqa: B023
            assert query.exception() is None
            waited(lambda: _committed(tmp_path) == last, "the offsets are not committed")  # noqa: B023
        finally:
            query.stop()
        kafka.node.append(source, 1, records(20, 10))


def _committed(checkpoint: Path) -> int:
    """How many records the newest committed epoch has behind it."""
    epochs = [int(each.name) for each in (checkpoint / "commits").glob("*") if each.name.isdigit()]
    if not epochs:
        return 0
    ends = json.loads((checkpoint / "offsets" / str(max(epochs))).read_text().splitlines()[-1])
    return sum(end for topic in ends.values() for end in topic.values())


def test_a_loss_fails_the_query_or_is_passed_over(kafka: KafkaFormat, tmp_path: Path) -> None:
    kafka.fill("lossy", 1, 10)
    kafka.drain(kafka.stream("lossy"), tmp_path)
    for first in (10, 20, 30):
        kafka.node.append("lossy", 0, records(first, 10))
    kafka.node.delete_before("lossy", 0, 27)
    said = kafka.fails(kafka.stream("lossy"), tmp_path)
    assert "Some data may have been" in said, said
    assert len(kafka.written(tmp_path)) == 10
    kafka.drain(kafka.stream("lossy", failOnDataLoss="false"), tmp_path)
    assert values(kafka.written(tmp_path)) == [*range(10), *range(27, 40)]


def test_a_loss_under_a_batch(kafka: KafkaFormat) -> None:
    kafka.fill("lossy-batch", 1, 10)
    kafka.node.delete_before("lossy-batch", 0, 4)
    gone = {"startingOffsets": {"lossy-batch": {"0": 1}}}
    with pytest.raises(FAILURES, match="Some data may have been"):
        kafka.load("lossy-batch", **gone).collect()
    assert values(kafka.load("lossy-batch", failOnDataLoss="false", **gone).collect()) == [4, 5, 6, 7, 8, 9]
    assert values(kafka.load("lossy-batch").collect()) == [4, 5, 6, 7, 8, 9]


def test_a_topic_made_anew_under_the_query_is_a_loss(kafka: KafkaFormat, tmp_path: Path) -> None:
    with log_node(tmp_path, log_retention_ms="-1") as node:
        own = KafkaFormat(kafka.spark, node)
        own.fill("anew", 1, 10)
        own.drain(own.stream("anew"), tmp_path)
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.delete_topics(["anew"])["anew"].result(20)
        own.fill("anew", 1, 4)
        said = own.fails(own.stream("anew"), tmp_path)
        assert "Some data may have been" in said, said


def test_the_gaps_of_a_compacted_topic_are_no_loss(kafka: KafkaFormat, tmp_path: Path) -> None:
    topic = kafka.node.create(
        "compacted", 1, cleanup_policy="compact", segment_bytes=str(1 << 20), min_cleanable_dirty_ratio="0.01"
    )
    frame = kafka.stream(topic, maxOffsetsPerTrigger=150)
    total = 0
    for first in range(0, 8000, 500):
        batch = [(b"k%d" % (n % 7), b"v%d" % n + bytes(1000), (), 1000 + n) for n in range(first, first + 500)]
        total += len(batch)
        kafka.node.append(topic, 0, batch)
    waited(lambda: kafka.load(topic).count() < total - 1000, "nothing was compacted")
    kafka.drain(frame, tmp_path)
    found = {row.key: row.offset for row in sorted(kafka.written(tmp_path), key=lambda row: row.offset)}
    assert found == {b"k%d" % (n % 7): n for n in range(total - 7, total)}
    assert kafka.load(topic, minPartitions=9).count() < total - 1000
    last = {"startingOffsets": {topic: {"0": 1}}, "endingOffsets": {topic: {"0": 2}}}
    assert kafka.load(topic, **last).count() == 0


def test_both_isolation_levels(kafka: KafkaFormat, tmp_path: Path) -> None:
    topic = kafka.fill("isolated", 2)
    for level in ("read_committed", "read_uncommitted"):
        options = {"kafka.isolation.level": level}
        once(kafka.load(topic, **options).collect(), 20)
        kafka.drain(kafka.stream(topic, **options), tmp_path / level)
        once(kafka.written(tmp_path / level), 20)


def ported(kafka: KafkaFormat, topic: str, **options: str) -> DataFrame:
    """The query's frame when its format is changed to ours."""
    reader = kafka.spark.readStream.format("duramen").option("kafka.bootstrap.servers", kafka.node.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def test_a_job_changes_its_format_and_keeps_its_checkpoint(kafka: KafkaFormat, tmp_path: Path) -> None:
    """As docs/internals/spark-source.md says; a batch of theirs that was cut off is read again by ours."""
    topic = kafka.fill("kept", 2)

    def batches(frame: DataFrame) -> list[int]:
        def write(rows: DataFrame, number: int) -> None:
            rows.write.mode("overwrite").parquet(str(tmp_path / "out" / f"batch={number}"))

        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        return rows_of([each for each in query.recentProgress if each["numInputRows"]])

    assert batches(kafka.stream(topic, maxOffsetsPerTrigger=13)) == [12, 8]
    kafka.node.append(topic, 0, records(20, 5))
    for name in ("1", ".1.crc"):  # as if it had been killed in its second batch
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    (tmp_path / "out" / "batch=1").rename(tmp_path / "theirs")
    ours = ported(kafka, topic, startingOffsets="earliest", maxOffsetsPerTrigger="13")
    assert batches(ours) == [8, 5]
    once(kafka.written(tmp_path), 25)
    kafka.node.append(topic, 1, records(25, 4))
    kafka.node.grow(topic, 3)
    kafka.node.append(topic, 2, records(29, 2))
    assert batches(ours) == [6]
    once(kafka.written(tmp_path), 31)


def test_a_job_changes_its_format_and_starts_at_the_offsets_of_its_checkpoint(
    kafka: KafkaFormat, tmp_path: Path
) -> None:
    """As docs/internals/spark-source.md says."""
    topic = kafka.fill("ported", 2)
    kafka.drain(kafka.stream(topic, maxOffsetsPerTrigger=13), tmp_path / "old")
    kafka.node.append(topic, 1, records(20, 7))
    checkpoint = tmp_path / "old" / "checkpoint"
    newest = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
    offsets = (checkpoint / "offsets" / str(newest)).read_text().splitlines()[-1]
    assert json.loads(offsets) == {topic: {"0": 10, "1": 10}}
    frame = ported(kafka, topic, startingOffsets=offsets)
    kafka.drain(frame, tmp_path / "new")
    kafka.node.append(topic, 0, records(27, 3))
    kafka.drain(frame, tmp_path / "new")
    once([*kafka.written(tmp_path / "old"), *kafka.written(tmp_path / "new")], 30)
