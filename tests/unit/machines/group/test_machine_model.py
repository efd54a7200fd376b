"""A random crowd of clients against the group machine; what must always hold is checked after every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from tests.worlds.group_harness import Coordinator

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group import (
    CommitOffsets,
    DeleteGroups,
    GroupSettings,
    Heartbeat,
    Joined,
    LeaveGroup,
    Leaver,
    NewOffset,
    SyncedMember,
    TopicsDeleted,
)

SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=3000, max_size=4, new_member_timeout_ms=40_000, offsets_retention_ms=500_000,
    retention_check_interval_ms=100_000,
)  # fmt: skip
SESSIONS = (6000, 10_000, 30_000)
REBALANCES = (10_000, 60_000)
LONGEST_PARK_MS = 5 * 60_000
GROUPS = ("g", "h")


@dataclass
class Parked:
    """One submitted command and what came back."""

    what: str
    client: Client
    submitted: int
    answers: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Client:
    """A client as its protocol state machine sees itself; it may forget, repeat and vanish."""

    group: str
    instance_id: str | None
    protocols: tuple[tuple[str, bytes], ...]
    session: int
    rebalance: int
    member_id: str = ""
    joined: Joined | None = None
    assigned: dict[int, bytes] = field(default_factory=dict)


def life_of(lives: dict[str, tuple[object, int]], name: str, group: object) -> int:
    """Counts a group's lives: one the log holds nothing of is forgotten when all leave, and begins anew at 1."""
    known, life = lives.get(name, (None, 0))
    if group is not known:
        life += 1
        lives[name] = (group, life)
    return life


