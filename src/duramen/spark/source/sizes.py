"""What planning knows of bytes and files: the curve of each partition, and its sealed segments.

Duramen tells boundaries of batches by byte position (DescribeSegments); of a foreign Kafka only the size of the whole
partition is known (DescribeLogDirs), which is taken to be spread evenly over its offsets.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.client import EARLIEST, LATEST, Cluster
from duramen.client.blocking.segment_plans import describe_segments
from duramen.client.protocol.segments import DESCRIBE_SEGMENTS, DescribedPartition, DescribedSegment
from duramen.errors import ConfigError, DeadlineError, KafkaError, NetworkError
from duramen.model import TopicPartition
from duramen.spark.options.positions import Positions
from duramen.spark.source.byte_curve import ByteCurve
from duramen.spark.source.storage_plan import BROKER, LEASE_MS, NO_STORAGE, STORAGE, StoragePlan, reachable
from duramen.wire.messages import API

DESCRIBE_LOG_DIRS: Final = 35
_RESOLUTION: Final = 8
"""Boundaries per wanted piece: how exactly pieces come out equal."""
_RESOLUTION_MIN: Final = 64 << 10


class Layout(NamedTuple):
    """What the cluster tells of some ranges. A partition it does not tell of is missing: it is cut by offsets.

    log_starts: as they were when the rest was told, and the lease given.
    """

    curves: dict[TopicPartition, ByteCurve]
    storage: StoragePlan
    log_starts: Positions


UNTOLD: Final = Layout({}, NO_STORAGE, {})


def layout(cluster: Cluster, start: Positions, end: Positions, piece_bytes: int, read_from: str = BROKER) -> Layout:
    """Curves between the offsets, fine enough for pieces of `piece_bytes`, and the files that may be read from here.

    piece_bytes: 0 for what segments alone tell, which costs the nodes no look into files.

    Raises ConfigError for STORAGE where there are no such files to reach, or what kept the cluster from telling.
    """
    wanted = {tp: (start[tp], end[tp]) for tp in end if end[tp] > start[tp]}
    if not wanted:
        return UNTOLD
    try:
        if cluster.api_versions().serves(DESCRIBE_SEGMENTS):
            plan = describe_segments(
                cluster,
                wanted,
                target_bytes=max(_RESOLUTION_MIN, piece_bytes // _RESOLUTION) if piece_bytes else 0,
                lease_ms=0 if read_from == BROKER else LEASE_MS,
            )
            described = [each for each in plan.partitions.values() if isinstance(each, DescribedPartition)]
            known = {each.tp: curve for each in described if (curve := curve_of(each.segments)) is not None}
            storage = NO_STORAGE if read_from == BROKER else reachable(described, plan.leases, read_from)
            return Layout(known, storage, {each.tp: each.log_start_offset for each in described})
        if read_from == STORAGE:
            raise ConfigError("readFrom=storage needs Duramen: this cluster does not tell of its segments")
        sizes = _partition_sizes(cluster, list(wanted))
        first = cluster.list_offsets(dict.fromkeys(sizes, EARLIEST))
        last = cluster.list_offsets(dict.fromkeys(sizes, LATEST))
        even = {tp: ByteCurve.even(first[tp].offset, last[tp].offset, size) for tp, size in sizes.items()}
        return Layout(even, NO_STORAGE, {tp: each.offset for tp, each in first.items()})
    except (KafkaError, NetworkError, DeadlineError):
        if read_from == STORAGE:
            raise
        return UNTOLD  # without permission, or not served


def curve_of(segments: list[DescribedSegment]) -> ByteCurve | None:
    """The curve through ends and boundaries of these neighbouring segments; None without any record."""
    offsets: list[int] = []
    positions: list[int] = []
    before = 0
    for segment in segments:
        for offset, position in [
            (segment.base_offset, 0),
            *segment.boundaries,
            (segment.end_offset, segment.size_bytes),
        ]:
            if not offsets or offset > offsets[-1]:
                offsets.append(offset)
                positions.append(before + position)
        before += segment.size_bytes
    return ByteCurve(offsets, positions) if len(offsets) > 1 else None


def _partition_sizes(cluster: Cluster, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for tp in tps:
        by_leader.setdefault(cluster.leader(tp), []).append(tp)
    sizes: dict[TopicPartition, int] = {}
    for leader, led in by_leader.items():
        sizes.update(_sizes_at(cluster, leader, led))
    return sizes


def _sizes_at(cluster: Cluster, leader: int, led: list[TopicPartition]) -> dict[TopicPartition, int]:
    message = API[DESCRIBE_LOG_DIRS].request
    topics: dict[str, list[int]] = {}
    for tp in led:
        topics.setdefault(tp.topic, []).append(tp.partition)
    wanted = [message.DescribableLogDirTopic(topic=name, partitions=numbers) for name, numbers in topics.items()]
    response = cluster.call(leader, DESCRIBE_LOG_DIRS, message.new(topics=wanted))
    return {
        TopicPartition(topic.name, each.partition_index): each.partition_size
        for result in response.results
        if not result.error_code
        for topic in result.topics
        for each in topic.partitions
        if not each.is_future_key
    }
