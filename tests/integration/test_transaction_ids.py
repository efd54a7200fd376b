"""Positions and transaction ids on a real node, with our clients and Kafka's; truncation and a node that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidTimestampError
from confluent_kafka import Consumer, Producer
from confluent_kafka import KafkaError as LibraryError
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_node import Served

from duramen.client import LATEST, Cluster
from duramen.client.aio import AsyncCluster
from duramen.client.aio import async_position_lookup as on_asyncio
from duramen.client.blocking.position_lookup import locate
from duramen.client.protocol.positions import AtOffset, AtTime, BelowStartError, DlsnDivergedError
from duramen.dlsn import Dlsn
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch

SECONDS = 30


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    served.start()
    yield served
    served.kill()


def make(node: Served, topic: str, **config: str) -> TopicPartition:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    (created,) = admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values()
    created.result(SECONDS)
    return TopicPartition(topic, 0)


def ids(*txids: int) -> bytearray:
    return build_batch([(None, b"%d" % txid, (), txid) for txid in txids])


def truncate(node: Served, tp: TopicPartition, offset: int) -> int:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    (done,) = admin.delete_records([Place(tp.topic, 0, offset)]).values()
    return int(done.result(SECONDS).low_watermark)


def read(node: Served, tp: TopicPartition, offset: int) -> list[bytes | None]:
    """With librdkafka, from an offset to the end."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([Place(tp.topic, 0, offset)])
    found: list[bytes | None] = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None
        if message.error() is not None:
            assert message.error().code() == LibraryError._PARTITION_EOF, message.error()
            consumer.close()
            return found
        found.append(message.value())


def test_truncation_is_exact_and_survives_a_kill(node: Served) -> None:
    tp = make(node, "t", duramen_txid="application")
    with Cluster(node.bootstrap) as cluster:
        for each in (ids(5, 6, 7, 8), ids(8, 9), ids(20)):
            cluster.produce(tp, each)
        first = locate(cluster, tp, AtOffset(0))
        wanted = locate(cluster, tp, AtTime(7))
        assert (wanted.offset, wanted.dlsn.slot, wanted.dlsn.entry) == (2, 2, 0)
    assert truncate(node, tp, wanted.offset) == 2
    node.kill()
    node.start()
    assert read(node, tp, 2) == [b"7", b"8", b"8", b"9", b"20"]
    with Cluster(node.bootstrap) as cluster:
        assert locate(cluster, tp, wanted.dlsn)[:2] == (2, wanted.dlsn)
        with pytest.raises(BelowStartError) as caught:
            locate(cluster, tp, first.dlsn.next)
        assert caught.value.first.dlsn == wanted.dlsn
        # A batch that begins below the log start comes whole: readers pass over what lies in front of it.
        fetched = cluster.fetch(tp, 2)
        assert (fetched.log_start_offset, len(fetched.data) > 0) == (2, True)
        with pytest.raises(KafkaError) as below:
            cluster.fetch(tp, 1)
        assert below.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        with pytest.raises(KafkaError) as refused:
            cluster.produce(tp, ids(19))
        assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
        assert "below the last, 20" in str(refused.value)
        end = locate(cluster, tp, AtOffset(LATEST))
        with pytest.raises(DlsnDivergedError):
            locate(cluster, tp, Dlsn(end.dlsn.lssn + 1, 6, 0))
    assert truncate(node, tp, -1) == 6  # the last record stays, with its id
    node.kill()
    node.start()
    assert read(node, tp, 6) == [b"20"]
    with Cluster(node.bootstrap) as cluster:
        assert cluster.produce(tp, ids(20)).base_offset == 7
        assert locate(cluster, tp, end.dlsn).offset == 7


def test_confluent_kafka_writes_in_order_and_reads_from_an_id(node: Served) -> None:
    tp = make(node, "t", duramen_txid="application")
    for extra in ({}, {"enable.idempotence": True, "linger.ms": 100}):
        told: list[tuple[int | None, int]] = []
        producer = Producer({"bootstrap.servers": node.bootstrap, **extra})

        def delivered(error: LibraryError | None, message: Any, told: list[tuple[int | None, int]] = told) -> None:
            told.append((error and error.code(), message.timestamp()[1]))

        base = 1000 * (1 + bool(extra))
        for txid in (base, base, base + 5):
            producer.produce(tp.topic, b"v", timestamp=txid, on_delivery=delivered)
        assert producer.flush(SECONDS) == 0
        assert told == [(None, base), (None, base), (None, base + 5)]
        producer.produce(tp.topic, b"late", timestamp=7, on_delivery=delivered)
        assert producer.flush(SECONDS) == 0
        assert [code for code, _ in told[3:]] == [LibraryError.INVALID_TIMESTAMP]
        producer.produce(tp.topic, b"v", timestamp=base + 6, on_delivery=delivered)
        assert producer.flush(SECONDS) == 0
        assert told[4:] == [(None, base + 6)]
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
    found = [
        consumer.offsets_for_times([Place(tp.topic, 0, txid)], SECONDS)[0].offset for txid in (1, 1001, 2000, 2007)
    ]
    consumer.close()
    assert found[:3] == [0, 2, 4]
    assert found[3] in (-1, 8)  # the end


def test_assigned_ids_are_told_to_producers(node: Served) -> None:
    tp = make(node, "t", duramen_txid="assigned")
    told: list[tuple[int, int]] = []
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for _ in range(3):
        producer.produce(tp.topic, b"v", timestamp=5, on_delivery=lambda _, message: told.append(message.timestamp()))
        assert producer.flush(SECONDS) == 0
    assert [kind for kind, _ in told] == [2, 2, 2]  # LogAppendTime
    assert told == sorted(told)
    assert told[0][1] > 1_700_000_000_000


def test_aiokafka_and_our_client_on_asyncio(node: Served) -> None:
    tp = make(node, "t", duramen_txid="application")

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=node.bootstrap, enable_idempotence=True) as producer:
            for txid in (50, 60):
                await producer.send_and_wait(tp.topic, b"v", partition=0, timestamp_ms=txid)
            with pytest.raises(InvalidTimestampError):
                await producer.send_and_wait(tp.topic, b"v", partition=0, timestamp_ms=59)
        async with AsyncCluster(node.bootstrap) as cluster:
            place = await on_asyncio.locate(cluster, tp, AtTime(51))
            assert (place.offset, place.is_end, place.end) == (1, False, 2)
            behind = await on_asyncio.locate(cluster, tp, AtTime(61))
            assert (behind.offset, behind.dlsn, behind.is_end) == (2, place.dlsn.next, True)
            assert await on_asyncio.locate(cluster, tp, behind.dlsn) == behind

    asyncio.run(asyncio.wait_for(run(), SECONDS))
