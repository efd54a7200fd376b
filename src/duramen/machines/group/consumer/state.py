"""A consumer group and its members as the log has them: changed by applied records alone (`record_application.py`).

Members are values: a decision makes another one and writes it. Beside what is recorded stand indexes over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from duramen.machines.group.assignors import Owned
from duramen.machines.group.commands import Protocols
from duramen.model import TopicId

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
NO_TARGET: Final = -1
FIRST_EPOCH: Final = 1
"""Of a group whose epoch was not written yet: 0 is what a member joins with."""
NO_OWNED: Final[Owned] = {}

Epochs = Mapping[TopicId, Mapping[int, int]]
"""A member's partitions by topic, each with the member epoch in which it got it; no topic is without partitions."""
NO_EPOCHS: Final[Epochs] = {}


class MemberState(IntEnum):
    """How far a member is on its way to its target, as record 8 says it."""

    STABLE = 0
    """At its epoch with all of that epoch's target."""
    UNREVOKED = 1
    """Asked to give up partitions; its epoch stays until it says that it has."""
    UNRELEASED = 2
    """At its epoch, and waits for partitions that others have not given up yet."""
    UNKNOWN = 127
    """Written by a newer release."""

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


class ConsumerGroupState(Enum):
    """As ConsumerGroupDescribe reports them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicTag(NamedTuple):
    """What a member of the classic protocol has beside: it joined with JoinGroup and beats with Heartbeat."""

    session_timeout_ms: int
    protocols: Protocols


class ConsumerMember(NamedTuple):
    """One member. expression: a regular expression it subscribes with, "" and None for none."""

    id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    expression: str | None = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicTag | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Epochs = NO_EPOCHS
    revoking: Epochs = NO_EPOCHS

    def is_at(self, target_epoch: int) -> bool:
        """Whether it has all that the target of this epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def subscription(self) -> tuple[object, ...]:
        """What record 5 holds of it."""
        return self[:10]

    def progress(self) -> tuple[object, ...]:
        """What record 8 holds of it."""
        return self[10:]

    def held_since(self, topic_id: TopicId, partition: int) -> int | None:
        """The epoch in which it got a partition that it has, or still gives up; None for any other."""
        epoch = self.assigned.get(topic_id, NO_PARTITIONS).get(partition)
        return self.revoking.get(topic_id, NO_PARTITIONS).get(partition) if epoch is None else epoch


NO_PARTITIONS: Final[Mapping[int, int]] = {}


class ResolvedExpression(NamedTuple):
    """The topics that an expression matched. version: of the view of topics; timestamp: ms since 1970."""

    topics: frozenset[str]
    version: int
    timestamp: int


class ConsumerGroup:
    """One group; only `record_application.py` changes it."""

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.has_partition_metadata = False
        """Kafka before 4.1 has left a record (4) that the next decision removes."""
        self.target_epoch = NO_TARGET
        self.target_timestamp = 0
        self.targets: dict[str, Owned] = {}
        """By member id."""
        self.members: dict[str, ConsumerMember] = {}
        self.static_ids: dict[str, str] = {}
        """instance id → member id"""
        self.expressions: dict[str, ResolvedExpression] = {}
        self.owners: dict[TopicId, dict[int, str]] = {}
        """Member that has a partition or still gives it up."""
        self.name_counts: dict[str, int] = {}
        """How many members name a topic."""
        self.expression_counts: dict[str, int] = {}
        """How many members subscribe with an expression."""
        self.assignor_counts: dict[str, int] = {}

    # ------------------------------------------------------------------ members

    def put(self, member: ConsumerMember) -> None:
        """Take a member in, or go on with another value of it."""
        old = self.members.get(member.id)
        self._count(old, -1)
        self._disown(old)
        self.members[member.id] = member
        self._count(member, 1)
        for partitions in (member.assigned, member.revoking):
            for topic_id, epochs in partitions.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(epochs, member.id))
        if old is not None and old.instance_id not in (None, member.instance_id):
            self._forget_instance(old)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.id

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self.targets.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            self._disown(member)
            self._forget_instance(member)

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member.id:
            del self.static_ids[member.instance_id]

    def _disown(self, member: ConsumerMember | None) -> None:
        if member is None:
            return
        for partitions in (member.assigned, member.revoking):
            for topic_id, epochs in partitions.items():
                owners = self.owners.get(topic_id, {})
                for partition in epochs:
                    if owners.get(partition) == member.id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)

    def _count(self, member: ConsumerMember | None, step: int) -> None:
        if member is None:
            return
        for name in member.topics:
            _add(self.name_counts, name, step)
        if member.expression:
            _add(self.expression_counts, member.expression, step)
        if member.assignor is not None:
            _add(self.assignor_counts, member.assignor, step)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_ids.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    # ------------------------------------------------------------------ what it reads

    def topic_names(self) -> set[str]:
        """Topics that any member subscribes to, by name or by a resolved expression."""
        names = set(self.name_counts)
        for resolved in self.expressions.values():
            names |= resolved.topics
        return names

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Topics that one member subscribes to; an expression that is not resolved yet matches none."""
        resolved = self.expressions.get(member.expression) if member.expression else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def is_subscribed(self, topic: str) -> bool:
        """Whether members may be reading the topic."""
        return topic in self.name_counts or any(topic in resolved.topics for resolved in self.expressions.values())

    def subscription_with(
        self, before: Iterable[ConsumerMember], after: ConsumerMember | None
    ) -> tuple[set[str], list[str]]:
        """(topics, expressions that no member uses any more) as if `after` stood in the place of `before`."""
        names, expressions = dict(self.name_counts), dict(self.expression_counts)
        for member, step in [*((each, -1) for each in before), *([(after, 1)] if after is not None else [])]:
            for name in member.topics:
                _add(names, name, step)
            if member.expression:
                _add(expressions, member.expression, step)
        topics = set(names)
        dropped = []
        for text, resolved in self.expressions.items():
            if text in expressions:
                topics |= resolved.topics
            else:
                dropped.append(text)
        return topics, dropped

    # ------------------------------------------------------------------ where it stands

    @property
    def state(self) -> ConsumerGroupState:
        """How far the group is."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_at(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def owner(self, topic_id: TopicId, partition: int) -> str | None:
        """Who has the partition or still gives it up."""
        owners = self.owners.get(topic_id)
        return None if owners is None else owners.get(partition)


def _add(counts: dict[str, int], key: str, step: int) -> None:
    count = counts.get(key, 0) + step
    if count > 0:
        counts[key] = count
    else:
        counts.pop(key, None)
