"""Where parts of the storage meet: jobs that end after the log has moved on, failures in the middle of waking up."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_helpers import Bench, cold
from test_bounded_start import FIRST, LOG0, filled, more, start
from test_cleaner import Bench as Compaction

from duramen.errors import CorruptLogError
from duramen.ports import Disk
from duramen.sim.disk import CrashDisk
from duramen.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from duramen.storage.segment import INDEX, TIME_INDEX
from duramen.wire.batch import build_batch, parse_header

SWAPPED = "/data/compacted-0/00000000000000000000.log.swap"


def flip(disk: CrashDisk, path: str, position: int) -> None:
    file = disk.open(path, write=True)
    file.pwritev([bytes([file.pread(1, position)[0] ^ 1])], position)
    file.sync()
    file.close()


def size_of(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


def test_a_segment_rolled_while_it_is_synced_keeps_its_indexes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, index_interval_bytes=200, segment_bytes=1 << 20)
    bench.fill(20)
    job = bench.log.take_sync()
    assert job is not None
    bench.fill(40)
    bench.log.roll()
    job.run()
    bench.log.complete_sync(job)
    rolled = bench.log.segments[0]
    assert rolled.index_entries > 20
    assert size_of(bench.disk, rolled.path_of(INDEX)) == rolled.index_entries * OFFSET_ENTRY_SIZE
    assert size_of(bench.disk, rolled.path_of(TIME_INDEX)) == rolled.time_entries * TIME_ENTRY_SIZE
    cold(bench)
    assert bench.offsets(bench.read(55, 200)) == [55]


def test_what_a_damaged_index_leaves_behind_its_entries_goes_at_the_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path, index_interval_bytes=1 << 20)
    bench.fill(3)
    bench.sync()
    path = bench.log.active.path_of(INDEX)
    file = bench.disk.open(path, create=True, write=True)
    file.pwritev([bytes(4096)], 0)  # as Kafka preallocates it
    file.close()
    bench.reopen(clean=False)
    assert size_of(bench.disk, path) == 0


def test_a_log_that_cannot_wake_takes_nothing_and_loses_nothing() -> None:
    disk, directory, _ = filled(300)
    directory.close(clean=True)
    size = size_of(disk, LOG0)
    flip(disk, LOG0.replace(".log", ".index"), 13)
    flip(disk, LOG0, size // 2)
    directory = start(disk)
    log = directory.logs[FIRST, 0]
    batch = build_batch([(None, b"x", [], 2000)], base_offset=300, leader_epoch=log.epochs.latest)
    for _ in range(2):
        with pytest.raises(CorruptLogError):
            log.append(memoryview(batch), parse_header(batch), 0)
    assert (log.end_offset, log.active.next_offset, log.active.size, log.active.flushed) == (300, 300, size, size)
    flip(disk, LOG0, size // 2)
    more(directory, log, 2)
    assert log.end_offset == 302
    assert log.active.size == size_of(disk, LOG0) > size
    directory.close(clean=True)
    disk.power_cut()
    disk.power_on()
    log = start(disk).logs[FIRST, 0]
    for offset in range(302):
        found = log.offset_for_timestamp(1000 + offset, log.end_offset)
        assert found is not None
        assert found[:2] == (offset, 1000 + offset)


def half_swapped() -> Compaction:
    """A power cut after compacted segments were staged, and five acknowledged batches that only the journal has."""
    bench = Compaction()
    for _ in range(2):
        for number in range(10):
            bench.put((b"k%d" % (number % 3), b"v%d" % number * 20))
        bench.roll()
    cleaning = bench.take()
    assert cleaning is not None
    while not bench.disk.exists(SWAPPED):
        bench.step(cleaning)
    for number in range(5):
        bench.put((b"new%d" % number, b"x" * 30))
    bench.commit()
    bench.disk.power_cut()
    bench.disk.power_on()
    return bench


@pytest.mark.parametrize("position", [2, 16, 24, 61 + 30])
def test_a_damaged_swap_costs_nothing_else(position: int) -> None:
    bench = half_swapped()
    flip(bench.disk, SWAPPED, position)
    for _ in range(2):
        directory = bench.open()
        assert not directory.logs
        (offline,) = directory.offline.values()
        assert isinstance(offline.error, CorruptLogError)
        directory.close(clean=True)
    active = bench.disk.open("/data/compacted-0/00000000000000000020.log")
    assert b"new4" in active.pread(active.size(), 0)


def test_a_swap_is_finished_without_its_seal() -> None:
    bench = half_swapped()
    flip(bench.disk, SWAPPED.replace(".log.", ".seal."), 30)
    bench.open()
    assert [segment.base_offset for segment in bench.log.segments] == [0, 20]
    assert bench.log.end_offset == 25
