"""Kafka's classes as Java has parsed them, kept from run to run: its broker and tools start in half the time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from benchmarks.kafka_peer import KafkaPeer, jars

FETCH_SECONDS_MAX = 90.0
WRITE_SECONDS_MAX = 120.0
OPTIONS = "JAVA_TOOL_OPTIONS"
QUIET = "-Xshare:auto -Xlog:disable"
"""What another Java wrote down, or of other jars, is not used, and nobody is told."""


def java_options() -> str:
    """JAVA_TOOL_OPTIONS for Kafka's JVMs. PeerUnavailableError where Kafka cannot be run."""
    classes = jars(FETCH_SECONDS_MAX) / "classes.jsa"
    with (classes.parent / "classes.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process is at it, for as long as this one would gain
            return _with("")
        if not classes.exists():
            _write(classes)
    return _with(f"-XX:SharedArchiveFile={classes}")


def _with(option: str) -> str:
    return f"{os.environ.get(OPTIONS, '')} {QUIET} {option}".strip()


def _write(classes: Path) -> None:
    """Start a broker and stop it; a Java that cannot write them leaves an empty file, which none reads."""
    fresh = classes.with_suffix(".new")
    fresh.touch()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        broker = KafkaPeer(Path(folder))
        broker.prepare()
        patch.setenv(OPTIONS, _with(f"-XX:ArchiveClassesAtExit={fresh}"))
        broker.start()
        broker.stop(WRITE_SECONDS_MAX)
    fresh.replace(classes)


with_all_tools = pytest.mark.skipif(
    os.environ.get("DURAMEN_ALL_TOOLS") != "1", reason="DURAMEN_ALL_TOOLS=1 runs every tool"
)
"""Tests of which each call is a JVM, and which others cover in part: `make conformance-kafka-tools` runs them."""
