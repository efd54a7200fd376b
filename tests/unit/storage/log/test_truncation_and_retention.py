"""Truncations of logs of which retention, or a sync, has something under way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.unit.storage.directory.test_log_directory_overlaps import (
    NOW,
    after,
    begun,
    checkpoint,
    commit,
    put,
    run_all,
    sync,
)
from tests.unit.storage.log.test_truncation_beside_jobs import put as put_of

from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.log import Log
from duramen.storage.log.truncation import truncate_log
from duramen.wire.batch import ABORT, build_batch, build_marker, parse_header


@dataclass
class Expiring(PlainLogConfig):
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_bytes: int = -1
    retention_ms: int = -1
    file_delete_delay_ms: int = 0


@dataclass
class Keeping(Expiring):
    retention_bytes: int = 0


def producer_files(disk: CrashDisk, log: Log) -> list[str]:
    """Ours, not Kafka's."""
    return [f"{log.path}/{name}" for name in disk.list_directory(log.path) if name.endswith(".producers")]


def keep_house(directory: LogDirectory) -> None:
    for turn in range(4):
        run_all(directory.take_maintenance(NOW + 2 + turn))
        commit(directory)


def test_producers_kept_for_retention_are_known_behind_a_truncation_that_took_their_snapshot() -> None:
    """Retention waited for the log to be durable up to the snapshot, which was cut off: the records that came there
    since made it so, and the segments went of which nothing else was kept.
    """
    disk, directory, log = begun(Expiring(segment_bytes=1 << 20))
    put_of(directory, log, 7, 3)
    log.roll()
    put_of(directory, log, 8, 7)
    commit(directory)
    log.advance_start(3)
    commit(directory)
    run_all(directory.take_maintenance(NOW + 1))
    truncate_log(log, 6)
    commit(directory)
    put_of(directory, log, 8, 8)
    commit(directory)
    checkpoint(directory)
    commit(directory)
    keep_house(directory)
    log.roll()
    put_of(directory, log, 8)
    commit(directory)
    checkpoint(directory)
    commit(directory)
    log = after(disk, "power_cut")
    assert log.producers.get(7) is not None


@pytest.mark.parametrize("how", ["power_cut", "kill"])
def test_producers_that_came_and_went_with_their_records_since_a_checkpoint_are_known(how: str) -> None:
    """That checkpoint knew of none, so a start looked for them in the batches alone."""
    disk, directory, log = begun(Expiring(segment_bytes=1 << 20))
    checkpoint(directory)
    commit(directory)
    large = build_batch([(None, bytes(40_000), [], NOW)], producer_id=7, producer_epoch=0, base_sequence=0)
    log.append(large, parse_header(large), NOW)  # not in the journal, which would bring it back
    commit(directory)
    log.roll()
    put_of(directory, log, 8)
    commit(directory)
    sync(log)
    log.advance_start(1)
    commit(directory)
    keep_house(directory)
    assert log.segments[0].base_offset == 1
    log = after(disk, how)
    assert log.start_offset == 1
    assert log.producers.get(7) is not None


def test_retention_behind_a_truncation_journals_the_log_start() -> None:
    """It took the log start of before for one that was journaled: behind a crash the log missed its first segment."""
    disk, directory, log = begun(Keeping(segment_bytes=1 << 20))
    for _ in range(2):
        for _ in range(3):
            put(directory, log)
        log.roll()
    for _ in range(4):
        put(directory, log)
    commit(directory)
    checkpoint(directory)
    commit(directory)
    run_all(directory.take_maintenance(NOW + 1))
    commit(directory)
    truncate_log(log, 4)
    commit(directory)
    for rolls in (True, False):
        put(directory, log)
        put(directory, log)
        if rolls:
            log.roll()
    commit(directory)
    checkpoint(directory)
    commit(directory)
    keep_house(directory)
    assert log.start_offset >= log.segments[0].base_offset
    after(disk, "kill")


