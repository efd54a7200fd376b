"""Logs that lost whole batches: they look like shorter ones, or like gaps that compaction left, and are neither."""

from __future__ import annotations

import pytest
from tests.worlds.storage_workload import append, checkpoint, commit, fill, housekeep, one_log, read_all, small, start

from duramen.storage.checkpoint.loss_record import read_losses, record_loss, unreadable_losses
from duramen.storage.log.durability import configure_log
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED


@pytest.mark.parametrize("lost", [[], ["duramen-checkpoint"]])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [0, 2])
def test_a_log_that_lost_whole_batches_is_offline_and_no_offset_is_used_again(
    left: int, clean: bool, lost: list[str]
) -> None:
    """A file cut between two batches looks like a shorter log; only a checkpoint tells."""
    disk, directory, log = one_log()
    fill(directory, log, 20)
    checkpoint(directory)
    last = log.active.path
    size = log.active.size // (20 - log.active.base_offset)
    if clean:
        directory.close(clean=True)
    else:
        disk.power_cut()
        disk.power_on()
    file = disk.open(last, write=True)
    file.truncate(left * size)
    file.sync()
    file.close()
    for name in lost:
        disk.remove(f"/data/{name}")
    for stops_cleanly in (True, False, True):  # and no later start takes what is left for all there was
        directory = start(disk)
        assert directory.logs == {}
        (offline,) = directory.offline.values()
        assert last in str(offline.error)
        assert offline.point.recovery_point == 20
        directory.close(clean=stops_cleanly)
        disk.end_process()
    apply_repair(disk, survey_directory(disk, "/data"))
    (log,) = start(disk).logs.values()
    assert log.end_offset == 20
    assert append(log, b"next") == 20


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [0, 1])
def test_a_finished_segment_that_lost_whole_batches_is_no_gap_that_nobody_notices(left: int, clean: bool) -> None:
    """Without a seal: then only where the next segment begins tells that something is missing."""
    disk, directory, log = one_log()
    fill(directory, log, 30)
    checkpoint(directory)
    segment = log.segments[1]
    assert not segment.sealed
    first, following = segment.base_offset, log.segments[2].base_offset
    size = segment.size // (following - first)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    file = disk.open(segment.path, write=True)
    file.truncate(left * size)
    file.sync()
    file.close()
    directory = start(disk)
    (offline,) = directory.offline.values()
    assert f"it ends at offset {first + left}, the next segment begins at {following}" in str(offline.error)
    directory.close(clean=True)
    apply_repair(disk, survey_directory(disk, "/data"))
    directory = start(disk)
    (log,) = directory.logs.values()
    assert set(read_all(log)) == set(range(30)) - set(range(first + left, following))
    assert append(log, b"next") == 30
    commit(directory)
    directory.close(clean=False)
    disk.end_process()
    assert start(disk).offline == {}


@pytest.mark.parametrize("lost", ["duramen-checkpoint", "recovery-point-offset-checkpoint"])
def test_a_torn_roll_that_was_never_acknowledged_is_cut_though_a_checkpoint_is_lost(lost: str) -> None:
    """Either checkpoint says up to where a torn batch is damage: behind that the journal has what was acknowledged."""
    disk, directory, log = one_log()
    fill(directory, log, 5)
    checkpoint(directory)
    segment = log.active.path
    disk.power_cut()
    disk.power_on()
    file = disk.open(segment, write=True)
    size = file.size()
    file.pwritev([bytes(500)], size)  # a batch of which only the length got to the disk
    file.sync()
    file.close()
    following = disk.open("/data/first-0/00000000000000000006.log", create=True, write=True)
    following.sync()
    following.close()
    disk.sync_directory("/data/first-0")
    disk.remove(f"/data/{lost}")
    directory = start(disk)
    assert directory.offline == {}
    (log,) = directory.logs.values()
    assert (log.end_offset, log.active.size) == (5, size)
    assert append(log, b"next") == 5
    commit(directory)
    disk.end_process()
    file = disk.open(segment, write=True)
    file.pwritev([bytes(50)], 20)  # what was synced is damage
    file.close()
    disk.remove(f"/data/{lost}")
    directory = start(disk)
    assert list(directory.logs) == []


def test_a_log_with_a_gap_stays_offline_over_clean_stops_though_what_is_left_is_sealed() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 60)
    checkpoint(directory)
    housekeep(directory)
    missing = log.segments[2]
    assert [segment.sealed for segment in log.segments[:-1]] == [True] * (len(log.segments) - 1)
    disk.kill()
    disk.power_on()
    stem = missing.path.removesuffix(".log")
    for path in [path for path in disk.contents() if path.startswith(stem)]:
        disk.remove(path)
    for name in ("duramen-checkpoint", "recovery-point-offset-checkpoint"):
        disk.remove(f"/data/{name}")
    told = set()
    for stops_cleanly in (True, True, False, True):
        directory = start(disk)
        assert directory.logs == {}
        told |= {str(offline.error) for offline in directory.offline.values()}
        directory.close(clean=stops_cleanly)
        disk.end_process()
    assert all(str(missing.base_offset) in each for each in told), told


