"""Keeps this node's partitions in step with the metadata log: opens, leads, configures and deletes them.

Only committed records reach here, so nothing on disk ever follows a change that a power cut could take back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duramen.config import TopicConfig
from duramen.errors import DuramenError, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.commands import CreateTopics, NewTopic, TopicCreated
from duramen.machines.metadata.image import TopicImage
from duramen.model import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from duramen.server.broker import Broker

INTERNAL_TOPIC_CONFIGS: dict[str, tuple[tuple[str, str | None], ...]] = {
    OFFSETS_TOPIC: (("cleanup.policy", "compact"), ("compression.type", "producer"), ("segment.bytes", "104857600"))
}

Created = Callable[["list[TopicCreated] | KafkaError"], None]


class TopicKeeper:
    """Follows the metadata image of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.on_deleted: list[Callable[[str], None]] = []
        """Called with the name of each topic that is gone."""
        self._creating: dict[str, list[Created]] = {}

    # ---- following -------------------------------------------------------------------------------------------

    def on_committed(self, records: list[LogRecord]) -> None:
        """Committed metadata records: do what they say on this node's disk."""
        broker = self._broker
        changes = broker.machine.changes(records)
        if changes.broker_configs:
            broker.reconfigure()
        for name, topic_id in changes.removed:
            self._remove(name, topic_id)
        for topic_id in changes.partitions:
            topic = broker.image.topic_by_id(topic_id)
            if topic is not None:
                self.open_topic(topic)
        for name in changes.topic_configs:
            self.configure(name)

    def open_all(self) -> None:
        """At start: open every partition of the image, and delete logs whose topic is gone."""
        broker = self._broker
        for topic in broker.image.topics.values():
            self._open_partitions(topic, lead=False)
        for directory, log in broker.store.unclaimed():
            broker.report("log-of-deleted-topic", topic=log.tp.topic, partition=log.tp.partition)
            broker.store.delete_log(directory, log)

    def open_topic(self, topic: TopicImage) -> None:
        """Open or create this node's partitions of the topic and lead those the image says it leads."""
        self._open_partitions(topic, lead=True)

    def _open_partitions(self, topic: TopicImage, *, lead: bool) -> None:
        broker = self._broker
        config = broker.topic_config(topic.name)
        for index, image in enumerate(topic.partitions):
            if broker.node_id not in image.replicas:
                continue
            tp = TopicPartition(topic.name, index)
            try:
                partition = broker.store.open_partition(tp, topic.id, config)
            except (OSError, DuramenError) as error:
                broker.report("partition-offline", topic=topic.name, partition=index, error=error)
                continue
            if lead and image.leader == broker.node_id:
                partition.lead(image.leader_epoch, image.replicas, image.isr)

    def _remove(self, name: str, topic_id: bytes) -> None:
        store = self._broker.store
        for tp, partition in list(store.partitions.items()):
            if partition.topic_id == topic_id:
                store.delete_partition(tp)
        for callback in self.on_deleted:
            callback(name)

    def configure(self, name: str) -> None:
        """Hand a topic's changed configuration to its open partitions."""
        broker = self._broker
        topic = broker.image.topic(name)
        if topic is None:
            return
        config: TopicConfig = broker.topic_config(name)
        for index in range(len(topic.partitions)):
            partition = broker.store.partitions.get(TopicPartition(name, index))
            if partition is not None:
                broker.store.configure(partition, config)

    # ---- creating on demand ----------------------------------------------------------------------------------

    def create_automatically(self, names: list[str], done: Created) -> None:
        """Create topics a client asked for, with the broker's defaults; internal ones with their own."""
        broker = self._broker
        topics = tuple(self.new_topic(name) for name in names)
        broker.metadata.submit(
            CreateTopics(
                topics,
                False,
                broker.config.integer("num.partitions"),
                broker.config.integer("default.replication.factor"),
            ),
            done,
        )

    def new_topic(self, name: str) -> NewTopic:
        """A topic of this name with the partitions and settings it is born with."""
        broker = self._broker
        if name == OFFSETS_TOPIC:
            return NewTopic(
                name,
                broker.new_uuid(),
                broker.config.integer("offsets.topic.num.partitions"),
                1,
                (),
                (
                    ("cleanup.policy", "compact"),
                    ("compression.type", "producer"),
                    ("segment.bytes", str(broker.config.integer("offsets.topic.segment.bytes"))),
                ),
            )
        return NewTopic(name, broker.new_uuid())
