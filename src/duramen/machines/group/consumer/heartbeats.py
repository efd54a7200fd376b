"""Decides a member's heartbeat: it joins, stays, leaves; its group's epoch, the target for it, its own way there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import NO_TICKET, Outcome
from duramen.machines.group.assignors import Assignment
from duramen.machines.group.consumer import expression_refresh, records, target
from duramen.machines.group.consumer.commands import (
    ComputeTarget,
    ConsumerAnswer,
    ConsumerHeartbeat,
    DecisionRefused,
    MemberChange,
    ResumeHeartbeats,
    TargetComputed,
    listed,
)
from duramen.machines.group.consumer.expression_refresh import ExpressionChange, raise_epoch
from duramen.machines.group.consumer.groups import Checked, Computing, ConsumerGroups
from duramen.machines.group.consumer.reconciliation import Reported, Target, check_known, is_part, reconcile
from duramen.machines.group.consumer.state import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    NO_EPOCHS,
    NO_OWNED,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from duramen.machines.group.consumer.timers import (
    MemberTimer,
    RebalanceTimer,
    RejoinTimer,
    ResyncTimer,
    SessionTimer,
    TargetTimer,
)

RETRY_MS: Final = 1000
"""How long a member that the log did not let us fence has more."""
TIMED_OUT: Final = {
    "session": "no heartbeat came within its session time-out",
    "rebalance": "it did not give up its partitions within its rebalance time-out",
    "rejoin": "it did not join again within its rebalance time-out",
    "resync": "it did not fetch its assignment within its rebalance time-out",
}
"""By the kind of a timer: why a member is removed when it fires."""

TARGET_WAIT_MS: Final = 1000
"""How long a heartbeat's answer waits for a target that is being computed."""

# ---------------------------------------------------------------------- staying


def heartbeat(
    groups: ConsumerGroups, group: ConsumerGroup, command: ConsumerHeartbeat, now: int, out: Outcome
) -> ConsumerAnswer:
    """The member's heartbeat, or its join. group: it may be one of which the log holds nothing yet."""
    before, replaced = _member_before(groups, group, command, out)
    check_known(before, command.owned)
    after = _updated(before, command)
    moved = advance(groups, group, before, after, replaced, command.owned, command.caller, now, out)
    if before.id not in group.members:
        report_join(group, moved, replaced, out)
    out.timers.append((SessionTimer(group.id, moved.id), now + groups.session_timeout_ms(group.id)))
    is_full = (
        command.rebalance_timeout_ms != -1
        and (command.topics is not None or command.expression is not None)
        and command.owned is not None
    )
    tells = command.epoch == JOIN_EPOCH or is_full or moved.assigned != before.assigned
    assigned = {topic_id: tuple(sorted(epochs)) for topic_id, epochs in moved.assigned.items()}
    return ConsumerAnswer(
        moved.id, moved.epoch, groups.heartbeat_interval_ms(group.id), listed(assigned) if tells else None
    )


def advance(
    groups: ConsumerGroups,
    group: ConsumerGroup,
    before: ConsumerMember,
    after: ConsumerMember,
    replaced: str | None,
    reported: Reported | None,
    caller: object,
    now: int,
    out: Outcome,
) -> ConsumerMember:
    """What follows from what a member is now: the group's epoch, the target, and where the member has come to."""
    epoch, has_changed = _subscribe(groups, group, caller, before, after, replaced, now, out)
    aim = _aim(groups, group, epoch, after, replaced, now, out)
    moved = after
    if has_changed or not after.is_at(aim.epoch):
        topic_ids = groups.topics.ids(group.topics_of(after))
        moved = reconcile(after, aim, topic_ids, group.owner, reported, has_changed=has_changed)
    if moved.progress() != after.progress():
        out.records.append(records.current_assignment(group.id, moved))
        if moved.classic is None:
            _time_revocation(group.id, moved, now, out)
    if out.effects:
        out.if_refused = DecisionRefused(group.id)
    return moved


