"""`duramen consume --group --follow` while its node is killed, or does not answer for longer than a session."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from rawclient import Raw
from tests.worlds.served_node import DURAMEN, Served

WAIT_SECONDS = 60
SESSION_MS = 6000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, {"group.initial.rebalance.delay.ms": "0"})
    served.start()
    yield served
    served.kill()


class Follower:
    """The command as a process; what it printed is in a file."""

    def __init__(self, node: Served, topic: str) -> None:
        self.path = node.folder / "printed"
        session = ("-X", f"session.timeout.ms={SESSION_MS}", "-X", "heartbeat.interval.ms=500")
        with self.path.open("wb") as out, (node.folder / "told").open("wb") as told:
            self.process = subprocess.Popen(
                [DURAMEN, "consume", topic, "--group", "audit", "--follow", *session, "-b", node.bootstrap],
                stdout=out,
                stderr=told,
            )

    def printed(self) -> set[int]:
        return {int(line) for line in self.path.read_bytes().splitlines()}

    def await_numbers(self, numbers: set[int]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not numbers <= self.printed():
            told = (self.path.parent / "told").read_text()
            assert self.process.poll() is None, f"it ended: {told}"
            assert time.monotonic() < deadline, f"nothing came for {WAIT_SECONDS} s: {told}"
            time.sleep(0.05)


class Writing(threading.Thread):
    """Writes numbers, a thousand a second, until it is told to stop; through stops and kills of the node."""

    def __init__(self, node: Served) -> None:
        super().__init__()
        config = {"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        self.producer = Producer({**config, "error_cb": lambda _: None})
        self.written = 0
        self.stopping = False
        self.start()

    def run(self) -> None:
        while not self.stopping:
            self.producer.produce("t", b"%d" % self.written)
            self.written += 1
            self.producer.poll(0.001)
        assert self.producer.flush(WAIT_SECONDS) == 0

    def stop(self) -> None:
        self.stopping = True
        self.join()


def test_a_follower_outlives_its_session_and_kills_of_its_node(node: Served) -> None:
    assert node.process is not None
    with Raw(node.port) as raw:
        raw.create_topic("t", 3)
    writing = Writing(node)
    follower = Follower(node, "t")
    try:
        follower.await_numbers({100})
        os.kill(node.process.pid, signal.SIGSTOP)
        time.sleep(SESSION_MS / 1000 + 3)
        os.kill(node.process.pid, signal.SIGCONT)
        for _ in range(4):
            follower.await_numbers({writing.written})
            node.kill()
            time.sleep(0.3)
            node.start()
        writing.stop()
        follower.await_numbers(set(range(writing.written)))  # the last one may come before those of other partitions
    finally:
        writing.stop()
        follower.process.kill()
        follower.process.wait()


def test_a_member_ends_though_its_node_is_gone_and_says_what_is_not_committed(node: Served) -> None:
    """The commit of what is written waited for the node, for the length of session after session, deaf to signals."""
    with Raw(node.port) as raw:
        raw.create_topic("t", 1)
    producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for number in range(200):  # more than what is read here and a pipe hold
        producer.produce("t", b"%03d " % number + b"v" * 2000)
    assert producer.flush(WAIT_SECONDS) == 0
    command = [DURAMEN, "consume", "t", "--group", "audit", "--follow", "-b", node.bootstrap]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        read = [process.stdout.readline()]
        node.kill()
        read += [process.stdout.readline() for _ in range(80)]  # so that more is written, and cannot be committed
        process.send_signal(signal.SIGTERM)
        code = process.wait(WAIT_SECONDS / 2)
        read += process.stdout.readlines()
        _, told = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert code == 128 + signal.SIGTERM, told
    assert [line[:3] for line in read] == [b"%03d" % number for number in range(len(read))]
    (line,) = [
        line for line in told.decode().splitlines() if line.startswith("printed, but perhaps not committed: t-0")
    ]
    assert line.endswith(f" to {len(read) - 1}; the group may read them again"), told
