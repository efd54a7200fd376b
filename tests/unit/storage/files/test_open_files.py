"""How many files the logs of a directory keep open: a bound, but never at the price of a lost write-back error."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest
from tests.worlds.log_bench import offset_for_timestamp
from tests.worlds.storage_workload import SeededEntropy, append, checkpoint, commit, read_all

from duramen.model import TopicPartition
from duramen.ports import Disk, FileSpan
from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.files.open_files import OpenFiles
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.log.config import PlainLogConfig

BOUND = 64
SETTINGS = DirectorySettings(
    journal_max_bytes=8 << 20, journal_part_bytes=1 << 20, journal_first_part_bytes=1 << 20, bypass_bytes=1 << 19,
    open_files=BOUND, default_config=PlainLogConfig(index_interval_bytes=300),
)  # fmt: skip


def start(disk: Disk, path: str) -> LogDirectory:
    return LogDirectory.open(disk, path, SETTINGS, now_ms=1_000_000, entropy=SeededEntropy(7))


def descriptors(path: str) -> int:
    """Files of segments below the path that this process has open."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        count += name.startswith(path) and name.endswith((".log", ".index"))
    return count


def fill(directory: LogDirectory, partitions: int) -> None:
    for number in range(partitions):
        tp = TopicPartition("many", number)
        directory.create_log(tp, (number + 1).to_bytes(16, "big"), SETTINGS.default_config)


@pytest.mark.parametrize(("real", "partitions"), [(True, 100), (False, 500)])
def test_many_partitions_are_written_and_read_with_64_files(real: bool, partitions: int, tmp_path: Path) -> None:
    disk: Disk = RealDisk() if real else CrashDisk()
    path = str(tmp_path / "data") if real else "/data"
    directory = start(disk, path)
    files = directory.hot.files
    fill(directory, partitions)
    commit(directory)
    assert len(files) <= BOUND  # what was only created is synced
    logs = list(directory.logs.values())
    for round_ in range(3):
        for log in logs:
            append(log, b"round %d" % round_)
        commit(directory)
        # All of them are unsynced: none may be closed, and a checkpoint is asked for. What would be too many waits.
        assert len(files) == min(partitions, files.most)
        assert directory.waits_for_files == (partitions > files.most)
        assert directory.crowded
        assert directory.checkpoint_due
        while directory.checkpoint_due:
            job = directory.take_checkpoint()
            assert job is not None
            job.run()
            directory.complete_checkpoint(job)
            commit(directory)
            assert len(files) <= files.most
        assert len(files) <= BOUND
        assert not directory.crowded
        if real:
            gc.collect()
            assert descriptors(path) <= BOUND
    wanted = [b"round 0", b"round 1", b"round 2"]
    for log in logs:
        assert list(read_all(log).values()) == wanted
    assert len(files) <= BOUND
    directory.close(clean=True)
    assert len(files) == 0
    again = start(disk, path)
    assert again.clean_start
    for log in again.logs.values():
        assert list(read_all(log).values()) == wanted
    assert len(again.hot.files) <= BOUND
    again.close(clean=True)


def test_a_span_that_is_being_sent_keeps_its_file(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    directory = start(RealDisk(), path)
    fill(directory, 1)
    log = next(iter(directory.logs.values()))
    append(log, b"r" * 20_000)
    commit(directory)
    checkpoint(directory)
    [part] = log.read(0, 1 << 20, log.end_offset, at_least_one=True).parts
    assert isinstance(part, FileSpan)
    log.active.release_files()
    assert log.active._file is None
    assert len(part.file.pread(part.length, part.position)) == part.length
    del part
    gc.collect()
    assert descriptors(log.path) == 0
    directory.close(clean=True)


def test_a_group_whose_segment_was_closed_stays_queued_until_it_can_be_opened() -> None:
    """A checkpoint synced the large batch, which waits for its entry; what is journaled behind it waits with it."""
    disk = CrashDisk()
    directory = LogDirectory.open(
        disk, "/data", SETTINGS._replace(open_files=1), now_ms=1, entropy=SeededEntropy(7)
    )  # fmt: skip
    fill(directory, 3)
    commit(directory)
    large, beside, first = directory.logs.values()
    append(first, b"first")
    in_flight = directory.take_group()
    assert in_flight is not None
    append(large, bytes(SETTINGS.bypass_bytes + 1))
    append(beside, b"beside")
    assert directory.take_group() is None
    job = directory.take_checkpoint(force=True)
    assert job is not None
    job.run()
    directory.complete_checkpoint(job)
    assert large.active._file is None
    in_flight.run()
    directory.journal.complete(in_flight)
    disk.fault = lambda call: OSError(errno.EMFILE, "no more") if call.operation == "open" else None
    with pytest.raises(NoRoomError):
        directory.take_group()
    disk.fault = None
    append(beside, b"later")
    commit(directory)
    assert [log.durable_end for log in (large, beside, first)] == [1, 2, 1]
    disk.power_cut()
    disk.power_on()
    assert [log.end_offset for log in start(disk, "/data").logs.values()] == [1, 2, 1]


class Held:
    """A holder of one file."""

    def __init__(self, files: OpenFiles, *, unsynced: bool = False) -> None:
        self.files = files
        self.synced = 0
        self.flushed = int(unsynced)
        files.opened(self, ".log")

    def release_files(self) -> None:
        if self.synced >= self.flushed:
            self.files.closed(self, ".log")


def test_the_least_recently_used_goes_first_and_unsynced_ones_stay() -> None:
    files = OpenFiles(8)
    dirty = Held(files, unsynced=True)
    first, *others = [Held(files) for _ in range(8)]
    files.used(first, ".log")
    files.trim()
    assert len(files) == 7
    keys = [key[0]() for key in files._files]
    assert dirty in keys
    assert first in keys
    assert others[0] not in keys
    assert others[1] not in keys


def test_no_bound() -> None:
    files = OpenFiles()
    kept = [Held(files) for _ in range(1000)]
    files.trim()
    assert len(files) == len(kept)
    assert not files.crowded


def test_a_look_up_by_time_opens_few_files_of_a_long_log(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "data")
    directory = start(disk, path)
    log = directory.create_log(TopicPartition("long", 0), bytes(15) + b"\x07", SETTINGS.default_config)
    for number in range(2 * BOUND):
        append(log, b"v")  # at 1000 + its offset
        commit(directory)
        if number % 16 == 15:
            checkpoint(directory)
        log.roll()
    checkpoint(directory)
    for segment in log.segments[:-1]:
        segment.release_files()
    before = descriptors(path)
    jobs = [log.time_lookup(0, log.end_offset) for _ in range(3)]
    assert descriptors(path) <= before + 2
    assert [found.offset for job in jobs if (found := job.run()) is not None] == [0, 0, 0]
    for segment in log.segments[10:40]:
        segment.max_timestamp = 5000  # as a foreign index may have it, whose youngest records are gone
    found = offset_for_timestamp(log, 1000 + 10, log.end_offset)
    assert found is not None
    assert found.offset == 10
    assert offset_for_timestamp(log, 4000, log.end_offset) is None
    directory.close(clean=True)
