"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup answered for it.

To them the member epoch is the generation. They are asked to rejoin when the target has moved, when they have to
give something up, and when what they wait for is free.
"""

from __future__ import annotations

from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import Outcome
from duramen.machines.group.commands import (
    NO_MEMBER,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Leaver,
    SyncedMember,
    SyncGroup,
)
from duramen.machines.group.consumer import heartbeats
from duramen.machines.group.consumer.client_protocol import read_subscription, write_assignment
from duramen.machines.group.consumer.groups import ConsumerGroups
from duramen.machines.group.consumer.state import (
    NO_OWNED,
    NO_PARTITIONS,
    ClassicTag,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from duramen.machines.group.consumer.target import is_due
from duramen.machines.group.consumer.timers import RejoinTimer, ResyncTimer, SessionTimer

PROTOCOL_TYPE: Final = "consumer"


def join(
    groups: ConsumerGroups, group: ConsumerGroup, command: JoinGroup, now: int, out: Outcome
) -> tuple[Joined, ConsumerMember | None, str | None]:
    """(the answer, the member, whose place it takes); no member where it is refused or has to come again."""
    is_new = command.member_id == NO_MEMBER
    prefix = command.client_id if command.instance_id is None else command.instance_id
    member_id = f"{prefix}-{command.new_id}" if is_new else command.member_id
    code = _refusal(groups, group, command, member_id)
    if code is not ErrorCode.NONE:
        return Joined(code, member_id=command.member_id), None, None
    subscription = read_subscription(command.protocols[0][1], groups.topics.view)
    if subscription is None:
        return Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=command.member_id), None, None
    if is_new and command.instance_id is None and command.requires_member_id:
        return Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id), None, None
    before, replaced = _member_before(group, command, member_id, is_new=is_new, out=out)
    after = before._replace(
        instance_id=before.instance_id if command.instance_id is None else command.instance_id,
        rack=before.rack if subscription.rack is None else subscription.rack,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        topics=subscription.topics,
        expression="",
        client_id=command.client_id,
        client_host=command.client_host,
        classic=ClassicTag(command.session_timeout_ms, command.protocols),
    )
    moved = heartbeats.advance(groups, group, before, after, replaced, subscription.owned, None, now, out)
    if before.id not in group.members:
        heartbeats.report_join(group, moved, replaced, out)
    groups.rejoining.discard((group.id, moved.id))
    out.timers.append((RejoinTimer(group.id, moved.id), None))
    out.timers.append((SessionTimer(group.id, moved.id), now + command.session_timeout_ms))
    out.timers.append((ResyncTimer(group.id, moved.id), now + command.rebalance_timeout_ms))
    answer = Joined(
        generation=moved.epoch, protocol_type=PROTOCOL_TYPE, protocol=command.protocols[0][0], member_id=moved.id
    )
    return answer, moved, replaced


def _refusal(groups: ConsumerGroups, group: ConsumerGroup, command: JoinGroup, member_id: str) -> ErrorCode:
    if groups.settings.consumer_migration_policy == "disabled":
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if len(group.members) >= groups.settings.consumer_max_size and member_id not in group.members:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if command.protocol_type != PROTOCOL_TYPE or not command.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    others = [each.classic for each in group.members.values() if each.classic is not None and each.id != member_id]
    offered = {name for name, _ in command.protocols}
    for other in others:
        offered &= {name for name, _ in other.protocols}
    return ErrorCode.NONE if offered else ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def _member_before(
    group: ConsumerGroup, command: JoinGroup, member_id: str, *, is_new: bool, out: Outcome
) -> tuple[ConsumerMember, str | None]:
    known = group.members.get(member_id)
    if command.instance_id is None:
        return known or ConsumerMember(member_id), None
    holder = group.static_member(command.instance_id)
    if not is_new:
        return _check_instance(group, holder, member_id, command.instance_id), None
    if holder is None:
        return known or ConsumerMember(member_id), None
    return heartbeats.replace_static(group, holder, member_id, out), holder.id


def _check_instance(
    group: ConsumerGroup, holder: ConsumerMember | None, member_id: str, instance_id: str
) -> ConsumerMember:
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member of {group.id} has the instance id {instance_id}")
    if holder.id != member_id:
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"{holder.id} has the instance id {instance_id}")
    return holder


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicTag]:
    if instance_id is None or member_id == NO_MEMBER:
        member = group.members.get(member_id)
    else:
        member = _check_instance(group, group.static_member(instance_id), member_id, instance_id)
    if member is None or member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {group.id} by the classic protocol")
    if member.epoch != generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{member.id} is at epoch {member.epoch}")
    return member, member.classic


def sync(groups: ConsumerGroups, group: ConsumerGroup, command: SyncGroup, now: int, out: Outcome) -> SyncedMember:
    """Its assignment, as the bytes that clients read."""
    try:
        member, classic = _classic_member(group, command.member_id, command.instance_id, command.generation)
    except KafkaError as error:
        return SyncedMember(error.code)
    name, metadata = classic.protocols[0]
    if command.protocol_type not in (None, PROTOCOL_TYPE) or command.protocol not in (None, name):
        return SyncedMember(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED:
        _ask_to_rejoin(groups, group, member, now, out)
        return SyncedMember(ErrorCode.REBALANCE_IN_PROGRESS)
    out.timers.append((ResyncTimer(group.id, member.id), None))
    out.timers.append((SessionTimer(group.id, member.id), now + classic.session_timeout_ms))
    subscription = read_subscription(metadata, groups.topics.view)
    version = 0 if subscription is None else subscription.version
    assignment = write_assignment(sorted(member.assigned.items()), version, groups.topics.view)
    return SyncedMember(ErrorCode.NONE, PROTOCOL_TYPE, name, assignment)


def heartbeat(groups: ConsumerGroups, group: ConsumerGroup, command: Heartbeat, now: int, out: Outcome) -> ErrorCode:
    """A sign of life; the answer says whether to join again."""
    try:
        member, classic = _classic_member(group, command.member_id, command.instance_id, command.generation)
    except KafkaError as error:
        return error.code
    out.timers.append((SessionTimer(group.id, member.id), now + classic.session_timeout_ms))
    if (
        member.epoch < group.target_epoch
        or member.state is MemberState.UNREVOKED
        or (member.state is MemberState.UNRELEASED and not _still_waits(group, member))
        or _lacks_target(groups, group, now)
    ):
        _ask_to_rejoin(groups, group, member, now, out)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _lacks_target(groups: ConsumerGroups, group: ConsumerGroup, now: int) -> bool:
    """Whether a join has to bring the next target, for want of members whose heartbeats do. Kafka waits for one."""
    return (
        group.epoch > group.target_epoch
        and is_due(group.target_timestamp, groups.assignment_interval_ms(group.id), now)
        and group.id not in groups.computing
        and all(member.classic is not None for member in group.members.values())
    )


def _still_waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    return any(
        partition not in member.assigned.get(topic_id, NO_PARTITIONS)
        and group.owner(topic_id, partition) not in (None, member.id)
        for topic_id, partitions in group.targets.get(member.id, NO_OWNED).items()
        for partition in partitions
    )


def _ask_to_rejoin(
    groups: ConsumerGroups, group: ConsumerGroup, member: ConsumerMember, now: int, out: Outcome
) -> None:
    """It has its rebalance time-out for that, from the first time it is asked."""
    if (group.id, member.id) not in groups.rejoining:
        groups.rejoining.add((group.id, member.id))
        out.timers.append((RejoinTimer(group.id, member.id), now + max(member.rebalance_timeout_ms, 0)))


def leave(groups: ConsumerGroups, group: ConsumerGroup, command: LeaveGroup, now: int, out: Outcome) -> list[ErrorCode]:
    """Members of either protocol go, one error code for each."""
    answers = []
    going: dict[str, ConsumerMember] = {}
    for leaver in command.members:
        try:
            member = _leaving(group, leaver)
        except KafkaError as error:
            answers.append(error.code)
            continue
        going[member.id] = member
        answers.append(ErrorCode.NONE)
    heartbeats.fence(groups, group, list(going.values()), now, out)
    heartbeats.report_leave(group, going.values(), out)
    return answers


def _leaving(group: ConsumerGroup, leaver: Leaver) -> ConsumerMember:
    if leaver.instance_id is None:
        member = group.members.get(leaver.member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{leaver.member_id} is no member of {group.id}")
        return member
    holder = group.static_member(leaver.instance_id)
    if leaver.member_id == NO_MEMBER and holder is not None:
        return holder  # an administrator removes it
    return _check_instance(group, holder, leaver.member_id, leaver.instance_id)
