"""Three nodes under load, each record on all of them: one stops, dies, or cannot write, and every client goes on."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from benchmarks.kafka_peer import tool
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.async_load import AsyncLoad
from tests.worlds.cluster_load import QUIET, Load
from tests.worlds.controller_trio import ControllerTrio, ServedController, waited
from tests.worlds.kafka_classes import with_all_tools
from tests.worlds.served_node import only_duramen

from duramen.client import EARLIEST, LATEST, Cluster
from duramen.client.aio import AsyncCluster
from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.client.protocol import produce
from duramen.errors import ErrorCode
from duramen.model import NO_TOPIC_ID, TopicPartition
from duramen.wire.batch import batches, build_batch, records

pytestmark = [pytest.mark.timeout(300), only_duramen]

ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
WAIT_SECONDS = 60.0
PARTITIONS = 6
SETTINGS = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "auto.create.topics.enable": "false",  # by who looks at a topic that his node does not know yet
    "auto.leader.rebalance.enable": "false",  # a tool does it here
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerTrio]:
    with ControllerTrio.formed(tmp_path_factory.mktemp("failover"), SETTINGS) as trio:
        yield trio


@pytest.fixture
def trio(nodes: ControllerTrio) -> ControllerTrio:
    """Whole, whatever the test before has left."""
    nodes.whole()
    return nodes


def described(trio: ControllerTrio, topic: str) -> dict[int, Any]:
    client = AdminClient({"bootstrap.servers": trio.bootstrap, **QUIET})
    return dict(client.list_topics(topic, timeout=20).topics[topic].partitions)


def leaders(trio: ControllerTrio, topic: str) -> list[int]:
    return [part.leader for _, part in sorted(described(trio, topic).items())]


def first_places(trio: ControllerTrio, topic: str) -> list[int]:
    return [part.replicas[0] for _, part in sorted(described(trio, topic).items())]


def create(trio: ControllerTrio, topic: str, partitions: int = PARTITIONS) -> None:
    """It is there when every node knows it and all of its replicas are in sync."""
    admin = AdminClient({"bootstrap.servers": trio.bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(WAIT_SECONDS)
    trio.whole()
    waited(lambda: len(described(trio, topic)) == partitions, f"{topic} is not there")


def passive(trio: ControllerTrio) -> ServedController:
    """One that is not the active controller."""
    active = trio.leader().leader_id
    return next(node for node in trio.nodes if node.id != active)


def test_each_node_is_stopped_and_started_in_turn_and_no_write_fails(trio: ControllerTrio) -> None:
    create(trio, "rolled")
    with Load(trio.bootstrap, "rolled") as load:
        load.goes_on()
        for node in trio.nodes:
            assert node.stop() == 0
            load.goes_on()
            trio.whole()
    assert load.failed == []
    assert all("broker-not-handed-over" not in node.whole_log() for node in trio.nodes)
    load.check(trio.bootstrap)


@with_all_tools
@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_tool_gets_leaders_back_to_their_first_places(trio: ControllerTrio) -> None:
    create(trio, "moved")
    node = passive(trio)
    node.kill()
    waited(lambda: node.id not in leaders(trio, "moved"), "nobody took over")
    trio.whole()
    assert leaders(trio, "moved") != first_places(trio, "moved")
    everything = ("--election-type", "preferred", "--all-topic-partitions")
    told = tool(ELECTION, "--bootstrap-server", node.bootstrap, *everything, timeout=150)
    assert "Successfully completed leader election (PREFERRED) for partitions" in told.stdout
    waited(lambda: leaders(trio, "moved") == first_places(trio, "moved"), "leaders are not back")


def test_truncation_and_the_last_transaction_id_outlive_their_leaders(trio: ControllerTrio) -> None:
    """Each leader is killed right after its answer: the log begins where that said, and ids go on from the last."""
    admin = AdminClient({"bootstrap.servers": trio.bootstrap, **QUIET})
    numbered = NewTopic("numbered", 1, 3, config={"duramen.txid": "application"})
    admin.create_topics([numbered])["numbered"].result(WAIT_SECONDS)
    trio.whole()
    producer = Producer({"bootstrap.servers": trio.bootstrap, "enable.idempotence": True, "linger.ms": 200, **QUIET})
    told: list[int | None] = []

    def write(*txids: int) -> list[int | None]:
        told.clear()
        for txid in txids:
            producer.produce(
                "numbered",
                b"%d" % txid,
                timestamp=txid,
                on_delivery=lambda error, _: told.append(error and error.code()),
            )
        assert producer.flush(WAIT_SECONDS) == 0
        return told

    def truncate_and_kill(offset: int) -> int:
        leader = leaders(trio, "numbered")[0]
        asks = AdminClient(
            {"bootstrap.servers": trio.bootstrap, **QUIET}
        )  # one that knows the leader of before, does not
        (deleted,) = asks.delete_records([ConfluentPartition("numbered", 0, offset)]).values()
        start = deleted.result(WAIT_SECONDS).low_watermark
        trio.node(leader).kill()
        waited(lambda: leaders(trio, "numbered")[0] not in (-1, leader), "nobody took over")
        return int(start)

    def read() -> list[tuple[int, bytes]]:
        with Cluster(trio.bootstrap) as cluster:
            tp = TopicPartition("numbered", 0)
            end = cluster.list_offsets({tp: LATEST})[tp].offset
            start = cluster.list_offsets({tp: EARLIEST})[tp].offset
            found: list[tuple[int, bytes]] = []
            while start < end:
                fetched = cluster.fetch(tp, start)
                for at, header in batches(fetched.data):
                    rows = records(fetched.data[at:], header, max_bytes=1 << 20)
                    found += [(row.offset, row.value or b"") for row in rows if row.offset >= start]
                start = fetched.next_offset
            return found

    assert write(5, 6, 7, 8) == [None] * 4
    assert write(9) == [None]
    assert truncate_and_kill(2) == 2
    assert read() == [(2, b"7"), (3, b"8"), (4, b"9")]
    assert write(8) == [KafkaError.INVALID_TIMESTAMP]
    assert write(9) == [None]
    trio.whole()
    assert truncate_and_kill(-1) == 5
    assert read() == [(5, b"9")]
    assert write(8) == [KafkaError.INVALID_TIMESTAMP]
    assert write(10) == [None]
    trio.whole()


class Member:
    """Of the group `pair`; what it has seen is committed five times a second."""

    def __init__(self, trio: ControllerTrio, topic: str, seen: list[tuple[int, int]]) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": trio.bootstrap,
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

    def committed(self, topic: str, partitions: range) -> dict[int, int]:
        """The group's offsets; negative where there is none."""
        wanted = [ConfluentPartition(topic, partition) for partition in partitions]
        return {part.partition: part.offset for part in self.consumer.committed(wanted, timeout=WAIT_SECONDS)}

    def ends(self, topic: str, partitions: range) -> dict[int, int]:
        wanted = (ConfluentPartition(topic, partition) for partition in partitions)
        return {part.partition: self.consumer.get_watermark_offsets(part, WAIT_SECONDS)[1] for part in wanted}


