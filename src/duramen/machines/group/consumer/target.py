"""Target assignments: computed when the group epoch is ahead, written as what changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from duramen.machines.contract import LogRecord
from duramen.machines.group.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec, Owned, PartitionCounts
from duramen.machines.group.consumer import records
from duramen.machines.group.consumer.state import NO_OWNED, ConsumerGroup, ConsumerMember
from duramen.machines.group.consumer.topic_view import KnownTopics
from duramen.model import TopicId

MOST_INLINE: Final = 500
"""Members and partitions of an assignment that is computed at once: ten milliseconds. Larger ones leave the loop."""


class Draft(NamedTuple):
    """The group as it will be when a decision's records are applied: its members, and who took whose place."""

    members: dict[str, ConsumerMember]
    places: dict[str, str]
    """New member id of a static member → the one before it."""


def draft(group: ConsumerGroup, member: ConsumerMember, replaced: str | None) -> Draft:
    """With this member, in the place of another one where it replaces it."""
    members = dict(group.members)
    places = {}
    if replaced is not None and replaced != member.id:
        members.pop(replaced, None)
        places[member.id] = replaced
    members[member.id] = member
    return Draft(members, places)


def is_due(timestamp: int, interval_ms: int, now: int) -> bool:
    """Whether another one may be computed: at once where none was, or when is not known.

    The last one's time may lie ahead, where the wall clock was set back since; Kafka waits until it has caught up.
    """
    return timestamp == 0 or not timestamp <= now < timestamp + interval_ms


def choose_assignor(members: Iterable[ConsumerMember], default: str) -> str:
    """The one that most members ask for; of several the first by name."""
    counts: dict[str, int] = {}
    for member in members:
        if member.assignor is not None and member.assignor in ASSIGNORS:
            counts[member.assignor] = counts.get(member.assignor, 0) + 1
    return min(counts, key=lambda name: (-counts[name], name)) if counts else default


def question(
    group: ConsumerGroup, members: Draft, topics: KnownTopics, expression_topics: dict[str, frozenset[str]]
) -> tuple[GroupSpec, PartitionCounts]:
    """What the assignor is asked."""
    known: dict[tuple[frozenset[str], str | None], frozenset[TopicId]] = {}
    counts: dict[TopicId, int] = {}
    specs: dict[str, MemberSpec] = {}
    for member_id, member in members.members.items():
        subscription = (member.topics, member.expression)
        ids = known.get(subscription)
        if ids is None:
            names = member.topics | expression_topics.get(member.expression or "", frozenset())
            ids = known[subscription] = topics.ids(names)
            for name in names:
                topic = topics.view.topic(name)
                if topic is not None:
                    counts[topic.id] = topic.partitions
        owned = group.targets.get(members.places.get(member_id, member_id), NO_OWNED)
        specs[member_id] = MemberSpec(member.instance_id, ids, owned, member.rack)
    return GroupSpec(specs), counts


def is_large(spec: GroupSpec, counts: PartitionCounts) -> bool:
    return len(spec.members) + sum(counts.values()) > MOST_INLINE


def compute(assignor: str, spec: GroupSpec, counts: PartitionCounts) -> Assignment:
    return ASSIGNORS[assignor](spec, counts)


def changes(
    group: ConsumerGroup, member_ids: Iterable[str], assignment: Assignment, epoch: int, now: int
) -> list[LogRecord]:
    """Records that lead from the group's targets to this one."""
    written = []
    for member_id in member_ids:
        wanted: Owned = assignment.get(member_id, NO_OWNED)
        if group.targets.get(member_id) != wanted:
            written.append(records.target(group.id, member_id, wanted))
    written.append(records.target_epoch(group.id, epoch, now))
    return written
