"""Compaction behind a repair: the batch without records that stands for a log's lost end is not in its way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.unit.storage.repair.test_repair_ends import END, HARMS, reached
from tests.worlds.repair_world import Harm, filled, findings, opened
from tests.worlds.storage_workload import SmallSegments, checkpoint, commit, housekeep
from tests.worlds.stored_batches import stored_batches

from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.compaction.compaction_pass import CleanerSettings
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.wire.batch import build_batch, parse_header, records

NOW = 3_000_000


@dataclass(slots=True)
class Compacted(SmallSegments):
    """Cleaned whenever something is closed."""

    cleanup_policy: frozenset[str] = frozenset({"compact"})
    min_cleanable_dirty_ratio: float = 0.0


def compacted(disk: CrashDisk) -> tuple[LogDirectory, Log]:
    directory, log = opened(disk)
    configure_log(log, Compacted(durability="stable", segment_bytes=4096, index_interval_bytes=256))
    return directory, log


def put(directory: LogDirectory, log: Log, key: bytes) -> None:
    """One record in a segment that is closed behind it."""
    rows = [(key, b"v", (), NOW)]
    data = build_batch(rows, base_offset=log.end_offset, leader_epoch=log.epochs.latest)
    log.append(data, parse_header(data), NOW)
    close_segment(directory, log)


def close_segment(directory: LogDirectory, log: Log) -> None:
    commit(directory)
    if log.active.size:
        log.roll()
    checkpoint(directory)
    housekeep(directory)


def clean(directory: LogDirectory) -> None:
    cleaning = directory.cleaner.begin_pass(CleanerSettings(io_bytes=4096), NOW)
    assert cleaning is not None
    while not cleaning.over:
        job = cleaning.next_job(NOW)
        if job is None:
            commit(directory)
        else:
            job()
    assert cleaning.completed
    assert not directory.cleaner.uncleanable


def left(log: Log) -> list[tuple[int, bytes | None]]:
    """Offset and key of every record."""
    return [
        (record.offset, record.key)
        for header, view in stored_batches(log, log.start_offset, log.end_offset, 1 << 20)
        for record in records(view, header, max_bytes=1 << 20)
    ]


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("behind", [False, True], ids=["last", "followed"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_pass_goes_over_the_offsets_that_a_repair_told_lost(harm: Harm, behind: bool, stop: str) -> None:
    """Also where they end what is closed; readers get to the end, and a start and `log verify` find nothing amiss."""
    disk = CrashDisk()
    _, segments = filled(disk)
    harm(disk, segments)
    apply_repair(disk, survey_directory(disk, "/data"))
    (lost,) = read_losses(disk, "/data")
    kept = (lost["first_offset"] - 1, b"k")
    directory, log = compacted(disk)
    if behind:
        put(directory, log, b"x")
    else:
        close_segment(directory, log)
    clean(directory)
    expected = [kept, (END, b"x")] if behind else [kept]
    for key in (b"y", b"z"):
        assert left(log) == expected
        assert reached(log) == log.end_offset
        expected.append((log.end_offset, key))
        put(directory, log, key)
        clean(directory)
    assert left(log) == expected
    if stop == "clean":
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
        directory, log = compacted(disk)
        directory.close(clean=True)
    assert findings(disk) == []
    assert survey_directory(disk, "/data").actions == []
    directory, log = compacted(disk)
    assert left(log) == expected
    assert reached(log) == log.end_offset
    assert directory.recovery.damage == []
    directory.close(clean=False)
