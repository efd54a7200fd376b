"""Where recovery looks for what page-cache topics do not journal: by a mark in the journal, then by the checkpoint."""

from __future__ import annotations

import pytest
from tests.worlds.storage_workload import (
    KIB,
    LOOSE,
    SETTINGS,
    append,
    checkpoint,
    commit,
    fill,
    housekeep,
    read_all,
    small,
    start,
)

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.kafka_files import CHECKPOINT, read_checkpoint
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.storage.log.truncation import truncate_log

KEY = (LOOSE, 0)


def begun() -> tuple[CrashDisk, LogDirectory, Log]:
    """A page-cache log with three records, of which a checkpoint knows."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TopicPartition("loose", 0), LOOSE, small("page-cache"))
    log.assign_epoch(0)
    fill(directory, log, 3)
    checkpoint(directory)
    return disk, directory, log


def again(disk: CrashDisk, *, power: bool = False, lost: bool = False) -> Log:
    """The log after kill -9, or a power cut, and a start; lost: our checkpoint is."""
    if power:
        disk.power_cut()
    else:
        disk.kill()
    disk.power_on()
    if lost:
        disk.remove(f"/data/{CHECKPOINT}")
    return start(disk).logs[KEY]


def unjournaled(disk: CrashDisk) -> bool:
    found = read_checkpoint(disk, "/data")
    assert found is not None
    return found.logs[KEY].unjournaled


def test_one_mark_is_enough_for_all_checkpoints_to_come() -> None:
    disk, directory, log = begun()
    for _ in range(3):
        entries = directory.journal.next_lsn
        append(log, b"more")
        assert directory.journal.knows(log), "its acknowledgement waits for nothing"
        assert directory.journal.next_lsn == entries
        commit(directory)
        checkpoint(directory)
        assert unjournaled(disk)
        assert directory.journal.entries == 0
    append(log, b"not synced")
    commit(directory)
    expected = read_all(log)
    assert read_all(again(disk)) == expected
    assert not unjournaled(disk), "all of it is synced, and the next append is to tell"
    assert read_all(again(disk, power=True)) == expected


def test_a_checkpoint_becomes_due_though_nothing_was_journaled() -> None:
    _, directory, log = begun()
    later = directory._now_ms + SETTINGS.checkpoint_interval_ms
    directory.take_maintenance(later)
    assert not directory.checkpoint_due
    append(log, b"more")
    commit(directory)
    assert directory.checkpoint_due
    checkpoint(directory)
    directory.take_maintenance(later + SETTINGS.checkpoint_interval_ms)
    assert not directory.checkpoint_due, "nothing has changed since"


def test_a_checkpoint_says_what_held_when_it_began() -> None:
    """What comes later is in the journal that goes with it."""
    disk, directory, log = begun()
    append(log, b"loose")
    configure_log(log, small("stable"))
    checkpoint(directory)
    assert not unjournaled(disk)
    configure_log(log, small("page-cache"))
    checkpoint(directory)
    assert not unjournaled(disk), "nothing was appended yet"
    directory._checkpointer.begin()
    append(log, b"loose again")
    assert not directory.journal.knows(log)
    commit(directory)
    checkpoint(directory)
    assert not unjournaled(disk)
    append(log, b"and again")
    commit(directory)
    expected = read_all(log)
    assert read_all(again(disk)) == expected


def test_batches_journaled_since_are_not_looked_for_where_the_checkpoint_says() -> None:
    """The log became stable while the checkpoint was made: what it journaled then may be torn in the segment."""
    for seed in range(20):
        disk, directory, log = begun()
        disk.torn = True
        disk.random.seed(seed)
        directory._checkpointer.begin()
        append(log, b"not journaled")
        configure_log(log, small("stable"))
        checkpoint(directory)
        assert unjournaled(disk)
        fill(directory, log, 4)
        expected = read_all(log)
        assert read_all(again(disk, power=True)) == expected


def test_entries_from_before_the_checkpoint_count_no_more() -> None:
    """The journal may have them still, and not the mark behind them: that need not have become durable."""
    disk, directory, log = begun()
    configure_log(log, small("stable"))
    fill(directory, log, 4)
    truncate_log(log, 1)
    commit(directory)
    fill(directory, log, 3)
    append(log, b"on its way to the journal")
    configure_log(log, small("page-cache"))
    append(log, b"loose")
    assert not directory.journal.knows(log)
    directory.flush()
    directory._checkpointer.begin()
    while (job := directory._checkpointer.take_job()) is not None:
        job.run()
        directory.complete_checkpoint(job)
    assert unjournaled(disk)
    expected = read_all(log)
    assert read_all(again(disk)) == expected
    assert read_all(again(disk, power=True)) == expected


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("since", ["checkpoint", "start", "cut"])
@pytest.mark.parametrize("within", [False, True])
def test_what_lies_before_a_roll_is_not_taken_for_synced(within: bool, since: str, lost: bool) -> None:
    """since: after what all was on stable storage; within: a round that began behind an append."""
    disk, directory, log = begun()
    if since == "start":
        directory.close(clean=True)
        directory = start(disk)
        log = directory.logs[KEY]
    elif since == "cut":
        truncate_log(log, 2)
        commit(directory)
    append(log, b"more")
    commit(directory)
    if within:
        directory._checkpointer.begin()
    segments = len(log.segments)
    while len(log.segments) == segments:
        append(log, b"more")
    commit(directory)
    if within:
        checkpoint(directory)
    fill(directory, log, 2)
    expected = read_all(log)
    assert read_all(again(disk, lost=lost)) == expected
    assert read_all(again(disk, power=True)) == expected, "what a start accepts it brings to stable storage"


@pytest.mark.parametrize("lost", [False, True])
def test_what_lies_before_a_cut_is_not_taken_for_synced(lost: bool) -> None:
    """Power fails when the journal has the truncation and the file is not cut yet, which syncs what stays."""
    disk, directory, log = begun()
    synced = read_all(log)
    append(log, b"stays")
    append(log, b"goes")
    commit(directory)
    truncate_log(log, log.end_offset - 1)
    group = directory.take_group()
    assert group is not None
    group.run()
    assert read_all(again(disk, power=True, lost=lost)) == synced


def test_damage_in_what_was_synced_is_not_taken_for_the_end() -> None:
    """Also where the checkpoint is lost: the mark in front of a roll begins behind what was synced."""
    disk, directory, log = begun()
    fill(directory, log, 3)
    checkpoint(directory)
    place = log.active.size // 2
    while len(log.segments) == 1:
        append(log, b"v" * 300)
    commit(directory)
    disk.damage(log.segments[0].path, place, 0xFF)
    disk.kill()
    disk.power_on()
    disk.remove(f"/data/{CHECKPOINT}")
    directory = start(disk)
    assert KEY not in directory.logs
    assert "damaged" in str(directory.offline[KEY].error)


@pytest.mark.parametrize("before", [False, True])
def test_a_mark_in_a_segment_that_retention_took_hides_nothing(before: bool) -> None:
    """before: something was appended to that segment behind the round's beginning, too."""
    disk, directory, log = begun()
    size = log.active.size // 3
    while log.active.size + size * (1 + before) <= 4 * KIB:
        append(log, b"v" * 300)
    commit(directory)
    directory._checkpointer.begin()
    if before:
        append(log, b"w")
    while len(log.segments) == 1:
        append(log, b"v" * 300)
    commit(directory)
    checkpoint(directory)
    fill(directory, log, 3)
    log.advance_start(log.active.base_offset + 1)
    commit(directory)
    for _ in range(2):
        housekeep(directory)
        commit(directory)
    assert len(log.segments) == 1
    expected = read_all(log)
    assert len(expected) >= 3
    assert read_all(again(disk, lost=True)) == expected


def test_an_older_checkpoint_of_the_same_run_is_not_believed() -> None:
    """Though nothing but records was written meanwhile, which journal nothing."""
    disk, directory, log = begun()
    fill(directory, log, 1)
    checkpoint(directory)
    older = disk.contents()[f"/data/{CHECKPOINT}"]
    fill(directory, log, 5)
    checkpoint(directory)
    expected = read_all(log)
    disk.kill()
    disk.power_on()
    replace_file(disk, f"/data/{CHECKPOINT}", older)
    directory = start(disk)
    assert "older than the last one" in directory.recovery.damage[0]
    assert read_all(directory.logs[KEY]) == expected