def _member_before(
    groups: ConsumerGroups, group: ConsumerGroup, command: ConsumerHeartbeat, out: Outcome
) -> tuple[ConsumerMember, str | None]:
    """(the member as it is, or begins; the id of the static member whose place it takes)."""
    member_id = command.member_id or command.new_id
    if len(group.members) >= groups.settings.consumer_max_size and member_id not in group.members:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.id} has {len(group.members)} members")
    is_joining = command.epoch == JOIN_EPOCH
    if command.instance_id is None:
        member = group.members.get(member_id)
        if member is None and not is_joining:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {group.id}")
        member = member or ConsumerMember(member_id)
        _check_epoch(member, command)
        return member, None
    holder = group.static_member(command.instance_id)
    if not is_joining:
        member = _check_instance(group, holder, command)
        _check_epoch(member, command)
        return member, None
    if holder is None:
        return group.members.get(member_id) or ConsumerMember(member_id), None
    if holder.epoch != LEAVE_STATIC_EPOCH and holder.classic is None:
        if holder.id != member_id:
            message = f"{member_id} cannot join with the instance id {command.instance_id}: {holder.id} has it"
            raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
        # The same process joins again: its first answer was lost, or it was fenced. Kafka refuses that, too.
        return holder, None
    return replace_static(group, holder, member_id, out), holder.id


def report_join(group: ConsumerGroup, member: ConsumerMember, replaced: str | None, out: Outcome) -> None:
    """For the node's log. replaced: the member whose place it takes."""
    instance_id = member.instance_id or ""
    if replaced is not None:
        cause = f"{member.id} joined with its group.instance.id"
        out.effects.append(MemberChange("group-member-removed", group.id, replaced, instance_id, cause))
    out.effects.append(MemberChange("group-member-joined", group.id, member.id, instance_id))


def _check_instance(group: ConsumerGroup, holder: ConsumerMember | None, command: ConsumerHeartbeat) -> ConsumerMember:
    if holder is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"no member of {group.id} has the instance id {command.instance_id}"
        )
    if holder.id != command.member_id:
        message = f"{command.member_id} was fenced: {holder.id} has the instance id {command.instance_id}"
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
    return holder


def _check_epoch(member: ConsumerMember, command: ConsumerHeartbeat) -> None:
    """A member whose epoch is one too low has lost an answer, if it has no more than that gave it."""
    if command.epoch in (JOIN_EPOCH, member.epoch):
        return
    if command.epoch > member.epoch or not (
        command.epoch == member.previous_epoch and is_part(command.owned, member.assigned)
    ):
        message = f"{member.id} is at epoch {member.epoch}, not {command.epoch}: it gives up all and joins again"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def replace_static(group: ConsumerGroup, holder: ConsumerMember, member_id: str, out: Outcome) -> ConsumerMember:
    """A static member comes back under another id: it takes over what its earlier process had (KIP-345)."""
    member = holder._replace(id=member_id, epoch=0, previous_epoch=0)
    out.records += records.member_tombstones(group.id, holder.id)
    out.records.append(records.member(group.id, member))
    out.records.append(records.target(group.id, member_id, group.targets.get(holder.id, NO_OWNED)))
    out.records.append(records.current_assignment(group.id, member))
    out.timers.append((SessionTimer(group.id, holder.id), None))
    out.timers.append((RebalanceTimer(group.id, holder.id), None))
    _forget_rejoin(group.id, holder.id, out)
    return member


def _forget_rejoin(group_id: str, member_id: str, out: Outcome) -> None:
    out.timers.append((RejoinTimer(group_id, member_id), None))
    out.timers.append((ResyncTimer(group_id, member_id), None))


def _updated(member: ConsumerMember, command: ConsumerHeartbeat) -> ConsumerMember:
    """With what the heartbeat says; it leaves out what has not changed."""
    return member._replace(
        instance_id=member.instance_id if command.instance_id is None else command.instance_id,
        rack=member.rack if command.rack is None else command.rack,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if command.rebalance_timeout_ms == -1 else command.rebalance_timeout_ms
        ),
        topics=member.topics if command.topics is None else frozenset(command.topics),
        expression=member.expression if command.expression is None else command.expression,
        assignor=member.assignor if command.assignor is None else command.assignor,
        client_id=command.client_id,
        client_host=command.client_host,
        classic=None,
    )


def _subscribe(
    groups: ConsumerGroups,
    group: ConsumerGroup,
    caller: object,
    before: ConsumerMember,
    after: ConsumerMember,
    replaced: str | None,
    now: int,
    out: Outcome,
) -> tuple[int, bool]:
    """(the group's epoch, whether the member subscribes to something else now)."""
    expression = expression_refresh.change(group, before, after)
    known = group.members.get(before.id if replaced is None else replaced)
    if after.subscription() != before.subscription() or (known is None and replaced is None):
        out.records.append(records.member(group.id, after))
    has_other_names = after.topics != before.topics
    has_changed = has_other_names or expression is not ExpressionChange.NONE
    rebalances = has_other_names or expression is ExpressionChange.RESOLVED
    epoch = group.epoch
    checked = groups.checked.get(group.id)
    is_stale = checked is None or checked.changes != groups.topics.changes or checked.epoch > epoch
    if has_changed or is_stale:
        names, dropped = group.subscription_with([] if known is None else [known], after)
        out.records += [records.expression_tombstone(group.id, text) for text in dropped]
        if rebalances or is_stale:
            metadata_hash = groups.topics.hash_of(names)
            if rebalances or metadata_hash != group.metadata_hash:
                epoch = raise_epoch(groups, group, metadata_hash, out)
            if group.has_partition_metadata:
                out.records.append(records.partition_metadata_tombstone(group.id))
            groups.checked[group.id] = Checked(groups.topics.changes, epoch)
    expression_refresh.resolve_if_due(groups, group, known, after, caller, now, out)
    return epoch, has_changed


