"""What logs consist of, asked of Duramen's brokers: segments, byte positions to split by, and leases on sealed ones.

A foreign Kafka serves none of this: `Cluster.api_versions().serves(DESCRIBE_SEGMENTS)` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duramen.client.blocking.cluster import Cluster
from duramen.client.protocol.metadata import error_code, only
from duramen.errors import ErrorCode, KafkaError, LeaseLostError
from duramen.model import TopicId, TopicPartition, topic_id_text
from duramen.wire.messages import API

DESCRIBE_SEGMENTS: Final = 10010
EXTEND_SEGMENT_LEASE: Final = 10011
DEFAULT_MAX_ENTRIES: Final = 50_000


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


def describe_segments(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, tuple[int, int]],
    *,
    target_bytes: int = 0,
    lease_ms: int = 0,
    isolation: int = 0,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    timeout_s: float | None = None,
) -> SegmentPlan:
    """The segments of each partition between two offsets (-1: the log start; -1: all that may be read).

    target_bytes: how far the `boundaries` are apart (at least 64 KiB), 0 for none, which needs no file at all.
    lease_ms: for how long to keep the sealed segments; the broker may grant less. max_entries: of one reply; what does
    not fit is asked for again.
    """
    ranges = dict(wanted)
    plan = SegmentPlan({}, [])
    while ranges:
        page: dict[TopicPartition, tuple[int, int]] = {}

        def ask(tps: list[TopicPartition], ranges: Mapping[TopicPartition, tuple[int, int]] = ranges) -> Any:
            return _request({tp: ranges[tp] for tp in tps}, target_bytes, lease_ms, isolation, max_entries)

        def parse(
            response: Any,
            tps: list[TopicPartition],
            ranges: Mapping[TopicPartition, tuple[int, int]] = ranges,
            page: dict[TopicPartition, tuple[int, int]] = page,
        ) -> dict[TopicPartition, DescribedPartition | KafkaError]:
            if response.error_code:
                raise KafkaError(error_code(response.error_code), response.error_message or "DescribeSegments")
            if response.lease_id >= 0:
                plan.leases.append(HeldLease(cluster.leader(tps[0]), response.lease_id, response.lease_ms))
            return _parsed(response, ranges, page)

        found = cluster.call_leaders(DESCRIBE_SEGMENTS, ranges, ask, parse, timeout_s=timeout_s)
        for tp, each in found.items():
            known = plan.partitions.get(tp)
            if isinstance(known, DescribedPartition) and isinstance(each, DescribedPartition):
                each = each._replace(segments=known.segments + each.segments)
            plan.partitions[tp] = each
        ranges = page
    return plan


def extend_leases(cluster: Cluster, leases: list[HeldLease], lease_ms: int) -> list[HeldLease]:
    """Keep the segments for `lease_ms` from now on (or less); LeaseLostError when a lease does not hold any more."""
    kept = []
    for lease in leases:
        answer = _extend(cluster, lease, lease_ms)
        if answer.error_code:
            raise LeaseLostError(f"lease {lease.lease_id} of node {lease.node}: plan again")
        kept.append(lease._replace(lease_ms=answer.lease_ms))
    return kept


def release_leases(cluster: Cluster, leases: list[HeldLease]) -> None:
    """Let the segments go; what is gone already is no error."""
    for lease in leases:
        _extend(cluster, lease, 0)


def _extend(cluster: Cluster, lease: HeldLease, lease_ms: int) -> Any:
    request = API[EXTEND_SEGMENT_LEASE].request.new(lease_ids=[lease.lease_id], lease_ms=lease_ms)
    return only(cluster.call(lease.node, EXTEND_SEGMENT_LEASE, request).leases, f"lease {lease.lease_id}")


def _request(
    ranges: Mapping[TopicPartition, tuple[int, int]], target_bytes: int, lease_ms: int, isolation: int, entries: int
) -> Any:
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


def _parsed(
    response: Any,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    page: dict[TopicPartition, tuple[int, int]],
) -> dict[TopicPartition, DescribedPartition | KafkaError]:
    """What the response says; partitions that it did not finish go to `page`, from where it ended."""
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
