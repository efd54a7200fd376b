"""One group's state while it is coordinated: members, votes for protocols, phase and generation.

Everything here is soft: it changes while commands are decided and is rebuilt from the log by whoever takes over.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from duramen.errors import ErrorCode, KafkaError, check
from duramen.machines.contract import NO_TICKET
from duramen.machines.group.classic.subscription import CONSUMER_PROTOCOL_TYPE, topics_of_all
from duramen.machines.group.commands import Joined, JoinedMember, Protocols


class GroupState(Enum):
    """Phases of a classic group, named as DescribeGroups reports them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


NO_TIMESTAMP: Final = -1


class Member:
    """One member. Tickets name the parked JoinGroup or SyncGroup, NO_TICKET when none is parked."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "id",
        "instance_id",
        "is_new",
        "join_ticket",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_ticket",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.join_ticket = NO_TICKET
        self.sync_ticket = NO_TICKET
        self.is_new = False

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def excused_from_heartbeat(self) -> bool:
        """Whoever waits for us cannot beat; but a new member, which may be gone, times out even so."""
        return not self.is_new and (self.join_ticket != NO_TICKET or self.sync_ticket != NO_TICKET)

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said under this protocol; empty for one it does not speak."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Iterable[str]) -> str:
        """Its own favourite among the candidates."""
        allowed = set(candidates)
        for name, _ in self.protocols:
            if name in allowed:
                return name
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{self.id} speaks none of the candidate protocols")


class Group:
    """A classic group."""

    def __init__(self, group_id: str, now: int) -> None:
        self.id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.state_timestamp = now
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        """instance id → member id"""
        self.pending_joins: dict[str, None] = {}
        """Member ids that were given out and have not joined yet (KIP-394)."""
        self.pending_syncs: dict[str, None] = {}
        self.new_member_added = False
        self.initial_delay: tuple[int, int] | None = None
        """(delay running, what may be added) in ms while a group waits for its first members."""
        self.topics: frozenset[str] | None = frozenset()
        """Topics the members subscribe to; None when that is not known."""
        self._support: dict[str, int] = {}

    # ------------------------------------------------------------------ members

    def member(self, member_id: str) -> Member:
        return self.members[member_id]

    def add(self, member: Member) -> None:
        """Take the member in; the first one sets the protocol type in its caller and becomes leader."""
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.id
        self.pending_joins.pop(member.id, None)

    def remove(self, member_id: str) -> Member | None:
        """Forget a member or a pending one; its parked requests must have been answered."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
                del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        return member

    def update(self, member: Member, protocols: Protocols, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
        """The member joins again with what it supports now."""
        self._count(member, -1)
        member.protocols = protocols
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms
        self._count(member, 1)

    def rename_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """The static member's process was replaced: same place in the group, another member id (KIP-345)."""
        member = self.members.pop(old_id)
        member.id = new_id
        self.members[new_id] = member
        self.static_ids[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_syncs:
            del self.pending_syncs[old_id]
            self.pending_syncs[new_id] = None
        return member

    def validate(self, member_id: str, instance_id: str | None) -> None:
        """KafkaError FENCED_INSTANCE_ID or UNKNOWN_MEMBER_ID unless this is a member under that identity."""
        if instance_id is not None:
            known = self.static_ids.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"another member has the instance id {instance_id}")
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {self.id}")

    @property
    def awaiting_join(self) -> int:
        """Members whose JoinGroup is parked."""
        return sum(1 for member in self.members.values() if member.join_ticket)

    @property
    def all_joined(self) -> bool:
        return not self.pending_joins and all(member.join_ticket for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The most patient member's; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # ------------------------------------------------------------------ protocols

    def _count(self, member: Member, step: int) -> None:
        for name in dict(member.protocols):
            count = self._support.get(name, 0) + step
            if count:
                self._support[name] = count
            else:
                self._support.pop(name, None)

    def accepts_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether somebody with these protocols may join the members there are."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        size = len(self.members)
        return any(self._support.get(name, 0) == size for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol everybody speaks that has most votes; ties go to what the oldest member prefers."""
        check(self.members, "a protocol is selected by members")
        size = len(self.members)
        candidates = [name for name, count in self._support.items() if count == size]
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def find_topics(self) -> frozenset[str] | None:
        """What the members subscribe to under the selected protocol; None when that cannot be determined."""
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None:
            return None
        return topics_of_all(member.metadata(self.protocol) for member in self.members.values())

    def is_subscribed(self, topic: str) -> bool:
        """Whether members may be reading the topic; in doubt a group of consumers may."""
        if self.topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.topics

    # ------------------------------------------------------------------ phases

    def become(self, state: GroupState, now: int) -> None:
        self.previous_state = self.state
        self.state = state
        self.state_timestamp = now

    @property
    def can_rebalance(self) -> bool:
        return self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)

    def next_generation(self, now: int) -> None:
        """Begin a generation with the members there are; Empty when there are none."""
        self.generation = self.generation + 1 if self.generation < 2**31 - 1 else 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.become(GroupState.COMPLETING_REBALANCE, now)
        else:
            self.protocol = None
            self.become(GroupState.EMPTY, now)
        self.topics = self.find_topics()

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it rejoined, else take the first member that did; False when none has."""
        if self.leader is not None and self.leader in self.members and self.members[self.leader].join_ticket:
            return True
        for member in self.members.values():
            if member.join_ticket:
                self.leader = member.id
                return True
        return False

    def joined(self, member: Member, *, skip_assignment: bool = False, with_members: bool | None = None) -> Joined:
        """The JoinGroup answer of this generation for one member."""
        if with_members is None:
            with_members = member.id == self.leader
        members: tuple[JoinedMember, ...] = ()
        if with_members:
            members = tuple(
                JoinedMember(other.id, other.instance_id, other.metadata(self.protocol))
                for other in self.members.values()
            )
        return Joined(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            member_id=member.id,
            skip_assignment=skip_assignment,
            members=members,
        )
