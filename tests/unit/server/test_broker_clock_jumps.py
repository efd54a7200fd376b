"""The wall clock is set while the node runs: what was promised for a while holds for that, not less and not more."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import NOW, InProcess, Line

from duramen.wire.batch import build_batch
from duramen.wire.messages import API

DAY = 86_400_000
YEARS = 20 * 365 * DAY


def set_clock(server: InProcess, by_ms: int) -> None:
    """The wall clock jumps; time goes on as before."""
    clock, before = server.clock, server.clock.wall_ms
    clock.wall_ms = lambda: before() + by_ms  # type: ignore[method-assign]


def send(line: Line, topic: str, sequence: int) -> Any:
    return line.produce_batch(
        topic, build_batch([(b"k", b"v", (), NOW)], producer_id=7, producer_epoch=0, base_sequence=sequence)
    )


@pytest.mark.parametrize("by", [2 * DAY, YEARS, -YEARS])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_retry_is_known_whatever_the_clock_is_set_to(by: int, restarts: bool) -> None:
    server = InProcess(log_retention_check_interval_ms="1000")
    line = server.connect()
    line.create_topic("t", retention_ms="-1", message_timestamp_after_max_ms=str(2**63 - 1))
    assert send(line, "t", 0).base_offset == 0
    if restarts:
        server.pass_ms(70_000)
        server.broker.stop(lambda: None)
        server.run()
        server.disk.kill()
        server.disk.power_on()
        server = InProcess(server.disk, log_retention_check_interval_ms="1000")
        line = server.connect()
    server.pass_ms(10_000)
    line = server.connect()
    set_clock(server, by)
    server.pass_ms(5_000)
    assert send(line, "t", 0).base_offset == 0
    assert send(line, "t", 1).base_offset == 1


@pytest.mark.parametrize("by", [0, DAY, YEARS, -DAY, -YEARS])
def test_a_lease_lasts_as_long_as_was_said(by: int) -> None:
    server = InProcess(log_retention_check_interval_ms="1000", log_initial_task_delay_ms="1000")
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="1000", retention_bytes="1", retention_ms="-1")
    for _ in range(4):
        assert line.produce("t", b"x" * 900).error_code == 0
    (log,) = [log for log in server.broker.store.directories[0].logs.values() if log.tp.topic == "t"]
    access = server.broker.segments
    lease_id, granted = access.grant([access.lease(log, 0)], 100_000)
    assert granted == 100_000
    server.pass_ms(35_000)
    set_clock(server, by)
    server.pass_ms(20_000)
    assert log.start_offset == 0
    assert access.extend(lease_id, 100_000) == 100_000
    server.pass_ms(95_000)
    assert log.start_offset == 0
    server.pass_ms(30_000)
    assert access.extend(lease_id, 100_000) is None
    assert log.start_offset == 3


@pytest.mark.parametrize("by", [0, DAY, YEARS, -DAY, -YEARS])
def test_a_lease_that_nobody_ends_ends_by_itself(by: int) -> None:
    server = InProcess(log_retention_check_interval_ms="1000")
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="1000", retention_bytes="1", retention_ms="-1")
    for _ in range(4):
        assert line.produce("t", b"x" * 900).error_code == 0
    (log,) = [log for log in server.broker.store.directories[0].logs.values() if log.tp.topic == "t"]
    server.broker.segments.grant([server.broker.segments.lease(log, 2)], 100_000)
    server.pass_ms(50_000)
    set_clock(server, by)
    server.pass_ms(40_000)
    assert log.start_offset == 2
    server.pass_ms(30_000)
    assert log.start_offset == 3


@pytest.mark.parametrize("by", [0, YEARS, -YEARS])
def test_tombstones_do_not_stay_for_as_long_as_the_clock_was_set_ahead_by(by: int) -> None:
    """Nor for less than the longest copy took: what it leaves out was there to be read meanwhile."""
    server = InProcess(log_cleaner_backoff_ms="1000")
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="300", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for _ in range(8):
        assert line.produce("t", b"x" * 90).error_code == 0
    cleaner = server.broker.store.directories[0].cleaner
    server.lanes.held.add("cleaner-0")
    while not any(lane == "cleaner-0" for lane, _, _ in server.lanes.waiting):
        server.pass_ms(1000)
    server.lanes.step()
    while not cleaner.running[0]._copy:
        server.lanes.held.clear()
        server.lanes.step()
        server.lanes.held.add("cleaner-0")
        server.run()
    server.pass_ms(5000)
    set_clock(server, by)
    server.lanes.held.clear()
    server.pass_ms(3000)
    assert cleaner.statistics.passes > 0
    assert 5000 <= max(cleaner.late_ms.values()) < 60_000


@pytest.mark.parametrize("by", [YEARS, -YEARS])
def test_a_deleted_file_stays_for_its_while(by: int) -> None:
    server = InProcess(log_retention_check_interval_ms="1000")
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="1000", retention_bytes="1", retention_ms="-1")
    for _ in range(4):
        assert line.produce("t", b"x" * 900).error_code == 0

    def deleted() -> list[str]:
        return [name for name in server.disk.list_directory("/data/t-0") if name.endswith(".log.deleted")]

    while not deleted():
        server.pass_ms(1_000)
    set_clock(server, by)
    server.pass_ms(30_000)
    assert deleted()
    server.pass_ms(40_000)
    assert not deleted()


@pytest.mark.parametrize("by", [0, 2 * DAY, YEARS, -DAY, -YEARS])
@pytest.mark.parametrize("rolled", [True, False])
def test_records_without_timestamps_stay_for_their_time(by: int, rolled: bool) -> None:
    """They have the age of their segment, by the clock that was there when it was written."""
    server = InProcess(log_retention_check_interval_ms="1000")
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="100", retention_ms="120000")
    for _ in range(3 if rolled else 1):
        assert line.produce_batch("t", build_batch([(b"k", b"v" * 60, (), -1)])).error_code == 0
    (log,) = [log for log in server.broker.store.directories[0].logs.values() if log.tp.topic == "t"]
    server.pass_ms(50_000)
    set_clock(server, by)
    server.pass_ms(60_000)
    assert log.start_offset == 0
    server.pass_ms(80_000)
    assert log.start_offset == log.end_offset


def test_records_without_timestamps_from_before_the_clock_was_wrong_get_no_younger() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="100")
    server.pass_ms(1_000)
    for _ in range(2):
        assert line.produce_batch("t", build_batch([(b"k", b"v" * 60, (), -1)])).error_code == 0
    (log,) = [log for log in server.broker.store.directories[0].logs.values() if log.tp.topic == "t"]
    older, newer = log.segments
    # An hour before the clock was set back by a day, which a start with the wrong clock reads from its file.
    stored_ms = older.stored_ms = server.clock.wall_ms() + DAY - 3_600_000
    set_clock(server, DAY)
    server.pass_ms(2_000)
    assert older.stored_ms == stored_ms
    assert newer.stored_ms > stored_ms


@pytest.mark.parametrize("by", [0, DAY, YEARS])
def test_what_groups_have_committed_stays_for_its_time(by: int) -> None:
    server = InProcess(offsets_retention_minutes="60", offsets_retention_check_interval_ms="1000")
    line = server.connect()
    line.create_topic("t")

    def committed() -> int:
        topic = API[9].request.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        answer = server.connect().call(9, 7, group_id="g", topics=[topic])
        return int(answer.topics[0].partitions[0].committed_offset)

    request = API[8].request
    line.call(10, 4, coordinator_keys=["g"], key_type=0)
    partition = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topic = request.OffsetCommitRequestTopic(name="t", partitions=[partition])
    answer = line.call(8, 7, group_id="g", topics=[topic])
    assert answer.topics[0].partitions[0].error_code == 0
    server.pass_ms(30 * 60_000)
    set_clock(server, by)
    server.pass_ms(29 * 60_000)
    assert committed() == 5
    server.pass_ms(2 * 60_000)
    assert committed() == -1
