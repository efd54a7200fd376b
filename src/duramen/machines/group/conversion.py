"""A group changes its protocol while it has members: up with the first member of the consumer protocol, down when the
last one has gone. `group.consumer.migration.policy` says which way is open.

What members have is kept. Up, the last assignment of the classic group is everybody's target and what each has; down,
the target is the last assignment, and everybody is asked to join again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import Outcome
from duramen.machines.group import records
from duramen.machines.group.classic import rebalance
from duramen.machines.group.classic.state import Group, GroupState, Member
from duramen.machines.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from duramen.machines.group.commands import Joined, SyncedMember
from duramen.machines.group.consumer import records as consumer_records
from duramen.machines.group.consumer.client_protocol import read_assignment, read_subscription, write_assignment
from duramen.machines.group.consumer.commands import DecisionRefused
from duramen.machines.group.consumer.groups import ConsumerGroups
from duramen.machines.group.consumer.state import (
    NO_EPOCHS,
    NO_OWNED,
    ClassicTag,
    ConsumerGroup,
    ConsumerMember,
)
from duramen.machines.group.consumer.timers import RebalanceTimer, RejoinTimer, ResyncTimer, SessionTimer
from duramen.machines.group.settings import GroupSettings

UPGRADE: Final = ("bidirectional", "upgrade")
DOWNGRADE: Final = ("bidirectional", "downgrade")

# ---------------------------------------------------------------------- up


def upgrade(group: Group, consumers: ConsumerGroups, *, is_recorded: bool, now: int, out: Outcome) -> ConsumerGroup:
    """The classic group as a consumer group. GROUP_ID_NOT_FOUND where it cannot be one.

    Who waits in it is answered by `end_classic`, when nothing can be refused any more.
    """
    _check_upgrade(group, consumers.settings)
    made = ConsumerGroup(group.id)
    made.epoch = made.target_epoch = max(group.generation, made.epoch)
    for member in group.members.values():
        taken = _taken_up(group, member, made.epoch, consumers)
        made.put(taken)
        made.targets[member.id] = {topic_id: tuple(sorted(epochs)) for topic_id, epochs in taken.assigned.items()}
    made.metadata_hash = consumers.topics.hash_of(made.topic_names())
    if is_recorded:
        out.records.append(records.group_tombstone(group.id))
    members = made.members.values()
    out.records += [consumer_records.member(made.id, member) for member in members]
    out.records.append(consumer_records.group_epoch(made.id, made.epoch, made.metadata_hash))
    out.records += [consumer_records.target(made.id, each, partitions) for each, partitions in made.targets.items()]
    out.records.append(consumer_records.target_epoch(made.id, made.target_epoch, 0))
    out.records += [consumer_records.current_assignment(made.id, member) for member in members]
    for member in group.members.values():
        out.timers.append((SessionTimer(made.id, member.id), now + member.session_timeout_ms))
    out.if_refused = DecisionRefused(made.id)
    return made


def _check_upgrade(group: Group, settings: GroupSettings) -> None:
    why = None
    if settings.consumer_migration_policy not in UPGRADE:
        why = "online upgrade is disabled"
    elif group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        why = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.consumer_max_size:
        why = "the group size exceeds the consumer group maximum size"
    if why is not None:
        raise _cannot(group, why)


def _cannot(group: Group, why: str) -> KafkaError:
    message = f"Cannot upgrade classic group {group.id} to consumer group because {why}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _taken_up(group: Group, member: Member, epoch: int, consumers: ConsumerGroups) -> ConsumerMember:
    view = consumers.topics.view
    protocol = group.protocol if group.protocol is not None else member.protocols[0][0]
    subscription = read_subscription(member.metadata(protocol), view)
    assignment = read_assignment(member.assignment, view)
    if subscription is None:
        raise _cannot(group, "the embedded consumer protocol is malformed")
    if assignment is None:
        raise _cannot(group, "an unsupported custom assignor is in use")
    # The protocol that is spoken comes first: that is the one its assignments are named by.
    protocols = tuple(sorted(member.protocols, key=lambda each: each[0] != protocol))
    return ConsumerMember(
        member.id,
        member.instance_id,
        subscription.rack,
        member.client_id,
        member.client_host,
        subscription.topics,
        "",
        member.rebalance_timeout_ms,
        None,
        ClassicTag(member.session_timeout_ms, protocols),
        epoch,
        epoch,
        assigned={topic_id: dict.fromkeys(indexes, epoch) for topic_id, indexes in assignment.items()} or NO_EPOCHS,
    )


def end_classic(group: Group, out: Outcome) -> None:
    """Whoever waits is asked to rejoin; nothing waits for them any more."""
    for member in group.members.values():
        rebalance.answer_join(member, Joined(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id), out)
        rebalance.answer_sync(member, SyncedMember(ErrorCode.REBALANCE_IN_PROGRESS), out)
    for member_id in [*group.members, *group.pending_joins]:
        rebalance.forget_heartbeat(group, member_id, out)
    out.timers.append((rebalance.JoinTimer(group.id), None))
    out.timers.append((rebalance.SyncTimer(group.id, group.generation), None))


# ---------------------------------------------------------------------- down


def may_downgrade(members: Mapping[str, ConsumerMember], settings: GroupSettings) -> bool:
    """Whether these, who are left, go on as a classic group."""
    return (
        bool(members)
        and all(member.classic is not None for member in members.values())
        and settings.consumer_migration_policy in DOWNGRADE
        and len(members) <= settings.max_size
    )


def downgrade(
    group: ConsumerGroup,
    members: Mapping[str, ConsumerMember],
    targets: Mapping[str, str],
    consumers: ConsumerGroups,
    now: int,
    out: Outcome,
) -> Group:
    """The consumer group as a classic one of these members, which gather for a new generation.

    targets: whose target a member has, where that is not its own.
    """
    view = consumers.topics.view
    made = Group(group.id, now)
    made.generation = group.epoch
    made.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member in members.values():
        tag = member.classic or ClassicTag(0, ())
        subscription = read_subscription(tag.protocols[0][1], view)
        target = group.targets.get(targets.get(member.id, member.id), NO_OWNED)
        version = 0 if subscription is None else subscription.version
        made.add(
            Member(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                tag.session_timeout_ms,
                max(member.rebalance_timeout_ms, 0),
                tag.protocols,
                write_assignment(sorted(target.items()), version, view),
            )
        )
    made.state = made.previous_state = GroupState.STABLE
    made.protocol = made.select_protocol()
    made.topics = made.find_topics()
    for member_id in {**group.members, **members}:
        for timer in (SessionTimer, RebalanceTimer, RejoinTimer, ResyncTimer):
            out.timers.append((timer(group.id, member_id), None))
    # Nothing else of the consumer group: applied, it would put that one back in the place of the classic one.
    out.records[:] = [*consumer_records.group_tombstones(group), records.group_metadata(made)]
    for classic in made.members.values():
        rebalance.expect_heartbeat(made, classic, now, out)
    rebalance.prepare(made, consumers.settings, now, out)
    out.if_refused = DecisionRefused(group.id)
    return made
