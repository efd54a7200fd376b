"""Where recovery looks for what page-cache topics do not journal: by a mark in the journal, then by the checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from duramen.model import TopicPartition
from duramen.sim.disk import CrashDisk
from duramen.storage.checkpoints import CHECKPOINT, read_checkpoint
from duramen.storage.directory import LogDirectory
from duramen.storage.log import Log

sys.path.insert(0, str(Path(__file__).parents[2] / "scenarios"))

from storage_workload import LOOSE, SETTINGS, append, checkpoint, commit, fill, read_all, small, start

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
    log.configure(small("stable"))
    checkpoint(directory)
    assert not unjournaled(disk)
    log.configure(small("page-cache"))
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
        log.configure(small("stable"))
        checkpoint(directory)
        assert unjournaled(disk)
        fill(directory, log, 4)
        expected = read_all(log)
        assert read_all(again(disk, power=True)) == expected


def test_entries_from_before_the_checkpoint_count_no_more() -> None:
    """The journal may have them still, and not the mark behind them: that need not have become durable."""
    disk, directory, log = begun()
    log.configure(small("stable"))
    fill(directory, log, 4)
    log.truncate_to(1)
    commit(directory)
    fill(directory, log, 3)
    append(log, b"on its way to the journal")
    log.configure(small("page-cache"))
    append(log, b"loose")
    assert not directory.journal.knows(log)
    directory.flush()
    directory._checkpointer.begin()
    while (job := directory._checkpointer.take()) is not None:
        job.run()
        directory.complete_checkpoint(job)
    assert unjournaled(disk)
    expected = read_all(log)
    assert read_all(again(disk)) == expected
    assert read_all(again(disk, power=True)) == expected


@pytest.mark.parametrize("lost", [False, True])
def test_what_lies_before_a_roll_is_not_taken_for_synced(lost: bool) -> None:
    disk, directory, log = begun()
    segments = len(log.segments)
    while len(log.segments) == segments:
        append(log, b"more")
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
    log.truncate_to(log.end_offset - 1)
    group = directory.take_group()
    assert group is not None
    group.run()
    assert read_all(again(disk, power=True, lost=lost)) == synced
