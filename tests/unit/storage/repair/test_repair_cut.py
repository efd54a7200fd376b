"""`duramen log repair` that ends in any of its calls, and is run again: all is as behind one that came to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import NamedTuple

import pytest
from tests.worlds.repair_world import CHANGES, TP, findings, repair, scribble
from tests.worlds.storage_workload import FIRST, SECOND, append, checkpoint, commit, housekeep, read_all, small, start

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.log.truncation import truncate_log
from duramen.storage.repair.repair import survey_directory

LONG, SHORT = "/data/first-0", "/data/second-0"


def stopped(*, clean: bool) -> CrashDisk:
    """A log of seven segments, of whose records one was deleted, and one with only one segment."""
    disk = CrashDisk(torn=True)
    directory = start(disk)
    logs = [
        directory.create_log(TP, FIRST, small()),
        directory.create_log(TopicPartition("second", 0), SECOND, small()),
    ]
    for log, count in zip(logs, (65, 3), strict=True):
        log.assign_epoch(3)
        for number in range(count):
            append(log, b"%d " % number + b"v" * 300)
            commit(directory)
    checkpoint(directory)  # or the journal is full
    logs[0].advance_start(1)
    checkpoint(directory)
    housekeep(directory)
    assert [len(log.segments) for log in logs] == [7, 1]
    if clean:
        directory.close(clean=True)
    else:
        append(logs[0], b"last")
        commit(directory)
        commit(directory)
        disk.kill()
        disk.power_on()
    for path in disk.contents():  # or a second power cut tears what the first one has spared
        file = disk.open(path, write=True)
        file.sync()
        file.close()
    for home in (LONG, SHORT):
        disk.sync_directory(home)
    disk.sync_directory("/data")
    return disk


def segments(disk: CrashDisk, home: str) -> list[str]:
    return [f"{home}/{name}" for name in disk.list_directory(home) if name.endswith(".log")]


def remove(disk: CrashDisk, *paths: str) -> None:
    for path in paths:
        disk.remove(path)
        disk.sync_directory(path.rpartition("/")[0])


def without_segments(disk: CrashDisk) -> None:
    for home in (LONG, SHORT):
        remove(disk, *segments(disk, home))


def without_files(disk: CrashDisk) -> None:
    for home in (LONG, SHORT):
        remove(disk, *(f"{home}/{name}" for name in disk.list_directory(home)))


def without_directories(disk: CrashDisk) -> None:
    without_files(disk)
    remove(disk, LONG, SHORT)


def without_the_short_one(disk: CrashDisk) -> None:
    remove(disk, *(f"{SHORT}/{name}" for name in disk.list_directory(SHORT)))
    remove(disk, SHORT)


def without_some(disk: CrashDisk) -> None:
    found = segments(disk, LONG)
    remove(disk, found[0], found[3], found[-1])


def damaged(disk: CrashDisk) -> None:
    """One bit that the seal tells, the middle of a segment, the end of the log, and all of the other one."""
    found = segments(disk, LONG)
    disk.damage(found[1], 700, 0x10)
    scribble(disk, found[2], 500, 600)
    scribble(disk, found[-1], 1_300, 100)
    (only,) = segments(disk, SHORT)
    scribble(disk, only, 0, 900)


def cut_off(disk: CrashDisk) -> None:
    for path, size in (
        (segments(disk, LONG)[2], 1_000),
        (segments(disk, LONG)[-1], 500),
        (segments(disk, SHORT)[0], 0),
    ):
        file = disk.open(path, write=True)
        file.truncate(size)
        file.sync()
        file.close()


def in_the_way(disk: CrashDisk) -> None:
    """Files that are none of the log's, and a segment that is gone."""
    for name in ("00000000000000000010.log.swap", "00000000000000000020.log.swap"):
        file = disk.open(f"{LONG}/{name}", create=True, write=True)
        file.pwritev([b"a copy"], 0)
        file.sync()
        file.close()
    disk.sync_directory(LONG)
    remove(disk, segments(disk, LONG)[4])


Harm = Callable[[CrashDisk], None]
HARMS = (without_segments, without_files, without_directories, without_some, damaged, cut_off, in_the_way)


class End(NamedTuple):
    """What a directory is behind a repair: of each log start, end, records and epochs, and what is told lost."""

    logs: dict[str, tuple[int, int, dict[int, bytes], list[tuple[int, int]]]]
    lost: set[tuple[str, int]]


