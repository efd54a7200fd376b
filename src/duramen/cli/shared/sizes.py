"""Bytes on the disks of the nodes, by partition: what DescribeLogDirs says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from duramen.cli.shared.connection import ClusterAccess
from duramen.client import Cluster as Client
from duramen.errors import DuramenError, ErrorCode
from duramen.wire.messages import API

_DESCRIBE_LOG_DIRS = 35


class Sizes(NamedTuple):
    """Bytes of each partition, all its copies together; why they are not known, where they are not."""

    partitions: Mapping[tuple[str, int], int]
    trouble: str | None = None

    def of(self, topic: str, partition: int) -> int | None:
        """The bytes of one partition; None where they are not known."""
        return self.partitions.get((topic, partition))

    def of_topic(self, topic: str, partitions: Iterable[int]) -> int | None:
        """The bytes of those of its partitions that are known; None where none is."""
        known = [size for number in partitions if (size := self.of(topic, number)) is not None]
        return sum(known) if known else None


def sizes_of(cluster: ClusterAccess, nodes: Iterable[int]) -> Sizes:
    """What is on the disks of these nodes. Where one does not say, nothing is known: half a sum would mislead."""
    if not cluster.is_plaintext:
        return Sizes({}, "bytes are asked for over plain connections only")
    found: Counter[tuple[str, int]] = Counter()
    request = API[_DESCRIBE_LOG_DIRS].request.new(topics=None)
    try:
        with Client(cluster.bootstrap, timeout_s=cluster.timeout) as client:
            for node in nodes:
                answer = client.call(node, _DESCRIBE_LOG_DIRS, request)
                if answer.error_code:
                    return Sizes({}, f"node {node} does not say how many bytes: {ErrorCode(answer.error_code).name}")
                for directory in answer.results:
                    for topic in directory.topics:
                        for part in topic.partitions:
                            found[topic.name, part.partition_index] += part.partition_size
    except (DuramenError, OSError) as error:
        return Sizes({}, f"bytes are not known: {error}")
    return Sizes(found)
