"""Journals that are gone or not readable: what segments hold is not cut on the word of a checkpoint alone."""

from __future__ import annotations

import re
from functools import partial
from random import Random

import pytest
from tests.worlds.storage_workload import (
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

from duramen.errors import CorruptLogError, StorageError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.checkpoint.manifest import held_journal
from duramen.storage.files.atomic import replace_file
from duramen.storage.journal.format import HEADER_BLOCK, MARK_SIZE
from duramen.storage.journal.parts import PartMaker
from duramen.storage.journal.reader import read_journal
from duramen.storage.repair.journal_reset import begin_reset
from duramen.storage.repair.journal_salvage import survey_journal
from duramen.storage.repair.repair import survey_directory
from duramen.storage.repair.report import Finding
from duramen.storage.repair.verify import verify_directory


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
    assert "the journal is missing" in reset(disk)
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
    begin_reset(disk, "/data", survey_journal(disk, "/data", contents), SeededEntropy())
    log = next(log for log in start(disk).logs.values() if log.topic_id == SECOND)
    assert set(read_all(log)).issuperset(set(range(40)) - set(range(first, following)))
    assert append(log, b"next") == 40


def cut_off(disk: CrashDisk, path: str, size: int) -> None:
    file = disk.open(path, write=True)
    file.truncate(size)
    file.sync()
    file.close()


def findings(disk: CrashDisk) -> list[Finding]:
    return verify_directory(disk, "/data", lambda size: None, decode=True).all_findings()


def reset(disk: CrashDisk) -> str:
    """Go on without the journal; what is told of it."""
    contents = held_journal(disk, "/data")
    contents.close()
    (line, *_) = begin_reset(disk, "/data", survey_journal(disk, "/data", contents), SeededEntropy())
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
    told = reset(disk)
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
    assert "any partition" in reset(disk)
    assert [len(read_all(log)) for log in start(disk).logs.values()] == [5]


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("left", ["nothing", "an earlier one", "one of the same generation"])
@pytest.mark.parametrize("starts", [1, 2, 3])
def test_a_start_without_the_journal_of_its_checkpoint_is_refused(starts: int, left: str, killed: bool) -> None:
    """It served, said so once, and gave the offsets of what was acknowledged in it to other records. An earlier
    generation's from a backup was believed: a kill lost what the segments still had."""
    disk, directory, log = one_log()
    fill(directory, log, 5)
    backup = {path: disk.contents()[path] for path in parts(disk)}
    for _ in range(starts):
        disk.kill()
        disk.power_on()
        directory = start(disk)
        (log,) = directory.logs.values()
        fill(directory, log, 5)
    checkpoint(directory)
    fill(directory, log, 1)
    disk.kill() if killed else disk.power_cut()
    disk.power_on()
    (part,) = parts(disk)
    disk.remove(part)
    if left != "nothing":
        for path, content in backup.items():
            replace_file(disk, path if left == "an earlier one" else part, content)
    (found,) = [each for each in findings(disk) if each.kind == "damage"]
    assert found.path == part
    for _ in range(2):
        with pytest.raises(CorruptLogError, match=f"{re.escape(part)}: .*look for a copy .*--journal"):
            start(disk)
        disk.end_process()
    assert "missing" in reset(disk)
    (lost,) = read_losses(disk, "/data")
    assert lost["partition"] == "(journal)"
    directory = start(disk)
    (log,) = directory.logs.values()
    assert len(read_all(log)) == 5 + 5 * starts + int(killed)
    assert min(parts(disk)) > part
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


def after_a_kill() -> tuple[CrashDisk, list[str], str]:
    """A journal that went round in several parts; they, and the one with what was acknowledged last."""
    disk, directory, log = one_log()
    for _ in range(8):
        fill(directory, log, 30)
        checkpoint(directory)
        housekeep(directory)
    fill(directory, log, 60)
    append(log, b"the last one")
    commit(directory)
    disk.kill()
    disk.power_on()
    (newest,) = (path for path in parts(disk) if b"the last one" in disk.contents()[path])
    assert len(parts(disk)) > 2
    return disk, parts(disk), newest


def test_another_part_in_the_place_of_the_newest_is_no_torn_end() -> None:
    """A copy that went to the wrong place: the record it took was acknowledged, and its segment still has it."""
    disk, all_parts, newest = after_a_kill()
    for other in all_parts:
        if other == newest:
            continue
        copy = disk.copy(Random(1))
        cut_off(copy, newest, 0)
        overwrite(copy, newest, 0, disk.contents()[other])
        before = {path: data for path, data in copy.contents().items() if path.endswith(".log")}
        found = verify_directory(copy, "/data", lambda size: None, decode=True)
        assert found.needs_journal
        (told,) = (each for each in found.all_findings() if each.path == newest)
        assert (told.kind, told.what) == ("damage", f"{other.rpartition('/')[2]} is in its place")
        with pytest.raises(CorruptLogError, match=f"{re.escape(newest)}: .* is in its place.*--journal"):
            start(copy)
        copy.end_process()
        assert {path: data for path, data in copy.contents().items() if path.endswith(".log")} == before
        assert "is in its place; they may have held records of any partition" in reset(copy)
        (log,) = start(copy).logs.values()
        assert read_all(log)[300] == b"the last one"


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("same_name", [True, False])
def test_a_part_of_another_journal_is_not_believed(number: int, same_name: bool) -> None:
    """Of another directory, or of this one before its last start: what it says is no news of these logs."""
    disk, all_parts, newest = after_a_kill()
    other = CrashDisk()
    other.make_directories("/data")
    other.sync_directory("/")
    generation = int(newest.rpartition("/")[2].split("-")[2])
    maker = PartMaker(other, "/data", generation if same_name else generation + 1, 7)
    for _ in range(number):
        maker.reserve()
    made = maker.make(16 * 1024).name
    cut_off(disk, all_parts[number], 0)
    overwrite(disk, all_parts[number], 0, other.contents()[f"/data/{made}"])
    contents = read_journal(disk, "/data")
    contents.close()
    assert contents.foreign == {number}
    with pytest.raises(CorruptLogError, match=f"{re.escape(all_parts[number])}: .*a part of another journal"):
        start(disk)
    disk.end_process()
    assert "any partition" in reset(disk)
    (log,) = start(disk).logs.values()
    assert read_all(log)[300] == b"the last one"


def test_two_parts_that_changed_places_are_read_all_the_same() -> None:
    disk, all_parts, newest = after_a_kill()
    whole = read_journal(disk, "/data")
    whole.close()
    other = next(path for path in all_parts if path != newest)
    one, two = disk.contents()[newest], disk.contents()[other]
    for path, data in ((newest, two), (other, one)):
        cut_off(disk, path, 0)
        overwrite(disk, path, 0, data)
    contents = read_journal(disk, "/data")
    contents.close()
    assert contents.damage is not None
    assert [entry.lsn for entry in contents.entries] == [entry.lsn for entry in whole.entries]


def test_an_earlier_stop_of_ours_does_not_outdate_the_journal() -> None:
    """It was called Kafka's, with the advice to remove the journal; verify and repair believed it."""
    disk, directory, log = one_log()
    directory.close(clean=True)
    stop = disk.contents()["/data/.kafka_cleanshutdown"]
    directory = start(disk)
    (log,) = directory.logs.values()
    fill(directory, log, 3)
    disk.kill()
    disk.power_on()
    replace_file(disk, "/data/.kafka_cleanshutdown", stop)
    what = "/data/.kafka_cleanshutdown is that of an earlier stop of ours.*remove that file"
    (found,) = [each for each in findings(disk) if each.path in what]
    assert found.kind == "damage"
    for look in (partial(survey_directory, disk, "/data"), partial(start, disk)):
        with pytest.raises(StorageError, match=what):
            look()
        disk.end_process()
    disk.remove("/data/.kafka_cleanshutdown")
    (log,) = start(disk).logs.values()
    assert len(read_all(log)) == 3


def killed_in_a_group_behind_a_checkpoint(written: int) -> CrashDisk:
    """So many bytes of the last group are written, not synced; the checkpoint that its mark names has all of it."""
    disk, directory, log = one_log()
    fill(directory, log, 5)
    append(log, b"a")
    append(log, b"b")  # they wait for their group while a whole checkpoint comes between
    force = True
    while (job := directory.take_checkpoint(force)) is not None:
        job.run()
        directory.complete_checkpoint(job)
        force = False
        if job.files is not None:
            break
    group = directory.take_group()
    assert group is not None
    group.part.file.pwritev([b"".join(bytes(each) for each in group.buffers)[:written]], group.position)
    disk.kill()
    disk.power_on()
    return disk


@pytest.mark.parametrize("written", [1 << 20, MARK_SIZE + 10])
@pytest.mark.parametrize("torn", [True, False])
def test_a_start_that_is_cut_behind_such_a_kill_is_no_lost_journal(torn: bool, written: int) -> None:
    """It wrote a checkpoint that went on where that group ends, and power took the group: the next start refused."""
    disk = killed_in_a_group_behind_a_checkpoint(written)
    number = 0
    while True:
        number += 1
        copy = disk.copy(Random(number))
        copy.torn = torn
        copy.cut_at = copy.calls + number
        try:
            start(copy)
            break
        except NodeDied:
            copy.cut_at = None
            copy.power_on()
        directory = start(copy)
        assert (directory.offline, directory.recovery.damage) == ({}, [])
        assert [len(read_all(log)) >= 5 for log in directory.logs.values()] == [True]
    assert number > 50
