"""Groups of the consumer protocol (KIP-848), with confluent-kafka: shared, killed, static, by expression."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.controller_trio import ControllerTrio
from tests.worlds.served_node import Served, only_duramen

Names = Callable[[str], str]
SECONDS = 60
SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "200",
}
"""So that nobody waits for the 45 seconds of a session."""

KILLED = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": "consumer"})
consumer.subscribe([sys.argv[3]])
while True:
    consumer.poll(0.1)
    print(len(consumer.assignment()), flush=True)
"""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("groups"), SETTINGS)
    served.start()
    yield served
    served.kill()


@cache  # a future dies with the client that made it
def admin_of(node: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})


def create(node: Served, topic: str, partitions: int) -> None:
    admin_of(node).create_topics([NewTopic(topic, partitions, 1)])[topic].result(SECONDS)


def fill(node: Any, topic: str, partitions: int, each: int) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for number in range(partitions * each):
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(SECONDS) == 0


@contextmanager
def member(node: Any, group: str, *topics: str, **config: object) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )
    consumer.subscribe(list(topics))
    try:
        yield consumer
    finally:
        consumer.close()


def until(consumers: list[Consumer], wanted: Callable[[], bool], what: str) -> list[bytes]:
    """Poll all of them until it is so; the values of the records that came."""
    values: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while not wanted():
        assert time.monotonic() < deadline, what
        for consumer in consumers:
            for message in consumer.consume(500, 0.05):
                assert message.error() is None, message.error()
                values.append(message.value())
    return values


def counts(*consumers: Consumer) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def test_members_share_the_partitions_as_they_come_and_go(quick: Served, name: Names) -> None:
    topic, group = name("t"), name("g")
    create(quick, topic, 6)
    with ExitStack() as stack:
        first = stack.enter_context(member(quick, group, topic))
        until([first], lambda: counts(first) == [6], "the first has all")
        second = stack.enter_context(member(quick, group, topic))
        until([first, second], lambda: counts(first, second) == [3, 3], "two have three each")
        with member(quick, group, topic) as third:
            until([first, second, third], lambda: counts(first, second, third) == [2, 2, 2], "three have two each")
        until([first, second], lambda: counts(first, second) == [3, 3], "two have three each again")
        held = [(each.topic, each.partition) for consumer in (first, second) for each in consumer.assignment()]
        assert sorted(held) == [(topic, index) for index in range(6)]


def test_every_record_is_read_and_commits_are_kept(quick: Served, name: Names) -> None:
    topic, group = name("t"), name("g")
    create(quick, topic, 4)
    positions = [TopicPartition(topic, index) for index in range(4)]
    with member(quick, group, topic) as first, member(quick, group, topic) as second:
        until([first, second], lambda: counts(first, second) == [2, 2], "two have two each")
        fill(quick, topic, 4, 50)
        deadline = time.monotonic() + SECONDS
        while [each.offset for each in first.committed(positions, SECONDS)] != [50] * 4:
            assert time.monotonic() < deadline
            for consumer in (first, second):
                if consumer.consume(500, 0.1):
                    consumer.commit(asynchronous=False)
    fill(quick, topic, 4, 1)
    values: list[bytes] = []
    with member(quick, group, topic) as again:
        values += until([again], lambda: counts(again) == [4], "it has all")
        deadline = time.monotonic() + SECONDS
        while len(values) < 4:
            assert time.monotonic() < deadline
            values += [message.value() for message in again.consume(10, 0.2)]
    assert sorted(values) == [b"0", b"1", b"2", b"3"], "it went on where the others had been"


def test_a_killed_member_is_replaced_when_its_session_ends(quick: Served, name: Names) -> None:
    topic, group = name("t"), name("g")
    create(quick, topic, 4)
    with member(quick, group, topic) as stays:
        until([stays], lambda: counts(stays) == [4], "the first has all")
        arguments = [sys.executable, "-c", KILLED, quick.bootstrap, group, topic]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as victim:
            until([stays], lambda: counts(stays) == [2], "it gave up half")
            assert victim.stdout is not None
            deadline = time.monotonic() + SECONDS
            while victim.stdout.readline().strip() != "2":
                stays.poll(0)
                assert time.monotonic() < deadline
            victim.send_signal(signal.SIGKILL)
        until([stays], lambda: counts(stays) == [4], "it has all again")


def test_a_static_member_comes_back_to_what_it_had(quick: Served, name: Names) -> None:
    topic, group = name("t"), name("g")
    create(quick, topic, 4)
    with member(quick, group, topic) as stays:
        with member(quick, group, topic, **{"group.instance.id": "i"}) as static:
            until([stays, static], lambda: counts(stays, static) == [2, 2], "two have two each")
            had = sorted(each.partition for each in static.assignment())
        with member(quick, group, topic, **{"group.instance.id": "i"}) as back:
            until([stays, back], lambda: counts(back) == [2], "it has two at once")
            assert sorted(each.partition for each in back.assignment()) == had
            assert counts(stays) == [2], "the other one kept its own"


