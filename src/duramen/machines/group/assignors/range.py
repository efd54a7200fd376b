"""The range assignor: each topic is cut into as many runs of partitions as it has subscribers, in one order of members.

Topics with equally many partitions are cut alike, so partitions of one number go to one member (co-partitioned), which
is what programs that join topics ask for. Static members come first, in the order of their instance ids, as in Kafka;
they keep their runs over restarts. Kafka orders the others by their (random) ids; here they stay in the order that they
have, and new ones follow, so that a member that joins moves fewer partitions.
"""

from __future__ import annotations

from duramen.machines.group.assignors.specification import Assignment, GroupSpec, MemberSpec, Owned, PartitionCounts
from duramen.model import TopicId


def assign_ranges(spec: GroupSpec, partitions: PartitionCounts) -> Assignment:
    """Every partition of every topic somebody subscribes to, in runs that differ by one at most within a topic."""
    subscribers: dict[TopicId, list[str]] = {}
    for member_id in _order(spec, partitions):
        for topic_id in spec.members[member_id].topic_ids:
            subscribers.setdefault(topic_id, []).append(member_id)
    assignment: dict[str, dict[TopicId, tuple[int, ...]]] = {member_id: {} for member_id in spec.members}
    for topic_id in sorted(subscribers):
        count = partitions.get(topic_id, 0)
        least, longer = divmod(count, len(subscribers[topic_id]))
        first = 0
        for turn, member_id in enumerate(subscribers[topic_id]):
            if first == count:
                break
            end = first + least + (turn < longer)
            assignment[member_id][topic_id] = tuple(range(first, end))
            first = end
    return {**assignment}


def _order(spec: GroupSpec, partitions: PartitionCounts) -> list[str]:
    members = spec.members
    alike = len({member.topic_ids for member in members.values()}) == 1

    def place(member_id: str) -> tuple[bool, str, float, str]:
        member = members[member_id]
        if member.instance_id is not None:
            return False, member.instance_id, 0.0, member_id
        # Where subscriptions differ, places in different topics say nothing about each other.
        return True, "", _place(member, partitions) if alike else 0.0, member_id

    return sorted(members, key=place)


def _place(member: MemberSpec, partitions: PartitionCounts) -> float:
    """How far from the beginning of its topics a member's runs lie, from 0 to 1; 1 for who has none."""
    return min((_start(member.owned, topic_id, partitions) for topic_id in member.topic_ids), default=1.0)


def _start(owned: Owned, topic_id: TopicId, partitions: PartitionCounts) -> float:
    mine, count = owned.get(topic_id), partitions.get(topic_id, 0)
    return min(mine[0] / count, 1.0) if mine and count else 1.0
