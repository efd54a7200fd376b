"""Commands the metadata machine understands and the answers it gives; independent of any API's version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from duramen.errors import ErrorCode
from duramen.machines.metadata.image import Endpoint
from duramen.model import NO_TOPIC_ID, TopicId

Assignment = tuple[int, tuple[int, ...]]
"""(partition index, node ids in order of preference)"""


class Result(NamedTuple):
    """How one item of a request went; the message is for people and None when there is nothing to say."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


OK = Result()


class BeginCluster(NamedTuple):
    """The first active controller of a new cluster: its features, and what all nodes agree on. Answer: True."""


class RegisterBroker(NamedTuple):
    """A broker process starts. Answer: Registered, at which it is fenced; or KafkaError.

    incarnation_id: 16 random bytes of this process. directories: ids of its log directories. features: (name, lowest
    level, highest level). previous_broker_epoch: that of the clean stop that its directories tell of (KIP-966).
    """

    node_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    directories: tuple[bytes, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()
    previous_broker_epoch: int = -1


class Registered(NamedTuple):
    """The broker epoch: the offset of the registration."""

    broker_epoch: int


class BrokerHeartbeat(NamedTuple):
    """A broker lives, and has applied the metadata log up to the record at `metadata_offset`. Answer: HeartbeatAnswer.

    wants_fence: it is not to lead or to be counted in sync. wants_shutdown: it stops, and others are to lead.
    """

    node_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shutdown: bool = False


class HeartbeatAnswer(NamedTuple):
    """is_caught_up: whether it has applied its own registration. should_shut_down: nobody needs it any more."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool = False


class FenceBroker(NamedTuple):
    """The process of this broker is dead, which is known before its session ends. Answer: Result, or KafkaError."""

    node_id: int
    broker_epoch: int


class UnregisterBroker(NamedTuple):
    """A broker that is gone for good. Answer: Result, or KafkaError."""

    node_id: int


class NewTopic(NamedTuple):
    """One topic to create. -1 means the default (KIP-464); assignments exclude both numbers."""

    name: str
    topic_id: TopicId
    partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[Assignment, ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class LostTopic(NamedTuple):
    """A topic that logs on disk name. epochs: the latest leader epoch of each partition's log, by index.

    missing: those that have none here.
    """

    name: str
    topic_id: TopicId
    epochs: tuple[int, ...]
    missing: frozenset[int] = frozenset()
    configs: tuple[tuple[str, str | None], ...] = ()


class RegainTopics(NamedTuple):
    """What a repair took out of the log of topics whose logs are on disk. Answer: ids of those that are known now.

    A topic that is known gets the partitions that are not. One whose name another one has stays unknown, as do two of
    one name.
    """

    node_id: int
    topics: tuple[LostTopic, ...]


class RaiseEpochs(NamedTuple):
    """Leader epochs (topic id, partition, epoch) that were begun, and that the log may be behind. Answer: None.

    This node's next registration begins others.
    """

    node_id: int
    epochs: tuple[tuple[TopicId, int, int], ...]


class CreateTopics(NamedTuple):
    """Answer: one TopicCreated per topic, in order. Defaults are the broker's settings now in force."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    default_partitions: int = 1
    default_replication_factor: int = 1


class TopicCreated(NamedTuple):
    """partitions and replication_factor are -1 when the topic was refused."""

    name: str
    result: Result
    topic_id: TopicId = NO_TOPIC_ID
    partitions: int = -1
    replication_factor: int = -1


class TopicRef(NamedTuple):
    """A topic by name, or by id when the name is None."""

    name: str | None
    topic_id: TopicId = NO_TOPIC_ID


class DeleteTopics(NamedTuple):
    """Answer: one TopicDeleted per topic, in order."""

    topics: tuple[TopicRef, ...]


class TopicDeleted(NamedTuple):
    name: str | None
    topic_id: TopicId
    result: Result


class MorePartitions(NamedTuple):
    """total: how many partitions the topic shall have; assignments: replicas of each new one, None to place them."""

    name: str
    total: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitions(NamedTuple):
    """Answer: (name, Result) per topic, in order."""

    topics: tuple[MorePartitions, ...]
    validate_only: bool = False


class AlterOperation(IntEnum):
    """What IncrementalAlterConfigs does to a key (AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOperation(NamedTuple):
    key: str
    operation: int
    value: str | None


class ConfigChange(NamedTuple):
    """What shall happen to one resource's settings; `replace` drops whatever is not named (AlterConfigs)."""

    resource_type: int
    resource_name: str
    operations: tuple[ConfigOperation, ...]
    replace: bool = False


class SetConfigs(NamedTuple):
    """Answer: one Result per change, in order. A change is taken as a whole or refused as a whole."""

    changes: tuple[ConfigChange, ...]
    validate_only: bool = False


class AllocateProducerIds(NamedTuple):
    """A broker needs a block of producer ids nobody ever had. Answer: ProducerIds, or KafkaError."""

    node_id: int
    broker_epoch: int


class SkipProducerIds(NamedTuple):
    """Somebody may have producer ids below `least`, and the log does not say so. Answer: None."""

    node_id: int
    least: int


class ProducerIds(NamedTuple):
    """A block of `size` producer ids from `first` on."""

    first: int
    size: int


class ElectLeaders(NamedTuple):
    """Answer: (topic, partition, Result) for each; with partitions None those of the whole cluster that need one.

    election_type: 0 preferred, 1 unclean (KIP-460).
    """

    election_type: int
    partitions: tuple[tuple[str, int], ...] | None


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a partition's leader proposes. isr: (node, its broker epoch or -1); epochs: the latest the leader knows."""

    topic_id: TopicId
    index: int
    leader_epoch: int
    isr: tuple[tuple[int, int], ...]
    partition_epoch: int


class AlterPartition(NamedTuple):
    """A broker's leaders propose other in-sync replicas (KIP-497). Answer: a list of IsrChanged, or KafkaError."""

    node_id: int
    broker_epoch: int
    partitions: tuple[IsrChange, ...]


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """The partition as the log has it with the change; with an error nothing else is said."""

    topic_id: TopicId
    index: int
    error: ErrorCode
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int


class FeatureUpdate(NamedTuple):
    """The level a feature shall have. upgrade_type: 1 only up, 2 down where nothing is lost, 3 down in any case."""

    feature: str
    level: int
    upgrade_type: int


class UpdateFeatures(NamedTuple):
    """Answer: one Result for all updates. supported: (feature, lowest level, highest level) of this node."""

    node_id: int
    supported: tuple[tuple[str, int, int], ...]
    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class Barrier(NamedTuple):
    """Answers True once everything applied before it is committed: makes a read of the image final."""
