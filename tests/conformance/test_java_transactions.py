"""Java's transactional producer and consumer, in Kafka's own programs: input = committed output, also by kill -9."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.kafka_peer import PRODUCER_PERFORMANCE, TOOL_FLAGS, java_command, tool
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.controller_trio import ControllerTrio
from tests.worlds.served_node import Served, only_duramen

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
RECORDS = 400
EACH = 10
"""Records of a transaction."""
SECONDS = 90.0
ALL = os.environ.get("DURAMEN_ALL_TOOLS") == "1"
MODES = {
    "one partition": (),
    "group": ("--group-mode",),
    "group with its generation": ("--group-mode", "--use-group-metadata"),
}
Serve = Callable[..., Served]
Start = Callable[..., "Copier"]
heavy = pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs every tool")
pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300)]


def create(node: Served, *topics: str, copies: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, 1, copies) for topic in topics]).values():
        future.result(SECONDS)


def fill(node: Served, topic: str) -> list[bytes]:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    written = [b"%d" % number for number in range(RECORDS)]
    for value in written:
        producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0
    return written


def read(node: Served, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """All that may be seen, in order."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0,
         "enable.auto.commit": False, "isolation.level": isolation}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = []
    while (message := consumer.poll(SECONDS)) is not None and message.error() is None:
        seen.append(message.value() or b"")
    consumer.close()
    return seen


class Copier:
    """Kafka's program for its own system tests: it copies a topic to another one, and the positions with it."""

    def __init__(self, node: Served, source: str, target: str, log: Path, *words: str) -> None:
        self.log = log
        self.number = 0
        places = ("--broker-list", node.bootstrap, "--input-topic", source, "--output-topic", target)
        who = ("--input-partition", "0", "--consumer-group", f"of-{target}", "--transactional-id", f"copier-{target}")
        size = ("--transaction-size", str(EACH), "--enable-random-aborts")
        self.command = java_command(COPIER, *places, *who, *size, *words, flags=TOOL_FLAGS)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def copied(self) -> int:
        """Records of transactions that it has committed in this life."""
        found = re.findall(r'"totalProcessed":(\d+)', self.log.read_text())
        return int(found[-1]) if found else 0

    def until(self, copied: int) -> None:
        deadline = time.monotonic() + SECONDS
        while self.copied() < copied:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.02)

    def end(self) -> None:
        assert self.process is not None
        assert self.process.wait(SECONDS) == 0, self.log.read_text()[-4000:]

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def copier(tmp_path: Path) -> Iterator[Start]:
    started: list[Copier] = []

    def start(node: Served, source: str, target: str, *words: str) -> Copier:
        started.append(Copier(node, source, target, tmp_path / f"{len(started)}.log", *words))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_kafkas_copier_commits_each_record_once(node: Served, name: Callable[[str], str], copier: Start) -> None:
    source, target = name("source"), name("target")
    create(node, source, target)
    written = fill(node, source)
    copier(node, source, target, *MODES["group with its generation"]).end()
    assert read(node, target) == written
    assert len(read(node, target, "read_uncommitted")) > RECORDS, "some were aborted"


@heavy
@pytest.mark.parametrize("mode", MODES)
def test_a_node_killed_under_kafkas_copier_keeps_each_record_once(serve: Serve, copier: Start, mode: str) -> None:
    node = serve()
    create(node, "source", "target")
    written = fill(node, "source")
    working = copier(node, "source", "target", *MODES[mode])
    working.until(EACH * 3)
    node.kill()
    node.start()
    working.end()
    assert read(node, "target") == written


@heavy
@pytest.mark.parametrize("mode", MODES)
def test_a_killed_copier_is_followed_by_another_life(
    node: Served, name: Callable[[str], str], copier: Start, mode: str
) -> None:
    source, target = name("source"), name("target")
    create(node, source, target)
    written = fill(node, source)
    first = copier(node, source, target, *MODES[mode])
    first.until(EACH * 3)
    first.kill()
    second = copier(node, source, target, *MODES[mode])
    second.end()
    assert read(node, target) == written


@heavy
@only_duramen
def test_three_nodes_die_in_turn_under_kafkas_copier(tmp_path: Path, copier: Start) -> None:
    """Leaders, the group's coordinator and the transaction's move; the copier is told one node and finds the others."""
    log, offsets = "transaction.state.log", "offsets.topic"
    counts = {f"{log}.replication.factor": "3", f"{log}.min.isr": "2", f"{offsets}.replication.factor": "3"}
    few = {f"{log}.num.partitions": "3", f"{offsets}.num.partitions": "3"}
    trio = ControllerTrio(tmp_path / "trio", {**counts, **few, "min.insync.replicas": "2"})
    trio.form()
    try:
        trio.whole()
        first = trio.node(1)
        create(first, "source", "target", copies=3)
        written = fill(first, "source")
        working = copier(first, "source", "target", *MODES["group with its generation"])
        for number in (3, 2, 1):
            working.until(EACH * (2 + 8 * (3 - number)))
            trio.node(number).kill()
            trio.node(number).start()
            trio.whole()
        working.end()
        assert read(first, "target") == written
    finally:
        trio.kill()


@heavy
def test_java_producer_writes_and_java_consumer_reads_transactions(node: Served, name: Callable[[str], str]) -> None:
    topic = name("performance")
    create(node, topic)
    load = ("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "2000")
    which = ("--transactional-id", name("performance"), "--transaction-duration-ms", "100")
    address = ("--bootstrap-server", node.bootstrap)
    sent = tool(PRODUCER_PERFORMANCE, *address, *load, *which, timeout=SECONDS)
    assert "2000 records sent" in sent.stdout
    aborted = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": name("aborted")})
    aborted.init_transactions(SECONDS)
    aborted.begin_transaction()
    aborted.produce(topic, b"aborted")
    assert aborted.flush(SECONDS) == 0
    aborted.abort_transaction(SECONDS)
    aborted.begin_transaction()
    aborted.produce(topic, b"open")
    assert aborted.flush(SECONDS) == 0
    reading = ("--topic", topic, "--from-beginning", "--timeout-ms", "8000", "--isolation-level")
    for isolation, count in (("read_committed", 2000), ("read_uncommitted", 2002)):
        got = tool(CONSOLE_CONSUMER, *address, *reading, isolation, timeout=SECONDS, check=False)
        assert len(got.stdout.split()) == count
    aborted.abort_transaction(SECONDS)
