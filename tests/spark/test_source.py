"""The source inside real Spark, against a served node: batch, stream, restart from a checkpoint, expiry."""

from __future__ import annotations

import json
import os
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.log_node import LogNode, log_node

from duramen.wire.batch import NewRecord

WAIT_S = 90


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogNode]:
    with log_node(tmp_path_factory.mktemp("log"), log_retention_ms="-1", offsets_topic_num_partitions="2") as served:
        yield served


def records(first: int, count: int) -> list[NewRecord]:
    return [
        (b"k%d" % n, json.dumps({"n": n}).encode(), [(b"h", b"%d" % n)], 1000 + n) for n in range(first, first + count)
    ]


def load(source: Any, node: LogNode, topic: str, **options: Any) -> DataFrame:
    source = source.format("duramen").option("kafka.bootstrap.servers", node.bootstrap).option("subscribe", topic)
    return source.options(**options).load()


def drain(frame: DataFrame, name: str, checkpoint: Path) -> StreamingQuery:
    """Run the query until it has read what there is now, into a table of that name that goes on where it was."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(checkpoint.parent / name))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    return query


def test_a_batch_query_has_the_columns_of_sparks_kafka_source(spark: SparkSession, node: LogNode) -> None:
    topic = node.create("batch", 2)
    node.append(topic, 0, records(0, 3), codec=4)
    node.append(topic, 1, [(None, None, (), 5)])
    frame = load(spark.read, node, topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("partition", "offset").collect()
    assert [(row.key, row.topic, row.partition, row.offset, row.ms, row.timestampType) for row in rows] == [
        (b"k0", "batch", 0, 0, 1000, 0),
        (b"k1", "batch", 0, 1, 1001, 0),
        (b"k2", "batch", 0, 2, 1002, 0),
        (None, "batch", 1, 0, 5, 0),
    ]
    assert [row.headers and [(each.key, each.value) for each in row.headers] for row in rows] == [
        [("h", b"0")],
        [("h", b"1")],
        [("h", b"2")],
        None,
    ]
    fewer = load(spark.read.schema("offset bigint, value binary"), node, topic).orderBy("offset", "value")
    assert [tuple(row) for row in fewer.collect()][1] == (0, b'{"n": 0}')
    assert load(spark.read, node, node.create("empty")).count() == 0


def test_json_values_are_typed_columns_and_broken_ones_say_why(spark: SparkSession, node: LogNode) -> None:
    topic = node.create("json")
    node.append(topic, 0, [*records(0, 2), (None, b"{broken", (), 1), (b"gone", None, (), 1)])
    frame = load(spark.read, node, topic, valueFormat="json", valueSchema="n bigint", columns="value,_corrupt,offset")
    rows = frame.selectExpr("value.n", "_corrupt", "offset").orderBy("offset").collect()
    assert [row.n for row in rows] == [0, 1, None, None]
    assert [row._corrupt is not None for row in rows] == [False, False, True, False]


def test_an_unknown_option_reaches_the_user_by_name(spark: SparkSession, node: LogNode) -> None:
    with pytest.raises(PySparkException, match="unknown option startingoffset; the nearest is startingOffsets"):
        load(spark.read, node, "batch", startingOffset="earliest")


def test_a_table_of_the_catalog_is_read_and_written_with_the_options_of_the_query(
    spark: SparkSession, node: LogNode
) -> None:
    """Its own were told to be unknown, for Spark adds a table's entries to them; a query does not get them."""
    topic = node.create("sql")
    node.append(topic, 0, records(0, 3))
    servers = f"'kafka.bootstrap.servers' = '{node.bootstrap}'"
    spark.sql(f"CREATE TABLE sql_flights USING duramen OPTIONS ({servers}, subscribe 'sql') TBLPROPERTIES ('a' = 'b')")
    try:
        with pytest.raises(PySparkException, match="FROM t WITH"):
            spark.sql("SELECT * FROM sql_flights").collect()
        row = "SELECT CAST('k' AS BINARY) AS key, CAST('v' AS BINARY) AS value"
        spark.sql("CREATE TABLE sql_copy (key BINARY, value BINARY) USING duramen")
        spark.sql(f"INSERT INTO sql_copy WITH ({servers}, 'topic' = 'sql') {row}")
        found = spark.sql(f"SELECT key, offset FROM sql_flights WITH ({servers}, 'subscribe' = 'sql') ORDER BY offset")
        assert [tuple(each) for each in found.collect()] == [(b"k0", 0), (b"k1", 1), (b"k2", 2), (b"k", 3)]
    finally:
        spark.sql("DROP TABLE IF EXISTS sql_flights")
        spark.sql("DROP TABLE IF EXISTS sql_copy")


def _offsets(text: str, topic: str) -> dict[int, int]:
    """The partitions of a topic; its id stands beside them."""
    return {int(name): at for name, at in json.loads(text)[topic].items() if name.isdigit()}


