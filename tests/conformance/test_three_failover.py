"""Three nodes under load, each record on all of them: one stops, dies, or cannot write, and every client goes on."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks.kafka_peer import tool
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.cluster_load import QUIET, Load
from tests.worlds.controller_trio import ControllerTrio, ServedController
from tests.worlds.served_node import only_duramen

from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.client.protocol import produce
from duramen.errors import ErrorCode
from duramen.model import NO_TOPIC_ID, TopicPartition
from duramen.wire.batch import build_batch

pytestmark = [pytest.mark.timeout(240), only_duramen]

ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
WAIT_SECONDS = 40.0
SESSION_S = 3.0
BETWEEN_HEARTBEATS_S = 0.5
PARTITIONS = 6
SETTINGS = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
}


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerTrio]:
    trio = ControllerTrio(tmp_path_factory.mktemp("failover"), SETTINGS)
    trio.form()
    trio.launch()
    try:
        for node in trio.nodes:
            node.says("is ready")
        yield trio
    finally:
        trio.kill()


def addresses(trio: ControllerTrio) -> str:
    return ",".join(node.bootstrap for node in trio.nodes)


def waited(what: Callable[[], Any]) -> Any:
    """What it returns, as soon as that is true."""
    until = time.monotonic() + WAIT_SECONDS
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def described(trio: ControllerTrio, topic: str) -> dict[int, Any]:
    client = AdminClient({"bootstrap.servers": addresses(trio), **QUIET})
    return dict(client.list_topics(topic, timeout=20).topics[topic].partitions)


def leaders(trio: ControllerTrio, topic: str) -> list[int]:
    return [part.leader for _, part in sorted(described(trio, topic).items())]


def first_places(trio: ControllerTrio, topic: str) -> list[int]:
    return [part.replicas[0] for _, part in sorted(described(trio, topic).items())]


def is_whole(trio: ControllerTrio, topic: str) -> bool:
    return all(len(part.isrs) == 3 for part in described(trio, topic).values())


def create(trio: ControllerTrio, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": addresses(trio), **QUIET})
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(30)


def restart(trio: ControllerTrio, node: ServedController, topic: str) -> None:
    node.launch()
    waited(lambda: is_whole(trio, topic))


def test_each_node_is_stopped_and_started_in_turn_and_no_write_fails(trio: ControllerTrio) -> None:
    create(trio, "rolled")
    with Load(addresses(trio), "rolled") as load:
        load.goes_on()
        for node in trio.nodes:
            began = time.monotonic()
            assert node.stop() == 0
            assert time.monotonic() - began < 20
            load.goes_on()
            restart(trio, node, "rolled")
    assert load.failed == []
    assert all("broker-not-handed-over" not in node.log() for node in trio.nodes)
    load.check(addresses(trio))


@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_tool_gets_leaders_back_to_their_first_places(trio: ControllerTrio) -> None:
    assert leaders(trio, "rolled") != first_places(trio, "rolled")
    node = next(node for node in trio.nodes if node.id != trio.look().leader.leader_id)
    everything = ("--election-type", "preferred", "--all-topic-partitions")
    told = tool(ELECTION, "--bootstrap-server", node.bootstrap, *everything, timeout=90)
    assert "Successfully completed leader election (PREFERRED) for partitions" in told.stdout
    assert leaders(trio, "rolled") == first_places(trio, "rolled")


class Member:
    """Of the group `pair`; what it has seen is committed five times a second."""

    def __init__(self, trio: ControllerTrio, topic: str, seen: list[tuple[int, int]]) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": addresses(trio),
                "group.id": "pair",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                **QUIET,
            }
        )
        self.consumer.subscribe([topic])
        self.seen = seen

    def read(self) -> None:
        for message in self.consumer.consume(200, 0.1):
            if message.error() is None:
                self.seen.append((message.partition(), message.offset()))


def test_a_group_and_a_producer_go_on_when_leader_coordinator_and_controller_die(trio: ControllerTrio) -> None:
    create(trio, "killed", 4)
    seen: list[tuple[int, int]] = []
    members = [Member(trio, "killed", seen) for _ in range(2)]
    with Load(addresses(trio), "killed") as load:
        load.goes_on()

        def both_read() -> bool:
            for member in members:
                member.read()
            return len(seen) > 200 and all(len(member.consumer.assignment()) == 2 for member in members)

        waited(both_read)
        dead = trio.node(trio.leader().leader_id)
        dead.kill()
        assert load.goes_on() < WAIT_SECONDS
        other = Producer({"bootstrap.servers": addresses(trio), "enable.idempotence": True, **QUIET})
        refused: list[Any] = []
        other.produce("killed", b"-1", b"other", on_delivery=lambda error, _: refused.append(error))
        assert other.flush(30) == 0
        assert refused == [None]
        before = len(seen)
        waited(lambda: both_read() and len(seen) > before + 200)
        restart(trio, dead, "killed")
    assert load.failed == []
    load.check(addresses(trio))
    count = len(load.acknowledged) + 1
    waited(lambda: both_read() and len(set(seen)) >= count)
    for member in members:
        member.read()
        member.consumer.close()
    assert len(set(seen)) == count
    # What was read and not committed yet at the death may come twice, and no more than that.
    assert len(seen) - count < 1000
    again = Member(trio, "killed", [])
    until = time.monotonic() + 2
    while time.monotonic() < until:
        again.read()
    again.consumer.close()
    assert again.seen == [], "all of it was committed"


def produced(connection: BlockingConnection, tp: TopicPartition, acks: int, count: int) -> None:
    """Send so many requests."""
    for number in range(count):
        batch = build_batch([(b"-1", b"-%d" % (number + 1), (), 0)])
        wanted, highest = produce.request(tp, batch, acks, NO_TOPIC_ID, 5000)
        connection.send(produce.PRODUCE, wanted, time.monotonic() + 5, highest)


def test_a_leader_that_slept_acknowledges_nothing_when_it_wakes(trio: ControllerTrio) -> None:
    for topic in ("slept", "slept-1"):
        create(trio, topic, 6)
        waited(lambda topic=topic: is_whole(trio, topic))
    active = trio.leader().leader_id
    stopped = next(node for node in trio.nodes if node.id != active)
    index = leaders(trio, "slept").index(stopped.id)
    assert stopped.process is not None
    connections = [
        BlockingConnection("127.0.0.1", stopped.port, "slept", time.monotonic() + 5, MAX_FRAME_BYTES) for _ in range(2)
    ]
    with Load(addresses(trio), "slept") as load, Load(addresses(trio), "slept-1", acks="1") as one:
        load.goes_on()
        one.goes_on()
        try:
            stopped.process.send_signal(signal.SIGSTOP)
            slept = time.monotonic()
            for connection, acks in zip(connections, (1, -1), strict=True):
                produced(connection, TopicPartition("slept", index), acks, 10)
            waited(lambda: stopped.id not in leaders(trio, "slept") + leaders(trio, "slept-1"))
            assert time.monotonic() - slept > SESSION_S - BETWEEN_HEARTBEATS_S - 0.1
            load.goes_on()
            one.goes_on()
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        for connection in connections:
            for _ in range(10):
                answer = connection.receive(time.monotonic() + 30)
                code = answer.responses[0].partition_responses[0].error_code
                assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER, answer
            connection.close()
        waited(lambda: is_whole(trio, "slept") and is_whole(trio, "slept-1"))
        load.goes_on()
        one.goes_on()
    assert load.failed == one.failed == []
    assert "lease-renewed" in stopped.log()
    load.check(addresses(trio))
    one.check(addresses(trio), but_until=slept + 1.0)  # what no follower had when it was stopped


def test_a_node_that_cannot_write_ends_and_others_lead(trio: ControllerTrio) -> None:
    create(trio, "broken")
    lame = trio.node(next(node.id for node in trio.nodes if node.id != trio.leader().leader_id))
    with Load(addresses(trio), "broken") as load:
        load.goes_on()
        assert lame.process is not None
        _, most = resource.prlimit(lame.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(lame.process.pid, resource.RLIMIT_FSIZE, (0, most))  # every write fails with EFBIG
        began = time.monotonic()
        waited(lambda: lame.id not in leaders(trio, "broken"))
        assert time.monotonic() - began < 15
        load.goes_on()
        assert lame.ends() == 1
        load.goes_on()
    assert load.failed == []
    load.check(addresses(trio))
