"""One directory, two ways in: what an embedded log wrote is served, and what a server took is there embedded."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.worlds.served_node import Served

import duramen


def read_all(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "any", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    rows = []
    while len(rows) < count:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        rows.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return rows


def test_embedded_then_served_then_embedded(tmp_path: Path) -> None:
    node = Served(tmp_path)
    with duramen.open(node.data) as log:
        log.topic("events").append([duramen.Record(key=b"k", value=b"%d" % number) for number in range(10)])

    node.start()
    try:
        assert read_all(node.bootstrap, "events", 10) == [(n, b"k", b"%d" % n) for n in range(10)]
        with pytest.raises(duramen.DirectoryLockedError):
            duramen.open(node.data)
        producer = Producer({"bootstrap.servers": node.bootstrap, "compression.type": "zstd"})
        for number in range(10, 20):
            producer.produce("events", key=b"k", value=b"%d" % number)
        assert producer.flush(20) == 0
        assert node.stop() == 0
    finally:
        node.kill()

    with duramen.open(node.data) as log:
        events = log.topic("events")
        assert [(r.offset, r.value) for r in events.read(0)] == [(n, b"%d" % n) for n in range(20)]
        assert events.append([duramen.Record(value=b"last")]) == [20]


def test_a_killed_servers_directory_opens_embedded_with_every_acknowledged_record(tmp_path: Path) -> None:
    node = Served(tmp_path)
    node.start()
    try:
        acknowledged: dict[int, bytes] = {}
        producer = Producer({"bootstrap.servers": node.bootstrap, "acks": "all"})
        for number in range(2000):
            value = b"%d" % number
            producer.produce(
                "events", value, on_delivery=lambda error, m: error or acknowledged.__setitem__(m.offset(), m.value())
            )
        assert producer.flush(30) == 0
    finally:
        node.kill()
    with duramen.open(node.data) as log:
        stored = {record.offset: record.value for record in log.topic("events").read(0)}
    assert len(acknowledged) == 2000
    assert acknowledged.items() <= stored.items()
