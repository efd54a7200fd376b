"""Spark's own Kafka connector against a node: the short form, in every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_format import KafkaFormat, once, records

pytestmark = pytest.mark.timeout(600)


def test_a_batch_is_read_and_written_back(kafka: KafkaFormat) -> None:
    topic = kafka.node.create("core-in", 2)
    kafka.node.append(topic, 0, records(0, 5), codec=4)
    kafka.node.append(topic, 1, [(None, b"v5", (), 5), (b"gone", None, [(b"h", None), (b"h", b"2")], 6)])
    rows = kafka.load(topic, includeHeaders="true").selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    found = {(row.partition, row.offset): (row.key, row.value, row.ms, row.timestampType) for row in rows}
    expected = {(0, n): (b"k%d" % n, b"v%d" % n, 1000 + n, 0) for n in range(5)}
    assert found == expected | {(1, 0): (None, b"v5", 5, 0), (1, 1): (b"gone", None, 6, 0)}
    headers = {(row.partition, row.offset): row.headers and [tuple(each) for each in row.headers] for row in rows}
    assert (headers[0, 3], headers[1, 0], headers[1, 1]) == ([("h", b"3")], None, [("h", None), ("h", b"2")])

    kafka.node.create("core-out", 3)
    kafka.save(kafka.load(topic, includeHeaders="true").select("key", "value", "headers"), topic="core-out")
    back = {(each.key(), each.value(), tuple(each.headers() or ())) for each in kafka.consumed("core-out")}
    assert back == {(row.key, row.value, tuple(tuple(each) for each in row.headers or ())) for row in rows}


def test_a_query_goes_on_from_its_checkpoint(kafka: KafkaFormat, tmp_path: Path) -> None:
    kafka.fill("core-stream", 2)
    frame = kafka.stream("core-stream", maxOffsetsPerTrigger=12)
    kafka.node.create("core-copy", 2)
    first = kafka.drain(frame, tmp_path, topic="core-copy")
    assert [each["numInputRows"] for each in first] == [12, 8]
    kafka.node.append("core-stream", 1, records(20, 5))
    second = kafka.drain(frame, tmp_path, topic="core-copy")
    assert [each["numInputRows"] for each in second] == [5]
    once(kafka.consumed("core-copy"), 25)