def test_a_group_and_a_producer_go_on_when_leader_coordinator_and_controller_die(trio: ControllerTrio) -> None:
    create(trio, "killed", 4)
    partitions = range(4)
    seen: list[tuple[int, int]] = []
    members = [Member(trio, "killed", seen) for _ in range(2)]
    with Load(trio.bootstrap, "killed") as load:
        load.goes_on()

        def both_read() -> bool:
            for member in members:
                member.read()
            return len(seen) > 200 and all(len(member.consumer.assignment()) == 2 for member in members)

        waited(both_read, "the group did not begin")
        waited(
            lambda: both_read() and min(members[0].committed("killed", partitions).values()) > 0, "nothing is committed"
        )
        committed = members[0].committed("killed", partitions)
        dead = trio.node(trio.leader().leader_id)
        assert dead.id in leaders(trio, "killed")
        dead.kill()
        load.goes_on()
        other = Producer({"bootstrap.servers": trio.bootstrap, "enable.idempotence": True, **QUIET})
        refused: list[Any] = []
        other.produce("killed", b"-1", b"other", on_delivery=lambda error, _: refused.append(error))
        assert other.flush(WAIT_SECONDS) == 0
        assert refused == [None]
        before = len(seen)
        waited(lambda: both_read() and len(seen) > before + 200, "the group does not go on")
        trio.whole()
    assert load.failed == []
    load.check(trio.bootstrap)
    count = len(load.acknowledged) + 1
    waited(lambda: both_read() and len(set(seen)) >= count, "the group does not come to the end")
    assert len(set(seen)) == count
    # What was read and not committed yet at the death may come twice, and no more than that.
    twice = {place for place, times in Counter(seen).items() if times > 1}
    assert all(offset >= committed[partition] for partition, offset in twice)
    for member in members:
        member.consumer.close()
    again = Member(trio, "killed", [])
    assert again.committed("killed", partitions) == again.ends("killed", partitions), "not all of it was committed"
    again.consumer.close()


