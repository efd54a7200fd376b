"""Answers DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Iterable

from duramen.errors import ErrorCode
from duramen.machines.contract import LogRecord
from duramen.machines.group import records
from duramen.machines.group.classic.state import Group, GroupState
from duramen.machines.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from duramen.machines.group.commands import GroupDescription, ListedGroup, ListGroups, MemberDescription
from duramen.machines.group.consumer import records as consumer_records
from duramen.machines.group.consumer.state import ConsumerGroup
from duramen.machines.group.offsets import OffsetTable

CLASSIC = "classic"
CONSUMER = "consumer"


def describe(group_id: str, group: Group | None, *, is_other_type: bool) -> GroupDescription:
    """The group as it is; protocol and metadata only while they are agreed upon, assignments until there are others."""
    if group is None:
        return GroupDescription(group_id, GroupState.DEAD.value, exists=False, is_other_type=is_other_type)
    stable = group.state is GroupState.STABLE
    return GroupDescription(
        group_id,
        group.state.value,
        group.protocol_type or "",
        (group.protocol or "") if stable else "",
        tuple(
            MemberDescription(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        ),
    )


def list_groups(groups: Iterable[Group], consumers: Iterable[ConsumerGroup], command: ListGroups) -> list[ListedGroup]:
    """All groups that pass the filters (KIP-518, KIP-848)."""
    listed = [ListedGroup(group.id, group.protocol_type or "", group.state.value, CLASSIC) for group in groups]
    if not command.types or CONSUMER in command.types:
        listed += [ListedGroup(each.id, CONSUMER_PROTOCOL_TYPE, each.state.value, CONSUMER) for each in consumers]
    return [
        group
        for group in listed
        if (not command.states or group.state.lower() in command.states)
        and (not command.types or group.group_type in command.types)
    ]


def delete_group(
    group_id: str, group: Group | None, table: OffsetTable, is_recorded: bool
) -> tuple[list[LogRecord], ErrorCode]:
    """Tombstones for a group without members and all its offsets (KIP-229), those of open transactions among them."""
    if group is None:
        return [], ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY:
        return [], ErrorCode.NON_EMPTY_GROUP
    written = [records.offset_tombstone(group_id, *position) for position in table.positions(group_id)]
    if is_recorded:
        written.append(records.group_tombstone(group_id))
    return written, ErrorCode.NONE


def delete_consumer_group(group: ConsumerGroup, table: OffsetTable) -> tuple[list[LogRecord], ErrorCode]:
    """The same for a consumer group."""
    if group.members:
        return [], ErrorCode.NON_EMPTY_GROUP
    written = [records.offset_tombstone(group.id, *position) for position in table.positions(group.id)]
    return written + consumer_records.group_tombstones(group), ErrorCode.NONE
