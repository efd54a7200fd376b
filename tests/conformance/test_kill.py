"""kill -9 at a real process, again and again: what was acknowledged is there, where it was said to be, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_END, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_node import FOREIGN, Served

Serve = Callable[..., Served]
ROUNDS = 2 if FOREIGN else 4
SECONDS = 60


def create(node: Served, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(SECONDS)


class Writing:
    """Writes numbers until told to stop; `acknowledged` maps number → (partition, offset)."""

    def __init__(self, node: Served, topic: str, **config: object) -> None:
        self.topic = topic
        self.sent = 0
        self.stopping = False
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failed: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": node.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": SECONDS * 1000,
                "log_level": 0,
                "error_cb": lambda error: None,
                **config,
            }
        )
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def delivered(self, number: int) -> Callable[[object, Message], None]:
        def note(error: object, message: Message) -> None:
            if error is None:
                self.acknowledged[number] = (message.partition(), message.offset())
            else:
                self.failed.append(f"{number}: {error}")

        return note

    def run(self) -> None:
        while not self.stopping:
            if self.sent - len(self.acknowledged) < 5000:
                number = self.sent
                self.sent += 1
                key = b"%d" % (number % 50)
                self.producer.produce(self.topic, b"%d" % number, key, on_delivery=self.delivered(number))
            self.producer.poll(0 if self.sent % 16 else 0.001)
        assert self.producer.flush(SECONDS) == 0

    def stop(self) -> None:
        self.stopping = True
        self.thread.join()


def read_all(node: Served, topic: str, partitions: int) -> list[tuple[int, int, int, bytes]]:
    """(partition, offset, number, key) of everything from the beginning to the high watermark."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "reader", "check.crcs": True, "enable.auto.commit": False}
    )
    try:
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), SECONDS)[1] for p in range(partitions)}
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        got: list[tuple[int, int, int, bytes]] = []
        deadline = time.monotonic() + SECONDS
        while len(got) < sum(ends.values()):
            assert time.monotonic() < deadline, f"{len(got)} of {sum(ends.values())}"
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                got.append((message.partition(), message.offset(), int(message.value()), message.key()))
        return got
    finally:
        consumer.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_idempotent_producer_writes_through_kills(serve: Serve) -> None:
    node = serve()
    create(node, "t", 3)
    writing = Writing(node, "t")
    try:
        for _ in range(ROUNDS):
            before = len(writing.acknowledged)
            wait_for(lambda before=before: len(writing.acknowledged) > before + 2000)
            node.kill()
            node.start()
    finally:
        writing.stop()
    assert writing.failed == []
    assert len(writing.acknowledged) == writing.sent
    got = read_all(node, "t", 3)
    assert sorted(number for _, _, number, _ in got) == list(range(writing.sent)), "each exactly once"
    there = {(partition, offset): number for partition, offset, number, _ in got}
    for number, place in writing.acknowledged.items():
        if place[1] >= 0:
            assert there[place] == number
    for key in {key for *_, key in got}:
        numbers = [number for _, _, number, k in sorted(got) if k == key]
        assert numbers == sorted(numbers)


def test_what_a_reader_has_seen_stays(serve: Serve) -> None:
    """A record that any consumer was given before a kill is there after it, at the same offset."""
    node = serve()
    create(node, "t", 1)
    seen: dict[int, bytes] = {}
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "watcher", "log_level": 0, "error_cb": lambda error: None}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    writing = Writing(node, "t", **{"enable.idempotence": False, "acks": "1"})
    try:
        for _ in range(ROUNDS):
            until = len(seen) + 1000
            deadline = time.monotonic() + SECONDS
            while len(seen) < until:
                assert time.monotonic() < deadline
                for message in consumer.consume(500, 0.1):
                    if message.error() is None:
                        assert seen.setdefault(message.offset(), message.value()) == message.value()
            node.kill()
            node.start()
    finally:
        writing.stop()
        consumer.close()
    there = {offset: b"%d" % number for _, offset, number, _ in read_all(node, "t", 1)}
    assert {offset: value for offset, value in seen.items() if there.get(offset) != value} == {}


def test_a_reader_that_waits_at_the_end_stays_there(serve: Serve) -> None:
    """Its position is of an epoch in which nothing was written; no answer may look as if the log had been cut."""
    node = serve()
    create(node, "t", 1)
    client = {"bootstrap.servers": node.bootstrap, "log_level": 0, "error_cb": lambda error: None}
    producer = Producer(client)
    for number in range(10):
        producer.produce("t", b"old %d" % number)
    assert producer.flush(SECONDS) == 0
    node.kill()
    node.start()
    config = {"group.id": "watcher", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = Consumer({**client, **config, "enable.auto.commit": False, "reconnect.backoff.max.ms": 200})
    consumer.assign([TopicPartition("t", 0, OFFSET_END)])
    got: list[bytes | None] = []

    def is_read(last: object) -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            got.append(None if message.error() else message.value())
        return last in got[-1:]

    try:
        wait_for(lambda: is_read(None))  # "end of partition": it has its position
        node.kill()
        node.start()
        deadline = time.monotonic() + 3  # until it has connected and asked where its epoch ends
        wait_for(lambda: is_read(b"old 9") or time.monotonic() > deadline)
        producer.produce("t", b"new")
        assert producer.flush(SECONDS) == 0
        wait_for(lambda: is_read(b"new"))
    finally:
        consumer.close()
    assert [value for value in got if value is not None] == [b"new"]


def test_groups_topics_and_settings_outlive_a_kill(serve: Serve) -> None:
    node = serve()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("kept", 2, 1, config={"retention.ms": "123456789"})])["kept"].result(SECONDS)
    cluster = admin.describe_cluster().result(SECONDS).cluster_id
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("kept", 0, 11), TopicPartition("kept", 1, 22)], asynchronous=False)
    node.kill()  # with no word to anybody, right after the answers
    node.start()
    wait_for(lambda: "kept" in admin.list_topics(timeout=SECONDS).topics)
    committed = consumer.committed([TopicPartition("kept", 0), TopicPartition("kept", 1)], SECONDS)
    consumer.close()
    assert [partition.offset for partition in committed] == [11, 22]
    again = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    assert again.describe_cluster().result(SECONDS).cluster_id == cluster
    assert len(again.list_topics("kept", SECONDS).topics["kept"].partitions) == 2
