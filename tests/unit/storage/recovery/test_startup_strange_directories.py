"""What hands have left in a log directory: copies, other names, empty directories, files that are gone."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.storage_workload import FIRST, checkpoint, fill, one_log, read_all, small, start

from duramen.errors import StorageError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.checkpoint.clean_shutdown import encode_clean_shutdown, kafka_was_here
from duramen.storage.files.atomic import replace_file
from duramen.storage.repair.repair import survey_directory
from duramen.storage.repair.report import Finding
from duramen.storage.repair.verify import verify_directory


def found(disk: CrashDisk) -> list[Finding]:
    return list(verify_directory(disk, "/data", lambda size: None, decode=True).all_findings())


def left(*, clean: bool) -> CrashDisk:
    """A directory with one log of 20 records, stopped or killed."""
    disk, directory, log = one_log()
    fill(directory, log, 20)
    directory.close(clean=clean)
    return disk


def copy(disk: CrashDisk, source: str, target: str) -> None:
    disk.make_directories(target)
    for name in disk.list_directory(source):
        file = disk.open(f"{source}/{name}")
        other = disk.open(f"{target}/{name}", create=True, write=True)
        other.pwritev([file.pread(file.size(), 0)], 0)
        file.close()
        other.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", ["a-0", "zz-0"])
def test_a_copy_of_a_partition_is_not_served_in_its_place(name: str, clean: bool) -> None:
    """Whichever name came last was: what was written since would have gone with the copy."""
    disk = left(clean=clean)
    copy(disk, "/data/first-0", f"/data/{name}")
    for _ in range(2):
        with pytest.raises(StorageError, match="are the same partition") as refused:
            start(disk)
        assert f"/data/{name}" in str(refused.value)
        assert "/data/first-0" in str(refused.value)
    disk.remove(f"/data/{name}")
    directory = start(disk)
    assert len(read_all(directory.logs[FIRST, 0])) == 20
    directory.close(clean=True)


@pytest.mark.parametrize("clean", [True, False])
def test_a_partition_under_another_name_stops_the_start(clean: bool) -> None:
    disk = left(clean=clean)
    disk.rename("/data/first-0", "/data/other-0")
    with pytest.raises(StorageError, match="/data/other-0 is partition first-0 by its topic id"):
        start(disk)
    disk.rename("/data/other-0", "/data/first-0")
    directory = start(disk)
    assert len(read_all(directory.logs[FIRST, 0])) == 20
    directory.close(clean=True)


def test_a_directory_with_nothing_in_it_is_reported_and_holds_up_nobody() -> None:
    disk = left(clean=True)
    disk.make_directories("/data/nothing-0")
    directory = start(disk)
    assert directory.recovery.damage == ["/data/nothing-0: nothing is in it, and no log is known by its name"]
    assert [log.tp.topic for log in directory.logs.values()] == ["first"]
    directory.close(clean=True)
    assert "nothing-0" in disk.list_directory("/data")


@pytest.mark.parametrize("damaged", [True, False])
def test_the_journal_knows_the_id_of_a_log_that_no_checkpoint_has(damaged: bool) -> None:
    disk = left(clean=False)
    metadata = "/data/first-0/partition.metadata"
    if damaged:
        disk.open(metadata, write=True).truncate(5)
    else:
        disk.remove(metadata)
    directory = start(disk)
    assert directory.recovery.damage == [f"{metadata}: it was missing or damaged; it was made again"]
    assert len(read_all(directory.logs[FIRST, 0])) == 20
    directory.close(clean=True)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_topic_may_be_called_by_a_name_with_a_dot_in_front(checkpointed: bool, clean: bool) -> None:
    """Kafka allows it. Starts passed its directories over, and nothing said so."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TopicPartition(".hidden", 0), FIRST, small())
    log.assign_epoch(0)
    fill(directory, log, 20)
    if checkpointed:
        checkpoint(directory)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    assert [each for each in found(disk) if each.kind == "damage"] == []
    directory = start(disk.copy(Random(1)))
    assert len(read_all(directory.logs[FIRST, 0])) == 20
    if not (clean or checkpointed):
        return  # the journal has all of it
    disk.damage("/data/.hidden-0/00000000000000000000.log", 30, 0xFF)
    disk.damage("/data/.hidden-0/00000000000000000000.log", 40, 0xFF)
    assert [each.kind for each in found(disk) if each.kind == "damage"][:1] == ["damage"]
    assert [each.kind for each in survey_directory(disk, "/data").actions if each.kind == "dropped"] == ["dropped"]
    disk.remove("/data/.hidden-0/partition.metadata")
    disk.sync_directory("/data/.hidden-0")
    directory = start(disk)
    assert [*directory.logs, *directory.offline] == [(FIRST, 0)]


@pytest.mark.parametrize("name", [".Trash-1000", "core-1234"])
def test_what_only_looks_like_a_partition_is_left_alone(name: str) -> None:
    """A first start that was cut was refused behind it, verify ended with a traceback, repair with advice for it."""
    base = CrashDisk()
    if name.startswith("."):
        base.make_directories(f"/data/{name}/files")
        base.sync_directory(f"/data/{name}")
    else:
        base.make_directories("/data")
        base.open(f"/data/{name}", create=True, write=True).close()
    base.sync_directory("/data")
    base.sync_directory("/")
    number = 0
    while True:
        number += 1
        disk = base.copy(Random(number))
        disk.cut_at = disk.calls + number
        try:
            directory = start(disk)
            break
        except NodeDied:
            disk.cut_at = None
            disk.power_on()
        start(disk)
    assert number > 30
    disk.cut_at = None
    fill(directory, directory.create_log(TopicPartition("first", 0), FIRST, small()), 3)
    directory.close(clean=True)
    disk.end_process()
    assert found(disk) == []
    assert survey_directory(disk, "/data").actions == []
    assert len(start(disk).logs) == 1


@pytest.mark.parametrize(
    "ours",
    [encode_clean_shutdown(), encode_clean_shutdown(7), encode_clean_shutdown(1234), b'{"version":0,"brokerEpoch":-1}'],
    ids=["unknown", "7", "1234", "as it was"],
)
def test_no_flipped_bit_makes_kafkas_stop_of_ours(ours: bytes) -> None:
    """It took all seals away, untold: what they had been made for was not noticed any more."""
    disk = left(clean=True)
    path = "/data/.kafka_cleanshutdown"
    replace_file(disk, path, ours)
    for at in range(len(disk.contents()[path])):
        for bit in range(8):
            harmed = disk.copy(Random(at))
            harmed.damage(path, at, 1 << bit)
            assert not kafka_was_here(harmed, "/data"), (at, bit)
    replace_file(disk, path, b'{"version":0,"brokerEpoch":0}')
    assert kafka_was_here(disk, "/data")
