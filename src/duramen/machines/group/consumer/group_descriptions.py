"""Answers ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from duramen.machines.group.consumer.commands import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    TopicPartitions,
    listed,
)
from duramen.machines.group.consumer.groups import ConsumerGroups
from duramen.machines.group.consumer.state import NO_OWNED, ConsumerGroup, ConsumerMember
from duramen.machines.group.consumer.target import choose_assignor
from duramen.model import TopicId


def describe(groups: ConsumerGroups, group_id: str) -> ConsumerGroupDescription | None:
    """The group as it is; topics that are gone are left out."""
    group = groups.groups.get(group_id)
    if group is None:
        return None
    return ConsumerGroupDescription(
        group.id,
        group.state.value,
        group.epoch,
        group.target_epoch,
        choose_assignor(group.members.values(), groups.settings.consumer_assignors[0]),
        tuple(_describe_member(groups, group, member) for member in group.members.values()),
    )


def _describe_member(groups: ConsumerGroups, group: ConsumerGroup, member: ConsumerMember) -> ConsumerMemberDescription:
    # It answers for what it gives up until it has.
    has: dict[TopicId, list[int]] = {}
    for partitions in (member.assigned, member.revoking):
        for topic_id, epochs in partitions.items():
            has.setdefault(topic_id, []).extend(epochs)
    return ConsumerMemberDescription(
        member.id,
        member.instance_id,
        member.rack,
        member.epoch,
        member.client_id,
        member.client_host,
        tuple(sorted(member.topics)),
        member.expression,
        _present(groups, has),
        _present(groups, group.targets.get(member.id, NO_OWNED)),
        member.classic is not None,
    )


def _present(groups: ConsumerGroups, partitions: Mapping[TopicId, Iterable[int]]) -> TopicPartitions:
    name_of = groups.topics.view.name_of
    return listed({topic_id: tuple(sorted(each)) for topic_id, each in partitions.items() if name_of(topic_id)})
