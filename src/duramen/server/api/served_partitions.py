"""Partitions as clients find them: by name or id, at a leader epoch, and why one is not there."""

from __future__ import annotations

from typing import Protocol

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from duramen.model import UNREADABLE_TOPICS, TopicId, TopicPartition
from duramen.partition.replica.partition import Partition
from duramen.partition.store.store import Store


class CommittedTopics(Protocol):
    """What is asked of the metadata."""

    @property
    def image(self) -> MetadataImage: ...


class ServedPartitions:
    """The partitions that this node serves to clients; some logs are not for them, whatever they know of them."""

    __slots__ = ("_node_id", "_store", "_topics")

    def __init__(self, store: Store, topics: CommittedTopics, node_id: int) -> None:
        self._store = store
        self._topics = topics
        self._node_id = node_id

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition if this node has it."""
        return None if topic in UNREADABLE_TOPICS else self._store.partitions.get(TopicPartition(topic, index))

    def find_by_id(self, topic_id: TopicId, index: int) -> Partition | None:
        """The same by topic id."""
        partition = self._store.partition_by_id(topic_id, index)
        return None if partition is None or partition.tp.topic in UNREADABLE_TOPICS else partition

    def at(self, topic: str, index: int, leader_epoch: int) -> Partition:
        """The partition, if the client's leader epoch (-1: it names none) is the current one; KafkaError (KIP-320)."""
        partition = self.find(topic, index)
        if partition is None:
            raise KafkaError(self.absence(topic, index))
        stale = partition.replication.epoch_error(leader_epoch)
        if stale is not None:
            raise KafkaError(stale)
        return partition

    def absence(self, topic: str, index: int) -> ErrorCode:
        """Why `find` has nothing: another node leads it, or it is too damaged to be served (KAFKA_STORAGE_ERROR)."""
        image = self._topics.image
        known = image.topic(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = known.partitions[index]
        if self._node_id not in partition.replicas or image.leader(partition) not in (NO_LEADER, self._node_id):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._store.hosted.is_offline((known.id, index)):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def offline_replicas(self, topic: str, index: int, partition: PartitionImage) -> list[int]:
        """Replicas that cannot be read or written: on a node that is fenced or gone, or here on a failed directory."""
        brokers = self._topics.image.brokers
        here = self._store.partitions.get(TopicPartition(topic, index))
        offline = []
        for node_id in partition.replicas:
            broker = brokers.get(node_id)
            if broker is None or broker.fenced or (node_id == self._node_id and here is None):
                offline.append(node_id)
        return offline