def connected(node: ServedController) -> closing[BlockingConnection]:
    until = time.monotonic() + WAIT_SECONDS
    return closing(BlockingConnection("127.0.0.1", node.port, "slept", until, MAX_FRAME_BYTES))


def produced(connection: BlockingConnection, tp: TopicPartition, acks: int, count: int) -> None:
    """Send so many requests."""
    for number in range(count):
        batch = build_batch([(b"-1", b"-%d" % (number + 1), (), 0)])
        wanted, highest = produce.request(tp, [batch], acks, NO_TOPIC_ID, 30_000)
        connection.send(produce.PRODUCE, wanted, time.monotonic() + 30, highest)


def test_a_leader_that_slept_acknowledges_nothing_when_it_wakes(trio: ControllerTrio) -> None:
    for topic in ("slept", "slept-1"):
        create(trio, topic)
    stopped = passive(trio)
    index = leaders(trio, "slept").index(stopped.id)
    assert stopped.process is not None
    logs = {node.id: len(node.whole_log()) for node in trio.nodes}
    with (
        connected(stopped) as first,
        connected(stopped) as second,
        Load(trio.bootstrap, "slept") as load,
        Load(trio.bootstrap, "slept-1", acks="1") as one,
    ):
        load.goes_on()
        one.goes_on()
        try:
            stopped.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED)
            for connection, acks in ((first, 1), (second, -1)):
                produced(connection, TopicPartition("slept", index), acks, 10)
            waited(
                lambda: stopped.id not in leaders(trio, "slept") + leaders(trio, "slept-1"), "nobody led in its place"
            )
            elected = time.monotonic()
            load.goes_on()
            one.goes_on()
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        for connection in (first, second):
            for _ in range(10):
                answer = connection.receive(time.monotonic() + WAIT_SECONDS)
                code = answer.responses[0].partition_responses[0].error_code
                assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER, answer
        trio.whole()
        load.goes_on()
        one.goes_on()
    assert load.failed == one.failed == []
    stopped.says("lease-renewed", logs[stopped.id])
    # Its session had to run out: a process that sleeps is not dead.
    assert all(f"broker-died node={stopped.id}" not in node.whole_log()[logs[node.id] :] for node in trio.nodes)
    load.check(trio.bootstrap)
    one.check(trio.bootstrap, but_until=elected)  # what no follower had when it was stopped


def test_a_node_that_cannot_write_ends_and_others_lead(trio: ControllerTrio) -> None:
    create(trio, "broken")
    lame = passive(trio)
    assert lame.id in leaders(trio, "broken")
    with Load(trio.bootstrap, "broken") as load:
        load.goes_on()
        assert lame.process is not None
        _, most = resource.prlimit(lame.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(lame.process.pid, resource.RLIMIT_FSIZE, (0, most))  # every write fails with EFBIG
        waited(lambda: lame.id not in leaders(trio, "broken"), "it leads on")
        load.goes_on()
        assert lame.ends() == 1
        load.goes_on()
    assert load.failed == []
    trio.whole()  # kafka-python leaves a socket open at an address that refuses
    load.check(trio.bootstrap)


def test_the_asyncio_client_goes_on_when_leaders_stop_die_and_sleep(trio: ControllerTrio) -> None:
    create(trio, "awaited", 2)

    async def lives() -> None:
        plain, known = TopicPartition("awaited", 0), TopicPartition("awaited", 1)
        async with AsyncCluster(trio.bootstrap, timeout_s=WAIT_SECONDS, request_timeout_s=3) as cluster:
            async with AsyncLoad(cluster, plain, known) as load:
                await load.goes_on()
                assert await asyncio.to_thread(trio.node(await cluster.leader(known)).stop) == 0
                await load.goes_on()
                await asyncio.to_thread(trio.whole)
                trio.node(await cluster.leader(known)).kill()
                await load.goes_on()
                await asyncio.to_thread(trio.whole)
                process = trio.node(await cluster.leader(plain)).process
                assert process is not None
                process.send_signal(signal.SIGSTOP)
                try:
                    await load.goes_on()
                finally:
                    process.send_signal(signal.SIGCONT)
                await asyncio.to_thread(trio.whole)
                await load.goes_on()
            assert load.unknown
            await load.check()

    asyncio.run(lives())
