"""WriteTxnMarkers on a whole broker: what is ended, what is refused, and what DescribeProducers shows of it."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from tests.worlds.broker_world import NOW, InProcess, Line

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import FIRST_SINK_PRODUCER_ID, TopicPartition
from duramen.partition.replica import transactional_writes
from duramen.partition.replica.partition import Partition
from duramen.server.metrics.exposition import BrokerCollector
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

MARKERS = API[27].request


def server_with(*topics: str, **settings: str) -> tuple[InProcess, Line]:
    server = InProcess(**settings)
    line = server.connect()
    for topic in topics:
        line.create_topic(topic)
    return server, line


def partition_of(server: InProcess, topic: str) -> Partition:
    return server.broker.store.partitions[TopicPartition(topic, 0)]


def begin(server: InProcess, topic: str, producer: int, epoch: int = 0, time: int = NOW) -> None:
    """One record, as if its coordinator had said yes."""
    partition = partition_of(server, topic)
    batch = build_batch(
        [(b"k", b"v", (), time)], producer_id=producer, producer_epoch=epoch, base_sequence=0, transactional=True
    )
    guard = transactional_writes.transaction_guard(partition, ProducerEpoch(producer, epoch), 0, False)
    partition.append(memoryview(batch), -1, time, lambda _: None, guard)
    server.run()


def marker(producer: int, *topics: str, epoch: int = 0, coordinator: int = 0, version: int = 0, index: int = 0) -> Any:
    return MARKERS.WritableTxnMarker(
        producer_id=producer,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[MARKERS.WritableTxnMarkerTopic(name=topic, partition_indexes=[index]) for topic in topics],
        coordinator_epoch=coordinator,
        transaction_version=version,
    )


def told(reply: Any) -> dict[tuple[int, str], ErrorCode]:
    return {
        (each.producer_id, topic.name): ErrorCode(partition.error_code)
        for each in reply.markers
        for topic in each.topics
        for partition in topic.partitions
    }


def described(line: Line, topic: str) -> list[tuple[int, int, int, int]]:
    request = API[61].request.TopicRequest(name=topic, partition_indexes=[0])
    (found,) = line.call(61, 0, topics=[request]).topics[0].partitions
    return [
        (each.producer_id, each.producer_epoch, each.coordinator_epoch, each.current_txn_start_offset)
        for each in found.active_producers
    ]


def test_markers_of_several_producers_and_topics() -> None:
    server, line = server_with("t", "u")
    for topic, producer in (("t", 1), ("t", 2), ("u", 1)):
        begin(server, topic, producer)
    assert described(line, "t") == [(1, 0, -1, 0), (2, 0, -1, 1)]
    reply = line.call(27, 1, markers=[marker(1, "t", "u", coordinator=5), marker(2, "t", epoch=1)])
    assert set(told(reply).values()) == {ErrorCode.NONE}
    assert list(told(reply)) == [(1, "t"), (1, "u"), (2, "t")]
    assert described(line, "t") == [(1, 0, 5, -1), (2, 1, 0, -1)]
    for topic in ("t", "u"):
        partition = partition_of(server, topic)
        assert partition.last_stable_offset == partition.high_watermark == partition.log_end_offset


def test_what_is_refused_is_told_for_each_partition() -> None:
    server, line = server_with("t")
    begin(server, "t", 1, epoch=3)
    asked = [
        (marker(1, "t", epoch=2), ErrorCode.INVALID_PRODUCER_EPOCH),
        (marker(1, "t", epoch=3, version=2), ErrorCode.INVALID_PRODUCER_EPOCH),
        (marker(1, "absent", epoch=3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (marker(1, "t", epoch=3, index=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (marker(1, "t", epoch=3, index=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (marker(1, "__cluster_metadata", epoch=3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (marker(1, "__transaction_state", epoch=3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (marker(-1, "t"), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (marker(FIRST_SINK_PRODUCER_ID, "t"), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (marker(1, "t", epoch=-1), ErrorCode.INVALID_REQUEST),
        (marker(1, "t", epoch=3, version=-1), ErrorCode.INVALID_REQUEST),
    ]
    end = partition_of(server, "t").log_end_offset
    for each, code in asked:
        assert list(told(line.call(27, 2, markers=[each])).values()) == [code]
    assert partition_of(server, "t").log_end_offset == end
    assert list(told(line.call(27, 2, markers=[marker(1, "t", epoch=4, version=2)])).values()) == [ErrorCode.NONE]


def test_a_partition_is_told_once_however_often_it_is_named() -> None:
    server, line = server_with("t")
    topic = MARKERS.WritableTxnMarkerTopic(name="t", partition_indexes=[0] * 1000)
    asked = marker(1)
    asked.topics = [topic]
    (result,) = line.call(27, 1, markers=[asked]).markers
    assert [each.partition_index for each in result.topics[0].partitions] == [0]
    assert partition_of(server, "t").log_end_offset == 1


def test_nothing_to_write_is_answered() -> None:
    _, line = server_with()
    assert line.call(27, 1, markers=[]).markers == []
    assert told(line.call(27, 1, markers=[marker(1)])) == {}


def test_the_answer_waits_for_the_commit_and_not_for_ever() -> None:
    server, line = server_with("t")
    begin(server, "t", 1)
    server.lanes.held.add("journal")
    line.ask(27, 1, markers=[marker(1, "t")])
    server.run()
    assert line.answer(27, 1) is None
    server.pass_ms(31_000)
    assert list(told(line.answer(27, 1)).values()) == [ErrorCode.REQUEST_TIMED_OUT]
    server.lanes.held.clear()
    server.run()
    assert partition_of(server, "t").last_stable_offset == 2, "it may be written all the same"


def test_a_topic_that_is_deleted_meanwhile_answers() -> None:
    server, line = server_with("t")
    begin(server, "t", 1)
    server.lanes.held.add("journal")
    line.ask(27, 1, markers=[marker(1, "t")])
    server.run()
    server.broker.store.delete_partition(TopicPartition("t", 0))
    server.lanes.held.clear()
    server.run()
    assert list(told(line.answer(27, 1)).values()) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_records_may_be_deleted_past_an_open_transaction() -> None:
    server, line = server_with("t")
    begin(server, "t", 1)
    line.produce("t", b"a")
    line.produce("t", b"b")
    request = API[21].request
    wanted = [request.DeleteRecordsPartition(partition_index=0, offset=2)]
    topics = [request.DeleteRecordsTopic(name="t", partitions=wanted)]
    (result,) = line.call(21, 2, topics=topics, timeout_ms=1000).topics[0].partitions
    assert (result.error_code, result.low_watermark) == (0, 2)
    read = line.fetch("t", 2, isolation_level=1)
    assert (read.error_code, read.last_stable_offset, read.log_start_offset, read.high_watermark) == (0, 2, 2, 3)
    assert described(line, "t") == [(1, 0, -1, 0)]
    assert list(told(line.call(27, 1, markers=[marker(1, "t")])).values()) == [ErrorCode.NONE]
    assert line.fetch("t", 2, isolation_level=1).last_stable_offset == 4


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    server, _ = server_with("t", producer_id_expiration_ms="60000")
    begin(server, "t", 1)
    server.pass_ms(700_000)
    line = server.connect()
    assert described(line, "t") == [(1, 0, -1, 0)]
    assert list(told(line.call(27, 1, markers=[marker(1, "t")])).values()) == [ErrorCode.NONE]
    server.pass_ms(700_000)
    assert described(server.connect(), "t") == []


def test_metrics_of_open_transactions() -> None:
    server, line = server_with("t")
    begin(server, "t", 1, time=NOW - 60_000)
    line.produce("t", b"a")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(server.broker))
    here = {"topic": "t", "partition": "0"}
    assert registry.get_sample_value("duramen_partition_open_transactions", here) == 1
    assert registry.get_sample_value("duramen_last_stable_offset_lag_records", here) == 2
    oldest = registry.get_sample_value("duramen_partition_oldest_transaction_seconds", here)
    assert oldest is not None
    assert oldest >= 60
    line.call(27, 1, markers=[marker(1, "t")])
    assert registry.get_sample_value("duramen_partition_open_transactions", here) == 0
    assert registry.get_sample_value("duramen_last_stable_offset_lag_records", here) == 0
    assert registry.get_sample_value("duramen_partition_oldest_transaction_seconds", here) is None


def test_producers_of_what_is_no_topic() -> None:
    _, line = server_with("t")
    request = API[61].request
    names = ("t", "absent", "", "../no")
    answer = line.call(61, 0, topics=[request.TopicRequest(name=name, partition_indexes=[0]) for name in names])
    assert [ErrorCode(topic.partitions[0].error_code).name for topic in answer.topics] == [
        "NONE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_TOPIC_EXCEPTION",
        "INVALID_TOPIC_EXCEPTION",
    ]
