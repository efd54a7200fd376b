"""Sealed segments read from their files: the same rows as from the broker, and every way a file may be gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from tests.spark.log_node import LogNode, log_node

from duramen.client import Cluster
from duramen.client.blocking.segment_plans import describe_segments, extend_leases
from duramen.client.protocol.segments import DescribedPartition
from duramen.errors import (
    ConfigError,
    CorruptLogError,
    ErrorCode,
    KafkaError,
    LeaseLostError,
    TopicReplacedError,
    UnreachableStorageError,
)
from duramen.model import TopicPartition
from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.data_loss import DataLossError
from duramen.spark.source.plan import Split
from duramen.spark.source.sizes import Layout, layout
from duramen.spark.source.stream_reader import DuramenStreamReader
from duramen.wire.batch import build_batch

SCHEMA = StructType().add("offset", "long").add("value", "binary")
BATCHES = 100
RECORDS = 20
TOPICS = (
    "sealed", "went", "damaged", "unreached", "elsewhere", "anew-in-files", "lease", "kept", "released",
    "expired", "untold",
)  # fmt: skip
"""One for each test, all filled at once: what seals looks around once a second."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogNode]:
    with log_node(
        tmp_path_factory.mktemp("log"),
        log_retention_ms="-1",
        offsets_topic_num_partitions="1",
        log_segment_delete_delay_ms="0",
        log_flush_offset_checkpoint_interval_ms="200",
        log_retention_check_interval_ms="200",
    ) as served:
        for topic in TOPICS:
            fill(served, topic)
        yield served


def fill(node: LogNode, topic: str) -> None:
    """Two megabytes in segments of one: the first will be sealed; where it expires, there is one more."""
    node.create(topic, segment_bytes=str(1 << 20))
    with Cluster(node.bootstrap) as cluster:
        for number in range(BATCHES + (topic == "expired") * BATCHES // 2):
            values = [(None, b"%d " % (number * RECORDS + n) + bytes(1000), (), 1) for n in range(RECORDS)]
            cluster.produce(TopicPartition(topic, 0), build_batch(values))


def filled(node: LogNode, topic: str, sealed: int = 1) -> str:
    """A topic of this test's own; so many of its first segments are sealed when this returns."""
    tp = TopicPartition(topic, 0)
    with Cluster(node.bootstrap) as cluster:
        patience = time.monotonic() + 60
        while time.monotonic() < patience:
            found = describe_segments(cluster, {tp: (-1, -1)}).partitions[tp]
            if isinstance(found, DescribedPartition) and found.segments[sealed - 1].is_sealed:
                return topic
            time.sleep(0.05)
    raise AssertionError("nothing was sealed")


def reader(node: LogNode, topic: str, **options: Any) -> DuramenReader:
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, **options}
    return DuramenReader({name: str(value) for name, value in given.items()}, SCHEMA)


def offsets(source: DuramenReader, parts: list[Any]) -> list[int]:
    found = []
    for part in parts:
        for batch in source.read(part):
            for row in batch.to_pylist():
                assert row["value"].startswith(b"%d " % row["offset"])
                found.append(row["offset"])
    return found


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of the fetches that were sent to a broker."""
    seen: list[int] = []

    class Watched(Cluster):
        def fetch(self, tp: TopicPartition, offset: int, *rest: Any, **named: Any) -> Any:
            seen.append(offset)
            return super().fetch(tp, offset, *rest, **named)

    monkeypatch.setattr("duramen.spark.source.settings.Cluster", Watched)
    return seen


def test_what_is_sealed_comes_from_files_and_the_tail_from_the_broker(node: LogNode, fetched: list[int]) -> None:
    topic = filled(node, "sealed")
    source = reader(node, topic, targetPartitionBytes="300k")
    parts = source.partitions()
    from_files = [part for part in parts if part.pieces]
    assert len(from_files) >= 3
    assert offsets(source, parts) == list(range(BATCHES * RECORDS))
    sealed_until = from_files[-1].pieces[-1].end_offset
    assert fetched
    assert min(fetched) >= sealed_until
    fetched.clear()
    whole = reader(node, topic, targetPartitionBytes="300k", readFrom="broker")
    assert offsets(whole, whole.partitions()) == list(range(BATCHES * RECORDS))
    assert fetched[0] == 0
    middle = reader(node, topic, startingOffsets='{"sealed":{"0":107}}', endingOffsets='{"sealed":{"0":355}}')
    fetched.clear()
    assert offsets(middle, middle.partitions()) == list(range(107, 355))
    assert fetched == []


def test_a_segment_that_went_away_is_read_from_the_broker(node: LogNode, fetched: list[int]) -> None:
    topic = filled(node, "went")
    source = reader(node, topic)
    (part,) = source.partitions()
    gone = part.pieces[0].segment._replace(base_offset=77)
    part.pieces = (part.pieces[0]._replace(segment=gone), *part.pieces[1:])
    assert offsets(source, [part]) == list(range(BATCHES * RECORDS))
    assert fetched[0] == 0
    (again,) = source.partitions()
    other = again.pieces[0].segment._replace(topic_id="AAAAAAAAAAAAAAAAAAAAAA")  # deleted, and made anew
    again.pieces = (again.pieces[0]._replace(segment=other),)
    fetched.clear()
    assert offsets(source, [again]) == list(range(BATCHES * RECORDS))
    assert fetched[0] == 0


def test_damage_in_a_file_goes_to_the_broker_or_is_named(node: LogNode, fetched: list[int]) -> None:
    topic = filled(node, "damaged")
    source = reader(node, topic)
    parts = source.partitions()
    path = Path(parts[0].pieces[0].segment.path)
    with path.open("r+b") as file:
        file.seek(700_000)
        byte = file.read(1)
        file.seek(700_000)
        file.write(bytes([byte[0] ^ 1]))
    try:
        strict = reader(node, topic, readFrom="storage")
        with pytest.raises(CorruptLogError):
            list(strict.read(parts[0]))
    finally:
        with path.open("r+b") as file:
            file.seek(700_000)
            file.write(byte)
    assert offsets(source, parts) == list(range(BATCHES * RECORDS))


def test_storage_that_cannot_be_reached_is_an_error_when_it_is_a_must(node: LogNode, fetched: list[int]) -> None:
    topic = filled(node, "unreached")
    parts = reader(node, topic).partitions()
    elsewhere = Split(topic, 0, parts[0].start, parts[0].end)
    segment = parts[0].pieces[0].segment._replace(log_dir="/nowhere")
    elsewhere.pieces = (parts[0].pieces[0]._replace(segment=segment),)
    with pytest.raises(UnreachableStorageError, match="/nowhere"):
        list(reader(node, topic, readFrom="storage").read(elsewhere))
    fetched.clear()
    assert offsets(reader(node, topic), [elsewhere]) == list(range(BATCHES * RECORDS))
    assert fetched[0] == 0


def test_a_data_directory_that_is_not_there_is_an_error_when_it_is_a_must(
    node: LogNode, fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: the node has its directory, only the reader has not."""
    topic = filled(node, "elsewhere")

    def described(*given: Any, **named: Any) -> Any:
        plan = describe_segments(*given, **named)
        for tp, found in plan.partitions.items():
            assert isinstance(found, DescribedPartition)
            plan.partitions[tp] = found._replace(log_dir="/nowhere")
        return plan

    monkeypatch.setattr("duramen.spark.source.sizes.describe_segments", described)
    with pytest.raises(ConfigError, match="readFrom=storage, but /nowhere"):
        reader(node, topic, readFrom="storage").partitions()
    source = reader(node, topic)
    parts = source.partitions()
    assert all(not part.pieces for part in parts)
    assert offsets(source, parts) == list(range(BATCHES * RECORDS))
    assert fetched[0] == 0


