"""A wrong base offset, which no CRC covers, in a log's last batch: there no later batch tells it."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.storage_workload import SeededEntropy, append, checkpoint, commit, fill, one_log, read_all, start

from duramen.errors import CorruptLogError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.repair.journal_reset import recover_and_stop
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.report import Finding
from duramen.storage.repair.rewrite_partition import DROPPED
from duramen.storage.repair.verify import verify_directory
from duramen.wire.batch import HEADER_SIZE, parse_header

COUNT = 5
FAR, NEAR = (1, 0x04), (7, 0x08)
"""(byte of the base offset, bit): so much that no index can hold it, and 8 offsets further."""


def damage_found(disk: CrashDisk) -> list[Finding]:
    found = verify_directory(disk, "/data", lambda size: None).all_findings()
    return [finding for finding in found if finding.kind == "damage"]


def flipped(disk: CrashDisk, home: str, flip: tuple[int, int]) -> int:
    """That bit of the log's only segment's last batch is, and nothing is sealed of it yet; the batch's first byte."""
    path = f"{home}/{0:020d}.log"
    content, at, last = disk.contents()[path], 0, 0
    while at + HEADER_SIZE <= len(content):
        last, at = at, at + parse_header(content, at).size
    disk.damage(path, last + flip[0], flip[1])
    sealing = path.removesuffix("log") + "sealing"
    if disk.exists(sealing):
        disk.remove(sealing)
        disk.sync_directory(home)
    return last


@pytest.mark.parametrize("flip", [FAR, NEAR])
@pytest.mark.parametrize("durability", ["stable", "page-cache"])
@pytest.mark.parametrize("count", [1, COUNT])
def test_behind_a_kill_the_log_does_not_go_on_there(count: int, durability: str, flip: tuple[int, int]) -> None:
    """It went on at offset 288230376151711744, with its last record renumbered, and nobody was told."""
    disk, directory, log = one_log(durability)
    fill(directory, log, count)
    job = directory.take_checkpoint(force=True)
    assert job is not None
    job.run()
    disk.kill()
    disk.power_on()
    at = flipped(disk, log.path, flip)
    assert [(each.start, each.offset) for each in damage_found(disk)] == [(at, count - 1)]
    assert [each.start for each in survey_directory(disk, "/data").actions if each.kind == DROPPED] == [at]
    for _ in range(2):
        begun = start(disk)
        assert [str(left.error).partition("first offset affected: ")[2] for left in begun.offline.values()] == [
            str(count - 1)
        ]
        begun.close(clean=False)
        disk.end_process()
    recover_and_stop(disk, "/data", 0, SeededEntropy())
    apply_repair(disk, survey_directory(disk, "/data"))
    assert [(loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")] == [
        (count - 1, count - 1)
    ]
    begun = start(disk)
    (log,) = begun.logs.values()
    assert (log.end_offset, sorted(read_all(log))) == (count, list(range(count - 1)))


@pytest.mark.parametrize("flip", [FAR, NEAR])
def test_after_a_clean_stop_it_is_found_and_no_append_goes_behind_it(flip: tuple[int, int]) -> None:
    disk, directory, log = one_log()
    fill(directory, log, COUNT)
    directory.close(clean=True)
    disk.end_process()
    at = flipped(disk, log.path, flip)
    assert [(each.start, each.offset) for each in damage_found(disk)] == [(at, COUNT - 1)]
    assert [each.start for each in survey_directory(disk, "/data").actions if each.kind == DROPPED] == [at]
    begun = start(disk)
    (log,) = begun.logs.values()
    with pytest.raises(CorruptLogError):
        read_all(log, COUNT - 1)
    begun.close(clean=True)
    disk.end_process()
    disk.remove(f"{log.path}/{0:020d}.index")  # then it is read
    disk.sync_directory(log.path)
    begun = start(disk)
    assert [str(COUNT - 1) in str(left.error) for left in begun.offline.values()] == [True]
    begun.close(clean=True)


@pytest.mark.parametrize("flip", [FAR, NEAR])
@pytest.mark.parametrize("synced", [True, False])
def test_what_was_only_in_the_page_cache_is_not_taken_with_another_offset(synced: bool, flip: tuple[int, int]) -> None:
    """Where the journal ends recovery takes intact batches; the first of them may not be where the log ends."""
    disk, directory, log = one_log("page-cache")
    if synced:
        fill(directory, log, COUNT)
        checkpoint(directory)
    before = log.end_offset
    append(log, b"last")
    commit(directory)
    disk.kill()
    disk.power_on()
    flipped(disk, log.path, flip)
    begun = start(disk)
    (log,) = begun.logs.values()
    assert (log.end_offset, sorted(read_all(log))) == (before, list(range(before)))
    begun.close(clean=True)
    assert damage_found(disk.copy(Random(0))) == []
