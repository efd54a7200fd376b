"""What coordinators say of groups, whichever protocol their members speak: state, members, what these read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code, only
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.wire.errors import DecodeError
from duramen.wire.messages import API
from duramen.wire.records.consumer import ConsumerProtocolAssignment
from duramen.wire.records.versioned import VERSION, read_version

OFFSET_FETCH: Final = 9
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
CONSUMER_GROUP_DESCRIBE: Final = 69

LAST_WITH_TOPIC_NAMES: Final = 9
"""Version of OffsetFetch."""

DEAD: Final = "Dead"
"""The state of a group that is not there, in answers to old requests."""


class DescribedMember(NamedTuple):
    """A member. instance: its group.instance.id, if it has one; partitions: what it reads."""

    member_id: str
    instance: str | None
    client_id: str
    partitions: tuple[TopicPartition, ...]


class DescribedGroup(NamedTuple):
    """A group. state: as Kafka names it (Stable, Empty, …); is_simple: offsets alone, it never had members."""

    group_id: str
    state: str
    assignor: str
    is_simple: bool
    members: tuple[DescribedMember, ...]
    error: ErrorCode
    message: str


def classic_request(groups: Iterable[str]) -> Any:
    """DescribeGroups."""
    return API[DESCRIBE_GROUPS].request.new(groups=list(groups))


def consumer_request(groups: Iterable[str]) -> Any:
    """ConsumerGroupDescribe."""
    return API[CONSUMER_GROUP_DESCRIBE].request.new(group_ids=list(groups))


def classic_groups(response: Any) -> list[DescribedGroup]:
    """What DescribeGroups answers. A member whose assignment is not of the consumer protocol reads nothing."""
    return [
        DescribedGroup(
            group.group_id,
            group.group_state,
            group.protocol_data,
            not group.protocol_type,
            tuple(
                DescribedMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    _assigned(bytes(member.member_assignment)) if group.protocol_type == "consumer" else (),
                )
                for member in group.members
            ),
            error_code(group.error_code),
            group.error_message or "",
        )
        for group in response.groups
    ]


def consumer_groups(response: Any) -> list[DescribedGroup]:
    """What ConsumerGroupDescribe answers."""
    return [
        DescribedGroup(
            group.group_id,
            group.group_state,
            group.assignor_name,
            False,
            tuple(
                DescribedMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    tuple(
                        TopicPartition(topic.topic_name, partition)
                        for topic in member.assignment.topic_partitions
                        for partition in topic.partitions
                    ),
                )
                for member in group.members
            ),
            error_code(group.error_code),
            group.error_message or "",
        )
        for group in response.groups
    ]


def commits_request(group: str) -> Any:
    """OffsetFetch of all that a group has committed, from version 8 (Kafka 3.0) up to LAST_WITH_TOPIC_NAMES."""
    message = API[OFFSET_FETCH].request
    wanted = message.OffsetFetchRequestGroup(group_id=group, topics=None)
    return message.new(groups=[wanted])


def commits_code(response: Any) -> int:
    """Of the group's answer."""
    return int(only(response.groups, "OffsetFetch").error_code)


def committed(response: Any) -> dict[TopicPartition, int]:
    """The offsets of the partitions where there is one."""
    return {
        TopicPartition(topic.name, each.partition_index): each.committed_offset
        for topic in only(response.groups, "OffsetFetch").topics
        for each in topic.partitions
        if not each.error_code and each.committed_offset >= 0
    }


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    try:
        version = min(read_version(data), ConsumerProtocolAssignment.max_version) if data else -1
        if version < 0:
            return ()
        found = ConsumerProtocolAssignment.decode(data, version, VERSION.size)
    except DecodeError:
        return ()
    return tuple(
        TopicPartition(topic.topic, partition) for topic in found.assigned_partitions for partition in topic.partitions
    )
