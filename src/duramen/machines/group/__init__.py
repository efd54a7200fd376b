"""The group machine: consumer groups of the classic protocol and their offsets, behind `__consumer_offsets`."""

from duramen.machines.group.classic.state import GroupState
from duramen.machines.group.commands import (
    CommitOffsets,
    CommittedOffset,
    DeleteGroups,
    DeleteOffsets,
    DescribeGroups,
    FetchOffsets,
    GroupDescription,
    Heartbeat,
    Joined,
    JoinedMember,
    JoinGroup,
    LeaveGroup,
    Leaver,
    ListedGroup,
    ListGroups,
    MemberDescription,
    NewOffset,
    SyncedMember,
    SyncGroup,
    TopicsDeleted,
)
from duramen.machines.group.machine import GroupMachine
from duramen.machines.group.settings import GroupSettings

__all__ = [
    "CommitOffsets",
    "CommittedOffset",
    "DeleteGroups",
    "DeleteOffsets",
    "DescribeGroups",
    "FetchOffsets",
    "GroupDescription",
    "GroupMachine",
    "GroupSettings",
    "GroupState",
    "Heartbeat",
    "JoinGroup",
    "Joined",
    "JoinedMember",
    "LeaveGroup",
    "Leaver",
    "ListGroups",
    "ListedGroup",
    "MemberDescription",
    "NewOffset",
    "SyncGroup",
    "SyncedMember",
    "TopicsDeleted",
]
