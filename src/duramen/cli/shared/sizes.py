"""Bytes on the disks of the nodes, by partition: what DescribeLogDirs says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from duramen.cli.shared.connection import ClusterAccess
from duramen.cli.shared.node_look import KnownNode, asked
from duramen.client.blocking.connection import BlockingConnection
from duramen.errors import ErrorCode
from duramen.wire.messages import API

_DESCRIBE_LOG_DIRS = 35
_NODE_SECONDS = 5.0
"""For one node to say."""


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


def sizes_of(cluster: ClusterAccess, nodes: Iterable[KnownNode]) -> Sizes:
    """What is on the disks of these nodes. Where one does not say, nothing is known: half a sum would mislead."""
    if not cluster.is_plaintext:
        return Sizes({}, "bytes are asked for over plain connections only")
    known = list(nodes)
    found: Counter[tuple[str, int]] = Counter()
    for node, answer in zip(known, asked([each.address for each in known], _NODE_SECONDS, _ask), strict=True):
        if isinstance(answer, str):
            return Sizes({}, f"node {node.id} does not say how many bytes: {answer}")
        for directory in answer:
            for topic in directory.topics:
                for part in topic.partitions:
                    found[topic.name, part.partition_index] += part.partition_size
    return Sizes(found)


def _ask(connection: BlockingConnection, until: float) -> list[Any] | str:
    answer = connection.call(_DESCRIBE_LOG_DIRS, API[_DESCRIBE_LOG_DIRS].request.new(topics=None), until)
    return ErrorCode(answer.error_code).name if answer.error_code else list(answer.results)