@pytest.mark.parametrize("lost", [[], ["duramen-checkpoint"]])
def test_a_sealed_segment_that_no_checkpoint_knows_of_is_missed(lost: list[str]) -> None:
    """The topic was made stable since: its segments are synced, and sealed, and their records not in the journal."""
    disk, directory, log = one_log("page-cache")
    fill(directory, log, 3)
    checkpoint(directory)
    fill(directory, log, 40)
    configure_log(log, small("stable"))
    commit(directory)
    housekeep(directory)
    gone = log.segments[1]
    first, following = gone.base_offset, log.segments[2].base_offset
    assert first > 3
    assert all(segment.sealed for segment in log.segments[:-1])
    disk.kill()
    disk.power_on()
    for path in [path for path in disk.contents() if path.startswith(gone.path.removesuffix(".log"))]:
        disk.remove(path)
    for name in lost:
        disk.remove(f"/data/{name}")
    for _ in range(2):
        directory = start(disk)
        (offline,) = directory.offline.values()
        assert f"it ends at offset {first}, the next segment begins at {following}" in str(offline.error)
        directory.close(clean=True)
    apply_repair(disk, survey_directory(disk, "/data"))
    (log,) = start(disk).logs.values()
    assert set(read_all(log)) == set(range(43)) - set(range(first, following))


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_the_only_segment_that_a_checkpoint_knew_is_missed_when_others_came_since(durability: str, rolls: bool) -> None:
    """What the journal has begins behind it, and so did the log: as if its first records had been deleted."""
    disk, directory, log = one_log(durability)
    fill(directory, log, 3)
    checkpoint(directory)
    if rolls:
        log.roll()
    fill(directory, log, 20)
    first = log.segments[0].path
    disk.kill()
    disk.power_on()
    disk.remove(first)
    for stops_cleanly in (False, True, True):
        directory = start(disk)
        (offline,) = directory.offline.values()
        assert first in str(offline.error)
        directory.close(clean=stops_cleanly)
        disk.end_process()
    apply_repair(disk, survey_directory(disk, "/data"))
    told = {n for loss in read_losses(disk, "/data") for n in range(loss["first_offset"], loss["last_offset"] + 1)}
    (log,) = start(disk).logs.values()
    assert {0, 1, 2} <= told
    assert told | set(read_all(log)) == set(range(log.end_offset))
    if durability == "stable":
        assert log.end_offset == 23


@pytest.mark.parametrize("left", [0, 1, 2])
def test_what_a_start_could_only_tell_the_least_of_is_told_behind_a_kill_too(left: int) -> None:
    """Repair found nothing to do, and each start left the log offline: its file ends where recovery was to cut."""
    disk, directory, log = one_log()
    fill(directory, log, 20)
    checkpoint(directory)
    size = log.active.size // (20 - log.active.base_offset)
    first = log.active.base_offset + left
    disk.kill()
    disk.power_on()
    disk.remove("/data/duramen-checkpoint")
    file = disk.open(log.active.path, write=True)
    file.truncate(left * size)
    file.sync()
    file.close()
    for _ in range(2):
        directory = start(disk)
        assert len(directory.offline) == 1
        disk.kill()
        disk.power_on()
    actions = [action for action in survey_directory(disk, "/data").actions if action.kind == DROPPED]
    assert [(action.first_offset, action.last_offset) for action in actions] == [(first, 19)]
    start(disk).close(clean=True)
    disk.end_process()
    apply_repair(disk, survey_directory(disk, "/data"))
    (log,) = start(disk).logs.values()
    assert append(log, b"next") == 20


@pytest.mark.parametrize("flipped", [True, False])
def test_a_line_is_added_behind_a_list_whose_last_line_end_is_damaged(flipped: bool) -> None:
    """It was joined to the line in front of it, and neither could be read."""
    disk, directory, _ = one_log()
    directory.close(clean=True)
    lines = [{"partition": name, "kind": DROPPED, "first_offset": 1, "last_offset": 2} for name in ("a-0", "b-0")]
    record_loss(disk, "/data", lines[:1])
    path = "/data/duramen-lost/losses"
    if flipped:
        disk.damage(path, len(disk.contents()[path]) - 1, 1)
    else:
        file = disk.open(path, write=True)
        file.truncate(len(disk.contents()[path]) - 1)
        file.close()
    for _ in range(2):
        record_loss(disk, "/data", lines[1:])
        assert read_losses(disk, "/data") == lines[flipped:]
        assert unreadable_losses(disk, "/data") == flipped