def test_an_aborted_transaction_in_front_of_a_truncation_outlives_a_power_cut_behind_a_clean_stop() -> None:
    """The truncation forgot that its index was not synced, and so did the stop."""
    disk, directory, log = begun(PlainLogConfig(segment_bytes=1 << 20))
    rolled_back = build_batch(
        [(None, b"x", [], NOW)], base_offset=0, leader_epoch=0, producer_id=1, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    for data in (rolled_back, build_marker(1, 0, ABORT, 0, 5, base_offset=1, leader_epoch=0)):
        log.append(data, parse_header(memoryview(data)), NOW)
    put_of(directory, log, 8, 4)
    commit(directory)
    truncate_log(log, 4)
    commit(directory)
    put_of(directory, log, 8, 2)
    directory.close(clean=True)
    log = after(disk, "power_cut")
    assert log.aborted(0, 6) == [(1, 0)]


@pytest.mark.parametrize("damage", [True, False])
def test_a_producer_whose_records_and_whose_file_of_ours_are_gone_is_known_by_kafkas(damage: bool) -> None:
    """The batches that are left know nothing of it; they know more of those that wrote them than that file does."""
    disk, directory, log = begun(Expiring(segment_bytes=1 << 20))
    put_of(directory, log, 7)
    log.roll()
    put_of(directory, log, 8, 3)
    commit(directory)
    checkpoint(directory)
    log.advance_start(1)
    commit(directory)
    keep_house(directory)
    checkpoint(directory)
    assert log.segments[0].base_offset == 1
    known = [producer.batches for producer in log.producers.active()]
    assert [len(batches) for batches in known] == [1, 3]
    disk.kill()
    disk.power_on()
    ours = producer_files(disk, log)
    assert ours
    for name in ours:
        if damage:
            disk.open(name, write=True).pwritev([bytes(8)], 0)
        else:
            disk.remove(name)
    log = after(disk, "kill")
    assert [producer.batches for producer in log.producers.active()] == known


def test_behind_a_cut_all_batches_that_are_left_are_known_where_our_file_is_gone() -> None:
    disk, directory, log = begun(Expiring(segment_bytes=1 << 20))
    put_of(directory, log, 7, 3)
    log.roll()
    put_of(directory, log, 7, 5)
    commit(directory)
    for name in producer_files(disk, log):
        disk.remove(name)
    truncate_log(log, 4)
    commit(directory)
    producer = log.producers.get(7)
    assert producer is not None
    assert [batch[2] for batch in producer.batches] == [0, 1, 2, 3]


def test_so_is_one_whose_records_ended_where_those_that_are_left_begin() -> None:
    disk, directory, log = begun(Expiring(segment_bytes=1 << 20))
    put_of(directory, log, 7)
    log.roll()
    commit(directory)
    checkpoint(directory)
    log.advance_start(1)
    commit(directory)
    keep_house(directory)
    checkpoint(directory)
    assert [segment.base_offset for segment in log.segments] == [1]
    disk.kill()
    disk.power_on()
    for name in producer_files(disk, log):
        disk.remove(name)
    log = after(disk, "kill")
    assert log.producers.get(7) is not None


@pytest.mark.parametrize("lost", [False, True])
def test_a_cut_that_took_the_log_start_with_it_is_known_without_our_checkpoint(lost: bool) -> None:
    """Kafka's file of log starts is as old as the last checkpoint: by it, what came behind the cut was hidden.

    Found by `make crash-lives SEED=7132760`.
    """
    disk, directory, log = begun(Expiring(segment_bytes=1 << 20))
    put(directory, log)
    batch = build_batch([(None, b"%d" % number, [], NOW) for number in range(5)], base_offset=1)
    log.append(batch, parse_header(batch), NOW)
    commit(directory)
    log.advance_start(4)
    commit(directory)
    checkpoint(directory)
    commit(directory)
    truncate_log(log, 4)  # the batch that has it goes as a whole
    commit(directory)
    assert log.end_offset == log.start_offset == 1
    put(directory, log)
    put(directory, log)
    commit(directory)
    if lost:
        disk.remove("/data/duramen-checkpoint")
        disk.sync_directory("/data")
    log = after(disk, "kill")
    assert (log.start_offset, log.end_offset) == (1, 3)
