"""A client of transactional list-append, with confluent-kafka; AppendClient.java is the same with Kafka's own client.

    python -m tests.torture.append_client BOOTSTRAP TOPIC KEYS PRODUCER LIFE NOTES LOCKS SEED

Each transaction appends to some of the topic's partitions, reads some, moves its group's positions, and is committed
or aborted. All of it is noted in a file, a line each, before it is done and when the answer has come: whoever is killed
has left what it asked for. LOCKS: a folder whose files keep other clients off a partition until the transaction has
ended, or "-" for none.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.torture.copier import FENCED, QUIET, Watch

ATTEMPT_SECONDS = 5.0
TIMEOUT_MS = 10_000
PER_LIFE = 1_000_000
LIVES = 1000
"""A value names its producer, its life and its number: producer × LIVES × PER_LIFE + life × PER_LIFE + number."""


class AppendClient:
    """One life of a producer."""

    def __init__(self, words: list[str]) -> None:
        self.bootstrap, self.topic, keys, self.name, life, notes, self.locks, seed = words
        self.keys = range(int(keys))
        self.numbers = itertools.count((int(self.name.rpartition("-")[2]) * LIVES + int(life)) * PER_LIFE)
        self.life = life
        self.random = random.Random(f"{seed} {self.name} {life}")
        self.notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.ended = False
        self.watch = Watch()
        self.read_to = dict.fromkeys(self.keys, 0)
        self.moved = int(life) * PER_LIFE
        same = {"bootstrap.servers": self.bootstrap, **QUIET}
        self.producer = Producer(
            {
                "transactional.id": self.name, "transaction.timeout.ms": TIMEOUT_MS, "message.timeout.ms": TIMEOUT_MS,
                "linger.ms": 1, **same,
            }
        )  # fmt: skip
        self.consumer = Consumer(
            {
                "group.id": f"g-{self.name}", "enable.auto.commit": False, "isolation.level": "read_committed",
                "auto.offset.reset": "error", "enable.partition.eof": True, "fetch.wait.max.ms": 20, **same,
            }
        )  # fmt: skip

    def note(self, event: str, **what: Any) -> None:
        line = json.dumps({"e": event, "at": time.monotonic_ns(), **what})
        os.write(self.notes, line.encode() + b"\n")

    def run(self) -> None:
        self.note("init")
        self._until_done(lambda: self.producer.init_transactions(ATTEMPT_SECONDS))
        self.note("life")
        for key in self.keys:
            self._find(key)
        for number in itertools.count():
            if self.ended:
                break
            self._transaction(f"{self.name}.{self.life}.{number}")
        self.consumer.close()

    def _find(self, key: int) -> None:
        while True:
            asked = time.monotonic_ns()
            try:
                place = self.consumer.committed([TopicPartition(self.topic, key)], ATTEMPT_SECONDS)[0]
                if place.error is None:
                    self.note("found", key=key, offset=max(place.offset, -1), asked=asked)
                    return
            except KafkaException:
                pass
            time.sleep(0.05)

    def _transaction(self, name: str) -> None:
        writes = sorted(self.random.sample(self.keys, self.random.choice((1, 1, 2, 3))))
        steps = [*(("append", key) for key in writes * self.random.choice((1, 1, 2)))]
        steps += [("read", key) for key in self.random.sample(self.keys, self.random.choice((0, 1, 2)))]
        self.random.shuffle(steps)
        with self._kept(writes):
            self.watch.moved()
            self.note("begin", txn=name)
            commits = False
            try:
                self.producer.begin_transaction()
                for step, key in steps:
                    if step == "append":
                        self._append(name, key)
                    else:
                        self._read(name, key)
                    self.producer.poll(0)
                if self.random.random() < 0.4:
                    self._move(name, self.random.choice(writes))
                commits = self.random.random() < 0.75
                if commits:
                    self._until_done(lambda: self.producer.flush(ATTEMPT_SECONDS))
                    self.note("ask", txn=name, commit=True)
                    self._until_done(lambda: self.producer.commit_transaction(ATTEMPT_SECONDS))
                    self.note("end", txn=name, outcome="committed")
                else:
                    self._abort(name)
            except KafkaException as error:
                self.note("error", txn=name, said=str(error))
                if not error.args[0].txn_requires_abort():
                    raise
                self._abort(name)

    def _abort(self, name: str) -> None:
        self.note("ask", txn=name, commit=False)
        self._until_done(lambda: self.producer.abort_transaction(ATTEMPT_SECONDS))
        self.note("end", txn=name, outcome="aborted")

    def _append(self, name: str, key: int) -> None:
        value = next(self.numbers)

        def heard(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.note("acked", value=value, offset=message.offset())

        self.note("append", txn=name, key=key, value=value)
        self.producer.produce(self.topic, b"%d" % value, partition=key, on_delivery=heard)

    def _read(self, name: str, key: int) -> None:
        self.watch.moved()
        start = self.read_to[key]
        asked = time.monotonic_ns()
        self.consumer.assign([TopicPartition(self.topic, key, start)])
        records: list[tuple[int, int]] = []
        until = time.monotonic() + ATTEMPT_SECONDS
        while time.monotonic() < until:
            message = self.consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is None:
                records.append((message.offset(), int(message.value())))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                end = message.offset()
                self.note("read", txn=name, key=key, start=start, end=end, records=records, asked=asked)
                self.read_to[key] = end
                return

    def _move(self, name: str, key: int) -> None:
        self.moved += 1
        self.note("moved", txn=name, key=key, offset=self.moved)
        places = [TopicPartition(self.topic, key, self.moved)]
        member = self.consumer.consumer_group_metadata()
        self._until_done(lambda: self.producer.send_offsets_to_transaction(places, member, ATTEMPT_SECONDS))

    @contextlib.contextmanager
    def _kept(self, keys: list[int]) -> Iterator[None]:
        """Keep the others off these, in one order for all; a process that is killed lets go."""
        with contextlib.ExitStack() as stack:
            if self.locks != "-":
                for key in keys:
                    file = stack.enter_context((Path(self.locks) / str(key)).open("w"))
                    fcntl.lockf(file, fcntl.LOCK_EX)
            yield

    def _until_done(self, step: Any) -> None:
        while True:
            self.watch.moved()
            try:
                step()
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                self.note("again", said=str(error))
                time.sleep(0.02)


def main() -> int:
    client = AppendClient(sys.argv[1:])

    def end(number: int, frame: FrameType | None) -> None:
        client.ended = True

    signal.signal(signal.SIGTERM, end)
    try:
        client.run()
    except KafkaException as error:
        print(error, flush=True)
        return FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main())
