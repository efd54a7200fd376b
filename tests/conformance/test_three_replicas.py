"""Partitions of three copies on three real nodes: what clients and Kafka's tools see while nodes stop, die and return.

One cluster for all. The first group of it begins while a node is dead, where that test comes first.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count, islice
from typing import Any

import pytest
from benchmarks.kafka_peer import DUMP_LOG, TOOL_FLAGS, TOPICS, java_command, tool
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from tests.worlds.controller_trio import ControllerTrio, ServedController
from tests.worlds.kafka_classes import with_all_tools
from tests.worlds.served_node import only_duramen

pytestmark = [pytest.mark.timeout(180), only_duramen]

VERIFICATION = "org.apache.kafka.tools.ReplicaVerificationTool"
WAIT_SECONDS = 40.0
QUIET = {"log_level": 0}
"""Clients that outlive a test look for its nodes, and say so."""
SETTINGS = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "200",
}
PARTITIONS = 3
NOTHING_SECONDS = 3.0
"""For so long a producer waits for an acknowledgement that nobody gives."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerTrio]:
    trio = ControllerTrio(tmp_path_factory.mktemp("replicas"), SETTINGS)
    trio.form()
    trio.launch()
    try:
        for node in trio.nodes:
            node.says("is ready")
        yield trio
    finally:
        trio.kill()


def waited(what: Callable[[], Any], why: str = "") -> Any:
    """What it returns, as soon as that is true."""
    until = time.monotonic() + WAIT_SECONDS
    while not (found := what()):
        assert time.monotonic() < until, why
        time.sleep(0.05)
    return found


def all_of(trio: ControllerTrio) -> str:
    return ",".join(node.bootstrap for node in trio.nodes)


