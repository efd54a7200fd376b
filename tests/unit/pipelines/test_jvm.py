"""What Spark's JVM says on stderr: all of it is heard, but for the line that nobody can do anything about."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from duramen.pipelines import java
from duramen.pipelines.jvm import NOTICE, pass_on

PATIENCE_S = 60.0


class Relay(NamedTuple):
    """said: what the JVM writes to; heard: what comes out."""

    said: int
    heard: int
    thread: threading.Thread

    def ends(self) -> bytes:
        """The rest that is heard, when the JVM has gone."""
        os.close(self.said)
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return os.read(self.heard, 1 << 16)


@pytest.fixture
def relay() -> Iterator[Relay]:
    source, said = os.pipe()
    heard, target = os.pipe()

    def run() -> None:
        pass_on(source, target)
        os.close(target)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield Relay(said, heard, thread)
    os.close(heard)


def test_the_notice_alone_is_left_out(relay: Relay) -> None:
    os.write(relay.said, b"Picked up JAVA_TOOL_OPTIONS: -Xss1m\n" + NOTICE + b"# A fatal error\n" + NOTICE)
    assert relay.ends() == b"Picked up JAVA_TOOL_OPTIONS: -Xss1m\n# A fatal error\n" + NOTICE


def test_what_comes_behind_it_does_not_wait_for_its_line_to_end(relay: Relay) -> None:
    os.write(relay.said, NOTICE + b"[Stage 0:>")
    assert os.read(relay.heard, 100) == b"[Stage 0:>"
    assert relay.ends() == b""


def test_last_words_without_an_end_of_line_are_heard(relay: Relay) -> None:
    os.write(relay.said, b"Killed")
    assert relay.ends() == b"Killed"


def test_who_does_not_listen_does_not_stop_the_jvm() -> None:
    source, said = os.pipe()
    heard, target = os.pipe()
    os.close(heard)
    thread = threading.Thread(target=pass_on, args=(source, target), daemon=True)
    thread.start()
    os.write(said, b"more than a pipe holds\n" * 10_000)
    os.close(said)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    os.close(target)


@pytest.mark.skipif(java.prepare(dict(os.environ)) is None, reason="there is no Java")
def test_why_java_does_not_start_is_heard_before_what_follows_from_it() -> None:
    """That a JVM which does start says nothing, tests/spark/test_source_cluster.py holds."""
    begin = (
        "from duramen.pipelines.session import session; session('words', 'local[1]', {'spark.driver.memory': 'much'})"
    )
    ran = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode != 0
    assert ran.stderr.index("Invalid maximum heap size: -Xmxmuch") < ran.stderr.index("JAVA_GATEWAY_EXITED")
    assert ran.stderr.splitlines()[-1].startswith("duramen.pipelines.jvm.NoJvmError: Spark's Java ended at its start")
