"""What consumer groups are asked and answer, and the work outside that they ask for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from duramen.machines.group.assignors import Assignment, GroupSpec, Owned, PartitionCounts
from duramen.machines.group.consumer.topic_view import TopicView
from duramen.model import TopicId

TopicPartitions = tuple[tuple[TopicId, tuple[int, ...]], ...]
"""Partitions by topic."""


class ConsumerHeartbeat(NamedTuple):
    """A member joins (epoch 0), stays, or leaves (-1; -2 a static one for a while). Answer: ConsumerAnswer.

    None and -1 stand for what has not changed. new_id: used where the client has none, which versions from 1 on must
    have (`brings_id`). caller: whoever may describe what its expression is matched against; the machine hands it on.
    may_wait: the answer may wait for a target that is being computed.
    """

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    expression: str | None = None
    assignor: str | None = None
    owned: TopicPartitions | None = None
    client_id: str = ""
    client_host: str = ""
    new_id: str = ""
    brings_id: bool = True
    caller: object = None
    may_wait: bool = True


class ConsumerAnswer(NamedTuple):
    """assignment: None where the member has it already."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: TopicPartitions | None = None


class DescribeConsumerGroups(NamedTuple):
    """Answer: for each id in order a ConsumerGroupDescription, or None where there is no such consumer group."""

    group_ids: tuple[str, ...]


class ConsumerMemberDescription(NamedTuple):
    """Topics without a name are gone. assigned: with what it still gives up."""

    member_id: str
    instance_id: str | None
    rack: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    expression: str | None
    assigned: TopicPartitions
    target: TopicPartitions
    is_classic: bool


class ConsumerGroupDescription(NamedTuple):
    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]


class TopicsChanged(NamedTuple):
    """Topics are new, gone, or have other partitions or racks. appeared: whether any is new. Answer: True."""

    view: TopicView
    names: tuple[str, ...]
    appeared: bool


class ExpressionsResolved(NamedTuple):
    """What ResolveExpressions has brought; topics is None where it failed. Answer: True."""

    group_id: str
    topics: dict[str, tuple[str, ...]] | None
    version: int


class TargetComputed(NamedTuple):
    """What ComputeTarget has brought; assignment is None where it failed. Answer: True."""

    group_id: str
    epoch: int
    assignment: Assignment | None


class DecisionRefused(NamedTuple):
    """Follow-up: the log did not take a decision that had asked for work outside, or fenced members by these timers."""

    group_id: str
    timers: tuple[Hashable, ...] = ()
    waiting: tuple[tuple[int, ConsumerHeartbeat], ...] = ()
    """(ticket, heartbeat): they wait for the target that was not taken."""


# ---------------------------------------------------------------------- effects


class ResolveExpressions(NamedTuple):
    """Match them against all topics there are that the caller may describe; ends with ExpressionsResolved."""

    group_id: str
    expressions: tuple[str, ...]
    caller: object


class ComputeTarget(NamedTuple):
    """Have an assignor work beside the loop; ends with TargetComputed."""

    group_id: str
    epoch: int
    assignor: str
    spec: GroupSpec
    counts: PartitionCounts


class ResumeHeartbeats(NamedTuple):
    """Decide these heartbeats, whose callers still wait, by the target that has been computed."""

    waiting: tuple[tuple[int, ConsumerHeartbeat], ...]
    """(ticket, command)"""


class MemberChange(NamedTuple):
    """Say in the node's log that a member joined, left or was removed. instance_id: "" where it has none."""

    event: str
    group_id: str
    member_id: str
    instance_id: str
    cause: str = ""
    """Why, where the member did not ask for it."""


def listed(partitions: Owned) -> TopicPartitions:
    """In ascending order."""
    return tuple((topic_id, tuple(indexes)) for topic_id, indexes in sorted(partitions.items()))
