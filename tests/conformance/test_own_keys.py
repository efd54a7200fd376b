"""The keys of our own APIs in ApiVersions: every client under test passes over them and works; ours finds them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from benchmarks.kafka_peer import GET_OFFSETS, tool
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPython
from tests.worlds.served_node import Served, only_duramen

from duramen.client import Cluster
from duramen.client.protocol.versions import OWN_KEYS
from duramen.wire.messages import API

pytestmark = only_duramen
Names = Callable[[str], str]
SECONDS = 60


@pytest.fixture(autouse=True)
def all_own_keys_are_advertised(node: Served) -> None:
    """Without that, nothing here would be shown."""
    with Cluster(node.bootstrap) as cluster:
        versions = cluster.api_versions()
        assert versions.is_duramen
        own = [key for key in API if key in OWN_KEYS]
        assert {10010, 10011} <= set(own)
        assert [key for key in own if key in versions.ranges and versions.serves(key)] == own


def test_confluent_kafka(node: Served, name: Names) -> None:
    topic = name("own")
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"value", partition=0)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": name("g"), "auto.offset.reset": "earliest"})
    consumer.assign([Place(topic, 0, 0)])
    message = consumer.poll(SECONDS)
    consumer.close()
    assert message is not None
    assert message.value() == b"value"


def test_aiokafka(node: Served, name: Names) -> None:
    async def run() -> bytes:
        topic = name("own")
        async with AIOKafkaProducer(bootstrap_servers=node.bootstrap) as producer:
            await producer.send_and_wait(topic, b"value", partition=0)
        async with AIOKafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            record = await asyncio.wait_for(consumer.getone(), SECONDS)
            return bytes(record.value)

    assert asyncio.run(run()) == b"value"


def test_kafka_python(node: Served, name: Names) -> None:
    topic = name("own")
    with KafkaProducer(bootstrap_servers=node.bootstrap) as producer:
        producer.send(topic, b"value", partition=0).get(SECONDS)
    with KafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([KafkaPython(topic, 0)])
        (found,) = consumer.poll(timeout_ms=SECONDS * 1000).values()
    assert [record.value for record in found] == [b"value"]


@pytest.mark.usefixtures("kafka_jars")
def test_java(node: Served, name: Names) -> None:
    topic = name("own")
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(topic, b"value", partition=0)
    assert producer.flush(SECONDS) == 0
    command = "org.apache.kafka.tools.BrokerApiVersionsCommand"
    listed = tool(command, "--bootstrap-server", node.bootstrap, timeout=90).stdout
    told = {int(key) for key in re.findall(r"UNKNOWN\((\d+)\)", listed)}
    assert {key for key in API if key in OWN_KEYS} <= told
    offsets = tool(GET_OFFSETS, "--bootstrap-server", node.bootstrap, "--topic", topic, timeout=90).stdout
    assert f"{topic}:0:1" in offsets.split()
