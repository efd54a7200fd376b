"""The metadata machine: it decides what `__cluster_metadata` records, and builds the image from those records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from duramen.config import BrokerConfig
from duramen.errors import check
from duramen.machines.contract import LogRecord, Outcome, TransactionMarks
from duramen.machines.metadata import brokers, codec, configs, topics
from duramen.machines.metadata.commands import (
    OK,
    AllocateProducerIds,
    Barrier,
    BrokerStopping,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    RegisterBroker,
    Registered,
    SetConfigs,
)
from duramen.machines.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from duramen.model import TopicId

Decision = tuple[list[LogRecord], Any]


@dataclass(slots=True)
class Changes:
    """What committed records changed, for those who follow the image. Lists are in log order, without repetition."""

    created: list[TopicId] = field(default_factory=list)
    removed: list[tuple[str, TopicId]] = field(default_factory=list)
    partitions: list[TopicId] = field(default_factory=list)
    """Topics with partitions that are new or have another leader, epoch or replica set; created ones included."""
    topic_configs: list[str] = field(default_factory=list)
    broker_configs: list[str] = field(default_factory=list)
    """Resource names: a node id, or "" for the cluster-wide default."""
    brokers: list[int] = field(default_factory=list)


class MetadataMachine:
    """State machine over the metadata log. `config` is this broker's; whoever changes it assigns the new one."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.image = MetadataImage()
        self.transaction_marks: TransactionMarks | None = codec.TRANSACTION_MARKS
        self._open_transaction: list[tuple[LogRecord, int]] | None = None
        self._removed_names: dict[TopicId, str] = {}
        self.removed: frozenset[TopicId] = frozenset()
        """Topics that the log says were deleted before it was loaded."""

    # ------------------------------------------------------------------ decisions

    def decide(self, command: Any, ticket: int, now: int) -> Outcome:
        """Judge one command of `commands`; TypeError for anything else."""
        decision = _DECISIONS.get(type(command))
        if decision is None:
            raise TypeError(f"not a metadata command: {command!r}")
        records, answer = decision(self, command)
        return Outcome(records=records, replies=[(ticket, answer)])

    def on_loaded(self, now: int) -> Outcome:
        """Close a transaction that a crash left open, so that nothing written later becomes part of it."""
        self.removed = frozenset(self._removed_names)
        self._removed_names.clear()
        if self._open_transaction is None:
            return Outcome()
        return Outcome(records=[codec.TRANSACTION_MARKS.abort])

    def _register(self, command: RegisterBroker) -> Decision:
        records = brokers.register(self.image, command)
        return records, Registered(self.image.next_offset + len(records) - 1)

    def _stopping(self, command: BrokerStopping) -> Decision:
        return brokers.stopping(self.image, command), OK

    # ------------------------------------------------------------------ application

    def apply(self, record: LogRecord, offset: int, timestamp: int) -> None:
        """Make one record of the metadata log part of the image."""
        check(offset >= self.image.next_offset, "metadata records are applied in the order of their offsets")
        kind, message = codec.decode(record)
        if kind == "BeginTransactionRecord":
            check(self._open_transaction is None, "metadata transactions do not nest")
            self._open_transaction = []
        elif kind == "EndTransactionRecord":
            inside, self._open_transaction = self._open_transaction or [], None
            for held, at in inside:
                self._apply_one(*codec.decode(held), at)
        elif kind == "AbortTransactionRecord":
            self._open_transaction = None
        elif self._open_transaction is not None:
            self._open_transaction.append((record, offset))
        else:
            self._apply_one(kind, message, offset)
        self.image.next_offset = offset + 1
        self.image.version += 1

    def _apply_one(self, kind: str, message: Any, offset: int) -> None:
        application = _APPLICATIONS.get(kind)
        if application is not None:
            application(self, message, offset)
        else:
            codec.check_skippable(message)

    def _apply_topic(self, message: Any, offset: int) -> None:
        check(message.name not in self.image.topics, "a topic's record comes once")
        self.image.add_topic(TopicImage(message.name, message.topic_id))

    def _apply_partition(self, message: Any, offset: int) -> None:
        topic = self.image.topics_by_id[message.topic_id]
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
        if index < len(topic.partitions):
            topic.partitions[index] = partition
            return
        check(index == len(topic.partitions), "partitions are recorded in order")
        topic.partitions.append(partition)
        self.image.partition_count += 1

    def _apply_partition_change(self, message: Any, offset: int) -> None:
        partition = self.image.topics_by_id[message.topic_id].partitions[message.partition_id]
        if message.isr is not None:
            partition.isr = tuple(message.isr)
        if message.replicas is not None:
            partition.replicas = tuple(message.replicas)
        if message.removing_replicas is not None:
            partition.removing = tuple(message.removing_replicas)
        if message.adding_replicas is not None:
            partition.adding = tuple(message.adding_replicas)
        if message.eligible_leader_replicas is not None:
            partition.elr = tuple(message.eligible_leader_replicas)
        if message.last_known_elr is not None:
            partition.last_known_elr = tuple(message.last_known_elr)
        if message.directories is not None:
            partition.directories = tuple(message.directories)
        if message.leader_recovery_state >= 0:
            partition.leader_recovery_state = message.leader_recovery_state
        if message.leader != codec.NO_LEADER_CHANGE:
            partition.leader = message.leader
            partition.leader_epoch += 1
        partition.partition_epoch += 1

    def _apply_removal(self, message: Any, offset: int) -> None:
        topic = self.image.topics_by_id[message.topic_id]
        self._removed_names[topic.id] = topic.name
        self.image.remove_topic(topic)

    def _apply_config(self, message: Any, offset: int) -> None:
        self.image.set_config(message.resource_type, message.resource_name, message.name, message.value)

    def _apply_registration(self, message: Any, offset: int) -> None:
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

    def _apply_broker_change(self, message: Any, offset: int) -> None:
        broker = self.image.brokers.get(message.broker_id)
        if broker is None or broker.epoch != message.broker_epoch:
            return
        if message.fenced:
            broker.fenced = message.fenced > 0
        if message.in_controlled_shutdown:
            broker.in_controlled_shutdown = True

    def _apply_unregistration(self, message: Any, offset: int) -> None:
        self.image.brokers.pop(message.broker_id, None)

    def _apply_producer_ids(self, message: Any, offset: int) -> None:
        self.image.next_producer_id = message.next_producer_id

    def _apply_feature(self, message: Any, offset: int) -> None:
        if message.feature_level:
            self.image.features[message.name] = message.feature_level
        else:
            self.image.features.pop(message.name, None)

    # ------------------------------------------------------------------ following

    def changes(self, records: Iterable[LogRecord]) -> Changes:
        """What these committed records changed; call it once per record, in log order (host observers are)."""
        created: dict[TopicId, None] = {}
        partitions: dict[TopicId, None] = {}
        configured: dict[tuple[int, str], None] = {}
        registered: dict[int, None] = {}
        removed: list[tuple[str, TopicId]] = []
        for record in records:
            kind, message = codec.decode(record)
            if kind == "TopicRecord":
                created[message.topic_id] = None
            elif kind in ("PartitionRecord", "PartitionChangeRecord"):
                partitions[message.topic_id] = None
            elif kind == "RemoveTopicRecord":
                removed.append((self._removed_names.pop(message.topic_id, ""), message.topic_id))
            elif kind == "ConfigRecord":
                configured[(message.resource_type, message.resource_name)] = None
            elif kind in ("RegisterBrokerRecord", "BrokerRegistrationChangeRecord", "UnregisterBrokerRecord"):
                registered[message.broker_id] = None
                if kind == "RegisterBrokerRecord":
                    partitions.update((topic.id, None) for topic in self.image.topics.values())
        return Changes(
            created=list(created),
            removed=removed,
            partitions=list(partitions),
            topic_configs=[name for kind, name in configured if kind == TOPIC_RESOURCE],
            broker_configs=[name for kind, name in configured if kind == BROKER_RESOURCE],
            brokers=list(registered),
        )


