"""What Spark's JVM says on stderr: all of it is heard, but for the line that nobody can do anything about."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from duramen.pipelines.jvm import java
from duramen.pipelines.jvm.jvm import NOTICE, Noise, pass_on

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


OVERFLOW = b'Exception in thread "stream execution thread for tour.aircraft.v1 [id = 1, runId = 2]" '
OVERFLOW += b"java.lang.StackOverflowError\n"
FRAME = b"\tat java.base/java.util.regex.Pattern$Loop.match(Pattern.java:4898)\n"
PIPE = b"""Traceback (most recent call last):
  File "/lib/python3.11/site-packages/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHERS = [
    OVERFLOW + b"\tat org.apache.spark.sql.catalyst.trees.TreeNode.transform(TreeNode.scala:1)\n" + FRAME,
    b'Exception in thread "stream execution thread for a" java.lang.OutOfMemoryError: Java heap space\n' + FRAME,
    PIPE.replace(b"BrokenPipeError", b"MemoryError"),
    PIPE.replace(b"pyspark/daemon.py", b"mine.py"),
    b"Traceback (most recent call last):\n" * 2,
    b"[Stage 0:>   (0 + 2) / 2]\rTraceback",
]


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 16])
def test_what_a_query_says_that_is_stopped_within_a_batch_is_left_out(size: int) -> None:
    """After Ctrl-C a thousand lines told of a pattern."""
    said = b"one\n" + OVERFLOW + FRAME * 1000 + b"two\n" + PIPE + b"three\n" + PIPE + OVERFLOW + FRAME + OTHERS[0]
    for other in OTHERS:
        noise = Noise()
        words = said + other
        heard = [noise.without(words[at : at + size]) for at in range(0, len(words), size)]
        assert b"".join(heard) + noise.rest() == b"one\ntwo\nthree\n" + OTHERS[0] + other


@pytest.mark.parametrize("size", [1, 100, 1 << 16])
def test_why_spark_refuses_to_start_is_left_to_the_error(size: int) -> None:
    """It came with the frames of a launcher, and the error spoke of memory."""
    start = b'Exception in thread "main" '
    refused = start + b"org.apache.spark.SparkException: Executor memory must be a positive number\n"
    words = b"one\n" + refused + b"\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1)\n" * 9 + b"two\n"
    other = start + b"java.lang.OutOfMemoryError: Java heap space\n\tat a.b(C.java:1)\n"
    noise = Noise()
    heard = [noise.without((words + other)[at : at + size]) for at in range(0, len(words + other), size)]
    assert b"".join(heard) + noise.rest() == b"one\ntwo\n" + other
    assert noise.refusal == "Executor memory must be a positive number"


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
    settings = "{'spark.driver.memory': 'much'}"
    begin = f"from duramen.pipelines.jvm.session import session; session('words', 'local[1]', {settings})"
    ran = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode != 0
    assert ran.stderr.index("Invalid maximum heap size: -Xmxmuch") < ran.stderr.index("JAVA_GATEWAY_EXITED")
    assert ran.stderr.splitlines()[-1].startswith(
        "duramen.pipelines.jvm.jvm.NoJvmError: Spark's Java ended at its start"
    )
