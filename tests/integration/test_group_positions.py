"""A position as the committed offset of a group, and what Kafka's clients and tools see of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from uuid import uuid4

import kafka
import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from tests.worlds.served_node import DURAMEN, Served

from duramen import streams
from duramen.errors import ConfigError


@pytest.fixture
def space(served: Served) -> Iterator[streams.Namespace]:
    with streams.open(f"duramen://{served.bootstrap}/groups", timeout_s=10) as opened:
        yield opened


def test_tools_see_what_is_saved_and_may_move_it(served: Served, space: streams.Namespace) -> None:
    stream = space.create(f"s-{uuid4().hex}")
    group = f"g-{uuid4().hex}"
    first = stream.append([b"a", b"b", b"c", b"d", b"e"]).dlsn
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": group, "enable.auto.commit": False})
    with streams.GroupPositions(served.bootstrap, stream, group) as store:
        assert store.load() is None
        store.save(first.next)
        assert store.load() == first.next
        other = KafkaConsumer(bootstrap_servers=served.bootstrap, group_id=group, enable_auto_commit=False)
        seen = other.committed(kafka.TopicPartition(stream.topic, 0), metadata=True)
        other.close()
        assert (seen.offset, seen.metadata, seen.leader_epoch) == (
            2,
            f"{first.next}.{stream.stream_id[:8]}",
            first.leader_epoch,
        )
        shown = subprocess.run(
            [DURAMEN, "group", "describe", group, "--bootstrap", served.bootstrap, "--json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (told,) = json.loads(shown)
        assert (told["state"], told["lag"], told["partitions"][0]["committed"]) == ("Empty", 3, 2)

        for offset, left in ((4, [b"e"]), (0, [b"a", b"b", b"c", b"d", b"e"])):
            consumer.commit(offsets=[TopicPartition(stream.topic, 0, offset)], asynchronous=False)
            assert store.load() == offset - 1
            assert [record.value for record in stream.reader(after=store.load())] == left
        consumer.commit(offsets=[TopicPartition(stream.topic, 0, 4, metadata=str(first))], asynchronous=False)
        assert store.load() == 3, "the metadata names another record"
    consumer.close()


def test_a_group_that_has_members_is_theirs(served: Served, space: streams.Namespace) -> None:
    stream = space.create(f"s-{uuid4().hex}")
    group = f"g-{uuid4().hex}"
    here = stream.append(b"a").dlsn
    consumer = Consumer(
        {"bootstrap.servers": served.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        | {"group.protocol": "consumer"}
    )
    consumer.subscribe([stream.topic])
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"a"
    with streams.GroupPositions(served.bootstrap, stream, group) as store:
        with pytest.raises(streams.PositionTakenError, match="has members"):
            store.save(here)
        consumer.close()
        store.save(here)
        assert store.load() == here


def test_a_stream_that_was_deleted_is_said_at_once(served: Served, space: streams.Namespace) -> None:
    stream = space.create(f"s-{uuid4().hex}")
    here = stream.append(b"a").dlsn
    with streams.GroupPositions(served.bootstrap, stream, "late") as store:
        space.delete(stream.name)
        with pytest.raises(streams.NoSuchStreamError):
            store.save(here)
        assert store.load() is None
    with pytest.raises(ConfigError, match="has a name"):
        streams.GroupPositions(served.bootstrap, stream, "")


def test_a_position_in_a_stream_that_was_made_again_is_refused(served: Served, space: streams.Namespace) -> None:
    stream = space.create(f"s-{uuid4().hex}")
    group = f"g-{uuid4().hex}"
    first = stream.append([b"a", b"b"]).dlsn
    with streams.GroupPositions(served.bootstrap, stream, group) as store:
        store.save(first)
    space.delete(stream.name)
    again = space.create(stream.name)
    with streams.GroupPositions(served.bootstrap, again, group) as store:
        assert store.load() is None, "the offsets of a topic that is deleted are forgotten"
        store.save(again.append([b"c", b"d"]).dlsn)
    with (
        streams.GroupPositions(served.bootstrap, stream, group) as store,
        pytest.raises(streams.PositionDivergedError, match=r"made again since.*duramen group reset-offsets"),
    ):
        store.load()
