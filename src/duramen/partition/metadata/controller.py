"""The catalog: the metadata log with its machine, and this node's partitions kept in step with what it says.

Shared by the server and by `duramen.open`: topics made in one are topics in the other. Only committed records reach
the partitions, so nothing on disk ever follows a change that a power cut could take back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from duramen.config import BrokerConfig, TopicConfig
from duramen.errors import DuramenError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.commands import CreateTopics, NewTopic, TopicCreated
from duramen.machines.metadata.following import Follower
from duramen.machines.metadata.image import MetadataImage, TopicImage
from duramen.machines.metadata.machine import MetadataMachine
from duramen.model import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    OFFSETS_TOPIC,
    SINK_STATE_TOPIC,
    SINK_TOPICS,
    LogKey,
    TopicId,
    TopicPartition,
    topic_id_text,
)
from duramen.partition.host.host import Host
from duramen.partition.metadata.metadata_repair import LostMetadata, told
from duramen.partition.metadata.offline import Absence, OfflineDeletions, check_metadata, delete_offline, offline
from duramen.partition.metadata.snapshots import Report, Snapshots
from duramen.partition.metadata.unmade import Unmade
from duramen.partition.store.create_partitions import Wanted, create_partitions
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.storage import Log
from duramen.wire.batch import build_batch
from duramen.wire.records import control

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)

SMALLEST_SEGMENT_BYTES = 1024 * 1024
"""Kafka accepts a smaller `offsets.topic.segment.bytes` for the broker than `segment.bytes` for a topic."""

SINK_SEGMENT_BYTES = 64 * 1024 * 1024
"""Of the sinks' topics: staged records are deleted by whole segments."""

CREATED_AT_ONCE = 200
"""Partitions made by one job; others get their turn in between, and a crash leaves less to do."""

