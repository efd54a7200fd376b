"""What is known of producers is read again off the loop, and until then the log takes nothing and claims nothing."""

from __future__ import annotations

import errno

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
from tests.unit.storage.log.test_truncation_and_retention import Expiring, producer_files
from tests.unit.storage.log.test_truncation_beside_jobs import put as put_of
from tests.worlds.stored_batches import stored_batches

from duramen.errors import ErrorCode, KafkaError
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.log import Log
from duramen.storage.log.truncation import truncate_log
from duramen.wire.batch import ABORT, COMMIT, build_batch, build_marker, parse_header


def group(directory: LogDirectory) -> None:
    """Groups, and nothing of what other threads do besides."""
    while (next_group := directory.take_group()) is not None:
        next_group.run()
        directory.journal.complete(next_group)


def cut(config: PlainLogConfig | None = None) -> tuple[CrashDisk, LogDirectory, Log]:
    """Producers 7 and 8 had four batches each; all but the first five are cut off, in the files, too."""
    disk, directory, log = begun(config or PlainLogConfig(segment_bytes=1 << 20))
    put_of(directory, log, 7, 4)
    put_of(directory, log, 8, 4)
    commit(directory)
    truncate_log(log, 5)
    group(directory)
    assert log.pending_truncation is None
    return disk, directory, log


def known(log: Log) -> dict[int, list[int]]:
    """Offsets of the batches that are known of each."""
    return {producer.id: [batch[2] for batch in producer.batches] for producer in log.producers.active()}


def test_until_producers_are_read_again_appends_are_refused_and_reads_go_on() -> None:
    _, directory, log = cut()
    with pytest.raises(KafkaError, match="its producers are read") as refusal:
        put_of(directory, log, 7)
    assert refusal.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal.value.retriable
    for refused in (lambda: truncate_log(log, 2), log.roll):
        with pytest.raises(KafkaError):
            refused()
    assert [header.base_offset for header, _ in stored_batches(log, 0, 5, 1000)] == [0, 1, 2, 3, 4]
    assert known(log) == {}
    (job,) = directory.take_rebuilds()
    assert directory.take_rebuilds() == []
    job.run()
    assert known(log) == {}
    job.complete()
    assert known(log) == {7: [0, 1, 2, 3], 8: [4]}
    put_of(directory, log, 7)
    commit(directory)
    assert log.end_offset == 6


def test_a_rebuild_may_end_before_the_truncation_is_durable() -> None:
    _, directory, log = begun()
    put_of(directory, log, 7, 4)
    commit(directory)
    truncate_log(log, 2)
    run_all(list(directory.take_rebuilds()))
    assert known(log) == {7: [0, 1]}
    with pytest.raises(KafkaError, match="not durable"):
        put_of(directory, log, 7)
    group(directory)
    put_of(directory, log, 7)


@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_a_checkpoint_in_between_does_not_say_that_there_is_nobody(how: str) -> None:
    """A start that believed it would take a producer's retry for the first batch of one that it never met."""
    disk, directory, log = cut()
    checkpoint(directory)
    group(directory)
    assert producer_files(disk, log) == []
    assert known(after(disk, how)) == {7: [0, 1, 2, 3], 8: [4]}


def test_a_clean_stop_reads_them_first() -> None:
    disk, directory, log = cut()
    directory.close(clean=True)
    directory = start(disk)
    assert directory.clean_start
    (log,) = directory.logs.values()
    assert known(log) == {7: [0, 1, 2, 3], 8: [4]}


def test_a_clean_stop_beside_damage_writes_nothing_that_is_not_known() -> None:
    disk, directory, log = cut()
    damage(disk, log)
    directory.close(clean=True)
    assert producer_files(disk, log) == []


def damage(disk: CrashDisk, log: Log) -> None:
    """The first batch has no length any more."""
    disk.open(log.active.path, write=True).pwritev([bytes(12)], 0)


def test_damage_is_told_and_the_log_takes_nothing() -> None:
    disk, directory, log = cut()
    damage(disk, log)
    (job,) = directory.take_rebuilds()
    with pytest.raises(Exception, match="no batch starts here") as error:
        job.run()
    job.fail(error.value)
    assert directory.journal.failed is None
    assert [each.path for each in directory.known_damage()] == [log.active.path]
    with pytest.raises(KafkaError):
        put_of(directory, log, 7)
    assert directory.take_rebuilds() == []


