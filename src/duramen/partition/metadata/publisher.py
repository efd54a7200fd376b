"""The metadata publisher: makes this node's partitions what the committed metadata says.

It follows the committed records of the metadata log, on every node and whoever decided them, so nothing on disk ever
follows a change that a power cut could take back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from duramen.config import BrokerConfig, TopicConfig
from duramen.errors import DuramenError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata.following import Follower
from duramen.machines.metadata.image import MetadataImage, TopicImage
from duramen.model import LogKey, TopicId, TopicPartition, topic_id_text
from duramen.partition.metadata.directory_checks import Absence, OfflineDeletions, delete_offline, offline
from duramen.partition.metadata.partition_creation import Unmade
from duramen.partition.metadata.snapshots import Report
from duramen.partition.store.create_partitions import Wanted, create_partitions
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.storage import Log

CREATED_AT_ONCE = 200
"""Partitions made by one job; others get their turn in between, and a crash leaves less to do."""

Withdraw = Callable[[TopicId, Callable[[Any], None]], None]
"""Has a topic deleted; the callback takes the answer, a DuramenError where it is not committed."""


class MetadataPublisher:
    """Of one node. Owned by the loop thread; `report(event, **fields)` takes what an operator should see."""

    def __init__(self, world: World, store: Store, config: BrokerConfig, node_id: int, report: Report) -> None:
        self._store = store
        self._node_id = node_id
        self._report = report
        self.config = config
        """The node's settings with the dynamic ones of the image."""
        self._follower = Follower(MetadataImage())
        self.on_deleted: list[Callable[[str, TopicId], None]] = []
        """Called with name and id of each topic that is gone."""
        self.on_reconfigured: list[Callable[[BrokerConfig], None]] = []
        """Called when dynamic broker settings changed."""
        self.withdraw: Withdraw = lambda topic_id, done: None
        """Deletes a new topic for whose partitions there is no room; set by who can have metadata changed."""
        self.readopted: set[TopicId] = set()
        """Topics that are about to be known again, and whose logs are here."""
        self._topic_configs: dict[str, TopicConfig] = {}
        self._incomplete: dict[TopicId, None] = {}
        self._unserved = OfflineDeletions(store, world.clock, report)
        self.absent = Absence(store.directories)
        self._unmade = Unmade(self, world.clock, self._make_missing)
        self._creating: tuple[TopicId, ...] = ()
        self._when_published: list[Callable[[], None]] = []
        store.deleting.on_failed, store.deleting.on_done = self._not_deleted, self._create_missing

    @property
    def image(self) -> MetadataImage:
        """What is committed; a power cut takes nothing of it back."""
        return self._follower.image

    @property
    def is_settled(self) -> bool:
        """Whether a crash leaves nothing on disk of topics that the image does not have."""
        return (
            self._store.deleting.is_settled
            and self._unserved.is_settled
            and all(map(self.image.topics_by_id.__contains__, self._creating))
        )

    # ---- start -----------------------------------------------------------------------------------------------

    def load(self, image: MetadataImage) -> None:
        """Begin with this image; what is committed after it is published."""
        self._follower = Follower(image)

    def start(self, removed: frozenset[TopicId] | set[TopicId]) -> None:
        """Delete logs of topics that are `removed`, then open every partition that the image names.

        Nothing is led yet: that begins when this node's registration is committed.
        """
        self._delete_removed(removed)
        self.absent.find(self.image, self._node_id)
        for topic in self.image.topics.values():
            self._open_partitions(topic)

    def _delete_removed(self, removed: frozenset[TopicId] | set[TopicId]) -> None:
        """At start, before anything is opened: a topic that was deleted may have been made again under its name."""
        delete_offline(self._store.directories, removed.__contains__)
        for directory, log in list(self._store.unclaimed()):
            if log.topic_id in removed:
                self._report("log-of-deleted-topic", topic=log.tp.topic, partition=log.tp.partition)
                self._store.delete_log(directory, log)
            elif self.image.topic_by_id(log.topic_id) is None and log.topic_id not in self.readopted:
                # Nobody deleted it (a Kafka directory, its metadata elsewhere): its records are not ours to delete.
                self._report("log-of-unknown-topic", topic=log.tp.topic, partition=log.tp.partition)

    def is_offline(self, topic_id: TopicId, index: int) -> bool:
        """Whether a partition is this node's and cannot be served: it is damaged, or its directory is not open."""
        return (topic_id, index) in self.absent or offline(self._store.directories, topic_id, index) is not None

    # ---- following the log -----------------------------------------------------------------------------------

    def publish(self, records: list[LogRecord], end: int) -> None:
        """These records, which end before offset `end`, are committed."""
        self._topic_configs.clear()
        changes = self._follower.follow(records, end)
        if changes.broker_configs:
            self.reconfigure()
        for name, topic_id in changes.removed:
            self._report("topic-deleted", topic=name, id=topic_id_text(topic_id))
            self._remove(name, topic_id)
        for topic_id in changes.created:
            made = self.image.topic_by_id(topic_id)
            if made is not None and topic_id not in self.readopted:  # whose logs are here
                self._unmade.begins(topic_id)
                self._report("topic-created", **_described(made))
        for topic_id in changes.partitions:
            topic = self.image.topic_by_id(topic_id)
            if topic is not None:
                if topic_id in self.readopted:
                    self.readopted.discard(topic_id)
                    self._report("topic-regained", **_described(topic))
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
            waiting, self._when_published = self._when_published, []
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

    def when_published(self, callback: Callable[[], None]) -> None:
        """Call back once no committed partition is still being made or deleted: now, or with the last one."""
        if self._creating or self._incomplete or not self._store.deleting.is_over:
            self._when_published.append(callback)
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
        self._store.maintenance.reconfigure(self.config)
        self._topic_configs.clear()
        for name in self.image.names():
            self.configure(name)
        for callback in self.on_reconfigured:
            callback(self.config)

    # ---- answers ---------------------------------------------------------------------------------------------

    def with_creation_errors(self, answer: Any) -> Any:
        """The machine's answer to a change, but for topics that are committed and still cannot be used."""
        return self._unmade.honest(answer)


def _described(topic: TopicImage) -> dict[str, Any]:
    """What a report says of a topic that is new."""
    return {"topic": topic.name, "id": topic_id_text(topic.id), "partitions": len(topic.partitions)}


def _listed(settings: Mapping[str, str]) -> str:
    """Settings for a log line: all that are set on the resource now."""
    return ",".join(f"{name}={value}" for name, value in sorted(settings.items())) or "defaults"
