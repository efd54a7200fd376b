"""Open and decided transactions, and groups of both protocols, in directories that change hands with Apache Kafka.

Each test is a JVM or two and waits for a time-out: `make conformance-kafka-tools` runs them.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from benchmarks.kafka_peer import KafkaPeer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.left_behind import STATE_PARTITIONS, Opened, all_transactions, check_transactions, groups
from tests.worlds.served_node import Served

pytestmark = [
    pytest.mark.skipif(os.environ.get("DURAMEN_ALL_TOOLS") != "1", reason="DURAMEN_ALL_TOOLS=1 runs every tool"),
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(300),
]

SETTINGS = {
    "log.retention.ms": "-1",  # the records are of an older day
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
NO_MARKERS = """
import sys
import time
from duramen.server.coordinators.transaction_markers import MarkerSender
MarkerSender.start = lambda self, coordinator, effect: None
from duramen.cli.main import main
sys.exit(main())
"""


class WithoutMarkers(Served):
    """A node that decides transactions and gets no further, as one that is stopped in time."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", NO_MARKERS, *super().command()[1:]]


def kafka_in(folder: Path) -> KafkaPeer:
    kafka = KafkaPeer(folder)
    kafka.configure()
    properties = folder / "server.properties"
    given = properties.read_text() + "".join(f"{key}={value}\n" for key, value in SETTINGS.items())
    properties.write_text(given)
    return kafka


def test_what_kafka_left_goes_on_here(tmp_path: Path) -> None:
    kafka = kafka_in(tmp_path / "kafka")
    kafka.format()
    kafka.start()
    try:
        with Opened(kafka.port) as broker:
            in_groups = groups(broker)
            left = all_transactions(broker)
            for each in left:
                if each.decision is not None:
                    each.prepare_by_record(broker)
    finally:
        kafka.stop()
    node = Served(tmp_path, {"node.id": "1", **SETTINGS})
    shutil.copytree(kafka.directory / "data", node.data)
    node.start()
    try:
        with Opened(node.port) as opened:
            check_transactions(opened, left)
            for group in in_groups:
                group.goes_on(opened)
    finally:
        print(node.log())
        assert node.stop() == 0


def test_what_was_left_here_goes_on_in_kafka(tmp_path: Path) -> None:
    node = WithoutMarkers(tmp_path, {"node.id": "1", **SETTINGS})
    node.start()
    try:
        with Opened(node.port) as broker:
            in_groups = groups(broker)
            left = all_transactions(broker)
            for each in left:
                if each.decision is not None:
                    each.prepare_by_request(broker)
    finally:
        print(node.log())
        assert node.stop() == 0
    kafka = kafka_in(tmp_path / "kafka")
    shutil.copytree(node.data, kafka.directory / "data")
    kafka.start()
    try:
        with Opened(kafka.port) as opened:
            check_transactions(opened, left)
            for group in in_groups:
                group.goes_on(opened)
    finally:
        kafka.stop()


LIVE = "live"
RECORDS = 100
SECONDS = 60.0


class Clients:
    """Members of each protocol, of both in one group, and a transactional producer, all librdkafka's, that live on."""

    def __init__(self, bootstrap: str) -> None:
        common = {"bootstrap.servers": bootstrap, "log_level": 0, "error_cb": lambda error: None}
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(LIVE, 2, 1)])[LIVE].result(SECONDS)
        self.producer = Producer({**common, "enable.idempotence": True})
        self.written = 0
        # Its re-bootstrap would dismiss the only broker, which it then goes on to ask.
        own = {"transactional.id": "live", "transaction.timeout.ms": 600_000, "metadata.recovery.strategy": "none"}
        self.transactional = Producer({**common, **own})
        reading = {**common, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        classic: dict[str, object] = {"partition.assignment.strategy": "range"}
        modern: dict[str, object] = {"group.protocol": "consumer"}
        groups = {"classic": [{**classic, "group.instance.id": "one"}], "consumer": [modern], "both": [classic, modern]}
        self.groups: list[list[Consumer]] = []
        for group, members in groups.items():
            self.groups.append([])
            for member in members:
                self.groups[-1].append(Consumer({**reading, "group.id": f"live-{group}", **member}))
                self.groups[-1][-1].subscribe([LIVE])
                self.settle(self.groups[-1])
        self.seen: list[list[bytes]] = [[] for _ in self.groups]

    @staticmethod
    def settle(members: list[Consumer]) -> None:
        """Until they share the partitions out."""
        deadline = time.monotonic() + SECONDS
        while [len(each.assignment()) for each in members] != [2 // len(members)] * len(members):
            assert time.monotonic() < deadline, [each.assignment() for each in members]
            for each in members:
                assert each.poll(0.1) is None

    def write(self) -> None:
        for _ in range(RECORDS):
            self.producer.produce(LIVE, b"%d" % self.written)
            self.written += 1
        assert self.producer.flush(SECONDS) == 0

    def begin(self) -> None:
        self.transactional.init_transactions(SECONDS)
        self.transactional.begin_transaction()
        for partition in range(2):
            self.transactional.produce(LIVE, b"in a transaction", partition=partition)
        assert self.transactional.flush(SECONDS) == 0

    def end(self) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self.transactional.commit_transaction(SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def read(self, count: int) -> None:
        for members, seen in zip(self.groups, self.seen, strict=True):
            deadline = time.monotonic() + SECONDS
            while len(seen) < count:
                assert time.monotonic() < deadline, seen[-10:]
                for member in members:
                    found = [each for each in member.consume(count, timeout=0.5) if each.error() is None]
                    seen += [each.value() or b"" for each in found]
                    if found:
                        member.commit(asynchronous=False)

    def check(self) -> None:
        """Each record once, and each group's positions behind them all."""
        wanted = sorted([b"%d" % number for number in range(self.written)] + [b"in a transaction"] * 2)
        for members, seen in zip(self.groups, self.seen, strict=True):
            assert sorted(seen) == wanted
            self.settle(members)
        places = [TopicPartition(LIVE, index) for index in range(2)]
        where = [[each.offset for each in members[0].committed(places, SECONDS)] for members in self.groups]
        assert where == [where[0]] * len(where)
        assert sum(where[0]) >= len(wanted)

    def close(self) -> None:
        for members in self.groups:
            for each in members:
                each.close()


def test_clients_live_on_when_kafkas_directory_is_opened_here_and_back(tmp_path: Path) -> None:
    """Kafka, then a node, then Kafka again, behind one address."""
    kafka = kafka_in(tmp_path / "kafka")
    kafka.format()
    kafka.start()
    clients = Clients(kafka.bootstrap)
    try:
        clients.write()
        clients.read(RECORDS)
        clients.begin()
    finally:
        kafka.stop()
    node = Served(tmp_path, {"node.id": "1", **SETTINGS})
    node.port, node.bootstrap = kafka.port, kafka.bootstrap
    shutil.copytree(kafka.directory / "data", node.data)
    node.start()
    try:
        clients.end()
        clients.write()
        clients.read(2 * RECORDS + 2)
        clients.check()
    finally:
        assert node.stop() == 0
    shutil.rmtree(kafka.directory / "data")
    shutil.copytree(node.data, kafka.directory / "data")
    kafka.start()
    try:
        clients.write()
        clients.read(3 * RECORDS + 2)
        clients.check()
        clients.close()
    finally:
        kafka.stop()