# ---------------------------------------------------------------------- targets


def _aim(
    groups: ConsumerGroups,
    group: ConsumerGroup,
    epoch: int,
    member: ConsumerMember,
    replaced: str | None,
    now: int,
    out: Outcome,
) -> Target:
    """Where the member shall come to: a new target if one is due, else the last one."""
    last = Target(group.target_epoch, group.targets.get(replaced or member.id, NO_OWNED))
    interval_ms = groups.assignment_interval_ms(group.id)
    if epoch <= group.target_epoch or not target.is_due(group.target_timestamp, interval_ms, now):
        return last
    if group.id in groups.computing:
        return last
    members = target.draft(group, member, replaced)
    resolved = {text: each.topics for text, each in group.expressions.items()}
    spec, counts = target.question(group, members, groups.topics, resolved)
    assignor = target.choose_assignor(members.members.values(), groups.settings.consumer_assignors[0])
    if target.is_large(spec, counts):
        static_ids = {each.instance_id: each.id for each in members.members.values() if each.instance_id is not None}
        groups.computing[group.id] = Computing(epoch, static_ids)
        out.effects.append(ComputeTarget(group.id, epoch, assignor, spec, counts))
        if group.target_epoch >= 0:
            return last
        # Until then no member has anything; it is the epoch before, for a member has one from its first answer on.
        out.records.append(records.target_epoch(group.id, epoch - 1, 0))
        return Target(epoch - 1, NO_OWNED)
    assignment = target.compute(assignor, spec, counts)
    out.records += target.changes(group, members.members, assignment, epoch, now)
    return Target(epoch, assignment.get(member.id, NO_OWNED))


def waits(
    groups: ConsumerGroups, command: ConsumerHeartbeat, answer: ConsumerAnswer, ticket: int, now: int, out: Outcome
) -> bool:
    """Whether the answer waits for the target that is being computed; without it the member would learn of its
    partitions one heartbeat interval later.

    It is decided again then, as a heartbeat of the epoch that the member has by now.
    """
    is_told = answer.assignment is not None and command.epoch != JOIN_EPOCH
    if ticket == NO_TICKET or not command.may_wait or is_told or command.group_id not in groups.computing:
        return False
    waiting = groups.waiting.setdefault(command.group_id, [])
    if not waiting:
        out.timers.append((TargetTimer(command.group_id), now + TARGET_WAIT_MS))
    again = command._replace(member_id=answer.member_id, epoch=answer.epoch, may_wait=False)
    waiting.append((ticket, again))
    return True


def resume(groups: ConsumerGroups, group_id: str, out: Outcome) -> None:
    """Whoever waits for a target is answered, with it or without."""
    waiting = groups.waiting.pop(group_id, None)
    if waiting:
        out.timers.append((TargetTimer(group_id), None))
        out.effects.append(ResumeHeartbeats(tuple(waiting)))


def target_computed(groups: ConsumerGroups, command: TargetComputed, now: int, out: Outcome) -> None:
    """The target that was computed beside the loop, for those who are still there."""
    _take_target(groups, command, now, out)
    waiting = tuple(groups.waiting.get(command.group_id, ()))
    resume(groups, command.group_id, out)
    out.if_refused = DecisionRefused(command.group_id, waiting=waiting)


def _take_target(groups: ConsumerGroups, command: TargetComputed, now: int, out: Outcome) -> None:
    asked = groups.computing.pop(command.group_id, None)
    group = groups.groups.get(command.group_id)
    if group is None or asked is None or command.assignment is None:
        return
    if asked.epoch != command.epoch or not group.target_epoch < command.epoch <= group.epoch:
        return
    assignment: Assignment = dict(command.assignment)
    for instance_id, member_id in asked.static_ids.items():
        holder = group.static_ids.get(instance_id)
        if holder is not None and holder != member_id:
            # It has come back under another id since.
            assignment[holder] = assignment.pop(member_id, NO_OWNED)
    there = [member_id for member_id in group.members if member_id in assignment]
    out.records += target.changes(group, there, assignment, command.epoch, now)


