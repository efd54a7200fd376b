"""Power cuts in every disk call of a small life of a log directory, and in every call of the recovery after them."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.storage_workload import FIRST, Life, append, commit, read_all, start

from duramen.sim.world.disk import CrashDisk, NodeDied


def crash_at(call: int, *, torn: bool, kill: bool = False) -> tuple[CrashDisk, Life, bool]:
    """Run the workload until the call in which the node dies; also whether it died."""
    disk = CrashDisk(Random(call), torn=torn)
    life = Life(disk)
    if kill:
        disk.kill_at = call
    else:
        disk.cut_at = call
    try:
        directory = start(disk)
        life.run(directory)
        directory.close(clean=True)
    except NodeDied:
        disk.power_on()
        return disk, life, True
    disk.cut_at = disk.kill_at = None
    return disk, life, False


def restart(disk: CrashDisk, life: Life) -> None:
    """Recover, check, go on writing, stop cleanly, and check that the next start replays nothing."""
    directory = start(disk)
    life.check(directory)
    log = next((log for log in directory.logs.values() if log.topic_id == FIRST), None)
    if log is not None:
        before = read_all(log)
        log.assign_epoch(log.epochs.latest + 1)
        offset = append(log, b"after")
        commit(directory)
        directory.close(clean=True)
        directory = start(disk)
        assert directory.clean_start
        (log,) = [log for log in directory.logs.values() if log.topic_id == FIRST]
        assert read_all(log) == {**before, offset: b"after"}
    directory.close(clean=True)


@pytest.mark.parametrize("how", ["cut", "torn", "kill"])
def test_the_node_dies_in_every_disk_call(how: str) -> None:
    call = 0
    died = True
    while died:
        call += 1
        disk, life, died = crash_at(call, torn=how == "torn", kill=how == "kill")
        try:
            restart(disk, life)
        except Exception as error:
            raise AssertionError(f"{how} in call {call}") from error
    assert call > 250


@pytest.mark.parametrize("torn", [False, True])
def test_power_fails_again_in_every_call_of_the_recovery(torn: bool) -> None:
    for first_cut in (100, 210, 330):
        again = 0
        while True:
            again += 1
            disk, life, died = crash_at(first_cut, torn=torn)
            if not died:
                break
            disk.cut_at = disk.calls + again
            try:
                start(disk)
            except NodeDied:
                disk.power_on()
            else:
                break
            try:
                restart(disk, life)
            except Exception as error:
                raise AssertionError(f"cut in call {first_cut}, again {again} calls into the recovery") from error
