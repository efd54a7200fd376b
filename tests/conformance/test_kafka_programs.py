"""Kafka Streams, Connect and MirrorMaker 2 against a node that is killed while they work: each record once.

Each is a JVM for half a minute, and their jars are another 105 MB: `make conformance-kafka-programs` runs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from benchmarks.kafka_peer import QUIET, ROOT, PeerUnavailableError, collected, java
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_node import Served, free_port

POM = Path(__file__).parent / "programs_pom.xml"
LIBS = ROOT / ".cache" / "kafka-programs"
VERSION = "4.3.1"
WORD_COUNT = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
MIRROR = "org.apache.kafka.connect.mirror.MirrorMaker"
SECONDS = 120.0
KILLS = 3
WORDS = ("one", "two", "three", "four", "five", "six")

Start = Callable[..., "subprocess.Popen[bytes]"]
Serve = Callable[..., Served]

pytestmark = [
    pytest.mark.skipif(os.environ.get("DURAMEN_ALL_PROGRAMS") != "1", reason="make conformance-kafka-programs"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(CLASS, settings)`: run a program with these properties until the test ends."""
    try:
        jars = collected(POM, LIBS, VERSION, 300)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    running: list[subprocess.Popen[bytes]] = []

    def run(name: str, settings: dict[str, object]) -> subprocess.Popen[bytes]:
        properties = tmp_path / f"{len(running)}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [java(), "-Xmx512M", *QUIET, "-cp", f"{jars}{os.sep}*", name, str(properties)]
        with (tmp_path / f"{len(running)}.log").open("wb") as log:
            program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        running.append(program)
        return program

    yield run
    for program in running:
        program.terminate()
        try:
            program.wait(30)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def create(node: Served, *topics: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result(SECONDS)


def restart(node: Served) -> None:
    node.kill()
    node.start()


def until(found: Callable[[], object], wanted: object, seconds: float = SECONDS) -> None:
    """Ask until it is what is wanted; the assertion shows what it was at the end."""
    deadline = time.monotonic() + seconds
    while (got := found()) != wanted and time.monotonic() < deadline:
        time.sleep(1)
    assert got == wanted


class Lines:
    """Writes lines to a topic, as a producer that is not disturbed by a restart."""

    def __init__(self, node: Served, topic: str) -> None:
        self.topic = topic
        self.written: list[str] = []
        self.failed: list[object] = []
        config = {"enable.idempotence": True, "log_level": 0, "error_cb": lambda error: None}
        self.producer = Producer({"bootstrap.servers": node.bootstrap, **config})

    def write(self, lines: list[str]) -> None:
        for line in lines:
            self.producer.produce(self.topic, line, on_delivery=lambda error, _: error and self.failed.append(error))
            self.producer.poll(0)
        self.written += lines

    def flush(self) -> None:
        assert self.producer.flush(SECONDS) == 0
        assert self.failed == []


class Reading:
    """Everything of a topic so far, however often it is asked."""

    def __init__(self, node: Served, topic: str, partitions: int) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        config = {"group.id": "nobody", "log_level": 0, "error_cb": lambda error: None}
        self.consumer = Consumer({"bootstrap.servers": node.bootstrap, "enable.auto.commit": False, **config})
        self.consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])

    def more(self) -> list[tuple[bytes, bytes]]:
        while messages := self.consumer.consume(1000, timeout=2):
            self.records += [(m.key() or b"", m.value() or b"") for m in messages if m.error() is None]
        return self.records


def test_streams_counts_every_word_once(serve: Serve, start: Start, tmp_path: Path) -> None:
    """Its group, repartition topic, changelog, and the records that it deletes behind itself."""
    node = serve(**{"offsets.topic.num.partitions": "4"})
    create(node, "streams-plaintext-input", "streams-wordcount-output")
    program = start(WORD_COUNT, {"bootstrap.servers": node.bootstrap, "state.dir": tmp_path / "state"})
    lines = Lines(node, "streams-plaintext-input")
    chance = Random(1)
    for _ in range(KILLS):
        lines.write([" ".join(chance.choices(WORDS, k=5)) for _ in range(1000)])
        time.sleep(6)
        restart(node)
    lines.flush()
    reading = Reading(node, "streams-wordcount-output", 2)
    counted = Counter(word for line in lines.written for word in line.split())
    until(lambda: {key.decode(): int.from_bytes(value, "big") for key, value in reading.more()}, dict(counted))
    assert program.poll() is None


