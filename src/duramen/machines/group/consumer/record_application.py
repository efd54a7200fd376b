"""Makes records of consumer groups part of the state, live and at replay alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from duramen.machines.group.consumer import records
from duramen.machines.group.consumer.state import (
    LEAVE_EPOCH,
    NO_EPOCHS,
    NO_TARGET,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedExpression,
)
from duramen.wire.records import consumer_groups as schema


def apply(groups: dict[str, ConsumerGroup], key: Any, value: Any) -> None:
    """One record; a tombstone for what is unknown changes nothing, for compaction leaves such."""
    group = groups.get(key.group)
    if group is None:
        if value is None:
            return
        group = groups[key.group] = ConsumerGroup(key.group)
    if value is None and type(key).__name__ == schema.ConsumerGroupMetadataKey.name:
        del groups[key.group]
    else:
        _APPLIED[type(key).__name__](group, key, value)


def _epoch(group: ConsumerGroup, key: Any, value: Any) -> None:
    group.epoch = value.epoch
    group.metadata_hash = value.metadata_hash


def _partition_metadata(group: ConsumerGroup, key: Any, value: Any) -> None:
    group.has_partition_metadata = value is not None


def _member(group: ConsumerGroup, key: Any, value: Any) -> None:
    if value is None:
        group.remove(key.member)
    else:
        group.put(records.read_member(_known(group, key.member), value))


def _known(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    return group.members.get(member_id) or ConsumerMember(member_id)


def _target_epoch(group: ConsumerGroup, key: Any, value: Any) -> None:
    group.target_epoch = NO_TARGET if value is None else value.assignment_epoch
    group.target_timestamp = 0 if value is None else value.assignment_timestamp


def _target(group: ConsumerGroup, key: Any, value: Any) -> None:
    if value is None:
        group.targets.pop(key.member, None)
    else:
        group.targets[key.member] = records.read_target(value)


def _progress(group: ConsumerGroup, key: Any, value: Any) -> None:
    if value is not None:
        group.put(records.read_progress(_known(group, key.member), value))
        return
    member = group.members.get(key.member)
    if member is not None:
        # Its other tombstones follow.
        group.put(
            member._replace(
                epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                state=MemberState.STABLE,
                assigned=NO_EPOCHS,
                revoking=NO_EPOCHS,
            )
        )


def _expression(group: ConsumerGroup, key: Any, value: Any) -> None:
    if value is None:
        group.expressions.pop(key.regular_expression, None)
    else:
        group.expressions[key.regular_expression] = ResolvedExpression(
            frozenset(value.topics), value.version, value.timestamp
        )


_APPLIED: Final[dict[str, Callable[[ConsumerGroup, Any, Any], None]]] = {
    schema.ConsumerGroupMetadataKey.name: _epoch,
    schema.ConsumerGroupPartitionMetadataKey.name: _partition_metadata,
    schema.ConsumerGroupMemberMetadataKey.name: _member,
    schema.ConsumerGroupTargetAssignmentMetadataKey.name: _target_epoch,
    schema.ConsumerGroupTargetAssignmentMemberKey.name: _target,
    schema.ConsumerGroupCurrentMemberAssignmentKey.name: _progress,
    schema.ConsumerGroupRegularExpressionKey.name: _expression,
}
"""What each kind of record changes, by its key."""
