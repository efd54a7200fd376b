"""A `duramen-checkpoint` whose last write was lost, or that somebody put back: it is older than what lies beside it."""

from __future__ import annotations

import pytest
from tests.worlds.storage_workload import append, checkpoint, commit, fill, housekeep, one_log, read_all, start

from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.log import Log
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.verify import verify_directory

OURS = "/data/duramen-checkpoint"
BESIDE = "/data/duramen-directory"


def put_back(disk: CrashDisk, path: str, content: bytes) -> None:
    replace_file(disk, path, content)


def the_log(directory: LogDirectory) -> Log:
    assert directory.offline == {}
    (log,) = directory.logs.values()
    return log


def delete_below(directory: LogDirectory, offset: int) -> None:
    the_log(directory).advance_start(offset)
    commit(directory)


def checkpointed() -> tuple[CrashDisk, LogDirectory, Log, bytes]:
    """Ten records and a checkpoint of them: the last is its bytes."""
    disk, directory, log = one_log()
    fill(directory, log, 10)
    checkpoint(directory)
    return disk, directory, log, disk.contents()[OURS]


def write_and_delete(directory: LogDirectory, log: Log) -> None:
    """What no checkpoint knows yet: the log is now from 12 to 15."""
    fill(directory, log, 5)
    delete_below(directory, 12)


def stopped_twice(beside: bool) -> tuple[CrashDisk, dict[int, bytes]]:
    """Two clean stops, records and a deletion between them, and the first one's checkpoint; with what is to be read.

    beside: `duramen-directory` is that of the first stop, too.
    """
    disk, directory, log = one_log()
    fill(directory, log, 10)
    delete_below(directory, 3)
    directory.close(clean=True)
    old = {name: disk.contents()[name] for name in (OURS, BESIDE)}
    directory = start(disk)
    log = the_log(directory)
    write_and_delete(directory, log)
    checkpoint(directory)
    housekeep(directory)
    expected = read_all(log)
    assert log.segments[0].base_offset > 0
    directory.close(clean=True)
    put_back(disk, OURS, old[OURS])
    if beside:
        put_back(disk, BESIDE, old[BESIDE])
    return disk, expected


@pytest.mark.parametrize("beside", [False, True])
def test_a_checkpoint_of_an_earlier_clean_stop_is_not_believed(beside: bool) -> None:
    disk, expected = stopped_twice(beside)
    directory = start(disk)
    log = the_log(directory)
    assert (log.start_offset, log.end_offset) == (12, 15)
    assert read_all(log) == expected
    assert [told for told in directory.recovery.damage if told.startswith(OURS)]
    assert append(log, b"next") == 15
    commit(directory)
    directory.close(clean=True)
    directory = start(disk)
    assert directory.recovery.damage == []
    assert the_log(directory).end_offset == 16


def test_a_checkpoint_of_the_same_run_is_not_believed_after_its_clean_stop() -> None:
    disk, directory, log, old = checkpointed()
    write_and_delete(directory, log)
    directory.close(clean=True)
    put_back(disk, OURS, old)
    log = the_log(start(disk))
    assert (log.start_offset, log.end_offset) == (12, 15)


def test_a_clean_stop_is_told_from_the_last_checkpoint_though_it_ends_a_round_that_began_at_the_same_entry() -> None:
    disk, directory, log, old = checkpointed()
    directory._checkpointer.begin()
    write_and_delete(directory, log)
    directory.close(clean=True)
    put_back(disk, OURS, old)
    log = the_log(start(disk))
    assert (log.start_offset, log.end_offset) == (12, 15)


@pytest.mark.parametrize("beside", [False, True])
def test_a_repair_drops_nothing_above_the_end_of_an_old_checkpoint(beside: bool) -> None:
    disk, expected = stopped_twice(beside)
    found = survey_directory(disk, "/data")
    assert found.actions == []
    apply_repair(disk, found)
    assert read_all(the_log(start(disk))) == expected


def test_a_repair_goes_by_the_ends_that_kafka_left() -> None:
    """It was the last to stop here: our checkpoint is of before."""
    disk, directory, log = one_log()
    fill(directory, log, 10)
    directory.close(clean=True)
    ours = disk.contents()[OURS]
    directory = start(disk)
    fill(directory, the_log(directory), 5)
    directory.close(clean=True)
    disk.remove(BESIDE)
    put_back(disk, OURS, ours)
    disk.remove("/data/.kafka_cleanshutdown")
    for part in [path for path in disk.contents() if path.endswith(".part")]:
        disk.remove(part)
    replace_file(disk, "/data/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":7}')
    assert survey_directory(disk, "/data").actions == []
    assert the_log(start(disk)).end_offset == 15


@pytest.mark.parametrize("restarted", [False, True])
def test_a_checkpoint_older_than_what_the_journal_begins_with_is_not_believed_after_a_power_cut(
    restarted: bool,
) -> None:
    """What lies between the two was acknowledged, and is in synced segments alone."""
    disk, directory, log, old = checkpointed()
    write_and_delete(directory, log)
    if restarted:
        directory.close(clean=True)
        directory = start(disk)
        log = the_log(directory)
    else:
        checkpoint(directory)
    expected = read_all(log)
    disk.power_cut()
    disk.power_on()
    put_back(disk, OURS, old)
    log = the_log(start(disk))
    assert (log.start_offset, log.end_offset) == (12, 15)
    assert read_all(log) == expected
    assert append(log, b"next") == 15


@pytest.mark.parametrize("kill", [False, True])
def test_a_start_on_an_old_checkpoint_may_be_interrupted_anywhere(kill: bool) -> None:
    """It writes both files anew, of a higher generation: the old one is not what it was about to replace."""
    calls = 0
    while True:
        disk, expected = stopped_twice(beside=False)
        calls += 1
        disk.kill_at, disk.cut_at = (disk.calls + calls, None) if kill else (None, disk.calls + calls)
        try:
            start(disk)
            break
        except NodeDied:
            disk.power_on()
        log = the_log(start(disk))
        assert (log.start_offset, read_all(log)) == (12, expected), calls
    assert calls > 20


def test_log_verify_says_that_a_checkpoint_is_old() -> None:
    disk, _ = stopped_twice(beside=False)
    told = [(found.path, found.kind) for found in verify_directory(disk, "/data", lambda read: None).all_findings()]
    assert told == [(OURS, "index")]
