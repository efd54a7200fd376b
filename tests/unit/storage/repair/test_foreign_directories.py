"""Another topic's directory, or its metadata file, in a partition's place: no journal may be applied to it."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.repair_world import TP, findings
from tests.worlds.storage_workload import FIRST, SECOND, append, checkpoint, commit, housekeep, read_all, small, start

from duramen.errors import StorageError
from duramen.model import TopicId, TopicPartition, topic_id_text
from duramen.sim.world.disk import CrashDisk
from duramen.storage.files.atomic import replace_file
from duramen.storage.repair.repair import survey_directory
from duramen.storage.segment.partition_metadata import encode_partition_metadata, is_damaged_id

ONE, OTHER = "/data/first-0", "/data/second-0"
WHOSE = r"its partition.metadata names topic id .*where only that file is wrong, remove it"


def stopped(*, clean: bool, checkpointed: bool = True) -> CrashDisk:
    """Two logs with records that their segments alone have, and some that the journal has, too."""
    disk = CrashDisk(torn=True)
    directory = start(disk)
    logs = [
        directory.create_log(TP, FIRST, small()),
        directory.create_log(TopicPartition("second", 0), SECOND, small()),
    ]
    for log, count in zip(logs, (4, 10), strict=True):
        log.assign_epoch(0)
        for number in range(count):
            append(log, b"%d of %s" % (number, log.tp.topic.encode()))
            commit(directory)
    if checkpointed:
        checkpoint(directory)
    append(logs[0], b"last")
    commit(directory)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    return disk


def swapped(disk: CrashDisk) -> None:
    disk.rename(ONE, "/data/aside")
    disk.rename(OTHER, ONE)
    disk.rename("/data/aside", OTHER)
    disk.sync_directory("/data")


def moved_over(disk: CrashDisk) -> None:
    for name in disk.list_directory(ONE):
        disk.remove(f"{ONE}/{name}")
    disk.remove(ONE)
    disk.rename(OTHER, ONE)
    disk.sync_directory("/data")


def files_swapped(disk: CrashDisk) -> None:
    found = [disk.contents()[f"{home}/partition.metadata"] for home in (ONE, OTHER)]
    for home, content in zip((OTHER, ONE), found, strict=True):
        replace_file(disk, f"{home}/partition.metadata", content)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("harm", [swapped, moved_over, files_swapped])
def test_it_is_refused_and_nothing_is_changed(harm: object, checkpointed: bool, clean: bool) -> None:
    """The ids were written anew, and each log was served as the other; behind a kill the longer one was cut, too."""
    disk = stopped(clean=clean, checkpointed=checkpointed)
    harm(disk)  # type: ignore[operator]
    before = {path: data for path, data in disk.contents().items() if path.count("/") > 2}
    assert [each.path for each in findings(disk) if "names topic id" in each.what][:1] == [ONE]
    with pytest.raises(StorageError, match=f"{ONE}: {WHOSE}"):
        survey_directory(disk, "/data")
    with pytest.raises(StorageError, match=f"{ONE}: {WHOSE}"):
        start(disk)
    disk.end_process()
    assert {path: data for path, data in disk.contents().items() if path.count("/") > 2} == before
    if harm is moved_over:
        return
    if harm is swapped:
        swapped(disk)
    else:  # as it is told
        for home in (ONE, OTHER):
            disk.remove(f"{home}/partition.metadata")
            disk.sync_directory(home)
    directory = start(disk)
    assert {str(log.tp): len(read_all(log)) for log in directory.logs.values()} == {"first-0": 5, "second-0": 10}


def made_anew(*, clean: bool) -> tuple[CrashDisk, dict[str, bytes]]:
    """A topic that had another's name, and the directory of that."""
    disk = stopped(clean=True)
    old = {path: data for path, data in disk.contents().items() if path.startswith(f"{ONE}/")}
    directory = start(disk)
    directory.delete_log(directory.logs[FIRST, 0])
    commit(directory)
    for now in (2_000_000, 10_000_000):
        housekeep(directory, now)
    log = directory.create_log(TP, b"new topic's idid", small())
    log.assign_epoch(0)
    for number in range(3):
        append(log, b"new %d" % number)
        commit(directory)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    return disk, old


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("only_the_file", [True, False])
def test_a_deleted_topics_records_are_not_served_under_the_one_that_has_its_name(
    only_the_file: bool, clean: bool
) -> None:
    """Its directory came back from a backup: it got the new one's id. Of its file alone nothing told but the start."""
    disk, old = made_anew(clean=clean)
    for path, content in old.items():
        if not only_the_file or path.endswith("partition.metadata"):
            replace_file(disk, path, content)
    assert [each.path for each in findings(disk) if "names topic id" in each.what] == [ONE]
    with pytest.raises(StorageError, match=f"{ONE}: {WHOSE}"):
        survey_directory(disk, "/data")
    with pytest.raises(StorageError, match=f"{ONE}: {WHOSE}"):
        start(disk)


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_is_mended_as_ever(clean: bool) -> None:
    disk = stopped(clean=clean)
    path = f"{ONE}/partition.metadata"
    disk.damage(path, len(disk.contents()[path]) - 8, 2)
    assert [each.kind for each in findings(disk) if each.path == path] == ["index"]
    assert len(start(disk.copy(Random(1))).logs) == 2


def test_one_bit_of_the_text_is_damage_unless_a_topic_has_that_id() -> None:
    wanted = bytes(15) + b"\x02"
    near, far = bytes(15) + b"\x03", bytes(15) + b"\x01"  # Ag, Aw, AQ
    assert [topic_id_text(each)[-2:] for each in (wanted, near, far)] == ["Ag", "Aw", "AQ"]
    known: set[TopicId] = {wanted}
    assert [is_damaged_id(each, wanted, known) for each in (bytes(16), near, far)] == [True, True, False]
    assert not is_damaged_id(near, wanted, {near})


def test_an_id_that_cannot_be_read_is_made_again() -> None:
    disk = stopped(clean=False)
    replace_file(disk, f"{ONE}/partition.metadata", encode_partition_metadata("no id"))
    assert len(start(disk).logs) == 2
