"""What a client knows of a cluster: nodes, topics, and who leads each partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.model import NO_TOPIC_ID, TopicId

METADATA: Final = 3
NO_LEADER: Final = -1
_CODES: Final = {int(code): code for code in ErrorCode}


class ClusterNode(NamedTuple):
    """A node and where it listens."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class PartitionMetadata(NamedTuple):
    """One partition: its leader's node id (-1: none now), leader epoch (-1: unknown), replicas, and what is wrong."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: ErrorCode


class TopicMetadata(NamedTuple):
    """One topic: its id (zeros if the cluster has none) and partitions by number; `error` says why there are none."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: dict[int, PartitionMetadata]
    error: ErrorCode


class ClusterMetadata(NamedTuple):
    """One Metadata response."""

    cluster_id: str | None
    controller: int
    nodes: dict[int, ClusterNode]
    topics: dict[str, TopicMetadata]


def request(message: Any, topics: list[str] | None, *, create: bool = False) -> Any:
    """A Metadata request for these topics, None for all; create: the node may make those that are not there."""
    wanted = None if topics is None else [message.MetadataRequestTopic(name=name) for name in topics]
    return message.new(topics=wanted, allow_auto_topic_creation=create)


def request_by_id(message: Any, topic_ids: Iterable[TopicId]) -> Any:
    """A Metadata request for the topics with these ids, from version 12 on."""
    wanted = [message.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids]
    return message.new(topics=wanted, allow_auto_topic_creation=False)


def names_parsed(response: Any) -> dict[TopicId, str]:
    """The names of the topics that are there, by id."""
    return {bytes(topic.topic_id): topic.name for topic in response.topics if topic.name and not topic.error_code}


def parsed(response: Any) -> ClusterMetadata:
    """The response as plain values."""
    return ClusterMetadata(
        response.cluster_id,
        response.controller_id,
        {node.node_id: ClusterNode(node.node_id, node.host, node.port, node.rack) for node in response.brokers},
        {topic.name: _topic(topic) for topic in response.topics if topic.name is not None},
    )


def _topic(topic: Any) -> TopicMetadata:
    return TopicMetadata(
        topic.name,
        bytes(topic.topic_id or NO_TOPIC_ID),
        topic.is_internal,
        {each.partition_index: _partition(each) for each in topic.partitions},
        error_code(topic.error_code),
    )


def _partition(partition: Any) -> PartitionMetadata:
    return PartitionMetadata(
        partition.partition_index,
        partition.leader_id,
        partition.leader_epoch,
        tuple(partition.replica_nodes),
        tuple(partition.isr_nodes),
        error_code(partition.error_code),
    )


def only(answers: Sequence[Any], what: str) -> Any:
    """The first of the answers in a response; KafkaError where the node gives none."""
    if not answers:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: the node's answer leaves it out")
    return answers[0]


def error_code(number: int) -> ErrorCode:
    """The code by its number; one that is not known here counts as UNKNOWN_SERVER_ERROR."""
    return _CODES.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)
