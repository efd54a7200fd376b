"""Members of a group move from a topic to its successor while members and the node fall over: nothing twice."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_node import DURAMEN, Served

from duramen.client import LATEST, Cluster
from duramen.model import TopicPartition as Place
from duramen.swaps import CutOver, GroupReader, SwapConflictError, SwapLog

SECONDS_MAX = 60.0
Read = list[tuple[str, int, bytes | None]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, {"group.initial.rebalance.delay.ms": "0"})
    served.start()
    try:
        yield served
    finally:
        served.kill()


def create(node: Served, partitions: int, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, partitions, 1) for name in topics]).values():
        created.result(20)


def put(node: Served, topic: str, partition: int, *values: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(20) == 0


def swap(node: Served, *topics: str, partitions: Sequence[int] = (2, 2)) -> None:
    """Record the ends of the last two topics as one more cut in the chain."""
    with Cluster(node.bootstrap) as cluster:
        log = SwapLog(cluster)
        ends = []
        for topic, count in zip(topics[-2:], partitions, strict=True):
            found = cluster.list_offsets({Place(topic, p): LATEST for p in range(count)})
            ends.append({place.partition: at.offset for place, at in found.items()})
        log.publish(topics[0], [*log.cuts(topics[0]), CutOver(topics[-2], ends[0], topics[-1], ends[1])])


def read(*readers: GroupReader, upto: int | None = None) -> Read:
    """What these members read, committed at once, until all are at the end or there is as much as that."""
    found: Read = []
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        given = [reader.consume(1 if upto else 100, 0.05) for reader in readers]
        for reader, messages in zip(readers, given, strict=True):
            for message in messages:
                assert message.error() is None, message.error()
                found.append((str(message.topic()), int(message.partition() or 0), message.value()))
            reader.commit()
        if (upto and len(found) >= upto) or (not any(given) and all(reader.at_end for reader in readers)):
            return found
    raise AssertionError(f"not at the end after {SECONDS_MAX} s: {found}")


def test_a_group_reads_each_record_once_across_a_swap_and_a_rollback(node: Served) -> None:
    create(node, 2, "late", "late.v2")
    put(node, "late", 0, "a0", "a1", "a2")
    put(node, "late", 1, "b0")
    put(node, "late.v2", 0, "replayed")
    with GroupReader(node.bootstrap, "audit", "late") as first:
        before = read(first, upto=2)  # falls over here, with records before the cut that nobody has read
    swap(node, "late", "late.v2")
    put(node, "late", 1, "behind the cut")
    put(node, "late.v2", 0, "c0")
    put(node, "late.v2", 1, "d0")
    node.kill()
    node.start()
    with GroupReader(node.bootstrap, "audit", "late") as second:
        found = before + read(second, upto=3)
        with GroupReader(node.bootstrap, "audit", "late") as third:
            found += read(second, third)
            assert sorted(found) == [
                ("late", 0, b"a0"),
                ("late", 0, b"a1"),
                ("late", 0, b"a2"),
                ("late", 1, b"b0"),
                ("late.v2", 0, b"c0"),
                ("late.v2", 1, b"d0"),
            ]
            assert [value for topic, p, value in found if p == 0] == [b"a0", b"a1", b"a2", b"c0"]
            # Back, while both are reading: what the old topic got meanwhile, they have seen in the new one.
            swap(node, "late", "late.v2", "late")
            put(node, "late", 0, "e0")
            put(node, "late.v2", 1, "behind the cut")
            assert read(second, third) == [("late", 0, b"e0")]
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "audit"})
    try:
        places = [TopicPartition(topic, p) for topic in ("late", "late.v2") for p in (0, 1)]
        assert [place.offset for place in consumer.committed(places, timeout=20)] == [4, 2, 2, 1]
    finally:
        consumer.close()
    with GroupReader(node.bootstrap, "new", "late") as reader:
        assert {topic for topic, _, _ in read(reader)} == {"late"}, "who begins later reads the last topic, whole"


def test_the_command_goes_on_behind_the_cut(node: Served) -> None:
    create(node, 1, "late", "late.v2")
    put(node, "late", 0, "a0", "a1")
    put(node, "late.v2", 0, "replayed")

    def consumed(*more: str) -> list[str]:
        words = [DURAMEN, "consume", "late", "--group", "audit", "--bootstrap", node.bootstrap, *more]
        done = subprocess.run(words, check=True, timeout=SECONDS_MAX, capture_output=True, text=True)
        return done.stdout.split()

    assert consumed("--count", "1") == ["a0"]
    swap(node, "late", "late.v2", partitions=(1, 1))
    put(node, "late.v2", 0, "c0")
    assert consumed() == ["a1", "c0"]
    assert consumed() == []


def test_another_number_of_partitions_and_a_chain_of_somebody_else(node: Served) -> None:
    create(node, 2, "late")
    create(node, 1, "late.v2")
    put(node, "late", 0, "a0", "a1")
    put(node, "late", 1, "b0", "b1")
    with GroupReader(node.bootstrap, "audit", "late") as reader:
        found = read(reader, upto=1)
    swap(node, "late", "late.v2", partitions=(2, 1))
    put(node, "late.v2", 0, "c0")
    with GroupReader(node.bootstrap, "audit", "late") as reader:
        found += read(reader)
    assert found[-1] == ("late.v2", 0, b"c0"), "a key may lie in another partition: all of the old topic comes first"
    assert sorted(found[:-1]) == [("late", 0, b"a0"), ("late", 0, b"a1"), ("late", 1, b"b0"), ("late", 1, b"b1")]
    with Cluster(node.bootstrap) as cluster, pytest.raises(SwapConflictError, match="another pipeline"):
        SwapLog(cluster).publish("late", [CutOver("late", {0: 1}, "elsewhere", {0: 0})])


def test_a_swap_between_joining_and_the_first_records(node: Served) -> None:
    """The member subscribes to the new topic in the callback that gives it the old one."""
    create(node, 2, "late", "late.v2")
    put(node, "late", 0, "a0")
    put(node, "late.v2", 0, "replayed")
    with GroupReader(node.bootstrap, "audit", "late") as reader:
        swap(node, "late", "late.v2")
        put(node, "late.v2", 0, "c0")
        found = read(reader, upto=1) + read(reader)
    assert found == [("late.v2", 0, b"replayed"), ("late.v2", 0, b"c0")], "a new group reads the last topic, whole"


def test_a_topic_that_is_gone_once_it_is_read(node: Served) -> None:
    """A commit says of it, too, that it was read; that it cannot be made there any more must not keep the rest back."""
    create(node, 2, "late", "late.v2", "late.v3")
    put(node, "late", 0, "a0")
    put(node, "late", 1, "b0")
    with GroupReader(node.bootstrap, "audit", "late") as reader:
        found = [message.value() for message in reader.consume(1, SECONDS_MAX)]
        swap(node, "late", "late.v2")
        put(node, "late.v2", 0, "c0")
        deadline = time.monotonic() + SECONDS_MAX
        while len(found) < 3 and time.monotonic() < deadline:
            found += [message.value() for message in reader.consume(10, 0.05)]
        assert sorted(str(value) for value in found) == ["b'a0'", "b'b0'", "b'c0'"]
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        admin.delete_topics(["late"])["late"].result(20)
        reader.commit()  # with the move out of the topic that is gone
        put(node, "late.v2", 1, "d0")
        swap(node, "late", "late.v2", "late.v3")
        put(node, "late.v3", 1, "e0")
        assert read(reader) == [("late.v2", 1, b"d0"), ("late.v3", 1, b"e0")]


def test_a_member_leaves_that_was_never_asked_for_records(node: Served) -> None:
    """It gets its partitions while it closes."""
    create(node, 2, "late", "late.v2")
    with GroupReader(node.bootstrap, "audit", "late"):
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            (group,) = admin.describe_consumer_groups(["audit"]).values()
            if any(member.assignment and member.assignment.topic_partitions for member in group.result(20).members):
                break
        swap(node, "late", "late.v2")


@pytest.mark.parametrize("count", [2, 3, 5], ids=["shorter", "as long", "longer"])
def test_a_topic_that_was_made_anew_is_read_from_its_first_record(node: Served, count: int) -> None:
    """What was committed of the old one went with it, also where the number is the same."""
    told: list[str] = []
    create(node, 1, "late")
    put(node, "late", 0, "a0", "a1", "a2")
    with GroupReader(node.bootstrap, "audit", "late", tell=told.append) as reader:
        assert len(read(reader)) == 3
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        admin.delete_topics(["late"])["late"].result(20)
        create(node, 1, "late")
        put(node, "late", 0, *(f"b{number}" for number in range(count)))
        found: list[bytes | None] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            found += [message.value() for message in reader.consume(10, 0.05)]
            reader.commit()
        assert read(reader) == []
        assert found == [f"b{number}".encode() for number in range(count)]
    assert told == ["topic late was deleted and made anew; it is read from its first record"]
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "audit"})
    try:
        assert consumer.committed([TopicPartition("late", 0)], timeout=20)[0].offset == count
    finally:
        consumer.close()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_records_that_were_gone_before_they_were_read_are_told(
    node: Served, start: Literal["earliest", "latest"]
) -> None:
    """Where a group without offsets begins has nothing to do with it: what is there of a group's records is read."""
    told: list[str] = []
    create(node, 1, "late")
    put(node, "late", 0, "a0", "a1", "a2")
    with GroupReader(node.bootstrap, "audit", "late", start=start, tell=told.append) as reader:
        read(reader)
    put(node, "late", 0, *(f"b{number}" for number in range(5)))
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    (deleted,) = admin.delete_records([TopicPartition("late", 0, 6)]).values()
    deleted.result(20)
    with GroupReader(node.bootstrap, "audit", "late", start=start, tell=told.append) as reader:
        assert read(reader, upto=2) == [("late", 0, b"b3"), ("late", 0, b"b4")]
    assert told == ["late-0: offsets 3 to 5 were gone before they were read; going on at 6"]


