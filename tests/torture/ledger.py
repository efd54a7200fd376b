"""What the outside world was told: acknowledged records, commits, topics; and whether a node still keeps its word.

Kept in the process of the clients, so that nothing a node does can change it.
"""

from __future__ import annotations

import shutil
import threading
import time
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

SECONDS = 60
"""How long anything may take while the node is there."""
OUTAGE_SECONDS = 300
"""How long clients go on where it may be away for long: a round of power cuts audits several directories meanwhile."""
CYCLE = bytes(range(251))
PATTERN = CYCLE * 9


def value_of(number: int) -> bytes:
    """The record with this number: 20 to 2,000 bytes that only this number has."""
    head = b"%010d:%08x:" % (number, zlib.crc32(b"%d" % number))
    start = number % len(CYCLE)
    return head + PATTERN[start : start + number * 7919 % 1980]


def number_in(message: Message) -> int:
    """The number of a record that was read; ValueError as `number_of`. A tombstone has it in a header."""
    if message.value() is None:
        return int(dict(message.headers() or ())["number"])
    return number_of(message.value())


def number_of(value: bytes) -> int:
    """The number in a record; ValueError unless every byte is what was sent."""
    number = int(value[:10])
    if value_of(number) != value:
        raise ValueError(f"record {number} came back changed: {value[:40]!r}...")
    return number


@dataclass
class Sent:
    """One writer's account of one topic.

    exactly_once: the writer is idempotent. acknowledged: number -> (partition, offset or -1, when). compacted: keys has
    the records' keys by number, tombstones the numbers that have no value. made: when each record was, where they go
    after passes_s seconds.
    """

    topic: str
    exactly_once: bool
    compacted: bool = False
    passes_s: float | None = None
    keys: dict[int, bytes] = field(default_factory=dict)
    tombstones: set[int] = field(default_factory=set)
    made: dict[int, float] = field(default_factory=dict)
    sent: int = 0
    acknowledged: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


@dataclass
class Ledger:
    """Every promise that was made, each with the moment (monotonic seconds) at which it was heard."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    sent: dict[str, Sent] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    partitions: dict[str, tuple[int, float]] = field(default_factory=dict)
    commits: dict[tuple[str, str, int], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    commits_tried: dict[tuple[str, str, int], int] = field(default_factory=lambda: defaultdict(int))
    starts: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    starts_tried: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    read: dict[tuple[str, int], dict[int, tuple[int, float]]] = field(default_factory=lambda: defaultdict(dict))
    epochs: dict[tuple[str, int], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def acknowledged(self) -> int:
        return sum(len(sent.acknowledged) for sent in self.sent.values())

    def forget(self, topic: str) -> None:
        """The topic's deletion was acknowledged: its records are no longer promised."""
        with self.guard:
            self.sent.pop(topic, None)
            self.partitions.pop(topic, None)
            for places in (self.read, self.epochs, self.starts, self.starts_tried):
                for place in [place for place in places if place[0] == topic]:
                    del places[place]
            for commit in [commit for commit in self.commits if commit[1] == topic]:
                del self.commits[commit]


