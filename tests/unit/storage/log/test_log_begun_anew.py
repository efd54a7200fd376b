"""A log that is dropped and begun anew at an offset: in memory, in its files, and behind kills and power cuts."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.repair_world import findings
from tests.worlds.storage_workload import (
    FIRST,
    LOOSE,
    append,
    checkpoint,
    commit,
    fill,
    housekeep,
    read_all,
    small,
    start,
)

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.durability import complete_sync, take_sync
from duramen.storage.log.follower import append_as_follower, starts_before
from duramen.storage.log.log import Log
from duramen.storage.log.open import open_log
from duramen.storage.log.retention import RenameSegmentsJob
from duramen.storage.repair.repair import survey_directory
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.segment import LOG, log_name, parse_name
from duramen.wire.batch import BatchHeader, build_batch, parse_header

TP = TopicPartition("first", 0)
HOME = "/data/first-0"
KINDS = {"stable": FIRST, "page-cache": LOOSE}


def filled(durability: str = "stable", disk: CrashDisk | None = None) -> tuple[CrashDisk, LogDirectory, Log]:
    """A log of several segments with an idempotent producer; most of it is behind a checkpoint, and sealed."""
    disk = CrashDisk() if disk is None else disk
    directory = start(disk)
    log = directory.create_log(TP, KINDS[durability], small(durability))
    log.assign_epoch(3)
    fill(directory, log, 40)
    data = build_batch([(None, b"p", [], 1)], base_offset=40, leader_epoch=3, producer_id=7, base_sequence=0)
    log.append(data, parse_header(data), 1000)
    checkpoint(directory)
    housekeep(directory)
    fill(directory, log, 5)
    assert len(log.segments) > 3
    return disk, directory, log


def damage(disk: CrashDisk) -> list[str]:
    """What `duramen log verify` says of it."""
    return [found.what for found in findings(disk) if found.kind == "damage"]


def files(disk: CrashDisk) -> list[str]:
    """Names that begin with an offset."""
    return [name for name in disk.list_directory(HOME) if parse_name(name) is not None]


def batch(offset: int, count: int = 1, epoch: int = 5) -> tuple[bytes, BatchHeader]:
    rows = [(b"k", b"%d" % (offset + number), (), 1) for number in range(count)]
    data = bytes(build_batch(rows, base_offset=offset, leader_epoch=epoch))
    return data, parse_header(data)


def refused(log: Log, offset: int) -> None:
    with pytest.raises(KafkaError) as error:
        log.read(offset, 1000, log.end_offset, at_least_one=True)
    assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("offset", [0, 13, 45, 46, 1_000_000_000_000])
@pytest.mark.parametrize("durability", KINDS)
def test_nothing_stays_of_what_there_was(durability: str, offset: int) -> None:
    disk, directory, log = filled(durability)
    directory.begin_anew(log, offset)
    assert (log.start_offset, log.end_offset, log.durable_end, log.size) == (offset, offset, offset, 0)
    assert (log.epochs.entries, len(log.producers)) == ([], 0)
    for old in {0, 20, 45} - {offset}:
        refused(log, old)
    with pytest.raises(KafkaError) as error:
        append(log, b"too early")
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert f"{0:020}.log" in files(disk), "files go when the entry is durable"
    commit(directory)
    directory.take_group()
    assert files(disk) == [name for name in files(disk) if name.startswith(f"{offset:020}")]
    append_as_follower(log, *batch(offset), 1000)
    commit(directory)
    checkpoint(directory)
    expected = {offset: b"%d" % offset}
    assert read_all(log) == expected
    for clean in (True, False):
        directory.close(clean=clean)
        disk.end_process()
        assert damage(disk) == []
        directory = start(disk)
        log = directory.logs[KINDS[durability], 0]
        assert (log.start_offset, log.end_offset, log.epochs.entries) == (offset, offset + 1, [(5, offset)])
        assert (read_all(log), len(log.producers)) == (expected, 0)


@pytest.mark.parametrize("durability", KINDS)
@pytest.mark.parametrize("offset", [3, 22, 500])
@pytest.mark.parametrize("power", [False, True])
def test_a_death_in_any_call_leaves_the_old_log_or_the_new_one(durability: str, offset: int, power: bool) -> None:
    """The new one has a prefix of what was appended to it, all of it that was acknowledged."""
    call, died, seen = 0, True, set()
    while died:
        call += 1
        disk, directory, log = filled(durability, CrashDisk(Random(call), torn=power))
        checkpoint(directory)
        old = read_all(log)
        assert 22 in [segment.base_offset for segment in log.segments], "one that has the name of an old one, too"
        if power:
            disk.cut_at = disk.calls + call
        else:
            disk.kill_at = disk.calls + call
        acknowledged: dict[int, bytes] = {}
        is_new = False
        try:
            directory.begin_anew(log, offset)
            commit(directory)
            is_new = True
            for number in range(offset, offset + 4):
                append_as_follower(log, *batch(number), 1000)
                commit(directory)
                if durability == "stable":
                    acknowledged[number] = b"%d" % number
            checkpoint(directory)
            acknowledged = {number: b"%d" % number for number in range(offset, offset + 4)}
            died = False
        except NodeDied:
            disk.power_on()
        disk.cut_at = disk.kill_at = None
        disk.end_process()
        assert damage(disk) == [], call
        directory = start(disk)
        assert not directory.offline, call
        log = directory.logs[KINDS[durability], 0]
        found = read_all(log)
        if log.start_offset == 0:
            assert (found, is_new) == (old, False), call
            assert log.producers.get(7) is not None
            seen.add("old")
        else:
            assert log.start_offset == offset, call
            assert found == {number: b"%d" % number for number in range(offset, log.end_offset)}, call
            assert acknowledged.items() <= found.items(), call
            assert {each for each in files(disk) if each.endswith(LOG)} == {log_name(offset)}, call
            assert len(log.producers) == 0
            seen.add("new")
        disk.end_process()
        assert damage(disk) == [], call
    assert seen == {"old", "new"}


@pytest.mark.parametrize("durability", KINDS)
def test_the_first_batch_may_begin_in_front_of_the_start_that_it_holds(durability: str) -> None:
    disk, directory, log = filled(durability)
    directory.begin_anew(log, 100)
    commit(directory)
    commit(directory)
    data, header = batch(97, 6)
    with pytest.raises(KafkaError, match="ends at 100"):
        append_as_follower(log, data, header, 1000)
    assert starts_before(log, header)
    assert not starts_before(log, batch(90, 3)[1]), "it does not hold the start"
    directory.begin_anew(log, log.start_offset, header.base_offset)
    commit(directory)
    commit(directory)
    assert (log.start_offset, log.end_offset, log.active.base_offset) == (100, 100, 97)
    for how in ("kill", "stop", "power"):  # an empty log is as it was
        directory.close(clean=True) if how == "stop" else disk.kill() if how == "kill" else disk.power_cut()
        disk.power_on()
        disk.end_process()
        assert damage(disk) == []
        assert survey_directory(disk, "/data").actions == []
        directory = start(disk)
        log = directory.logs[KINDS[durability], 0]
        assert (log.start_offset, log.end_offset, log.active.base_offset) == (100, 100, 97)
    append_as_follower(log, data, header, 1000)
    append_as_follower(log, *batch(103), 1000)
    commit(directory)
    expected = {offset: b"%d" % offset for offset in range(100, 104)}
    assert read_all(log) == expected
    refused(log, 99)
    disk.kill()
    disk.power_on()
    assert damage(disk) == []
    log = start(disk).logs[KINDS[durability], 0]
    assert (log.start_offset, read_all(log)) == (100, expected)


def test_what_was_lost_since_is_told_though_the_journal_has_the_new_beginning_still() -> None:
    """The checkpoint that came behind it lists the segments of the new log."""
    disk, directory, log = filled()
    directory.begin_anew(log, 100)
    commit(directory)
    commit(directory)
    fill(directory, log, 40)
    assert len(log.segments) > 2
    checkpoint(directory)
    housekeep(directory)
    base = log.segments[1].base_offset
    disk.kill()
    disk.power_on()
    disk.remove(f"{HOME}/{log_name(base)}")
    disk.sync_directory(HOME)
    assert damage(disk)
    assert (FIRST, 0) in start(disk).offline


def test_it_waits_for_whoever_writes_beside_the_log_and_lets_nothing_of_theirs_stay() -> None:
    disk, directory, log = filled()
    sync = take_sync(log)
    assert sync is not None
    directory.begin_anew(log, 100)
    commit(directory)
    assert log.pending_truncation is not None, "a job writes into the old files"
    assert directory.take_checkpoint(force=True) is None
    sync.run()
    complete_sync(log, sync)
    commit(directory)
    directory.take_group()
    assert log.pending_truncation is None
    assert (log.recovery_point, files(disk)) == (100, [name for name in files(disk) if name.startswith(f"{100:020}")])


def test_it_comes_later_where_segments_are_getting_other_names() -> None:
    _, directory, log = filled()
    log.advance_start(30)
    commit(directory)
    jobs = directory.take_maintenance(2_000_000)
    while not any(isinstance(job, RenameSegmentsJob) for job in jobs):
        for job in jobs:
            job.run()
            job.complete()
        commit(directory)
        jobs = directory.take_maintenance(2_000_000)
    assert log.segments[0].base_offset > 0, "some are no longer the log's"
    with pytest.raises(KafkaError) as error:
        directory.begin_anew(log, 0)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    for job in jobs:
        job.run()
        job.complete()
    directory.begin_anew(log, 0)
    assert log.end_offset == 0


@pytest.mark.parametrize(("clean", "end_offset", "is_least", "opened"), [
    (False, 40, False, 40),
    (False, None, True, 0),
    (True, None, False, 40),
    (True, None, True, 0),
])  # fmt: skip
def test_an_empty_log_ends_at_its_start_only_where_its_end_is_known(
    clean: bool, end_offset: int | None, is_least: bool, opened: int
) -> None:
    """One that was left offline, because it ended too early, has not begun anew."""
    _, directory, log = filled()
    directory.begin_anew(log, 40, 0)
    commit(directory)
    commit(directory)
    point = LogPoint(TP, 40, 40, 0, 0, is_least=is_least)
    log = open_log(
        log.disk, log.path, TP, log.topic_id, log.config, log.journal,
        clean=clean, start_offset=40, recovery_point=40, known=point, end_offset=end_offset,
    )  # fmt: skip
    assert (log.start_offset, log.end_offset) == (opened, opened)