_DECISIONS: Final[dict[type, Callable[[MetadataMachine, Any], Decision]]] = {
    RegisterBroker: MetadataMachine._register,
    BrokerStopping: MetadataMachine._stopping,
    CreateTopics: lambda machine, command: topics.create_topics(machine.image, machine.config, command),
    CreatePartitions: lambda machine, command: topics.create_partitions(machine.image, command),
    DeleteTopics: lambda machine, command: topics.delete_topics(machine.image, command),
    SetConfigs: lambda machine, command: configs.set_configs(machine.image, machine.config, command),
    AllocateProducerIds: lambda machine, command: brokers.allocate(machine.image, command),
    ElectLeaders: lambda machine, command: brokers.elect(machine.image, command),
    Barrier: lambda machine, command: ([], True),
}

_APPLICATIONS: Final[dict[str, Callable[[MetadataMachine, Any, int], None]]] = {
    "TopicRecord": MetadataMachine._apply_topic,
    "PartitionRecord": MetadataMachine._apply_partition,
    "PartitionChangeRecord": MetadataMachine._apply_partition_change,
    "RemoveTopicRecord": MetadataMachine._apply_removal,
    "ConfigRecord": MetadataMachine._apply_config,
    "RegisterBrokerRecord": MetadataMachine._apply_registration,
    "BrokerRegistrationChangeRecord": MetadataMachine._apply_broker_change,
    "UnregisterBrokerRecord": MetadataMachine._apply_unregistration,
    "ProducerIdsRecord": MetadataMachine._apply_producer_ids,
    "FeatureLevelRecord": MetadataMachine._apply_feature,
}
