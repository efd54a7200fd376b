"""The blocking client against a real node: what it writes and reads, what it is refused, and a node that is killed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.served_node import Served, free_port

from duramen.client import CONTROLLER, EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED, Cluster, CoordinatorKey
from duramen.errors import (
    ClosedError,
    DeadlineError,
    ErrorCode,
    KafkaError,
    NetworkError,
    OutcomeUnknownError,
    TopicReplacedError,
)
from duramen.model import TopicPartition
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

TIME = 1_760_000_000_000
CREATE_TOPICS, FIND_COORDINATOR, HEARTBEAT = 19, 10, 12


def a_batch(*values: bytes, **fields: int) -> bytearray:
    return build_batch([(None, value, (), TIME + number) for number, value in enumerate(values)], **fields)


def create(cluster: Cluster, topic: str, partitions: int = 1, **configs: str) -> None:
    message = API[CREATE_TOPICS].request
    wanted = message.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=1,
        configs=[message.CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()],
    )
    reply = cluster.call(CONTROLLER, CREATE_TOPICS, message.new(topics=[wanted], timeout_ms=10_000))
    assert reply.topics[0].error_code == 0, reply.topics[0]


def values(data: memoryview) -> list[bytes]:
    found = []
    for position, header in batches(data):
        for record in records(data[position : position + header.size], max_bytes=1 << 20):
            assert record.value is not None
            found.append(bytes(record.value))
    return found


@pytest.fixture(scope="module")
def cluster(served: Served) -> Iterator[Cluster]:
    with Cluster(served.bootstrap, client_id="client-test", timeout_s=10) as client:
        yield client


def test_it_writes_and_reads_whole_batches(cluster: Cluster) -> None:
    create(cluster, "client-first", 3)
    assert cluster.api_versions().is_duramen
    assert cluster.partitions("client-first") == [0, 1, 2]
    assert len(cluster.topic_id("client-first")) == 16
    tp = TopicPartition("client-first", 1)
    assert cluster.produce(tp, a_batch(b"a", b"b")).base_offset == 0
    assert cluster.produce(tp, a_batch(b"c")).base_offset == 2
    found = cluster.fetch(tp, 1, isolation=READ_COMMITTED)
    assert values(found.data) == [b"a", b"b", b"c"]
    assert (found.next_offset, found.high_watermark, found.last_stable_offset, found.log_start_offset) == (3, 3, 3, 0)
    assert found.aborted == []
    one = cluster.fetch(tp, 0, max_bytes=1)
    assert (values(one.data), one.next_offset) == ([b"a", b"b"], 2)
    empty = cluster.fetch(tp, 3, max_wait_ms=20)
    assert (bytes(empty.data), empty.next_offset) == (b"", 3)


def test_it_lists_offsets_of_many_partitions_with_one_call(cluster: Cluster) -> None:
    create(cluster, "client-list", 4)
    for partition in range(4):
        cluster.produce(TopicPartition("client-list", partition), a_batch(*[b"x"] * (partition + 1)))
    tps = [TopicPartition("client-list", partition) for partition in range(4)]
    assert [found.offset for found in cluster.list_offsets(dict.fromkeys(tps, LATEST)).values()] == [1, 2, 3, 4]
    assert {found.offset for found in cluster.list_offsets(dict.fromkeys(tps, EARLIEST)).values()} == {0}
    assert cluster.list_offsets({tps[3]: TIME + 2})[tps[3]][:2] == (2, TIME + 2)
    assert cluster.list_offsets({tps[3]: MAX_TIMESTAMP})[tps[3]].offset == 3
    assert cluster.list_offsets({tps[3]: TIME + 99})[tps[3]].offset == -1


def test_it_fetches_many_partitions_in_one_request(cluster: Cluster) -> None:
    create(cluster, "client-many-a", 8)
    create(cluster, "client-many-b", 8)
    tps = [TopicPartition(topic, partition) for topic in ("client-many-a", "client-many-b") for partition in range(8)]
    for tp in tps:
        cluster.produce(tp, a_batch(str(tp).encode()))
    found = cluster.fetch_many({**dict.fromkeys(tps, 0), tps[0]: 99})
    refused = found.pop(tps[0])
    assert isinstance(refused, KafkaError)
    assert refused.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert {tp: values(each.data) for tp, each in found.items() if not isinstance(each, KafkaError)} == {
        tp: [str(tp).encode()] for tp in tps[1:]
    }


def test_a_fetch_waits_for_what_comes(cluster: Cluster, served: Served) -> None:
    create(cluster, "client-wait")
    tp = TopicPartition("client-wait", 0)
    seen: list[bytes] = []

    def follow() -> None:
        with Cluster(served.bootstrap) as mine:
            seen.extend(values(mine.fetch(tp, 0, max_wait_ms=8000).data))

    reader = threading.Thread(target=follow)
    reader.start()
    cluster.produce(tp, a_batch(b"came"))
    reader.join(60)
    assert seen == [b"came"]


def test_a_producer_id_makes_a_batch_safe_to_send_twice(cluster: Cluster) -> None:
    create(cluster, "client-idempotent")
    tp = TopicPartition("client-idempotent", 0)
    producer, epoch = cluster.init_producer_id()
    batch = a_batch(b"once", producer_id=producer, producer_epoch=epoch, base_sequence=0)
    assert cluster.produce(tp, bytes(batch)).base_offset == 0
    receipt = cluster.produce(tp, bytes(batch), receipt=True).receipt
    assert receipt is not None
    assert (receipt.is_stable, receipt.copies, receipt.is_duplicate) == (True, 1, True)
    assert values(cluster.fetch(tp, 0).data) == [b"once"]


def test_refusals_come_at_once_and_by_name(cluster: Cluster) -> None:
    tp = TopicPartition("client-nowhere", 0)
    for refused in (
        lambda: cluster.fetch(tp, 0),
        lambda: cluster.partitions(tp.topic),
        lambda: cluster.produce(tp, a_batch(b"x")),
    ):
        with pytest.raises(KafkaError, match="client-nowhere") as caught:
            refused()
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.metadata([tp.topic]).topics[tp.topic].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create(cluster, "client-damaged")
    batch = a_batch(b"x")
    batch[-1] ^= 1
    with pytest.raises(KafkaError) as damaged:
        cluster.produce(TopicPartition("client-damaged", 0), batch)
    assert damaged.value.code == ErrorCode.CORRUPT_MESSAGE


def test_any_api_reaches_its_coordinator(cluster: Cluster) -> None:
    reply = cluster.call(
        CoordinatorKey("client-group"),
        HEARTBEAT,
        API[HEARTBEAT].request.new(group_id="client-group", generation_id=1, member_id="nobody"),
        code_of=lambda response: int(response.error_code),
    )
    assert reply.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_nobody_there_ends_with_the_time_limit() -> None:
    with Cluster(f"127.0.0.1:{free_port()}", timeout_s=0.2) as nobody, pytest.raises(DeadlineError) as late:
        nobody.metadata()
    assert isinstance(late.value.last, NetworkError)
    with pytest.raises(ClosedError):
        nobody.metadata()


def test_a_topic_that_was_made_anew_is_found_under_its_new_id(cluster: Cluster, served: Served) -> None:
    tp = TopicPartition("client-anew", 0)
    create(cluster, tp.topic)
    cluster.produce(tp, a_batch(b"old"))
    meant = cluster.topic_id(tp.topic)
    assert values(cluster.fetch(tp, 0, topic_id=meant).data) == [b"old"]
    with Cluster(served.bootstrap) as other:
        message = API[20].request
        other.call(CONTROLLER, 20, message.new(topics=[message.DeleteTopicState(name=tp.topic)], timeout_ms=5000))
        create(other, tp.topic)
    with pytest.raises(TopicReplacedError):
        cluster.fetch(tp, 0, topic_id=meant)
    assert cluster.produce(tp, a_batch(b"new")).base_offset == 0
    assert values(cluster.fetch(tp, 0).data) == [b"new"]


def test_a_killed_node_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Idempotent batches in, a follower beside them, kill -9 twice in the middle: all there, once, in order."""
    node = Served(tmp_path, {"offsets.topic.num.partitions": "2", "log.retention.ms": "-1"})
    node.start()
    tp = TopicPartition("survivor", 0)
    count = 120
    with Cluster(node.bootstrap, timeout_s=90) as writer, Cluster(node.bootstrap, timeout_s=90) as reader:
        create(writer, tp.topic)
        producer, epoch = writer.init_producer_id()
        failed: list[BaseException] = []

        def write() -> None:
            try:
                for number in range(count):
                    value = str(number).encode()
                    writer.produce(tp, a_batch(value, producer_id=producer, producer_epoch=epoch, base_sequence=number))
                    time.sleep(0.005)
            except BaseException as error:
                failed.append(error)
                raise

        thread = threading.Thread(target=write)
        thread.start()
        seen: list[bytes] = []
        offset = 0
        kills = [20, 70]
        while len(seen) < count and not failed:
            found = reader.fetch(tp, offset, max_wait_ms=100)
            seen += values(found.data)
            offset = found.next_offset
            if kills and len(seen) >= kills[0]:
                kills.pop(0)
                node.kill()
                node.launch()
        thread.join(90)
        assert not failed
        assert seen == [str(number).encode() for number in range(count)]
        assert kills == []
    node.stop()


def test_a_batch_without_a_producer_id_is_not_sent_twice(tmp_path: Path) -> None:
    node = Served(tmp_path, {"offsets.topic.num.partitions": "2"})
    node.start()
    tp = TopicPartition("unsure", 0)
    with Cluster(node.bootstrap, timeout_s=5, request_timeout_s=1) as cluster:
        create(cluster, tp.topic)
        cluster.produce(tp, a_batch(b"x"))
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknownError):
                cluster.produce(tp, a_batch(b"y"))
        finally:
            node.kill()
