"""Records of consumer groups as bytes: what is written for a group, and what a decoded record says of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from duramen.machines.contract import LogRecord
from duramen.machines.group.assignors import Owned
from duramen.machines.group.consumer.state import (
    NO_EPOCHS,
    ClassicTag,
    ConsumerGroup,
    ConsumerMember,
    Epochs,
    MemberState,
    ResolvedExpression,
)
from duramen.wire.records import consumer_groups as schema
from duramen.wire.records.offsets import encode_key, encode_value

_Protocol: Final = schema.ConsumerGroupMemberMetadataValue.ClassicProtocol
_Classic: Final = schema.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
_Target: Final = schema.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
_Current: Final = schema.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions


def _record(key: Any, value: Any) -> LogRecord:
    return LogRecord(encode_key(key), None if value is None else encode_value(value))


# ---------------------------------------------------------------------- writing


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> LogRecord:
    value = schema.ConsumerGroupMetadataValue.new(epoch=epoch, metadata_hash=metadata_hash)
    return _record(schema.ConsumerGroupMetadataKey.new(group=group_id), value)


def group_tombstone(group_id: str) -> LogRecord:
    return _record(schema.ConsumerGroupMetadataKey.new(group=group_id), None)


def partition_metadata_tombstone(group_id: str) -> LogRecord:
    return _record(schema.ConsumerGroupPartitionMetadataKey.new(group=group_id), None)


def member(group_id: str, member: ConsumerMember) -> LogRecord:
    """Who it is and what it subscribes to."""
    classic = member.classic
    value = schema.ConsumerGroupMemberMetadataValue.new(
        instance_id=member.instance_id,
        rack_id=member.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.expression,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else _Classic(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[_Protocol(name=name, metadata=metadata) for name, metadata in classic.protocols],
        ),
    )
    return _record(schema.ConsumerGroupMemberMetadataKey.new(group=group_id, member=member.id), value)


def member_tombstones(group_id: str, member_id: str) -> list[LogRecord]:
    """All of a member; whoever replays relies on the order."""
    return [
        current_assignment_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        _member_tombstone(group_id, member_id),
    ]


def current_assignment_tombstone(group_id: str, member_id: str) -> LogRecord:
    return _record(schema.ConsumerGroupCurrentMemberAssignmentKey.new(group=group_id, member=member_id), None)


def target_tombstone(group_id: str, member_id: str) -> LogRecord:
    return _record(schema.ConsumerGroupTargetAssignmentMemberKey.new(group=group_id, member=member_id), None)


def _member_tombstone(group_id: str, member_id: str) -> LogRecord:
    return _record(schema.ConsumerGroupMemberMetadataKey.new(group=group_id, member=member_id), None)


def target_epoch(group_id: str, epoch: int, timestamp: int) -> LogRecord:
    value = schema.ConsumerGroupTargetAssignmentMetadataValue.new(
        assignment_epoch=epoch, assignment_timestamp=timestamp
    )
    return _record(schema.ConsumerGroupTargetAssignmentMetadataKey.new(group=group_id), value)


def target(group_id: str, member_id: str, partitions: Owned) -> LogRecord:
    """What a member shall have."""
    value = schema.ConsumerGroupTargetAssignmentMemberValue.new(
        topic_partitions=[
            _Target(topic_id=topic_id, partitions=list(indexes)) for topic_id, indexes in sorted(partitions.items())
        ]
    )
    return _record(schema.ConsumerGroupTargetAssignmentMemberKey.new(group=group_id, member=member_id), value)


def current_assignment(group_id: str, member: ConsumerMember) -> LogRecord:
    """How far a member is: its epochs, what it has, what it gives up."""
    value = schema.ConsumerGroupCurrentMemberAssignmentValue.new(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        assigned_partitions=_with_epochs(member.assigned),
        partitions_pending_revocation=_with_epochs(member.revoking),
    )
    return _record(schema.ConsumerGroupCurrentMemberAssignmentKey.new(group=group_id, member=member.id), value)


def _with_epochs(partitions: Epochs) -> list[Any]:
    return [
        _Current(topic_id=topic_id, partitions=list(ordered), assignment_epochs=list(ordered.values()))
        for topic_id, epochs in sorted(partitions.items())
        if (ordered := dict(sorted(epochs.items())))
    ]


def expression(group_id: str, text: str, resolved: ResolvedExpression) -> LogRecord:
    value = schema.ConsumerGroupRegularExpressionValue.new(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp
    )
    return _record(schema.ConsumerGroupRegularExpressionKey.new(group=group_id, regular_expression=text), value)


def expression_tombstone(group_id: str, text: str) -> LogRecord:
    return _record(schema.ConsumerGroupRegularExpressionKey.new(group=group_id, regular_expression=text), None)


def group_tombstones(group: ConsumerGroup) -> list[LogRecord]:
    """Everything that the log has of a group, its parts first."""
    written = [current_assignment_tombstone(group.id, member_id) for member_id in group.members]
    written += [target_tombstone(group.id, member_id) for member_id in {**group.members, **group.targets}]
    written.append(_record(schema.ConsumerGroupTargetAssignmentMetadataKey.new(group=group.id), None))
    written += [_member_tombstone(group.id, member_id) for member_id in group.members]
    written += [expression_tombstone(group.id, text) for text in group.expressions]
    written.append(partition_metadata_tombstone(group.id))
    written.append(group_tombstone(group.id))
    return written


# ---------------------------------------------------------------------- reading


def read_member(member: ConsumerMember, value: Any) -> ConsumerMember:
    """The member with what its record 5 says."""
    classic = value.classic_member_metadata
    return member._replace(
        instance_id=value.instance_id,
        rack=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        expression=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicTag(
            classic.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols),
        ),
    )


def read_progress(member: ConsumerMember, value: Any) -> ConsumerMember:
    """The member with what its record 8 says."""
    return member._replace(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_read_epochs(value.assigned_partitions, value.member_epoch),
        revoking=_read_epochs(value.partitions_pending_revocation, value.member_epoch),
    )


def _read_epochs(topics: Iterable[Any], member_epoch: int) -> Epochs:
    """Kafka before 4.3 wrote no epochs: the member's own then, and 0 for a static one that is away."""
    found = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        if topic.partitions:
            found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found or NO_EPOCHS


def read_target(value: Any) -> Owned:
    return {topic.topic_id: tuple(sorted(topic.partitions)) for topic in value.topic_partitions if topic.partitions}
