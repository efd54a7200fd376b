"""The JVM that a session runs in, and what it says on stderr before anything of ours runs."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from contextlib import suppress

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from duramen.errors import DuramenError

NOTICE = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""Java's word for a module that Spark's launcher adds to every start: nobody can do anything about it."""
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
    relay = threading.Thread(target=pass_on, args=(source, STDERR), name="jvm-stderr", daemon=True)
    relay.start()
    ended = True
    try:
        settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        gateway = launch_gateway(settings, {"stderr": theirs})  # type: ignore[no-untyped-call]
        ended = False
    except PySparkRuntimeError as error:
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        raise NoJvmError(
            "Spark's Java ended at its start, and has said why above; mostly spark.driver.memory, or another setting "
            "of Java's (--conf, spark-defaults.conf), does not fit this machine"
        ) from error
    finally:
        os.close(theirs)
        if ended:
            relay.join(LAST_WORDS_SECONDS)  # before what we make of it
    SparkContext._ensure_initialized(gateway=gateway)

    def last_words() -> None:
        if gateway.proc.poll() is not None:
            relay.join(LAST_WORDS_SECONDS)

    atexit.register(last_words)


def pass_on(source: int, target: int) -> None:
    """Copy from one descriptor to the other until the end, except for the first line that is NOTICE.

    Line by line before it, which only Java's own words at its start are; then as it comes. It reads on
    when nobody takes it.
    """
    with open(source, "rb") as words:
        for line in words:
            if line == NOTICE:
                break
            _write(target, line)
        while piece := words.read1(PIECE_BYTES):
            _write(target, piece)


def _write(target: int, data: bytes) -> None:
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