def test_streams_counts_every_word_once_in_transactions(serve: Serve, start: Start, tmp_path: Path) -> None:
    """Exactly-once v2: counts, changelog and positions in one transaction, though node and program are killed."""
    node = serve(**{"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"})
    create(node, "streams-plaintext-input", "streams-wordcount-output")
    settings = {
        "bootstrap.servers": node.bootstrap,
        "state.dir": tmp_path / "state",
        "processing.guarantee": "exactly_once_v2",
        "consumer.session.timeout.ms": 6000,
        "statestore.cache.max.bytes": 0,
    }
    program = start(WORD_COUNT, settings)
    lines = Lines(node, "streams-plaintext-input")
    reading = Reading(node, "streams-wordcount-output", 2)
    chance = Random(1)
    for kill in ("node", "program"):
        lines.write([" ".join(chance.choices(WORDS, k=5)) for _ in range(1000)])
        before = len(reading.records)
        until(lambda: len(reading.more()) > before, True)  # noqa: B023 - asked at once
        lines.write([" ".join(chance.choices(WORDS, k=5)) for _ in range(1000)])
        if kill == "node":
            restart(node)
        else:
            program.kill()
            program.wait()
            program = start(WORD_COUNT, settings)
    lines.flush()
    counted = Counter(word for line in lines.written for word in line.split())
    until(lambda: {key.decode(): int.from_bytes(value, "big") for key, value in reading.more()}, dict(counted))
    for word, count in counted.items():
        shown = [int.from_bytes(value, "big") for key, value in reading.records if key.decode() == word]
        assert shown == list(range(1, count + 1)), "every count once, in order"
    assert program.poll() is None


class Worker:
    """A distributed worker of Connect: its three internal topics, its group, and its REST interface."""

    def __init__(self, node: Served, start: Start, folder: Path, **settings: object) -> None:
        port = free_port()
        (folder / "plugins").mkdir()
        self.url = f"http://127.0.0.1:{port}"
        kinds = ("offset", "config", "status")
        parts = ("key", "value")
        self.settings = {
            **{f"{kind}.storage.topic": f"connect-{kind}" for kind in kinds},
            **{f"{kind}.storage.replication.factor": 1 for kind in kinds},
            **{f"{part}.converter": "org.apache.kafka.connect.storage.StringConverter" for part in parts},
            "group.id": "connect",
            "offset.flush.interval.ms": 1000,
            "plugin.path": folder / "plugins",
            "bootstrap.servers": node.bootstrap,
            "listeners": self.url,
            **settings,
        }
        self.launch = start
        self.start()

    def start(self) -> None:
        self.program = self.launch(CONNECT, self.settings)
        until(lambda: isinstance(self.call("/connectors"), list), True)

    def call(self, path: str, body: object = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return json.load(reply)
        except OSError as error:
            return str(error)

    def add(self, name: str, **config: object) -> None:
        asked = {"name": name, "config": {"tasks.max": 1, **config}}
        until(lambda: isinstance(self.call("/connectors", asked), dict), True)


def source_of(file: Path) -> dict[str, object]:
    """A connector that writes the lines of a file to the topic `lines`."""
    topic = {"topic.creation.default.replication.factor": 1, "topic.creation.default.partitions": 1}
    return {"connector.class": "FileStreamSource", "file": str(file), "topic": "lines", **topic}


def test_connect_moves_every_line_once(serve: Serve, start: Start, tmp_path: Path) -> None:
    node = serve(**{"offsets.topic.num.partitions": "4"})
    source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
    source.touch()
    worker = Worker(node, start, tmp_path)
    worker.add("source", **source_of(source))
    worker.add("sink", **{"connector.class": "FileStreamSink", "file": str(sink), "topics": "lines"})
    for number in range(KILLS):
        with source.open("a") as file:
            file.writelines(f"{number} {line}\n" for line in range(2000))
        time.sleep(2)
        restart(node)
        time.sleep(5)
    until(lambda: sink.read_text() if sink.exists() else "", source.read_text())


def test_connect_writes_a_source_once_though_its_worker_is_killed(serve: Serve, start: Start, tmp_path: Path) -> None:
    """Exactly-once sources: records and the source's position in one transaction, a new task fences the old one."""
    node = serve(**{"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"})
    create(node, "lines", partitions=1)
    source = tmp_path / "in.txt"
    source.touch()
    exactly = {"exactly.once.source.support": "enabled", "session.timeout.ms": 6000, "heartbeat.interval.ms": 2000}
    worker = Worker(node, start, tmp_path, **exactly)
    often = {"transaction.boundary": "interval", "transaction.boundary.interval.ms": 200}
    worker.add("source", **source_of(source), **often, **{"exactly.once.support": "required"})
    copied = Reading(node, "lines", 1)
    written: list[str] = []
    for killed in ("worker", "node"):
        with source.open("a") as file:
            for part in range(20):
                lines = [f"{killed} {part} {line}" for line in range(200)]
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                written += lines
                if part == 9:
                    until(lambda: len(copied.more()) > len(written) - 2000, True)  # noqa: B023 - asked at once
                    if killed == "node":
                        restart(node)
                    else:
                        worker.program.kill()
                        worker.program.wait()
        if killed == "worker":
            worker.start()
    until(lambda: [value.decode() for _, value in copied.more()], written)


def mirrored(a: Served, b: Served) -> dict[str, object]:
    """MirrorMaker's settings for the topic `lines` of a, which becomes `a.lines` of b."""
    every = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "config.storage")
    copies = {f"{topic}.replication.factor": 1 for topic in (*every, "status.storage")}
    quick = {
        "emit.checkpoints.interval.seconds": 1,
        "sync.group.offsets.interval.seconds": 1,
        "refresh.topics.interval.seconds": 2,
        "refresh.groups.interval.seconds": 2,
        "offset.lag.max": 0,
    }
    clusters = {"clusters": "a, b", "a.bootstrap.servers": a.bootstrap, "b.bootstrap.servers": b.bootstrap}
    flow = {"a->b.enabled": "true", "b->a.enabled": "false", "a->b.topics": "lines", "replication.factor": 1}
    return {**clusters, **flow, **copies, **quick}


