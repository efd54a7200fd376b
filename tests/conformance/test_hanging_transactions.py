"""A transaction that really hangs, found and ended by `duramen transaction`: on a node, and on Apache Kafka.

It is made as such ones came to be before brokers asked coordinators (KIP-890): with that asking turned off, a batch of
a transaction enters a partition that no coordinator knows of.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.kafka_peer import KafkaPeer
from tests.worlds.served_node import Served, only_duramen

from duramen.cli.main import main
from duramen.client import ANY, CONTROLLER, LATEST, READ_COMMITTED, Cluster
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

CREATE_TOPICS = 19
UNVERIFIED = {"transaction.partition.verification.enable": "false"}
FIRST_GENERATION = 10
"""Of Produce."""


class Unverifying(KafkaPeer):
    def configure(self) -> None:
        super().configure()
        with self._properties.open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in UNVERIFIED.items())


@pytest.fixture
def kafka(kafka_jars: None, tmp_path: Path) -> Iterator[str]:
    peer = Unverifying(tmp_path / "kafka")
    peer.prepare()
    peer.start()
    yield peer.bootstrap
    peer.kill()


@only_duramen
def test_on_a_node(serve: Callable[..., Served], capsys: pytest.CaptureFixture[str]) -> None:
    found_and_ended(serve(**UNVERIFIED).bootstrap, capsys)


@pytest.mark.skipif(os.environ.get("DURAMEN_ALL_TOOLS") != "1", reason="DURAMEN_ALL_TOOLS=1 starts a Kafka")
@pytest.mark.timeout(120)
def test_on_apache_kafka(kafka: str, capsys: pytest.CaptureFixture[str]) -> None:
    found_and_ended(kafka, capsys)


def found_and_ended(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = TopicPartition("t", 0)
    with Cluster(bootstrap, timeout_s=30) as cluster:
        hang(cluster, place)
        there = ("--bootstrap", bootstrap)
        find = ("transaction", "find-hanging", *there, "--longer-than", "0ms", "--json")
        time.sleep(0.05)
        assert main(find) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["topic"], found["partition"], found["start_offset"], found["transactional_id"]) == (
            "t",
            0,
            1,
            None,
        )
        assert stable_end(cluster, place) == 1
        where = ("--partition", "t:0", "--start-offset", "1")
        assert main(["transaction", "abort", *there, *where, "--yes"]) == 0
        capsys.readouterr()
        assert main(find) == 0
        assert json.loads(capsys.readouterr().out) == []
        assert stable_end(cluster, place) == 3, "behind the marker"


def hang(cluster: Cluster, place: TopicPartition) -> None:
    """A plain record, and one of a transaction that nobody will end."""
    message = API[CREATE_TOPICS].request
    wanted = message.CreatableTopic(name=place.topic, num_partitions=1, replication_factor=1)
    assert cluster.call(CONTROLLER, CREATE_TOPICS, message.new(topics=[wanted])).topics[0].error_code == 0
    now_ms = int(time.time() * 1000)
    cluster.produce(place, bytes(build_batch([(None, b"plain", (), now_ms)])))
    id, epoch = cluster.init_producer_id()
    batch = build_batch(
        [(None, b"lost", (), now_ms)], producer_id=id, producer_epoch=epoch, base_sequence=0, transactional=True
    )
    message = API[0].request
    data = message.PartitionProduceData(index=0, records=batch)
    topics = [message.TopicProduceData(name=place.topic, partition_data=[data])]
    body = message.new(transactional_id="nobody's", acks=-1, timeout_ms=5_000, topic_data=topics)
    answer = cluster.call(ANY, 0, body, highest=FIRST_GENERATION)
    assert answer.responses[0].partition_responses[0].error_code == 0


def stable_end(cluster: Cluster, place: TopicPartition) -> int:
    """Where those who read committed records have to wait."""
    found = cluster.list_offsets({place: LATEST}, isolation=READ_COMMITTED)[place]
    return found.offset
