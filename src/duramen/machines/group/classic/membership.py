"""Decides JoinGroup, SyncGroup, Heartbeat and LeaveGroup for one classic group (KIP-62, KIP-345, KIP-394, KIP-814)."""

from __future__ import annotations

from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import NO_TICKET, Outcome
from duramen.machines.group import records
from duramen.machines.group.classic import rebalance
from duramen.machines.group.classic.state import Group, GroupState, Member
from duramen.machines.group.commands import (
    NO_MEMBER,
    AssignmentRefused,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Leaver,
    NewIdRefused,
    ReplacementRefused,
    SyncedMember,
    SyncGroup,
)
from duramen.machines.group.records import StoredGroup
from duramen.machines.group.settings import GroupSettings

MAX_PENDING_MEMBERS: Final = 10_000
"""Member ids of one group that may be given out without having been used."""

# ---------------------------------------------------------------------- joining


def join(group: Group, command: JoinGroup, ticket: int, settings: GroupSettings, now: int, out: Outcome) -> None:
    """Take part in the next generation; the answer comes with it unless it is a refusal."""
    member_id = command.member_id
    if not _has_room(group, member_id, settings):
        # Who is refused for lack of room leaves altogether, so that the others can go on.
        member = group.members.get(member_id)
        if member is not None:
            rebalance.remove_member(group, member, out)
        else:
            group.remove(member_id)
        out.replies.append((ticket, Joined(ErrorCode.GROUP_MAX_SIZE_REACHED)))
        rebalance.complete_if_all_joined(group, now, out)
    elif not group.accepts_protocols(command.protocol_type, command.protocols):
        out.replies.append((ticket, Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=member_id)))
    elif member_id == NO_MEMBER:
        _join_new(group, command, ticket, settings, now, out)
    elif member_id in group.pending_joins:
        if command.instance_id is not None:
            # Only dynamic members are given an id to come back with.
            out.replies.append((ticket, Joined(ErrorCode.UNKNOWN_MEMBER_ID, member_id=member_id)))
        else:
            _add(group, command, member_id, ticket, settings, now, out)
    else:
        _join_again(group, command, ticket, settings, now, out)


def _has_room(group: Group, member_id: str, settings: GroupSettings) -> bool:
    """Whether group.max.size lets this member in; while members gather, those who came first count."""
    member = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and bool(member.join_ticket)) or group.awaiting_join < settings.max_size
    return member is not None or len(group.members) < settings.max_size


