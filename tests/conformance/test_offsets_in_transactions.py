"""Consume, transform, produce with three client libraries: offsets come or go with the transaction, also by kill -9."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioPlace
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as PythonPlace
from tests.worlds.served_node import Served

SECONDS = 60
RECORDS = 200
EACH = 20
"""Records of a transaction."""
Serve = Callable[..., Served]


def create(node: Served, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(SECONDS)


def fill(node: Served, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(SECONDS) == 0


def read_committed(node: Served, topic: str) -> list[bytes]:
    """All that may be seen, in order."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0,
         "enable.auto.commit": False, "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = []
    while (message := consumer.poll(SECONDS)) is not None and message.error() is None:
        seen.append(message.value())
    consumer.close()
    return seen


def committed(node: Served, group: str, topic: str, *, stable: bool = True) -> int:
    """Where the group stands, as an admin sees it."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
    (future,) = admin.list_consumer_group_offsets(asked, require_stable=stable).values()
    (found,) = future.result(SECONDS).topic_partitions
    if found.error is not None:
        raise KafkaException(found.error)
    return int(found.offset)


class Copier:
    """A transactional program of librdkafka's that copies `source` to `target`."""

    def __init__(self, node: Served, source: str, target: str, group: str, done: int = 0) -> None:
        self.source, self.target = source, target
        self.done = done
        """Records that the group has copied."""
        common = {
            "bootstrap.servers": node.bootstrap,
            "log_level": 0,
            "reconnect.backoff.max.ms": 200,
            # librdkafka 2.16 goes on with a broker that its re-bootstrap has dismissed, and asks nobody any more.
            "metadata.recovery.strategy": "none",
        }
        self.consumer = Consumer(
            {**common, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
             "isolation.level": "read_committed", "session.timeout.ms": 6000}
        )  # fmt: skip
        self.consumer.subscribe([source])
        self.producer = Producer({**common, "transactional.id": f"copier-{group}", "transaction.timeout.ms": 30_000})
        self.patiently(lambda: self.producer.init_transactions(SECONDS))

    def patiently(self, work: Callable[[], object]) -> None:
        """As a program has to: what may be tried again is."""
        until = time.monotonic() + SECONDS
        while True:
            try:
                work()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def batch(self) -> list[Any]:
        """The next records; none behind the last one."""
        found: list[Any] = []
        until = time.monotonic() + SECONDS
        while self.done < RECORDS and len(found) < EACH:
            assert time.monotonic() < until, "no records came"
            message = self.consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message)
        return found

    def write(self, found: list[Any]) -> None:
        """One transaction, but for its end."""
        self.producer.begin_transaction()
        for message in found:
            self.producer.produce(self.target, message.value())
        positions = self.consumer.position(self.consumer.assignment())
        group = self.consumer.consumer_group_metadata()
        self.patiently(lambda: self.producer.send_offsets_to_transaction(positions, group, SECONDS))

    def commit(self) -> None:
        self.patiently(lambda: self.producer.commit_transaction(SECONDS))
        self.done += EACH

    def abort(self) -> None:
        """Also takes the consumer back to where the group stands."""
        self.patiently(lambda: self.producer.abort_transaction(SECONDS))
        for place in self.consumer.committed(self.consumer.assignment(), SECONDS):
            self.consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))

    def close(self) -> None:
        self.consumer.close()


def test_librdkafka_copies_each_record_once_though_transactions_are_aborted(
    node: Served, name: Callable[[str], str]
) -> None:
    source, target, group = name("source"), name("target"), name("group")
    create(node, source, target)
    fill(node, source)
    copier = Copier(node, source, target, group)
    count = 0
    while found := copier.batch():
        copier.write(found)
        if count % 3 == 1:
            with pytest.raises(KafkaException, match="UNSTABLE_OFFSET_COMMIT"):
                committed(node, group, source)
            before = committed(node, group, source, stable=False)
            copier.abort()
            assert committed(node, group, source) == before
        else:
            copier.commit()
            assert committed(node, group, source) == found[-1].offset() + 1
        count += 1
    copier.close()
    assert read_committed(node, target) == [b"%d" % number for number in range(RECORDS)]
    assert committed(node, group, source) == RECORDS


