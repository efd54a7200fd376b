"""The phases of a rebalance: gather joins, start a generation, gather syncs, hand out assignments, expire the silent.

All functions change one group's soft state and add to an Outcome what shall be written, answered and timed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.errors import ErrorCode, check
from duramen.machines.contract import NO_TICKET, Outcome
from duramen.machines.group import records
from duramen.machines.group.classic.state import Group, GroupState, Member
from duramen.machines.group.commands import Joined, SyncedMember
from duramen.machines.group.settings import GroupSettings


class HeartbeatTimer(NamedTuple):
    """A member, or a member id that was only given out, has to show a sign of life."""

    group_id: str
    member_id: str


class JoinTimer(NamedTuple):
    """The join phase of a group ends, whoever has come."""

    group_id: str


class SyncTimer(NamedTuple):
    """Members that have not fetched their assignment are dropped."""

    group_id: str
    generation: int


class ExpiryTimer(NamedTuple):
    """Look for offsets that have expired."""


EXPIRY: Final = ExpiryTimer()


# ---------------------------------------------------------------------- answers and timers of one member


def answer_join(member: Member, answer: Joined, out: Outcome) -> None:
    """Answer the member's parked JoinGroup, if there is one."""
    if member.join_ticket != NO_TICKET:
        out.replies.append((member.join_ticket, answer))
        member.join_ticket = NO_TICKET


def answer_sync(member: Member, answer: SyncedMember, out: Outcome) -> bool:
    """Answer the member's parked SyncGroup; False when there is none."""
    if member.sync_ticket == NO_TICKET:
        return False
    out.replies.append((member.sync_ticket, answer))
    member.sync_ticket = NO_TICKET
    return True


def await_join(member: Member, ticket: int, out: Outcome) -> None:
    """Park a JoinGroup. One parked before comes from a lost connection; it is asked to try again."""
    answer_join(member, Joined(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id), out)
    member.join_ticket = ticket


def await_sync(member: Member, ticket: int, out: Outcome) -> None:
    """Park a SyncGroup, as `await_join` does."""
    answer_sync(member, SyncedMember(ErrorCode.REBALANCE_IN_PROGRESS), out)
    member.sync_ticket = ticket


def expect_heartbeat(group: Group, member: Member, now: int, out: Outcome, timeout_ms: int | None = None) -> None:
    """Restart the member's session."""
    timeout = member.session_timeout_ms if timeout_ms is None else timeout_ms
    out.timers.append((HeartbeatTimer(group.id, member.id), now + timeout))


def forget_heartbeat(group: Group, member_id: str, out: Outcome) -> None:
    out.timers.append((HeartbeatTimer(group.id, member_id), None))


# ---------------------------------------------------------------------- join phase


def rebalance_or_complete(group: Group, settings: GroupSettings, now: int, out: Outcome) -> None:
    """The membership changed: start a rebalance, or see whether the one under way can go on."""
    if group.can_rebalance:
        prepare(group, settings, now, out)
    else:
        complete_if_all_joined(group, now, out)


def prepare(group: Group, settings: GroupSettings, now: int, out: Outcome) -> None:
    """Enter PreparingRebalance; a group without members before waits a little for more to come."""
    if group.state is GroupState.COMPLETING_REBALANCE:
        refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now, out)
    group.pending_syncs.clear()
    out.timers.append((SyncTimer(group.id, group.generation), None))
    was_empty = group.state is GroupState.EMPTY
    group.become(GroupState.PREPARING_REBALANCE, now)
    if was_empty:
        delay = settings.initial_rebalance_delay_ms
        group.initial_delay = (delay, max(group.rebalance_timeout_ms - delay, 0))
        group.new_member_added = False
        out.timers.append((JoinTimer(group.id), now + delay))
        return
    group.initial_delay = None
    if group.all_joined:
        complete_join(group, now, out)
    else:
        out.timers.append((JoinTimer(group.id), now + group.rebalance_timeout_ms))


def complete_if_all_joined(group: Group, now: int, out: Outcome) -> None:
    """End the join phase early, unless it is the first one, which always lasts its delay."""
    first = group.previous_state is GroupState.EMPTY
    if group.state is GroupState.PREPARING_REBALANCE and group.all_joined and not first:
        complete_join(group, now, out)


