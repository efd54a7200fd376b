"""A record's timestamp is its batch's plus what the record says, which may be more than eight bytes hold."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.server.broker_world import NOW, InProcess, Line

from duramen.wire.batch import CRC_START, GREATEST, HEADER, build_batch, parse_header, records
from duramen.wire.checksum import crc32c
from duramen.wire.compression import decompress
from duramen.wire.filtering import filtered_batch, spans
from duramen.wire.messages import API


def batch(base: int, newest: int, *deltas: int, value: bytes | None = b"v") -> bytearray:
    """Records so long behind `base` (ms); newest: what the header says of the youngest."""
    made = build_batch([(b"k%d" % delta, value, (), delta) for delta in (0, *deltas)])
    fields = list(HEADER.unpack_from(made))
    fields[7:9] = base, newest
    HEADER.pack_into(made, 0, *fields)
    made[17:21] = crc32c(memoryview(made)[CRC_START:]).to_bytes(4, "big")
    return made


def produce(server: InProcess, line: Line, data: bytearray) -> int:
    request = API[0].request
    part = request.PartitionProduceData(index=0, records=data)
    line.ask(0, 9, acks=-1, timeout_ms=1000, topic_data=[request.TopicProduceData(name="t", partition_data=[part])])
    server.run()
    return int(line.produced().error_code)


def look_up(line: Line, timestamp: int) -> Any:
    request = API[2].request
    part = request.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    topics = [request.ListOffsetsTopic(name="t", partitions=[part])]
    return line.call(2, 7, replica_id=-1, isolation_level=0, topics=topics).topics[0].partitions[0]


def test_a_record_with_such_a_timestamp_does_not_fail_who_looks_for_a_time() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    assert produce(server, line, batch(NOW, NOW + 5, GREATEST)) == 0
    assert produce(server, line, batch(NOW + 10, NOW + 10)) == 0
    for timestamp, offset in ((NOW, 0), (NOW + 1, 2), (NOW + 11, -1)):
        found = look_up(line, timestamp)
        assert (found.error_code, found.offset) == (0, offset)
    assert look_up(line, -3).error_code == 0


@pytest.mark.parametrize("base", [NOW, GREATEST, -GREATEST - 1, 0])
@pytest.mark.parametrize("delta", [GREATEST, -GREATEST - 1, 5, -5])
@pytest.mark.parametrize("horizon", [None, 0, NOW, GREATEST])
def test_compaction_keeps_the_timestamps_that_readers_see(base: int, delta: int, horizon: int | None) -> None:
    stored = batch(base, base, delta, value=None)
    header = parse_header(stored)
    payload = decompress(0, memoryview(stored)[61:], 1 << 20)
    before = [record.timestamp for record in records(stored, max_bytes=1 << 20)]
    assert all(-GREATEST - 1 <= each <= GREATEST for each in before)
    after = filtered_batch(header, payload, list(spans(payload, header)), horizon)
    assert [record.timestamp for record in records(after, max_bytes=1 << 20)] == before
    assert parse_header(after).max_timestamp == max(before)
