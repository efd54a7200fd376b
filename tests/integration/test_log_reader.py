"""A node whose log nobody reads any more, as with a paused terminal or a stalled collector: it serves, and stops."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_node import DURAMEN, READY_SECONDS_MAX, Served, free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="F_SETPIPE_SZ")

SMALL_QUEUE = (
    "import sys; from duramen.server.net.log_writer import LogWriter; LogWriter.__init__.__defaults__ = (1500,); "
    "from duramen.cli.main import main; sys.exit(main(sys.argv[1:]))"
)
STREAMS = ("stderr", "stdout", "both")


class StalledPipe:
    """The smallest pipe there is, full, and nobody reads it until `read`."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(self.reading, False)
        self.fill()

    def fill(self) -> None:
        os.set_blocking(self.writing, False)
        try:
            while True:
                os.write(self.writing, b"." * 64)
        except BlockingIOError:
            pass
        os.set_blocking(self.writing, True)  # the node's end is the same

    def read(self, end: str) -> str:
        """What comes until a line with that is there."""
        got, until = b"", time.monotonic() + 20
        while time.monotonic() < until:
            try:
                got += os.read(self.reading, 65536)
            except BlockingIOError:
                time.sleep(0.01)
            if any(end in line for line in got.decode().split("\n")[:-1]):
                return got.decode().lstrip(".")
        raise AssertionError(f"no line with {end!r}: {got[-2000:]!r}")

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def stalled() -> Iterator[StalledPipe]:
    pipe = StalledPipe()
    yield pipe
    pipe.close()


class Unread(Served):
    """A node with one or both of its streams at such a pipe."""

    def __init__(self, folder: Path, pipe: StalledPipe, which: str, *options: str, small: bool = False) -> None:
        self.metrics = free_port()
        super().__init__(folder, {"metrics.listener": f"127.0.0.1:{self.metrics}"})
        self._pipe, self._which, self._options, self._small = pipe, which, options, small

    def launch(self) -> None:
        program = [sys.executable, "-c", SMALL_QUEUE] if self._small else [DURAMEN]
        self.process = subprocess.Popen(
            [*program, *self.command()[1:], *self._options],
            stdin=subprocess.DEVNULL,
            stdout=self._pipe.writing if self._which in ("stdout", "both") else subprocess.DEVNULL,
            stderr=self._pipe.writing if self._which in ("stderr", "both") else subprocess.DEVNULL,
            cwd=self.folder,
        )

    def page(self, name: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/{name}", timeout=10) as answer:
            return str(answer.read(), "utf-8")

    def dropped(self) -> int:
        found = re.search(r"^duramen_log_lines_dropped_total (\S+)$", self.page("metrics"), re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    def serves(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(topic, b"value")
        assert producer.flush(READY_SECONDS_MAX) == 0
        assert self.page("healthz") == "ok\n"
        assert self.page("readyz") == "ready\n"


@pytest.mark.parametrize("which", STREAMS)
def test_it_starts_serves_and_stops(tmp_path: Path, stalled: StalledPipe, which: str) -> None:
    node = Unread(tmp_path, stalled, which)
    node.start()
    try:
        node.serves("first")
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 15
    finally:
        node.kill()


@pytest.mark.parametrize("options", [(), ("--log-json",)])
def test_what_found_no_room_is_counted_and_told(tmp_path: Path, stalled: StalledPipe, options: tuple[str, ...]) -> None:
    node = Unread(tmp_path, stalled, "stderr", *options, small=True)
    node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for number in range(4):
            made = admin.create_topics([NewTopic(f"topic-{number}-{n}", 1) for n in range(20)])
            for outcome in made.values():
                outcome.result(30)
            time.sleep(0.5)
        node.serves("topic-0-0")
        lost = node.dropped()
        assert lost > 0
        last = stalled.read("log-dropped").splitlines()[-1]
        assert (json.loads(last)["lines"] if options else int(last.rpartition("lines=")[2])) == lost
        node.serves("later")
        assert node.dropped() == lost
        assert node.stop() == 0
        assert "stopped" in stalled.read("stopped"), "the log went on"
    finally:
        node.kill()


def test_a_start_that_fails_does_not_hang_either(tmp_path: Path, stalled: StalledPipe) -> None:
    node = Unread(tmp_path, stalled, "both")
    node.data.write_text("in the way")
    node.launch()
    try:
        assert node.process is not None
        assert node.process.wait(30) == 1
    finally:
        node.kill()
