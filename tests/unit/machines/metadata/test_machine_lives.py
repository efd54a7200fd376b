"""A cluster's metadata through seeded lives: brokers come, die, lose disks and stop; controllers change; all settles.

The log commits at once or in parts: a new controller begins with what is committed and forgets the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from tests.worlds.machine_fakes import FakeClock
from tests.worlds.metadata_cluster import change, registration, topic_id

from duramen.config import load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord, Outcome, TimerFired
from duramen.machines.metadata import (
    AlterPartition,
    BeginCluster,
    BrokerHeartbeat,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    FenceBroker,
    HeartbeatAnswer,
    IsrChange,
    MetadataImage,
    MetadataMachine,
    MorePartitions,
    NewTopic,
    PartitionImage,
    Registered,
    TopicRef,
    UnregisterBroker,
    leaders,
)
from duramen.machines.metadata.application import Application
from duramen.machines.metadata.image import LOST_DIRECTORY
from duramen.partition.host.host import TimerTable

CONFIG = load_broker_config(None, {"node.id": "9"})
NODES = (1, 2, 3, 4)
STEPS = 150


@dataclass
class Process:
    """A broker's: what it knows of itself. directory: of its disk."""

    node_id: int
    incarnation: int
    directory: int
    previous: int = -1
    """Epoch of the last process, where that has stopped cleanly."""
    epoch: int = -1
    registering: bool = False
    fenced: bool = True
    stopping: bool = False
    cut_until: float = 0.0
    """Until then the controller does not hear it."""


