"""DescribeSegments against a real node: segments, exact byte positions, pages, and leases that hold and end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.worlds.served_node import Served

from duramen.client import CONTROLLER, Cluster
from duramen.client.blocking.sealed_segments import SealedReader, sealed_segment
from duramen.client.blocking.segment_plans import describe_segments, extend_leases, release_leases
from duramen.client.protocol.segments import DescribedPartition, SegmentPlan
from duramen.errors import ErrorCode, KafkaError, LeaseLostError
from duramen.model import TopicPartition
from duramen.wire.batch import batches, build_batch
from duramen.wire.messages import API

TIME = 1_760_000_000_000
SEGMENT_BYTES = 1 << 20
BATCHES = 200
BATCH_RECORDS = 16
TP = TopicPartition("planned", 0)


def create(cluster: Cluster, topic: str, partitions: int = 1, **configs: str) -> None:
    message = API[19].request
    settings = {"segment.bytes": str(SEGMENT_BYTES), **{k.replace("_", "."): v for k, v in configs.items()}}
    wanted = message.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=1,
        configs=[message.CreatableTopicConfig(name=k, value=v) for k, v in settings.items()],
    )
    assert cluster.call(CONTROLLER, 19, message.new(topics=[wanted], timeout_ms=9000)).topics[0].error_code == 0


def fill(cluster: Cluster, tp: TopicPartition, count: int = BATCHES) -> None:
    for number in range(count):
        values = [
            (str(number * BATCH_RECORDS + n).encode(), bytes(1000), (), TIME + number) for n in range(BATCH_RECORDS)
        ]
        cluster.produce(tp, build_batch(values))


def one(plan: SegmentPlan, tp: TopicPartition = TP) -> DescribedPartition:
    found = plan.partitions[tp]
    assert isinstance(found, DescribedPartition), found
    return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("planned")
    server = Served(
        folder,
        {
            "offsets.topic.num.partitions": "1",
            "log.retention.ms": "-1",
            "log.retention.check.interval.ms": "200",
            "log.segment.delete.delay.ms": "0",
            "log.flush.offset.checkpoint.interval.ms": "200",
            "duramen.segment.lease.ms.max": "60000",
        },
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(node: Served) -> Iterator[Cluster]:
    with Cluster(node.bootstrap, timeout_s=60) as client:
        create(client, TP.topic)
        fill(client, TP)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if all(segment.is_sealed for segment in one(describe_segments(client, {TP: (-1, -1)})).segments[:-1]):
                break
            time.sleep(0.1)
        yield client


def test_segments_are_described_and_sealed_but_the_last(cluster: Cluster, node: Served) -> None:
    found = one(describe_segments(cluster, {TP: (-1, -1)}))
    assert [segment.is_sealed for segment in found.segments] == [True] * (len(found.segments) - 1) + [False]
    assert len(found.segments) >= 3
    assert (found.log_start_offset, found.high_watermark) == (0, BATCHES * BATCH_RECORDS)
    assert found.segments[0].base_offset == 0
    assert found.segments[-1].end_offset == found.high_watermark
    for left, right in zip(found.segments, found.segments[1:], strict=False):
        assert left.end_offset == right.base_offset
        assert left.max_timestamp < right.max_timestamp
    folder = Path(found.log_dir)
    assert folder == node.data.resolve()
    assert f"directory.id={found.directory_id}" in (folder / "meta.properties").read_text().split("\n")
    for segment in found.segments:
        assert (folder / str(TP) / f"{segment.base_offset:020d}.log").stat().st_size == segment.size_bytes
        assert segment.boundaries == []


@pytest.mark.parametrize("target", [64 * 1024, 200_000, 10 << 20])
def test_boundaries_are_batches_and_about_as_far_apart_as_asked(cluster: Cluster, target: int) -> None:
    found = one(describe_segments(cluster, {TP: (-1, -1)}, target_bytes=target))
    for segment in found.segments:
        data = (Path(found.log_dir) / str(TP) / f"{segment.base_offset:020d}.log").read_bytes()
        starts = {position: header.base_offset for position, header in batches(data)}
        assert segment.boundaries[0] == (segment.base_offset, 0)
        positions = [position for _, position in segment.boundaries]
        assert positions == sorted(set(positions))
        assert all(starts[position] == offset for offset, position in segment.boundaries)
        for left, right in zip(positions, [*positions[1:], segment.size_bytes], strict=True):
            assert right - left <= target + 40_000


def test_a_range_begins_at_a_boundary_at_or_before_its_start(cluster: Cluster) -> None:
    whole = one(describe_segments(cluster, {TP: (-1, -1)}))
    start, end = whole.segments[1].base_offset + 40, whole.segments[1].base_offset + 400
    part = one(describe_segments(cluster, {TP: (start, end)}, target_bytes=64 * 1024))
    (segment,) = part.segments
    offsets = [offset for offset, _ in segment.boundaries]
    assert start - 2 * BATCH_RECORDS < offsets[0] <= start < offsets[1]
    assert offsets[-1] < end
    assert one(describe_segments(cluster, {TP: (whole.high_watermark, -1)})).segments == []
    tail = one(describe_segments(cluster, {TP: (whole.high_watermark - 1, -1)}, target_bytes=1 << 20))
    assert [each.base_offset for each in tail.segments] == [whole.segments[-1].base_offset]


def test_pages_add_up_to_the_whole(cluster: Cluster) -> None:
    whole = one(describe_segments(cluster, {TP: (-1, -1)}, target_bytes=64 * 1024))
    paged = describe_segments(cluster, {TP: (-1, -1)}, target_bytes=64 * 1024, max_entries=1, lease_ms=5000)
    assert one(paged) == whole
    assert len(paged.leases) == len([segment for segment in whole.segments if segment.is_sealed])
    release_leases(cluster, paged.leases)


def test_sealed_segments_read_from_the_directory_are_what_fetch_gives(cluster: Cluster) -> None:
    plan = describe_segments(cluster, {TP: (-1, -1)}, target_bytes=300_000, lease_ms=10_000)
    found = one(plan)
    for segment in found.segments[:-1]:
        cuts = [position for _, position in segment.boundaries] + [segment.size_bytes]
        direct = b""
        for start, end in pairwise(cuts):
            with SealedReader(sealed_segment(found, segment)) as reader:
                direct += b"".join(bytes(piece.data) for piece in reader.read(start, end))
        fetched, offset = b"", segment.base_offset
        while offset < segment.end_offset:
            piece = cluster.fetch(TP, offset, max_bytes=segment.size_bytes - len(fetched))
            fetched, offset = fetched + piece.data, piece.next_offset
        assert direct == fetched
    release_leases(cluster, plan.leases)


def test_a_partition_that_is_not_there_is_refused(cluster: Cluster) -> None:
    nowhere = TopicPartition(TP.topic, 9)
    with pytest.raises(KafkaError) as refused:
        describe_segments(cluster, {nowhere: (-1, -1)})
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_lease_keeps_what_retention_would_delete(cluster: Cluster) -> None:
    tp = TopicPartition("leased", 0)
    create(cluster, tp.topic, retention_bytes=str(SEGMENT_BYTES))
    fill(cluster, tp, 70)  # one rolled segment: not yet more than may stay
    deadline = time.monotonic() + 60
    while not one(describe_segments(cluster, {tp: (-1, -1)}), tp).segments[0].is_sealed:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    plan = describe_segments(cluster, {tp: (-1, -1)}, lease_ms=60_000)
    first = one(plan, tp).segments[0]
    fill(cluster, tp, 200)
    time.sleep(1.0)
    path = Path(one(plan, tp).log_dir) / str(tp) / f"{first.base_offset:020d}.log"
    assert path.stat().st_size == first.size_bytes
    (kept,) = extend_leases(cluster, plan.leases, 1 << 30)
    assert kept.lease_ms == 60_000
    release_leases(cluster, plan.leases)
    with pytest.raises(LeaseLostError):
        extend_leases(cluster, plan.leases, 1000)
    deadline = time.monotonic() + 60
    while path.exists():
        assert time.monotonic() < deadline, "retention does not go on"
        time.sleep(0.1)
