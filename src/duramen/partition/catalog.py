"""The catalog: the metadata log with its machine, and this node's partitions kept in step with what it says.

Shared by the server and by `duramen.open`: topics made in one are topics in the other. Only committed records reach
the partitions, so nothing on disk ever follows a change that a power cut could take back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duramen.config import BrokerConfig, TopicConfig
from duramen.errors import DuramenError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.commands import CreateTopics, NewTopic, TopicCreated
from duramen.machines.metadata.image import MetadataImage, TopicImage
from duramen.machines.metadata.machine import MetadataMachine
from duramen.model import METADATA_TOPIC, METADATA_TOPIC_ID, OFFSETS_TOPIC, TopicId, TopicPartition
from duramen.partition.host import Host
from duramen.partition.store import Store
from duramen.ports import World
from duramen.wire.batch import build_batch
from duramen.wire.records import control

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)

Created = Callable[["list[TopicCreated] | DuramenError"], None]


class Catalog:
    """Metadata of one node. Owned by the loop thread; `report(event, **fields)` takes what an operator should see."""

    def __init__(
        self, world: World, store: Store, config: BrokerConfig, node_id: int, report: Callable[..., None]
    ) -> None:
        self._world = world
        self._store = store
        self._node_id = node_id
        self._report = report
        self.config = config
        self.machine = MetadataMachine(config)
        self.host: Host
        self.on_deleted: list[Callable[[str, TopicId], None]] = []
        """Called with name and id of each topic that is gone."""
        self.on_reconfigured: list[Callable[[BrokerConfig], None]] = []
        """Called when dynamic broker settings changed."""
        self._topic_configs: dict[str, TopicConfig] = {}

    @property
    def image(self) -> MetadataImage:
        return self.machine.image

    # ---- start -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay the metadata log, open every partition it names, delete logs whose topic is gone.

        Nothing is led yet: that begins when this node's registration is committed.
        """
        config = TopicConfig(self.config, {"cleanup.policy": "delete", "retention.ms": "-1"})
        partition = self._store.open_partition(METADATA_PARTITION, METADATA_TOPIC_ID, config)
        self.partition = partition
        partition.lead(max(partition.log.epochs.latest + 1, 1), (self._node_id,), (self._node_id,))
        self.host = Host(partition, self.machine, self._world.clock)
        self.host.load()
        self.host.observers.append(self._committed)
        now = self._world.clock.wall_ms()
        partition.append_local(leader_change(self._node_id, now), now)
        self.reconfigure()
        for topic in self.image.topics.values():
            self._open_partitions(topic, lead=False)
        for directory, log in list(self._store.unclaimed()):
            self._report("log-of-deleted-topic", topic=log.tp.topic, partition=log.tp.partition)
            self._store.delete_log(directory, log)

    # ---- following the log -----------------------------------------------------------------------------------

    def _committed(self, records: list[LogRecord]) -> None:
        self._topic_configs.clear()
        changes = self.machine.changes(records)
        if changes.broker_configs:
            self.reconfigure()
        for name, topic_id in changes.removed:
            self._remove(name, topic_id)
        for topic_id in changes.partitions:
            topic = self.image.topic_by_id(topic_id)
            if topic is not None:
                self._open_partitions(topic, lead=True)
        for name in changes.topic_configs:
            self.configure(name)

    def _open_partitions(self, topic: TopicImage, *, lead: bool) -> None:
        """Open or create this node's partitions of the topic and lead those the image says it leads."""
        config = self.topic_config(topic.name)
        for index, image in enumerate(topic.partitions):
            if self._node_id not in image.replicas:
                continue
            tp = TopicPartition(topic.name, index)
            try:
                partition = self._store.open_partition(tp, topic.id, config)
            except (OSError, DuramenError) as error:
                self._report("partition-offline", topic=topic.name, partition=index, error=error)
                continue
            if lead and image.leader == self._node_id:
                partition.lead(image.leader_epoch, image.replicas, image.isr)

    def _remove(self, name: str, topic_id: TopicId) -> None:
        for tp, partition in list(self._store.partitions.items()):
            if partition.topic_id == topic_id:
                self._store.delete_partition(tp)
        for callback in self.on_deleted:
            callback(name, topic_id)

    # ---- configuration ---------------------------------------------------------------------------------------

    def topic_config(self, name: str) -> TopicConfig:
        """The topic's settings over the broker's; cached until the metadata changes."""
        config = self._topic_configs.get(name)
        if config is None:
            config = self._topic_configs[name] = TopicConfig(self.config, self.image.topic_config(name))
        return config

    def configure(self, name: str) -> None:
        """Hand a topic's changed configuration to its open partitions."""
        topic = self.image.topic(name)
        if topic is None:
            return
        config = self.topic_config(name)
        for index in range(len(topic.partitions)):
            partition = self._store.partitions.get(TopicPartition(name, index))
            if partition is not None:
                self._store.configure(partition, config)

    def reconfigure(self) -> None:
        """The image holds other dynamic broker settings: take them over, here and in every topic."""
        own = self.image.broker_config(self._node_id)
        default = self.image.broker_config(None)
        try:
            self.config = self.config.with_dynamic(default, cluster_default=True).with_dynamic(own)
        except DuramenError as error:
            self._report("config-ignored", error=error)
            return
        self.machine.config = self.config
        self._topic_configs.clear()
        for name in self.image.names():
            self.configure(name)
        for callback in self.on_reconfigured:
            callback(self.config)

    # ---- creating topics -------------------------------------------------------------------------------------

    def create(self, topics: list[NewTopic], done: Created) -> None:
        """Create topics with the broker's defaults where they leave something open."""
        self.host.submit(
            CreateTopics(
                tuple(topics),
                False,
                self.config.integer("num.partitions"),
                self.config.integer("default.replication.factor"),
            ),
            done,
        )

    def new_topic(self, name: str, partitions: int = -1, configs: dict[str, str] | None = None) -> NewTopic:
        """A topic of this name; internal topics get the partitions and settings they are born with."""
        settings: list[tuple[str, str | None]] = [*(configs or {}).items()]
        if name == OFFSETS_TOPIC:
            partitions = self.config.integer("offsets.topic.num.partitions")
            settings = [
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(self.config.integer("offsets.topic.segment.bytes"))),
            ]
        return NewTopic(name, self.new_uuid(), partitions, -1, (), tuple(settings))

    def new_uuid(self) -> bytes:
        """16 random bytes that Kafka accepts as an id: no dash first in text form, not one of the reserved few."""
        while True:
            raw = self._world.entropy.random_bytes(16)
            if raw[0] & 0xFC != 0xF8 and any(raw[:15]):
                return raw


def leader_change(node_id: int, now_ms: int) -> bytearray:
    """The control batch with which a quorum leader opens its epoch; its only voter is itself (KIP-595)."""
    voter = control.LeaderChangeMessage.Voter(voter_id=node_id)
    message = control.LeaderChangeMessage.new(version=0, leader_id=node_id, voters=[voter], granting_voters=[voter])
    kind = control.ControlType.LEADER_CHANGE
    record = (control.encode_key(kind), control.encode_value(kind, message), (), now_ms)
    return build_batch([record], control=True)


def silent(event: str, **fields: Any) -> None:
    """A report that goes nowhere."""
