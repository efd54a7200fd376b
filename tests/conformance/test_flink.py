"""A Flink job that copies exactly once: Flink and node are killed, readers of committed data have each record once.

Between the two stands a relay that knows the moment of a commit: a checkpoint's records are flushed before it (Flink
pre-commits), and only once it is complete does EndTxn follow. `make conformance-kafka-programs` runs it: 83 MB of jars.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from benchmarks.kafka_peer import QUIET, ROOT, PeerUnavailableError, collected, java
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_node import Served, free_port

POM = Path(__file__).parent / "flink_pom.xml"
JOB = Path(__file__).parent / "FlinkCopy.java"
LIBS = ROOT / ".cache" / "flink"
VERSION = "2.2.0"
FLAGS = (
    "-Xmx768M",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
SECONDS = 120.0
END_TXN = 26
FROM, TO = "from", "to"
PARTITIONS = 2

Serve = Callable[..., Served]

pytestmark = [
    pytest.mark.skipif(os.environ.get("DURAMEN_ALL_PROGRAMS") != "1", reason="make conformance-kafka-programs"),
    pytest.mark.timeout(600),
]


class Relay:
    """Passes on what clients and node say; at a request of `key` it calls `strike` first, once, where that is set."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.strike: Callable[[], None] | None = None
        self.after = False
        """Strike when the request has been passed on and answered, and keep the answer."""
        self.struck = threading.Event()
        self.target = 0
        self.port = free_port()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket() as node, suppress(OSError):
            node.connect(("127.0.0.1", self.target))
            back = threading.Thread(target=self._answers, args=(node, client), daemon=True)
            back.start()
            while True:
                size = self._exactly(client, 4)
                frame = self._exactly(client, struct.unpack(">i", size)[0])
                strike = self.strike if struct.unpack_from(">h", frame)[0] == self.key else None
                if strike is None:
                    node.sendall(size + frame)
                    continue
                self.strike = None
                if self.after:
                    node.sendall(size + frame)
                    time.sleep(0.5)
                strike()
                self.struck.set()
                return

    def _answers(self, node: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := node.recv(1 << 16):
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _exactly(line: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = line.recv(count - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data

    def close(self) -> None:
        self.listener.close()


class Flink:
    """The job, life after life, each from the newest checkpoint of the one before."""

    def __init__(self, jars: Path, folder: Path, bootstrap: str) -> None:
        self.checkpoints = folder / "checkpoints"
        self.log = folder / "flink.log"
        self.command = [
            java(), *FLAGS, *QUIET, "-cp", f"{jars}{os.sep}*", str(JOB), bootstrap, FROM, TO, self.checkpoints.as_uri(),
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def newest(self) -> Path | None:
        """The last one that is complete."""
        found = [path.parent for path in self.checkpoints.glob("*/chk-*/_metadata")]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)

    def start(self) -> None:
        newest = self.newest()
        words = [] if newest is None else [newest.as_uri()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def told(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay(END_TXN)
    yield relay
    relay.close()


@pytest.fixture
def node(serve: Serve, relay: Relay) -> Served:
    """It tells clients to come by way of the relay."""
    served = serve(
        **{
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{relay.port}",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.num.partitions": "4",
        }
    )
    relay.target = served.port
    return served


@pytest.fixture
def flink(node: Served, relay: Relay, tmp_path: Path) -> Iterator[Flink]:
    try:
        jars = collected(POM, LIBS, VERSION, 300)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    job = Flink(jars, tmp_path, f"127.0.0.1:{relay.port}")
    yield job
    job.kill()


class Input:
    """Writes numbers all the time."""

    def __init__(self, bootstrap: str) -> None:
        self.producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self.written = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._write, daemon=True)
        self.thread.start()

    def _write(self) -> None:
        while not self.ended.wait(0.02):
            for _ in range(10):
                self.producer.produce(FROM, str(self.written), partition=self.written % PARTITIONS)
                self.written += 1
            self.producer.poll(0)

    def end(self) -> int:
        """How many there are."""
        self.ended.set()
        self.thread.join()
        assert self.producer.flush(SECONDS) == 0
        return self.written


class Output:
    """What readers of committed data have seen so far."""

    def __init__(self, bootstrap: str, isolation: str = "read_committed") -> None:
        settings = {"group.id": "nobody", "enable.auto.commit": False, "log_level": 0, "error_cb": lambda error: None}
        self.consumer = Consumer({"bootstrap.servers": bootstrap, "isolation.level": isolation, **settings})
        self.consumer.assign([TopicPartition(TO, index, 0) for index in range(PARTITIONS)])
        self.seen: Counter[int] = Counter()

    def more(self) -> int:
        """How many now; there is always more while the input goes on."""
        until = time.monotonic() + 2
        while time.monotonic() < until and (messages := self.consumer.consume(1000, timeout=0.5)):
            self.seen.update(int(each.value() or b"") for each in messages if each.error() is None)
        return self.seen.total()

    def beyond(self, count: int, flink: Flink, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.more() <= count:
            assert time.monotonic() < deadline, flink.told()


def test_each_record_once_whoever_is_killed(node: Served, relay: Relay, flink: Flink) -> None:
    bootstrap = f"127.0.0.1:{relay.port}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (FROM, TO)]).values():
        future.result(SECONDS)
    chance = Random(7)
    given = Input(bootstrap)
    output = Output(bootstrap)
    flink.start()
    kills = (
        "before the commit",
        "before its answer",
        "at random",
        "node",
        "node in a commit",
        "both",
        "before the commit",
    )
    for kill in kills:
        output.beyond(output.seen.total(), flink)
        relay.struck.clear()
        if kill in ("before the commit", "before its answer", "node in a commit"):
            relay.after = kill == "before its answer"
            relay.strike = node.kill if kill == "node in a commit" else flink.kill
            assert relay.struck.wait(SECONDS), flink.told()
        else:
            time.sleep(chance.random())
            if kill in ("node", "both"):
                node.kill()
            if kill in ("at random", "both"):
                flink.kill()
        if node.process is None:
            node.start()
        if flink.process is None:
            flink.start()
    output.beyond(output.seen.total(), flink)
    count = given.end()
    output.beyond(count - 1, flink)
    flink.kill()
    time.sleep(1)
    output.more()
    assert [number for number, times in output.seen.items() if times != 1] == []
    assert set(output.seen) == set(range(count))
    every = Output(bootstrap, "read_uncommitted")
    every.beyond(count, flink)  # or nothing was rolled back, and the kills have shown nothing
