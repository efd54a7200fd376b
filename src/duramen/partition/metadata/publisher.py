"""The metadata publisher: makes this node's partitions what the committed metadata says.

It follows the committed records of the metadata log, on every node and whoever decided them, so nothing on disk ever
follows a change that a power cut could take back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from duramen.config import BrokerConfig, TopicConfig
from duramen.errors import DuramenError
from duramen.machines.metadata.committed_image import Changes, CommittedImage
from duramen.machines.metadata.features import MIN_IN_SYNC
from duramen.machines.metadata.image import MetadataImage, TopicImage
from duramen.machines.replication.leader import LeaderLease
from duramen.model import TopicId, TopicPartition, topic_id_text
from duramen.partition.metadata.directory_checks import ClosedDirectories
from duramen.partition.metadata.partition_creation import PartitionCreation, Withdraw
from duramen.partition.metadata.snapshots import Report
from duramen.partition.store.delete_partitions import delete_offline
from duramen.partition.store.hosted_partitions import HostedState
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.storage import Log, StrayLog, Strays


class MetadataPublisher:
    """Of one node. Owned by the loop thread; `report(event, **fields)` takes what an operator should see."""

    def __init__(self, world: World, store: Store, config: BrokerConfig, node_id: int, report: Report) -> None:
        self._store = store
        self._node_id = node_id
        self._report = report
        self.config = config
        """The node's settings with the dynamic ones of the image."""
        self._committed = CommittedImage()
        self.on_deleted: list[Callable[[str, TopicId], None]] = []
        """Called with name and id of each topic that is gone."""
        self.on_brokers: list[Callable[[], None]] = []
        """Called when brokers were registered, fenced, unfenced or unregistered, after what follows from that."""
        self.on_leaders: list[Callable[[str], None]] = []
        """Called with the name of each topic whose partitions may have begun, or ceased, to be led here."""
        self.on_topics: list[Callable[[list[str], bool], None]] = []
        """Called with the names of topics that are new, gone, or have other partitions, replicas or racks, and whether
        any is new."""
        self.on_configured: list[Callable[[str], None]] = []
        """Called with the name of each topic whose open partitions have got its settings."""
        self.on_reconfigured: list[Callable[[BrokerConfig], None]] = []
        """Called when dynamic broker settings changed."""
        self.lease: LeaderLease | None = None
        """This node's, where it is not the only voter."""
        self.incarnation = b""
        """Of this process, once it is about to register: what an earlier one was elected to, it leads no more."""
        self.readopted: set[TopicId] = set()
        """Topics that are about to be known again, and whose logs are here."""
        self.is_one_of_several = False
        """Whether other nodes have the metadata, too: what it does not name was deleted, and not lost."""
        self._unknown: set[TopicId] = set()
        """Topics that the start found logs of, and that the image had not."""
        self._topic_configs: dict[str, TopicConfig] = {}
        self._peers: set[int] = set()
        """Other brokers that are not fenced, as it was told last."""
        self.closed_directories = ClosedDirectories(store.directories, store.hosted, node_id)
        self._creation = PartitionCreation(self, store, node_id, world.clock, report)
        store.strays = Strays(self._is_stray, self._moved_aside)
        store.deletions.on_failed, store.deletions.on_done = self._not_deleted, self._creation.create_next

    def withdraw_by(self, withdraw: Withdraw) -> None:
        """How a new topic for whose partitions there is no room is deleted again."""
        self._creation.withdraw = withdraw

    @property
    def image(self) -> MetadataImage:
        """What is committed; a power cut takes nothing of it back."""
        return self._committed.image

    @property
    def is_settled(self) -> bool:
        """Whether a crash leaves nothing on disk of topics that the image does not have."""
        return self._store.hosted.is_settled(self.image.topics_by_id.__contains__)

    # ---- start -----------------------------------------------------------------------------------------------

    def load(self, committed: CommittedImage) -> None:
        """Go by this image; what changes in it is published."""
        self._committed = committed

    def start(self, removed: frozenset[TopicId] | set[TopicId]) -> None:
        """Delete logs of topics that are `removed`, then open every partition that the image names.

        Nothing is led yet: that begins when this node's registration is committed.
        """
        self._delete_removed(removed)
        self._store.mark_offline_logs()
        self._peers = {each.id for each in self.image.brokers.values() if not each.fenced} - {self._node_id}
        self.closed_directories.find(self.image)
        for topic in self.image.topics.values():
            self._open_partitions(topic)

    def _delete_removed(self, removed: frozenset[TopicId] | set[TopicId]) -> None:
        """At start, before anything is opened: a topic that was deleted may have been made again under its name."""
        delete_offline(self._store.directories, removed.__contains__)
        for directory in self._store.directories:
            for topic_id, _ in directory.offline:
                if self._is_unknown(topic_id):
                    self._unknown.add(topic_id)
        for directory, log in list(self._store.unclaimed()):
            if log.topic_id in removed:
                self._report("log-of-deleted-topic", topic=log.tp.topic, partition=log.tp.partition)
                self._store.delete_log(directory, log)
            elif self._is_unknown(log.topic_id):
                # Nobody deleted it (a Kafka directory, its metadata elsewhere), or not as far as this node has heard:
                # its records are not ours to delete.
                self._unknown.add(log.topic_id)
                self._report("log-of-unknown-topic", topic=log.tp.topic, partition=log.tp.partition)

    def _is_unknown(self, topic_id: TopicId) -> bool:
        return self.image.topic_by_id(topic_id) is None and topic_id not in self.readopted

    def _is_stray(self, topic_id: TopicId) -> bool:
        """Whether a log makes way for a new one of its name: nothing was written to it since the start found it."""
        return self.is_one_of_several and topic_id in self._unknown and self._is_unknown(topic_id)

    def _moved_aside(self, stray: StrayLog) -> None:
        key = stray.topic_id, stray.tp.partition
        if self._store.hosted.is_offline(key):
            self._store.hosted.forget(key)
        fields = {"topic": stray.tp.topic, "partition": stray.tp.partition, "id": topic_id_text(stray.topic_id)}
        self._report("log-is-stray", **fields, path=stray.path, remedy="remove it if nothing of it is wanted")

    # ---- following the log -----------------------------------------------------------------------------------

    def publish(self, changes: Changes) -> None:
        """The image has changed so."""
        self._topic_configs.clear()
        if changes.broker_configs:
            self.reconfigure()
        self._tell_topics(changes)
        for name, topic_id in changes.removed:
            self._report("topic-deleted", topic=name, id=topic_id_text(topic_id))
            self._remove(name, topic_id)
        new = set()
        for topic_id in changes.created:
            made = self.image.topic_by_id(topic_id)
            if made is not None and topic_id not in self.readopted:  # whose logs are here
                new.add(topic_id)
                self._report("topic-created", **_described(made))
        for topic_id in changes.partitions:
            topic = self.image.topic_by_id(topic_id)
            if topic is not None:
                if topic_id in self.readopted:
                    self.readopted.discard(topic_id)
                    self._report("topic-regained", **_described(topic))
                    self.closed_directories.mark_missing(topic)
                    self._open_partitions(topic)
                if self._is_registered:
                    self.closed_directories.make_again(self.image, topic)
                self._creation.queue_topic(topic_id, is_new=topic_id in new)
                self.lead(topic)
        if self._node_id in changes.brokers:
            # It is fenced, or not any more: then the same leaders lead, or do not.
            for topic in list(self.image.topics.values()):
                if self.closed_directories.are_missed and self._is_registered:
                    self.closed_directories.make_again(self.image, topic)
                    self._creation.queue_topic(topic.id, is_new=False)
                self.lead(topic)
        self._creation.create_next()
        for name in changes.topic_configs:
            self._report("topic-configured", topic=name, settings=_listed(self.image.topic_config(name)))
            self.configure(name)
        if changes.brokers:
            self._tell_peers(changes.brokers)
            for callback in self.on_brokers:
                callback()
        for name in changes.broker_configs:
            settings = self.image.broker_config(None if name == "" else int(name))
            self._report("broker-configured", node=name or "every", settings=_listed(settings))
        for name, before, level in changes.levels:
            self._report("feature-level-changed", feature=name, before=before, level=level)
        for name in changes.group_configs:
            self._report("group-configured", group=name, settings=_listed(self.image.group_config(name)))

    def _tell_topics(self, changes: Changes) -> None:
        changed = [topic for topic_id in changes.partitions if (topic := self.image.topic_by_id(topic_id)) is not None]
        names = [*(name for name, _ in changes.removed), *(topic.name for topic in changed)]
        if names:
            for callback in self.on_topics:
                callback(names, bool(changes.created))

    def _tell_peers(self, changed: Iterable[int]) -> None:
        for node_id in sorted({*changed} - {self._node_id}):
            broker = self.image.brokers.get(node_id)
            if broker is not None and not broker.fenced:
                if node_id not in self._peers:
                    self._peers.add(node_id)
                    self._report("peer-unfenced", node=node_id)
            elif node_id in self._peers:
                self._peers.remove(node_id)
                self._report("peer-fenced", node=node_id)

    def lead(self, topic: TopicImage) -> None:
        """Lead those open partitions of the topic that the image says this node leads, of a new one all or none.

        Others are led elsewhere, or by nobody: what waits in them is told so.
        """
        if self._creation.holds(topic.id):
            return
        is_registered = self._is_registered
        for index, image in enumerate(topic.partitions):
            partition = self._store.partition_by_id(topic.id, index)
            if partition is None:
                continue
            leader = self.image.leader(image)
            if leader == self._node_id:
                if is_registered:  # else it is the epoch of an earlier process, from before this one's registration
                    partition.lead(image.leader_epoch, image.replicas, image.isr, image.partition_epoch, self.lease)
            elif image.leader != self._node_id or len(image.replicas) > 1:
                partition.resign(leader, image.leader_epoch, image.replicas, image.isr)
            # Else it is fenced, or stops; what only it has nobody else could lead, and what was begun is finished.
        for callback in self.on_leaders:
            callback(topic.name)

    @property
    def _is_registered(self) -> bool:
        """Whether the image has this process's registration, and not that of an earlier one."""
        own = self.image.brokers.get(self._node_id)
        return own is not None and own.incarnation_id == self.incarnation

    def when_published(self, callback: Callable[[], None]) -> None:
        """Call back once no committed partition is still being made or deleted: now, or with the last one."""
        self._creation.when_done(callback)

    def _open_partitions(self, topic: TopicImage) -> None:
        """At start: open this node's partitions of the topic, or make them if a crash came before that."""
        config = self.topic_config(topic.name)
        for index, image in enumerate(topic.partitions):
            key = topic.id, index
            known = self._store.hosted.get(key)
            if self._node_id not in image.replicas or (known is not None and known.state is HostedState.CREATING):
                continue
            tp = TopicPartition(topic.name, index)
            try:
                self.closed_directories.check(topic.id, index)
                self._store.open_partition(tp, topic.id, config)
            except (OSError, DuramenError) as error:
                self._creation.not_opened(tp, key, error)
                self._report("partition-offline", topic=topic.name, partition=index, error=error)

    def _remove(self, name: str, topic_id: TopicId) -> None:
        for tp in [tp for tp, partition in self._store.partitions.items() if partition.topic_id == topic_id]:
            self._store.delete_partition(tp)
        self._creation.forget_topic(topic_id)
        self._store.deletions.delete_offline_logs(
            topic_id, lambda error: self._report("partition-not-deleted", topic=name, error=error)
        )
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
        for callback in self.on_configured:
            callback(name)

    def reconfigure(self) -> None:
        """The image holds other dynamic broker settings: take them over, here and in every topic."""
        own, default = self.image.broker_config(self._node_id), self.image.broker_config(None)
        own = {name: value for name, value in own.items() if name != MIN_IN_SYNC}  # of an older release: not one node's
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
        return self._creation.with_errors(answer)


def _described(topic: TopicImage) -> dict[str, Any]:
    """What a report says of a topic that is new."""
    return {"topic": topic.name, "id": topic_id_text(topic.id), "partitions": len(topic.partitions)}


def _listed(settings: Mapping[str, str]) -> str:
    """Settings for a log line: all that are set on the resource now."""
    return ",".join(f"{name}={value}" for name, value in sorted(settings.items())) or "defaults"
