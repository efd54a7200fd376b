"""Indexes that a start makes again: whatever a power cut leaves of them, no damage is told."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.storage_workload import FIRST, SmallSegments, checkpoint, fill, housekeep, read_all, start

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.log import Log

SEEDS = range(20)


def filled(interval: int) -> tuple[CrashDisk, LogDirectory, Log]:
    """A log of 50 records in three segments, all in synced files. interval: between two entries of an index, bytes."""
    disk = CrashDisk()
    directory = start(disk)
    config = SmallSegments(segment_bytes=64 << 10, index_interval_bytes=interval)
    log = directory.create_log(TopicPartition("first", 0), FIRST, config)
    log.assign_epoch(0)
    for _ in range(5):
        fill(directory, log, 10, 3000)
        checkpoint(directory)
    housekeep(directory)
    assert [segment.sealed for segment in log.segments] == [True, True, False]
    return disk, directory, log


def torn(disk: CrashDisk, seed: int) -> None:
    """Power fails, and some of what was not synced is there all the same."""
    disk.random, disk.torn = Random(seed), True
    disk.power_cut()
    disk.power_on()
    disk.torn = False


def the_log(directory: LogDirectory) -> Log:
    assert directory.offline == {}
    assert directory.recovery.damage == []
    (log,) = directory.logs.values()
    return log


def all_is_sound(disk: CrashDisk, count: int) -> LogDirectory:
    directory = start(disk)
    log = the_log(directory)
    for offset in reversed(range(count)):
        assert len(read_all(log, offset)) == count - offset
    housekeep(directory)
    housekeep(directory)
    assert directory.findings.known == {}
    return directory


@pytest.mark.parametrize("rebuilt", [False, True])
def test_the_active_segments_side_files_are_synced_by_a_clean_stop_that_has_nothing_to_add_to_them(
    rebuilt: bool,
) -> None:
    """They were written by a checkpoint or by a start, and neither syncs them."""
    for seed in SEEDS:
        disk, directory, _ = filled(256)
        if rebuilt:
            disk.kill()
            disk.power_on()
            directory = start(disk)
        directory.close(clean=True)
        torn(disk, seed)
        all_is_sound(disk, 50)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("interval", [256, 16 << 10])
@pytest.mark.parametrize("clean", [False, True])
def test_a_lost_index_of_a_sealed_segment_is_made_again_and_its_seal_with_it(
    clean: bool, interval: int, suffix: str
) -> None:
    """A start does not know the topic's `index.interval.bytes`: the index is another one than was sealed."""
    for seed in SEEDS:
        disk, directory, log = filled(interval)
        path = log.segments[1].path_of(suffix)
        if clean:
            directory.close(clean=True)
        else:
            disk.kill()
        disk.power_on()
        disk.remove(path)
        disk.sync_directory("/data/first-0")
        directory = all_is_sound(disk, 50)
        if clean:
            directory.close(clean=True)
        torn(disk, seed)
        directory = all_is_sound(disk, 50)
        assert [segment.sealed for segment in the_log(directory).segments] == [True, True, False]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("interval", [256, 16 << 10])
def test_a_power_cut_while_a_lost_index_is_made_again_leaves_none_that_the_seal_does_not_know(
    interval: int, suffix: str
) -> None:
    for seed in SEEDS:
        disk, directory, log = filled(interval)
        path = log.segments[1].path_of(suffix)
        directory.close(clean=True)
        disk.power_on()
        disk.remove(path)
        disk.sync_directory("/data/first-0")
        start(disk)
        torn(disk, seed)
        all_is_sound(disk, 50)


@pytest.mark.parametrize("kept", [0, 8, 16])
def test_an_index_that_is_cut_off_keeps_no_record_from_readers(kept: int) -> None:
    """The sealed segment in front of it is sound: each read of its beginning failed, also behind restarts."""
    disk, directory, log = filled(1_000)
    directory.close(clean=True)
    records = read_all(start(disk.copy(Random(1))).logs[FIRST, 0])
    index = log.segments[0].path.replace(".log", ".index")
    assert len(disk.contents()[index]) > kept
    file = disk.open(index, write=True)
    file.truncate(kept)
    file.sync()
    file.close()
    assert read_all(start(disk).logs[FIRST, 0]) == records
