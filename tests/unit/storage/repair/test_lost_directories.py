"""A partition's directory that is gone: told by every command, and never made anew as if the log had had no records."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.storage.repair.test_repair_doubts import OTHER, put, settled
from tests.worlds.repair_world import TP, cut_short, findings, repaired
from tests.worlds.storage_workload import FIRST, SECOND, commit, housekeep, read_all, start

from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.repair.repair import survey_directory

HOME = "/data/first-0"


def remove(disk: CrashDisk, path: str) -> None:
    for name in disk.list_directory(path):
        disk.remove(f"{path}/{name}")
    disk.remove(path)
    disk.sync_directory("/data")


def lost(*, clean: bool, known: bool = True, behind: int = 0) -> tuple[CrashDisk, dict[int, bytes], int]:
    """Without the first log's directory: what the log held, and its end.

    known: a checkpoint has the log. behind: records that came after that.
    """
    disk = CrashDisk()
    directory = start(disk)
    for tp, topic_id in ((TP, FIRST), (OTHER, SECOND)):
        directory.create_log(tp, topic_id, PlainLogConfig()).assign_epoch(0)
    log, other = directory.logs[FIRST, 0], directory.logs[SECOND, 0]
    put(other, 5, 2, 1_000)
    put(log, 50, 200, 1_000)
    if known:
        settled(directory)
    put(log, behind, 2, 5_000)
    commit(directory)
    records = read_all(log)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    remove(disk, HOME)
    return disk, records, log.end_offset


@pytest.mark.parametrize(
    ("clean", "known", "behind"), [(True, True, 0), (False, True, 0), (False, True, 3), (False, False, 3)]
)
def test_its_offsets_are_not_given_out_again(clean: bool, known: bool, behind: int) -> None:
    disk, records, end = lost(clean=clean, known=known, behind=behind)
    assert [finding.kind for finding in findings(disk)] == ["damage"]
    assert [action.kind for action in survey_directory(disk, "/data").actions] == ["dropped"]
    for _ in range(2):  # and the next start knows it, too
        directory = start(disk)
        assert directory.logs.keys() == {(SECOND, 0)}
        assert directory.offline.keys() == {(FIRST, 0)}
        directory.close(clean=True)
        assert any(finding.kind == "damage" for finding in findings(disk))
    repaired(disk)
    assert findings(disk) == []
    told = {n for loss in read_losses(disk, "/data") for n in range(loss["first_offset"], loss["last_offset"] + 1)}
    directory = start(disk)
    log = directory.logs[FIRST, 0]
    assert log.end_offset == end
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in told}
    assert told <= records.keys()
    put(log, 1, 1, 9_000)
    assert max(read_all(log)) == end
    directory.close(clean=False)


def with_deleted(*, clean: bool, until: int) -> CrashDisk:
    """Without the directory of a log of 9 records, of which some were deleted."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    put(log, 9, 20, 1_000)
    commit(directory)
    log.advance_start(until)
    settled(directory)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    remove(disk, HOME)
    return disk


@pytest.mark.parametrize("clean", [False, True])
def test_what_was_deleted_of_it_is_not_told_lost(clean: bool) -> None:
    disk = with_deleted(clean=clean, until=4)
    assert [(finding.kind, finding.offset) for finding in findings(disk)] == [("damage", 4)]
    assert [action[4:6] for action in survey_directory(disk, "/data").actions] == [(4, 8)]
    repaired(disk)
    assert [(loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")] == [(4, 8)]
    assert findings(disk) == []


@pytest.mark.parametrize("clean", [False, True])
def test_nor_is_a_log_whose_records_were_all_deleted(clean: bool) -> None:
    lacking = with_deleted(clean=clean, until=9)
    assert [(finding.kind, finding.offset) for finding in findings(lacking)] == [("damage", -1)]
    assert [action.kind for action in survey_directory(lacking, "/data").actions] == ["made"]
    for disk in cut_short(lacking, lambda disk: repaired(disk, 0)):
        repaired(disk, 0)
        assert read_losses(disk, "/data") == []
        directory = start(disk)
        log = directory.logs[FIRST, 0]
        assert (log.start_offset, log.end_offset) == (9, 9)
        directory.close(clean=True)
        assert findings(disk) == []
    repaired(lacking, 0)
    assert findings(lacking) == []


@pytest.mark.parametrize("clean", [False, True])
def test_nor_are_those_of_a_log_whose_records_were_all_deleted(clean: bool) -> None:
    disk = with_deleted(clean=clean, until=9)
    assert [finding.kind for finding in findings(disk)] == ["damage"]
    directory = start(disk)
    assert directory.offline.keys() == {(FIRST, 0)}
    directory.close(clean=True)
    repaired(disk, 0)
    directory = start(disk)
    log = directory.logs[FIRST, 0]
    assert (log.start_offset, log.end_offset) == (9, 9)
    directory.close(clean=False)


@pytest.mark.parametrize(("clean", "behind"), [(True, 0), (False, 0), (False, 3)])
@pytest.mark.parametrize("step", [start, repaired], ids=["start", "repair"])
def test_nor_behind_a_power_cut_in_any_call(clean: bool, behind: int, step: Callable[[CrashDisk], object]) -> None:
    lacking, records, end = lost(clean=clean, behind=behind)
    for disk in cut_short(lacking, step):
        directory = start(disk)
        assert all(log.end_offset == end for key, log in directory.logs.items() if key == (FIRST, 0))
        is_offline = (FIRST, 0) in directory.offline
        assert is_offline or (FIRST, 0) in directory.logs
        directory.close(clean=True)
        if is_offline:
            repaired(disk)
        directory = start(disk)
        log = directory.logs[FIRST, 0]
        assert log.end_offset == end
        told = {n for loss in read_losses(disk, "/data") for n in range(loss["first_offset"], loss["last_offset"] + 1)}
        assert read_all(log) == {offset: value for offset, value in records.items() if offset not in told}
        directory.close(clean=False)


def test_what_the_journal_has_of_it_is_there_again() -> None:
    disk, _, end = lost(clean=False, behind=3)
    repaired(disk)
    directory = start(disk)
    assert sorted(read_all(directory.logs[FIRST, 0])) == [end - 3, end - 2, end - 1]
    directory.close(clean=False)


def test_a_log_that_is_all_in_the_journal_is_made_again() -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    log.assign_epoch(0)
    put(log, 9, 20, 1_000)
    commit(directory)
    records = read_all(log)
    disk.kill()
    disk.power_on()
    remove(disk, HOME)
    directory = start(disk)
    assert read_all(directory.logs[FIRST, 0]) == records
    assert "is missing" in str(directory.recovery.damage)
    directory.close(clean=False)


def test_the_topic_can_be_deleted_and_is_forgotten() -> None:
    disk, _, _ = lost(clean=True)
    directory = start(disk)
    directory.delete_offline((FIRST, 0))
    commit(directory)
    housekeep(directory, 10**9)
    log = directory.create_log(TP, b"\x07" * 16, PlainLogConfig())
    put(log, 1, 1, 1_000)
    commit(directory)
    disk.kill()
    disk.power_on()
    directory = start(disk)
    assert directory.offline == {}
    assert directory.logs.keys() == {(SECOND, 0), (b"\x07" * 16, 0)}
    directory.close(clean=True)
    assert findings(disk) == []
