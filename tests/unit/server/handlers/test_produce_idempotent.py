"""Retries of idempotent producers: what is stored already is answered with its first home, whatever its age."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import NOW, InProcess, Line, after_power_cut

from duramen.errors import ErrorCode
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

YEAR_MS = 365 * 86_400_000
CREATE = API[19].request


def send(line: Line, sequence: int, time: int, producer: int = 7) -> tuple[int, int]:
    """Error and base offset of one record."""
    batch = build_batch([(None, b"v", (), time)], producer_id=producer, producer_epoch=0, base_sequence=sequence)
    answer = line.produce_batch("t", batch)
    return answer.error_code, answer.base_offset


@pytest.mark.parametrize(
    ("partitions", "code"), [(1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (201, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
def test_the_second_batch_is_not_the_first_of_a_partition_that_was_still_being_made(
    partitions: int, code: ErrorCode
) -> None:
    """Metadata names a new partition before it is there: the first batch comes too early, and the second does not."""
    server = InProcess()
    line, creator = server.connect(), server.connect()
    server.lanes.held.add("checkpoint")
    topic = CREATE.CreatableTopic(name="t", num_partitions=partitions, replication_factor=1)
    creator.ask(19, 7, topics=[topic], timeout_ms=1000)
    server.run()
    if partitions > 200:  # they are made in slices, and led together
        server.lanes.held.clear()
        server.lanes.step()
        server.lanes.held.add("checkpoint")
    assert send(line, 0, NOW) == (code, -1)
    server.lanes.held.clear()
    server.run()
    assert [send(line, number, NOW) for number in (1, 0, 1)] == [(code, -1), (0, 0), (0, 1)]
    assert send(line, 1, NOW, producer=8) == (0, 2), "nothing of this one was refused"


@pytest.mark.parametrize("age_ms", [0, YEAR_MS], ids=["new", "old"])
def test_a_retry_is_known_again_after_housekeeping_whatever_the_records_age(age_ms: int) -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t", **{"retention.ms": "-1"})
    assert [send(line, number, NOW - age_ms) for number in range(3)] == [(0, 0), (0, 1), (0, 2)]
    server.pass_ms(10 * 60_000)
    assert [send(line, number, NOW - age_ms) for number in range(4)] == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_retry_is_known_again_behind_power_cuts_after_retention() -> None:
    """The side files of a roll are not synced, and what the removed batches said cannot be read again."""
    server = InProcess(log_retention_check_interval_ms="1000")
    line = server.connect()
    line.create_topic("t", **{"retention.ms": "600000", "segment.ms": "20000"})
    known = [(0, 0), (0, 1), (0, 2)]
    assert [send(line, number, NOW) for number in range(3)] == known
    server.pass_ms(300_000)
    assert send(line, 0, NOW + 300_000, producer=8) == (0, 3)
    server.pass_ms(305_000)
    assert line.fetch("t", 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    for cut in range(3):
        # Two to the segment there is, the next in a new one: the roll writes a snapshot and finds older ones needless.
        first, late = 1 + 3 * cut, 300_000 + 100_000 * cut
        times = (late + 1000, late + 2000, late + 100_000)
        assert [send(line, first + n, NOW + time, producer=8)[0] for n, time in enumerate(times)] == [0, 0, 0]
        server.pass_ms(120_000)  # a checkpoint syncs the segments and the names
        server = after_power_cut(server, cut)
        line = server.connect()
        assert [send(line, number, NOW) for number in range(3)] == known


@pytest.mark.parametrize("version", [3, 4, 5])
def test_half_of_an_identity_is_no_identity(version: int) -> None:
    line = InProcess().connect()

    def init(producer_id: int, epoch: int) -> tuple[int, bool, int]:
        reply = line.call(
            22,
            version,
            transactional_id=None,
            transaction_timeout_ms=1000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        return reply.error_code, reply.producer_id >= 0, reply.producer_epoch

    assert init(-1, -1) == init(5, 3) == (0, True, 0)
    assert init(5, -1) == init(-1, 5) == (ErrorCode.INVALID_REQUEST, False, -1)


@pytest.mark.parametrize("batches", [1, 2])
def test_some_refusals_tell_where_the_log_starts_as_kafkas_do(batches: int) -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.create_topic("keyed", cleanup_policy="compact,delete")
    line.create_topic("safe", min_insync_replicas="2")
    produce, remove = API[0].request, API[21].request
    for topic in ("t", "keyed"):
        for number in range(3):
            batch = build_batch([(b"k", b"v", (), NOW)], producer_id=7, producer_epoch=3, base_sequence=number)
            assert line.produce_batch(topic, batch).error_code == 0
        partition = remove.DeleteRecordsPartition(partition_index=0, offset=2)
        line.call(21, 2, topics=[remove.DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=1000)

    def refused(topic: str, batch: bytearray) -> tuple[int, int]:
        data = [produce.PartitionProduceData(index=index, records=bytes(batch)) for index in range(batches)]
        named = produce.TopicProduceData(name=topic, partition_data=data)
        answers = line.call(0, 9, acks=-1, timeout_ms=1000, topic_data=[named]).responses[0].partition_responses
        assert [answer.log_start_offset for answer in answers[1:]] == [-1] * (batches - 1), "there is no such partition"
        return answers[0].error_code, answers[0].log_start_offset

    def row(key: bytes | None = b"k", time: int = NOW) -> list[tuple[bytes | None, bytes, tuple[()], int]]:
        return [(key, b"v", (), time)]

    gap = build_batch(row(), producer_id=7, producer_epoch=3, base_sequence=9)
    old = build_batch(row(), producer_id=7, producer_epoch=2, base_sequence=3)
    damaged = build_batch(row())
    damaged[-1] ^= 1
    assert refused("t", gap) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 2)
    assert refused("t", old) == (ErrorCode.INVALID_PRODUCER_EPOCH, 2)
    assert refused("t", build_batch(row(time=NOW + 10**9))) == (ErrorCode.INVALID_TIMESTAMP, 2)
    assert refused("keyed", build_batch(row(key=None))) == (ErrorCode.INVALID_RECORD, 2)
    assert refused("safe", build_batch(row())) == (ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    assert refused("t", damaged) == (ErrorCode.CORRUPT_MESSAGE, -1)