@dataclass
class World:
    """One log, its controller, and processes; whatever is decided is checked as it is applied."""

    random: Random
    clock: FakeClock = field(default_factory=FakeClock)
    log: list[LogRecord] = field(default_factory=list)
    committed: int = 0
    is_calm: bool = False
    processes: dict[int, Process] = field(default_factory=dict)
    directories: dict[int, int] = field(default_factory=lambda: {node_id: 1000 + node_id for node_id in NODES})
    counted: int = 0
    leaders: dict[tuple[bytes, int, int], tuple[int, int]] = field(default_factory=dict)
    """Of each leader epoch: who leads, and the offset that says so."""
    partitions: dict[tuple[bytes, int], PartitionImage] = field(default_factory=dict)
    """As of the last record."""
    stopped: dict[int, int] = field(default_factory=dict)
    """Epochs that clean stops have left behind, by node; the next start takes them away."""
    previous: dict[bytes, int] = field(default_factory=dict)
    """What processes, by incarnation, say of the last one; until they are registered for the first time."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Of registered brokers, as of the last record."""
    proposals: list[AlterPartition] = field(default_factory=list)
    """On their way, also those that have arrived: each may arrive again."""

    def number(self) -> int:
        self.counted += 1
        return self.counted

    # ---- the controller ----

    def elect(self) -> None:
        """Another controller: of what its predecessor wrote it has what is committed."""
        if hasattr(self, "timers"):
            self.timers.clear()
        del self.log[self.committed :]
        self.leaders = {key: known for key, known in self.leaders.items() if known[1] < self.committed}
        self.machine = MetadataMachine(CONFIG)
        for process in self.processes.values():
            process.registering = False
        self.waiting: dict[int, Any] = {}
        self.tickets = 0
        for offset, record in enumerate(self.log):
            self.machine.apply(record, offset, 0)
        self.partitions = self.found()
        self.epochs = {broker.id: broker.epoch for broker in self.machine.image.brokers.values()}
        self.timers = TimerTable(self.clock, lambda key: self.decide(TimerFired(key), 0))
        self.carry_out(self.machine.on_loaded(self.clock.wall_ms()))
        self.ask(BeginCluster(), lambda answer: None)

    def ask(self, command: Any, done: Any) -> None:
        self.tickets += 1
        self.waiting[self.tickets] = done
        self.decide(command, self.tickets)

    def decide(self, command: Any, ticket: int) -> None:
        try:
            outcome = self.machine.decide(command, ticket, self.clock.wall_ms())
        except KafkaError as error:
            outcome = Outcome(replies=[(ticket, error)])
        if outcome.records and not self.is_calm and self.random.random() < 0.03:  # a full disk
            refused = {waiting for waiting, _ in outcome.replies} | {ticket}
            self.answer([(each, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)) for each in refused])
            if outcome.if_refused is not None:
                self.decide(outcome.if_refused, 0)
            return
        self.carry_out(outcome)

    def carry_out(self, outcome: Outcome) -> None:
        for record in outcome.records:
            self.machine.apply(record, len(self.log), 0)
            self.log.append(record)
            self.check()
        for key, due in outcome.timers:
            self.timers.set(key, None if due is None else (due - self.clock.wall_ms()) / 1000)
        if self.is_calm or self.random.random() < 0.8:
            self.committed = len(self.log)
        self.answer(outcome.replies)

    def answer(self, replies: list[tuple[int, Any]]) -> None:
        for ticket, answer in replies:
            done = self.waiting.pop(ticket, None)
            if done is not None:
                done(answer)

    # ---- what has to hold, record by record ----

    def found(self) -> dict[tuple[bytes, int], PartitionImage]:
        topics = self.machine.image.topics.values()
        return {(topic.id, index): each for topic in topics for index, each in enumerate(topic.partitions)}

    def check(self) -> None:
        before, self.partitions = self.partitions, self.found()
        for key, partition in self.partitions.items():
            old = before.get(key)
            if partition is not old:
                self.check_partition(key, partition, old)
        for broker in self.machine.image.brokers.values():
            if self.epochs.get(broker.id) != broker.epoch:
                self.check_registration(broker.id, self.epochs.get(broker.id))
                self.epochs[broker.id] = broker.epoch

    def check_registration(self, node_id: int, before: int | None) -> None:
        """Who may lack the end of what others have is not in sync."""
        image = self.machine.image
        if self.previous.pop(image.brokers[node_id].incarnation_id, before) == before:
            return
        for topic in image.topics.values():
            if image.topic_config(topic.name)["duramen.ack.durability"] == "page-cache":
                for partition in topic.partitions:
                    assert node_id not in partition.isr or partition.isr == (node_id,)

    def check_partition(self, key: tuple[bytes, int], partition: PartitionImage, old: PartitionImage | None) -> None:
        leader, epoch = partition.leader, partition.leader_epoch
        begun = self.leaders.setdefault((*key, epoch), (leader, len(self.log) - 1))
        assert begun[0] == leader, "one leader an epoch"
        assert leader == -1 or leader in partition.isr, "a leader is in sync"
        assert partition.isr, "somebody has what was acknowledged"
        assert set(partition.isr) <= set(partition.replicas)
        if old is None:
            return
        assert epoch >= old.leader_epoch
        assert partition.partition_epoch == old.partition_epoch + 1
        joined = set(partition.isr) - set(old.isr)
        assert joined <= self.machine.image.active_ids(), "nobody fenced joins"
        assert not joined or (leader, epoch) == (old.leader, old.leader_epoch), "who joins was caught up in this epoch"
        assert not joined or self.may_join(key, old, joined), "its leader has proposed it"
        if leader != old.leader:
            assert epoch == old.leader_epoch + 1
            assert leader == -1 or leader in self.machine.image.active_ids(), "nobody fenced is made a leader"
            assert leader == -1 or leader in old.isr, "no unclean election that nobody asked for"
            assert leader == -1 or partition.directory_of(leader) != LOST_DIRECTORY, "an empty log leads nothing"

    def may_join(self, key: tuple[bytes, int], old: PartitionImage, joined: set[int]) -> bool:
        """Whether the leader proposed it, knowing all of this partition, and these very processes."""
        epochs = {(node_id, self.machine.image.brokers[node_id].epoch) for node_id in joined}
        known = (*key, old.leader_epoch, old.partition_epoch)
        return any(
            command.node_id == old.leader
            and (change.topic_id, change.index, *change_epochs(change)) == known
            and epochs <= set(change.isr)
            for command in self.proposals
            for change in command.partitions
        )

    # ---- what happens ----

    def heartbeat(self, process: Process) -> None:
        if process.cut_until > self.clock.monotonic():
            return
        image = self.machine.image
        if process.epoch < 0:
            if not process.registering:
                process.registering = True
                command = registration(
                    process.node_id, process.incarnation, process.directory, previous_broker_epoch=process.previous
                )
                self.previous.setdefault(command.incarnation_id, command.previous_broker_epoch)
                self.ask(command, lambda answer: self.registered(process, answer))
            return
        offset = self.committed - self.random.choice((0, 0, 1, 3)) - 1
        command = BrokerHeartbeat(process.node_id, process.epoch, offset, False, process.stopping)
        self.ask(command, lambda answer: self.beaten(process, answer))
        assert image is self.machine.image

    def registered(self, process: Process, answer: Any) -> None:
        process.registering = False
        if isinstance(answer, Registered):
            process.epoch = answer.broker_epoch

    def beaten(self, process: Process, answer: Any) -> None:
        if not isinstance(answer, HeartbeatAnswer):
            process.epoch = -1
            process.incarnation = self.number()  # the process ends, and another one starts
            process.stopping = False
            process.previous = -1
        elif answer.should_shut_down:
            if self.processes.get(process.node_id) is process:
                del self.processes[process.node_id]
                self.stopped[process.node_id] = process.epoch
        else:
            process.fenced = answer.is_fenced

    def start(self, node_id: int) -> None:
        previous = self.stopped.pop(node_id, -1)
        self.processes[node_id] = Process(node_id, self.number(), self.directories[node_id], previous)

    def kill(self, node_id: int) -> None:
        process = self.processes.pop(node_id, None)
        if process is not None and process.epoch >= 0 and self.random.random() < 0.5:
            self.ask(FenceBroker(node_id, process.epoch), lambda answer: None)

    def wipe(self, node_id: int) -> None:
        self.processes.pop(node_id, None)
        self.directories[node_id] = 2000 + self.number()
        self.stopped.pop(node_id, None)

    def create(self) -> None:
        number = self.number()
        copies = self.random.randint(1, 3)
        durability = self.random.choice(("stable", "stable", "page-cache"))
        configs = (("duramen.ack.durability", durability),)
        topic = NewTopic(f"t{number}", topic_id(number), self.random.choice((1, 3, 9)), copies, (), configs)
        self.ask(CreateTopics((topic,)), lambda answer: None)

    def propose(self) -> None:
        """Some leader finds others in sync, by what it knows; it may be late, come twice, or be of another process."""
        process = self.processes.get(self.random.choice(NODES))
        if process is not None and process.epoch >= 0:
            changes = []
            for (topic_id, index), known in self.found().items():
                if known.leader == process.node_id and self.random.random() < 0.5:
                    isr = [each for each in known.replicas if each == known.leader or self.random.random() < 0.7]
                    changes.append(self.change(topic_id, index, known, isr))
            self.proposals.append(AlterPartition(process.node_id, process.epoch, tuple(changes)))
        if self.proposals and self.random.random() < 0.8:
            self.ask(self.random.choice(self.proposals[-6:]), lambda answer: None)

    def propose_all(self) -> None:
        """Every leader finds everybody in sync."""
        image = self.machine.image
        for node_id in NODES:
            changes = [
                self.change(topic_id, index, known, known.replicas)
                for (topic_id, index), known in self.found().items()
                if known.leader == node_id and set(known.isr) != set(known.replicas)
            ]
            if changes and image.active_ids() == set(NODES):
                self.proposals.append(AlterPartition(node_id, image.brokers[node_id].epoch, tuple(changes)))
                self.ask(self.proposals[-1], lambda answer: None)

    def change(self, topic_id: bytes, index: int, known: PartitionImage, isr: Any) -> IsrChange:
        brokers = self.machine.image.brokers
        members = tuple((each, brokers[each].epoch) for each in isr if each in brokers)
        return IsrChange(topic_id, index, known.leader_epoch, members, known.partition_epoch)

    def administer(self) -> None:
        names = self.machine.image.names()
        name = self.random.choice(names) if names else "none"
        total = self.random.randint(1, 12)
        commands = (
            CreatePartitions((MorePartitions(name, total),)),
            DeleteTopics((TopicRef(name),)),
            ElectLeaders(0, None),
            change(name, ("retention.ms", 0, "5")),
            UnregisterBroker(self.random.choice(NODES)) if self.random.random() < 0.2 else ElectLeaders(0, None),
        )
        self.ask(self.random.choice(commands), lambda answer: None)

    def step(self) -> None:
        random = self.random
        node_id = random.choice(NODES)
        chance = random.random()
        if chance < 0.10:
            self.kill(node_id)
        elif chance < 0.25:
            if node_id not in self.processes:
                self.start(node_id)
        elif chance < 0.30 and node_id in self.processes:
            self.processes[node_id].stopping = True
        elif chance < 0.35 and node_id in self.processes:
            self.processes[node_id].cut_until = self.clock.monotonic() + random.choice((1, 5, 8))
        elif chance < 0.37:
            self.wipe(node_id)
        elif chance < 0.43:
            self.elect()
        elif chance < 0.55:
            self.create()
        elif chance < 0.65:
            self.administer()
        elif chance < 0.85:
            self.propose()
        self.pass_ms(random.choice((10, 100, 500, 1000)))

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        for process in list(self.processes.values()):
            self.heartbeat(process)

    def settle(self) -> None:
        """Everybody is there, and undisturbed."""
        self.elect()
        self.is_calm = True
        for _ in range(60):
            for node_id in NODES:
                if node_id not in self.processes:
                    self.start(node_id)
                self.processes[node_id].stopping = False
                self.processes[node_id].cut_until = 0.0
            self.pass_ms(500)
            self.propose_all()


