"""Owns the stored data of the restart benchmark: fills a directory through the engine, and its journal to the brim.

Runs as a process of its own, `python -m benchmarks.restart_load DIRECTORY ...`, so that it can be killed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from threading import Semaphore
from typing import Any

import duramen
from duramen.embedded.log import EmbeddedLog, Topic
from duramen.errors import KafkaError
from duramen.wire.batch import build_batch

TOPIC = "restart"
RECORD_BYTES = 1000
IN_FLIGHT = 8
"""Groups of appends on their way at once."""
PER_TURN = 64


def _batch(size: int, now: int) -> bytearray:
    record = (None, b"r" * min(RECORD_BYTES, max(16, size - 100)), [], now)
    return build_batch([record] * max(1, size // (RECORD_BYTES + 20)))


class Loader:
    """Appends one prepared batch again and again; `drain` waits until everything is acknowledged."""

    def __init__(self, log: EmbeddedLog, topic: Topic, size: int) -> None:
        self._log = log
        self._topic = topic
        self._now = int(time.time() * 1000)
        self.template = bytes(_batch(size, self._now))
        self._room = Semaphore(IN_FLIGHT)
        self.refused = False

    def append(self, partitions: list[int]) -> None:
        """One batch to each partition named (once per mention), in one turn."""
        self._room.acquire()
        left = len(partitions)

        def done(result: Any) -> None:
            nonlocal left
            self.refused = self.refused or isinstance(result, KafkaError)
            left -= 1
            if not left:
                self._room.release()

        with self._topic._turn:
            for partition in partitions:
                view = memoryview(bytearray(self.template))
                self._topic._partition(partition).append(view, -1, self._now, done)
            self._log._store.commit_soon()

    def drain(self) -> None:
        for _ in range(IN_FLIGHT):
            self._room.acquire()
        for _ in range(IN_FLIGHT):
            self._room.release()


def fill(log: EmbeddedLog, topic: Topic, total: int, size: int) -> None:
    """`total` bytes in batches of `size`, evenly over the partitions, one partition after the other."""
    loader = Loader(log, topic, size)
    each = max(1, total // topic.partitions // len(loader.template))
    for partition in range(topic.partitions):
        left = each
        while left:
            count = min(left, PER_TURN)
            loader.append([partition] * count)
            left -= count
    loader.drain()


def fill_journal(log: EmbeddedLog, topic: Topic, size: int) -> int:
    """Batches of `size` round the partitions until the journal takes no more; no checkpoint gets in between."""
    directory = log._store.directories[0]
    with log._turn:
        directory.settings = directory.settings._replace(checkpoint_fill=2.0, dirty_max_bytes=1 << 50)
        directory.settings = directory.settings._replace(checkpoint_interval_ms=1 << 40)
    loader = Loader(log, topic, size)
    targets = _round(topic.partitions)
    while not loader.refused:
        loader.append([next(targets) for _ in range(PER_TURN)])
    loader.drain()
    return directory.journal.entries


def _round(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


def main() -> int:
    """Fill, and stop cleanly; or with `--journal` fill that, say so and wait to be killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16 << 10)
    parser.add_argument("--journal", action="store_true")
    parser.add_argument("--segment-bytes", type=int, default=1 << 30)
    options = parser.parse_args()
    log = duramen.open(options.directory, {"log.segment.bytes": str(options.segment_bytes)})
    topic = log.topic(TOPIC, options.partitions)
    if options.bytes:
        fill(log, topic, options.bytes, options.batch)
    if options.journal:
        entries = fill_journal(log, topic, options.batch)
        sys.stdout.write(f"full {entries}\n")
        sys.stdout.flush()
        time.sleep(3600)
    log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