class Audit:
    """Everything one running node says, held against the ledger.

    until: only promises heard before that moment count (None: all). remember: what is read here is a promise, too.
    """

    def __init__(self, bootstrap: str, ledger: Ledger, until: float | None = None, *, remember: bool = True) -> None:
        self.bootstrap = bootstrap
        self.ledger = ledger
        self.until = time.monotonic() if until is None else until
        self.remember = remember
        self.records = 0
        self.broken: list[str] = []

    def run(self) -> list[str]:
        """Check everything; what is not as promised, one line each."""
        topics = self._topics()
        for topic in sorted(self.ledger.sent):
            if topic in topics:
                for partition in range(topics[topic]):
                    self._partition(topic, partition)
                self._writer(self.ledger.sent[topic])
        self._commits()
        return self.broken

    def _topics(self) -> dict[str, int]:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        found = {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=SECONDS).topics.items()}
        for name, heard in self.ledger.created.items():
            if heard < self.until and name not in found and name not in self.ledger.deleting:
                self.broken.append(f"topic {name} was created and is gone")
        for name, heard in self.ledger.deleted.items():
            if heard < self.until and name in found:
                self.broken.append(f"topic {name} was deleted and is back")
        for name, (count, heard) in self.ledger.partitions.items():
            if heard < self.until and found.get(name, count) < count:
                self.broken.append(f"topic {name} was given {count} partitions and has {found[name]}")
        return found

    def _partition(self, topic: str, partition: int) -> None:
        """Read one partition from its start to its end: numbers by offset, no gaps, nothing changed."""
        sent = self.ledger.sent[topic]
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": "audit", "enable.auto.commit": False, "log_level": 0,
                "check.crcs": True, "fetch.wait.max.ms": 20, "enable.partition.eof": True,
                "auto.offset.reset": "error" if sent.passes_s is None else "earliest",
            }
        )  # fmt: skip
        try:
            place = TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, SECONDS)
            consumer.assign([TopicPartition(topic, partition, low)])
            there: dict[int, int] = {}
            deadline = time.monotonic() + SECONDS
            position = low
            while position < high:
                if time.monotonic() > deadline:
                    self.broken.append(f"{topic}-{partition}: nothing comes at {position} of {low}..{high}")
                    return
                # Alone, `consume` would wait for as many as it is asked for.
                first = consumer.poll(0.5)
                for message in [first, *consumer.consume(2000, 0)] if first is not None else ():
                    if message.error() is not None:
                        if message.error().code() != KafkaError._PARTITION_EOF:
                            self.broken.append(f"{topic}-{partition} at {position}: {message.error()}")
                            return
                        position = max(position, message.offset())
                        continue
                    if sent.passes_s is not None and not there:
                        low = message.offset()  # what was first when it was asked may have gone meanwhile
                    elif message.offset() < position or (message.offset() > position and not sent.compacted):
                        self.broken.append(f"{topic}-{partition}: {message.offset()} follows on {position - 1}")
                    position = message.offset() + 1
                    try:
                        there[message.offset()] = number_in(message)
                    except ValueError as error:
                        self.broken.append(f"{topic}-{partition} at {message.offset()}: {error}")
        except KafkaException as error:
            self.broken.append(f"{topic}-{partition} cannot be read: {error}")
            return
        finally:
            consumer.close()
        self.records += len(there)
        if sent.passes_s is not None and not there:
            low = high
        self._start(sent, partition, low)
        self._seen(sent, partition, low, high, there)
        self._acknowledged(sent, partition, low, there)
        if sent.compacted:
            self._latest(sent, partition, there)

    def _start(self, sent: Sent, partition: int, low: int) -> None:
        topic, place = sent.topic, (sent.topic, partition)
        promised = max((offset for offset, heard in self.ledger.starts.get(place, ()) if heard < self.until), default=0)
        tried = self.ledger.starts_tried.get(place, 0)
        if sent.passes_s is not None:
            gone = [number for number, (where, at, _) in sent.acknowledged.items() if where == partition and at < low]
            early = [number for number in gone if time.monotonic() - sent.made[number] < sent.passes_s]
            if early:
                self.broken.append(f"{topic}-{partition}: starts at {low}, {early} are younger than {sent.passes_s} s")
            self.ledger.starts[place].append((low, time.monotonic()))
            tried = low
        if not promised <= low <= max(promised, tried):
            self.broken.append(f"{topic}-{partition}: starts at {low}, deleted were {promised} (asked for {tried})")

    def _seen(self, sent: Sent, partition: int, low: int, high: int, there: dict[int, int]) -> None:
        """What any reader has been given stays at its offset; offsets hold one record for ever."""
        topic = sent.topic
        seen = self.ledger.read[topic, partition]
        for offset, (number, heard) in list(seen.items()):
            if sent.compacted and offset not in there:
                continue
            if heard < self.until and low <= offset and there.get(offset) != number:
                self.broken.append(f"{topic}-{partition}: at {offset} was {number}, now {there.get(offset)} of {high}")
        if self.remember:
            now = time.monotonic()
            for offset, number in there.items():
                seen.setdefault(offset, (number, now))

    def _acknowledged(self, sent: Sent, partition: int, low: int, there: dict[int, int]) -> None:
        topic = sent.topic
        numbers = set(there.values())
        if sent.exactly_once and len(numbers) != len(there):
            self.broken.append(f"{topic}-{partition}: {len(there) - len(numbers)} records twice")
        in_order = list(there.values())
        if sent.exactly_once and in_order != sorted(in_order):
            self.broken.append(f"{topic}-{partition}: out of order")
        with self.ledger.guard:
            acknowledged = list(sent.acknowledged.items())
        for number, (where, offset, heard) in acknowledged:
            if where != partition or heard >= self.until or (0 <= offset < low):
                continue
            if sent.compacted and offset not in there:
                continue
            if offset >= 0 and there.get(offset) != number:
                self.broken.append(f"{topic}-{partition}: {number} was acknowledged at {offset}: {there.get(offset)}")
            elif offset < 0 and low == 0 and number not in numbers:
                self.broken.append(f"{topic}-{partition}: {number} was acknowledged and is gone")

    def _latest(self, sent: Sent, partition: int, there: dict[int, int]) -> None:
        """The last record of each key is there, or a younger one; of a tombstone's key nothing older."""
        wanted: dict[bytes, int] = {}
        for number, (where, _, heard) in sorted(sent.acknowledged.items()):
            if where == partition and heard < self.until:
                wanted[sent.keys[number]] = number
        found = {sent.keys[number]: number for _, number in sorted(there.items())}
        for key, number in wanted.items():
            last = found.get(key)
            if (last is None and number not in sent.tombstones) or (last is not None and last < number):
                self.broken.append(f"{sent.topic}-{partition}: {key!r} was {number} last, there is {last}")

    def _writer(self, sent: Sent) -> None:
        if sent.exactly_once and sent.lost:
            self.broken.append(f"{sent.topic}: a writer gave up: {sent.lost[0]}")

    def _commits(self) -> None:
        """A committed position is never below what was acknowledged, nor above what anybody asked for."""
        groups: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for group, topic, partition in self.ledger.commits:
            groups[group].append((topic, partition))
        for group, places in groups.items():
            consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
            try:
                answer = consumer.committed([TopicPartition(*place) for place in places], SECONDS)
            except KafkaException as error:
                self.broken.append(f"group {group} cannot be read: {error}")
                continue
            finally:
                consumer.close()
            for committed in answer:
                key = (group, committed.topic, committed.partition)
                heard = [offset for offset, at in self.ledger.commits[key] if at < self.until]
                least = heard[-1] if heard else -1
                if not least <= max(committed.offset, -1) <= max(self.ledger.commits_tried[key], least):
                    self.broken.append(
                        f"group {group} on {committed.topic}-{committed.partition}: {committed.offset}, "
                        f"acknowledged {least}, tried {self.ledger.commits_tried[key]}"
                    )


def verdict(broken: list[str], folder: Path) -> int:
    """Tell what was broken and keep the folder, or remove it; the program's exit code."""
    for line in broken[:50]:
        print(f"BROKEN {line}")
    if broken:
        print(f"directories and logs are kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0
