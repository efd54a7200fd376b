"""Answers DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Iterable

from duramen.errors import ErrorCode
from duramen.machines.contract import LogRecord
from duramen.machines.group import records
from duramen.machines.group.classic.state import Group, GroupState
from duramen.machines.group.commands import GroupDescription, ListedGroup, ListGroups, MemberDescription
from duramen.machines.group.offsets import OffsetTable

CLASSIC = "classic"


def describe(group_id: str, group: Group | None) -> GroupDescription:
    """The group as it is; protocol and metadata only while they are agreed upon, assignments until there are others."""
    if group is None:
        return GroupDescription(group_id, GroupState.DEAD.value, exists=False)
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


def list_groups(groups: Iterable[Group], command: ListGroups) -> list[ListedGroup]:
    """All groups that pass the filters (KIP-518, KIP-848)."""
    if command.types and CLASSIC not in command.types:
        return []
    return [
        ListedGroup(group.id, group.protocol_type or "", group.state.value, CLASSIC)
        for group in groups
        if not command.states or group.state.value.lower() in command.states
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
