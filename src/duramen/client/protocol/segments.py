"""DescribeSegments and ExtendSegmentLease: the segments of a log, positions to split it by, leases on sealed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicId, TopicPartition, topic_id_text
from duramen.wire.messages import API

DESCRIBE_SEGMENTS: Final = 10010
EXTEND_SEGMENT_LEASE: Final = 10011


class DescribedSegment(NamedTuple):
    """One segment. Offsets from base_offset to end_offset (excluded); times in ms, -1 unknown.

    is_sealed: its file may be opened by a direct reader. boundaries: (offset, position) of batches: records in front of
    the position have smaller offsets. The first lies at or before the wanted start, the others about every
    target_bytes. size_bytes of the last segment of a log counts what readers may not see yet, too.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp: int
    max_timestamp: int
    is_sealed: bool
    boundaries: list[tuple[int, int]]


class DescribedPartition(NamedTuple):
    """One partition: where its log stood, and its segments in order.

    log_dir, directory_id: of the data directory on its leader's machine; the partition's files are in
    `log_dir/<topic>-<partition>`. Ids are text as Kafka prints them. All are plain values that can be sent around.
    """

    tp: TopicPartition
    topic_id: TopicId
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_dir: str
    directory_id: str
    segments: list[DescribedSegment]


class HeldLease(NamedTuple):
    """A lease of one node on the sealed segments of a plan; lease_ms: for how long it was granted."""

    node: int
    lease_id: int
    lease_ms: int


class SegmentPlan(NamedTuple):
    """What was asked for, by partition, and the leases that keep the sealed segments (none when none were asked for).

    A partition whose description was refused has its KafkaError for a value.
    """

    partitions: dict[TopicPartition, DescribedPartition | KafkaError]
    leases: list[HeldLease]


def request(
    ranges: Mapping[TopicPartition, tuple[int, int]], target_bytes: int, lease_ms: int, isolation: int, entries: int
) -> Any:
    """A DescribeSegments request for the segments between two offsets of each partition; `entries`: of its reply."""
    message = API[DESCRIBE_SEGMENTS].request
    topics: dict[str, Any] = {}
    for tp, (start, end) in ranges.items():
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = message.WantedTopic(name=tp.topic)
        topic.partitions.append(
            message.WantedPartition(partition_index=tp.partition, start_offset=start, end_offset=end)
        )
    return message.new(
        isolation_level=isolation,
        max_entries=entries,
        target_bytes=target_bytes,
        lease_ms=lease_ms,
        topics=list(topics.values()),
    )


def parsed(
    response: Any,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    page: dict[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, DescribedPartition | KafkaError]:
    """The partitions of a response; those that it did not finish are put into `page`, from where it ended."""
    directories = {each.directory_id: (each.path, topic_id_text(each.directory_id)) for each in response.directories}
    found: dict[TopicPartition, DescribedPartition | KafkaError] = {}
    for topic in response.topics:
        topic_id = bytes(topic.topic_id)
        for each in topic.partitions:
            tp = TopicPartition(topic.name, each.partition_index)
            code = error_code(each.error_code)
            if code != ErrorCode.NONE:
                found[tp] = KafkaError(code, f"{tp}: {each.error_message or code.name}")
                continue
            place = directories.get(each.directory_id)
            path, directory = place if place is not None else ("", topic_id_text(each.directory_id))
            found[tp] = DescribedPartition(
                tp,
                topic_id,
                each.leader_epoch,
                each.log_start_offset,
                each.high_watermark,
                each.last_stable_offset,
                path,
                directory,
                [_segment(segment) for segment in each.segments],
            )
            if each.next_offset >= 0:
                page[tp] = (each.next_offset, ranges[tp][1])
    return found


def _segment(segment: Any) -> DescribedSegment:
    return DescribedSegment(
        segment.base_offset,
        segment.end_offset,
        segment.size_bytes,
        segment.first_timestamp,
        segment.max_timestamp,
        segment.is_sealed,
        [(entry.offset, entry.position) for entry in segment.index],
    )


def extension(lease: HeldLease, lease_ms: int) -> Any:
    """An ExtendSegmentLease request; 0 ms gives the lease back."""
    return API[EXTEND_SEGMENT_LEASE].request.new(lease_ids=[lease.lease_id], lease_ms=lease_ms)
