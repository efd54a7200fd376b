"""DescribeSegments and its leases in a broker without time: what is sealed, who may ask, and when a lease ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.server.api.authorizer import Operation, Resource
from duramen.storage.segment.producer_state import AbortedTransaction
from duramen.wire.messages import API

DESCRIBE, EXTEND = 10010, 10011
RECORD = bytes(5000)
PATH = "/data/t-0/00000000000000000000.log"


def a_server(**settings: str) -> tuple[InProcess, Line]:
    server = InProcess(
        None,
        **{"log_flush_offset_checkpoint_interval_ms": "1000", "log_retention_check_interval_ms": "1000", **settings},
    )
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="20000", retention_bytes="1", file_delete_delay_ms="0")
    log = server.broker.store.partitions[TopicPartition("t", 0)].log
    log.lease(0, server.clock.wall_ms() + 5000)  # from retention, until a test is ready
    for _ in range(15):
        assert line.produce("t", RECORD).error_code == 0
    server.pass_ms(4000)
    return server, line


def describe(line: Line, topic: str = "t", start: int = -1, end: int = -1, **fields: Any) -> Any:
    message = API[DESCRIBE].request
    partition = message.WantedPartition(
        partition_index=0, start_offset=start, end_offset=end, current_leader_epoch=fields.pop("epoch", -1)
    )
    return line.call(DESCRIBE, 0, topics=[message.WantedTopic(name=topic, partitions=[partition])], **fields)


def partition_of(reply: Any) -> Any:
    return reply.topics[0].partitions[0]


def test_what_is_rolled_synced_and_readable_is_sealed() -> None:
    server, line = a_server()
    reply = describe(line, target_bytes=1)
    found = partition_of(reply)
    assert (found.error_code, found.next_offset, found.high_watermark) == (0, -1, 15)
    assert [(s.base_offset, s.end_offset, s.is_sealed) for s in found.segments] == [
        (0, 3, True), (3, 6, True), (6, 9, True), (9, 12, True), (12, 15, False),
    ]  # fmt: skip
    assert [(entry.offset, entry.position) for entry in found.segments[1].index] == [(3, 0)]
    assert reply.directories[0].path == "/data"
    assert reply.directories[0].directory_id == found.directory_id
    assert reply.topics[0].topic_id == server.broker.image.topic("t").id  # type: ignore[union-attr]
    part = partition_of(describe(line, start=7, end=10))
    assert [segment.base_offset for segment in part.segments] == [6, 9]


def test_nothing_is_sealed_before_it_is_synced() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="20000")
    for _ in range(15):
        line.produce("t", RECORD)
    assert not any(segment.is_sealed for segment in partition_of(describe(line)).segments)


def test_a_reply_is_bounded_and_says_where_to_go_on() -> None:
    _, line = a_server()
    first = partition_of(describe(line, max_entries=2))
    assert [segment.base_offset for segment in first.segments] == [0, 3]
    assert first.next_offset == 6
    rest = partition_of(describe(line, start=6, max_entries=100))
    assert [segment.base_offset for segment in rest.segments] == [6, 9, 12]
    assert rest.next_offset == -1


def test_aborted_transactions_are_the_brokers_to_tell() -> None:
    server, line = a_server()
    log = server.broker.store.partitions[TopicPartition("t", 0)].log
    log.segments[1].add_aborted(AbortedTransaction(7, 1, 4, 5))
    assert not any(segment.is_sealed for segment in partition_of(describe(line, isolation_level=1)).segments)
    assert any(segment.is_sealed for segment in partition_of(describe(line, isolation_level=0)).segments)


def test_a_lease_keeps_its_segments_until_its_time_is_over() -> None:
    server, line = a_server()
    reply = describe(line, start=4, lease_ms=60_000)
    assert reply.lease_ms == 60_000
    server.pass_ms(30_000)
    assert not server.disk.exists(PATH), "the one in front of the lease went"
    assert server.disk.exists("/data/t-0/00000000000000000003.log")
    assert extend(line, reply.lease_id, 60_000) == (0, 60_000)
    server.pass_ms(59_000)
    assert server.disk.exists("/data/t-0/00000000000000000003.log")
    server.pass_ms(10_000)
    assert not server.disk.exists("/data/t-0/00000000000000000003.log")
    assert extend(line, reply.lease_id, 60_000) == (ErrorCode.RESOURCE_NOT_FOUND, 0)


def extend(line: Line, lease_id: int, lease_ms: int) -> tuple[int, int]:
    (answer,) = line.call(EXTEND, 0, lease_ids=[lease_id], lease_ms=lease_ms).leases
    assert answer.lease_id == lease_id
    return answer.error_code, answer.lease_ms


def test_a_released_lease_holds_nothing() -> None:
    server, line = a_server()
    lease_id = describe(line, lease_ms=60_000).lease_id
    assert extend(line, lease_id, 0) == (0, 0)
    server.pass_ms(5000)
    assert not server.disk.exists(PATH)
    assert server.broker.segments.count == 0


def test_a_lease_that_holds_back_too_much_is_broken() -> None:
    server, line = a_server(duramen_segment_lease_bytes_max="30000")
    lease_id = describe(line, lease_ms=600_000).lease_id
    server.pass_ms(5000)
    assert not server.disk.exists(PATH)
    assert extend(line, lease_id, 1000) == (ErrorCode.RESOURCE_NOT_FOUND, 0)
    one = describe(line, start=12, lease_ms=600_000)
    assert one.lease_id == -1, "there is nothing sealed left to keep"


def test_a_lease_is_no_longer_than_the_broker_allows() -> None:
    _, line = a_server(duramen_segment_lease_ms_max="2000")
    assert describe(line, lease_ms=600_000).lease_ms == 2000
    _, without = a_server(duramen_segment_lease_ms_max="0")
    assert describe(without, lease_ms=600_000).lease_id == -1


def test_leases_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.server.reads.segment_leases.MOST_LEASES", 3)
    server, line = a_server()
    leases = [describe(line, lease_ms=5000).lease_id for _ in range(4)]
    assert [lease >= 0 for lease in leases] == [True, True, True, False]
    server.clock.now_ms += 6000  # type: ignore[assignment]
    assert describe(line, lease_ms=5000).lease_id >= 0, "those that ran out make room"


def test_refusals() -> None:
    server, line = a_server()
    assert partition_of(describe(line, "nothing")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partition_of(describe(line, "__cluster_metadata")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partition_of(describe(line, epoch=999)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    class NoReading:
        def denied(
            self, principal: str, host: str, operation: Operation, resource: Resource, names: Iterable[str]
        ) -> frozenset[str]:
            return frozenset(names) if (operation, resource) == (Operation.READ, Resource.TOPIC) else frozenset()

    server.broker.access.authorizer = NoReading()
    reply = describe(line, lease_ms=1000)
    assert partition_of(reply).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert reply.lease_id == -1


def test_a_restart_forgets_leases() -> None:
    server, line = a_server()
    lease_id = describe(line, lease_ms=60_000).lease_id
    server.disk.kill()
    server.disk.power_on()
    again = InProcess(server.disk)
    assert extend(again.connect(), lease_id, 1000) == (ErrorCode.RESOURCE_NOT_FOUND, 0)
