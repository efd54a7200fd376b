"""The group machine: one partition's worth of groups of every type, and the offsets they commit.

A group id is a classic group's or a consumer group's, never both's: the newest record decides. What each type does is
in its sub-package.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.ages import Ages
from duramen.machines.contract import LogRecord, Outcome, ProducerEpoch, TimerFired, TransactionMarks
from duramen.machines.group import administration, conversion, offsets, records
from duramen.machines.group.classic import membership, rebalance
from duramen.machines.group.classic.state import Group, GroupState, Member
from duramen.machines.group.commands import (
    NO_MEMBER,
    AssignmentRefused,
    ClassicJoinRefused,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroups,
    DeleteOffsets,
    DescribeGroups,
    FetchOffsets,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    NewIdRefused,
    ReplacementRefused,
    SyncedMember,
    SyncGroup,
    TombstonesRefused,
    TopicsDeleted,
)
from duramen.machines.group.consumer import (
    classic_members,
    expression_refresh,
    group_descriptions,
    heartbeats,
    requests,
)
from duramen.machines.group.consumer import commits as consumer_commits
from duramen.machines.group.consumer import records as consumer_records
from duramen.machines.group.consumer.commands import (
    ConsumerHeartbeat,
    DecisionRefused,
    DescribeConsumerGroups,
    ExpressionsResolved,
    TargetComputed,
    TopicsChanged,
)
from duramen.machines.group.consumer.groups import ConsumerGroups
from duramen.machines.group.consumer.state import JOIN_EPOCH, ConsumerGroup, ConsumerMember
from duramen.machines.group.consumer.timers import MemberTimer, TargetTimer
from duramen.machines.group.settings import GroupSettings
from duramen.machines.group.sweep import Sweep
from duramen.model import MOST_ID_CHARACTERS, TopicId
from duramen.wire.batch import COMMIT, marker_of

MAX_UNRECORDED_GROUPS: Final = 100_000
"""Groups of which the log holds nothing yet; more are turned away, so that made-up names cannot fill the memory."""


class GroupMachine:
    """State machine over one partition of `__consumer_offsets`.

    Durable: `stored` (generations by group id), `offsets` and `consumers.groups`, changed in `apply` alone. Soft:
    `groups`, those of the classic protocol.
    """

    transaction_marks: TransactionMarks | None = None

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.consumers = ConsumerGroups(settings or GroupSettings())
        self.consumers.give_back = self._give_back
        self.stored: dict[str, records.StoredGroup] = {}
        self.offsets = offsets.OffsetTable()
        self.groups: dict[str, Group] = {}
        self.ages = Ages()
        self._loaded = False
        self._sweep = Sweep()

    @property
    def settings(self) -> GroupSettings:
        """May change at any time."""
        return self.consumers.settings

    @settings.setter
    def settings(self, settings: GroupSettings) -> None:
        self.consumers.settings = settings

    # ------------------------------------------------------------------ the log

    def apply(self, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None) -> None:
        """Make one record of the partition part of the durable state."""
        decoded = records.decode(record)
        if isinstance(decoded, records.GroupRecord):
            if decoded.stored is not None:
                self.consumers.forget(decoded.group_id)
                self.stored[decoded.group_id] = decoded.stored
                if self._loaded and decoded.group_id not in self.groups:
                    self.groups[decoded.group_id] = _restored(decoded.group_id, decoded.stored, timestamp)
            else:
                self.stored.pop(decoded.group_id, None)
                self._forget_if_gone(decoded.group_id)
        elif isinstance(decoded, records.ConsumerGroupRecord):
            self._apply_consumer(decoded, timestamp)
        elif decoded is not None:
            self.offsets.apply(decoded, offset, producer)
            if decoded.committed is None:
                self._forget_if_gone(decoded.group_id)
            else:
                self._keep_offsets(decoded.group_id, timestamp)

    def _apply_consumer(self, decoded: records.ConsumerGroupRecord, timestamp: int) -> None:
        group_id = decoded.key.group
        if decoded.value is not None:
            # A group that had offsets alone gives way; one with a generation was removed by a tombstone before.
            self.stored.pop(group_id, None)
            self.groups.pop(group_id, None)
        self.consumers.apply(decoded.key, decoded.value)
        if group_id in self.offsets:
            self._keep_offsets(group_id, timestamp)

    def _keep_offsets(self, group_id: str, timestamp: int) -> None:
        """Offsets have a group, if need be one of the classic protocol that has nothing else."""
        if self._loaded and group_id not in self.groups and group_id not in self.consumers.groups:
            self.groups[group_id] = Group(group_id, timestamp)

    def _forget_if_gone(self, group_id: str) -> None:
        """A group without members of which the log holds nothing any more does not exist."""
        group = self.groups.get(group_id)
        if (
            group is not None
            and group.state is GroupState.EMPTY
            and not group.pending_joins
            and group_id not in self.stored
            and group_id not in self.offsets
        ):
            del self.groups[group_id]

    def _forget_unless_written(self, group_id: str, out: Outcome) -> None:
        """As above, at the end of a decision whose records are not applied yet."""
        if not out.records:
            self._forget_if_gone(group_id)

    def apply_control(self, record: LogRecord, offset: int, producer: ProducerEpoch | None = None) -> None:
        """A marker makes the offsets of its producer's transaction count, or drops them."""
        marker = marker_of(record.key, record.value) if producer is not None else None
        if producer is None or marker is None:
            return
        for group_id in self.offsets.end_transaction(producer, commit=marker.type == COMMIT):
            self._forget_if_gone(group_id)

    def on_loaded(self, now: int) -> Outcome:
        """Take the groups up where the log left them; every member gets a whole session to show up."""
        out = Outcome()
        self._loaded = True
        for group_id in self.offsets:
            if group_id not in self.consumers.groups:
                self.groups[group_id] = Group(group_id, now)
        for group_id, stored in self.stored.items():
            group = self.groups[group_id] = _restored(group_id, stored, now)
            for member in group.members.values():
                rebalance.expect_heartbeat(group, member, now, out)
            if len(group.members) > self.settings.max_size:
                rebalance.prepare(group, self.settings, now, out)
        heartbeats.restart_timers(self.consumers, now, out)
        out.timers.append((rebalance.EXPIRY, now + self.settings.retention_check_interval_ms))
        return out

    def committed_topics(self) -> set[tuple[str, TopicId]]:
        """(name, topic id) of all topics with offsets here; the id is NO_TOPIC_ID where the log has none."""
        return {
            (position[0], committed.topic_id)
            for group_id in self.offsets
            for position, committed in chain(self.offsets.of(group_id).items(), self.offsets.pending.values(group_id))
        }

    # ------------------------------------------------------------------ decisions

    def decide(self, command: Any, ticket: int, now: int) -> Outcome:
        """Judge one command of `commands`, or a timer; TypeError for anything else."""
        decision = _DECISIONS.get(type(command))
        if decision is None:
            raise TypeError(f"not a group command: {command!r}")
        out = Outcome()
        decision(self, command, ticket, now, out)
        return out

    def _join(self, command: JoinGroup, ticket: int, now: int, out: Outcome) -> None:
        settings = self.settings
        if not command.group_id:
            out.replies.append((ticket, Joined(ErrorCode.INVALID_GROUP_ID, member_id=command.member_id)))
            return
        if not settings.min_session_timeout_ms <= command.session_timeout_ms <= settings.max_session_timeout_ms:
            out.replies.append((ticket, Joined(ErrorCode.INVALID_SESSION_TIMEOUT, member_id=command.member_id)))
            return
        ids = (command.group_id, command.client_id, command.instance_id or "")  # of which the member's is made
        if any(len(each) > MOST_ID_CHARACTERS for each in ids):
            out.replies.append((ticket, Joined(ErrorCode.INVALID_REQUEST, member_id=command.member_id)))
            return
        group = self.groups.get(command.group_id)
        consumers = self.consumers.groups.get(command.group_id)
        if consumers is not None and consumers.members:
            self._join_consumers(consumers, command, ticket, now, out)
            return
        if group is None:
            if command.member_id != NO_MEMBER:
                out.replies.append((ticket, Joined(ErrorCode.UNKNOWN_MEMBER_ID, member_id=command.member_id)))
                return
            if len(self.groups) - len(self.stored) >= MAX_UNRECORDED_GROUPS:
                out.replies.append((ticket, Joined(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
                return
            group = self.groups[command.group_id] = Group(command.group_id, now)
            if consumers is not None:
                out.records += consumer_records.group_tombstones(consumers)
                out.if_refused = ClassicJoinRefused(command.group_id)
        membership.join(group, command, ticket, settings, now, out)
        membership.record_new_id(group, command, ticket, self.stored.get(command.group_id), out)
        self._forget_unless_written(command.group_id, out)

    def _join_consumers(self, group: ConsumerGroup, command: JoinGroup, ticket: int, now: int, out: Outcome) -> None:
        """A member of the classic protocol; with a static one the last of the consumer protocol may be replaced."""
        try:
            answer, member, replaced = classic_members.join(self.consumers, group, command, now, out)
        except KafkaError as error:
            answer, member, replaced = Joined(error.code, member_id=command.member_id), None, None
        out.replies.append((ticket, answer))
        if member is not None and replaced is not None:
            left = {each.id: each for each in group.members.values() if each.id != replaced}
            if conversion.may_downgrade({**left, member.id: member}, self.settings):
                self._downgrade(group, {**left, member.id: member}, {member.id: replaced}, now, out)

    def _give_back(self, group: ConsumerGroup, members: list[ConsumerMember], now: int, out: Outcome) -> bool:
        going = {member.id for member in members}
        left = {member_id: member for member_id, member in group.members.items() if member_id not in going}
        if any(member.classic is None for member in members) and conversion.may_downgrade(left, self.settings):
            self._downgrade(group, left, {}, now, out)
            return True
        return False

    def _downgrade(
        self,
        group: ConsumerGroup,
        members: dict[str, ConsumerMember],
        targets: dict[str, str],
        now: int,
        out: Outcome,
    ) -> None:
        self.groups[group.id] = conversion.downgrade(group, members, targets, self.consumers, now, out)

    def _sync(self, command: SyncGroup, ticket: int, now: int, out: Outcome) -> None:
        group = self.groups.get(command.group_id)
        if not command.group_id:
            out.replies.append((ticket, SyncedMember(ErrorCode.INVALID_GROUP_ID)))
        elif (consumers := self.consumers.groups.get(command.group_id)) is not None:
            out.replies.append((ticket, classic_members.sync(self.consumers, consumers, command, now, out)))
        elif group is None:
            out.replies.append((ticket, SyncedMember(ErrorCode.UNKNOWN_MEMBER_ID)))
        else:
            membership.sync(group, command, ticket, now, out)

    def _heartbeat(self, command: Heartbeat, ticket: int, now: int, out: Outcome) -> None:
        out.immediate = True
        group = self.groups.get(command.group_id)
        if not command.group_id:
            answer = ErrorCode.INVALID_GROUP_ID
        elif (consumers := self.consumers.groups.get(command.group_id)) is not None:
            answer = classic_members.heartbeat(self.consumers, consumers, command, now, out)
        elif group is None:
            answer = ErrorCode.UNKNOWN_MEMBER_ID
        else:
            answer = membership.heartbeat(group, command, now, out)
        out.replies.append((ticket, answer))

    def _leave(self, command: LeaveGroup, ticket: int, now: int, out: Outcome) -> None:
        group = self.groups.get(command.group_id)
        if not command.group_id:
            out.replies.append((ticket, (ErrorCode.INVALID_GROUP_ID, [])))
            return
        consumers = self.consumers.groups.get(command.group_id)
        if consumers is not None:
            answers = classic_members.leave(self.consumers, consumers, command, now, out)
        elif group is None:
            answers = [ErrorCode.UNKNOWN_MEMBER_ID] * len(command.members)
        else:
            answers = membership.leave(group, command, self.settings, now, out)
            self._forget_unless_written(command.group_id, out)
        out.replies.append((ticket, (ErrorCode.NONE, answers)))

    # ------------------------------------------------------------------ offsets

    def _commit(self, command: CommitOffsets, ticket: int, now: int, out: Outcome) -> None:
        consumers = self.consumers.groups.get(command.group_id)
        if consumers is not None:
            _check_consumer_commit(consumers, command)
            out.records, answers = offsets.commit(command, self.settings, now)
            out.replies.append((ticket, answers))
            return
        group = self.groups.get(command.group_id)
        offsets.check_commit(group, command)
        if group is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            # A commit is a sign of life, too.
            rebalance.expect_heartbeat(group, group.member(command.member_id), now, out)
        written, answers = offsets.commit(command, self.settings, now)
        out.records = self._emptiness(group) + written if written else []
        out.replies.append((ticket, answers))

    def _commit_in_transaction(self, command: CommitTransactionOffsets, ticket: int, now: int, out: Outcome) -> None:
        if not command.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        consumers = self.consumers.groups.get(command.group_id)
        group = self.groups.get(command.group_id)
        if consumers is not None:
            _check_consumer_commit(consumers, command)
        else:
            offsets.check_commit(group, command)
        emptiness = self._emptiness(group)
        if emptiness:  # which is in no transaction: whoever commits retries after it
            out.records = emptiness
            error = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"that {command.group_id} is empty comes first")
            out.replies.append((ticket, error))
            return
        written, answers = offsets.commit(command, self.settings, now)
        out.records, out.producer = written, command.producer
        out.replies.append((ticket, answers))

    def _emptiness(self, group: Group | None) -> list[LogRecord]:
        """That a group is empty, where the log refused that: a take-over would bring back its members, and what they
        commit would go over what was committed without them."""
        stored = None if group is None else self.stored.get(group.id)
        if group is None or stored is None or group.state is not GroupState.EMPTY or not stored.members:
            return []
        return [records.group_metadata(group)]

    def _fetch(self, command: FetchOffsets, ticket: int, now: int, out: Outcome) -> None:
        consumers = self.consumers.groups.get(command.group_id)
        if consumers is not None:
            consumer_commits.check_fetch(consumers, command.member_id, command.member_epoch)
        out.replies.append((ticket, offsets.fetch(self.offsets, command)))

    def _delete_offsets(self, command: DeleteOffsets, ticket: int, now: int, out: Outcome) -> None:
        consumers = self.consumers.groups.get(command.group_id)
        if consumers is not None:
            out.records, answers = offsets.delete(self.offsets, command, consumers.is_subscribed)
        else:
            group = offsets.check_delete(self.groups.get(command.group_id), command)
            written, answers = offsets.delete(self.offsets, command, group.is_subscribed)
            out.records = self._emptiness(group) + written if written else []
        out.replies.append((ticket, answers))

    # ------------------------------------------------------------------ administration

    def _describe(self, command: DescribeGroups, ticket: int, now: int, out: Outcome) -> None:
        described = [
            administration.describe(
                group_id, self.groups.get(group_id), is_other_type=group_id in self.consumers.groups
            )
            for group_id in command.group_ids
        ]
        out.replies.append((ticket, described))

    def _describe_consumers(self, command: DescribeConsumerGroups, ticket: int, now: int, out: Outcome) -> None:
        described = [group_descriptions.describe(self.consumers, group_id) for group_id in command.group_ids]
        out.replies.append((ticket, described))

    def _list(self, command: ListGroups, ticket: int, now: int, out: Outcome) -> None:
        out.replies.append(
            (ticket, administration.list_groups(self.groups.values(), self.consumers.groups.values(), command))
        )

    def _delete_groups(self, command: DeleteGroups, ticket: int, now: int, out: Outcome) -> None:
        answers = []
        deleted: set[str] = set()
        for group_id in command.group_ids:
            group = None if group_id in deleted else self.groups.get(group_id)
            consumers = None if group_id in deleted else self.consumers.groups.get(group_id)
            if consumers is not None:
                written, error = administration.delete_consumer_group(consumers, self.offsets)
            else:
                written, error = administration.delete_group(group_id, group, self.offsets, group_id in self.stored)
            out.records.extend(written)
            answers.append(error)
            if error is ErrorCode.NONE:
                deleted.add(group_id)
                if group is not None:
                    self._drop_pending(group, out)
        out.replies.append((ticket, answers))

    def _drop_pending(self, group: Group, out: Outcome) -> None:
        """Ids that were given out die with the group."""
        for member_id in list(group.pending_joins):
            group.remove(member_id)
            rebalance.forget_heartbeat(group, member_id, out)
        self._forget_if_gone(group.id)

    # ------------------------------------------------------------------ consumer groups

    def _consumer_heartbeat(self, command: ConsumerHeartbeat, ticket: int, now: int, out: Outcome) -> None:
        requests.check(command, self.settings.consumer_assignors)
        if command.epoch < JOIN_EPOCH:
            group = self.consumers.existing(command.group_id)
            answer = heartbeats.leave(self.consumers, group, command, now, out)
        else:
            group = self._consumer_group(command, now, out)
            answer = heartbeats.heartbeat(self.consumers, group, command, now, out)
            classic = self.groups.get(command.group_id)
            if classic is not None and classic.members:
                conversion.end_classic(classic, out)
            if heartbeats.waits(self.consumers, command, answer, ticket, now, out):
                return
        out.replies.append((ticket, answer))

    def _consumer_group(self, command: ConsumerHeartbeat, now: int, out: Outcome) -> ConsumerGroup:
        """The group, or one that begins: a classic group without members gives way to it, one with members is it."""
        group_id = command.group_id
        if command.epoch != JOIN_EPOCH or group_id in self.consumers.groups:
            return self.consumers.existing(group_id)
        classic = self.groups.get(group_id)
        if classic is not None:
            if classic.state is not GroupState.EMPTY:
                is_recorded = group_id in self.stored
                return conversion.upgrade(classic, self.consumers, is_recorded=is_recorded, now=now, out=out)
            if group_id in self.stored:
                out.records.append(records.group_tombstone(group_id))
            for member_id in classic.pending_joins:
                rebalance.forget_heartbeat(classic, member_id, out)
        return ConsumerGroup(group_id)

    def _topics_changed(self, command: TopicsChanged, ticket: int, now: int, out: Outcome) -> None:
        self.consumers.topics.changed(command.view, command.names, appeared=command.appeared)
        out.immediate = True
        out.replies.append((ticket, True))

    def _expressions_resolved(self, command: ExpressionsResolved, ticket: int, now: int, out: Outcome) -> None:
        expression_refresh.resolved(self.consumers, command, now, out)
        out.replies.append((ticket, True))

    def _target_computed(self, command: TargetComputed, ticket: int, now: int, out: Outcome) -> None:
        heartbeats.target_computed(self.consumers, command, now, out)
        out.replies.append((ticket, True))

    def _decision_refused(self, command: DecisionRefused, ticket: int, now: int, out: Outcome) -> None:
        """A change of protocol was refused, too: the group is of the type that it was."""
        heartbeats.refused(self.consumers, command, now, out)
        classic = self.groups.get(command.group_id)
        if classic is not None and command.group_id in self.consumers.groups:
            del self.groups[command.group_id]
        elif classic is not None:
            rebalance.restart_timers(classic, now, out)

    def _classic_join_refused(self, command: ClassicJoinRefused, ticket: int, now: int, out: Outcome) -> None:
        group = self.groups.pop(command.group_id, None)
        if group is not None:
            for member_id in [*group.members, *group.pending_joins]:
                rebalance.forget_heartbeat(group, member_id, out)

    # ------------------------------------------------------------------ tombstones in slices

    def _topics_deleted(self, command: TopicsDeleted, ticket: int, now: int, out: Outcome) -> None:
        self._sweep.drop(command.topics, ticket, now)
        self._write_tombstones(now, out)

    def _write_tombstones(self, now: int, out: Outcome) -> None:
        if self._sweep.step(self, now, out):
            out.if_refused = TombstonesRefused()

    def _slices_refused(self, command: TombstonesRefused, ticket: int, now: int, out: Outcome) -> None:
        self._sweep.refused(now, out)

    # ------------------------------------------------------------------ follow-ups and timers

    def _assignment_refused(self, command: AssignmentRefused, ticket: int, now: int, out: Outcome) -> None:
        group = self.groups.get(command.group_id)
        if group is not None:
            membership.assignment_refused(group, command, self.settings, now, out)

    def _replacement_refused(self, command: ReplacementRefused, ticket: int, now: int, out: Outcome) -> None:
        group = self.groups.get(command.group_id)
        if group is not None:
            membership.replacement_refused(group, command, now, out)

    def _new_id_refused(self, command: NewIdRefused, ticket: int, now: int, out: Outcome) -> None:
        group = self.groups.get(command.group_id)
        if group is not None:
            membership.new_id_refused(group, command, now, out)

    def _timer_fired(self, command: TimerFired, ticket: int, now: int, out: Outcome) -> None:
        key: Any = command.key
        if isinstance(key, rebalance.ExpiryTimer):
            self._write_tombstones(now, out)
            return
        if isinstance(key, TargetTimer):
            heartbeats.resume(self.consumers, key.group_id, out)
            return
        if isinstance(key, MemberTimer):
            heartbeats.timer_fired(self.consumers, key, now, out)
            return
        group = self.groups.get(key.group_id)
        if group is None:
            return
        if isinstance(key, rebalance.HeartbeatTimer):
            rebalance.heartbeat_timer_fired(group, key.member_id, self.settings, now, out)
        elif isinstance(key, rebalance.JoinTimer):
            rebalance.join_timer_fired(group, self.settings, now, out)
        elif isinstance(key, rebalance.SyncTimer):
            rebalance.sync_timer_fired(group, key.generation, self.settings, now, out)
        self._forget_unless_written(key.group_id, out)


def _check_consumer_commit(group: ConsumerGroup, command: CommitOffsets | CommitTransactionOffsets) -> None:
    consumer_commits.check_commit(
        group,
        command.member_id,
        command.instance_id,
        command.generation,
        command.offsets,
        knows_epochs=not isinstance(command, CommitOffsets) or command.knows_epochs,
        is_transactional=isinstance(command, CommitTransactionOffsets),
    )


def _restored(group_id: str, stored: records.StoredGroup, now: int) -> Group:
    group = Group(group_id, stored.state_timestamp if stored.state_timestamp >= 0 else now)
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type or None
    group.protocol = stored.protocol
    group.leader = stored.leader
    for known in stored.members:
        protocols = ((stored.protocol or "", known.subscription),)
        group.add(
            Member(
                known.member_id,
                known.instance_id,
                known.client_id,
                known.client_host,
                known.session_timeout_ms,
                known.rebalance_timeout_ms,
                protocols,
                known.assignment,
            )
        )
    if group.members:
        group.state = group.previous_state = GroupState.STABLE
    group.topics = group.find_topics()
    return group


_Decision = Callable[[GroupMachine, Any, int, int, Outcome], None]
_DECISIONS: Final[dict[type, _Decision]] = {
    JoinGroup: GroupMachine._join,
    SyncGroup: GroupMachine._sync,
    Heartbeat: GroupMachine._heartbeat,
    LeaveGroup: GroupMachine._leave,
    CommitOffsets: GroupMachine._commit,
    CommitTransactionOffsets: GroupMachine._commit_in_transaction,
    FetchOffsets: GroupMachine._fetch,
    DeleteOffsets: GroupMachine._delete_offsets,
    DescribeGroups: GroupMachine._describe,
    ListGroups: GroupMachine._list,
    DeleteGroups: GroupMachine._delete_groups,
    ConsumerHeartbeat: GroupMachine._consumer_heartbeat,
    DescribeConsumerGroups: GroupMachine._describe_consumers,
    TopicsChanged: GroupMachine._topics_changed,
    ExpressionsResolved: GroupMachine._expressions_resolved,
    TargetComputed: GroupMachine._target_computed,
    DecisionRefused: GroupMachine._decision_refused,
    ClassicJoinRefused: GroupMachine._classic_join_refused,
    TopicsDeleted: GroupMachine._topics_deleted,
    TombstonesRefused: GroupMachine._slices_refused,
    AssignmentRefused: GroupMachine._assignment_refused,
    ReplacementRefused: GroupMachine._replacement_refused,
    NewIdRefused: GroupMachine._new_id_refused,
    TimerFired: GroupMachine._timer_fired,
}