def change_epochs(change: IsrChange) -> tuple[int, int]:
    return change.leader_epoch, change.partition_epoch


@pytest.mark.parametrize("seed", range(25))
def test_a_cluster_lives_and_settles(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "CHANGES_AT_ONCE", 3)
    monkeypatch.setattr(leaders, "LOOKS_AT_ONCE", 7)
    world = World(Random(seed))
    world.elect()
    for _ in range(STEPS):
        world.step()
    world.settle()
    image = world.machine.image
    assert image.active_ids() == set(NODES)
    assert {process.fenced for process in world.processes.values()} == {False}
    for topic in image.topics.values():
        for partition in topic.partitions:
            lost = [each for each in partition.isr if partition.directory_of(each) == LOST_DIRECTORY]
            assert image.leader(partition) == partition.leader
            assert partition.leader == -1 or set(partition.isr) == set(partition.replicas), "everybody is in sync again"
            assert (partition.leader == -1) == (lost == list(partition.isr)), "only lost copies have no leader"
    end = len(world.log)
    world.pass_ms(500)
    assert len(world.log) == end, "what is settled writes nothing"
    application = Application(MetadataImage())
    for offset, record in enumerate(world.log):
        application.take(record, offset)
    assert application.image.brokers == image.brokers
    assert application.image.topics == image.topics