def end_of(disk: CrashDisk) -> End:
    """By the commands and by a start."""
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    assert [action for action in survey_directory(disk, "/data").actions if action.kind != "removed"] == []
    told = [(loss["partition"], loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")]
    assert len(told) == len(set(told)), "it is told once"
    directory = start(disk)
    assert [left.error for left in directory.offline.values()] == []
    logs = {
        str(log.tp): (log.start_offset, log.end_offset, read_all(log), log.epochs.entries)
        for log in directory.logs.values()
    }
    assert [each for each in directory.recovery.damage if "metadata" in each or "checkpoint" in each] == []
    directory.close(clean=True)
    assert findings(disk) == []
    return End(logs, {(name, offset) for name, first, last in told for offset in range(first, last + 1)})


def cuts(harmed: CrashDisk) -> Iterator[tuple[CrashDisk, str]]:
    """The disk behind a repair that died in its call of that name: by the power, and killed."""
    probe = harmed.copy(Random(0))
    probe.record, before = [], probe.calls
    repair(probe)
    for call in [call for call in probe.record if call.operation in CHANGES]:
        for how in ("cut_at", "kill_at"):
            disk = harmed.copy(Random(call.number))
            setattr(disk, how, disk.calls + call.number - before)
            with suppress(NodeDied):
                repair(disk)
            if disk.powered:  # it was the last call, and had its effect
                assert call is probe.record[-1]
                disk.kill()
            disk.power_on()
            yield disk, f"{how} {call}"


@pytest.mark.parametrize(
    ("harm", "clean"), [*((harm, True) for harm in HARMS), (without_the_short_one, False), (damaged, False)]
)
def test_the_second_ends_where_one_that_was_not_cut_ends(harm: Harm, clean: bool) -> None:
    """Behind the last segment's loss, killed in front of the checkpoint, it said that there was nothing to do."""
    harmed = stopped(clean=clean)
    harm(harmed)
    whole = harmed.copy(Random(0))
    repair(whole)
    wanted = end_of(whole)
    assert wanted.lost
    number = 0
    for disk, call in cuts(harmed):
        number += 1
        repair(disk)
        try:
            found = end_of(disk)
        except AssertionError as error:
            raise AssertionError(call) from error
        assert found.lost == wanted.lost, call
        assert found == wanted, call
    assert number > 30


@pytest.mark.parametrize("shorter", [True, False])
def test_behind_a_kill_all_segments_that_are_gone_are_told(shorter: bool) -> None:
    """Of a log that had one only it found nothing to do, and each start left that offline."""
    harmed = stopped(clean=False)
    if shorter:
        directory = start(harmed)
        truncate_log(directory.logs[SECOND, 0], 2)
        commit(directory)
        commit(directory)
        harmed.kill()
        harmed.power_on()
    remove(harmed, *segments(harmed, SHORT))  # nothing else is to be done there
    repair(harmed)
    end = end_of(harmed)
    assert {offset for name, offset in end.lost if name == "second-0"} == set(range(2 if shorter else 3))
    assert end.logs["second-0"][1:3] == (2 if shorter else 3, {})


def test_a_start_that_is_cut_short_forgets_no_segment() -> None:
    """The list was in a file beside the checkpoint, and between the two the next start served over what is gone."""
    harmed = stopped(clean=False)
    gone = segments(harmed, LONG)[:-1]
    for path in gone:
        for name in harmed.list_directory(LONG):
            if name.startswith(path.rpartition("/")[2].removesuffix(".log")):
                harmed.remove(f"{LONG}/{name}")
    harmed.sync_directory(LONG)
    expected = [finding.offset for finding in findings(harmed) if finding.kind == "damage"]
    assert len(expected) == len(gone)
    probe = harmed.copy(Random(0))
    probe.record, before = [], probe.calls
    start(probe)
    calls = [call.number - before for call in probe.record if call.operation in ("rename", "sync_directory")]
    assert len(calls) > 10
    for number in calls:
        for how in ("cut_at", "kill_at"):
            disk = harmed.copy(Random(number))
            setattr(disk, how, disk.calls + number)
            with suppress(NodeDied):
                start(disk)
            disk.power_on()
            assert [finding.offset for finding in findings(disk) if finding.kind == "damage"] == expected
            directory = start(disk)
            assert len(directory.offline) == 1
            directory.close(clean=True)