def refused(groups: ConsumerGroups, command: DecisionRefused, now: int, out: Outcome) -> None:
    """Nothing was asked for outside; whoever should have been fenced is looked at again soon."""
    groups.resolving.discard(command.group_id)
    groups.computing.pop(command.group_id, None)
    out.timers += [(timer, now + RETRY_MS) for timer in command.timers]
    groups.waiting.setdefault(command.group_id, []).extend(command.waiting)
    resume(groups, command.group_id, out)


# ---------------------------------------------------------------------- leaving


def leave(
    groups: ConsumerGroups, group: ConsumerGroup, command: ConsumerHeartbeat, now: int, out: Outcome
) -> ConsumerAnswer:
    """For good, or a static member for the length of its session."""
    answer = ConsumerAnswer(command.member_id, command.epoch)
    if command.instance_id is None:
        member = group.members.get(command.member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{command.member_id} is no member of {group.id}")
        _leave_for_good(groups, group, member, now, out)
        return answer
    member = _check_instance(group, group.static_member(command.instance_id), command)
    if command.epoch != LEAVE_STATIC_EPOCH:
        _leave_for_good(groups, group, member, now, out)
        return answer
    # What it has is kept for whoever comes back with the instance id; what it gave up is given up.
    away = member._replace(
        epoch=LEAVE_STATIC_EPOCH,
        assigned={topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in member.assigned.items()},
        revoking=NO_EPOCHS,
    )
    out.records.append(records.current_assignment(group.id, away))
    out.timers.append((RebalanceTimer(group.id, member.id), None))
    return answer


def _leave_for_good(
    groups: ConsumerGroups, group: ConsumerGroup, member: ConsumerMember, now: int, out: Outcome
) -> None:
    fence(groups, group, [member], now, out)
    report_leave(group, [member], out)


def report_leave(group: ConsumerGroup, members: Iterable[ConsumerMember], out: Outcome) -> None:
    """For the node's log."""
    out.effects += [MemberChange("group-member-left", group.id, each.id, each.instance_id or "") for each in members]


def fence(groups: ConsumerGroups, group: ConsumerGroup, members: list[ConsumerMember], now: int, out: Outcome) -> None:
    """Members go: what they had is free, and the group rebalances; it may go on as a classic one."""
    if not members or groups.give_back(group, members, now, out):
        return
    for member in members:
        out.records += records.member_tombstones(group.id, member.id)
        out.timers.append((SessionTimer(group.id, member.id), None))
        out.timers.append((RebalanceTimer(group.id, member.id), None))
        groups.rejoining.discard((group.id, member.id))
        _forget_rejoin(group.id, member.id, out)
    names, dropped = group.subscription_with(members, None)
    out.records += [records.expression_tombstone(group.id, text) for text in dropped]
    raise_epoch(groups, group, groups.topics.hash_of(names), out)


# ---------------------------------------------------------------------- timers


def _time_revocation(group_id: str, member: ConsumerMember, now: int, out: Outcome) -> None:
    due = now + max(member.rebalance_timeout_ms, 0) if member.state is MemberState.UNREVOKED else None
    out.timers.append((RebalanceTimer(group_id, member.id), due))


def timer_fired(groups: ConsumerGroups, key: MemberTimer, now: int, out: Outcome) -> None:
    """A member did not beat, or did not do in time what it was asked to: it is fenced."""
    group = groups.groups.get(key.group_id)
    member = None if group is None else group.members.get(key.member_id)
    if group is None or member is None:
        return
    if isinstance(key, RebalanceTimer) and member.state is not MemberState.UNREVOKED:
        return
    fence(groups, group, [member], now, out)
    cause = TIMED_OUT[key.kind]
    out.effects.append(MemberChange("group-member-removed", group.id, member.id, member.instance_id or "", cause))
    # Also where the group goes on as a classic one.
    out.if_refused = DecisionRefused(group.id, (key,))


def restart_timers(groups: ConsumerGroups, now: int, out: Outcome) -> None:
    """After a load: every member has a whole session, and a whole rebalance time-out."""
    for group in groups.groups.values():
        timeout = groups.session_timeout_ms(group.id)
        for member in group.members.values():
            session = timeout if member.classic is None else member.classic.session_timeout_ms
            out.timers.append((SessionTimer(group.id, member.id), now + session))
            if member.state is MemberState.UNREVOKED and member.classic is None:
                _time_revocation(group.id, member, now, out)
