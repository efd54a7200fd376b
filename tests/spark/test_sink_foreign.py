"""The sink and a real Apache Kafka: exactly-once is refused by name, at-least-once works."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from benchmarks.kafka_peer import KafkaPeer
from kafka.partitioner.default import murmur2
from sink_lab import create_topic, read_all
from tests.worlds.sink_histories import SCHEMA

from duramen.errors import ConfigError
from duramen.spark.sink import sink
from duramen.spark.sink.sink import batch_writer
from duramen.spark.sink.sink_identity import TaskIdentity

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kafka(kafka_jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaPeer]:
    peer = KafkaPeer(tmp_path_factory.mktemp("peer") / "kafka")
    peer.prepare()
    peer.start()
    yield peer
    peer.stop()


def test_a_foreign_kafka_takes_rows_at_least_once_and_nothing_else(
    kafka: KafkaPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(kafka.bootstrap, "foreign", 3)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": "foreign", "compression": "lz4"}
    with pytest.raises(ConfigError, match="set the option delivery to at-least-once"):
        batch_writer(options, SCHEMA, False)
    monkeypatch.setattr(sink, "current_task", lambda: TaskIdentity(2, 0, None, None))
    keys = [b"%d" % (n % 50) if n % 3 else None for n in range(5000)]
    columns = [pa.array(keys, pa.binary()), pa.array([b"%d" % n for n in range(5000)], pa.binary())]
    writer = batch_writer({**options, "delivery": "at-least-once"}, SCHEMA, False)
    writer.commit([writer.write(iter([pa.record_batch(columns, names=["key", "value"])]))])
    found = read_all(kafka.bootstrap, "foreign")
    assert sorted(int(r.value or b"") for part in found.values() for r in part) == list(range(5000))
    for partition, records in found.items():
        for record in records:
            assert dict(record.headers)[b"duramen.seq"] == record.value
            assert record.key is None or (murmur2(record.key) & 0x7FFFFFFF) % 3 == partition