def test_a_node_that_does_not_tell_of_its_segments_is_an_error_when_files_are_a_must(
    node: LogNode, fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(node, "untold")

    def refused(*_: Any, **__: Any) -> None:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    monkeypatch.setattr("duramen.spark.source.sizes.describe_segments", refused)
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        reader(node, topic, readFrom="storage").partitions()
    source = reader(node, topic)
    assert offsets(source, source.partitions()) == list(range(BATCHES * RECORDS))
    assert fetched[0] == 0


def test_files_of_a_topic_made_anew_are_not_read_for_the_old_one(node: LogNode, fetched: list[int]) -> None:
    source = reader(node, filled(node, "anew-in-files"))
    part: Any = source.partitions()[0]
    part.end = part.pieces[-1].end_offset  # nothing is left to fetch
    assert offsets(source, [part])
    part.topic_id = bytes(range(16))  # what was meant when the batch was planned
    with pytest.raises(TopicReplacedError, match="anew-in-files was deleted and made anew"):
        offsets(source, [part])


def test_a_lost_lease_leaves_it_to_the_broker(node: LogNode, fetched: list[int]) -> None:
    topic = filled(node, "lease")
    source = reader(node, topic)
    (part,) = source.partitions()
    part.leases = tuple(lease._replace(lease_id=999_999) for lease in part.leases)
    assert part.leases
    assert offsets(source, [part]) == list(range(BATCHES * RECORDS))
    assert fetched[0] == 0


def test_the_lease_keeps_the_files_of_a_plan_while_the_log_moves_on(node: LogNode, fetched: list[int]) -> None:
    topic = filled(node, "kept")
    source = reader(node, topic, endingOffsets='{"kept":{"0":500}}')
    (part,) = source.partitions()
    node.delete_before(topic, 0, 1500)
    time.sleep(0.6)
    assert offsets(source, [part]) == list(range(500))
    assert fetched == []


def test_what_expires_while_a_batch_is_planned_is_a_loss_and_no_silent_gap(
    node: LogNode, fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(node, "expired", sealed=2)
    with Cluster(node.bootstrap) as cluster:
        found = describe_segments(cluster, {TopicPartition(topic, 0): (-1, -1)}).partitions[TopicPartition(topic, 0)]
    assert isinstance(found, DescribedPartition)
    second = found.segments[1].base_offset

    def described_late(*given: Any) -> Layout:
        node.delete_before(topic, 0, second)  # behind the question where the log starts
        return layout(*given)

    monkeypatch.setattr("duramen.spark.source.batch_reader.layout", described_late)
    source = reader(node, topic, startingOffsets='{"expired":{"0":0}}')
    with pytest.raises(DataLossError, match=f"offsets 0 to {second - 1} of expired-0"):
        offsets(source, source.partitions())
    assert fetched == [0]


def test_a_query_lets_segments_go_when_their_batch_is_committed(node: LogNode) -> None:
    topic = filled(node, "released")
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    query = DuramenStreamReader(given, SCHEMA)
    start, end = {topic: {"0": 0}}, {topic: {"0": 500}}
    (part,) = query.partitions(start, end)
    assert part.leases
    with Cluster(node.bootstrap) as cluster:
        extend_leases(cluster, list(part.leases), 60_000)
        query.commit(end)
        with pytest.raises(LeaseLostError):
            extend_leases(cluster, list(part.leases), 60_000)
    query.stop()
