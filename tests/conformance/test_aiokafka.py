"""aiokafka, unmodified: old protocol versions (Produce 8, Fetch 11, Metadata 5), every codec, groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.worlds.served_node import Served

Names = Callable[[str], str]
SECONDS = 60


async def create(node: Served, topic: str, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=node.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await admin.close()


async def send(node: Served, topic: str, values: list[bytes], **config: Any) -> list[int]:
    """Send the values to partition 0 and return their offsets."""
    async with AIOKafkaProducer(bootstrap_servers=node.bootstrap, **config) as producer:
        waiting = [await producer.send(topic, value, partition=0) for value in values]
        return [(await sent).offset for sent in waiting]


async def take(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    return [await asyncio.wait_for(consumer.getone(), SECONDS) for _ in range(count)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_codecs(node: Served, name: Names, codec: str | None) -> None:
    async def run() -> None:
        topic = name("aio")
        await create(node, topic)
        values = [b"%05d" % i * 40 for i in range(300)]
        assert await send(node, topic, values, compression_type=codec) == list(range(300))
        async with AIOKafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            got = await take(consumer, 300)
        assert [record.value for record in got] == values
        assert [record.offset for record in got] == list(range(300))

    asyncio.run(run())


def test_idempotent_producer_with_headers_and_timestamps(node: Served, name: Names) -> None:
    async def run() -> None:
        topic = name("aio")
        await create(node, topic)
        async with AIOKafkaProducer(bootstrap_servers=node.bootstrap, enable_idempotence=True) as producer:
            headers = [("h", b"1"), ("h", b"2")]
            told = await producer.send_and_wait(topic, b"v", b"k", headers=headers, timestamp_ms=123_456)
            assert (told.partition, told.offset) == (0, 0)
            for i in range(200):
                await producer.send_and_wait(topic, b"%d" % i)
        async with AIOKafkaConsumer(topic, bootstrap_servers=node.bootstrap, auto_offset_reset="earliest") as consumer:
            got = await take(consumer, 201)
        first = got[0]
        assert (first.key, first.value, first.timestamp, list(first.headers)) == (b"k", b"v", 123_456, headers)
        assert [record.value for record in got[1:]] == [b"%d" % i for i in range(200)]

    asyncio.run(run())


def test_two_members_share_then_one_takes_over(node: Served, name: Names) -> None:
    async def run() -> None:
        topic, group = name("aio"), name("g")
        await create(node, topic, 4)
        config: dict[str, Any] = {"bootstrap_servers": node.bootstrap, "group_id": group, "enable_auto_commit": False}
        config |= {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 200, "metadata_max_age_ms": 1000}
        async with AIOKafkaConsumer(topic, **config) as one:
            async with AIOKafkaConsumer(topic, **config) as two:
                async with asyncio.timeout(SECONDS):
                    while len(one.assignment()) != 2 or len(two.assignment()) != 2:
                        await asyncio.sleep(0.05)
            async with asyncio.timeout(SECONDS):
                while len(one.assignment()) != 4:
                    await asyncio.sleep(0.05)
            await send(node, topic, [b"a", b"b", b"c"])
            await take(one, 3)
            await one.commit()
        async with AIOKafkaConsumer(topic, **config) as again:
            assert await again.committed(TopicPartition(topic, 0)) == 3
            ends = await again.end_offsets([TopicPartition(topic, 0)])
            assert ends[TopicPartition(topic, 0)] == 3

    asyncio.run(run())


def test_offsets_by_time(node: Served, name: Names) -> None:
    async def run() -> None:
        topic = name("aio")
        await create(node, topic)
        partition = TopicPartition(topic, 0)
        async with AIOKafkaProducer(bootstrap_servers=node.bootstrap) as producer:
            for i in range(5):
                await producer.send_and_wait(topic, b"%d" % i, timestamp_ms=10_000 + i * 10)
        async with AIOKafkaConsumer(bootstrap_servers=node.bootstrap) as consumer:
            found = await consumer.offsets_for_times({partition: 10_015})
            assert (found[partition].offset, found[partition].timestamp) == (2, 10_020)
            assert (await consumer.offsets_for_times({partition: 99_999}))[partition] is None
            assert (await consumer.beginning_offsets([partition]))[partition] == 0

    asyncio.run(run())