@pytest.mark.parametrize(("code", "is_fenced"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_a_disk_that_cannot_be_read_is_fenced_and_a_process_out_of_files_tries_again(
    code: int, is_fenced: bool
) -> None:
    disk, directory, log = cut()

    def fault(call: DiskCall) -> OSError | None:
        return OSError(code, "no", call.path) if call.path == log.active.path else None

    (job,) = directory.take_rebuilds()
    disk.fault = fault
    with pytest.raises(OSError, match="no") as error:
        job.run()
    disk.fault = None
    job.fail(error.value)
    assert (directory.journal.failed is not None) == is_fenced
    run_all(list(directory.take_rebuilds()))
    assert log.is_whole != is_fenced


def test_what_a_compaction_renamed_meanwhile_is_read_once_more() -> None:
    disk, directory, log = begun()
    put_of(directory, log, 7, 3)
    log.roll()
    put_of(directory, log, 8, 3)
    commit(directory)
    for name in producer_files(disk, log):
        disk.remove(name)
    truncate_log(log, 5)
    group(directory)
    (job,) = directory.take_rebuilds()
    log.segments[0].staged = ".swap"
    job.run()
    job.complete()
    assert not log.is_whole
    log.segments[0].staged = ""
    (job,) = directory.take_rebuilds()
    disk.rename(log.segments[0].path, "/data/away")
    log.segments[0].staged = ".swap"
    with pytest.raises(FileNotFoundError) as error:
        job.run()
    job.fail(error.value)
    assert directory.journal.failed is None
    disk.rename("/data/away", log.segments[0].path[: -len(".swap")])
    log.segments[0].staged = ""
    run_all(list(directory.take_rebuilds()))
    assert log.is_whole
    assert known(log) == {7: [0, 1, 2], 8: [3, 4]}


def test_a_log_that_was_deleted_meanwhile_is_left_alone() -> None:
    _, directory, log = cut()
    (job,) = directory.take_rebuilds()
    job.run()
    directory.delete_log(log)
    job.complete()
    job.fail(FileNotFoundError(errno.ENOENT, "gone"))
    assert known(log) == {}
    assert directory.journal.failed is None


def test_retention_waits() -> None:
    """What it takes has to be known before."""
    config = Expiring(segment_bytes=1 << 20)
    _, directory, log = begun(config)
    put_of(directory, log, 7, 3)
    log.roll()
    put_of(directory, log, 8, 3)
    commit(directory)
    checkpoint(directory)
    truncate_log(log, 5)
    group(directory)
    log.advance_start(3)
    group(directory)
    for turn in range(3):
        run_all(directory.take_maintenance(NOW + 1 + turn))
        group(directory)
    assert len(log.segments) == 2
    run_all(list(directory.take_rebuilds()))
    for turn in range(4):
        run_all(directory.take_maintenance(NOW + 10 + turn))
        commit(directory)
        checkpoint(directory)
    assert len(log.segments) == 1
    assert known(log) == {7: [0, 1, 2], 8: [3, 4]}


def transaction(log: Log, *, ends: int | None) -> None:
    for data in (
        build_batch(
            [(None, b"x", [], NOW)], base_offset=log.end_offset, leader_epoch=0, producer_id=1, producer_epoch=0,
            base_sequence=0, transactional=True,
        ),
        build_batch([(None, b"y", [], NOW)], base_offset=log.end_offset + 1, leader_epoch=0),
        *([] if ends is None else [build_marker(1, 0, ends, 0, 5, base_offset=log.end_offset + 2, leader_epoch=0)]),
    ):  # fmt: skip
        log.append(data, parse_header(memoryview(data)), NOW)


@pytest.mark.parametrize(("ends", "committed"), [(None, 3), (COMMIT, 2), (ABORT, 2), (ABORT, 3)])
def test_no_reader_of_committed_records_sees_more_meanwhile(ends: int | None, committed: int) -> None:
    """The marker goes, its transaction is open again."""
    _, directory, log = begun()
    transaction(log, ends=ends)
    put_of(directory, log, 8)
    commit(directory)
    log.producers.committed(committed)
    truncate_log(log, 2)
    assert log.producers.first_unstable_offset == 0
    assert log.aborted(0, 2) == []
    log.producers.committed(2)
    commit(directory)
    assert log.is_whole
    assert log.producers.first_unstable_offset == 0