def test_mirror_maker_copies_records_and_positions(serve: Serve, start: Start) -> None:
    a, b = serve("a", **{"offsets.topic.num.partitions": "4"}), serve("b", **{"offsets.topic.num.partitions": "4"})
    create(a, "lines", partitions=1)
    start(MIRROR, {**mirrored(a, b), "sync.group.offsets.enabled": "true"})
    lines = Lines(a, "lines")
    lines.write([str(number) for number in range(1000)])
    lines.flush()
    until(lambda: "a.lines" in AdminClient({"bootstrap.servers": b.bootstrap}).list_topics(timeout=10).topics, True)
    for number, node in enumerate((a, b)):
        lines.write([f"{number} {line}" for line in range(1000)])
        restart(node)
        time.sleep(5)
    lines.flush()
    copied = Reading(b, "a.lines", 1)
    until(lambda: [value.decode() for _, value in copied.more()], lines.written)

    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
    group = Consumer({"bootstrap.servers": a.bootstrap, "group.id": "copied", **settings})
    group.commit(offsets=[TopicPartition("lines", 0, 3000)], asynchronous=False)
    moved = Consumer({"bootstrap.servers": b.bootstrap, "group.id": "copied", **settings})
    until(lambda: moved.committed([TopicPartition("a.lines", 0)], 10)[0].offset, 3000)
    group.close()
    moved.close()


def test_mirror_maker_copies_each_record_once(serve: Serve, start: Start) -> None:
    """Exactly-once sources: a record's copy and the place that was read to in one transaction; all three are killed."""
    few = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
    a, b = serve("a", **few), serve("b", **few)
    create(a, "lines", partitions=1)
    settings = {
        **mirrored(a, b),
        "b.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{free_port()}",
        "a->b.consumer.isolation.level": "read_committed",
        "b.session.timeout.ms": 6000,
        "b.heartbeat.interval.ms": 2000,
        "b.offset.flush.interval.ms": 500,
    }
    program = start(MIRROR, settings)
    lines = Lines(a, "lines")
    lines.write([str(number) for number in range(1000)])
    lines.flush()
    until(lambda: "a.lines" in AdminClient({"bootstrap.servers": b.bootstrap}).list_topics(timeout=10).topics, True)
    copied = Reading(b, "a.lines", 1)
    for killed in ("program", "a", "b", "program and b"):
        before = len(copied.more())
        lines.write([f"{killed} {line}" for line in range(1000)])
        until(lambda: len(copied.more()) > before, True)  # noqa: B023 - asked at once
        lines.write([f"{killed} more {line}" for line in range(1000)])
        if killed == "a":
            restart(a)
        if killed.endswith("b"):
            restart(b)
        if killed.startswith("program"):
            program.kill()
            program.wait()
            program = start(MIRROR, settings)
    lines.flush()
    until(lambda: [value.decode() for _, value in copied.more()], lines.written)
    assert program.poll() is None
