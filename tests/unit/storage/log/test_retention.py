"""Retention: what may go, what keeps it, and that it goes in steps a crash may separate."""

from __future__ import annotations

import errno

import pytest
from tests.worlds.storage_workload import FIRST, append, commit, housekeep, read_all, small, start

from duramen.errors import CorruptLogError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.storage.log.retention import active_expired, removable_before
from duramen.wire.batch import build_batch, parse_header

DAY = 86_400_000


def log_of_segments(count: int) -> tuple[CrashDisk, LogDirectory, Log]:
    """Segments of two records each; the timestamp of the record at offset n is 1000 + n ms."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TopicPartition("first", 0), FIRST, small())
    for _ in range(2 * count):
        append(log, b"v" * 1700)
        commit(directory)
    assert [segment.base_offset for segment in log.segments] == list(range(0, 2 * count, 2))
    return disk, directory, log


def checkpoint(directory: LogDirectory) -> None:
    while (job := directory.take_checkpoint(force=True)) is not None:
        job.run()
        directory.complete_checkpoint(job)
        if job.files is not None:
            break


def configure(log: Log, **settings: object) -> None:
    config = small()
    for name, value in settings.items():
        setattr(config, name, value)
    configure_log(log, config)


@pytest.mark.parametrize(
    ("settings", "now_ms", "expected"),
    [
        ({}, DAY, 0),
        ({"retention_ms": 100}, 1000, 0),
        ({"retention_ms": 100}, 1101, 0),
        ({"retention_ms": 100}, 1102, 2),
        ({"retention_ms": 100}, 1104, 4),
        ({"retention_ms": 100}, DAY, 8),
        ({"retention_ms": -1}, DAY, 0),
        ({"retention_bytes": 0}, 0, 8),
        ({"retention_bytes": 1 << 30}, 0, 0),
        ({"retention_bytes": 7000}, 0, 6),
        ({"retention_bytes": 0, "cleanup_policy": frozenset({"compact"})}, DAY, 0),
    ],
)
def test_time_and_size(settings: dict[str, object], now_ms: int, expected: int) -> None:
    _, _, log = log_of_segments(5)
    configure(log, **settings)
    assert removable_before(log, now_ms, log.end_offset) == expected


def test_deleted_records_leases_and_the_high_watermark() -> None:
    _, _, log = log_of_segments(5)
    log.advance_start(5)
    assert removable_before(log, 0, 10) == 4, "the segment that holds the log start stays"
    assert removable_before(log, 0, 3) == 2, "nothing at or above the high watermark"
    lease = log.lease(2, expires_ms=500)
    assert removable_before(log, 400, 10) == 2
    assert removable_before(log, 600, 10) == 4, "leases end"
    lease = log.lease(0, expires_ms=500)
    assert removable_before(log, 400, 10) == 0
    lease.release()
    assert removable_before(log, 400, 10) == 4


def test_files_go_when_the_log_start_is_durable_and_the_delay_is_over() -> None:
    disk, directory, log = log_of_segments(4)
    configure(log, retention_bytes=7000, file_delete_delay_ms=50)
    housekeep(directory, 2000)
    assert log.start_offset == 4
    assert not [path for path in disk.contents() if path.endswith(".deleted")], "not before the log start is durable"
    commit(directory)
    housekeep(directory, 2005)
    assert not [path for path in disk.contents() if path.endswith(".deleted")], "nor before they are synced"
    checkpoint(directory)
    housekeep(directory, 2010)
    deleted = [path for path in disk.contents() if path.endswith(".deleted")]
    assert "/data/first-0/00000000000000000000.log.deleted" in deleted
    assert "/data/first-0/00000000000000000002.log.deleted" in deleted
    assert [segment.base_offset for segment in log.segments] == [4, 6]
    housekeep(directory, 2059)
    assert [path for path in disk.contents() if path.endswith(".deleted")] == deleted
    housekeep(directory, 2060)
    assert not [path for path in disk.contents() if path.endswith(".deleted")]
    assert sorted(read_all(log)) == [4, 5, 6, 7]


def test_an_expired_active_segment_is_rolled_away() -> None:
    _, directory, log = log_of_segments(3)
    configure(log, retention_ms=100)
    housekeep(directory, DAY)
    commit(directory)
    checkpoint(directory)
    housekeep(directory, DAY)
    assert (log.start_offset, log.end_offset) == (6, 6)
    assert [segment.base_offset for segment in log.segments] == [6]
    assert append(log, b"next") == 6


def append_timeless(log: Log, now_ms: int, timestamp: int = -1) -> None:
    data = build_batch([(b"k", b"v" * 1700, [], timestamp)], base_offset=log.end_offset, leader_epoch=log.epochs.latest)
    log.append(data, parse_header(data), now_ms)


@pytest.mark.parametrize("policy", [("delete",), ("compact", "delete")])
def test_records_without_timestamps_do_not_go_with_the_next_ones_that_expired(policy: tuple[str, ...]) -> None:
    """Headers of what compaction took have no timestamps either, and an age of their own."""
    directory = start(CrashDisk())
    log = directory.create_log(TopicPartition("first", 0), FIRST, small())
    configure(log, cleanup_policy=frozenset(policy), retention_ms=7 * DAY)
    now = 20 * DAY
    for timestamp in (-1, -1, now - 8 * DAY, now - 8 * DAY, now):
        append_timeless(log, now, timestamp)
        commit(directory)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    assert removable_before(log, now, log.end_offset) == 0
    configure(log, cleanup_policy=frozenset(policy), retention_bytes=2 * log.segments[1].size)
    assert removable_before(log, now, log.end_offset) == 0, "the first is larger than what is too much"


def test_where_nothing_is_to_be_kept_the_active_segment_goes_too() -> None:
    """As in Kafka, whose rule by size asks each segment whether the log holds retention.bytes without it."""
    _, directory, log = log_of_segments(3)
    configure(log, retention_bytes=0)
    assert not active_expired(log, 1000, log.end_offset - 1)
    housekeep(directory, DAY)
    commit(directory)
    checkpoint(directory)
    housekeep(directory, DAY)
    assert (log.start_offset, log.end_offset) == (6, 6)
    assert append(log, b"next") == 6
    configure(log, retention_bytes=1)
    assert not active_expired(log, DAY, log.end_offset)


def test_records_without_timestamps_expire_by_the_age_of_their_segment_also_after_a_start() -> None:
    disk, directory, log = log_of_segments(1)
    disk.wall_ms = lambda: 5000
    configure(log, retention_ms=100)
    for now_ms in (4000, 4500, 4600, 4700):
        append_timeless(log, now_ms)
        commit(directory)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    assert removable_before(log, 4600, log.end_offset) == 2, "the last one was stored 100 ms ago"
    assert removable_before(log, 4601, log.end_offset) == 4
    directory.close(clean=True)
    (log,) = start(disk).logs.values()
    configure(log, retention_ms=100)
    assert removable_before(log, 5100, log.end_offset) == 2, "the file is as old as its last write"
    assert removable_before(log, 5101, log.end_offset) == 4
    assert active_expired(log, 5101, log.end_offset)
    assert not active_expired(log, 5100, log.end_offset)


@pytest.mark.parametrize("held_by", ["the future", "a lease"])
def test_an_expired_active_segment_is_not_rolled_while_an_older_one_stays(held_by: str) -> None:
    _, directory, log = log_of_segments(2)
    configure(log, retention_ms=100)
    if held_by == "the future":
        log.segments[0].max_timestamp = 9 * DAY
    else:
        log.lease(0, expires_ms=9 * DAY)
    for number in range(5):
        append(log, b"v")
        commit(directory)
        housekeep(directory, DAY * (number + 1))
        commit(directory)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    housekeep(directory, 10 * DAY)
    assert log.start_offset == log.end_offset == log.active.base_offset, "then all of them go"


def test_a_segment_without_timestamps_is_rolled_by_its_age_and_mixed_ones_are_not_rolled_at_every_record() -> None:
    _, _, log = log_of_segments(1)
    configure(log, segment_ms=1000, segment_bytes=1 << 20)
    log.roll()
    first, now_ms = log.active.base_offset, 1_760_000_000_000
    for after in (0, 400, 1000):
        append_timeless(log, now_ms + after)
    assert log.active.base_offset == first
    append_timeless(log, now_ms + 1001)
    assert log.active.base_offset == first + 3
    for _ in range(20):
        append_timeless(log, now_ms + 1500, timestamp=now_ms - DAY)
        append_timeless(log, now_ms + 1500)
    assert log.active.base_offset == first + 3


def test_what_expired_stays_gone_after_a_crash_between_the_steps() -> None:
    for step in range(4):
        disk, directory, log = log_of_segments(4)
        configure(log, retention_bytes=7000)
        steps = [
            lambda directory=directory: housekeep(directory, 2000),
            lambda directory=directory: commit(directory),
            lambda directory=directory: housekeep(directory, 2010),
            lambda directory=directory: housekeep(directory, 2020),
        ]
        for action in steps[: step + 1]:
            action()
        durable = log.start_offset if step else 0
        disk.power_cut()
        disk.power_on()
        (log,) = start(disk).logs.values()
        assert log.start_offset >= durable
        assert sorted(read_all(log)) == list(range(log.start_offset, 8))


def test_rolled_segments_are_sealed_once_they_are_synced() -> None:
    disk, directory, log = log_of_segments(3)
    housekeep(directory, 2000)
    assert not [path for path in disk.contents() if path.endswith(".seal")]
    checkpoint(directory)
    jobs = directory.take_maintenance(2100)
    assert len(jobs) == 2
    assert [type(job) for job in directory.take_maintenance(2200)] == [], "a job under way is not given twice"
    for job in jobs:
        job.run()
        job.complete()
    seals = [path for path in disk.contents() if path.endswith(".seal")]
    assert [path[-13:] for path in seals] == ["00000000.seal", "00000002.seal"]
    assert all(segment.sealed for segment in log.segments[:-1])


@pytest.mark.parametrize("unreadable", [False, True])
def test_damage_found_while_sealing_is_reported_and_fences_nothing(unreadable: bool) -> None:
    disk, directory, log = log_of_segments(2)
    checkpoint(directory)
    path = "/data/first-0/00000000000000000000.log"

    def bad_sector(call: DiskCall) -> OSError | None:
        return OSError(errno.EIO, "bad sector") if (call.operation, call.path) == ("pread", path) else None

    if unreadable:
        disk.fault = bad_sector
    else:
        disk.damage(path, 900)
    for job in directory.take_maintenance(2000):
        try:
            job.run()
        except CorruptLogError as error:
            job.fail(error)
        else:
            job.complete()
    (damage,) = directory.findings.known.values()
    assert damage.path == path
    assert ("bad sector" in damage.what) is unreadable
    if unreadable:
        assert (damage.start, damage.first_offset) == (0, 0)
    assert directory.journal.failed is None
    append(log, b"on")
    commit(directory)
