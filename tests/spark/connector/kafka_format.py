"""What the tests of Spark's own Kafka connector do with it: read, write, run a query to the end of what there is."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.log_node import LogNode

from duramen.wire.batch import NewRecord

WAIT_S = 200
FAILURES = (PySparkException, Py4JJavaError)
EVERYTHING = pytest.mark.skipif(
    os.environ.get("DURAMEN_ALL_CONNECTOR") != "1",
    reason="minutes of Spark's own connector: `make conformance-spark-connector`",
)


def records(first: int, count: int, start_ms: int = 1000) -> list[NewRecord]:
    """Records that are all different, one a millisecond."""
    return [(b"k%d" % n, b"v%d" % n, [(b"h", b"%d" % n)], start_ms + n) for n in range(first, first + count)]


def waited(what: Callable[[], bool], why: str) -> None:
    """Wait until it holds."""
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.1)


class KafkaFormat:
    """Spark's connector and the node that it talks to."""

    def __init__(self, spark: SparkSession, node: LogNode) -> None:
        self.spark = spark
        self.node = node

    def fill(self, topic: str, partitions: int = 1, count: int = 10) -> str:
        """A topic with `count` records in each partition, v0 v1 ... in the first one and so on; its name."""
        self.node.create(topic, partitions)
        for partition in range(partitions):
            self.node.append(topic, partition, records(partition * count, count))
        return topic

    def load(self, topic: str | None = None, **options: Any) -> DataFrame:
        return self._options(self.spark.read.format("kafka"), topic, options).load()

    def stream(self, topic: str | None = None, **options: Any) -> DataFrame:
        options = {"startingOffsets": "earliest", **options}
        return self._options(self.spark.readStream.format("kafka"), topic, options).load()

    def _options(self, reader: Any, topic: str | None, options: dict[str, Any]) -> Any:
        if topic is not None:
            options = {"subscribe": topic, **options}
        return reader.option("kafka.bootstrap.servers", self.node.bootstrap).options(**_texts(options))

    def save(self, rows: DataFrame, **options: Any) -> None:
        options = {"kafka.bootstrap.servers": self.node.bootstrap, **options}
        rows.write.format("kafka").options(**_texts(options)).save()

    def start(self, frame: DataFrame, folder: Path, **options: Any) -> StreamingQuery:
        """A query into a topic (option topic) or into Parquet below `folder`, until it has read what there is."""
        options = {"checkpointLocation": folder / "checkpoint", **options}
        if "topic" in options:
            writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", self.node.bootstrap)
        else:
            writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
        return writer.options(**_texts(options)).trigger(availableNow=True).start()

    def drain(self, frame: DataFrame, folder: Path, **options: Any) -> list[dict[str, Any]]:
        """Run such a query to its end; the progress of every batch that had rows."""
        query = self.start(frame, folder, **options)
        try:
            assert query.awaitTermination(WAIT_S), f"the query did not end:\n{self.node.log()}"
        finally:
            query.stop()
        return [each for each in query.recentProgress if each["numInputRows"]]

    def fails(self, frame: DataFrame, folder: Path) -> str:
        """What the query fails with."""
        with pytest.raises(StreamingQueryException) as failed:
            self.drain(frame, folder)
        return str(failed.value)

    def written(self, folder: Path) -> list[Row]:
        """What queries have put into Parquet."""
        return self.spark.read.parquet(str(folder / "out")).collect()

    def consumed(self, topic: str) -> list[Any]:
        """All messages of a topic by another client, by partition and offset."""
        consumer = Consumer({"bootstrap.servers": self.node.bootstrap, "group.id": "x", "auto.offset.reset": "error"})
        try:
            found: list[Any] = []
            for partition in consumer.list_topics(topic, 20).topics[topic].partitions:
                first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
                consumer.assign([TopicPartition(topic, partition, first)])
                until = time.monotonic() + WAIT_S
                while consumer.position([TopicPartition(topic, partition)])[0].offset < end and first < end:
                    assert time.monotonic() < until
                    message = consumer.poll(1)
                    if message is not None:
                        assert message.error() is None
                        found.append(message)
            return found
        finally:
            consumer.close()


def values(rows: Sequence[Row]) -> list[int]:
    """The numbers in values like v17, in order."""
    return sorted(int(row.value[1:]) for row in rows)


def once(rows: Sequence[Any], count: int) -> None:
    """Each of v0 ... is there exactly once."""
    found = Counter(int(bytes(row.value() if callable(row.value) else row.value)[1:]) for row in rows)
    assert found == Counter(range(count)), found - Counter(range(count)) or Counter(range(count)) - found


def _texts(options: dict[str, Any]) -> dict[str, str]:
    """Options as Spark takes them: dicts are JSON, and a double underscore is a dot."""
    return {
        name.replace("__", "."): json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in options.items()
    }
