"""Makes records of the metadata log part of an image: the one place that knows what each record changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from duramen.errors import check
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.image import (
    LOST_DIRECTORY,
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from duramen.model import TopicId
from duramen.wire.records.versioned import Unknown


class Application:
    """Applies records to `image`. removed: takes the ids of topics seen deleted; None when nobody asks.

    forgiving: a repair took records out of the log, and what only they would have explained is passed over.
    held: the records of a transaction that has begun and not ended (KIP-868); None outside of one. They take effect
    with its end. before: is told of each record that takes effect, while the image is still without it.
    """

    def __init__(self, image: MetadataImage, removed: set[TopicId] | None = None) -> None:
        self.image = image
        self.removed = removed
        self.forgiving = False
        self.held: list[tuple[str, Any]] | None = None
        self.before: Callable[[str, Any], None] | None = None

    def take(self, record: LogRecord, offset: int) -> None:
        """The next record of the log. What `apply` raises; CORRUPT_MESSAGE."""
        image = self.image
        check(offset >= image.next_offset, "metadata records are applied in the order of their offsets")
        kind, message = codec.decode(record)
        if kind == "BeginTransactionRecord":
            if self.forgiving:
                self._end_transaction()  # its own end is lost
            check(self.held is None, "metadata transactions do not nest")
            self.held = []
        elif kind == "EndTransactionRecord":
            self._end_transaction()
        elif kind == "AbortTransactionRecord":
            self.held = None
        elif self.held is not None:
            self.held.append((kind, message))
        else:
            self.apply(kind, message)
        image.next_offset = offset + 1
        image.version += 1

    def take_control(self, record: LogRecord, offset: int) -> None:
        """The next record of the log, which is a control record."""
        codec.apply_control(self.image, record)
        self.image.next_offset = offset + 1

    def _end_transaction(self) -> None:
        inside, self.held = self.held or [], None
        for kind, message in inside:
            self.apply(kind, message)

    def apply(self, kind: str, message: Any) -> None:
        """One record; UNSUPPORTED_VERSION for a known type in a version that is not."""
        application = _APPLICATIONS.get(kind)
        if application is not None:
            if self.before is not None:
                self.before(kind, message)
            application(self, message)
            return
        codec.check_skippable(message)
        if isinstance(message, Unknown):
            self.image.carried.append(message.data)

    def _topic(self, message: Any) -> None:
        before = self.image.topics.get(message.name)
        if before is not None and self.forgiving:
            self._forget(before.id)  # its deletion is lost
            before = None
        check(before is None, "a topic's record comes once")
        self.image.add_topic(TopicImage(message.name, message.topic_id))

    def _partition(self, message: Any) -> None:
        topic = self._known(message.topic_id)
        if topic is None:
            return
        partition = PartitionImage(
            leader=message.leader,
            leader_epoch=message.leader_epoch,
            partition_epoch=message.partition_epoch,
            replicas=tuple(message.replicas),
            isr=tuple(message.isr),
            elr=tuple(message.eligible_leader_replicas or ()),
            last_known_elr=tuple(message.last_known_elr or ()),
            adding=tuple(message.adding_replicas),
            removing=tuple(message.removing_replicas),
            directories=tuple(message.directories),
            leader_recovery_state=message.leader_recovery_state,
        )
        index = message.partition_id
        while self.forgiving and len(topic.partitions) < index:
            # Their records are lost: where this one is they were, too, each in a directory that nobody knows.
            topic.partitions.append(partition._replace(directories=(LOST_DIRECTORY,) * len(partition.replicas)))
            self.image.partition_count += 1
        if index < len(topic.partitions):
            topic.partitions[index] = partition
            return
        check(index == len(topic.partitions), "partitions are recorded in order")
        topic.partitions.append(partition)
        self.image.partition_count += 1

    def _partition_change(self, message: Any) -> None:
        topic = self._known(message.topic_id)
        if topic is None or (self.forgiving and message.partition_id >= len(topic.partitions)):
            return
        partitions = topic.partitions
        partition = partitions[message.partition_id]
        changed: dict[str, Any] = {"partition_epoch": partition.partition_epoch + 1}
        for field, name in _REPLACED.items():
            nodes = getattr(message, field)
            if nodes is not None:
                changed[name] = tuple(nodes)
        if message.leader_recovery_state >= 0:
            changed["leader_recovery_state"] = message.leader_recovery_state
        if message.leader != codec.NO_LEADER_CHANGE:
            changed["leader"] = message.leader
            changed["leader_epoch"] = partition.leader_epoch + 1
        partitions[message.partition_id] = partition._replace(**changed)

    def _removal(self, message: Any) -> None:
        self._forget(message.topic_id)

    def _forget(self, topic_id: TopicId) -> None:
        topic = self._known(topic_id)
        if topic is not None:
            self.image.remove_topic(topic)
        if self.removed is not None:
            self.removed.add(topic_id)

    def _known(self, topic_id: TopicId) -> TopicImage | None:
        """The topic with this id; None where its record is lost."""
        topic = self.image.topics_by_id.get(topic_id)
        check(topic is not None or self.forgiving, "a topic's own record comes first")
        return topic

    def _config(self, message: Any) -> None:
        self.image.set_config(message.resource_type, message.resource_name, message.name, message.value)

    def _registration(self, message: Any) -> None:
        broker = BrokerImage(
            id=message.broker_id,
            epoch=message.broker_epoch,
            incarnation_id=message.incarnation_id,
            endpoints=tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in message.end_points),
            rack=message.rack,
            fenced=message.fenced,
            in_controlled_shutdown=message.in_controlled_shutdown,
            directories=tuple(message.log_dirs),
            features=tuple((f.name, f.min_supported_version, f.max_supported_version) for f in message.features),
        )
        self.image.start_broker(broker)

    def _broker_change(self, message: Any) -> None:
        broker = self.image.brokers.get(message.broker_id)
        if broker is None or broker.epoch != message.broker_epoch:
            return
        if message.fenced:
            broker = broker._replace(fenced=message.fenced > 0)
        if message.in_controlled_shutdown:
            broker = broker._replace(in_controlled_shutdown=True)
        self.image.brokers[broker.id] = broker

    def _unregistration(self, message: Any) -> None:
        self.image.brokers.pop(message.broker_id, None)

    def _producer_ids(self, message: Any) -> None:
        self.image.next_producer_id = message.next_producer_id

    def _feature(self, message: Any) -> None:
        if message.feature_level:
            self.image.features[message.name] = message.feature_level
        else:
            self.image.features.pop(message.name, None)


_REPLACED: Final = {
    "isr": "isr",
    "replicas": "replicas",
    "removing_replicas": "removing",
    "adding_replicas": "adding",
    "eligible_leader_replicas": "elr",
    "last_known_elr": "last_known_elr",
    "directories": "directories",
}
"""Lists of a PartitionChangeRecord (None: unchanged) and what they replace in the image."""

_APPLICATIONS: Final[dict[str, Callable[[Application, Any], None]]] = {
    "TopicRecord": Application._topic,
    "PartitionRecord": Application._partition,
    "PartitionChangeRecord": Application._partition_change,
    "RemoveTopicRecord": Application._removal,
    "ConfigRecord": Application._config,
    "RegisterBrokerRecord": Application._registration,
    "BrokerRegistrationChangeRecord": Application._broker_change,
    "UnregisterBrokerRecord": Application._unregistration,
    "ProducerIdsRecord": Application._producer_ids,
    "FeatureLevelRecord": Application._feature,
}
