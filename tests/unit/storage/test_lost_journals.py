"""Journals that are gone or not readable: what segments hold is not cut on the word of a checkpoint alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from random import Random

import pytest

from duramen.cli.inspection import verify_directory
from duramen.errors import CorruptLogError, StorageError
from duramen.model import TopicPartition
from duramen.sim.disk import CrashDisk
from duramen.storage.forgoing import forgo_journal
from duramen.storage.journal_format import HEADER_BLOCK
from duramen.storage.journal_reader import read_journal
from duramen.storage.journal_salvage import survey_journal

sys.path.insert(0, str(Path(__file__).parents[2] / "scenarios"))

from storage_workload import (
    SECOND,
    SeededEntropy,
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


def overwrite(disk: CrashDisk, path: str, position: int, data: bytes) -> None:
    file = disk.open(path, write=True)
    file.pwritev([data], position)
    file.sync()
    file.close()


def parts(disk: CrashDisk) -> list[str]:
    return [f"/data/{name}" for name in disk.list_directory("/data") if name.endswith(".part")]


def test_without_a_journal_nothing_sound_is_cut_behind_damage() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 3)
    checkpoint(directory)
    fill(directory, log, 37)
    damaged = log.segments[1].path
    disk.kill()
    disk.power_on()
    overwrite(disk, damaged, 0, bytes(600))
    for path in parts(disk):
        disk.remove(path)
    before = {path: data for path, data in disk.contents().items() if path.endswith(".log")}
    directory = start(disk)
    assert directory.logs == {}
    (offline,) = directory.offline.values()
    assert damaged in str(offline.error)
    directory.close(clean=False)
    disk.end_process()
    assert {path: data for path, data in disk.contents().items() if path.endswith(".log")} == before


@pytest.mark.parametrize("clean", [False, True])
def test_a_journal_of_which_nobody_has_the_seed_is_no_empty_one(clean: bool) -> None:
    disk, directory, log = one_log()
    fill(directory, log, 5)
    disk.power_cut()
    disk.power_on()
    (part,) = parts(disk)
    whole = disk.contents()[part][:HEADER_BLOCK]
    overwrite(disk, part, 0, bytes(512))
    if clean:  # a broker of Kafka's was here: what that says of our journal is told, too
        disk.open("/data/.kafka_cleanshutdown", create=True, write=True).close()
        with pytest.raises(StorageError, match="the journal is older than the logs"):
            start(disk)
    else:
        directory = start(disk.copy(Random(1)))
        assert [len(read_all(log)) for log in directory.logs.values()] == [5]  # the header is there twice
    disk.end_process()
    overwrite(disk, part, 0, bytes(HEADER_BLOCK))
    with pytest.raises(StorageError, match=rf"{re.escape(part)}: .* not a readable journal part.* restore it"):
        start(disk)
    disk.end_process()
    overwrite(disk, part, 0, whole)
    if not clean:
        assert [len(read_all(log)) for log in start(disk).logs.values()] == [5]


def test_without_a_journal_what_lies_behind_damage_is_kept_of_a_log_that_no_checkpoint_knows() -> None:
    """Its CREATE entry is among what is damaged, so the segments are all that speaks of it."""
    disk, directory, log = one_log()
    fill(directory, log, 3)
    checkpoint(directory)
    log = directory.create_log(TopicPartition("second", 0), SECOND, small())
    log.assign_epoch(0)
    fill(directory, log, 40)
    commit(directory)
    middle = log.segments[1]
    first, following = middle.base_offset, log.segments[2].base_offset
    disk.kill()
    disk.power_on()
    overwrite(disk, middle.path, 0, bytes(600))
    part = min(path for path in parts(disk) if SECOND in disk.contents()[path])  # with its CREATE entry
    overwrite(disk, part, disk.contents()[part].index(SECOND), bytes(16))
    contents = read_journal(disk, "/data")
    contents.close()
    forgo_journal(disk, "/data", survey_journal(disk, "/data", contents), SeededEntropy())
    log = next(log for log in start(disk).logs.values() if log.topic_id == SECOND)
    assert set(read_all(log)).issuperset(set(range(40)) - set(range(first, following)))
    assert append(log, b"next") == 40


def cut_off(disk: CrashDisk, path: str, size: int) -> None:
    file = disk.open(path, write=True)
    file.truncate(size)
    file.sync()
    file.close()


def forgone(disk: CrashDisk) -> str:
    """Go on without the journal; what is told of it."""
    contents = read_journal(disk, "/data")
    contents.close()
    (line, *_) = forgo_journal(disk, "/data", survey_journal(disk, "/data", contents), SeededEntropy())
    return str(line["what"])


@pytest.mark.parametrize("left", [HEADER_BLOCK, HEADER_BLOCK + 512, 2 * HEADER_BLOCK, -1])
@pytest.mark.parametrize("killed", [False, True])
def test_a_journal_that_lost_its_end_is_no_torn_one(killed: bool, left: int) -> None:
    """As a copy leaves it that was broken off. No mark is behind the missing bytes, so nothing else tells of them."""
    disk, directory, log = one_log()
    fill(directory, log, 5)
    last = log.active.path
    disk.kill() if killed else disk.power_cut()
    disk.power_on()
    (part,) = parts(disk)
    size = len(disk.contents()[part])
    cut_off(disk, part, left if left > 0 else size - 1)
    before = disk.contents()[last]
    with pytest.raises(CorruptLogError, match=f"it had {size} bytes.*look for a copy .*--journal"):
        start(disk)
    disk.end_process()
    assert disk.contents()[last] == before
    told = forgone(disk)
    assert "bytes of the journal are missing" in told
    assert "any partition" in told
    (log,) = start(disk).logs.values()
    if killed:
        assert len(read_all(log)) == 5


def test_a_journal_without_its_first_part_is_no_empty_one() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 5)
    housekeep(directory)
    disk.kill()
    disk.power_on()
    first, _ = parts(disk)
    disk.remove(first)
    before = {path: data for path, data in disk.contents().items() if path.endswith(".log")}
    with pytest.raises(CorruptLogError, match=f"{re.escape(first)}: .*it is missing.*--journal"):
        start(disk)
    disk.end_process()
    assert {path: data for path, data in disk.contents().items() if path.endswith(".log")} == before
    assert "any partition" in forgone(disk)
    assert [len(read_all(log)) for log in start(disk).logs.values()] == [5]


def test_a_start_says_that_the_journal_is_gone() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 5)
    checkpoint(directory)
    fill(directory, log, 1)
    disk.power_cut()
    disk.power_on()
    for path in parts(disk):
        disk.remove(path)
    found = verify_directory(disk, "/data", lambda size: None, decode=True).all_findings()
    assert [finding.path for finding in found if "the journal is missing" in finding.what] == ["/data"]
    directory = start(disk)
    (told,) = directory.recovery.damage
    assert told.startswith("/data: the journal is missing")
    directory.close(clean=True)
    assert start(disk).recovery.damage == []


@pytest.mark.parametrize("left", [0, 507, HEADER_BLOCK - 1])
def test_the_bare_journal_of_a_clean_stop_had_nothing_that_it_can_lose(left: int) -> None:
    """The checkpoint beside it counts: without that, a segment that is gone would be no news."""
    disk, directory, log = one_log()
    fill(directory, log, 40)
    checkpoint(directory)
    housekeep(directory)
    gone = log.segments[1].path
    directory.close(clean=True)
    (part,) = parts(disk)
    cut_off(disk, part, left)
    disk.remove(gone)
    directory = start(disk)
    (told,) = directory.recovery.damage
    assert told.startswith(part)
    (offline,) = directory.offline.values()
    assert gone in str(offline.error)
