"""A cut is found by the index, and leaves a log as one that never had more."""

from __future__ import annotations

import errno
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.storage.directory.test_log_directory_overlaps import (
    NOW,
    SETTINGS,
    TOPIC_ID,
    begun,
    checkpoint,
    commit,
    run_all,
    start,
)
from tests.worlds.stored_batches import stored_batches

from duramen.errors import CorruptLogError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.sim.world.entropy import SimEntropy
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.files.atomic import read_file
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.log import Log
from duramen.storage.log.segment_cut import find_cut
from duramen.storage.log.truncation import truncate_log
from duramen.storage.segment.segment import INDEX, TIME_INDEX, Segment
from duramen.wire.batch import ABORT, COMMIT, build_batch, build_marker, parse_header

INTERVAL = 300
CONFIG = PlainLogConfig(segment_bytes=4000, index_interval_bytes=INTERVAL)
PRODUCERS = 3


class Step(NamedTuple):
    """A batch of so many records behind a gap; who: -1 nobody, else a producer. rolls: a segment begins before it."""

    kind: str
    who: int
    records: int
    size: int
    timestamp: int
    gap: int
    rolls: bool
    epoch_rises: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(("plain", "plain", "transactional", "abort", "commit")),
        st.integers(-1, PRODUCERS - 1),
        st.integers(1, 4),
        st.integers(0, 400),
        st.integers(-1, 30),
        st.sampled_from((0, 0, 0, 1, 7)),
        st.sampled_from((False,) * 7 + (True,)),
        st.sampled_from((False,) * 5 + (True,)),
    ),
    min_size=1,
    max_size=40,
)
BEFORE = ("nothing", "checkpoint", "sealed", "stopped", "index lost")
"""What has come between the batches and the cut."""


class Batch(NamedTuple):
    data: bytes
    rolls: bool
    """A segment begins before it, at the end that the log had."""


def batches_of(steps: list[Step]) -> list[Batch]:
    """What these steps append."""
    found: list[Batch] = []
    end = epoch = 0
    open_since: set[int] = set()
    sequences = [0] * PRODUCERS
    for number, step in enumerate(steps):
        epoch += step.epoch_rises
        base = end + step.gap
        timestamp = step.timestamp if number and not step.rolls else max(0, step.timestamp)
        place = {"base_offset": base, "leader_epoch": epoch}
        if step.kind in ("abort", "commit") and step.who in open_since:
            kind = ABORT if step.kind == "abort" else COMMIT
            batch = build_marker(step.who, 0, kind, 0, timestamp, **place)
            open_since.discard(step.who)
        else:
            rows = [(None, b"%d" % number + bytes(step.size), [], timestamp) for _ in range(step.records)]
            if step.who < 0:
                batch = build_batch(rows, **place)
            else:
                is_open = step.kind == "transactional" or step.who in open_since
                batch = build_batch(
                    rows, producer_id=step.who, producer_epoch=0, base_sequence=sequences[step.who],
                    transactional=is_open, **place,
                )  # fmt: skip
                sequences[step.who] += step.records
                if is_open:
                    open_since.add(step.who)
        found.append(Batch(bytes(batch), step.rolls))
        end = parse_header(batch).next_offset
    return found


def filled(batches: list[Batch], limit: int) -> tuple[CrashDisk, LogDirectory, Log]:
    """A log of those batches that end at or below `limit`, with the segments that begin below it."""
    disk = CrashDisk()
    disk.wall_ms = lambda: NOW
    directory = start(disk)
    log = directory.create_log(TopicPartition("t", 0), TOPIC_ID, CONFIG)
    for data, rolls in batches:
        header = parse_header(data)
        rolls = rolls or log.active.size + len(data) > CONFIG.segment_bytes
        if rolls and log.active.size and log.end_offset < limit:
            log.roll()
        if header.next_offset > limit:
            break
        log.append(data, header, NOW)
    commit(directory)
    return disk, directory, log


def state_of(log: Log) -> dict[str, object]:
    """All that says what a log has."""
    producers = [
        (each.id, each.epoch, each.batches, each.coordinator_epoch, each.last_timestamp, each.transaction_start)
        for each in log.producers.active()
    ]
    return {
        "ends": (log.start_offset, log.end_offset, log.active.base_offset),
        "epochs": (log.epochs.entries, log.epochs.latest),
        "producers": (producers, log.producers.first_unstable_offset),
        "segments": [segment_state(segment) for segment in log.segments],
        "bytes": [bytes(data) for _, data in stored_batches(log, log.start_offset, log.end_offset, 900)],
    }


