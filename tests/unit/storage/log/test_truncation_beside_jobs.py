"""Truncations of an open log while others write beside its segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
from tests.unit.storage.directory.test_log_directory_overlaps import (
    NOW,
    after,
    begun,
    checkpoint,
    commit,
    run_all,
    start,
)
from tests.worlds.stored_batches import stored_batches

from duramen.sim.world.disk import DiskCall
from duramen.storage.directory.checkpointer import CheckpointJob
from duramen.storage.directory.housekeeping import SealSegmentJob
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.durability import complete_sync, take_sync
from duramen.storage.log.log import Log
from duramen.storage.log.producer_retention import ProducerSnapshotJob
from duramen.storage.log.truncation import truncate_log
from duramen.storage.segment.seal import SEALING
from duramen.storage.segment.segment import PRODUCERS, SEAL
from duramen.wire.batch import build_batch, parse_header

SIZES = {7: 300, 8: 700}
"""Of a batch of each producer."""


@dataclass
class Expiring(PlainLogConfig):
    """Only the active segment stays."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_bytes: int = 0
    retention_ms: int = -1


def put(directory: LogDirectory, log: Log, producer: int, count: int = 1) -> None:
    """Batches of one record; a producer numbers by offset."""
    for _ in range(count):
        known = log.producers.get(producer)
        batch = build_batch(
            [(None, bytes(SIZES[producer]), [], NOW)],
            base_offset=log.end_offset, leader_epoch=0,
            producer_id=producer, producer_epoch=0, base_sequence=known.last_sequence + 1 if known else 0,
        )  # fmt: skip
        log.append(batch, parse_header(batch), NOW)
    directory.flush()


def job_that_writes(suffix: str, directory: LogDirectory, log: Log) -> tuple[Callable[[], object], Callable[[], None]]:
    """What it runs, and what accounts for it."""
    if suffix == SEALING:
        sync = take_sync(log)
        assert sync is not None
        return sync.run, partial(complete_sync, log, sync)
    log.roll()
    put(directory, log, 7)
    commit(directory)
    checkpoint(directory)
    kind = SealSegmentJob if suffix == SEAL else ProducerSnapshotJob
    jobs = directory.take_maintenance(NOW + 1)
    (job,) = (job for job in jobs if isinstance(job, kind))
    run_all([other for other in jobs if other is not job])
    return job.run, job.complete


def go_on(directory: LogDirectory, log: Log, *, rolls: bool) -> CheckpointJob:
    """More batches than were cut off; the checkpoint has run and is not accounted for."""
    put(directory, log, 8, 5)
    if rolls:
        log.roll()
        put(directory, log, 8)
    commit(directory)
    job = directory.take_checkpoint(force=True)
    assert job is not None
    job.run()
    return job


@pytest.mark.parametrize("suffix", [SEALING, SEAL, PRODUCERS])
def test_a_truncation_waits_for_whoever_writes_beside_the_log(suffix: str) -> None:
    """The files were cut while a sync or a seal was under way, which wrote behind that what it knew from before, and
    was undone when it was accounted for. A checkpoint that came between made it durable, or went on from its sums.
    """
    config = Expiring if suffix == PRODUCERS else PlainLogConfig
    disk, directory, log = begun(config("page-cache", segment_bytes=1 << 20))
    put(directory, log, 7, 3)
    commit(directory)
    run, complete = job_that_writes(suffix, directory, log)

    def cut(call: DiskCall) -> None:
        if call.operation == "rename" and f"{suffix}.tmp" in call.path and not log.truncations:
            truncate_log(log, 1)
            commit(directory)

    disk.fault = cut
    run()
    disk.fault = None
    assert log.truncations == 1
    rolls = suffix == SEAL  # else a start would make it anew
    ahead = go_on(directory, log, rolls=rolls) if log.pending_truncation is None else None
    for path in disk.contents():
        disk.open(path, write=True).sync()  # as the kernel does sooner or later
    complete()
    commit(directory)
    directory.complete_checkpoint(ahead or go_on(directory, log, rolls=rolls))
    commit(directory)
    end = log.end_offset
    log = after(disk, "power_cut")
    assert [header.base_offset for header, _ in stored_batches(log, log.start_offset, end, 1 << 20)][-1] == end - 1
    known = [log.producers.get(producer) for producer in SIZES]
    assert [None if each is None else each.last_offset for each in known] == [0, end - 1]


def test_a_clean_stop_cuts_what_a_job_held_up() -> None:
    """Nobody had accounted for it, and the next start found what had been cut off."""
    disk, directory, log = begun()
    put(directory, log, 7, 3)
    commit(directory)
    run, _ = job_that_writes(SEALING, directory, log)
    run()
    truncate_log(log, 1)
    commit(directory)
    assert log.pending_truncation is not None
    directory.close(clean=True)
    log = after(disk, "kill")
    assert log.end_offset == 1


def test_producers_whose_batches_retention_took_are_known_behind_a_truncation() -> None:
    """A start after a crash has the next stop write the snapshot at the end again, and a truncation did not look there.

    What it read was older: a producer that sent its last batch again would have had it stored twice.
    """
    disk, directory, log = begun(Expiring(segment_bytes=1 << 20))
    put(directory, log, 7, 3)
    log.roll()
    commit(directory)
    checkpoint(directory)
    for _ in range(3):
        run_all(directory.take_maintenance(NOW + 1))
        commit(directory)
    assert log.start_offset == 3
    disk.kill()
    disk.power_on()
    directory = start(disk)
    (log,) = directory.logs.values()
    put(directory, log, 8, 2)
    commit(directory)
    truncate_log(log, 4)
    commit(directory)
    known = log.producers.get(7)
    assert known is not None
    assert known.last_offset == 2