METADATA_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""No setting for topics reaches the metadata log: a topic whose records went would be forgotten. Snapshots cut it."""

Created = Callable[["list[TopicCreated] | DuramenError"], None]


class Catalog:
    """Metadata of one node. Owned by the loop thread; `report(event, **fields)` takes what an operator should see."""

    def __init__(self, world: World, store: Store, config: BrokerConfig, node_id: int, report: Report) -> None:
        self._world = world
        self._store = store
        self._node_id = node_id
        self._report = report
        self.config = config
        self.machine = MetadataMachine(config)
        self._follower = Follower(MetadataImage())
        self.host: Host
        self.on_deleted: list[Callable[[str, TopicId], None]] = []
        """Called with name and id of each topic that is gone."""
        self.on_reconfigured: list[Callable[[BrokerConfig], None]] = []
        """Called when dynamic broker settings changed."""
        self._topic_configs: dict[str, TopicConfig] = {}
        self._incomplete: dict[TopicId, None] = {}
        self._unserved = OfflineDeletions(store, world.clock, report)
        self.absent = Absence(store.directories)
        self._unmade = Unmade(self, world.clock, self._make_missing)
        self._creating: tuple[TopicId, ...] = ()
        self._when_open: list[Callable[[], None]] = []
        store.deleting.on_failed, store.deleting.on_done = self._not_deleted, self._create_missing
        self.lost = LostMetadata(store, self.absent)

    @property
    def image(self) -> MetadataImage:
        """What is committed; a power cut takes nothing of it back."""
        return self._follower.image

    # ---- start -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay the metadata log, open every partition it names, delete logs whose topic is gone.

        Nothing is led yet: that begins when this node's registration is committed.
        """
        config = _metadata_config(self.config)
        check_metadata(self._store.directories)
        self.partition = partition = self._store.open_partition(METADATA_PARTITION, METADATA_TOPIC_ID, config)
        partition.lead(max(partition.log.epochs.latest + 1, 1), (self._node_id,), (self._node_id,))
        self.host = Host(partition, self.machine, self._world.clock)
        self.lost.look(self._world.disk, self.machine, self._report)
        self._snapshots = Snapshots(
            self._world, self._store, partition, self.config, self._report, lambda: self.image, self._may_snapshot
        )
        forgiving = self.lost.has_told_beginning(partition)
        self.host.load(self._snapshots.load(self.machine, forgiving=forgiving), self.lost.note)
        self._snapshots.is_due = self.lost.found
        self._follower = Follower(self.machine.image.copy())
        self.host.observers.append(self._committed)
        now = self._world.clock.wall_ms()
        partition.append_local(leader_change(self._node_id, now), now)
        self.reconfigure()
        self.lost.make_up(self.host, self.machine, self._node_id, now, self.new_topic)
        self._delete_removed()
        self.absent.find(self.image, self._node_id)
        for topic in self.image.topics.values():
            self._open_partitions(topic)

    def _delete_removed(self) -> None:
        """At start, before anything is opened: a topic that was deleted may have been made again under its name."""
        delete_offline(self._store.directories, self.machine.removed.__contains__)
        for directory, log in list(self._store.unclaimed()):
            if log.topic_id in self.machine.removed:
                self._report("log-of-deleted-topic", topic=log.tp.topic, partition=log.tp.partition)
                self._store.delete_log(directory, log)
            elif self.image.topic_by_id(log.topic_id) is None and log.topic_id not in self.lost.regained:
                # Nobody deleted it (a Kafka directory, its metadata elsewhere): its records are not ours to delete.
                self._report("log-of-unknown-topic", topic=log.tp.topic, partition=log.tp.partition)

    def is_offline(self, topic_id: TopicId, index: int) -> bool:
        """Whether a partition is this node's and cannot be served: it is damaged, or its directory is not open."""
        return (topic_id, index) in self.absent or offline(self._store.directories, topic_id, index) is not None

    def _may_snapshot(self) -> bool:
        is_settled = (
            self._store.deleting.is_settled
            and self._unserved.is_settled
            and all(map(self.image.topics_by_id.__contains__, self._creating))
        )
        return self.host.failed is None and is_settled

    # ---- following the log -----------------------------------------------------------------------------------

    def _committed(self, records: list[LogRecord], end: int) -> None:
        self._topic_configs.clear()
        changes = self._follower.follow(records, end)
        if changes.broker_configs:
            self.reconfigure()
        for name, topic_id in changes.removed:
            self._report("topic-deleted", topic=name, id=topic_id_text(topic_id))
            self._remove(name, topic_id)
        for topic_id in changes.created:
            made = self.image.topic_by_id(topic_id)
            if made is not None and topic_id not in self.lost.regained:  # whose logs are here
                self._unmade.begins(topic_id)
                self._report("topic-created", **told(made))
        for topic_id in changes.partitions:
            topic = self.image.topic_by_id(topic_id)
            if topic is not None:
                if self.lost.is_back(topic):
                    self.absent.look_for(topic, self._node_id)
                    self._open_partitions(topic)
                self._lead(topic)
                self._incomplete[topic_id] = None
        self._create_missing()
        for name in changes.topic_configs:
            self._report("topic-configured", topic=name, settings=_listed(self.image.topic_config(name)))
            self.configure(name)
        for name in changes.broker_configs:
            settings = self.image.broker_config(None if name == "" else int(name))
            self._report("broker-configured", node=name or "every", settings=_listed(settings))
        self._snapshots.committed(records)

    def _lead(self, topic: TopicImage) -> None:
        """Lead those open partitions of the topic that the image says this node leads, of a new one all or none."""
        if self._unmade.holds(topic.id):
            return
        for index, image in enumerate(topic.partitions):
            partition = self._store.partition_by_id(topic.id, index)
            if partition is not None and image.leader == self._node_id:
                partition.lead(image.leader_epoch, image.replicas, image.isr)

    def _create_missing(self) -> None:
        """Make the partitions that topics of the image lack here, off the loop, a slice at a time.

        One creation is under way at a time, and the next looks at the image anew: a topic deleted and re-created
        meanwhile never meets its predecessor's directory.
        """
        if self._creating or not self._store.deleting.is_over:
            return
        wanted: list[Wanted] = []
        for topic_id in list(self._incomplete):
            missing = self._missing(topic_id)
            if not missing:
                del self._incomplete[topic_id]
                self._unmade.ends(topic_id)
                topic = self.image.topic_by_id(topic_id)
                if topic is not None:
                    self._lead(topic)
            wanted += missing[: CREATED_AT_ONCE - len(wanted)]
        if not wanted:
            waiting, self._when_open = self._when_open, []
            for callback in waiting:
                callback()
            return
        self._creating = tuple(each[1] for each in wanted)
        create_partitions(self._store, wanted, lambda unmade: self._created(wanted, unmade))

    def _make_missing(self, topic_id: TopicId) -> None:
        self._incomplete[topic_id] = None
        self._create_missing()

    def _missing(self, topic_id: TopicId) -> list[Wanted]:
        topic = self.image.topic_by_id(topic_id)
        if topic is None:
            return []
        config = self.topic_config(topic.name)
        return [
            (TopicPartition(topic.name, index), topic_id, config)
            for index, image in enumerate(topic.partitions)
            if self._node_id in image.replicas
            and self._store.partition_by_id(topic_id, index) is None
            and not self.is_offline(topic_id, index)
        ]

    def _created(self, wanted: list[Wanted], unmade: Mapping[LogKey, BaseException]) -> None:
        self._creating = ()
        for tp, topic_id, _ in wanted:
            topic = self.image.topic_by_id(topic_id)
            error = unmade.get((topic_id, tp.partition))
            if error is None:
                self._unmade.made((topic_id, tp.partition))
                if topic is None:
                    self._store.delete_partition(tp)
            elif topic is None or self._unmade.add(tp, topic_id, error):
                self._report("partition-offline", topic=tp.topic, partition=tp.partition, error=error)
        for topic in filter(None, map(self.image.topic_by_id, dict.fromkeys(each[1] for each in wanted))):
            self.configure(topic.name)
        self._create_missing()

    def when_open(self, callback: Callable[[], None]) -> None:
        """Call back once no committed partition is still being made or deleted: now, or with the last one."""
        if self._creating or self._incomplete or not self._store.deleting.is_over:
            self._when_open.append(callback)
        else:
            callback()

    def _open_partitions(self, topic: TopicImage) -> None:
        """At start: open this node's partitions of the topic, or make them if a crash came before that."""
        config = self.topic_config(topic.name)
        for index, image in enumerate(topic.partitions):
            if self._node_id not in image.replicas:
                continue
            tp = TopicPartition(topic.name, index)
            try:
                self.absent.check(topic.id, index)
                self._store.open_partition(tp, topic.id, config)
            except (OSError, DuramenError) as error:
                self._unmade.left_out(tp, topic.id, error)
                self._report("partition-offline", topic=topic.name, partition=index, error=error)

    def _remove(self, name: str, topic_id: TopicId) -> None:
        for tp in [tp for tp, partition in self._store.partitions.items() if partition.topic_id == topic_id]:
            self._store.delete_partition(tp)
        self._unmade.forget(topic_id)
        self.absent.forget(topic_id)
        self._unserved.delete(name, topic_id)
        for callback in self.on_deleted:
            callback(name, topic_id)

    def _not_deleted(self, log: Log, error: BaseException) -> None:
        """When there is room it is; where its directory failed, the next start finds that its topic is gone."""
        self._report("partition-not-deleted", topic=log.tp.topic, partition=log.tp.partition, error=error)

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
        own, default = self.image.broker_config(self._node_id), self.image.broker_config(None)
        try:
            self.config = self.config.with_dynamic(default, cluster_default=True).with_dynamic(own)
        except DuramenError as error:
            self._report("config-ignored", error=error)
            return
        self.machine.config = self.config
        self._store.maintenance.reconfigure(self.config)
        self._topic_configs.clear()
        for name in self.image.names():
            self.configure(name)
        for callback in self.on_reconfigured:
            callback(self.config)

    # ---- creating topics -------------------------------------------------------------------------------------

    def create(self, topics: list[NewTopic], done: Created) -> None:
        """Create topics with the broker's defaults where they leave something open; answers when they can be used."""
        command = CreateTopics(
            tuple(topics),
            False,
            self.config.integer("num.partitions"),
            self.config.integer("default.replication.factor"),
        )
        self.submit(command, done)

    def submit(self, command: Any, done: Callable[[Any], None]) -> None:
        """Have the metadata machine decide; `done(answer)` once that is committed and its partitions are there."""
        self.host.submit(command, lambda answer: self.when_open(lambda: done(self._unmade.honest(answer))))

    def new_topic(self, name: str, partitions: int = -1, configs: dict[str, str] | None = None) -> NewTopic:
        """A topic of this name; internal topics get the partitions and settings they are born with."""
        settings: list[tuple[str, str | None]] = [*(configs or {}).items()]
        if name == OFFSETS_TOPIC:
            partitions = self.config.integer("offsets.topic.num.partitions")
            settings = [
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(max(self.config.integer("offsets.topic.segment.bytes"), SMALLEST_SEGMENT_BYTES))),
            ]
        elif name in SINK_TOPICS:
            partitions = self.config.integer("duramen.sink.topic.num.partitions")
            settings = [
                ("compression.type", "producer"),
                ("message.timestamp.type", "CreateTime"),
                ("segment.bytes", str(SINK_SEGMENT_BYTES)),
            ]
            if name == SINK_STATE_TOPIC:
                settings.append(("cleanup.policy", "compact"))
            else:
                # Its records go when nothing needs them any more, which only the sinks' coordinator knows.
                settings += [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")]
        return NewTopic(name, self.new_uuid(), partitions, -1, (), tuple(settings))

    def new_uuid(self) -> bytes:
        """16 random bytes that Kafka accepts as an id: no dash first in text form, not one of the reserved few."""
        while True:
            raw = self._world.entropy.random_bytes(16)
            if raw[0] & 0xFC != 0xF8 and any(raw[:15]):
                return raw


def _metadata_config(config: BrokerConfig) -> TopicConfig:
    segments = {
        "segment.bytes": str(config.integer("metadata.log.segment.bytes")),
        "segment.ms": str(config.integer("metadata.log.segment.ms")),
    }
    return TopicConfig(config, METADATA_CONFIG | segments)


def _listed(settings: Mapping[str, str]) -> str:
    """Settings for a log line: all that are set on the resource now."""
    return ",".join(f"{name}={value}" for name, value in sorted(settings.items())) or "defaults"


def leader_change(node_id: int, now_ms: int) -> bytearray:
    """The control batch with which a quorum leader opens its epoch; its only voter is itself (KIP-595)."""
    voter = control.LeaderChangeMessage.Voter(voter_id=node_id)
    message = control.LeaderChangeMessage.new(version=0, leader_id=node_id, voters=[voter], granting_voters=[voter])
    kind = control.ControlType.LEADER_CHANGE
    record = (control.encode_key(kind), control.encode_value(kind, message), (), now_ms)
    return build_batch([record], control=True)


def silent(event: str, **fields: Any) -> None:
    """A report that goes nowhere."""
