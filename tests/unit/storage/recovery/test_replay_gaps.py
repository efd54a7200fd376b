"""Gaps in offsets, as a follower of a compacted topic has them: no damage, and what is lost is told from them."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.repair_world import findings, repair, scribble
from tests.worlds.storage_workload import FIRST, KIB, LOOSE, checkpoint, commit, housekeep, read_all, small, start

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.follower import append_as_follower
from duramen.storage.log.log import Log
from duramen.storage.segment.segment import log_name
from duramen.wire.batch import build_batch, parse_header

TP = TopicPartition("first", 0)
HOME = "/data/first-0"
KINDS = {"stable": FIRST, "page-cache": LOOSE}


def followed(durability: str, count: int, *, disk: CrashDisk | None = None) -> tuple[CrashDisk, LogDirectory, Log]:
    """A log with gaps, some of it behind a checkpoint."""
    disk = CrashDisk() if disk is None else disk
    directory = start(disk)
    log = directory.create_log(TP, KINDS[durability], small(durability))
    for number in range(count):
        follow(log, number)
        commit(directory)
        if number == count // 2:
            checkpoint(directory)
            housekeep(directory)
    return disk, directory, log


def follow(log: Log, number: int, *, epoch: int = 2, size: int = 300) -> None:
    """The next batch, with a gap in front of every second one."""
    offset = log.end_offset + number % 2 * (1 + number % 5)
    rows = [(b"k", b"%d " % number + b"v" * size, (), 1000 + offset)]
    data = bytes(build_batch(rows, base_offset=offset, leader_epoch=epoch))
    append_as_follower(log, data, parse_header(data), 1000)


def damage(disk: CrashDisk) -> list[str]:
    """What `duramen log verify` says of it."""
    return [found.what for found in findings(disk) if found.kind == "damage"]


@pytest.mark.parametrize("durability", KINDS)
@pytest.mark.parametrize("how", ["kill", "power", "stop"])
def test_a_log_with_gaps_is_as_it_was(durability: str, how: str) -> None:
    for count in (1, 2, 7, 40):
        disk, directory, log = followed(durability, count)
        if how == "power" and durability == "page-cache":
            checkpoint(directory)  # what is not synced is not promised there
        expected, end, epochs = read_all(log), log.end_offset, log.epochs.entries
        if how == "stop":
            directory.close(clean=True)
        elif how == "kill":
            disk.kill()
        else:
            disk.power_cut()
        if how != "stop":
            disk.power_on()
        assert damage(disk) == []
        log = start(disk).logs[KINDS[durability], 0]
        assert (read_all(log), log.end_offset, log.epochs.entries) == (expected, end, epochs)
        assert len(expected) == count < end or count == 1


def test_what_a_power_cut_leaves_of_a_page_cache_log_is_its_beginning() -> None:
    """Whatever sectors are there: a batch behind missing bytes never passes for one behind a gap."""
    lengths = set()
    for seed in range(60):
        disk, directory, log = followed("page-cache", 4, disk=CrashDisk(Random(seed), torn=True))
        for number in range(4, 12):
            follow(log, number)
        commit(directory)
        everything = read_all(log)
        disk.power_cut()
        disk.power_on()
        assert damage(disk) == []
        found = read_all(start(disk).logs[LOOSE, 0])
        assert list(found.items()) == list(everything.items())[: len(found)]
        lengths.add(len(found))
    assert len(lengths) > 3


def test_a_gap_counts_when_the_journal_has_it_durably() -> None:
    """A wrong base offset, which is in no CRC, would pass for a gap; nobody is told of a batch before it is known."""
    disk, directory, log = followed("page-cache", 4)
    kept = read_all(log)
    follow(log, 5)
    assert not directory.journal.knows(log)
    directory.flush()
    copy = disk.copy(Random(0))
    copy.kill()
    copy.power_on()
    assert read_all(start(copy).logs[LOOSE, 0]) == kept
    commit(directory)
    assert directory.journal.knows(log)
    kept = read_all(log)
    disk.kill()
    disk.power_on()
    assert read_all(start(disk).logs[LOOSE, 0]) == kept
    assert len(kept) == 5


def test_an_older_epoch_behind_a_gap_ends_what_is_accepted() -> None:
    disk, directory, log = followed("page-cache", 4)
    kept = read_all(log)
    log.epochs._epochs[-1] = log.epochs.latest = 1  # so that it is taken
    follow(log, 5, epoch=1)
    commit(directory)
    disk.kill()
    disk.power_on()
    assert read_all(start(disk).logs[LOOSE, 0]) == kept


@pytest.mark.parametrize("durability", KINDS)
def test_a_missing_segment_is_told_from_a_gap(durability: str) -> None:
    for which in (0, 1, -1):
        disk, directory, log = followed(durability, 60)
        checkpoint(directory)
        housekeep(directory)
        base = log.segments[:-1][which].base_offset
        directory.close(clean=True)
        disk.remove(f"{HOME}/{log_name(base)}")
        disk.sync_directory(HOME)
        assert damage(disk), which
        assert (KINDS[durability], 0) in start(disk).offline


def test_damage_beside_gaps_takes_what_is_damaged_alone() -> None:
    """The seal vouches for gaps in other blocks: a repair loses, and reports as lost, what is in that one alone."""
    disk = CrashDisk()
    directory = start(disk)
    config = small()
    config.segment_bytes = 512 * KIB
    log = directory.create_log(TP, FIRST, config)
    for number in range(60):
        follow(log, number, size=5 * KIB)
        commit(directory)
        if not number % 8:
            checkpoint(directory)
    log.roll()
    follow(log, 60)
    checkpoint(directory)
    housekeep(directory)
    before, segment = read_all(log), log.segments[0]
    victim = list(before)[30]
    at = 0
    while (header := parse_header(memoryview(segment.open_file().pread(61, at)))).base_offset < victim:
        at += header.size
    directory.close(clean=True)
    scribble(disk, f"{HOME}/{log_name(0)}", at + 100, 40)
    assert repair(disk)
    lost = [offset for loss in read_losses(disk, "/data") for offset in (loss["first_offset"], loss["last_offset"])]
    near = [list(before)[30 + far] for far in (-15, 15)]
    assert near[0] < min(lost) <= victim <= max(lost) < near[1]
    assert damage(disk) == []
    left = read_all(start(disk).logs[FIRST, 0])
    assert left.items() <= before.items()
    assert victim not in left
    assert {offset for offset in before if not near[0] < offset < near[1]} <= set(left)
