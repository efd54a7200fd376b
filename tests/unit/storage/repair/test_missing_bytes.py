"""Batches gone from the middle of an active segment, where its end offset is what it was; and files that rightly go."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random
from unittest.mock import patch

import pytest
from tests.worlds.repair_world import fill as filled
from tests.worlds.repair_world import findings, repair
from tests.worlds.storage_workload import FIRST, checkpoint, commit, fill, housekeep, one_log, read_all, start

from duramen.sim.world.disk import CrashDisk, DiskCall, NodeDied
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.files.atomic import replace_file
from duramen.storage.repair import repair as repair_module
from duramen.storage.repair.repair import survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED
from duramen.wire.batch import batches

HOME = "/data/first-0"
SEGMENT = f"{HOME}/{0:020d}.log"


def without_a_batch(disk: CrashDisk, number: int) -> None:
    """And nothing is sealed of the segment."""
    content = disk.contents()[SEGMENT]
    found = [at for at, _ in batches(memoryview(content))]
    replace_file(disk, SEGMENT, content[: found[number]] + content[found[number + 1] :])
    disk.remove(f"{HOME}/{0:020d}.sealing")
    disk.sync_directory(HOME)


def repaired(disk: CrashDisk) -> int:
    return int(repair(disk))


@pytest.mark.parametrize("clean", [True, False])
def test_fewer_bytes_with_the_same_end_are_told_and_there_is_a_way_back(clean: bool) -> None:
    """Verify and repair looked at offsets alone and found nothing; each start left the log offline, or served it."""
    disk, directory, log = one_log()
    fill(directory, log, 6)
    checkpoint(directory)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    without_a_batch(disk, 2)
    told = [each for each in findings(disk) if each.kind == "damage"]
    assert ["batches are missing" in each.what for each in told] == [True]
    assert [each.kind for each in survey_directory(disk, "/data").actions if each.kind == DROPPED] == [DROPPED]
    begun = start(disk.copy(Random(1)))
    assert [SEGMENT in str(left.error) for left in begun.offline.values()] == [True]
    assert repaired(disk) == 1
    (loss,) = read_losses(disk, "/data")
    assert "nobody knows which" in str(loss["what"])
    assert [each for each in findings(disk) if each.kind == "damage"] == []
    (log,) = start(disk).logs.values()
    assert (log.end_offset, sorted(read_all(log))) == (6, [0, 1, 3, 4, 5])


@pytest.mark.parametrize("seed", range(20))
def test_files_below_a_journaled_log_start_may_be_gone(seed: int) -> None:
    """Power fails while DeleteRecords takes them: verify told damage, a dry run that they were lost."""
    disk = CrashDisk(Random(seed), torn=True)
    directory = start(disk)
    log, segments = filled(directory, FIRST, b"")
    log.advance_start(segments[3][2])
    commit(directory)
    commit(directory)
    for now in (10_000_000, 20_000_000):
        housekeep(directory, now)
    disk.power_cut()
    disk.power_on()
    assert [each for each in findings(disk) if each.kind == "damage"] == []
    assert [each for each in survey_directory(disk, "/data").actions if each.kind == DROPPED] == []
    (log,) = start(disk).logs.values()
    assert log.start_offset == segments[3][2]


def test_a_line_of_the_list_of_losses_that_cannot_be_read_is_told() -> None:
    """A flipped bit in the name of one of its fields ended every command, and the start, with a KeyError."""
    disk, directory, log = one_log()
    fill(directory, log, 6)
    directory.close(clean=True)
    without_a_batch(disk, 2)
    assert repaired(disk) == 1
    path = "/data/duramen-lost/losses"
    whole = disk.contents()[path]
    for harmed in (whole.replace(b"first_offset", b"first_offsev"), whole.replace(b"-1", b'"1', 1), b"[]\n"):
        replace_file(disk, path, harmed)
        (found,) = [each for each in findings(disk) if each.kind == "damage"]
        assert (found.path, found.what[:1]) == (path, "1")
        assert survey_directory(disk, "/data").actions == []
        assert len(start(disk.copy(Random(1))).logs) == 1


def cut_repair(disk: CrashDisk) -> None:
    """A repair that dies when the segment is in place, in front of what the checkpoint says of it."""

    def die(*arguments: object) -> None:
        raise NodeDied

    with patch.object(repair_module, "write_points", die), suppress(NodeDied):
        repaired(disk)
    disk.end_process()


def test_what_an_interrupted_repair_has_left_is_known_by_another_path_too() -> None:
    """`log repair data` was interrupted and the node has the absolute path: its start left the partition offline."""
    disk, directory, log = one_log()
    fill(directory, log, 6)
    directory.close(clean=True)
    disk.damage(SEGMENT, 700, 0xFF)
    disk.damage(SEGMENT, 710, 0xFF)
    cut_repair(disk)
    path = "/data/duramen-lost/losses"
    replace_file(disk, path, disk.contents()[path].replace(b'"/data/first-0/', b'"data/first-0/'))
    assert [each for each in findings(disk) if each.kind == "damage"] == []
    (log,) = start(disk).logs.values()
    assert (log.end_offset, len(read_all(log))) == (6, 5)


def test_an_earlier_repair_of_the_file_hides_no_later_harm() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 6)
    directory.close(clean=True)
    disk.damage(SEGMENT, 700, 0xFF)
    disk.damage(SEGMENT, 710, 0xFF)
    assert repaired(disk) == 1
    directory = start(disk)
    directory.close(clean=True)
    disk.end_process()
    without_a_batch(disk, 0)
    assert ["batches are missing" in each.what for each in findings(disk) if each.kind == "damage"] == [True]
    assert len(start(disk).offline) == 1


@pytest.mark.parametrize("clean", [True, False])
def test_an_end_that_nobody_knows_is_no_limit(clean: bool) -> None:
    """Kafka's log, of which its recovery points say nothing, could not be read once: it stayed offline for good."""
    disk, directory, log = one_log()
    fill(directory, log, 25)
    last = log.active.path
    directory.close(clean=True)
    disk.end_process()
    for path in disk.contents():
        if "/duramen-" in path or path.endswith((".seal", ".sealing", ".producers")):
            disk.remove(path)
    replace_file(disk, "/data/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":7}')
    replace_file(disk, "/data/recovery-point-offset-checkpoint", b"0\n0\n")
    disk.remove(last.removesuffix("log") + "index")  # then it is read
    disk.sync_directory(HOME)

    def unreadable(call: DiskCall) -> OSError | None:
        return OSError(errno.EIO, "I/O error", call.path) if (call.operation, call.path) == ("pread", last) else None

    with patch("duramen.storage.recovery.startup._check_magic"):
        disk.fault = unreadable
        directory = start(disk)
    disk.fault = None
    assert len(directory.offline) == 1
    if clean:
        directory.close(clean=True)
        disk.end_process()
    else:
        disk.kill()
        disk.power_on()
    assert [each for each in findings(disk) if each.kind == "damage"] == []
    assert [each for each in survey_directory(disk, "/data").actions if each.kind == DROPPED] == []
    (log,) = start(disk).logs.values()
    assert (log.end_offset, len(read_all(log))) == (25, 25)
