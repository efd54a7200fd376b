"""A topic that is deleted and made anew under its name, at every moment of a query: it is known by its id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from tests.spark.log_node import LogNode, log_node

from duramen.errors import ConfigError, TopicReplacedError
from duramen.spark.options.positions import ids_from_json, to_json
from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.stream_reader import DuramenStreamReader

SCHEMA = StructType().add("offset", "long").add("value", "binary")
MESSAGE = "was deleted and made anew"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogNode]:
    with log_node(tmp_path_factory.mktemp("log"), log_retention_ms="-1", offsets_topic_num_partitions="2") as served:
        yield served


def options(node: LogNode, topic: str, **others: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": node.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "readFrom": "broker",
        **others,
    }


def fill(node: LogNode, topic: str, what: bytes, count: int) -> None:
    node.append(topic, 0, [(None, what, (), 1000 + n) for n in range(count)])


def make_anew(node: LogNode, topic: str, count: int) -> None:
    """The same name and more records than before, so that offsets alone tell nothing."""
    node.delete(topic)
    node.create(topic)
    fill(node, topic, b"new", count)


def values(source: DuramenReader | DuramenStreamReader, parts: list[Any]) -> list[bytes]:
    return [row["value"] for part in parts for batch in source.read(part) for row in batch.to_pylist()]


def test_between_two_batches(node: LogNode) -> None:
    topic = node.create("batches")
    fill(node, topic, b"old", 5)
    query = DuramenStreamReader(options(node, topic), SCHEMA)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    assert values(query, query.partitions(start, end)) == [b"old"] * 5
    make_anew(node, topic, 8)
    with pytest.raises(TopicReplacedError, match=f"batches {MESSAGE}.*failOnDataLoss"):
        query.latestOffset(end, ReadAllAvailable())
    query.stop()

    again = DuramenStreamReader(options(node, topic, failOnDataLoss="false"), SCHEMA)  # from the same checkpoint
    newest = again.latestOffset(end, ReadAllAvailable())
    assert ids_from_json(newest) != ids_from_json(end)
    assert values(again, again.partitions(end, newest)) == [b"new"] * 8
    assert again.latestOffset(newest, ReadAllAvailable()) == newest
    again.stop()


def test_between_plan_and_task_and_between_end_and_plan(node: LogNode) -> None:
    topic = node.create("tasks")
    fill(node, topic, b"old", 5)
    query = DuramenStreamReader(options(node, topic), SCHEMA)
    batch = DuramenReader(options(node, topic), SCHEMA)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    planned, planned_batch = query.partitions(start, end), batch.partitions()
    make_anew(node, topic, 8)
    for source, parts in ((query, planned), (batch, planned_batch), (query, query.partitions(start, end))):
        with pytest.raises(TopicReplacedError, match=f"tasks {MESSAGE}"):
            values(source, parts)
    query.stop()


def test_what_was_planned_of_a_topic_that_is_gone_is_passed_over_by_name(
    node: LogNode, caplog: pytest.LogCaptureFixture
) -> None:
    topic = node.create("passed")
    fill(node, topic, b"old", 5)
    batch = DuramenReader(options(node, topic, failOnDataLoss="false"), SCHEMA)
    planned = batch.partitions()
    make_anew(node, topic, 8)
    assert values(batch, planned) == []
    assert "offsets 0 to 4 of passed-0" in caplog.text
    assert "made anew" in caplog.text
    assert values(batch, batch.partitions()) == [b"new"] * 8


def test_offsets_out_of_a_checkpoint_are_of_the_topic_that_is_named_beside_them(
    node: LogNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The id was passed over: a new query began in the middle of another topic."""
    topic = node.create("taken")
    fill(node, topic, b"old", 5)
    query = DuramenStreamReader(options(node, topic), SCHEMA)
    taken = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    query.stop()
    make_anew(node, topic, 8)
    given = options(node, topic, startingOffsets=json.dumps(taken))
    stream = DuramenStreamReader(given, SCHEMA)
    start = stream.initialOffset()
    with pytest.raises(TopicReplacedError, match=f"startingOffsets: topic taken {MESSAGE}"):
        stream.latestOffset(start, ReadAllAvailable())
    newest = stream.latestOffset({"taken": {"0": 3}}, ReadAllAvailable())
    assert newest["taken"]["0"] == 8, "who has a checkpoint does not need them"
    stream.stop()
    with pytest.raises(TopicReplacedError, match=f"startingOffsets: topic taken {MESSAGE}"):
        DuramenReader(given, SCHEMA).partitions()
    given["failOnDataLoss"] = "false"
    stream, batch = DuramenStreamReader(given, SCHEMA), DuramenReader(given, SCHEMA)
    start = stream.initialOffset()
    assert values(stream, stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))) == [b"new"] * 8
    assert values(batch, batch.partitions()) == [b"new"] * 8
    ending = {**options(node, topic), "endingOffsets": json.dumps(taken)}
    with pytest.raises(TopicReplacedError, match="endingOffsets"):
        DuramenReader(ending, SCHEMA).partitions()
    assert "read as if none were given" in caplog.text
    stream.stop()


def test_a_checkpoint_without_ids_goes_on_and_gets_them(node: LogNode) -> None:
    topic = node.create("older")
    fill(node, topic, b"old", 5)
    query = DuramenStreamReader(options(node, topic), SCHEMA)
    start = {"older": {"0": 2}}
    end = query.latestOffset(start, ReadAllAvailable())
    assert end["older"]["0"] == 5
    assert ids_from_json(end).keys() == {"older"}
    assert values(query, query.partitions(start, end)) == [b"old"] * 3
    assert values(query, query.partitions(start, {"older": {"0": 5}})) == [b"old"] * 3, "a batch planned without ids"
    idle = {"older": {"0": 5}}
    assert query.latestOffset(idle, ReadAllAvailable()) == idle, "no batch for the sake of an id"
    query.stop()
    taken = DuramenReader(options(node, topic, startingOffsets=json.dumps({"older": {**end["older"], "0": 1}})), SCHEMA)
    assert values(taken, taken.partitions()) == [b"old"] * 4, "offsets out of a checkpoint are starting offsets"
    with pytest.raises(ConfigError, match="topic id that is none"):
        ids_from_json({"older": {"0": 5, "topicId": "?"}})
    assert to_json({}, {"older": bytes(16)}) == {}
