"""Leader epochs that have no record yet go where a log is cut at its end, or above it: who led may be led again."""

from __future__ import annotations

import pytest
from tests.worlds.storage_workload import FIRST, LOOSE, append, checkpoint, commit, read_all, small, start

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.follower import append_as_follower
from duramen.storage.log.log import Log
from duramen.storage.log.truncation import truncate_log
from duramen.wire.batch import build_batch, parse_header

TP = TopicPartition("first", 0)
KINDS = {"stable": FIRST, "page-cache": LOOSE}


def led(durability: str) -> tuple[CrashDisk, LogDirectory, Log]:
    """Three records of epoch 4; then it was elected in epoch 7, and appended nothing."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, KINDS[durability], small(durability))
    log.assign_epoch(4)
    for _ in range(3):
        append(log, b"x")
    checkpoint(directory)
    log.assign_epoch(7)
    commit(directory)
    assert log.epochs.entries == [(4, 0), (7, 3)]
    return disk, directory, log


def follow(log: Log, epoch: int) -> None:
    data = build_batch([(None, b"y", (), 1)], base_offset=log.end_offset, leader_epoch=epoch)
    append_as_follower(log, data, parse_header(data), 1000)


@pytest.mark.parametrize("durability", KINDS)
@pytest.mark.parametrize("offset", [3, 9])
@pytest.mark.parametrize("behind", ["nothing", "a record of the epoch before", "a checkpoint", "both"])
def test_an_epoch_without_a_record_goes(durability: str, offset: int, behind: str) -> None:
    disk, directory, log = led(durability)
    with pytest.raises(KafkaError) as error:
        follow(log, 4)
    assert error.value.code == ErrorCode.INVALID_RECORD
    truncate_log(log, offset)
    expected = [(4, 0)]
    assert (log.epochs.entries, log.end_offset, log.is_whole) == (expected, 3, True)
    commit(directory)
    if behind in ("a record of the epoch before", "both"):
        follow(log, 4)
        commit(directory)
    if behind in ("a checkpoint", "both"):
        checkpoint(directory)
    records = read_all(log)
    for clean in (False, True):
        if clean:
            directory.close(clean=True)
        else:
            disk.kill()
            disk.power_on()
        disk.end_process()
        directory = start(disk)
        log = directory.logs[KINDS[durability], 0]
        assert (log.epochs.entries, read_all(log)) == (expected, records)


def test_epochs_with_records_stay() -> None:
    _, directory, log = led("stable")
    append(log, b"x")
    commit(directory)
    lsn = directory.journal.last_lsn
    truncate_log(log, 4)
    truncate_log(log, 1000)
    assert log.epochs.entries == [(4, 0), (7, 3)]
    assert directory.journal.last_lsn == lsn


@pytest.mark.parametrize("power", [False, True])
def test_no_death_brings_it_back_behind_what_was_acknowledged(power: bool) -> None:
    call, died, seen = 0, True, set()
    while died:
        call += 1
        disk, directory, log = led("stable")
        if power:
            disk.cut_at = disk.calls + call
        else:
            disk.kill_at = disk.calls + call
        acknowledged = False
        try:
            truncate_log(log, 3)
            commit(directory)
            acknowledged = True
            log.assign_epoch(8)
            commit(directory)
            checkpoint(directory)
            died = False
        except NodeDied:
            disk.power_on()
        disk.cut_at = disk.kill_at = None
        disk.end_process()
        found = [epoch for epoch, _ in start(disk).logs[FIRST, 0].epochs.entries]
        assert found in ([4, 7], [4], [4, 8]), call
        assert not (acknowledged and 7 in found), call
        seen.add(tuple(found))
    assert len(seen) == 3
