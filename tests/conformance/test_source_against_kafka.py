"""The Spark source over an unmodified Apache Kafka: transactions, markers, gaps, splits, loss; no session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kafka_peer import KafkaPeer
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.data_loss import DataLossError
from duramen.spark.source.stream_reader import DuramenStreamReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SCHEMA = StructType().add("offset", "long").add("value", "binary")


@pytest.fixture(scope="module")
def kafka(kafka_jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("kafka")
    peer = KafkaPeer(folder / "node")
    peer.prepare()
    peer.start()
    yield peer.bootstrap
    peer.stop()


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def rows(source: Any, parts: list[Any]) -> list[tuple[int, bytes]]:
    return [(row["offset"], row["value"]) for part in parts for batch in source.read(part) for row in batch.to_pylist()]


def test_committed_records_are_read_and_gaps_are_no_loss(kafka: str) -> None:
    create(kafka, "transactions")
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "tx", "compression.type": "lz4"})
    producer.init_transactions(30)
    kept = []
    for number in range(6):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, each) for each in range(20)]
        for value in values:
            producer.produce("transactions", value, partition=0)
        if number % 2:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            kept += values
    given = {"kafka.bootstrap.servers": kafka, "subscribe": "transactions"}
    committed = DuramenReader({**given, "minPartitions": "4"}, SCHEMA)
    parts = committed.partitions()
    assert len(parts) == 4
    assert [value for _, value in rows(committed, parts)] == kept
    everything = DuramenReader({**given, "kafka.isolation.level": "read_uncommitted"}, SCHEMA)
    found = rows(everything, everything.partitions())
    assert len(found) == 120
    assert found[-1][0] == 124  # every sixth of 21 offsets is a marker
    query = DuramenStreamReader({**given, "startingOffsets": "earliest"}, SCHEMA)
    start = query.initialOffset()
    end = query.latestOffset(start, query.getDefaultReadLimit())
    assert end["transactions"]["0"] == 126
    assert [value for _, value in rows(query, query.partitions(start, end))] == kept
    query.stop()


def test_expired_records_are_a_loss_by_name(kafka: str) -> None:
    create(kafka, "expired")
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(50):
        producer.produce("expired", b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    source = DuramenReader(
        {"kafka.bootstrap.servers": kafka, "subscribe": "expired", "startingOffsets": '{"expired":{"0":5}}'}, SCHEMA
    )
    planned = source.partitions()
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([Place("expired", 0, 30)]).values():
        future.result(30)
    with pytest.raises(DataLossError, match="offsets 5 to 29 of expired-0"):
        source.partitions()
    with pytest.raises(DataLossError, match="offsets 5 to 29 of expired-0"):
        rows(source, planned)