def test_an_expression_takes_topics_as_they_come(quick: Served, name: Names) -> None:
    stem = name("expression")
    create(quick, f"{stem}-a", 2)
    with member(quick, name("g"), f"^{stem}-.*") as consumer:
        until([consumer], lambda: counts(consumer) == [2], "it has the first topic")
        create(quick, f"{stem}-b", 3)
        until([consumer], lambda: counts(consumer) == [5], "and the second one")


def test_groups_are_described_and_listed_by_type(quick: Served, name: Names) -> None:
    topic, group = name("t"), name("g")
    create(quick, topic, 2)
    admin = admin_of(quick)
    with member(quick, group, topic) as consumer:
        until([consumer], lambda: counts(consumer) == [2], "it has all")
        described = admin.describe_consumer_groups([group])[group].result(SECONDS)
        assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
        (only,) = described.members
        assert len(only.assignment.topic_partitions) == len(only.target_assignment.topic_partitions) == 2
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(SECONDS).valid
        assert group in [each.group_id for each in listed]
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(SECONDS).valid
        assert group not in [each.group_id for each in listed]
    admin.delete_consumer_groups([group])[group].result(SECONDS)
    listed = admin.list_consumer_groups().result(SECONDS).valid
    assert group not in [each.group_id for each in listed]


def test_a_classic_group_is_taken_up_and_down_while_it_reads(quick: Served, name: Names) -> None:
    """Member by member, with the assignor that librdkafka names first; its cooperative-sticky one writes words of its
    own into assignments, which Kafka refuses to lose, too."""
    topic, group = name("t"), name("g")
    create(quick, topic, 6)
    old = {"group.protocol": "classic", "heartbeat.interval.ms": 300, "session.timeout.ms": 6000}
    with ExitStack() as rest:
        with ExitStack() as classics:
            first = classics.enter_context(member(quick, group, topic, **old))
            second = classics.enter_context(member(quick, group, topic, **old))
            until([first, second], lambda: counts(first, second) == [3, 3], "two classic members")
            third = rest.enter_context(member(quick, group, topic))
            until([first, second, third], lambda: counts(first, second, third) == [2, 2, 2], "and a new one")
            described = admin_of(quick).describe_consumer_groups([group])[group].result(SECONDS)
            assert described.type == ConsumerGroupType.CONSUMER
        until([third], lambda: counts(third) == [6], "it is alone")
        again = rest.enter_context(member(quick, group, topic, **old))
        until([third, again], lambda: counts(third, again) == [3, 3], "and a classic one")
        third.close()
        until([again], lambda: counts(again) == [6], "which is alone")
        described = admin_of(quick).describe_consumer_groups([group])[group].result(SECONDS)
        assert described.type == ConsumerGroupType.CLASSIC


def test_a_node_that_is_killed_goes_on_with_its_groups(serve: Callable[..., Served], name: Names) -> None:
    node = serve(**SETTINGS)
    topic, group = name("t"), name("g")
    create(node, topic, 4)
    with member(node, group, topic) as first, member(node, group, topic) as second:
        until([first, second], lambda: counts(first, second) == [2, 2], "two have two each")
        node.kill()
        node.start()
        fill(node, topic, 4, 10)
        values: list[bytes] = []
        deadline = time.monotonic() + SECONDS
        while len(values) < 40:
            assert time.monotonic() < deadline
            for consumer in (first, second):
                values += [message.value() for message in consumer.consume(50, 0.1) if message.error() is None]
        assert len(set(values)) == 40
        assert counts(first, second) == [2, 2]


@only_duramen
def test_three_nodes_of_which_the_coordinator_is_killed(tmp_path: Path, name: Names) -> None:
    copies = {"default.replication.factor": "3", "offsets.topic.replication.factor": "3", "min.insync.replicas": "2"}
    trio = ControllerTrio(tmp_path, {**SETTINGS, **copies, "offsets.topic.num.partitions": "3"})
    trio.form()
    try:
        trio.whole()
        everywhere = SimpleNamespace(bootstrap=",".join(node.bootstrap for node in trio.nodes))
        topic, group = name("t"), name("g")
        admin = AdminClient({"bootstrap.servers": everywhere.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, 6, 3)])[topic].result(SECONDS)
        with member(everywhere, group, topic) as first, member(everywhere, group, topic) as second:
            until([first, second], lambda: counts(first, second) == [3, 3], "two have three each")
            coordinator = admin.describe_consumer_groups([group])[group].result(SECONDS).coordinator.id
            next(node for node in trio.nodes if node.id == coordinator).kill()
            fill(everywhere, topic, 6, 10)
            values: list[bytes] = []
            deadline = time.monotonic() + SECONDS
            while len(set(values)) < 60:
                assert time.monotonic() < deadline, len(values)
                for consumer in (first, second):
                    values += [each.value() for each in consumer.consume(50, 0.1) if each.error() is None]
            until([first, second], lambda: counts(first, second) == [3, 3], "they have what they had")
            # The first admin client waits for the coordinator that it knows.
            other = AdminClient({"bootstrap.servers": everywhere.bootstrap, "log_level": 0})
            described = other.describe_consumer_groups([group])[group].result(SECONDS)
            assert described.coordinator.id != coordinator
            assert len(described.members) == 2
    finally:
        trio.kill()
