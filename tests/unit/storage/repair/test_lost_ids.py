"""A partition lost its metadata file: whoever else knows the topic id is asked, and what nobody knows is told."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.repair_world import TP, filled, findings, opened
from tests.worlds.storage_workload import (
    FIRST,
    SECOND,
    append,
    checkpoint,
    commit,
    fill,
    housekeep,
    one_log,
    read_all,
    small,
    start,
)

from duramen.errors import StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.repair.repair import survey_directory

METADATA = "/data/first-0/partition.metadata"
MADE_AGAIN = f"{METADATA}: it was missing or damaged; it was made again"


def removed(disk: CrashDisk, *paths: str) -> None:
    for path in paths:
        disk.remove(path)
        disk.sync_directory(path.rpartition("/")[0])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("other", ["duramen-checkpoint", "duramen-directory"])
@pytest.mark.parametrize("damaged", [True, False])
def test_one_of_our_two_files_is_enough_to_know_a_topic(clean: bool, other: str, damaged: bool) -> None:
    disk = CrashDisk()
    records, _ = filled(disk, clean=clean)
    removed(disk, f"/data/{other}")
    if damaged:
        disk.open(METADATA, write=True).truncate(5)
    else:
        removed(disk, METADATA)
    assert [each.kind for each in findings(disk) if each.path == METADATA] == ["index"]
    assert not [each for each in findings(disk) if each.kind == "damage"]
    assert survey_directory(disk.copy(Random(1)), "/data").actions == []
    directory, log = opened(disk)
    assert MADE_AGAIN in directory.recovery.damage
    assert read_all(log) == records
    directory.close(clean=True)
    assert findings(disk) == []


@pytest.mark.parametrize("clean", [True, False])
def test_an_id_that_is_nowhere_is_told_before_the_start_refuses(clean: bool) -> None:
    disk = CrashDisk()
    records, _ = filled(disk, clean=clean)
    content = disk.contents()[METADATA]
    removed(disk, METADATA, "/data/duramen-checkpoint", "/data/duramen-directory")
    assert [(each.kind, each.path) for each in findings(disk) if "id is not known" in each.what] == [
        ("damage", "/data/first-0")
    ]
    with pytest.raises(StorageError, match=r"/data/first-0: .*id is not known"):
        survey_directory(disk, "/data")
    with pytest.raises(StorageError, match=r"/data/first-0: .*id is not known"):
        start(disk)
    disk.end_process()
    file = disk.open(METADATA, create=True, write=True)
    file.pwritev([content], 0)
    file.sync()
    _, log = opened(disk)
    assert read_all(log) == records


def test_an_older_list_of_ours_is_not_asked() -> None:
    """It may name a topic that was deleted, and made anew under its name, since."""
    disk = CrashDisk()
    filled(disk)
    older = disk.contents()["/data/duramen-directory"]
    directory, _ = opened(disk)
    directory.close(clean=True)
    removed(disk, METADATA, "/data/duramen-checkpoint")
    file = disk.open("/data/duramen-directory", write=True)
    file.truncate(0)
    file.pwritev([older], 0)
    file.sync()
    assert [each.path for each in findings(disk) if "id is not known" in each.what] == ["/data/first-0"]
    with pytest.raises(StorageError, match="id is not known"):
        start(disk)


@pytest.mark.parametrize("lost", [METADATA, "/data/duramen-checkpoint"])
def test_a_topic_made_anew_is_not_taken_for_the_one_that_had_its_name(lost: str) -> None:
    """Its directory got that one's id, whose deletion is in the journal, and no start went on from there."""
    disk = CrashDisk()
    filled(disk)
    directory, log = opened(disk)
    checkpoint(directory)
    directory.delete_log(log)
    commit(directory)
    housekeep(directory)
    housekeep(directory, 10_000_000)
    log = directory.create_log(TP, SECOND, small())
    log.assign_epoch(0)
    append(log, b"new")
    commit(directory)
    disk.kill()
    disk.power_on()
    assert not [name for name in disk.list_directory("/data") if name.endswith("-delete")]
    removed(disk, *{METADATA, lost})
    _, log = opened(disk)
    assert (log.topic_id, read_all(log)) == (SECOND, {0: b"new"})


def test_an_id_that_nobody_knows_is_damage_where_the_journal_has_the_creation() -> None:
    """Of a topic that was just made: the start refused the whole directory, and a repair found nothing to do."""
    disk, directory, log = one_log()
    fill(directory, log, 3)
    records = read_all(log)
    commit(directory)
    disk.kill()
    disk.power_on()
    disk.damage(METADATA, len(disk.contents()[METADATA]) - 8, 2)  # it is an id yet
    assert [each for each in findings(disk) if each.kind == "damage"] == []
    assert survey_directory(disk.copy(Random(1)), "/data").actions == []
    directory, log = opened(disk)
    assert MADE_AGAIN in directory.recovery.damage
    assert (log.topic_id, read_all(log)) == (FIRST, records)
