"""A directory with transactions in it is served: what each reader of ours, and librdkafka, makes of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from tests.worlds.served_node import DURAMEN, Served
from tests.worlds.transactional_log import COMMITTED, END, STABLE, UNCOMMITTED, Step, write

import duramen
from duramen.client.blocking.cluster import Cluster
from duramen.model import TopicPartition as Place
from duramen.spark.options.positions import from_json, to_json
from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.stream_reader import DuramenStreamReader
from duramen.swaps import GroupReader
from duramen.swaps.cut_overs import CutOver
from duramen.swaps.swap_log import SWAPS_TOPIC, SwapLog

SCHEMA = StructType().add("offset", "long").add("value", "binary")
CUT = 12
"""In the story: behind the marker of a transaction that was rolled back."""
BIG = 2000
"""Batches of ten kilobytes in the large topic, whose segments have a megabyte: most are sealed."""


def large() -> list[Step]:
    """Producer 1 commits and producer 2 rolls back, ten batches each time; the first third is in no transaction."""
    story: list[Step] = []
    for number in range(BIG // 10):
        kind = -1 if number < BIG // 30 else 1 + number % 2
        value = b"%d %d " % (kind, number) + bytes(10_000)
        story += [("plain" if kind < 0 else "write", kind, [value]) for _ in range(10)]
        story += [("commit" if kind == 1 else "abort", kind, [])] if kind > 0 else []
    return story


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node = Served(
        tmp_path_factory.mktemp("committed"),
        {
            "log.retention.ms": "-1", "offsets.topic.num.partitions": "1",
            "log.flush.offset.checkpoint.interval.ms": "200", "log.retention.check.interval.ms": "200",
        },
    )  # fmt: skip
    with duramen.open(node.data) as log:
        for name in ("story", "follows", "swapped"):
            write(log.topic(name))
        write(log.topic("large", configs={"segment.bytes": str(1 << 20)}), large())
        write(log.topic(SWAPS_TOPIC), swaps(), key=b"swapped")
    node.start()
    yield node
    node.stop()


def swaps() -> list[Step]:
    """A swap that was rolled back, and one that was not."""
    cuts = [[CutOver("swapped", {0: CUT}, name, {0: 0}, "").to_json()] for name in ("never", "large")]
    values = [json.dumps(chain).encode() for chain in cuts]
    return [("write", 1, [values[0]]), ("abort", 1, []), ("plain", -1, [values[1]])]


def consumed(node: Served, *words: str) -> dict[int, bytes]:
    """What `duramen consume` prints, by offset."""
    command = [DURAMEN, "consume", "-b", node.bootstrap, "--format", "json", "--timeout", "20", *words]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["offset"]: row["value"].encode() for row in rows}


def between(records: dict[int, bytes], start: int, end: int = END) -> dict[int, bytes]:
    return {offset: value for offset, value in records.items() if start <= offset < end}


def test_consume_prints_what_was_committed_unless_told_otherwise(node: Served) -> None:
    assert consumed(node, "story") == COMMITTED
    assert consumed(node, "story", "--isolation", "read_uncommitted") == UNCOMMITTED
    assert consumed(node, "story", "--group", "any") == COMMITTED
    assert consumed(node, "story", "large", "--group", "many", "--count", "3") != {}


def test_the_positions_of_consume_go_by_the_end_that_its_reader_sees(node: Served) -> None:
    everything = ("--isolation", "read_uncommitted")
    assert consumed(node, "story", "--from", "-2") == between(COMMITTED, STABLE - 2)
    assert consumed(node, "story", "--from", "-2", *everything) == between(UNCOMMITTED, END - 2)
    assert consumed(node, "story", "--from", "latest") == {}
    assert consumed(node, "story", "--from", "14") == {}
    assert consumed(node, "story", "--from", "14", *everything) == between(UNCOMMITTED, 14)
    assert consumed(node, "story", "--until", "6") == between(COMMITTED, 0, 6)
    assert consumed(node, "story", "--until", "14") == COMMITTED
    assert consumed(node, "story", "--until", "latest", "-f") == COMMITTED
    assert consumed(node, "story", "--last", "3") == {offset: COMMITTED[offset] for offset in (6, 8, 12)}
    assert consumed(node, "story", "--last", "3", *everything) == between(UNCOMMITTED, 12)
    assert consumed(node, "story", "--count", "4") == {offset: COMMITTED[offset] for offset in (0, 1, 4, 6)}


def test_librdkafka_sees_the_same_and_finds_the_ends(node: Served) -> None:
    for isolation, records, end in (("read_committed", COMMITTED, STABLE), ("read_uncommitted", UNCOMMITTED, END)):
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap, "group.id": "any", "enable.auto.commit": False,
             "isolation.level": isolation, "enable.partition.eof": True}
        )  # fmt: skip
        consumer.assign([TopicPartition("story", 0, 0)])
        seen: dict[int, bytes] = {}
        while (message := consumer.poll(20)) is not None and message.error() is None:
            seen[message.offset()] = message.value()
        assert message is not None
        assert (seen, message.offset()) == (records, end)
        consumer.close()


def reader(node: Served, topic: str, **options: Any) -> DuramenReader:
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, **options}
    return DuramenReader({name: str(value) for name, value in given.items()}, SCHEMA)


def rows(source: Any, parts: Any) -> dict[int, bytes]:
    return {row["offset"]: row["value"] for part in parts for batch in source.read(part) for row in batch.to_pylist()}


def test_sparks_source_reads_what_was_committed_up_to_the_last_stable_offset(node: Served) -> None:
    committed = reader(node, "story")
    assert rows(committed, committed.partitions()) == COMMITTED
    for name in ("isolation", "kafka.isolation.level"):
        everything = reader(node, "story", **{name: "read_uncommitted"})
        assert rows(everything, everything.partitions()) == UNCOMMITTED
    for start in range(STABLE):
        small = reader(node, "story", startingOffsets=json.dumps({"story": {"0": start}}), maxRecordsPerPartition=2)
        assert rows(small, small.partitions()) == between(COMMITTED, start), start


def test_a_stream_ends_at_the_last_stable_offset_whatever_its_limits_count(node: Served) -> None:
    """Limits count offsets: a batch may hold markers or aborted records alone, and no rows."""
    given = {
        "kafka.bootstrap.servers": node.bootstrap, "subscribe": "story",
        "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2",
    }  # fmt: skip
    source = DuramenStreamReader(given, SCHEMA)
    at, seen, batches = source.initialOffset(), {}, 0
    while (end := source.latestOffset(at, ReadMaxRows(2))) != at:
        seen |= rows(source, source.partitions(at, end))
        at, batches = end, batches + 1
        assert batches < 20
    assert seen == COMMITTED
    assert to_json(from_json(at)) == {"story": {"0": STABLE}}
    assert source.latestOffset(at, ReadAllAvailable()) == at
    assert batches >= STABLE // 2
    source.stop()


@pytest.mark.parametrize("read_from", ["auto", "broker", "storage"])
def test_sealed_segments_with_transactions_are_read_from_the_broker(node: Served, read_from: str) -> None:
    source = reader(node, "large", readFrom=read_from, targetPartitionBytes="3m")
    seen = rows(source, source.partitions())
    kinds = {value.split(b" ", 1)[0] for value in seen.values()}
    assert kinds == {b"-1", b"1"}
    assert len(seen) == sum(len(values) for what, kind, values in large() if kind != 2)
    everything = reader(node, "large", readFrom=read_from, targetPartitionBytes="3m", isolation="read_uncommitted")
    assert len(rows(everything, everything.partitions())) == BIG


def test_swaps_that_were_rolled_back_are_none(node: Served) -> None:
    with Cluster(node.bootstrap) as cluster:
        (cut,) = SwapLog(cluster).cuts("swapped")
        assert cut.new == "large"
        assert cluster.list_offsets({Place("swapped", 0): -1}, 1)[Place("swapped", 0)].offset == STABLE


def test_a_group_goes_from_a_cut_behind_a_marker_to_the_next_topic(node: Served) -> None:
    """The last offset in front of the cut is no record: that it is read is told by the end alone."""
    old = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "over"})
    old.commit(offsets=[TopicPartition("swapped", 0, 1)], asynchronous=False)
    old.close()
    with GroupReader(node.bootstrap, "over", "swapped") as group:
        seen: list[tuple[str | None, int | None]] = []
        while len(seen) < 9:
            seen += [(message.topic(), message.offset()) for message in group.consume(100, 1.0)]
        group.commit()
    assert [offset for topic, offset in seen if topic == "swapped"] == [1, 4, 6, 8]
    assert [offset for topic, offset in seen if topic == "large"][:5] == [0, 1, 2, 3, 4]
