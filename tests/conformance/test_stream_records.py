"""Kafka's clients on topics that hold control records of ours: they read over them, and hear at once of a close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPlace
from aiokafka.errors import PolicyViolationError as AioClosed
from benchmarks.kafka_peer import tool
from confluent_kafka import Consumer, Producer
from confluent_kafka import KafkaError as LibraryError
from confluent_kafka import TopicPartition as Place
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPython
from kafka.errors import PolicyViolationError
from tests.worlds.served_node import Served, only_duramen

from duramen.client import CONTROLLER, Cluster
from duramen.errors import ErrorCode
from duramen.errors import KafkaError as KafkaRefusal
from duramen.model import TopicPartition, named_producer_id
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

pytestmark = only_duramen
Names = Callable[[str], str]
SECONDS = 60
OPEN_WRITER, CONDITIONAL_APPEND = 10030, 10031
ISOLATIONS = pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])


def batch(*values: bytes, **fields: int) -> bytearray:
    return build_batch([(b"k", value, (), 1_760_000_000_000) for value in values], **fields)  # type: ignore[arg-type]


def set_exclusive(cluster: Cluster, topic: str, value: str) -> None:
    request = API[44].request
    config = request.AlterableConfig(name="duramen.writer.exclusive", config_operation=0, value=value)
    resources = [request.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])]
    answer = cluster.call(CONTROLLER, 44, request.new(resources=resources))
    assert [each.error_code for each in answer.responses] == [0]


def open_writer(cluster: Cluster, topic: str) -> int:
    """An exclusive topic, and the producer id of its writer."""
    cluster.partitions(topic, create=True)
    set_exclusive(cluster, topic, "true")
    request = API[OPEN_WRITER].request.new(topic_name=topic, partition=0, name="w")
    return int(cluster.call(TopicPartition(topic, 0), OPEN_WRITER, request).producer_id)


def append(cluster: Cluster, topic: str, **fields: Any) -> Any:
    """ConditionalAppend; the answer."""
    request = API[CONDITIONAL_APPEND].request.new(topic_name=topic, partition=0, **fields)
    return cluster.call(TopicPartition(topic, 0), CONDITIONAL_APPEND, request)


@pytest.fixture
def closed(node: Served, name: Names) -> str:
    """A topic of two records, at 1 and 2, between control records of ours."""
    topic = name("closed")
    with Cluster(node.bootstrap) as cluster:
        producer_id = open_writer(cluster, topic)
        for sequence, value in enumerate((b"a", b"b")):
            records = batch(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            answer = append(cluster, topic, records=records, expected_offset=1 + sequence, close=value == b"b")
            assert (answer.error_code, answer.base_offset, answer.closed) == (0, 1 + sequence, value == b"b")
        set_exclusive(cluster, topic, "false")
    return topic


@ISOLATIONS
def test_confluent_kafka(node: Served, name: Names, closed: str, isolation: str) -> None:
    settings = {"bootstrap.servers": node.bootstrap, "group.id": name("g"), "isolation.level": isolation}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([Place(closed, 0, 0)])
    found: list[bytes | None] = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == LibraryError._PARTITION_EOF
            assert message.offset() == 4
            break
        found.append(message.value())
    consumer.close()
    assert found == [b"a", b"b"]
    told: list[LibraryError | None] = []
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    producer.produce(closed, b"late", partition=0, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(SECONDS) == 0
    assert [error and error.code() for error in told] == [LibraryError.POLICY_VIOLATION]


@ISOLATIONS
def test_aiokafka(node: Served, closed: str, isolation: str) -> None:
    async def run() -> list[bytes]:
        found: list[bytes] = []
        place = AioPlace(closed, 0)
        async with AIOKafkaConsumer(
            bootstrap_servers=node.bootstrap, auto_offset_reset="earliest", isolation_level=isolation
        ) as consumer:
            consumer.assign([place])
            while await asyncio.wait_for(consumer.position(place), SECONDS) < 4:
                got = await consumer.getmany(place, timeout_ms=500)
                found += [record.value for records in got.values() for record in records]
        async with AIOKafkaProducer(bootstrap_servers=node.bootstrap, enable_idempotence=True) as producer:
            with pytest.raises(AioClosed):
                await asyncio.wait_for(producer.send_and_wait(closed, b"late", partition=0), SECONDS)
        return found

    assert asyncio.run(asyncio.wait_for(run(), SECONDS)) == [b"a", b"b"]


@ISOLATIONS
def test_kafka_python(node: Served, closed: str, isolation: str) -> None:
    place = KafkaPython(closed, 0)
    consumer = KafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest", isolation_level=isolation)
    consumer.assign([place])
    found: list[bytes] = []
    while consumer.position(place) < 4:
        got = consumer.poll(timeout_ms=500)
        found += [record.value for records in got.values() for record in records]
    consumer.close()
    assert found == [b"a", b"b"]
    producer = KafkaProducer(bootstrap_servers=node.bootstrap, enable_idempotence=True)
    with pytest.raises(PolicyViolationError):
        producer.send(closed, b"late", partition=0).get(SECONDS)
    producer.close()


@ISOLATIONS
def test_java(node: Served, closed: str, isolation: str) -> None:
    command = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    options = ("--from-beginning", "--max-messages", "2", "--timeout-ms", "30000", "--isolation-level", isolation)
    told = tool(command, "--bootstrap-server", node.bootstrap, "--topic", closed, *options, timeout=90)
    assert told.stdout.split() == ["a", "b"]


def test_it_stays_closed_behind_kills_without_any_side_file(serve: Callable[..., Served], name: Names) -> None:
    served, topic = serve(), name("closed")
    kept = (".log", ".part", "meta.properties", "partition.metadata", "duramen-directory", ".lock")
    with Cluster(served.bootstrap) as cluster:
        cluster.partitions(topic, create=True)
        assert append(cluster, topic, records=batch(b"a"), close=True).error_code == 0
    for stop in (served.kill, served.kill, served.stop):
        stop()
        for path in (served.data / f"{topic}-0").iterdir():
            if not path.name.endswith(kept):
                path.unlink()
        served.start()
        with Cluster(served.bootstrap) as cluster:
            late = append(cluster, topic, records=batch(b"late"))
            assert (late.error_code, late.end_offset, late.closed) == (10030, 2, True)


def test_a_named_writer_goes_on_behind_kills(serve: Callable[..., Served], name: Names) -> None:
    """Over Produce, whose requests of one batch take the short way, and over ConditionalAppend."""
    served, topic = serve(), name("named")
    place = TopicPartition(topic, 0)
    rows = [(b"k", value, (), 1_760_000_000_000) for value in (b"a", b"b")]
    for number in range(9):
        records = build_batch(rows, producer_id=named_producer_id("w"), producer_epoch=0, base_sequence=number)
        with Cluster(served.bootstrap) as cluster:
            cluster.partitions(topic, create=True)
            for _ in range(2):
                assert cluster.produce(place, records).base_offset == 2 * number
            again = append(cluster, topic, records=records, expected_offset=0)
            assert (again.error_code, again.base_offset, again.duplicate) == (0, 2 * number, True)
            old = build_batch(rows, producer_id=named_producer_id("w"), producer_epoch=0, base_sequence=0)
            if number > 4:
                with pytest.raises(KafkaRefusal) as caught:
                    cluster.produce(place, old)
                assert caught.value.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        if number % 4 == 3:
            served.kill()
            served.start()
    with Cluster(served.bootstrap) as cluster:
        told = append(cluster, topic, producer_id=named_producer_id("w"))
        assert (told.expected_sequence, told.writer_epoch, told.end_offset, told.end_epoch > 0) == (9, 0, 18, True)
        for expected, code in (({}, 42), ({"expected_offset": 18}, 1), ({"expected_offset": 17}, 10031)):
            refused = append(cluster, topic, records=batch(b"x"), expected_epoch=told.end_epoch + 1, **expected)
            assert (refused.error_code, refused.end_offset) == (code, -1 if code == 42 else 18)
        granted = append(cluster, topic, records=batch(b"x"), expected_offset=18, expected_epoch=told.end_epoch)
        assert (granted.error_code, granted.base_offset, granted.end_epoch) == (0, 18, told.end_epoch)


def test_an_exclusive_writer_stays_behind_kills_without_any_side_file(
    serve: Callable[..., Served], name: Names
) -> None:
    served, topic = serve(), name("exclusive")
    kept = (".log", ".part", "meta.properties", "partition.metadata", "duramen-directory", ".lock")
    with Cluster(served.bootstrap) as cluster:
        first = open_writer(cluster, topic)
        second = open_writer(cluster, topic)
    for number, stop in enumerate((served.kill, served.stop, served.kill)):
        with Cluster(served.bootstrap) as cluster:
            for producer_id, code in ((first, 90), (second, 0), (-1, 90), (named_producer_id("w"), 90)):
                has_id = producer_id >= 0
                records = batch(b"v", producer_id=producer_id, producer_epoch=-1 + has_id, base_sequence=number)
                if not has_id:
                    records = batch(b"v")
                assert append(cluster, topic, records=records).error_code == code
        stop()
        for path in (served.data / f"{topic}-0").iterdir():
            if not path.name.endswith(kept):
                path.unlink()
        served.start()
