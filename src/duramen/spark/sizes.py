"""What planning knows of bytes: the curve of each partition, from what the cluster can tell."""

from __future__ import annotations

from collections.abc import Mapping

from duramen.client import Cluster
from duramen.errors import DuramenError
from duramen.model import TopicPartition
from duramen.spark.byte_curve import ByteCurve
from duramen.spark.positions import Positions
from duramen.wire.messages import API

DESCRIBE_LOG_DIRS = 35


def curves(cluster: Cluster, earliest: Positions, latest: Positions) -> dict[TopicPartition, ByteCurve]:
    """A curve for each partition whose size its leader tells; none for the others, and none where that is refused."""
    found = {}
    for tp, size in _partition_sizes(cluster, latest).items():
        if latest[tp] > earliest[tp]:
            found[tp] = ByteCurve.even(earliest[tp], latest[tp], size)
    return found


def _partition_sizes(cluster: Cluster, tps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    by_leader: dict[int, list[TopicPartition]] = {}
    sizes: dict[TopicPartition, int] = {}
    try:
        for tp in tps:
            by_leader.setdefault(cluster.leader(tp), []).append(tp)
        for leader, led in by_leader.items():
            sizes.update(_sizes_at(cluster, leader, led))
    except DuramenError:
        return {}  # without permission, or not served: ranges are then cut by offsets
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