@pytest.mark.parametrize("moment", ["before the end", "behind the end"])
def test_a_node_killed_around_the_end_of_a_transaction_keeps_offsets_and_records_together(
    serve: Serve, moment: str
) -> None:
    node = serve()
    create(node, "source", "target")
    fill(node, "source")
    copier = Copier(node, "source", "target", "group")
    count = 0
    while found := copier.batch():
        copier.write(found)
        if moment == "before the end" and count % 2 == 0:
            node.kill()
            node.start()
        copier.commit()
        if moment == "behind the end" and count % 2 == 0:
            node.kill()
            node.start()
        assert committed(node, "group", "source") == found[-1].offset() + 1
        count += 1
    copier.close()
    assert count >= RECORDS // EACH
    assert read_committed(node, "target") == [b"%d" % number for number in range(RECORDS)]


def test_a_copier_that_is_followed_by_another_life_leaves_nothing(node: Served, name: Callable[[str], str]) -> None:
    """The first dies with an open transaction; the next one fences it and begins where the group stands."""
    source, target, group = name("source"), name("target"), name("group")
    create(node, source, target)
    fill(node, source)
    first = Copier(node, source, target, group)
    first.write(first.batch())
    first.commit()
    first.write(first.batch())
    first.producer.flush(SECONDS)
    first.consumer.close()
    second = Copier(node, source, target, group, EACH)
    assert committed(node, group, source) == EACH
    while found := second.batch():
        second.write(found)
        second.commit()
    with pytest.raises(KafkaException):
        first.commit()
    second.close()
    assert read_committed(node, target) == [b"%d" % number for number in range(RECORDS)]


def test_aiokafka_copies_each_record_once(node: Served, name: Callable[[str], str]) -> None:
    source, target, group = name("source"), name("target"), name("group")
    create(node, source, target)
    fill(node, source)

    async def copy() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=name("aio"))
        consumer = AIOKafkaConsumer(
            source, bootstrap_servers=node.bootstrap, group_id=group, auto_offset_reset="earliest",
            enable_auto_commit=False, isolation_level="read_committed",
        )  # fmt: skip
        await producer.start()
        await consumer.start()
        place, done, count = AioPlace(source, 0), 0, 0
        while done < RECORDS:
            found = (await consumer.getmany(place, timeout_ms=SECONDS * 1000, max_records=EACH))[place]
            await producer.begin_transaction()
            for record in found:
                await producer.send(target, record.value)
            await producer.send_offsets_to_transaction({place: found[-1].offset + 1}, group)
            if count % 3 == 1:
                await producer.abort_transaction()
                consumer.seek(place, done)
            else:
                await producer.commit_transaction()
                done = found[-1].offset + 1
                assert await consumer.committed(place) == done
            count += 1
        await consumer.stop()
        await producer.stop()

    asyncio.run(copy())
    assert read_committed(node, target) == [b"%d" % number for number in range(RECORDS)]
    assert committed(node, group, source) == RECORDS


def test_kafka_python_copies_each_record_once(node: Served, name: Callable[[str], str]) -> None:
    """It names its member and generation, so that the group's coordinator knows whose offsets they are (KIP-447)."""
    source, target, group = name("source"), name("target"), name("group")
    create(node, source, target)
    fill(node, source)
    producer = KafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=name("python"))
    consumer = KafkaConsumer(
        source, bootstrap_servers=node.bootstrap, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False, isolation_level="read_committed", max_poll_records=EACH,
    )  # fmt: skip
    producer.init_transactions()
    place, done, count = PythonPlace(source, 0), 0, 0
    while done < RECORDS:
        found = consumer.poll(timeout_ms=SECONDS * 1000, max_records=EACH)[place]
        producer.begin_transaction()
        for record in found:
            producer.send(target, record.value)
        offsets = {place: OffsetAndMetadata(found[-1].offset + 1, "", -1)}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        if count % 3 == 1:
            producer.abort_transaction()
            consumer.seek(place, done)
        else:
            producer.commit_transaction()
            done = found[-1].offset + 1
        assert committed(node, group, source) == done
        count += 1
    consumer.close()
    producer.close()
    assert read_committed(node, target) == [b"%d" % number for number in range(RECORDS)]
