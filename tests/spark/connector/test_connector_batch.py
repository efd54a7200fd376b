"""Every option by which Spark's own connector reads and writes a batch, against a node of ours."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka_format import EVERYTHING, FAILURES, KafkaFormat, once, records, values, waited
from pyspark.sql import DataFrame

pytestmark = [EVERYTHING, pytest.mark.timeout(600)]


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def span(partition: int, first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(first, end)]


@pytest.mark.parametrize("codec", range(5))
def test_every_compression_is_read(kafka: KafkaFormat, codec: int) -> None:
    topic = kafka.node.create(f"codec-{codec}")
    for first in range(0, 3000, 1000):
        kafka.node.append(topic, 0, records(first, 1000), codec=codec)
    once(kafka.load(topic).collect(), 3000)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_written(kafka: KafkaFormat, compression: str) -> None:
    topic = kafka.node.create(f"written-{compression}", 2)
    rows = kafka.spark.range(2000).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key", "CAST('v' || id AS BINARY) AS value"
    )
    kafka.save(rows, topic=topic, kafka__compression__type=compression)
    once(kafka.consumed(topic), 2000)


def test_explicit_offsets(kafka: KafkaFormat) -> None:
    topic = kafka.fill("offsets", 3)
    earliest = kafka.load(topic, startingOffsets="earliest", endingOffsets="latest")
    assert offsets(earliest) == [*span(0, 0, 10), *span(1, 0, 10), *span(2, 0, 10)]
    some = kafka.load(
        topic,
        startingOffsets={topic: {"0": 3, "1": -2, "2": 10}},
        endingOffsets={topic: {"0": 7, "1": 4, "2": -1}},
    )
    assert offsets(some) == [*span(0, 3, 7), *span(1, 0, 4)]


def test_offsets_by_time(kafka: KafkaFormat) -> None:
    topic = kafka.fill("times", 2)  # moments 1000 to 1009 and 1010 to 1019
    options: dict[str, Any] = {"startingOffsetsByTimestamp": {topic: {"0": 1003, "1": 0}}}
    options["endingOffsetsByTimestamp"] = {topic: {"0": 1008, "1": 1012}}
    assert offsets(kafka.load(topic, **options)) == [*span(0, 3, 8), *span(1, 0, 2)]
    all_at_once = kafka.load(topic, startingTimestamp=1005, endingTimestamp=1015)
    assert offsets(all_at_once) == [*span(0, 5, 10), *span(1, 0, 5)]
    with pytest.raises(FAILURES, match="No offset matched from request"):
        kafka.load(topic, startingTimestamp=1015).collect()
    at_the_end = kafka.load(topic, startingTimestamp=1015, startingOffsetsByTimestampStrategy="latest")
    assert offsets(at_the_end) == span(1, 5, 10)
    assert offsets(kafka.load(topic, endingTimestamp=99999)) == [*span(0, 0, 10), *span(1, 0, 10)]


def test_times_inside_a_batch_and_across_segments(kafka: KafkaFormat) -> None:
    topic = kafka.node.create("times-segments", 1, segment_bytes=str(1 << 20))
    for first in range(0, 4000, 500):
        large = [(key, bytes(1000), headers, moment) for key, _, headers, moment in records(first, 500)]
        kafka.node.append(topic, 0, large)
    for moment in (1000, 1001, 1499, 1500, 2750, 4999):
        assert offsets(kafka.load(topic, startingTimestamp=moment))[0] == (0, moment - 1000)


def test_ways_to_name_topics(kafka: KafkaFormat) -> None:
    for name in ("named-a", "named-b", "other-named-a"):
        kafka.fill(name, 2, 3)
    for pattern, found in {
        "named-.*": {"named-a", "named-b", "other-named-a"},
        "^named-": {"named-a", "named-b"},
    }.items():
        assert {row.topic for row in kafka.load(subscribePattern=pattern).collect()} == found
        ours = kafka.spark.read.format("duramen").option("kafka.bootstrap.servers", kafka.node.bootstrap)
        assert {row.topic for row in ours.option("subscribePattern", pattern).load().collect()} == found
    assert kafka.load(subscribe="named-a,other-named-a").count() == 12
    assert kafka.load(assign='{"named-a":[1],"named-b":[0]}').count() == 6
    with pytest.raises(FAILURES, match=r"(?i)UnknownTopicOrPartition|does not host|missing"):
        kafka.load("named-nowhere").collect()
    assert "named-nowhere" not in {row.topic for row in kafka.load(subscribePattern=".*nowhere").collect()}


def test_partitions_are_split(kafka: KafkaFormat) -> None:
    topic = kafka.fill("split", 2, 1000)
    frame = kafka.load(topic, minPartitions=7)
    assert frame.rdd.getNumPartitions() >= 7
    once(frame.collect(), 2000)
    frame = kafka.load(topic, minPartitions=3, maxRecordsPerPartition=300)
    assert frame.rdd.getNumPartitions() == 8
    once(frame.collect(), 2000)
    small = {"kafka.max.partition.fetch.bytes": 700, "kafka.max.poll.records": 7, "kafka.fetch.max.bytes": 1500}
    once(kafka.load(topic, minPartitions=5, **small).collect(), 2000)


def test_a_topic_that_is_being_written(kafka: KafkaFormat) -> None:
    topic = kafka.node.create("busy", 1)
    stop = threading.Event()

    def write() -> None:
        producer, number = Producer({"bootstrap.servers": kafka.node.bootstrap, "linger.ms": 2}), 0
        while not stop.wait(0.02):
            for _ in range(20):
                producer.produce(topic, b"v%d" % number, partition=0)
                number += 1
            producer.flush(60)
        producer.flush(30)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = -1
        for _ in range(4):
            rows = kafka.load(topic).select("value").collect()
            once(rows, len(rows))
            assert len(rows) >= seen
            seen = len(rows)
            waited(lambda: kafka.load(topic).count() > seen, "no record came")  # noqa: B023
    finally:
        stop.set()
        writer.join()


def test_rows_name_topic_partition_and_headers(kafka: KafkaFormat) -> None:
    for name in ("to-a", "to-b"):
        kafka.node.create(name, 3)
    rows = kafka.spark.createDataFrame(
        [
            ("to-a", 2, b"k", b"v", [("h", bytearray(b"1")), ("h", None)]),
            ("to-b", 1, None, b"v", None),
            ("to-b", 0, b"k", None, []),
        ],
        "topic string, partition int, key binary, value binary, headers array<struct<key:string,value:binary>>",
    )
    kafka.save(rows, includeHeaders="true")
    found = [
        (each.topic(), each.partition(), each.key(), each.value(), each.headers() or [])
        for name in ("to-a", "to-b")
        for each in kafka.consumed(name)
    ]
    assert sorted(found, key=str) == [
        ("to-a", 2, b"k", b"v", [("h", b"1"), ("h", None)]),
        ("to-b", 0, b"k", None, []),
        ("to-b", 1, None, b"v", []),
    ]


def test_text_columns_large_rows_and_no_rows(kafka: KafkaFormat) -> None:
    topic = kafka.node.create("text", 1)
    kafka.save(kafka.spark.sql("SELECT 'ключ' AS key, 'v0' AS value"), topic=topic)
    kafka.save(kafka.spark.sql("SELECT 'v1' AS value"), topic=topic)
    kafka.save(kafka.spark.sql("SELECT 'k' AS key, 'v2' AS value").where("false"), topic=topic)
    kafka.save(kafka.spark.sql("SELECT repeat('x', 1000000) AS key, 'v2' AS value"), topic=topic)
    rows = kafka.load(topic).orderBy("offset").collect()
    assert [row.key and len(row.key) for row in rows] == [8, None, 1_000_000]
    once(rows, 3)
    too_large = kafka.spark.sql("SELECT repeat('x', 3000000) AS value")
    with pytest.raises(FAILURES, match=r"RecordTooLargeException: a batch of 3\d{6} bytes"):
        kafka.save(too_large, topic=topic, kafka__max__request__size=10_000_000, kafka__buffer__memory=40_000_000)
    assert values(kafka.load(topic).collect()) == [0, 1, 2]


def test_keys_go_where_our_sink_puts_them(kafka: KafkaFormat) -> None:
    rows = kafka.spark.range(500).selectExpr(
        "CAST('key-' || id AS BINARY) AS key", "CAST('v' || id AS BINARY) AS value"
    )
    kafka.save(rows, topic=kafka.node.create("theirs", 5))
    ours = {"kafka.bootstrap.servers": kafka.node.bootstrap, "topic": kafka.node.create("ours", 5)}
    rows.write.format("duramen").mode("append").options(**ours).save()
    places = [{each.key(): each.partition() for each in kafka.consumed(name)} for name in ("theirs", "ours")]
    assert len(places[0]) == 500
    assert places[0] == places[1]


def test_our_source_and_theirs_see_the_same(kafka: KafkaFormat) -> None:
    topic = kafka.fill("both", 2, 500)
    kafka.node.append(topic, 1, [(None, None, (), -1), (b"", b"", [(b"", b"")], 1)], codec=1)
    ours = kafka.spark.read.format("duramen").option("kafka.bootstrap.servers", kafka.node.bootstrap)
    ours = ours.option("subscribe", topic).option("includeHeaders", "true").load()
    theirs = kafka.load(topic, includeHeaders="true")
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    order = ("partition", "offset")
    assert ours.orderBy(*order).collect() == theirs.orderBy(*order).collect()
