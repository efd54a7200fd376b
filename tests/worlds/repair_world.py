"""A log of several segments, damaged and repaired: what the tests of `duramen log repair` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from tests.worlds.storage_workload import (
    FIRST,
    SeededEntropy,
    append,
    checkpoint,
    commit,
    housekeep,
    read_all,
    small,
    start,
)

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.log import Log
from duramen.storage.repair.repair import DirectoryRepair, apply_repair, repair_directory, survey_directory
from duramen.storage.repair.report import Finding
from duramen.storage.repair.rewrite_partition import DROPPED, RepairAction
from duramen.storage.repair.verify import verify_directory

TP = TopicPartition("first", 0)


Segments = list[tuple[str, int, int]]
"""Path, size and base offset of each."""
Harm = Callable[[CrashDisk, Segments], object]

CHANGES = {"pwritev", "truncate", "sync", "sync_directory", "rename", "remove", "make_directories"}
"""Behind the others the disk is as it was in front of them."""


def fill(directory: LogDirectory, topic_id: bytes, prefix: bytes) -> tuple[Log, Segments]:
    """A new log of several segments, all of them checkpointed, and those. prefix: of the records' values."""
    log = directory.create_log(TP, topic_id, small())
    log.assign_epoch(0)
    for number in range(60):
        append(log, prefix + b"%d " % number + b"v" * 300)
        commit(directory)
    checkpoint(directory)
    housekeep(directory)
    segments = [(segment.path, segment.size, segment.base_offset) for segment in log.segments]
    assert len(segments) >= 4
    return log, segments


def filled(disk: CrashDisk, *, clean: bool = True) -> tuple[dict[int, bytes], Segments]:
    """A log of several segments at rest; its records and its segments."""
    directory = start(disk)
    log, segments = fill(directory, FIRST, b"")
    records = read_all(log)
    if clean:
        directory.close(clean=True)
    else:
        append(log, b"last")
        records[log.end_offset - 1] = b"last"
        commit(directory)
        commit(directory)
        disk.kill()
        disk.power_on()
    return records, segments


def opened(disk: CrashDisk) -> tuple[LogDirectory, Log]:
    directory = start(disk)
    (log,) = directory.logs.values()
    return directory, log


class Agreeing:
    """Lets a repair do everything."""

    def show(self, found: DirectoryRepair) -> None:
        pass

    def approve(self, found: DirectoryRepair) -> None:
        pass

    def approve_more(self) -> None:
        pass


def repair(disk: CrashDisk) -> bool:
    """`duramen log repair --yes`; whether records were dropped."""
    found = repair_directory(disk, "/data", SeededEntropy(), Agreeing())
    return any(action.kind == DROPPED for action in found.actions)


def repaired(disk: CrashDisk, code: int = 1) -> None:
    """The same, with the exit code that is expected."""
    assert repair(disk) == bool(code)


def scribble(disk: CrashDisk, path: str, start: int, length: int) -> None:
    """Damage that no single bit explains."""
    for at in range(start, start + length):
        disk.damage(path, at, 0x5A)


def findings(disk: CrashDisk) -> list[Finding]:
    """What `duramen log verify` says."""
    return list(verify_directory(disk, "/data", lambda size: None, decode=True).all_findings())


class Interrupted(NamedTuple):
    """A repair that a power cut ended in its call of that number; the last one came to its end.

    damaged: the files before it. dropped: what it had to take out, and lost these offsets.
    """

    call: int
    disk: CrashDisk
    records: dict[int, bytes]
    damaged: dict[str, bytes]
    dropped: list[RepairAction]
    lost: set[int]


def interrupted(harm: Harm) -> Iterator[Interrupted]:
    """The repair of that harm, from the beginning each time: the power goes in its first call, in its second, ..."""
    harmed = CrashDisk(torn=True)
    records, segments = filled(harmed)
    harm(harmed, segments)
    call, died = 0, True
    while died:
        call += 1
        disk = harmed.copy(Random(call))
        found = survey_directory(disk, "/data")
        dropped = [action for action in found.actions if action.kind == DROPPED]
        lost = {offset for action in dropped for offset in range(action.first_offset, action.last_offset + 1)}
        disk.cut_at = disk.calls + call
        try:
            apply_repair(disk, found)
            died = False
        except NodeDied:
            disk.power_on()
        disk.cut_at = None
        yield Interrupted(call, disk, records, harmed.contents(), dropped, lost)


def cut_short(disk: CrashDisk, step: Callable[[CrashDisk], object]) -> Iterator[CrashDisk]:
    """Copies of the disk on which a power cut ended the step: in each call that changes something; and in none."""
    probe = disk.copy(Random(0))
    probe.record, before = [], probe.calls
    step(probe)
    for call in [*(call for call in probe.record if call.operation in CHANGES), None]:
        copy = disk.copy(Random(0 if call is None else call.number))
        if call is not None:
            copy.cut_at = copy.calls + call.number - before
        try:
            step(copy)
        except NodeDied:
            copy.power_on()
        copy.cut_at = None
        copy.end_process()
        yield copy
