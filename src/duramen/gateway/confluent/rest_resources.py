"""Clusters, brokers, topics, partitions and replicas as resources of version 3 of the API. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from duramen.client.protocol.metadata import NO_LEADER, ClusterMetadata, ClusterNode, PartitionMetadata, TopicMetadata
from duramen.gateway.confluent.rest_links import ListMetadata, Related, ResourceMetadata, RestLinks


class ClusterResource(msgspec.Struct, omit_defaults=True):
    """The cluster that the gateway is for. controller: absent while there is none."""

    kind: Literal["KafkaCluster"]
    metadata: ResourceMetadata
    cluster_id: str
    acls: Related
    brokers: Related
    broker_configs: Related
    consumer_groups: Related
    topics: Related
    partition_reassignments: Related
    controller: Related | None = None


class ClusterList(msgspec.Struct):
    """That cluster alone."""

    kind: Literal["KafkaClusterList"]
    metadata: ListMetadata
    data: list[ClusterResource]


class BrokerResource(msgspec.Struct):
    """A node of the cluster, and where Kafka's clients reach it."""

    kind: Literal["KafkaBroker"]
    metadata: ResourceMetadata
    cluster_id: str
    broker_id: int
    host: str | None
    port: int | None
    rack: str | None
    configs: Related
    partition_replicas: Related


class BrokerList(msgspec.Struct):
    """All nodes that are there."""

    kind: Literal["KafkaBrokerList"]
    metadata: ListMetadata
    data: list[BrokerResource]


class TopicResource(msgspec.Struct):
    """A topic. replication_factor: of its first partition."""

    kind: Literal["KafkaTopic"]
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Related
    configs: Related
    partition_reassignments: Related


class TopicList(msgspec.Struct):
    """All topics, by name."""

    kind: Literal["KafkaTopicList"]
    metadata: ListMetadata
    data: list[TopicResource]


class PartitionResource(msgspec.Struct, omit_defaults=True):
    """A partition. leader: absent while there is none."""

    kind: Literal["KafkaPartition"]
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: int
    replicas: Related
    reassignment: Related
    leader: Related | None = None


class PartitionList(msgspec.Struct):
    """All partitions of a topic, by number."""

    kind: Literal["KafkaPartitionList"]
    metadata: ListMetadata
    data: list[PartitionResource]


class ReplicaResource(msgspec.Struct):
    """A copy of a partition on a node."""

    kind: Literal["KafkaReplica"]
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: int
    broker_id: int
    is_leader: bool
    is_in_sync: bool
    broker: Related


class ReplicaList(msgspec.Struct):
    """All copies of a partition, or all that a node has."""

    kind: Literal["KafkaReplicaList"]
    metadata: ListMetadata
    data: list[ReplicaResource]


def cluster_resource(links: RestLinks, found: ClusterMetadata) -> ClusterResource:
    """The cluster."""
    return ClusterResource(
        "KafkaCluster",
        links.metadata(()),
        links.cluster_id,
        links.related("acls"),
        links.related("brokers"),
        links.related("broker-configs"),
        links.related("consumer-groups"),
        links.related("topics"),
        links.related("topics", "-", "partitions", "-", "reassignment"),
        links.related("brokers", found.controller) if found.controller in found.nodes else None,
    )


def broker_resource(links: RestLinks, node: ClusterNode) -> BrokerResource:
    """A node."""
    path = ("brokers", node.id)
    return BrokerResource(
        "KafkaBroker",
        links.metadata(path, ("broker", node.id)),
        links.cluster_id,
        node.id,
        node.host,
        node.port,
        node.rack,
        links.related(*path, "configs"),
        links.related(*path, "partition-replicas"),
    )


def topic_resource(
    links: RestLinks, name: str, *, is_internal: bool, replication_factor: int, partitions: int
) -> TopicResource:
    """A topic."""
    path = ("topics", name)
    return TopicResource(
        "KafkaTopic",
        links.metadata(path, ("topic", name)),
        links.cluster_id,
        name,
        is_internal,
        replication_factor,
        partitions,
        links.related(*path, "partitions"),
        links.related(*path, "configs"),
        links.related(*path, "partitions", "-", "reassignment"),
    )


def known_topic(links: RestLinks, topic: TopicMetadata) -> TopicResource:
    """A topic as the cluster describes it."""
    first = topic.partitions.get(0)
    return topic_resource(
        links,
        topic.name,
        is_internal=topic.is_internal,
        replication_factor=0 if first is None else len(first.replicas),
        partitions=len(topic.partitions),
    )


def partition_resource(links: RestLinks, topic: str, partition: PartitionMetadata) -> PartitionResource:
    """A partition."""
    path = ("topics", topic, "partitions", partition.partition)
    leader = partition.leader
    return PartitionResource(
        "KafkaPartition",
        links.metadata(path, ("topic", topic), ("partition", partition.partition)),
        links.cluster_id,
        topic,
        partition.partition,
        links.related(*path, "replicas"),
        links.related(*path, "reassignment"),
        None if leader == NO_LEADER else links.related(*path, "replicas", leader),
    )


def replica_resource(links: RestLinks, topic: str, partition: PartitionMetadata, node: int) -> ReplicaResource:
    """The copy of a partition on a node."""
    path = ("topics", topic, "partitions", partition.partition, "replicas", node)
    return ReplicaResource(
        "KafkaReplica",
        links.metadata(path, ("topic", topic), ("partition", partition.partition), ("replica", node)),
        links.cluster_id,
        topic,
        partition.partition,
        node,
        node == partition.leader,
        node in partition.isr,
        links.related("brokers", node),
    )
