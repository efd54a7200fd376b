"""Our own client against Apache Kafka: what it does with Duramen it does with the original, and it tells them apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from benchmarks.kafka_peer import KafkaPeer
from confluent_kafka import Producer

from duramen.client import (
    CONTROLLER,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    SINK,
    Cluster,
    CoordinatorKey,
)
from duramen.client.aio import AsyncCluster, AsyncGroupMember, AsyncGroupOffsets
from duramen.client.protocol.group_offsets import GroupOffset, PartitionNotAssignedError
from duramen.client.protocol.segments import DESCRIBE_SEGMENTS
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NOW = int(time.time() * 1000) - 60_000
HEARTBEAT, CREATE_TOPICS = 12, 19
MEMBERS = {
    "min.session.timeout": 1000,
    "session.timeout": 20_000,
    "min.heartbeat.interval": 100,
    "heartbeat.interval": 300,
    "assignment.interval": 200,
    "regex.refresh.interval": 10_000,
}


@pytest.fixture(scope="module")
def kafka(kafka_jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaPeer]:
    peer = KafkaPeer(tmp_path_factory.mktemp("kafka") / "kafka")
    peer.prepare()
    with (peer.directory / "server.properties").open("a") as properties:
        properties.writelines(f"group.consumer.{key}.ms={value}\n" for key, value in MEMBERS.items())
    peer.start()
    yield peer
    peer.kill()


@pytest.fixture(scope="module")
def cluster(kafka: KafkaPeer) -> Iterator[Cluster]:
    with Cluster(kafka.bootstrap, timeout_s=60) as client:
        yield client


def create(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    message = API[CREATE_TOPICS].request
    wanted = message.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    reply = cluster.call(CONTROLLER, CREATE_TOPICS, message.new(topics=[wanted], timeout_ms=20_000))
    assert reply.topics[0].error_code == 0, reply


def batch(*values: bytes, **fields: int) -> bytes:
    return bytes(build_batch([(None, value, (), NOW + number) for number, value in enumerate(values)], **fields))


def values(data: memoryview) -> list[bytes | None]:
    return [
        record.value
        for position, header in batches(data)
        if not header.is_control
        for record in records(data[position : position + header.size], max_bytes=1 << 20)
    ]


def test_it_is_known_to_be_a_foreign_kafka(cluster: Cluster) -> None:
    versions = cluster.api_versions()
    assert not versions.is_duramen
    assert not versions.serves(DESCRIBE_SEGMENTS)
    with pytest.raises(KafkaError) as refused:
        cluster.call(CONTROLLER, DESCRIBE_SEGMENTS, API[DESCRIBE_SEGMENTS].request.new())
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(DuramenError):
        cluster.call(CoordinatorKey("s", SINK), 10000, API[10000].request.new(sink_id="s", run_id="r"), timeout_s=2)


def test_batches_go_in_and_come_out(cluster: Cluster) -> None:
    create(cluster, "raw", 3)
    tps = [TopicPartition("raw", number) for number in cluster.partitions("raw")]
    assert len(tps) == 3
    producer, epoch = cluster.init_producer_id()
    for number, tp in enumerate(tps):
        data = batch(b"a%d" % number, b"b%d" % number, producer_id=producer, producer_epoch=epoch, base_sequence=0)
        assert cluster.produce(tp, data).base_offset == 0
        assert cluster.produce(tp, data).base_offset == 0, "it knows its producer's batch again"
    found = cluster.fetch_many(dict.fromkeys(tps, 1), isolation=READ_COMMITTED)
    for number, tp in enumerate(tps):
        each = found[tp]
        assert not isinstance(each, KafkaError)
        assert values(each.data) == [b"a%d" % number, b"b%d" % number]
        assert (each.next_offset, each.high_watermark, each.last_stable_offset, each.log_start_offset) == (2, 2, 2, 0)
    assert {each.offset for each in cluster.list_offsets(dict.fromkeys(tps, LATEST)).values()} == {2}
    assert {each.offset for each in cluster.list_offsets(dict.fromkeys(tps, EARLIEST)).values()} == {0}
    assert cluster.list_offsets({tps[0]: NOW + 1})[tps[0]][:2] == (1, NOW + 1)
    assert cluster.list_offsets({tps[0]: MAX_TIMESTAMP})[tps[0]].offset == 1


def test_what_was_aborted_is_told_to_those_who_read_committed(cluster: Cluster, kafka: KafkaPeer) -> None:
    create(cluster, "transactions")
    tp = TopicPartition("transactions", 0)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(60)
    for value, commit in ((b"kept", True), (b"dropped", False), (b"too", True)):
        producer.begin_transaction()
        producer.produce(tp.topic, value, partition=0)
        assert producer.flush(60) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
    deadline = time.monotonic() + 100
    committed = cluster.fetch(tp, 0, isolation=READ_COMMITTED)
    while committed.next_offset < 6:  # Kafka answers before the markers are in the log
        assert time.monotonic() < deadline
        committed = cluster.fetch(tp, 0, isolation=READ_COMMITTED)
    assert [first for _, first in committed.aborted] == [2]
    assert values(committed.data) == [b"kept", b"dropped", b"too"], (
        "the bytes are the log's; the list says what to skip"
    )
    assert cluster.fetch(tp, 0, isolation=READ_UNCOMMITTED).aborted == []


def test_coordinators_and_refusals(cluster: Cluster) -> None:
    request = API[HEARTBEAT].request.new(group_id="g", generation_id=1, member_id="nobody")
    patience = time.monotonic() + 100
    while True:  # a coordinator that still loads its groups says that all is well
        reply = cluster.call(CoordinatorKey("g"), HEARTBEAT, request, code_of=lambda response: int(response.error_code))
        if reply.error_code or time.monotonic() > patience:
            break
        time.sleep(0.1)
    assert reply.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for ask in (lambda: cluster.partitions("nowhere"), lambda: cluster.fetch(TopicPartition("nowhere", 0), 0)):
        with pytest.raises(KafkaError) as unknown:
            ask()
        assert unknown.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create(cluster, "short")
    with pytest.raises(KafkaError) as outside:
        cluster.fetch(TopicPartition("short", 0), 99)
    assert outside.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_killed_broker_costs_time_and_nothing_else(cluster: Cluster, kafka: KafkaPeer) -> None:
    create(cluster, "survivor")
    tp = TopicPartition("survivor", 0)
    producer, epoch = cluster.init_producer_id()
    for number in range(40):
        if number == 20:
            kafka.kill()
            kafka.start()
        value = str(number).encode()
        cluster.produce(tp, batch(value, producer_id=producer, producer_epoch=epoch, base_sequence=number))
    seen: list[bytes | None] = []
    offset = 0
    while len(seen) < 40:
        found = cluster.fetch(tp, offset)
        seen += values(found.data)
        offset = found.next_offset
    assert seen == [str(number).encode() for number in range(40)]


def test_members_of_its_groups(cluster: Cluster, kafka: KafkaPeer) -> None:
    """Shared, handed over, read by librdkafka, by expression, thrown out; and Kafka is killed in between."""
    create(cluster, "shared", 4)
    everything = {TopicPartition("shared", number) for number in range(4)}

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(90):
            while not holds():
                await asyncio.sleep(0.05)

    async def test(aio: AsyncCluster) -> None:
        async with AsyncGroupMember(aio, "of-two") as first:
            first.subscribe(topics=["shared"])
            await first.joined(90)
            await until(lambda: first.assignment == everything)
            async with AsyncGroupMember(aio, "of-two", assignor="range") as second:
                second.subscribe(pattern="sha.*")
                await until(lambda: len(first.assignment) == len(second.assignment) == 2)
                assert first.assignment | second.assignment == everything
                (tp, other), theirs = sorted(first.assignment), min(second.assignment)
                await first.commit({tp: GroupOffset(5, 0, "note")})
                assert await second.committed([tp, other]) == {tp: GroupOffset(5, 0, "note")}
                with pytest.raises(PartitionNotAssignedError):
                    await first.commit({theirs: GroupOffset(1)})

                had, epochs = (first.assignment, second.assignment), (first.epoch, second.epoch)
                kafka.kill()
                await asyncio.sleep(1)
                kafka.start()  # not in a thread: with the thread that began it its process would end
                await first.commit({tp: GroupOffset(6, 0, "again")}, timeout_s=90)
                assert (first.assignment, second.assignment) == had
                assert (first.epoch, second.epoch) == epochs

                second.subscribe(pattern="sha(")
                with pytest.raises(KafkaError) as refused:
                    await second.joined(90)
                assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
                await until(lambda: first.assignment == everything)
        outside = AsyncGroupOffsets(aio, "of-two")
        found = await outside.committed([tp])
        assert found == {tp: GroupOffset(6, 0, "again")}
        await outside.commit({tp: GroupOffset(1)})
        assert await outside.committed([tp]) == {tp: GroupOffset(1)}
        wrong = AsyncGroupMember(aio, "of-none", assignor="none")
        wrong.subscribe(topics=["shared"])
        with pytest.raises(KafkaError) as unknown:
            await wrong.joined(90)
        assert unknown.value.code == ErrorCode.UNSUPPORTED_ASSIGNOR
        await wrong.close()

    async def with_client() -> None:
        async with AsyncCluster(kafka.bootstrap, timeout_s=60) as aio:
            await test(aio)

    asyncio.run(with_client())
