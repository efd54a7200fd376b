"""A segment that is gone with all its side files, where what would miss it is lost, too, or excuses it."""

from __future__ import annotations

import pytest
from tests.worlds.repair_world import TP, Segments, fill, filled, findings, opened, scribble
from tests.worlds.storage_workload import checkpoint, commit, forget_lists, housekeep, read_all, start

from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED

OTHER_TOPIC = bytes(range(50, 66))


def forgotten(disk: CrashDisk, segments: Segments) -> tuple[int, int]:
    """The third segment goes, and the directory's list of segments; first and last offset of what is gone."""
    stem = segments[2][0].removesuffix("log")
    for path in [path for path in disk.contents() if path.startswith(stem)]:
        disk.remove(path)
    disk.sync_directory("/data/first-0")
    forget_lists(disk)
    return segments[2][2], segments[3][2] - 1


def check_missed(disk: CrashDisk, gone: tuple[int, int]) -> None:
    """By verify, by the start, and by a repair; behind that the log has everything else, and its end."""
    assert [(each.offset, each.last_offset) for each in findings(disk) if each.kind == "damage"] == [gone]
    directory = start(disk)
    assert [left.tp for left in directory.offline.values()] == [TP]
    directory.close(clean=True)
    found = survey_directory(disk, "/data")
    assert [(each.first_offset, each.last_offset) for each in found.actions if each.kind == DROPPED] == [gone]
    apply_repair(disk, found)
    _, log = opened(disk)
    assert [offset for offset in range(log.end_offset) if offset not in read_all(log)] == list(
        range(gone[0], gone[1] + 1)
    )


@pytest.mark.parametrize("clean", [True, False])
def test_it_is_missed_without_the_list_of_segments(clean: bool) -> None:
    """The seal of the one in front of it says where that ended."""
    disk = CrashDisk()
    _, segments = filled(disk, clean=clean)
    check_missed(disk, forgotten(disk, segments))


@pytest.mark.parametrize("clean", [True, False])
def test_what_a_topic_of_the_same_name_lost_excuses_nothing(clean: bool) -> None:
    """All of that one was lost, and is on the list of what repairs took out."""
    disk = CrashDisk()
    _, segments = filled(disk)
    for path, _, _ in segments:
        disk.remove(path)
    disk.sync_directory("/data/first-0")
    apply_repair(disk, survey_directory(disk, "/data"))
    directory, log = opened(disk)
    directory.delete_log(log)
    commit(directory)
    checkpoint(directory)
    housekeep(directory)
    _, segments = fill(directory, OTHER_TOPIC, b"new ")
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    assert [loss["topic_id"] for loss in read_losses(disk, "/data")]
    check_missed(disk, forgotten(disk, segments))


def test_what_a_partition_lost_is_listed_as_its_own_also_where_its_own_file_is_damaged() -> None:
    """The half of an id that is left there is taken for none, and the loss excuses the gap behind the repair."""
    disk = CrashDisk()
    records, segments = filled(disk)
    path, size, base = segments[2]
    last = segments[3][2] - 1
    scribble(disk, path, size - 100, 50)
    metadata = disk.contents()["/data/first-0/partition.metadata"]
    file = disk.open("/data/first-0/partition.metadata", write=True)
    file.pwritev([bytes(len(metadata) - 24)], 24)
    file.sync()
    file.close()
    apply_repair(disk, survey_directory(disk, "/data"))
    (loss,) = read_losses(disk, "/data")
    assert base < loss["first_offset"] <= loss["last_offset"] == last
    _, log = opened(disk)
    assert set(records) - set(read_all(log)) == set(range(loss["first_offset"], last + 1))