def _join_new(group: Group, command: JoinGroup, ticket: int, settings: GroupSettings, now: int, out: Outcome) -> None:
    prefix = command.client_id if command.instance_id is None else command.instance_id
    new_id = f"{prefix}-{command.new_id}"
    if command.instance_id is not None:
        old_id = group.static_ids.get(command.instance_id)
        if old_id is not None:
            _replace_static(group, command, old_id, new_id, ticket, settings, now, out)
        else:
            _add(group, command, new_id, ticket, settings, now, out)
    elif not command.requires_member_id:
        _add(group, command, new_id, ticket, settings, now, out)
    elif len(group.pending_joins) >= MAX_PENDING_MEMBERS:
        out.replies.append((ticket, Joined(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
    else:
        group.pending_joins[new_id] = None
        out.timers.append((rebalance.HeartbeatTimer(group.id, new_id), now + command.session_timeout_ms))
        out.replies.append((ticket, Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id=new_id)))


def _add(
    group: Group, command: JoinGroup, member_id: str, ticket: int, settings: GroupSettings, now: int, out: Outcome
) -> None:
    member = Member(
        member_id,
        command.instance_id,
        command.client_id,
        command.client_host,
        command.session_timeout_ms,
        command.rebalance_timeout_ms,
        command.protocols,
    )
    member.is_new = True
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = command.protocol_type
    group.add(member)
    rebalance.await_join(member, ticket, out)
    # A new member cannot beat before it is answered; a client that went away must not stay for ever.
    rebalance.expect_heartbeat(group, member, now, out, settings.new_member_timeout_ms)
    rebalance.rebalance_or_complete(group, settings, now, out)


def _join_again(group: Group, command: JoinGroup, ticket: int, settings: GroupSettings, now: int, out: Outcome) -> None:
    member_id = command.member_id
    try:
        group.validate(member_id, command.instance_id)
    except KafkaError as error:
        out.replies.append((ticket, Joined(error.code, member_id=member_id)))
        return
    member = group.member(member_id)
    state = group.state
    changed = member.protocols != command.protocols
    if state is GroupState.EMPTY:
        out.replies.append((ticket, Joined(ErrorCode.UNKNOWN_MEMBER_ID, member_id=member_id)))
    elif state is GroupState.COMPLETING_REBALANCE and not changed:
        # Its answer was lost on the way: the generation it belongs to stands.
        out.replies.append((ticket, group.joined(member)))
    elif state is GroupState.STABLE and not changed and group.leader != member_id:
        out.replies.append((ticket, group.joined(member)))
    else:
        group.update(member, command.protocols, command.session_timeout_ms, command.rebalance_timeout_ms)
        rebalance.await_join(member, ticket, out)
        rebalance.rebalance_or_complete(group, settings, now, out)


def _replace_static(
    group: Group,
    command: JoinGroup,
    old_id: str,
    new_id: str,
    ticket: int,
    settings: GroupSettings,
    now: int,
    out: Outcome,
) -> None:
    """The process of an instance id was restarted: it takes the old one's place (KIP-345)."""
    instance_id = command.instance_id
    old_leader = group.leader
    member = group.member(old_id)
    rebalance.answer_join(member, Joined(ErrorCode.FENCED_INSTANCE_ID, member_id=old_id), out)
    rebalance.answer_sync(member, SyncedMember(ErrorCode.FENCED_INSTANCE_ID), out)
    rebalance.forget_heartbeat(group, old_id, out)
    before = (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)
    group.rename_static(instance_id or "", old_id, new_id)
    group.update(member, command.protocols, command.session_timeout_ms, command.rebalance_timeout_ms)
    rebalance.expect_heartbeat(group, member, now, out)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol:
        # Nothing that the assignment depends on has changed: the group goes on, only the new id is recorded.
        out.records.append(records.group_metadata(group))
        out.if_refused = ReplacementRefused(group.id, instance_id or "", new_id, old_id, *before)
        is_leader = group.leader == new_id
        if command.may_skip_assignment:
            out.replies.append((ticket, group.joined(member, skip_assignment=is_leader)))
        else:
            # An old client that learnt that it leads would send an assignment: name the member id it had.
            answer = group.joined(member, with_members=False)
            out.replies.append((ticket, _with_leader(answer, old_leader or "")))
        return
    rebalance.await_join(member, ticket, out)
    if group.state is GroupState.PREPARING_REBALANCE:
        rebalance.complete_if_all_joined(group, now, out)
    else:
        rebalance.prepare(group, settings, now, out)


def _with_leader(answer: Joined, leader: str) -> Joined:
    return Joined(answer.error, answer.generation, answer.protocol_type, answer.protocol, leader, answer.member_id)


def replacement_refused(group: Group, command: ReplacementRefused, now: int, out: Outcome) -> None:
    """The log did not take the new id: the old one is the member again."""
    if group.static_ids.get(command.instance_id) != command.new_member_id:
        return
    member = group.rename_static(command.instance_id, command.new_member_id, command.old_member_id)
    group.update(member, command.protocols, command.session_timeout_ms, command.rebalance_timeout_ms)
    rebalance.forget_heartbeat(group, command.new_member_id, out)
    rebalance.expect_heartbeat(group, member, now, out)


def record_new_id(group: Group, command: JoinGroup, ticket: int, stored: StoredGroup | None, out: Outcome) -> None:
    """Have the log know a static member by the id that it is about to be given, where the group rebalances.

    The generation that would tell it has no assignment yet. A node that takes over goes on with the one before, and
    would fence the member for the sake of the process that it has replaced.
    """
    if command.instance_id is None or stored is None or out.records:
        return
    new_id = group.static_ids.get(command.instance_id)
    for member in stored.members:
        if member.instance_id == command.instance_id and new_id not in (None, member.member_id):
            out.records.append(records.renamed_member(group.id, stored, member.member_id, new_id or ""))
            out.if_refused = NewIdRefused(group.id, new_id or "", ticket)


def new_id_refused(group: Group, command: NewIdRefused, now: int, out: Outcome) -> None:
    """Every request that waited was answered with the error; the timers that went with the answers are set again."""
    member = group.members.get(command.member_id)
    if member is not None and member.join_ticket == command.ticket:
        member.join_ticket = NO_TICKET
    rebalance.restart_timers(group, now, out)


# ---------------------------------------------------------------------- assignments


def sync(group: Group, command: SyncGroup, ticket: int, now: int, out: Outcome) -> None:
    """Ask for the assignment of a generation; the leader's request brings it."""
    error = _sync_refusal(group, command)
    if error is not ErrorCode.NONE:
        out.replies.append((ticket, SyncedMember(error)))
        return
    member = group.member(command.member_id)
    if group.state is GroupState.COMPLETING_REBALANCE:
        rebalance.await_sync(member, ticket, out)
        rebalance.synced(group, member.id, out)
        if group.leader == member.id:
            out.if_refused = AssignmentRefused(group.id, group.generation)
            rebalance.assign(group, dict(command.assignments), now, out)
        return
    rebalance.synced(group, member.id, out)
    out.replies.append((ticket, SyncedMember(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)))


def _sync_refusal(group: Group, command: SyncGroup) -> ErrorCode:
    try:
        group.validate(command.member_id, command.instance_id)
    except KafkaError as error:
        return error.code
    if command.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differ(command.protocol_type, group.protocol_type) or _differ(command.protocol, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    if group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE


def _differ(given: str | None, known: str | None) -> bool:
    return given is not None and known is not None and given != known


def assignment_refused(
    group: Group, command: AssignmentRefused, settings: GroupSettings, now: int, out: Outcome
) -> None:
    """The log did not take the assignment: no member has one, and all join again."""
    if group.state is not GroupState.STABLE or group.generation != command.generation:
        return
    for member in group.members.values():
        member.assignment = b""
        rebalance.expect_heartbeat(group, member, now, out)
    rebalance.prepare(group, settings, now, out)


# ---------------------------------------------------------------------- staying and leaving


def heartbeat(group: Group, command: Heartbeat, now: int, out: Outcome) -> ErrorCode:
    """A sign of life; the answer tells of a rebalance."""
    if command.member_id == NO_MEMBER:
        # Not an earlier process: librdkafka has ended the session on its side and is about to join again.
        return ErrorCode.UNKNOWN_MEMBER_ID
    try:
        group.validate(command.member_id, command.instance_id)
    except KafkaError as error:
        return error.code
    if command.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    rebalance.expect_heartbeat(group, group.member(command.member_id), now, out)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave(group: Group, command: LeaveGroup, settings: GroupSettings, now: int, out: Outcome) -> list[ErrorCode]:
    """Members go, one error code for each; then one rebalance for all of them."""
    answers = [_leave_one(group, leaver, out) for leaver in command.members]
    if ErrorCode.NONE in answers:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            rebalance.prepare(group, settings, now, out)
        else:
            rebalance.complete_if_all_joined(group, now, out)
    return answers


def _leave_one(group: Group, leaver: Leaver, out: Outcome) -> ErrorCode:
    member_id: str | None = leaver.member_id
    if leaver.member_id == NO_MEMBER:
        member_id = group.static_ids.get(leaver.instance_id) if leaver.instance_id is not None else None
        if member_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif leaver.member_id in group.pending_joins:
        group.remove(leaver.member_id)
        rebalance.forget_heartbeat(group, leaver.member_id, out)
        return ErrorCode.NONE
    else:
        try:
            group.validate(leaver.member_id, leaver.instance_id)
        except KafkaError as error:
            return error.code
    rebalance.remove_member(group, group.member(member_id or ""), out)
    return ErrorCode.NONE