def segment_state(segment: Segment) -> tuple[object, ...]:
    bounds = segment.base_offset, segment.next_offset, segment.size, segment.flushed, segment.aborted()
    times = segment.max_timestamp, segment.max_timestamp_offset
    if segment.index is None or segment.times is None:
        return (*bounds, *times, segment.index_entries, segment.time_entries)
    first = segment.first_timestamp if segment.size and segment.first_timestamp < NOW else None  # else by the clock
    return (*bounds, *times, first, segment.unindexed, segment.index.encode(), segment.times.encode())


def files_of(disk: CrashDisk, log: Log) -> list[bytes]:
    """The active segment's, as they are, and what they should hold behind a checkpoint."""
    return [read_file(disk, log.active.path_of(suffix)) or b"" for suffix in (INDEX, TIME_INDEX)]


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, share=st.floats(0, 1, exclude_max=True), before=st.sampled_from(BEFORE), committed=st.floats(0, 1))
@example(steps=[Step("plain", 0, 4, 10, 1, 7, False, False)], share=0.9, before="nothing", committed=0.0)
@example(
    steps=[Step("plain", -1, 1, 350, 30 - n % 5, 0, n == 6, False) for n in range(12)],
    share=0.5, before="sealed", committed=0.0,
)  # fmt: skip
def test_a_log_that_was_cut_is_as_one_that_never_had_more(
    steps: list[Step], share: float, before: str, committed: float
) -> None:
    batches = batches_of(steps)
    disk, directory, log = filled(batches, 1 << 40)
    offset = int(share * log.end_offset)
    if before in ("checkpoint", "sealed"):
        checkpoint(directory)
        commit(directory)
    if before == "sealed":
        run_all(directory.take_maintenance(NOW))
    if before == "stopped":
        directory.close(clean=True)
        again = SETTINGS._replace(default_config=CONFIG)
        directory = LogDirectory.open(disk, "/data", again, now_ms=NOW, entropy=SimEntropy(Random(1)))
        (log,) = directory.logs.values()
    if before == "index lost":
        for segment in log.segments[:-1]:
            disk.open(segment.path_of(INDEX), write=True).truncate(0)
    truncate_log(log, offset)
    commit(directory)
    other_disk, other_directory, other = filled(batches, offset)
    watermark = int(committed * other.end_offset)
    log.producers.committed(watermark)
    other.producers.committed(other.end_offset if before == "stopped" else watermark)
    assert log.is_whole
    assert state_of(log) == state_of(other)
    for each in (directory, other_directory):
        checkpoint(each)
    assert files_of(disk, log) == files_of(other_disk, other)
    more = build_batch([(None, bytes(700), [], 50)], base_offset=log.end_offset, leader_epoch=log.epochs.latest)
    for each in (log, other):
        for _ in range(3):
            data = bytearray(more)
            data[:8] = each.end_offset.to_bytes(8, "big")
            each.append(data, parse_header(data), NOW)
        each.flush()
    assert state_of(log) == state_of(other)


def large(batches: int) -> tuple[CrashDisk, LogDirectory, Log]:
    """One segment of many batches, all of it known to the journal."""
    disk, directory, log = begun(PlainLogConfig(segment_bytes=1 << 30))
    for _ in range(batches):
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": log.end_offset}
        batch = build_batch([(None, bytes(700), [], NOW)], base_offset=log.end_offset, leader_epoch=0, **producer)
        log.append(batch, parse_header(batch), NOW)
        if log.end_offset % 500 == 0:
            commit(directory)
            checkpoint(directory)
    commit(directory)
    return disk, directory, log


def test_a_cut_near_the_end_of_a_large_segment_reads_a_few_index_intervals_on_the_loop() -> None:
    disk, directory, log = large(4000)
    size, interval = log.active.size, log.config.index_interval_bytes
    assert size > 500 * interval
    disk.record = []
    truncate_log(log, log.end_offset - 60)
    group = directory.take_group()
    assert group is not None
    group.run()
    directory.journal.complete(group)
    directory.take_group()
    assert log.pending_truncation is None
    calls = [call for call in disk.record if call.path.startswith(log.path)]
    disk.record = None
    read = sum(call.length for call in calls if call.operation.startswith("pread") and call.path.endswith(".log"))
    assert 0 < read <= 40 * interval, "blocks of the seal around the stretch"
    assert sum(call.length for call in calls if call.operation.startswith("pread")) <= 40 * interval
    assert sum(call.length for call in calls if call.operation == "pwritev") <= interval
    (job,) = directory.take_rebuilds()
    job.run()
    job.complete()
    producer = log.producers.get(7)
    assert producer is not None
    assert producer.last_offset == log.end_offset - 1


