"""A compacted topic through real clients: the last value of every key stays, also after a kill -9; Kafka reads it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from os import urandom
from pathlib import Path

import pytest
from benchmarks.kafka_peer import DUMP_LOG, tool
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from tests.worlds.served_node import Served, only_duramen

pytestmark = [only_duramen, pytest.mark.timeout(240)]
TOPIC = "last-values"
KEYS = 50
ROUNDS = 60
PATIENCE_SECONDS = 100.0
QUICK = {"log.cleaner.backoff.ms": "200"}
"""Compaction leaves alone what recovery may still write; it asks for the checkpoint that it needs."""


def fill(node: Served, codec: str, rounds: range) -> dict[bytes, bytes | None]:
    """Every key once a round, some with tombstones; what must be left at the end."""
    producer = Producer(
        {"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "compression.type": codec, "linger.ms": 5}
    )
    last: dict[bytes, bytes | None] = {}
    for number in rounds:
        for key in range(KEYS):
            name = b"key-%d" % key
            value = None if (number + key) % 13 == 0 else b"%d/%d:" % (number, key) + urandom(400)
            producer.produce(TOPIC, value, name, partition=0)
            last[name] = value
        assert producer.flush(30) == 0
    return last


def read(node: Served, start: int = 0) -> list[tuple[int, bytes, bytes | None]]:
    """(offset, key, value) of everything that is left, up to the end."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "reader", "auto.offset.reset": "error"})
    place = TopicPartition(TOPIC, 0, start)
    end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=20)[1]
    consumer.assign([place])
    found: list[tuple[int, bytes, bytes | None]] = []
    while consumer.position([place])[0].offset < end and (not found or found[-1][0] < end - 1):
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def wait_for_compaction(node: Served, most: int) -> list[tuple[int, bytes, bytes | None]]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = read(node)
        if len(found) <= most:
            return found
        assert time.monotonic() < deadline, f"{len(found)} records are left"
        time.sleep(0.5)


def folded(found: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes | None]:
    return {key: value for _, key, value in found}


def size_of(folder: Path) -> int:
    """Bytes of all segments, some of which may just be going away."""
    size = 0
    for path in folder.glob("*.log"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


@pytest.fixture
def node(serve: Callable[..., Served]) -> Served:
    node = serve(**QUICK)
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    config = {"cleanup.policy": "compact", "internal.segment.bytes": "40000", "min.cleanable.dirty.ratio": "0.1"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(20)
    return node


def test_the_last_value_of_every_key_stays(node: Served) -> None:
    last = fill(node, "lz4", range(ROUNDS // 2)) | fill(node, "none", range(ROUNDS // 2, ROUNDS))
    found = wait_for_compaction(node, KEYS * ROUNDS // 3)
    assert folded(found) == last
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    gap = next(offset for offset in range(1, offsets[-1]) if offset not in offsets)
    following = read(node, gap)[0][0]
    assert following > gap, "the next record that is left, not an error"
    assert following in offsets
    node.kill()
    node.start()
    again = read(node)
    assert folded(again) == last
    assert len(again) <= len(found)
    last |= fill(node, "zstd", range(ROUNDS, ROUNDS + 20))
    assert folded(wait_for_compaction(node, KEYS * ROUNDS // 3)) == last


@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_dump_log_segments_reads_what_is_left(node: Served) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(TOPIC, b"there", b"gone", partition=0)
    producer.produce(TOPIC, None, b"gone", partition=0)  # a tombstone that nothing replaces
    assert producer.flush(30) == 0
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        fill(node, codec, range(ROUNDS // 4))
    left = wait_for_compaction(node, KEYS * ROUNDS // 2)
    node.stop()
    segments = sorted((node.data / f"{TOPIC}-0").glob("*.log"))
    ran = tool(DUMP_LOG, "--deep-iteration", "--files", ",".join(map(str, segments)), timeout=90, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "isvalid: false" not in ran.stdout
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", ran.stdout, flags=re.MULTILINE)]
    assert offsets == sorted(set(offsets))
    assert set(offsets) <= {offset for offset, _, _ in left}
    assert re.search(r"deleteHorizonMs: OptionalLong\[\d+\]", ran.stdout), "tombstones got their horizon"
    indexes = sorted((node.data / f"{TOPIC}-0").glob("*.*index"))
    ran = tool(DUMP_LOG, "--files", ",".join(map(str, indexes)), timeout=90, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not re.search("mismatch|corrupt|exception", ran.stdout + ran.stderr, re.IGNORECASE), ran.stdout[-2000:]


def test_committed_offsets_outlive_the_compaction_of_their_log(serve: Callable[..., Served]) -> None:
    node = serve(**QUICK, **{"offsets.topic.num.partitions": "1", "log.segment.bytes": "1048576"})
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("many", 50, 1)])["many"].result(20)
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "committing"})
    consumer.commit(offsets=[TopicPartition("many", 0, 0)], asynchronous=False)
    settings = {"internal.segment.bytes": "40000", "min.cleanable.dirty.ratio": "0.1"}
    resource = ConfigResource(ConfigResource.Type.TOPIC, "__consumer_offsets")
    for name, value in settings.items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(20)
    folder = node.data / "__consumer_offsets-0"
    count = 300
    for number in range(1, count + 1):
        places = [TopicPartition("many", index, number * 100 + index) for index in range(50)]
        consumer.commit(offsets=places, asynchronous=False)
    written = 50 * 50 * count  # a committed offset has more than 50 bytes
    deadline = time.monotonic() + PATIENCE_SECONDS
    while size_of(folder) > written:
        assert time.monotonic() < deadline, "it was not compacted"
        time.sleep(0.3)
    node.kill()
    node.start()
    known = consumer.committed([TopicPartition("many", index) for index in range(50)], timeout=20)
    assert [place.offset for place in known] == [count * 100 + index for index in range(50)]
    consumer.close()