class Crowd(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(SETTINGS)
        self.parked: list[Parked] = []
        self.generations: dict[tuple[str, int], int] = {}
        self.leaders: dict[tuple[str, int, int], set[str]] = {}
        self.lives: dict[str, tuple[object, int]] = {}
        self.crowd: list[Client] = []

    # ------------------------------------------------------------------ plumbing

    def now(self) -> int:
        return self.coordinator.clock.wall_ms()

    def submit(self, what: str, client: Client, command: Any) -> Parked:
        parked = Parked(what, client, self.now())
        self.parked.append(parked)
        self.coordinator.host.submit(command, parked.answers.append)
        self.collect()
        return parked

    def collect(self) -> None:
        """Let clients take in what was answered; every answer comes once."""
        left = []
        for parked in self.parked:
            assert len(parked.answers) <= 1, "a command is answered once"
            if not parked.answers:
                assert self.now() - parked.submitted <= LONGEST_PARK_MS, f"{parked.what} was never answered"
                left.append(parked)
                continue
            self.learn(parked.client, parked.answers[0])
        self.parked = left

    def learn(self, client: Client, answer: Any) -> None:
        if isinstance(answer, Joined):
            self.learn_joined(client, answer)
        elif isinstance(answer, SyncedMember) and client.joined is not None:
            if answer.error != ErrorCode.NONE:
                client.joined = None
                return
            generation = client.joined.generation
            # A static member inherits what its earlier process was assigned, under the id that one had.
            mine = f"for {client.instance_id or client.joined.member_id}".encode()
            assert answer.assignment == b"" or answer.assignment.startswith(mine)
            known = client.assigned.setdefault(generation, answer.assignment)
            assert known == answer.assignment, "one generation gives a member one assignment"
            group = self.coordinator.machine.groups[client.group]
            assert group.generation >= generation
            stored = self.coordinator.machine.stored[client.group]
            assert stored.generation >= generation, "assignments are durable before anybody has one"

    def learn_joined(self, client: Client, joined: Joined) -> None:
        if joined.error == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = joined.member_id
        elif joined.error == ErrorCode.NONE:
            client.member_id = joined.member_id
            if client.joined is None or client.joined.generation != joined.generation:
                client.assigned.pop(joined.generation, None)
            client.joined = joined
            assert joined.generation >= 1
            if joined.members and not joined.skip_assignment:
                life = life_of(self.lives, client.group, self.coordinator.machine.groups.get(client.group))
                leaders = self.leaders.setdefault((client.group, life, joined.generation), set())
                leaders.add(joined.member_id)
                assert joined.leader == joined.member_id
                assert joined.member_id in {member.member_id for member in joined.members}
        elif joined.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED):
            client.member_id, client.joined = "", None

    # ------------------------------------------------------------------ what clients do

    @rule(
        target=clients,
        group=st.sampled_from(GROUPS),
        instance=st.sampled_from([None, None, "i1", "i2"]),
        protocols=st.sampled_from(
            [(("a", b"1"),), (("a", b"1"), ("b", b"1")), (("b", b"1"), ("a", b"2")), (("c", b""),)]
        ),
        session=st.sampled_from(SESSIONS),
        rebalance=st.sampled_from(REBALANCES),
    )
    def appear(self, group: str, instance: str | None, protocols: Any, session: int, rebalance: int) -> Client:
        client = Client(group, instance, protocols, session, rebalance)
        self.crowd.append(client)
        return client

    @initialize(target=clients, sizes=st.tuples(st.integers(1, 3), st.integers(0, 2)), static=st.booleans())
    def begin(self, sizes: tuple[int, int], static: bool) -> Any:
        """Most that can go wrong goes wrong in groups that have been stable."""
        for group, size in zip(GROUPS, sizes, strict=True):
            for number in range(size):
                instance = f"i{number}" if static and number < 2 else None
                self.crowd.append(Client(group, instance, (("a", b"1"), ("b", b"1")), 10_000, 60_000))
        self.behave(3)
        return multiple(*self.crowd)

    @rule(rounds=st.integers(1, 4))
    def behave(self, rounds: int) -> None:
        """Everybody does what a client in its place does next, again and again: this is how groups become stable."""
        for _ in range(rounds):
            for client in self.crowd:
                self.act(client)
            self.wait(3001)
        for client in self.crowd:
            self.heartbeat(client)

    @rule(client=clients)
    def act(self, client: Client) -> None:
        """One client's next step; it does nothing while it waits."""
        if any(parked.client is client for parked in self.parked):
            return
        if client.joined is None:
            self.join(client, False)
            if client.joined is None and client.member_id:
                self.join(client, False)
        elif client.joined.generation not in client.assigned:
            self.sync(client)
        else:
            self.heartbeat(client)

    @rule(client=clients)
    def stumble(self, client: Client) -> None:
        """A connection is lost and the client joins again although its request is parked."""
        if client.member_id:
            self.submit("join", client, self.join_command(client, False))

    @rule(client=clients, old=st.booleans())
    def join(self, client: Client, old: bool) -> None:
        if any(parked.client is client and parked.what == "join" for parked in self.parked) and not old:
            return
        self.submit("join", client, self.join_command(client, old))

    def join_command(self, client: Client, old: bool) -> Any:
        return self.coordinator.join_command(
            client.member_id,
            client.group,
            instance_id=client.instance_id,
            protocols=client.protocols,
            session_timeout_ms=client.session,
            rebalance_timeout_ms=client.rebalance,
            requires_member_id=not old,
            may_skip_assignment=not old,
        )

    @rule(client=clients, metadata=st.binary(max_size=2))
    def change_subscription(self, client: Client, metadata: bytes) -> None:
        client.protocols = tuple((name, metadata) for name, _ in client.protocols)

    @rule(client=clients)
    def sync(self, client: Client) -> None:
        if client.joined is not None:
            command = self.coordinator.sync_command(client.joined, client.group, instance_id=client.instance_id)
            self.submit("sync", client, command)

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        joined = client.joined
        if joined is None:
            return
        command = Heartbeat(client.group, joined.generation, client.member_id, client.instance_id)
        parked = self.submit("heartbeat", client, command)
        (answer,) = parked.answers
        if answer != ErrorCode.NONE:
            client.joined = None
        if answer in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        group = self.coordinator.machine.groups.get(client.group)
        member = group.members.get(client.member_id) if group is not None else None
        if member is not None and group is not None and group.generation == joined.generation:
            expected = {
                "Stable": ErrorCode.NONE,
                "CompletingRebalance": ErrorCode.NONE,
                "PreparingRebalance": ErrorCode.REBALANCE_IN_PROGRESS,
            }[group.state.value]
            if member.instance_id == client.instance_id:
                assert answer == expected
        else:
            assert answer in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.FENCED_INSTANCE_ID,
            )

    @rule(client=clients)
    def leave(self, client: Client) -> None:
        self.submit("leave", client, LeaveGroup(client.group, (Leaver(client.member_id, client.instance_id),)))
        client.member_id, client.joined = "", None

    @rule(client=clients)
    def restart(self, client: Client) -> None:
        """The process forgets everything but its configuration."""
        client.member_id, client.joined = "", None
        client.assigned = {}

    @rule(client=consumes(clients))
    def vanish(self, client: Client) -> None:
        """Nothing is heard of it again; the answers it waited for go nowhere."""
        self.crowd = [other for other in self.crowd if other is not client]

    @rule(client=clients, partition=st.integers(0, 2), offset=st.integers(0, 1000))
    def commit(self, client: Client, partition: int, offset: int) -> None:
        generation = client.joined.generation if client.joined is not None else -1
        member_id = client.member_id if client.joined is not None else ""
        instance = client.instance_id if client.joined is not None else None
        command = CommitOffsets(client.group, member_id, instance, generation, (NewOffset("t", partition, offset),))
        parked = self.submit("commit", client, command)
        if parked.answers == [[ErrorCode.NONE]]:
            committed = self.coordinator.machine.offsets.of(client.group)[("t", partition)]
            assert committed.offset == offset

    # ------------------------------------------------------------------ what happens to them

    @rule(ms=st.sampled_from([1, 100, 2999, 3001, 6000, 20_000, 61_000]))
    def wait(self, ms: int) -> None:
        # In steps, so that the age of what is parked is seen at a fine grain.
        for _ in range(max(ms // 1000, 1)):
            self.coordinator.clock.advance(min(ms, 1000))
            self.collect()

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        (answer,) = self.coordinator.ask(DeleteGroups((group,)))
        if answer == ErrorCode.NONE:
            self.leaders = {key: value for key, value in self.leaders.items() if key[0] != group}

    @rule()
    def delete_topic(self) -> None:
        answers = self.coordinator.submit(TopicsDeleted((("t", bytes(16)),)))
        self.coordinator.clock.advance(0)
        assert answers == [True]

    @rule(client=clients, code=st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR]))
    def refuse_a_sync(self, client: Client, code: ErrorCode) -> None:
        self.coordinator.partition.refuse = KafkaError(code)
        self.sync(client)
        self.coordinator.partition.refuse = None

    @rule()
    def take_over(self) -> None:
        """Another coordinator replays the log: durable state is the same, soft state is gone."""
        before = self.coordinator.durable()
        self.coordinator.host.close()
        self.collect()
        assert self.parked == []
        uuid = self.coordinator.uuid
        self.coordinator = self.coordinator.reloaded()
        self.coordinator.uuid = uuid
        assert self.coordinator.durable() == before
        self.generations = {}
        self.leaders = {}

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def groups_are_sound(self) -> None:
        for name in GROUPS:
            if name not in self.coordinator.machine.groups:
                # Gone for good (deleted, expired, never joined): one of that name begins anew.
                self.leaders = {key: value for key, value in self.leaders.items() if key[0] != name}
        for name, group in self.coordinator.machine.groups.items():
            life = name, life_of(self.lives, name, group)
            assert group.generation >= self.generations.get(life, 0), "generations only grow"
            self.generations[life] = group.generation
            assert (group.state.value == "Empty") <= (not group.members)
            if group.members:
                assert group.leader in group.members
            assert len(group.static_ids) == sum(member.is_static for member in group.members.values())
            assert not set(group.pending_joins) & set(group.members)
            assert set(group.pending_syncs) <= set(group.members)
            for member in group.members.values():
                assert not (member.join_ticket and group.state.value in ("Stable", "CompletingRebalance"))
                assert not (member.sync_ticket and group.state.value != "CompletingRebalance")

    @invariant()
    def a_generation_has_one_leader(self) -> None:
        for leaders in self.leaders.values():
            assert len(leaders) <= 1

    @invariant()
    def whoever_waits_is_known_to_the_machine(self) -> None:
        tickets = [
            ticket
            for group in self.coordinator.machine.groups.values()
            for member in group.members.values()
            for ticket in (member.join_ticket, member.sync_ticket)
            if ticket
        ]
        assert len(tickets) == len(set(tickets)) == self.coordinator.host.waiting == len(self.parked)

    def teardown(self) -> None:
        replayed = self.coordinator.durable()
        assert self.coordinator.reloaded().durable() == replayed


Crowd.TestCase.settings = settings(
    max_examples=80, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCrowd = Crowd.TestCase
