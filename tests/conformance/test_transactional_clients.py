"""Transactions of unmodified clients: what is committed is seen once, what is aborted never, whatever is killed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_node import FOREIGN, Served
from tests.worlds.transaction_load import COMMITTED, UNCOMMITTED, Transactions, values_of

Names = Callable[[str], str]
SECONDS = 60.0


def create(node: Served, *topics: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result(SECONDS)


def producer_of(node: Served, transactional_id: str, **config: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "log_level": 0,
            "reconnect.backoff.max.ms": 200,
            "error_cb": lambda error: None,
            **config,
        }
    )


def write(producer: Producer, topics: list[str], values: list[bytes], *, commit: bool) -> None:
    producer.begin_transaction()
    for topic in topics:
        for value in values:
            producer.produce(topic, value)
    if commit:
        producer.commit_transaction(SECONDS)
    else:
        assert producer.flush(SECONDS) == 0
        producer.abort_transaction(SECONDS)


def by_confluent(node: Served, topic: str, isolation: str) -> list[bytes]:
    return values_of(node.bootstrap, topic, isolation)


def by_kafka_python(node: Served, topic: str, isolation: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=node.bootstrap, isolation_level=isolation, auto_offset_reset="earliest"
    )
    try:
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end, got, deadline = consumer.end_offsets([place])[place], [], time.monotonic() + SECONDS
        while consumer.position(place) < end:
            assert time.monotonic() < deadline
            for records in consumer.poll(200).values():
                got += [record.value for record in records]
        return got
    finally:
        consumer.close()


def by_aiokafka(node: Served, topic: str, isolation: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=node.bootstrap, isolation_level=isolation, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            got: list[bytes] = []
            async with asyncio.timeout(SECONDS):
                while await consumer.position(place) < end:
                    found = await consumer.getmany(place, timeout_ms=200)
                    got += [record.value for records in found.values() for record in records]
            return got
        finally:
            await consumer.stop()

    return asyncio.run(read())


READERS = {"confluent-kafka": by_confluent, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka}


# ---- one transaction and the next ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(node: Served) -> str:
    """A topic with transactions that were committed and aborted, and plain records between them."""
    topic = f"mixed-{os.getpid()}"
    create(node, topic)
    producer = producer_of(node, f"mixed-{os.getpid()}")
    producer.init_transactions(SECONDS)
    plain = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for number in range(6):
        write(producer, [topic], [b"%d-%d" % (number, index) for index in range(3)], commit=number % 2 == 0)
        plain.produce(topic, b"plain-%d" % number)
        assert plain.flush(SECONDS) == 0
    return topic


@pytest.mark.parametrize("reader", READERS)
def test_readers_of_committed_records_see_no_other(node: Served, mixed: str, reader: str) -> None:
    expected = []
    for number in range(6):
        if number % 2 == 0:
            expected += [b"%d-%d" % (number, index) for index in range(3)]
        expected.append(b"plain-%d" % number)
    assert READERS[reader](node, mixed, COMMITTED) == expected
    everything = READERS[reader](node, mixed, UNCOMMITTED)
    assert len(everything) == 24
    assert [value for value in everything if value in set(expected)] == expected


def test_nothing_is_seen_before_the_commit_and_all_of_it_behind_it(node: Served, name: Names) -> None:
    topics = [name("a"), name("b")]
    create(node, *topics, partitions=3)
    producer = producer_of(node, name("id"))
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for topic in topics:
        for index in range(3):
            producer.produce(topic, b"x%d" % index, partition=index)
    assert producer.flush(SECONDS) == 0
    for topic in topics:
        assert values_of(node.bootstrap, topic, COMMITTED) == []
        assert len(values_of(node.bootstrap, topic, UNCOMMITTED)) == 3
    producer.commit_transaction(SECONDS)
    deadline = time.monotonic() + 10
    while any(len(values_of(node.bootstrap, topic, COMMITTED)) < 3 for topic in topics):
        assert time.monotonic() < deadline, "its markers are not written"


def test_another_life_of_the_id_fences_the_one_before(node: Served, name: Names) -> None:
    topic, transactional_id = name("t"), name("id")
    create(node, topic)
    first = producer_of(node, transactional_id)
    first.init_transactions(SECONDS)
    first.begin_transaction()
    first.produce(topic, b"old")
    assert first.flush(SECONDS) == 0
    second = producer_of(node, transactional_id)
    second.init_transactions(SECONDS)
    write(second, [topic], [b"new"], commit=True)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(SECONDS)
    assert fenced.value.args[0].fatal() or fenced.value.args[0].txn_requires_abort()
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError._STATE)
    assert values_of(node.bootstrap, topic, COMMITTED) == [b"new"]


def test_a_transaction_that_nobody_ends_is_aborted_at_its_time_out(serve: Callable[..., Served]) -> None:
    if FOREIGN:
        pytest.skip("it needs an interval of its own")
    node = serve(**{"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"})
    create(node, "t")
    producer = producer_of(node, "id", **{"transaction.timeout.ms": 1_000})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("t", b"left")
    assert producer.flush(SECONDS) == 0
    plain = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
    plain.produce("t", b"behind")
    assert plain.flush(SECONDS) == 0
    assert values_of(node.bootstrap, "t", COMMITTED) == []
    deadline = time.monotonic() + 10
    while values_of(node.bootstrap, "t", COMMITTED) != [b"behind"]:
        assert time.monotonic() < deadline, "it is still open"
    assert "transaction-aborted" in (node.folder / "server.log").read_text()


def test_thousands_of_partitions_end_together(serve: Callable[..., Served]) -> None:
    node = serve()
    count = 200 if FOREIGN else 1_000
    create(node, "wide", partitions=count)
    producer = producer_of(node, "id", **{"queue.buffering.max.messages": 10_000})
    producer.init_transactions(SECONDS)
    for commit in (True, False):
        producer.begin_transaction()
        for index in range(count):
            producer.produce("wide", b"%d" % commit, partition=index)
        assert producer.flush(SECONDS) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(SECONDS)
    producer.begin_transaction()
    producer.produce("wide", b"1", partition=0)
    producer.commit_transaction(SECONDS)  # the one before has ended
    assert values_of(node.bootstrap, "wide", COMMITTED) == [b"1"] * (count + 1)


# ---- other clients -------------------------------------------------------------------------------------------------


def test_aiokafkas_producer(node: Served, name: Names) -> None:
    topic = name("aio")
    create(node, topic)

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=name("id"))
        await producer.start()
        try:
            for number in range(4):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % number)
                await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
        finally:
            await producer.stop()

    asyncio.run(run())
    for reader in READERS.values():
        assert reader(node, topic, COMMITTED) == [b"0", b"2"]


def test_kafka_pythons_producer(node: Served, name: Names) -> None:
    topic = name("kp")
    create(node, topic)
    producer: Any = kafka.KafkaProducer(bootstrap_servers=node.bootstrap, transactional_id=name("id"))
    try:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number).get(SECONDS)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    finally:
        producer.close()
    for reader in READERS.values():
        assert reader(node, topic, COMMITTED) == [b"0", b"2"]


# ---- kills ---------------------------------------------------------------------------------------------------------


def test_all_or_nothing_whenever_the_node_is_killed(serve: Callable[..., Served]) -> None:
    node = serve()
    create(node, "a", "b", partitions=2)
    chance = random.Random(4)
    with Transactions(node.bootstrap, ["a", "b"], "id", 4) as writer:
        for _ in range(2 if FOREIGN else 4):
            writer.goes_on()
            time.sleep(chance.random() / 10)
            node.kill()
            node.start()
        writer.goes_on()
    # What a producer that was given up has left open is aborted by its next life.
    producer_of(node, "id").init_transactions(SECONDS)
    writer.check({topic: values_of(node.bootstrap, topic, COMMITTED) for topic in ("a", "b")})
