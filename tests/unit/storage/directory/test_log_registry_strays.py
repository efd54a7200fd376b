"""Logs of nobody's that make way for new ones: their directories get Kafka's `-stray` names, and are kept."""

from __future__ import annotations

import errno
from unittest.mock import patch

import pytest
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

from duramen.errors import ErrorCode, KafkaError, StorageError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.log.create import NewLog, StrayLog, Strays

TP = TopicPartition("first", 0)
HOME = "/data/first-0"
THIRD = bytes(15) + b"\x44"


def nobodys(directory: LogDirectory, topic_id: bytes = FIRST) -> list[StrayLog]:
    """Logs of the topic make way from now on; those that did."""
    moved: list[StrayLog] = []
    directory.strays = Strays(topic_id.__eq__, moved.append)
    return moved


def with_old_log(*, damaged: bool = False) -> tuple[CrashDisk, LogDirectory, list[StrayLog]]:
    """A directory that was started anew with a log of three records in it."""
    disk, directory, log = one_log()
    fill(directory, log, 3)
    directory.close(clean=True)
    if damaged:
        disk.remove(f"{HOME}/00000000000000000000.log")
    directory = start(disk)
    return disk, directory, nobodys(directory)


def homes(disk: CrashDisk) -> set[str]:
    return {path.rpartition("/")[0] for path in disk.contents()} - {"/data"}


def power_cut(disk: CrashDisk) -> None:
    disk.power_cut()
    disk.power_on()


@pytest.mark.parametrize("damaged", [False, True])
def test_it_is_moved_aside_with_all_it_has(damaged: bool) -> None:
    disk, directory, moved = with_old_log(damaged=damaged)
    assert (len(directory.logs), len(directory.offline)) == ((0, 1) if damaged else (1, 0))
    before = {path.rpartition("/")[2]: data for path, data in disk.contents().items() if path.startswith(f"{HOME}/")}
    log = directory.create_log(TP, SECOND, small())
    log.assign_epoch(0)
    append(log, b"new")
    commit(directory)
    ((tp, topic_id, path),) = moved
    assert (tp, topic_id) == (TP, FIRST)
    assert path.startswith(f"{HOME}.")
    assert path.endswith("-stray")
    assert len(path) == len(HOME) + len(".-stray") + 32
    housekeep(directory, 10**12)
    files = {name.rpartition("/")[2]: data for name, data in disk.contents().items() if name.startswith(f"{path}/")}
    assert files == before
    assert not directory.offline
    power_cut(disk)
    directory = start(disk)
    assert [read_all(log) for log in directory.logs.values()] == [{0: b"new"}]
    housekeep(directory, 10**12)
    directory.close(clean=True)
    directory = start(disk)
    housekeep(directory, 10**12)
    assert homes(disk) == {HOME, path}
    assert not directory.recovery.damage


def test_what_is_somebodys_stays() -> None:
    disk, directory, moved = with_old_log()
    directory.strays = Strays(THIRD.__eq__, moved.append)
    with pytest.raises(StorageError, match="exists already: move it out"):
        directory.create_log(TP, SECOND, small())
    assert (moved, homes(disk)) == ([], {HOME})


def test_what_is_to_be_deleted_is_not_moved_aside() -> None:
    """For its deletion there was no room; it comes when there is."""
    _, directory, moved = with_old_log()
    job = directory.take_creation([NewLog(TP, SECOND, small())], [HOME])
    assert isinstance(job.refused[SECOND, 0], NoRoomError)
    assert moved == []


def test_without_room_in_the_journal_it_keeps_its_name() -> None:
    disk, directory, moved = with_old_log()
    full = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the journal is full")
    with patch.object(directory.journal, "append", side_effect=full):
        job = directory.take_creation([NewLog(TP, SECOND, small())])
    assert job.refused == {(SECOND, 0): full}
    assert (moved, homes(disk), list(directory.logs)) == ([], {HOME}, [(FIRST, 0)])
    log = directory.create_log(TP, SECOND, small())
    assert len(moved) == 1
    assert list(directory.logs.values()) == [log]


def test_without_room_for_another_name_it_keeps_its_own() -> None:
    disk, directory, moved = with_old_log()

    def full(call: DiskCall) -> OSError | None:
        return OSError(errno.ENOSPC, "No space left on device", call.path) if call.operation == "rename" else None

    disk.fault = full
    job = directory.take_creation([NewLog(TP, SECOND, small())])
    assert isinstance(job.refused[SECOND, 0], NoRoomError)
    assert (moved, homes(disk), directory.journal.failed) == ([], {HOME}, None)
    disk.fault = None
    directory.create_log(TP, SECOND, small())
    assert len(moved) == 1


def test_a_disk_that_fails_fences_the_directory() -> None:
    disk, directory, moved = with_old_log()
    disk.fault = lambda call: OSError(errno.EIO, "I/O error", call.path) if call.operation == "rename" else None
    with pytest.raises(StorageError, match="cannot be moved aside"):
        directory.take_creation([NewLog(TP, SECOND, small())])
    assert directory.journal.failed is not None
    assert moved == []


def test_what_gets_its_name_back_behind_a_crash_is_moved_aside_again_and_not_deleted() -> None:
    """The journal still says that it is gone."""
    disk, directory, moved = with_old_log()
    assert directory.take_creation([NewLog(TP, SECOND, small())]).refused == {}  # and not run
    commit(directory)
    power_cut(disk)
    disk.rename(moved[0].path, HOME)
    directory = start(disk)
    assert not directory.logs
    (home,) = homes(disk)
    assert home.endswith("-stray")
    housekeep(directory, 10**12)
    assert homes(disk) == {home}


@pytest.mark.parametrize("topic", ["first", "x" * 240])
def test_kafkas_own_beside_a_partition_that_it_has_got_again(topic: str) -> None:
    """It is not taken for gone: its files are made again."""
    disk = CrashDisk()
    directory = start(disk)
    tp = TopicPartition(topic, 0)
    log = directory.create_log(tp, FIRST, small())
    log.assign_epoch(0)
    fill(directory, log, 3)
    checkpoint(directory)
    metadata = disk.contents()[f"/data/{tp}/partition.metadata"]
    suffix = "-0.0123456789abcdef0123456789abcdef-stray"
    stray = "/data/" + topic[: 255 - len(suffix)] + suffix
    disk.make_directories(stray)
    file = disk.open(f"{stray}/partition.metadata", create=True, write=True)
    file.pwritev([metadata], 0)
    file.sync()
    file.close()
    disk.sync_directory(stray)
    disk.sync_directory("/data")
    power_cut(disk)
    disk.remove(f"/data/{tp}/leader-epoch-checkpoint")
    directory = start(disk)
    assert [len(read_all(log)) for log in directory.logs.values()] == [3]
    (told,) = directory.recovery.damage
    assert told.startswith(f"/data/{tp}/leader-epoch-checkpoint: it was missing")
    assert disk.exists(f"{stray}/partition.metadata")