def create(trio: ControllerTrio, topic: str, partitions: int = PARTITIONS, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient({"bootstrap.servers": all_of(trio), **QUIET})
    admin.create_topics([NewTopic(topic, partitions, 3, config=settings)])[topic].result(30)


def in_sync_are(trio: ControllerTrio, topic: str, *nodes: int) -> None:
    """Wait until these are, in all partitions, as one of the nodes tells."""
    admin = AdminClient({"bootstrap.servers": all_of(trio), **QUIET})

    def are() -> bool:
        partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions
        return bool(partitions) and all(set(each.isrs) == set(nodes) for each in partitions.values())

    waited(are, f"{topic}: {nodes}")


class Writer:
    """A producer, and what it was told: the value of each (partition, offset), or the error of each value."""

    def __init__(self, trio: ControllerTrio, **settings: Any) -> None:
        self.stored: dict[tuple[int, int], bytes] = {}
        self.failed: dict[bytes, KafkaError] = {}
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self._producer = Producer({"bootstrap.servers": all_of(trio), "acks": "all", **QUIET, **named})

    def _told(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failed[message.value()] = error
        else:
            self.stored[message.partition(), message.offset()] = message.value()

    def send(self, topic: str, value: bytes, partition: int) -> None:
        self._producer.produce(topic, value, partition=partition, on_delivery=self._told)
        self._producer.poll(0)

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def flush(self) -> Writer:
        assert self._producer.flush(WAIT_SECONDS) == 0
        return self


def write(
    trio: ControllerTrio, topic: str, values: list[bytes], partitions: int = PARTITIONS, **settings: Any
) -> Writer:
    writer = Writer(trio, **settings)
    for number, value in enumerate(values):
        writer.send(topic, value, number % partitions)
    return writer.flush()


def read(trio: ControllerTrio, topic: str, number: int, group: str = "") -> list[bytes]:
    """So many values, in any order between partitions; without a group by asking the partitions alone."""
    settings = {
        "bootstrap.servers": all_of(trio),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **QUIET,
    }
    consumer = Consumer({"group.id": group or "none", **settings})
    if group:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[bytes] = []
    until = time.monotonic() + WAIT_SECONDS
    while len(found) < number and time.monotonic() < until:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
    if group:
        consumer.commit(asynchronous=False)
    consumer.close()
    return found


def segments(node: ServedController, topic: str, partition: int) -> dict[str, bytes]:
    """What is in the files of one copy, by their names."""
    return {path.name: path.read_bytes() for path in (node.data / f"{topic}-{partition}").glob("*.log")}


def copies_are_equal(trio: ControllerTrio, topic: str, partitions: int = PARTITIONS) -> None:
    """Wait until they are, byte by byte, from where the last of them begins: files that expired are deleted later."""

    def equal(partition: int) -> bool:
        copies = [segments(node, topic, partition) for node in trio.nodes]
        begin = max(min(copy) for copy in copies)
        first, *others = ({name: copy[name] for name in copy if name >= begin} for copy in copies)
        return any(first.values()) and all(other == first for other in others)

    for partition in range(partitions):
        waited(partial(equal, partition), f"{topic}-{partition}")


@with_all_tools
@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_tools_find_three_copies_that_are_the_same(trio: ControllerTrio) -> None:
    create(trio, "same")
    written = write(trio, "same", [b"%d" % number * 50 for number in range(600)], enable_idempotence=True)
    assert not written.failed
    bootstrap = ("--bootstrap-server", trio.node(2).bootstrap)
    verification = (
        VERIFICATION,
        "--broker-list",
        all_of(trio),
        "--topics-include",
        "same",
        "--report-interval-ms",
        "500",
    )
    with subprocess.Popen(
        java_command(*verification, "--time", "-2", flags=TOOL_FLAGS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as verifying:
        try:
            assert (
                tool(TOPICS, *bootstrap, "--describe", "--under-replicated-partitions", timeout=90).stdout.strip() == ""
            )
            logs = [str(node.data / "same-0" / "00000000000000000000.log") for node in trio.nodes]
            dump = tool(DUMP_LOG, "--files", ",".join(logs), timeout=90).stdout
            said: list[str] = []
            until = time.monotonic() + WAIT_SECONDS
            for line in verifying.stdout or ():
                said.append(line)
                if "max lag is 0 for" in line or time.monotonic() > until:
                    break
        finally:
            verifying.kill()
    told = "".join(said)
    assert re.search(r"max lag is 0 for partition same-\d at offset 200 among 3 partitions", told), told
    assert "doesn't match" not in told
    _, *dumped = re.split(r"Dumping .*\n", dump)
    assert dumped[0] == dumped[1] == dumped[2]
    assert re.search(r"baseOffset: 0 .* partitionLeaderEpoch: 0 .* crc: \d+ isvalid: true", dumped[0]), dump
    copies_are_equal(trio, "same")


def test_a_node_that_was_away_while_segments_expired_is_in_sync_again(trio: ControllerTrio) -> None:
    create(trio, "expired", 1, segment_bytes=str(1 << 20), retention_bytes=str(2 << 20))
    assert not write(trio, "expired", [b"first"], 1).failed
    away = trio.node(3)
    assert away.stop() == 0
    in_sync_are(trio, "expired", 1, 2)
    assert not write(trio, "expired", [b"%06d" % number * 500 for number in range(2000)], 1).failed
    asking = Consumer({"bootstrap.servers": all_of(trio), "group.id": "none", **QUIET})
    start = waited(lambda: asking.get_watermark_offsets(TopicPartition("expired", 0), 20)[0], "nothing expires")
    asking.close()
    away.launch()
    in_sync_are(trio, "expired", 1, 2, 3)
    assert not write(trio, "expired", [b"last"], 1).failed
    copies_are_equal(trio, "expired", 1)
    assert int(min(segments(away, "expired", 0))[:20]) >= start
    away.says("replica-begun-anew topic=expired partition=0")


def test_one_node_dies_then_another_one(trio: ControllerTrio) -> None:
    """`min.insync.replicas` says who may write; reading, making topics and beginning groups need one leader."""
    create(trio, "all", min_insync_replicas="3")
    create(trio, "two")
    values = [b"%d" % number for number in range(300)]
    assert not write(trio, "all", values).failed
    assert sorted(read(trio, "all", 300)) == sorted(values)  # also the followers know by now what is committed
    trio.node(2).kill()
    in_sync_are(trio, "all", 1, 3)
    trio.node(1).says("peer-fenced node=2")
    refused = write(trio, "all", [b"one too few"], retries=0).failed
    assert [error.name() for error in refused.values()] == ["NOT_ENOUGH_REPLICAS"]
    assert not write(trio, "all", [b"a leader's own"], acks=1).failed
    assert sorted(read(trio, "all", 300)) == sorted(values)
    assert sorted(read(trio, "all", 300, "begins")) == sorted(values)
    # By hand, and by producing to it: three copies, for which three brokers are registered.
    create(trio, "made")
    assert not write(trio, "made-by-producing", [b"%d" % number for number in range(5)], 1).failed
    for topic in ("made", "made-by-producing", "__consumer_offsets"):
        in_sync_are(trio, topic, 1, 3)

    assert not write(trio, "two", values).failed
    trio.node(3).kill()
    waiting = Writer(trio, enable_idempotence=True)
    waiting.send("two", b"waits", 0)
    until = time.monotonic() + NOTHING_SECONDS
    while time.monotonic() < until:
        waiting.poll(0.1)
    assert not waiting.stored
    assert not waiting.failed
    trio.node(3).launch()
    assert not waiting.flush().failed
    assert not write(trio, "two", [b"goes on"] * 3).failed
    trio.node(2).launch()
    for topic in ("all", "two", "made", "made-by-producing", "__consumer_offsets"):
        in_sync_are(trio, topic, 1, 2, 3)
    assert not write(trio, "all", [b"again"]).failed
    assert sorted(read(trio, "all", 302)) == sorted([*values, b"a leader's own", b"again"])
    assert sorted(read(trio, "two", 304)) == sorted([*values, b"waits", *[b"goes on"] * 3])
    for topic in ("all", "two"):
        copies_are_equal(trio, topic)


def test_all_three_are_killed_at_once_under_load(trio: ControllerTrio) -> None:
    """What was acknowledged is there, once and in order; of page-cache topics too, for the machine lives on."""
    topics = {"stable": "killed-stable", "page-cache": "killed-page-cache"}
    for durability, topic in topics.items():
        create(trio, topic, duramen_ack_durability=durability)
    writers = {topic: Writer(trio, enable_idempotence=True, linger_ms=2) for topic in topics.values()}
    numbers = count()

    def write_on(more: int) -> None:
        """Until so many more are acknowledged in each topic."""
        enough = {topic: len(writer.stored) + more for topic, writer in writers.items()}

        def enough_stored() -> bool:
            for number in islice(numbers, 50):
                for topic, writer in writers.items():
                    writer.send(topic, b"%08d" % number, number % PARTITIONS)
            return all(len(writer.stored) >= enough[topic] for topic, writer in writers.items())

        waited(enough_stored, "no acknowledgements")

    write_on(500)
    trio.kill()
    trio.launch()
    write_on(500)
    sent = next(numbers)
    for topic, writer in writers.items():
        assert not writer.flush().failed
        assert len(writer.stored) == sent
        in_sync_are(trio, topic, 1, 2, 3)
        found = read_all(trio, topic, sent)
        assert found == writer.stored, "each where its producer was told that it is, and nothing else"
        for index in range(PARTITIONS):
            in_order = [value for (partition, _), value in sorted(found.items()) if partition == index]
            assert in_order == [b"%08d" % number for number in range(index, sent, PARTITIONS)]
        copies_are_equal(trio, topic)


def read_all(trio: ControllerTrio, topic: str, number: int) -> dict[tuple[int, int], bytes]:
    """All so many values of a topic by partition and offset; another client reads than the one that wrote."""
    with closing(KafkaConsumer(bootstrap_servers=all_of(trio).split(","), consumer_timeout_ms=20_000)) as consumer:
        partitions = [PythonPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        assert sum(consumer.end_offsets(partitions).values()) == number
        found: dict[tuple[int, int], bytes] = {}
        while len(found) < number:
            message = next(consumer)
            found[message.partition, message.offset] = message.value
        return found