@pytest.mark.slow
def test_an_operator_sets_the_group_to_another_place(node: Served) -> None:
    """By our command and by other tools, whose commits do not say which visit of the topic is meant."""
    create(node, 1, "late", "late.v2")
    put(node, "late", 0, "a0", "a1")
    put(node, "late.v2", 0, "replayed", "replayed")

    def reset(*words: str) -> str:
        asked = [DURAMEN, "group", "reset-offsets", "audit", *words, "--execute", "--bootstrap", node.bootstrap]
        done = subprocess.run(asked, check=True, timeout=SECONDS_MAX, capture_output=True, text=True)
        return done.stdout + done.stderr

    def by_another(topic: str, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        asked = [ConsumerGroupTopicPartitions("audit", [TopicPartition(topic, 0, offset)])]
        (done,) = admin.alter_consumer_group_offsets(asked).values()
        done.result(20)

    def again() -> list[bytes | None]:
        with GroupReader(node.bootstrap, "audit", "late") as reader:
            return [value for _, _, value in read(reader)]

    assert again() == [b"a0", b"a1"]
    swap(node, "late", "late.v2", partitions=(1, 1))
    put(node, "late.v2", 0, "b0", "b1")
    assert again() == [b"b0", b"b1"]
    assert "go on behind it in late.v2" in reset("--topic", "late", "--to-offset", "1")
    assert again() == [b"a1", b"b0", b"b1"]
    assert again() == []
    by_another("late", 1)
    assert again() == [b"a1", b"b0", b"b1"]
    reset("--topic", "late.v2", "--shift-by", "-1")
    assert again() == [b"b1"]

    put(node, "late", 0, "b0", "b1")
    swap(node, "late", "late.v2", "late", partitions=(1, 1))
    put(node, "late", 0, "c0")
    assert again() == [b"c0"]
    for set_back in (lambda: reset("--topic", "late", "--to-offset", "3"), lambda: by_another("late", 3)):
        set_back()
        assert again() == [b"b1", b"c0"], "in the topic that is current, though the group has read it before, too"
    reset("--topic", "late", "--to-earliest")
    assert again() == [b"a0", b"a1", b"b0", b"b1", b"c0"]
    reset("--topic", "late.v2", "--to-offset", "3")
    assert again() == [b"b1", b"c0"]
    reset("--all-topics", "--to-latest")
    assert again() == []
