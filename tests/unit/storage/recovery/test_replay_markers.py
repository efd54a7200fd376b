"""Transaction markers that the journal has and a page-cache log lost: they end what is left of their transactions."""

from __future__ import annotations

from contextlib import closing

from tests.worlds.storage_workload import FIRST, commit, one_log, start

from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.log import Log
from duramen.storage.log.markers import journal_marker
from duramen.wire.batch import ABORT, COMMIT, batches, build_batch, build_marker, parse_header

SEGMENT = "/data/first-0/00000000000000000000.log"


def put(log: Log, producer: int = -1) -> None:
    data = build_batch(
        [(b"k", b"v" * 100, [], 1000)],
        base_offset=log.end_offset,
        leader_epoch=log.epochs.latest,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        transactional=producer >= 0,
    )
    log.append(data, parse_header(data), 1000)


def end(log: Log, producer: int, kind: int) -> None:
    where = {"base_offset": log.end_offset, "leader_epoch": log.epochs.latest}
    data = bytes(build_marker(producer, 0, kind, 1, 1000, **where))
    log.append(data, parse_header(data), 1000)
    journal_marker(log, data)


def written() -> tuple[CrashDisk, LogDirectory, Log]:
    """Three transactions of one record each, the last of a later leader epoch; two are over, a record behind each."""
    disk, directory, log = one_log("page-cache")
    put(log, 1)
    put(log, 2)
    commit(directory)
    end(log, 1, COMMIT)
    put(log)
    log.assign_epoch(4)
    put(log, 3)
    end(log, 2, ABORT)
    put(log)
    commit(directory)
    return disk, directory, log


def again(disk: CrashDisk, size: int | None) -> tuple[LogDirectory, Log]:
    """A start behind a crash that left so much of the segment."""
    disk.kill()
    disk.power_on()
    if size is not None:
        with closing(disk.open(SEGMENT, write=True)) as file:
            file.truncate(size)
            file.sync()
    directory = start(disk)
    return directory, directory.logs[FIRST, 0]


def found(disk: CrashDisk) -> list[tuple[int, int, int, bool]]:
    with closing(disk.open(SEGMENT)) as file:
        data = file.pread(file.size(), 0)
    return [(each.base_offset, each.leader_epoch, each.producer_id, each.is_control) for _, each in batches(data)]


def test_lost_markers_follow_what_is_left_in_their_order() -> None:
    disk, _, log = written()
    with closing(disk.open(SEGMENT)) as file:
        data = file.pread(file.size(), 0)
    two = sum(each.size for _, each in batches(data) if each.base_offset < 2)
    directory, log = again(disk, two + 30)
    assert directory.recovery.markers == 2
    assert found(disk) == [(0, 0, 1, False), (1, 0, 2, False), (2, 0, 1, True), (3, 4, 2, True)]
    assert (log.end_offset, log.durable_end, log.producers.open_transactions) == (4, 4, 0)
    assert log.aborted(0, 4) == [(2, 1)]
    assert log.epochs.entries == [(0, 0), (4, 3)]


def test_a_marker_whose_data_are_lost_changes_nothing() -> None:
    disk, _, log = written()
    _, log = again(disk, 0)
    assert found(disk) == [(0, 0, 1, True), (1, 4, 2, True)]
    assert (log.end_offset, log.producers.open_transactions, log.aborted(0, 2)) == (2, 0, [])


def test_what_is_there_is_not_written_again() -> None:
    disk, _, log = written()
    before = found(disk)
    directory, log = again(disk, None)
    assert directory.recovery.markers == 0
    assert found(disk) == before
    assert log.producers.open_transactions == 1
