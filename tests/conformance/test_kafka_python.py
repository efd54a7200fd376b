"""kafka-python 3, unmodified: the newest protocol versions (Produce 13, Fetch 18, topic ids, fetch sessions)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import TopicAlreadyExistsError
from tests.worlds.served_node import Served

Names = Callable[[str], str]
SECONDS = 60


def create(node: Served, topic: str, partitions: int = 1) -> None:
    with KafkaAdminClient(bootstrap_servers=node.bootstrap) as admin:
        admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1}})


def take(consumer: KafkaConsumer, count: int) -> list[Any]:
    got: list[Any] = []
    for _ in range(SECONDS * 5):
        for records in consumer.poll(timeout_ms=200).values():
            got += records
        if len(got) >= count:
            return got
    raise AssertionError(f"{len(got)} of {count} records came")


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_codecs(node: Served, name: Names, codec: str | None) -> None:
    topic = name("kp")
    create(node, topic)
    values = [b"%05d" % i * 40 for i in range(200)]
    with KafkaProducer(bootstrap_servers=node.bootstrap, compression_type=codec, linger_ms=20) as producer:
        waiting = [producer.send(topic, value, partition=0) for value in values]
        assert [sent.get(SECONDS).offset for sent in waiting] == list(range(200))
    with KafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [record.value for record in take(consumer, 200)] == values


def test_many_fetches_in_one_session(node: Served, name: Names) -> None:
    """Small fetches over several partitions, so that the incremental session carries most of them."""
    topic = name("session")
    create(node, topic, 4)
    with KafkaConsumer(
        bootstrap_servers=node.bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=500,
        max_poll_records=5,
    ) as consumer:
        consumer.assign([TopicPartition(topic, p) for p in range(4)])
        with KafkaProducer(bootstrap_servers=node.bootstrap) as producer:
            for i in range(100):
                producer.send(topic, b"%03d" % i * 50, partition=i % 4).get(SECONDS)
        got = take(consumer, 100)
    for partition in range(4):
        offsets = [record.offset for record in got if record.partition == partition]
        assert offsets == list(range(25))


def test_administration(node: Served, name: Names) -> None:
    topic = name("admin")
    create(node, topic, 2)
    with KafkaAdminClient(bootstrap_servers=node.bootstrap) as admin:
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
        assert topic in admin.list_topics()
        admin.create_partitions({topic: 3})
        described = admin.describe_topics([topic])
        assert len(described[0]["partitions"]) == 3
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()


def test_group_offsets_survive_the_group(node: Served, name: Names) -> None:
    topic, group = name("kp"), name("g")
    create(node, topic)
    with KafkaProducer(bootstrap_servers=node.bootstrap) as producer:
        for i in range(10):
            producer.send(topic, b"%d" % i).get(SECONDS)
    config: dict[str, Any] = {"bootstrap_servers": node.bootstrap, "group_id": group, "enable_auto_commit": False}
    # A group leader of it that does not know the topic yet assigns nothing, and may never look again: so it is asked.
    with KafkaConsumer(topic, auto_offset_reset="earliest", max_poll_records=4, **config) as consumer:
        assert consumer.partitions_for_topic(topic) == {0}
        first = take(consumer, 4)
        consumer.commit()
    with KafkaConsumer(topic, auto_offset_reset="earliest", **config) as consumer:
        assert consumer.partitions_for_topic(topic) == {0}
        rest = take(consumer, 10 - len(first))
    assert [record.offset for record in first + rest] == list(range(10))
