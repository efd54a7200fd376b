"""Commands the group machine understands and the answers it gives; independent of any API's version."""

from __future__ import annotations

from typing import NamedTuple

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import NO_EPOCH, NO_TOPIC_ID, TopicId

NO_MEMBER = ""
NO_GENERATION = -1
NO_EXPIRY = -1

Protocols = tuple[tuple[str, bytes], ...]
"""(protocol name, the member's metadata for it) in order of preference."""


class JoinGroup(NamedTuple):
    """A member wants to be in the next generation. Answer: Joined, possibly much later.

    new_id: 36 characters of a random UUID, used when a member id has to be made. The two flags stand for versions:
    from 4 a dynamic member must come back with the id it is given (KIP-394); from 9 a static leader that replaced
    itself is asked to skip the assignment (KIP-814).
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    new_id: str
    requires_member_id: bool = True
    may_skip_assignment: bool = True
    reason: str | None = None


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """How a JoinGroup ended; members are given to the leader alone."""

    error: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER
    member_id: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncGroup(NamedTuple):
    """A member fetches its assignment; the leader brings everybody's. Answer: Synced.

    protocol_type and protocol are None where the request's version has none.
    """

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncedMember(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Heartbeat(NamedTuple):
    """Answer: an ErrorCode."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


class Leaver(NamedTuple):
    """Who leaves: a member id, or only an instance id (an administrator removes a static member)."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class LeaveGroup(NamedTuple):
    """Answer: (error of the whole request, one ErrorCode per leaver)."""

    group_id: str
    members: tuple[Leaver, ...]


class NewOffset(NamedTuple):
    """One offset to commit. topic_id: kept with it, so that a re-created topic does not inherit it."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: TopicId = NO_TOPIC_ID


class CommitOffsets(NamedTuple):
    """Answer: one ErrorCode per offset; KafkaError when the group refuses all. retention_ms: -1 the broker's.

    generation: a member epoch in a consumer group. knows_epochs: the request is of a version that may bring one.
    """

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[NewOffset, ...]
    retention_ms: int = -1
    knows_epochs: bool = True


class CommitTransactionOffsets(NamedTuple):
    """Offsets that count when the producer's transaction commits. Answer: as that of CommitOffsets."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    producer: ProducerEpoch
    offsets: tuple[NewOffset, ...]


class CommittedOffset(NamedTuple):
    """What is known of one committed offset. Timestamps in ms since 1970; expire_timestamp -1 normally."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    topic_id: TopicId = NO_TOPIC_ID


class FetchOffsets(NamedTuple):
    """Answer: {(topic, partition): CommittedOffset}, without those that were never committed; None asks for all.

    require_stable: UNSTABLE_OFFSET_COMMIT instead, where a transaction that is open has written one (KIP-447).
    member_id, member_epoch: who asks, looked at in a consumer group; None and -1 for no member in particular.
    """

    group_id: str
    partitions: tuple[tuple[str, int], ...] | None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = NO_GENERATION


class DeleteOffsets(NamedTuple):
    """Answer: one ErrorCode per partition; KafkaError when the group refuses all."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


class DescribeGroups(NamedTuple):
    """Answer: one GroupDescription per id, in order."""

    group_ids: tuple[str, ...]


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    """exists is False for an unknown group; its state is then Dead. is_other_type: it is there, and not classic."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()
    exists: bool = True
    is_other_type: bool = False


class ListGroups(NamedTuple):
    """Answer: list of ListedGroup. Filters are in lower case and match any; empty lets everything pass."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str


class DeleteGroups(NamedTuple):
    """Answer: one ErrorCode per id, in order."""

    group_ids: tuple[str, ...]


class TopicsDeleted(NamedTuple):
    """Topics, (name, id), are gone: their offsets follow, in slices. Answer: True when the last one is written."""

    topics: tuple[tuple[str, TopicId], ...]


class ClassicJoinRefused(NamedTuple):
    """Follow-up: the log did not let an empty consumer group give way to this classic one."""

    group_id: str


class AssignmentRefused(NamedTuple):
    """Follow-up: the log did not take the assignment of this generation."""

    group_id: str
    generation: int


class ReplacementRefused(NamedTuple):
    """Follow-up: the log did not take a static member's new id."""

    group_id: str
    instance_id: str
    new_member_id: str
    old_member_id: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int


class NewIdRefused(NamedTuple):
    """Follow-up: the log did not take the new id of a static member that joins, by `ticket`, in a rebalance."""

    group_id: str
    member_id: str
    ticket: int


class TombstonesRefused(NamedTuple):
    """Follow-up: the log did not take tombstones; they are tried again later."""
