"""The JVM that a session runs in, and what it says on stderr before anything of ours runs."""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from duramen.errors import DuramenError

NOTICE = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""Java's word for a module that Spark's launcher adds to every start: nobody can do anything about it."""
_OVERFLOW = re.compile(rb'Exception in thread "stream execution thread .*java\.lang\.StackOverflowError\n')
_ITS_FRAME = b"\tat java.base/java.util.regex."
_TRACEBACK = b"Traceback (most recent call last):\n"
_ITS_PLACE, _ITS_END = b'pyspark/daemon.py", line', b"BrokenPipeError"
_BEGINNINGS = (b'Exception in thread "stream execution thread ', b'Exception in thread "main" ', _TRACEBACK)
_REFUSAL = re.compile(rb'Exception in thread "main" org\.apache\.spark\.[\w.$]+: (.*)\n')
"""What Spark finds wrong with its settings before it starts: the frames behind it are those of every start."""
_HELD_MAX = 20
"""Lines of a traceback that may turn out to be one of these."""
PIECE_BYTES = 1 << 16
LAST_WORDS_SECONDS = 1.0
STDERR = 2


class NoJvmError(DuramenError):
    """Java began, and ended before Spark could be used: why, it has said on stderr."""


def start(conf: Mapping[str, str]) -> None:
    """Start Spark's JVM, unless this process has one, with settings that are its own (memory, options of Java).

    All that it says on stderr appears on ours, but for NOTICE. NoJvmError when it ends at once, as with more memory
    than there is.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    source, theirs = os.pipe()
    ended = True
    failure: PySparkRuntimeError | None = None
    noise = Noise()
    relay = threading.Thread(target=pass_on, args=(source, STDERR, noise), name="jvm-stderr", daemon=True)
    relay.start()
    try:
        settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        gateway = launch_gateway(settings, {"stderr": theirs})  # type: ignore[no-untyped-call]
        ended = False
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        failure = error
    finally:
        os.close(theirs)
        if ended:
            relay.join(LAST_WORDS_SECONDS)  # before what we make of it
    if failure is not None and noise.refusal:
        raise NoJvmError(f"Spark does not start with these settings: {noise.refusal}") from failure
    if failure is not None:
        raise NoJvmError(
            "Spark's Java ended at its start, and has said why above; mostly spark.driver.memory, or another setting "
            "of Java's (--conf, spark-defaults.conf), does not fit this machine"
        ) from failure
    SparkContext._ensure_initialized(gateway=gateway)

    def last_words() -> None:
        if gateway.proc.poll() is not None:
            relay.join(LAST_WORDS_SECONDS)

    atexit.register(last_words)


def pass_on(source: int, target: int, noise: Noise | None = None) -> None:
    """Copy from one descriptor to the other until the end, except for the first line that is NOTICE, and behind it for
    what `noise` keeps back.

    Line by line before it, which only Java's own words at its start are; then as it comes. It reads on
    when nobody takes it.
    """
    with open(source, "rb") as words:
        for line in words:
            if line == NOTICE:
                break
            _write(target, line)
        noise = noise or Noise()
        while piece := words.read1(PIECE_BYTES):
            _write(target, noise.without(piece))
        _write(target, noise.rest())


class Noise:
    """What Spark says, without two things that a query says which is stopped within a batch, and that mean nothing, and
    without why it refuses to start, which is the error's to tell.

    To find out whether it was stopped Spark searches the error's text by a pattern that recurs for each character: the
    thread dies of it, by a thousand lines. And workers tell that the driver does not listen any more.
    """

    def __init__(self) -> None:
        self._part = b""
        """Of a line that may be the beginning of one of them."""
        self._held: list[bytes] = []
        self._in_frames = False
        self.refusal = ""
        """Why Spark did not start with the settings that it was given; empty where it did."""

    def without(self, piece: bytes) -> bytes:
        """What is to be passed on by now. A line that has not ended yet is, unless one of them may begin so."""
        *lines, self._part = (self._part + piece).split(b"\n")
        passed = b"".join(self._line(line + b"\n") for line in lines)
        if self._held or self._in_frames or any(start[: len(self._part)] == self._part for start in _BEGINNINGS):
            return passed
        if self._part.startswith(_BEGINNINGS):
            return passed
        passed, self._part = passed + self._part, b""
        return passed

    def rest(self) -> bytes:
        """What is still kept back, at the end."""
        return b"".join(self._held) + self._part

    def _line(self, line: bytes) -> bytes:
        if self._in_frames and line.startswith(b"\tat "):
            return b""
        self._in_frames = False
        if self._held and self._goes_on(line):
            return b""
        released, self._held = b"".join(self._held), []
        if found := _REFUSAL.fullmatch(line):
            self.refusal = found[1].decode("utf-8", "backslashreplace")
            self._in_frames = True
            return released
        if _OVERFLOW.fullmatch(line) or line == _TRACEBACK:
            self._held = [line]
            return released
        return released + line

    def _goes_on(self, line: bytes) -> bool:
        """Whether the line is of what is held; at the end of it nothing is held any more."""
        if self._held[0] != _TRACEBACK:
            ends = self._in_frames = line.startswith(_ITS_FRAME)
        elif line.startswith(b"  ") and len(self._held) < _HELD_MAX and (len(self._held) > 1 or _ITS_PLACE in line):
            self._held.append(line)
            return True
        else:
            ends = len(self._held) > 1 and line.startswith(_ITS_END)
        if ends:
            self._held = []
        return ends


def _write(target: int, data: bytes) -> None:
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
