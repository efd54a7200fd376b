"""A group machine behind a host, topics, and members of the consumer protocol as Kafka's clients behave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tests.worlds.group_clients import GroupClients
from tests.worlds.machine_fakes import FakeClock

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord, Outcome, TimerFired
from duramen.machines.group import GroupMachine, GroupSettings
from duramen.machines.group.assignors import ASSIGNORS
from duramen.machines.group.consumer.commands import (
    ComputeTarget,
    ConsumerAnswer,
    ConsumerHeartbeat,
    ExpressionsResolved,
    MemberChange,
    ResolveExpressions,
    ResumeHeartbeats,
    TargetComputed,
    TopicsChanged,
)
from duramen.machines.group.consumer.topic_view import TopicSeen
from duramen.machines.group.expressions import resolve
from duramen.model import TopicId
from duramen.ports import Timer

SESSION = 45_000
BEAT = 5_000
REBALANCE = 60_000


class Topics:
    """A view of topics that a test changes."""

    def __init__(self, **partitions: int) -> None:
        self.seen: dict[str, TopicSeen] = {}
        self.version = 0
        for name, count in partitions.items():
            self.put(name, count)

    def put(self, name: str, count: int, topic_id: TopicId | None = None) -> None:
        self.version += 1
        self.seen[name] = TopicSeen(topic_id or name.encode().rjust(16, b"."), count)

    def topic(self, name: str) -> TopicSeen | None:
        return self.seen.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name, seen in self.seen.items() if seen.id == topic_id), None)

    def names(self) -> Iterable[str]:
        return self.seen


class DrivenMachine(GroupClients):
    """A machine and its log, of which everything is committed at once. refuse: what the log answers, if it does."""

    def __init__(self, settings: GroupSettings | None, log: list[LogRecord], clock: FakeClock) -> None:
        self.machine = GroupMachine(settings)
        self.clock = clock
        self.log = log
        self.refuse: KafkaError | None = None
        self.on_effect: Callable[[Any], None] = lambda effect: None
        self.is_over = False
        self._waiting: dict[int, list[Any]] = {}
        self._timers: dict[Any, Timer] = {}
        for offset, record in enumerate(log):
            self.machine.apply(record, offset, clock.wall_ms())
        self._follow(self.machine.on_loaded(clock.wall_ms()), 0)

    def submit(self, command: Any) -> list[Any]:
        ticket = self.uuid = self.uuid + 1
        answers = self._waiting[ticket] = []
        self._decide(command, ticket)
        return answers

    def resume(self, ticket: int, command: Any) -> None:
        """As the host does."""
        self._decide(command, ticket)

    def _decide(self, command: Any, ticket: int) -> None:
        try:
            outcome = self.machine.decide(command, ticket, self.clock.wall_ms())
        except KafkaError as error:
            outcome = Outcome(replies=[(ticket, error)])
        if outcome.records and self.refuse is not None:
            self._answer([(ticket, self.refuse)])
            if outcome.if_refused is not None:
                self._decide(outcome.if_refused, 0)
        else:
            self._follow(outcome, ticket)

    def _follow(self, outcome: Outcome, ticket: int) -> None:
        now = self.clock.wall_ms()
        for record in outcome.records:
            self.machine.apply(record, len(self.log), now)
            self.log.append(record)
        for key, due in outcome.timers:
            if (timer := self._timers.pop(key, None)) is not None:
                timer.cancel()
            if due is not None:
                self._timers[key] = self.clock.call_later((due - now) / 1000, partial(self._ring, key))
        self._answer(outcome.replies)
        for effect in outcome.effects:
            self.on_effect(effect)

    def _ring(self, key: Any) -> None:
        del self._timers[key]
        if not self.is_over:
            self._decide(TimerFired(key), 0)

    def _answer(self, replies: list[tuple[int, Any]]) -> None:
        for ticket, answer in replies:
            if ticket in self._waiting:
                self._waiting.pop(ticket).append(answer)

    def taken_over(self) -> DrivenMachine:
        """Another machine replays the log; nobody hears of this one any more."""
        self.is_over = True
        return DrivenMachine(self.machine.settings, self.log, self.clock)


class ConsumerWorld:
    """One coordinator; effects are carried out at once unless a test holds them back."""

    def __init__(self, settings: GroupSettings | None = None, **partitions: int) -> None:
        self.topics = Topics(**partitions)
        self.coordinator = DrivenMachine(settings, [], FakeClock())
        self.held: list[Any] | None = None
        """Effects that are not carried out yet; None while they are at once."""
        self.effects: list[Any] = []
        self.changes: list[MemberChange] = []
        """Of members, as the node's log gets them."""
        self._begin()

    def _begin(self) -> None:
        self.coordinator.on_effect = self._carry_out
        self.machine = self.coordinator.machine
        self.clock = self.coordinator.clock
        self.machine.consumers.topics.replaced(self.topics)

    def reload(self) -> None:
        """Another coordinator takes over the log."""
        self.coordinator = self.coordinator.taken_over()
        self._begin()

    def change_topic(self, name: str, count: int) -> None:
        is_new = name not in self.topics.seen
        self.topics.put(name, count)
        assert self.coordinator.ask(TopicsChanged(self.topics, (name,), is_new)) is True

    def delete_topic(self, name: str) -> None:
        del self.topics.seen[name]
        self.topics.version += 1
        assert self.coordinator.ask(TopicsChanged(self.topics, (name,), False)) is True

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, ResumeHeartbeats):
            for ticket, heartbeat in effect.waiting:
                self.coordinator.resume(ticket, heartbeat)
            return
        if isinstance(effect, MemberChange):
            self.changes.append(effect)
            return
        self.effects.append(effect)
        if self.held is not None:
            self.held.append(effect)
        else:
            self.finish(effect)

    def finish(self, effect: Any) -> None:
        """What comes of an effect."""
        if isinstance(effect, ComputeTarget):
            done = ASSIGNORS[effect.assignor](effect.spec, effect.counts)
            command: Any = TargetComputed(effect.group_id, effect.epoch, done)
        else:
            assert isinstance(effect, ResolveExpressions)
            found = resolve(effect.expressions, self.topics.names())
            command = ExpressionsResolved(effect.group_id, found, self.topics.version)
        assert self.coordinator.ask(command) is True

    def beat(self, member_id: str, epoch: int, group: str = "g", **options: Any) -> ConsumerAnswer | KafkaError:
        return self.coordinator.ask(ConsumerHeartbeat(group, member_id, epoch, **options))  # type: ignore[no-any-return]

    def refusal(self, member_id: str, epoch: int, group: str = "g", **options: Any) -> ErrorCode:
        """The code that a heartbeat is refused with."""
        answer = self.beat(member_id, epoch, group, **options)
        assert isinstance(answer, KafkaError), answer
        return answer.code

    def member(self, name: str, *topics: str, group: str = "g", **options: Any) -> Consumer:
        return Consumer(self, name, topics, group, options)

    def state(self, group: str = "g") -> str:
        return self.machine.consumers.groups[group].state.value

    def owned(self, *members: Consumer) -> dict[str, list[tuple[str, int]]]:
        return {member.id: sorted(member.partitions()) for member in members}

    def durable(self) -> Any:
        """All that is recorded, to compare what a replay gives."""
        return {
            group.id: (
                group.epoch, group.metadata_hash, group.target_epoch, group.target_timestamp, dict(group.targets),
                dict(group.members), dict(group.static_ids), dict(group.expressions),
                {topic_id: dict(owners) for topic_id, owners in group.owners.items()},
                dict(group.name_counts), dict(group.expression_counts), dict(group.assignor_counts),
            )
            for group in self.machine.consumers.groups.values()
        }  # fmt: skip


