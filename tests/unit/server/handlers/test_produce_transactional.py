"""Transactional producers against a whole broker: verified batches, both generations, the fast path, crashes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import NOW, InProcess, Line
from tests.worlds.transaction_client import TransactionClient, find

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.server.handlers.produce_fast_path import KnownProduces
from duramen.server.net.listener_type import ListenerType
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

COMMITTED = 1


def server_with(*topics: str, **settings: Any) -> InProcess:
    server = InProcess(**settings)
    for topic in topics:
        server.connect().create_topic(topic)
    find(server, "id")  # makes the coordinators' topic
    server.run()
    return server


def committed(line: Line, topic: str) -> list[bytes | None]:
    """What a consumer of committed records keeps."""
    fetched = line.fetch(topic, 0, isolation_level=COMMITTED)
    hidden = {each.producer_id for each in fetched.aborted_transactions or ()}
    data = memoryview(fetched.records or b"")
    values: list[bytes | None] = []
    for position, header in batches(data):
        if not header.is_control and header.producer_id not in hidden:
            values += [each.value for each in records(data[position:], header, max_bytes=1 << 20)]
    return values


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("version", [3, 9, 10, 11])
def test_a_transaction_of_the_first_generation(version: int, commits: bool) -> None:
    server = server_with("t", "u")
    client, reader = TransactionClient(server), server.connect()
    assert client.init().error_code == 0
    assert client.add(("t", 0), ("u", 0)) == [0, 0]
    for number in range(3):
        assert client.produce("t", b"t%d" % number, version=version) == 0
    assert client.produce("u", b"u", version=version) == 0
    assert committed(reader, "t") == committed(reader, "u") == []
    assert client.end(commit=commits) == 0
    server.run()
    assert committed(reader, "t") == ([b"t0", b"t1", b"t2"] if commits else [])
    assert committed(reader, "u") == ([b"u"] if commits else [])
    assert client.add(("t", 0)) == [0]
    assert client.produce("t", b"next", version=version) == 0


def test_a_transaction_of_the_second_generation_adds_its_partitions_by_producing() -> None:
    server = server_with("t")
    client, reader = TransactionClient(server), server.connect()
    client.init(version=5)
    for number in range(3):
        topic = API[0].request.TopicProduceData(
            topic_id=server.broker.image.topics["t"].id,
            partition_data=[API[0].request.PartitionProduceData(index=0, records=transactional(client.producer))],
        )
        answer = client.line.call(0, 13, transactional_id=client.id, acks=-1, timeout_ms=1000, topic_data=[topic])
        assert answer.responses[0].partition_responses[0].error_code == 0
        before = client.producer
        assert client.end(commit=number != 1, version=5) == 0
        assert client.producer == ProducerEpoch(before.id, before.epoch + 1)
    server.run()
    partition = server.broker.store.partitions[TopicPartition("t", 0)]
    assert partition.last_stable_offset == partition.log_end_offset == 6
    assert reader.fetch("t", 0, isolation_level=COMMITTED).aborted_transactions[0].first_offset == 2


def transactional(producer: ProducerEpoch, sequence: int = 0) -> bytearray:
    return build_batch(
        [(None, b"v", (), NOW)],
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=True,
    )


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)])
def test_what_was_not_added_is_refused_and_not_stored(version: int, code: ErrorCode) -> None:
    server = server_with("t", "u")
    client = TransactionClient(server)
    client.init()
    client.add(("u", 0))
    assert client.produce("t", b"v", version=version) == code
    assert server.broker.store.partitions[TopicPartition("t", 0)].log_end_offset == 0


def test_a_fenced_producer_hears_of_an_epoch_and_never_of_fencing() -> None:
    server = server_with("t")
    old, new = TransactionClient(server), TransactionClient(server)
    old.init()
    old.add(("t", 0))
    assert new.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS  # the old one's transaction is aborted first
    server.run()
    assert new.init().error_code == 0
    for version in (9, 11, 12):
        assert old.produce("t", b"v", version=version) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert new.add(("t", 0)) == [0]
    assert new.produce("t", b"v") == 0
    assert old.produce("t", b"v") == ErrorCode.INVALID_PRODUCER_EPOCH


def test_transactional_batches_need_a_transactional_id() -> None:
    server = server_with("t")
    client = TransactionClient(server)
    client.init()
    client.add(("t", 0))
    answer = client.line.produce_batch("t", transactional(client.producer))
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert server.broker.store.partitions[TopicPartition("t", 0)].log_end_offset == 0


def test_requests_of_a_transaction_take_the_fast_path() -> None:
    taken: list[bool] = []

    class Counted(KnownProduces):
        def handle_known(self, *arguments: Any) -> bool:
            taken.append(super().handle_known(*arguments))
            return taken[-1]

    server = server_with("t")
    server.broker.decoders[ListenerType.BROKER].fast_paths[0] = Counted()
    client, other = TransactionClient(server), TransactionClient(server, "other")
    for each in (client, other):
        each.init()
        each.add(("t", 0))
    codes = [each.produce("t", b"v") for _ in range(3) for each in (client, other)]
    assert codes == [0] * 6
    assert taken == [False, False, True, True, True, True]
    client.end(commit=True)
    other.end(commit=False)
    server.run()
    assert committed(server.connect(), "t") == [b"v"] * 3


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_power_cut_behind_the_answer_to_the_end(durability: str, commits: bool) -> None:
    """EndTxn was answered when Prepare was durable; the markers are written again, or were, and none is missing.

    A page-cache topic may have lost the records: then its marker is all that is left.
    """
    server = server_with()
    line = server.connect()
    line.create_topic("t", **{"duramen.ack.durability": durability})
    client = TransactionClient(server)
    client.init()
    client.add(("t", 0))
    assert client.produce("t", b"v") == 0
    assert client.end(commit=commits) == 0
    server.run()
    server.disk.power_cut()
    server.disk.power_on()
    again = InProcess(server.disk)
    again.run()
    again.pass_ms(5_000)
    partition = again.broker.store.partitions[TopicPartition("t", 0)]
    assert partition.last_stable_offset == partition.high_watermark
    found = committed(again.connect(), "t")
    assert found == ([b"v"] if commits else []) or (durability == "page-cache" and found == [])
