"""Decides which replicas of a partition are in sync, as its leader proposes it (AlterPartition: KIP-497, 841, 903).

A proposal is a compare-and-set on the partition epoch. What is taken raises that, also where the replicas stay the
same: so a leader that does not know what became of an earlier proposal makes sure that it is never taken any more.
"""

from __future__ import annotations

from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import AlterPartition, IsrChange, IsrChanged
from duramen.machines.metadata.image import NO_LEADER, MetadataImage, PartitionImage

UNKNOWN_EPOCH: Final = -1
"""Of a replica's broker, where the leader does not know it (before KIP-903)."""


def check_sender(image: MetadataImage, command: AlterPartition) -> None:
    """STALE_BROKER_EPOCH where another process has this id by now, or nobody."""
    broker = image.brokers.get(command.node_id)
    if broker is None or broker.epoch != command.broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {command.node_id} is registered otherwise")


def alter(image: MetadataImage, node_id: int, change: IsrChange) -> tuple[LogRecord | None, IsrChanged]:
    """The change of this partition that its leader, on this node, proposes, if it is taken; and the answer."""
    topic = image.topics_by_id.get(change.topic_id)
    if topic is None:
        return None, refusal(change, ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= change.index < len(topic.partitions):
        return None, refusal(change, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[change.index]
    error = _problem(image, node_id, partition, change)
    if error is not None:
        return None, refusal(change, error)
    proposed = {replica for replica, _ in change.isr}
    isr = tuple(replica for replica in partition.replicas if replica in proposed)
    answer = IsrChanged(
        topic.id,
        change.index,
        ErrorCode.NONE,
        partition.leader,
        partition.leader_epoch,
        isr,
        partition.partition_epoch + 1,
    )
    return codec.partition_change(topic.id, change.index, isr=isr), answer


def refusal(change: IsrChange, error: ErrorCode) -> IsrChanged:
    """An answer that says nothing but why not."""
    return IsrChanged(change.topic_id, change.index, error, NO_LEADER, 0, (), 0)


def _problem(image: MetadataImage, node_id: int, partition: PartitionImage, change: IsrChange) -> ErrorCode | None:
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # it knows what was decided elsewhere: this controller is deposed
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if partition.leader != node_id:
        return ErrorCode.INVALID_REQUEST
    if change.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    proposed = {replica for replica, _ in change.isr}
    if len(proposed) != len(change.isr) or not proposed <= set(partition.replicas) or node_id not in proposed:
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(image, *replica, leads=replica[0] == node_id) for replica in change.isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


def _is_eligible(image: MetadataImage, node_id: int, broker_epoch: int, *, leads: bool) -> bool:
    """A leader may be stopping: while it is the last one in sync others have to join, so that one of them can lead."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.fenced or (broker.in_controlled_shutdown and not leads):
        return False
    return broker_epoch in (UNKNOWN_EPOCH, broker.epoch)