def test_a_cut_into_damage_changes_nothing() -> None:
    disk, directory, log = begun(CONFIG)
    for _ in range(8):
        batch = build_batch([(None, bytes(100), [], NOW)], base_offset=log.end_offset, leader_epoch=0)
        log.append(batch, parse_header(batch), NOW)
    commit(directory)
    cut = find_cut(log.active, 6, INTERVAL)
    assert 0 < cut.position < log.active.size
    before = state_of(log)
    disk.open(log.active.path, write=True).pwritev([b"!"], cut.position - 10)
    with pytest.raises(CorruptLogError):
        truncate_log(log, 6)
    disk.open(log.active.path, write=True).pwritev([b"\0"], cut.position - 10)
    assert log.is_whole
    assert state_of(log) == before
    directory.close(clean=True)
    assert start(disk).clean_start


def test_an_index_of_kafkas_names_the_end_of_several_batches() -> None:
    """Its entry has the last offset of all that one append brought: the cut may lie among those."""
    disk, _, log = begun(PlainLogConfig(index_interval_bytes=1 << 20))
    positions = []
    for _ in range(9):
        positions.append(log.active.size)
        batch = build_batch([(None, bytes(100), [], NOW)], base_offset=log.end_offset, leader_epoch=0)
        log.append(batch, parse_header(batch), NOW)
    log.flush()
    index = log.active.index
    assert index is not None
    index.add(7, positions[3])
    cut = find_cut(log.active, 5, 1 << 20)
    assert (cut.position, cut.next_offset, cut.entries) == (positions[5], 5, 0)
    again = find_cut(log.active, 8, 1 << 20)
    assert (again.position, again.next_offset) == (positions[8], 8)
    disk.kill()


def test_the_end_is_behind_the_last_batch_that_is_left_where_offsets_have_gaps() -> None:
    _, directory, log = begun(CONFIG)
    for base in (0, 10, 20):
        batch = build_batch([(None, b"x", [], NOW)], base_offset=base, leader_epoch=base)
        log.append(batch, parse_header(batch), NOW)
    truncate_log(log, 15)
    commit(directory)
    assert log.end_offset == log.active.next_offset == 11
    assert log.epochs.entries == [(0, 0), (10, 10)]


def test_a_full_disk_lacks_index_entries_until_it_has_room() -> None:
    disk, directory, log = large(300)
    truncate_log(log, 250)
    index = log.active.index
    assert index is not None
    assert 0 == index.written < len(index)

    def full(call: DiskCall) -> OSError | None:
        is_index = call.operation == "pwritev" and call.path.endswith((INDEX, TIME_INDEX))
        return OSError(errno.ENOSPC, "full", call.path) if is_index else None

    disk.fault = full
    commit(directory)
    assert (log.is_whole, index.written, directory.journal.failed) == (True, 0, None)
    disk.fault = None
    checkpoint(directory)
    assert index.written == len(index)
    assert len(disk.contents()[log.active.path_of(INDEX)]) == 8 * len(index)
    disk.kill()
    disk.power_on()
    (log,) = start(disk).logs.values()
    assert log.end_offset == 250


def test_another_error_of_the_disk_fences() -> None:
    disk, directory, log = large(300)
    truncate_log(log, 250)

    def broken(call: DiskCall) -> OSError | None:
        is_index = call.operation == "pwritev" and call.path.endswith(INDEX)
        return OSError(errno.EIO, "a bad sector", call.path) if is_index else None

    disk.fault = broken
    with pytest.raises(OSError, match="a bad sector"):
        commit(directory)
    assert directory.journal.failed is not None


def test_the_active_segment_of_a_clean_stop_is_woken_and_cut() -> None:
    disk, directory, log = large(300)
    directory.close(clean=True)
    directory = start(disk)
    (log,) = directory.logs.values()
    assert log.active.dormant is not None
    disk.record = []
    truncate_log(log, 250)
    read = sum(call.length for call in disk.record if call.path.endswith(".log") and call.operation == "pread")
    assert read < log.active.size
    commit(directory)
    assert log.end_offset == 250
    index = log.active.index
    assert index is not None
    assert len(index) > 30
