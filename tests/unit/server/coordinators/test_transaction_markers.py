"""Markers reach every partition of a decided transaction, wherever it is led and whatever its leader answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.worlds.broker_world import Agenda

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from duramen.machines.transaction.commands import MarkersAbandoned, MarkersWritten, WriteMarkers
from duramen.model import OFFSETS_TOPIC, TopicPartition
from duramen.partition.replica import transactional_writes
from duramen.server.coordinators.transaction_markers import AT_ONCE, MarkerErrand, MarkerSender

PRODUCER = ProducerEpoch(7, 3)
HERE, THERE = 1, 2
Done = Callable[[KafkaError | None], None]


class Host:
    def __init__(self) -> None:
        self.failed: KafkaError | None = None
        self.commands: list[Any] = []

    def submit(self, command: Any, on_reply: Callable[[Any], None]) -> None:
        self.commands.append(command)


class Coordinator:
    def __init__(self, epoch: int = 5) -> None:
        self.host = Host()
        self.epoch = epoch


class LedPartition:
    """Takes markers; `done` of those that wait."""

    def __init__(self) -> None:
        self.answer: KafkaError | None = None
        self.is_ordered = False
        self.holds = False
        self.taken: list[tuple[Any, ...]] = []
        self.held: list[Done] = []

    def append_marker(
        self,
        producer: ProducerEpoch,
        commit: bool,
        epoch: int,
        version: int,
        now_ms: int,
        done: Done,
        *,
        is_ordered: bool = False,
    ) -> None:
        self.taken.append((producer, commit, epoch, version))
        self.is_ordered = is_ordered
        if self.holds:
            self.held.append(done)
        else:
            done(self.answer)


class Nodes:
    """This node and another one, with the partitions that they lead."""

    def __init__(self) -> None:
        self.clock = Agenda()
        self.image = MetadataImage()
        for node_id in (HERE, THERE):
            self.image.brokers[node_id] = BrokerImage(node_id, 1, b"", ())
        self.store: Any = SimpleNamespace(partitions={})
        self.sent: list[tuple[int, MarkerErrand, Callable[[dict[TopicPartition, ErrorCode]], None]]] = []
        self.offsets: list[tuple[int, Done]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.is_ordered = False
        self.order_asked = 0
        self.sender = MarkerSender(
            self.clock, self.store, lambda: self.image, HERE, self, lambda: self, self.report, self.keeps_order
        )
        self.coordinator: Any = Coordinator()

    def keeps_order(self, coordinator: Any, partitions: Iterable[TopicPartition]) -> bool:
        self.order_asked += 1
        return self.is_ordered

    def report(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def topic(self, name: str, *leaders: int) -> list[LedPartition]:
        """A topic whose partitions have these leaders."""
        topic = TopicImage(name, name.encode().ljust(16, b"-"))
        self.image.topics[name] = topic
        made = []
        for index, leader in enumerate(leaders):
            topic.partitions.append(PartitionImage(leader, 0, 0, (leader,), (leader,)))
            made.append(LedPartition())
            if leader == HERE:
                self.store.partitions[TopicPartition(name, index)] = made[-1]
        return made

    def move(self, name: str, index: int, leader: int) -> None:
        partitions = self.image.topics[name].partitions
        partitions[index] = partitions[index]._replace(leader=leader)

    def write_markers(self, node_id: int, marker: MarkerErrand, done: Callable[[Any], None]) -> None:
        self.sent.append((node_id, marker, done))

    def end_transaction(
        self, index: int, producer: ProducerEpoch, commit: bool, epoch: int, version: int, done: Done
    ) -> None:
        self.offsets.append((index, done))

    def start(self, *partitions: TopicPartition, commit: bool = True, version: int = 0, decided_ms: int = 9) -> None:
        effect = WriteMarkers("id", PRODUCER, commit, partitions, version, decided_ms)
        self.sender.start(self.coordinator, effect)

    def run(self, ms: int = 0) -> None:
        """Everything that is due within so many ms."""
        end = self.clock.now_ms + ms
        while True:
            while self.clock.ready:
                self.clock.ready.pop(0)()
            timers = self.clock.timers
            if not timers or self.clock.monotonic() + (end - self.clock.now_ms) / 1000 < timers[0][0]:
                break
            due, _, timer = timers.pop(0)
            timers.sort(key=lambda each: each[:2])
            self.clock.now_ms += max(0, int((due - self.clock.monotonic()) * 1000 + 0.5))
            if timer.callback is not None:
                timer.callback()
        self.clock.now_ms = end

    @property
    def written(self) -> set[TopicPartition]:
        """What the machine was told of."""
        told = [each for each in self.coordinator.host.commands if isinstance(each, MarkersWritten)]
        assert all((each.transactional_id, each.producer, each.decided_ms) == ("id", PRODUCER, 9) for each in told)
        found = [tp for each in told for tp in each.partitions]
        assert len(found) == len(set(found)), "nothing is told twice"
        return set(found)


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    def append_marker(partition: LedPartition, *what: Any, **how: Any) -> None:
        partition.append_marker(*what, **how)

    monkeypatch.setattr(transactional_writes, "append_marker", append_marker)
    return Nodes()


@pytest.mark.parametrize("commit", [True, False])
def test_what_is_led_here_is_written_at_once(nodes: Nodes, commit: bool) -> None:
    first, second = nodes.topic("t", HERE, HERE)
    nodes.start(T0, T1, commit=commit, version=2)
    assert first.taken == second.taken == [(PRODUCER, commit, 5, 2)]
    assert nodes.written == {T0, T1}
    assert nodes.sender.waiting == 0
    assert nodes.sender.written == 2


@pytest.mark.parametrize("is_ordered", [True, False])
def test_the_end_waits_for_no_commit_where_its_record_is_not_there_without_the_markers(
    nodes: Nodes, is_ordered: bool
) -> None:
    nodes.is_ordered = is_ordered
    first, second = nodes.topic("t", HERE, HERE)
    nodes.start(T0, T1)
    assert (first.is_ordered, second.is_ordered) == (is_ordered, is_ordered)
    assert nodes.order_asked == 1 + is_ordered, "again behind the markers"
    assert nodes.written == {T0, T1}


def test_what_is_led_elsewhere_is_sent_there_and_offsets_go_through_their_coordinator(nodes: Nodes) -> None:
    nodes.topic("t", HERE, THERE)
    nodes.topic(OFFSETS_TOPIC, HERE)
    offsets = TopicPartition(OFFSETS_TOPIC, 0)
    nodes.start(T0, T1, offsets)
    ((node_id, marker, done),) = nodes.sent
    assert (node_id, marker) == (THERE, MarkerErrand(PRODUCER, True, 5, 0, (T1,)))
    ((index, offsets_done),) = nodes.offsets
    assert index == 0
    assert nodes.written == set()
    offsets_done(None)
    assert nodes.written == {T0, offsets}
    assert nodes.sender.waiting == 1
    done({T1: ErrorCode.NONE})
    assert nodes.written == {T0, T1, offsets}
    assert nodes.sender.waiting == 0


@pytest.mark.parametrize(
    "code",
    [
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NOT_LEADER_OR_FOLLOWER",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "REQUEST_TIMED_OUT",
        "KAFKA_STORAGE_ERROR",
        "COORDINATOR_LOAD_IN_PROGRESS",
    ],
)
def test_a_partition_that_refuses_for_a_while_is_tried_again(nodes: Nodes, code: str) -> None:
    (partition,) = nodes.topic("t", HERE)
    partition.answer = KafkaError(ErrorCode[code], "not now")
    nodes.start(T0)
    nodes.run(500)
    assert nodes.written == set()
    assert 3 < len(partition.taken) < 10, "later and later"
    partition.answer = None
    nodes.run(1_000)
    assert nodes.written == {T0}


def test_another_try_goes_to_the_leader_of_then(nodes: Nodes) -> None:
    nodes.topic("t", THERE)
    nodes.start(T0)
    nodes.move("t", 0, HERE)
    partition = nodes.store.partitions[T0] = LedPartition()
    ((_, _, done),) = nodes.sent
    done({})  # no reply came
    nodes.run(100)
    assert len(nodes.sent) == 1
    assert len(partition.taken) == 1
    assert nodes.written == {T0}


def test_a_partition_without_a_leader_waits_for_one(nodes: Nodes) -> None:
    nodes.topic("t", HERE)
    nodes.image.brokers[HERE] = nodes.image.brokers[HERE]._replace(fenced=True)
    nodes.start(T0)
    nodes.run(200)
    assert nodes.written == set()
    nodes.image.brokers[HERE] = nodes.image.brokers[HERE]._replace(fenced=False)
    nodes.run(1_000)
    assert nodes.written == {T0}


def test_what_waits_for_long_is_named_once(nodes: Nodes) -> None:
    (partition,) = nodes.topic("t", HERE)
    partition.answer = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "one of two")
    nodes.start(T0)
    nodes.run(9_000)
    assert nodes.events == []
    nodes.run(60_000)
    ((event, fields),) = nodes.events
    assert event == "transaction-markers-waiting"
    assert (fields["partition"], fields["error"]) == ("t-0", "NOT_ENOUGH_REPLICAS")
    assert nodes.sender.oldest_seconds > 60


def test_a_deleted_topic_holds_no_transaction_open(nodes: Nodes) -> None:
    (partition,) = nodes.topic("t", HERE)
    partition.answer = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "one of two")
    nodes.start(T0, TopicPartition("gone", 0))
    assert nodes.written == {TopicPartition("gone", 0)}
    del nodes.image.topics["t"]
    nodes.run(1_000)
    assert nodes.written == {TopicPartition("gone", 0), T0}


@pytest.mark.parametrize("code", ["INVALID_PRODUCER_EPOCH", "UNSUPPORTED_FOR_MESSAGE_FORMAT"])
def test_where_a_later_epoch_is_known_nothing_is_left_to_end(nodes: Nodes, code: str) -> None:
    (partition,) = nodes.topic("t", HERE)
    partition.answer = KafkaError(ErrorCode[code], "over")
    nodes.start(T0)
    assert nodes.written == {T0}


def test_a_coordinator_that_another_one_has_replaced_gives_up(nodes: Nodes) -> None:
    first, second = nodes.topic("t", HERE, HERE)
    second.holds = True
    first.answer = KafkaError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, "epoch 6 is known")
    nodes.start(T0)
    assert nodes.coordinator.host.commands == [MarkersAbandoned("id", PRODUCER, 9)]
    nodes.run(5_000)
    assert len(first.taken) == 1
    assert nodes.sender.waiting == 0
    first.answer = None
    nodes.start(T0)
    assert nodes.written == {T0}, "asked for again, for it was not replaced after all"


def test_a_coordinator_that_ended_writes_no_more(nodes: Nodes) -> None:
    (partition,) = nodes.topic("t", HERE)
    partition.answer = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")
    nodes.start(T0)
    nodes.coordinator.host.failed = KafkaError(ErrorCode.NOT_COORDINATOR, "moved, too")
    before = len(partition.taken)
    nodes.run(5_000)
    assert len(partition.taken) == before
    assert nodes.sender.waiting == 0
    assert nodes.coordinator.host.commands == []


def test_markers_that_are_on_their_way_are_not_written_twice(nodes: Nodes) -> None:
    (partition,) = nodes.topic("t", HERE)
    partition.holds = True
    nodes.start(T0)
    nodes.start(T0)
    assert len(partition.taken) == 1
    partition.held.pop()(None)
    assert nodes.written == {T0}
    nodes.start(T0, decided_ms=10)  # the next transaction of the first generation has the same producer
    assert len(partition.taken) == 2


def test_a_decision_takes_the_place_of_the_one_before(nodes: Nodes) -> None:
    """The coordinator has it as complete; what comes of the older markers is nobody's any more."""
    (partition,) = nodes.topic("t", HERE)
    partition.holds = True
    nodes.start(T0)
    nodes.start(T0, decided_ms=10)
    partition.held.pop(0)(None)
    assert nodes.coordinator.host.commands == []
    partition.held.pop(0)(None)
    assert nodes.coordinator.host.commands == [MarkersWritten("id", PRODUCER, (T0,), 10)]


def test_thousands_of_partitions_take_turns(nodes: Nodes) -> None:
    made = nodes.topic("t", *[HERE] * 1_000)
    nodes.start(*(TopicPartition("t", index) for index in range(1_000)))
    assert sum(len(each.taken) for each in made) == AT_ONCE
    nodes.run()
    assert len(nodes.written) == 1_000


def test_one_that_waits_holds_up_no_other(nodes: Nodes) -> None:
    first, _ = nodes.topic("t", HERE, THERE)
    first.holds = True
    nodes.start(T0, T1)
    ((_, _, done),) = nodes.sent
    done({T1: ErrorCode.NONE})
    assert nodes.written == {T1}
    first.held.pop()(None)
    assert nodes.written == {T0, T1}
