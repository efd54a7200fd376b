"""Copies of a directory damaged at random: verify, a dry run, the repair and the start behind it say the same.

Each kind of damage once for each of some seeds, after a clean stop and after a kill. What fails is told with its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

import pytest
from tests.worlds.repair_world import filled, opened
from tests.worlds.storage_workload import SeededEntropy, read_all

from duramen.errors import StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.repair.journal_reset import recover_and_stop
from duramen.storage.repair.repair import DirectoryRepair, apply_repair, survey_directory
from duramen.storage.repair.report import DirectoryReport
from duramen.storage.repair.rewrite_partition import DROPPED
from duramen.storage.repair.verify import verify_directory

SEEDS = 15
_KEPT = (".lock", ".kafka_cleanshutdown", "meta.properties", "duramen-reserve")


@cache
def template(clean: bool) -> tuple[CrashDisk, dict[int, bytes]]:
    disk = CrashDisk()
    records, _ = filled(disk, clean=clean)
    return disk, records


def flip(content: bytearray, dice: Random, others: list[bytes]) -> None:
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)


def cut(content: bytearray, dice: Random, others: list[bytes]) -> None:
    del content[dice.randrange(len(content)) :]


def hole(content: bytearray, dice: Random, others: list[bytes]) -> None:
    start = dice.randrange(len(content))
    del content[start : start + dice.randrange(1, 900)]


def zeros(content: bytearray, dice: Random, others: list[bytes]) -> None:
    start = dice.randrange(len(content))
    end = min(len(content), start + dice.choice([16, 512, 4096]))
    content[start:end] = bytes(end - start)


def garbage(content: bytearray, dice: Random, others: list[bytes]) -> None:
    start = dice.randrange(len(content))
    end = min(len(content), start + dice.choice([8, 300]))
    content[start:end] = dice.randbytes(end - start)


def stray(content: bytearray, dice: Random, others: list[bytes]) -> None:
    size = dice.choice([1, 100, 5000])
    content += dice.choice([bytes(size), dice.randbytes(size)])


def foreign(content: bytearray, dice: Random, others: list[bytes]) -> None:
    content[:] = dice.choice(others)


def gone(content: bytearray, dice: Random, others: list[bytes]) -> None:
    content[:] = b""


AFTER_A_KILL = (flip, cut, zeros, garbage, stray, foreign, gone)
AFTER_A_STOP = (*AFTER_A_KILL, hole)


def harmed(disk: CrashDisk, harm: Callable[[bytearray, Random, list[bytes]], None], dice: Random) -> str:
    """Damages a file, most often a segment; says which."""
    contents = disk.contents()
    paths = [path for path in contents if not path.endswith(_KEPT) and contents[path]]
    logs = [path for path in paths if path.endswith(".log")]
    path = dice.choice(logs if dice.random() < 0.7 else paths)
    suffix = path.rpartition(".")[2]
    others = [contents[other] for other in paths if other != path and other.endswith(suffix)] or [b"x"]
    content = bytearray(contents[path])
    harm(content, dice, others)
    if harm is gone:
        disk.remove(path)
        disk.sync_directory(path.rpartition("/")[0])
        return path
    file = disk.open(path, write=True)
    file.truncate(0)
    if content:
        file.pwritev([bytes(content)], 0)
    file.sync()
    file.close()
    return path


def verified(disk: CrashDisk) -> DirectoryReport:
    return verify_directory(disk, "/data", lambda size: None, decode=True)


def is_damaged(report: DirectoryReport) -> bool:
    return any(finding.kind == "damage" for finding in report.all_findings())


def repaired(disk: CrashDisk, found: DirectoryRepair) -> None:
    """As the command does it."""
    if found.actions and found.recovers:
        recover_and_stop(disk, "/data", 0, SeededEntropy())
        found = survey_directory(disk, "/data")
    apply_repair(disk, found)


@pytest.mark.parametrize(
    ("harm", "clean"), [*((harm, True) for harm in AFTER_A_STOP), *((harm, False) for harm in AFTER_A_KILL)]
)
def test_verify_the_dry_run_the_repair_and_the_start_agree(
    harm: Callable[[bytearray, Random, list[bytes]], None], clean: bool
) -> None:
    pristine, records = template(clean)
    for seed in range(SEEDS):
        disk = pristine.copy(Random(seed))
        path = harmed(disk, harm, Random(seed))
        case = f"seed {seed}, {path}"
        report = verified(disk)
        try:
            found = survey_directory(disk, "/data")
        except StorageError:
            assert report.needs_journal, case
            assert is_damaged(report), case
            continue
        drops = any(action.kind == DROPPED for action in found.actions)
        told = [finding for finding in report.all_findings() if finding.kind != "tail"]
        assert told or not drops, case
        promised = set(records)
        for partition in report.partitions:
            assert partition.readable == found.readable[partition.name], case
            promised &= {offset for first, last in partition.readable for offset in range(first, last + 1)}
        repaired(disk, found)
        assert not is_damaged(verified(disk)), case
        assert survey_directory(disk, "/data").actions == [], case
        directory, log = opened(disk)
        assert read_all(log) == {offset: records[offset] for offset in promised}, case
        directory.close(clean=True)
        assert not is_damaged(verified(disk)), case


def test_after_a_kill_a_log_is_told_readable_though_its_metadata_names_a_topic_that_nobody_knows() -> None:
    """One bit of the id is wrong: the start knows better and writes the file anew."""
    pristine, records = template(False)
    disk = pristine.copy(Random(1))
    metadata = "/data/first-0/partition.metadata"
    disk.damage(metadata, disk.contents()[metadata].index(b"topic_id: ") + 14, 8)
    (partition,) = verified(disk).partitions
    assert partition.readable == survey_directory(disk, "/data").readable["first-0"] == [(0, max(records))]
    directory, log = opened(disk)
    assert read_all(log) == records
    directory.close(clean=False)