def join_timer_fired(group: Group, settings: GroupSettings, now: int, out: Outcome) -> None:
    """The join phase's time is up, or its initial delay may be extended because more members came."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    if group.initial_delay is not None and group.new_member_added:
        delay, remaining = group.initial_delay
        if remaining:
            group.new_member_added = False
            added = min(settings.initial_rebalance_delay_ms, remaining)
            group.initial_delay = (added, max(remaining - delay, 0))
            out.timers.append((JoinTimer(group.id), now + added))
            return
    complete_join(group, now, out)


def complete_join(group: Group, now: int, out: Outcome) -> None:
    """Start the next generation with those who joined; static members may still be on their way (KIP-345)."""
    out.timers.append((JoinTimer(group.id), None))
    group.initial_delay = None
    for member in list(group.members.values()):
        if not member.join_ticket and not member.is_static:
            group.remove(member.id)
            forget_heartbeat(group, member.id, out)
    if not group.elect_joined_leader() and group.members:
        # Only silent static members are left: wait on until they come or their sessions end.
        out.timers.append((JoinTimer(group.id), now + group.rebalance_timeout_ms))
        return
    group.next_generation(now)
    if group.state is GroupState.EMPTY:
        out.records.append(records.group_metadata(group))
        return
    for member in group.members.values():
        answer_join(member, group.joined(member), out)
        member.is_new = False
        expect_heartbeat(group, member, now, out)
        group.pending_syncs[member.id] = None
    out.timers.append((SyncTimer(group.id, group.generation), now + group.rebalance_timeout_ms))


def restart_timers(group: Group, now: int, out: Outcome) -> None:
    """Those of the phase and of all members that no request has parked: an Outcome that the log refused set none."""
    for member in group.members.values():
        if not member.join_ticket:
            expect_heartbeat(group, member, now, out)
    if group.state is GroupState.PREPARING_REBALANCE:
        wait = group.rebalance_timeout_ms if group.initial_delay is None else group.initial_delay[0]
        out.timers.append((JoinTimer(group.id), now + wait))
    elif group.state is GroupState.COMPLETING_REBALANCE:
        out.timers.append((SyncTimer(group.id, group.generation), now + group.rebalance_timeout_ms))


# ---------------------------------------------------------------------- sync phase


def synced(group: Group, member_id: str, out: Outcome) -> None:
    """The member asked for its assignment; the timer ends with the last of them."""
    group.pending_syncs.pop(member_id, None)
    if not group.pending_syncs:
        out.timers.append((SyncTimer(group.id, group.generation), None))


def assign(group: Group, assignments: dict[str, bytes], now: int, out: Outcome) -> None:
    """The leader's assignment becomes the generation's: written, and answered to all who wait for it."""
    check(group.state is GroupState.COMPLETING_REBALANCE, "assignments belong to the sync phase")
    for member in group.members.values():
        member.assignment = assignments.get(member.id, b"")
    group.become(GroupState.STABLE, now)
    out.records.append(records.group_metadata(group))
    for member in group.members.values():
        answer = SyncedMember(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)
        if answer_sync(member, answer, out):
            expect_heartbeat(group, member, now, out)


def refuse_syncs(group: Group, error: ErrorCode, now: int, out: Outcome) -> None:
    """Take back all assignments and tell those who wait for theirs."""
    for member in group.members.values():
        member.assignment = b""
        if answer_sync(member, SyncedMember(error), out):
            expect_heartbeat(group, member, now, out)


def sync_timer_fired(group: Group, generation: int, settings: GroupSettings, now: int, out: Outcome) -> None:
    """Drop members that joined this generation and never asked for their assignment."""
    waits = group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
    if generation != group.generation or not waits or not group.pending_syncs:
        return
    for member_id in list(group.pending_syncs):
        remove_member(group, group.members[member_id], out)
    prepare(group, settings, now, out)


# ---------------------------------------------------------------------- leaving


def heartbeat_timer_fired(group: Group, member_id: str, settings: GroupSettings, now: int, out: Outcome) -> None:
    """A session ended without a sign of life."""
    if member_id in group.pending_joins:
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
            complete_join(group, now, out)
        return
    member = group.members.get(member_id)
    if member is None or member.excused_from_heartbeat:
        return
    remove_member(group, member, out)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare(group, settings, now, out)
    elif group.state is GroupState.PREPARING_REBALANCE and group.all_joined:
        complete_join(group, now, out)


def remove_member(group: Group, member: Member, out: Outcome) -> None:
    """Take a member out; what it has parked is answered, so that a live client joins again."""
    answer_join(member, Joined(ErrorCode.UNKNOWN_MEMBER_ID), out)
    answer_sync(member, SyncedMember(ErrorCode.UNKNOWN_MEMBER_ID), out)
    group.remove(member.id)
    forget_heartbeat(group, member.id, out)