def test_a_query_goes_on_from_its_checkpoint_and_shows_its_lag(
    spark: SparkSession, node: LogNode, tmp_path: Path
) -> None:
    topic = node.create("restart", 2)
    for number in range(4):
        node.append(topic, number % 2, records(10 * number, 10))
    checkpoint = tmp_path / "checkpoint"
    frame = load(spark.readStream, node, topic, startingOffsets="earliest", maxOffsetsPerTrigger="25")
    first = drain(frame, "out", checkpoint)
    progress = [each for each in first.recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [25, 15]
    source = progress[0]["sources"][0]
    end, latest = (_offsets(_json(source[name]), topic) for name in _ENDS)
    assert (sum(end.values()), latest) == (25, {0: 20, 1: 20})
    written = (checkpoint / "offsets" / "1").read_text().splitlines()[-1]
    kept = json.loads(written)
    assert kept[topic].pop("topicId")  # besides what Spark's own Kafka source keeps
    assert kept == {topic: {"0": 20, "1": 20}}

    node.append(topic, 0, records(40, 5))
    node.grow(topic, 3)
    node.append(topic, 2, records(45, 5))
    second = drain(frame, "out", checkpoint)
    assert sum(each["numInputRows"] for each in second.recentProgress) == 10
    values = spark.read.parquet(str(tmp_path / "out")).selectExpr("CAST(value AS STRING) AS text").collect()
    assert sorted(json.loads(row.text)["n"] for row in values) == list(range(50))


def test_a_first_batch_that_failed_is_read_again_from_where_it_began(
    spark: SparkSession, node: LogNode, tmp_path: Path
) -> None:
    """Spark asks for the initial offset anew then, as the source's options have it by now."""
    topic = node.create("first")
    node.append(topic, 0, records(0, 10))

    def refuse(rows: DataFrame, batch: int) -> None:
        raise RuntimeError("not this one")

    frame = load(spark.readStream, node, topic, startingOffsets="earliest")
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    failing = writer.foreachBatch(refuse).start()
    with pytest.raises(PySparkException, match="not this one"):
        failing.awaitTermination(WAIT_S)
    node.delete_before(topic, 0, 4)
    with pytest.raises(PySparkException, match="DataLossError: offsets 0 to 3 of first-0"):
        drain(frame, "out", tmp_path / "checkpoint")


def test_expiry_under_a_query_fails_it_naming_the_range(spark: SparkSession, node: LogNode, tmp_path: Path) -> None:
    topic = node.create("expiring")
    node.append(topic, 0, records(0, 10))
    frame = load(spark.readStream, node, topic, startingOffsets="earliest")
    drain(frame, "out", tmp_path / "checkpoint")
    for number in range(1, 4):
        node.append(topic, 0, records(10 * number, 10))
    node.delete_before(topic, 0, 27)
    with pytest.raises(PySparkException, match="DataLossError: offsets 10 to 26 of expiring-0"):
        drain(frame, "out", tmp_path / "checkpoint")
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10
    tolerant = load(spark.readStream, node, topic, startingOffsets="earliest", failOnDataLoss="false")
    drain(tolerant, "out", tmp_path / "checkpoint")
    offsets = spark.read.parquet(str(tmp_path / "out")).select("offset").collect()
    assert sorted(row.offset for row in offsets) == [*range(10), *range(27, 40)]


def test_real_queries_whose_records_expire_meanwhile(spark: SparkSession, node: LogNode) -> None:
    """Each either reads everything or fails and names what is lost; EXPIRY_QUERIES=50 for the long version."""
    outcomes = []
    for seed in range(int(os.environ.get("EXPIRY_QUERIES", "2"))):
        chance = random.Random(seed)
        topic = node.create(f"race-{seed}")
        for number in range(12):
            node.append(topic, 0, [(None, bytes(chance.randrange(30_000)), (), 1)] * 10, codec=number % 5)
        frame = load(
            spark.read,
            node,
            topic,
            startingOffsets=json.dumps({topic: {"0": 0}}),
            targetPartitionBytes="200k",
            columns="offset",
            readFrom="broker",
        )
        timer = threading.Timer(chance.random() * 4, node.delete_before, (topic, 0, chance.randrange(1, 120)))
        timer.start()
        try:
            assert sorted(row.offset for row in frame.collect()) == list(range(120)), seed
            outcomes.append("whole")
        except PySparkException as error:
            named = re.search(rf"DataLossError: offsets \d+ to \d+ of {topic}-0", str(error))
            outcomes.append("lost" if named else str(error))
        finally:
            timer.join()
    assert set(outcomes) <= {"whole", "lost"}
    print(f"{outcomes.count('whole')} queries whole, {outcomes.count('lost')} failed by name")


_ENDS = ("endOffset", "latestOffset")


def _json(value: Any) -> str:
    """Progress holds offsets as text or as objects, by Spark's version."""
    return value if isinstance(value, str) else json.dumps(value)