class Consumer:
    """A client: it says in full what it is when it joins, and after that what has changed."""

    def __init__(
        self, world: ConsumerWorld, name: str, topics: tuple[str, ...], group: str, options: dict[str, Any]
    ) -> None:
        self.world = world
        self.id = name
        self.topics = topics
        self.group = group
        self.options = options
        self.epoch = 0
        self.has: dict[TopicId, tuple[int, ...]] = {}
        self.wanted: dict[TopicId, tuple[int, ...]] = {}

    def partitions(self) -> list[tuple[str, int]]:
        name_of = self.world.topics.name_of
        return [(name_of(topic_id) or "", index) for topic_id, indexes in self.has.items() for index in indexes]

    def owned(self) -> tuple[tuple[TopicId, tuple[int, ...]], ...]:
        return tuple(sorted(self.has.items()))

    def join(self) -> Consumer:
        return self.take(self.ask_to_join())

    def ask_to_join(self) -> list[ConsumerAnswer | KafkaError]:
        """The join's answer, once it is there."""
        self.epoch = 0
        self.has = {}
        fields: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE, "topics": self.topics, "owned": ()}
        command = ConsumerHeartbeat(self.group, self.id, 0, **{**fields, **self.options})
        return self.world.coordinator.submit(command)

    def take(self, answers: list[ConsumerAnswer | KafkaError]) -> Consumer:
        """The client goes by its answer."""
        (answer,) = answers
        return self._sent(answer)

    def beat(self, **options: Any) -> Consumer:
        """One heartbeat, and what a client does with the answer: gives up what it must, and says so the next time."""
        fields: dict[str, Any] = {"owned": self.owned(), "instance_id": self.options.get("instance_id")}
        return self._sent(self.world.beat(self.id, self.epoch, self.group, **{**fields, **options}))

    def _sent(self, answer: ConsumerAnswer | KafkaError) -> Consumer:
        assert isinstance(answer, ConsumerAnswer), answer
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.has = dict(answer.assignment)
        return self

    def leave(self, epoch: int = -1) -> None:
        answer = self.world.beat(self.id, epoch, self.group, instance_id=self.options.get("instance_id"))
        assert answer == ConsumerAnswer(self.id, epoch), answer


def settle(*members: Consumer, most: int = 12) -> int:
    """Beats until nothing moves any more; how many rounds that took."""
    for rounds in range(1, most + 1):
        before = [(member.epoch, member.owned()) for member in members]
        members[0].world.clock.advance(BEAT)
        for member in members:
            member.beat()
        group = members[0].world.machine.consumers.groups[members[0].group]
        if before == [(member.epoch, member.owned()) for member in members] and group.state.value == "Stable":
            return rounds
    raise AssertionError(f"{members[0].group} does not settle")
