"""What an assignor is asked, and what it answers: members with their subscriptions, partitions for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from duramen.model import TopicId

PartitionCounts = Mapping[TopicId, int]
"""Topics that exist and how many partitions each has: a copy, for large assignments are computed on another thread."""
Owned = Mapping[TopicId, tuple[int, ...]]
"""A member's partitions by topic, each list ascending, none empty."""


class MemberSpec(NamedTuple):
    """A member of a consumer group. owned: its present target assignment; rack: stored, and used by no assignor yet."""

    instance_id: str | None
    topic_ids: frozenset[TopicId]
    owned: Owned
    rack: str | None = None


class GroupSpec(NamedTuple):
    """All members of a group, by member id."""

    members: Mapping[str, MemberSpec]


Assignment = dict[str, Owned]
"""For every member of the group, in no order that means anything; a member with nothing has an empty mapping."""
