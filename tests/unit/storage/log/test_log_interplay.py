"""Where parts of the storage meet: jobs that end after the log has moved on, failures in the middle of waking up."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.unit.storage.compaction.test_cleaner import NOW
from tests.unit.storage.compaction.test_cleaner import Bench as Compaction
from tests.unit.storage.recovery.test_startup_bounded import (
    FIRST,
    LOG0,
    checkpoint,
    commit,
    filled,
    more,
    read_all,
    start,
)
from tests.worlds.log_bench import TOPIC_ID, TP, Bench, cold, offset_for_timestamp

from duramen.errors import CorruptLogError
from duramen.machines.contract import LogRecord
from duramen.model import TopicPartition
from duramen.partition.host.replay import Replay
from duramen.ports import Disk
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.sim.world.inode import Inode
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.create import NewLog
from duramen.storage.log.durability import complete_sync, take_sync
from duramen.storage.log.log import Log
from duramen.storage.log.open import open_log
from duramen.storage.log.producer_retention import ProducerSnapshotJob
from duramen.storage.log.truncation import truncate_log
from duramen.storage.read.read_plan import LogRead, Pending
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from duramen.storage.segment.scan import scan
from duramen.storage.segment.segment import INDEX, PRODUCERS, SNAPSHOT, TIME_INDEX, file_name
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
    job = take_sync(bench.log)
    assert job is not None
    bench.fill(40)
    bench.log.roll()
    job.run()
    complete_sync(bench.log, job)
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


def producing(disk: CrashDisk) -> tuple[LogDirectory, Log]:
    """A log of several segments, whose first one has the only batch of a producer; it is to be deleted."""
    directory = start(disk)
    log = directory.create_log(TopicPartition("first", 0), FIRST, PlainLogConfig(segment_bytes=1000))
    log.assign_epoch(0)
    for number in range(6):
        identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if number == 0 else {}
        batch = build_batch([(None, b"v" * 600, (), NOW)], base_offset=number, leader_epoch=0, **identity)
        log.append(bytes(batch), parse_header(batch), NOW)
        commit(directory)
    return directory, log


def kept(directory: LogDirectory, log: Log) -> list[ProducerSnapshotJob]:
    """The jobs of a look at retention that write down what is known of producers."""
    directory.take_maintenance(NOW)
    log.advance_start(4)
    commit(directory)
    return [job for job in directory.take_maintenance(NOW + 400_000) if isinstance(job, ProducerSnapshotJob)]


def test_what_is_kept_of_producers_is_not_written_over_by_a_roll_at_the_same_offset() -> None:
    """The files of a roll are not synced: a power cut would have taken what nothing else says any more."""
    disk = CrashDisk()
    directory, log = producing(disk)
    checkpoint(directory)
    (job,) = kept(directory, log)
    job.run()
    log.roll()
    job.complete()
    for suffix in (PRODUCERS, SNAPSHOT):
        node = disk.names.find(f"{log.path}/{file_name(log.end_offset, suffix)}")
        assert isinstance(node, Inode)
        assert node.clean
    directory.close(clean=False)


def test_what_is_to_be_kept_of_producers_waits_for_a_checkpoint_that_writes_the_same_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duramen.storage.log.durability.SNAPSHOT_BYTES", 0)
    disk = CrashDisk()
    directory, log = producing(disk)
    round_of = directory.take_checkpoint(force=True)
    assert round_of is not None
    assert kept(directory, log) == []
    round_of.run()
    directory.complete_checkpoint(round_of)
    jobs = [job for job in directory.take_maintenance(NOW + 400_000) if isinstance(job, ProducerSnapshotJob)]
    assert len(jobs) == 1
    directory.close(clean=False)


def test_a_producer_snapshot_that_a_roll_has_just_removed_is_none_that_a_checkpoint_fails_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both drop the same older ones, on two threads: the directory was fenced."""
    monkeypatch.setattr("duramen.storage.log.durability.SNAPSHOT_BYTES", 0)
    disk = CrashDisk()
    directory, log = producing(disk)
    remove, removed = disk.remove, []

    def late(path: str) -> None:
        if path.endswith((PRODUCERS, SNAPSHOT)):
            remove(path)  # by the other one
            removed.append(path)
        remove(path)

    for size in (1, 2, 3):
        append = build_batch([(None, b"v" * size, (), NOW)], base_offset=log.end_offset, leader_epoch=0)
        log.append(bytes(append), parse_header(append), NOW)
        commit(directory)
        job = directory.take_checkpoint(force=True)
        assert job is not None
        with monkeypatch.context() as patched:
            patched.setattr(disk, "remove", late)
            job.run()
        directory.complete_checkpoint(job)
    assert removed
    assert directory.journal.failed is None
    directory.close(clean=True)


def test_however_much_is_to_be_known_of_producers_the_next_start_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.storage.files.atomic.MAX_FILE_BYTES", 4096)
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, PlainLogConfig())
    for number in range(100):
        batch = build_batch(
            [(None, b"v", (), NOW)], base_offset=number, producer_id=number, producer_epoch=0, base_sequence=0
        )
        log.append(bytes(batch), parse_header(batch), NOW)
    commit(directory)
    directory.close(clean=True)
    directory = start(disk)
    (log,) = directory.logs.values()
    assert len(log.producers) == 100
    directory.close(clean=False)


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
        found = offset_for_timestamp(log, 1000 + offset, log.end_offset)
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


def gapped(path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A log whose first segment lost its last batches, as Kafka's compaction leaves it, and nothing is in memory."""
    bench = Bench(path, index_interval_bytes=200)
    for count in (20, 5, 5):
        bench.fill(count)
        if count == 20 or bench.log.end_offset == 25:
            bench.log.roll()
    bench.sync(full=True)
    bench.log.close()
    name = bench.log.segments[0].path
    file = bench.disk.open(name, write=True)
    position, _, _ = next(each for each in scan(file, 0, file.size()) if each[1] and each[1].base_offset == 17)
    file.truncate(position)
    file.close()
    for suffix in (INDEX, TIME_INDEX):
        Path(name).with_suffix(suffix).unlink()
    bench.log = open_log(
        bench.disk, bench.path, TP, TOPIC_ID, bench.config, bench.journal,
        clean=True, start_offset=0, recovery_point=30,
    )  # fmt: skip
    monkeypatch.setattr(type(bench.log.active.open_file()), "resident", lambda self, position, length: False)
    return bench


@pytest.mark.parametrize("offset", [17, 18, 19])
def test_a_reader_in_a_gap_before_the_next_segment_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    bench = gapped(tmp_path, monkeypatch)
    found: list[int] = []
    for _ in range(2):
        (part,) = bench.log.read(offset, 1 << 20, 30, at_least_one=True).parts
        assert isinstance(part, Pending)
        found += bench.offsets(bytes(part.run().data))
        part.complete()
    assert found == [20, 21, 22, 23, 24]


def test_a_machine_is_loaded_across_such_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = gapped(tmp_path, monkeypatch)

    class Source:
        """The log as a partition shows it."""

        tp = TP
        log_start_offset = 0
        log_end_offset = high_watermark = 30

        def read(self, offset: int, max_bytes: int, isolation: int, *, at_least_one: bool = True) -> LogRead:
            return bench.log.read(offset, max_bytes, 30, at_least_one=at_least_one)

    applied: list[int] = []

    class Machine:
        """Notes offsets."""

        def apply(self, record: LogRecord, offset: int, timestamp: int, producer: object = None) -> None:
            applied.append(offset)

    replay = Replay(Source(), Machine(), 18)  # type: ignore[arg-type]
    while not replay.step():
        pass
    assert applied == list(range(20, 30))


@pytest.mark.parametrize("timestamp", [NOW + 7, None])
def test_a_lookup_by_time_is_not_misled_by_a_swap(timestamp: int | None) -> None:
    bench = Compaction()
    for part in range(2):
        for number in range(15):
            bench.put((b"k%d" % (number % 3), b"v%d" % number * 20), timestamp=NOW + number + 100 * part)
        bench.roll()
    log = bench.log
    job = log.max_timestamp_lookup(30) if timestamp is None else log.time_lookup(timestamp, 30)
    cleaning = bench.take()
    assert cleaning is not None
    bench.run(cleaning)
    assert cleaning.swaps == 1
    found = job.run()
    assert found is not None
    assert found[:2] == ((29, NOW + 114) if timestamp is None else (7, timestamp))


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_a_topic_made_again_under_a_deleted_ones_name_keeps_its_id(how: str, committed: bool) -> None:
    disk, directory, log = filled(10)
    directory.delete_log(log)
    if committed:
        commit(directory)
    directory.take_creation([NewLog(log.tp, b"\x99" * 16, log.config)]).run()
    getattr(disk, how)()
    disk.power_on()
    directory = start(disk)
    assert (list(directory.logs), directory.offline, directory.recovery.damage) == ([(b"\x99" * 16, 0)], {}, [])


def test_a_cut_is_durable_with_the_next_checkpoint() -> None:
    disk, directory, log = filled(30)
    truncate_log(log, 11)
    commit(directory)
    checkpoint(directory)
    log.roll()
    more(directory, log, 3)
    checkpoint(directory)
    disk.power_cut()
    disk.power_on()
    directory = start(disk)
    assert not directory.offline
    assert sorted(read_all(directory.logs[FIRST, 0])) == list(range(14))


@pytest.mark.parametrize("operation", ["pread", "pread_nowait"])
def test_a_source_that_the_disk_cannot_read_is_damage_and_fences_nothing(operation: str) -> None:
    bench = Compaction()
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.roll()
    source = bench.log.segments[0]
    cleaning = bench.take()
    assert cleaning is not None
    if operation == "pread":
        bench.disk.short_reads = lambda length: -1  # nothing of it is in memory

    def bad_sector(call: DiskCall) -> OSError | None:
        return OSError(errno.EIO, "bad sector") if (call.operation, call.path) == (operation, source.path) else None

    bench.disk.fault = bad_sector
    bench.run(cleaning)
    bench.disk.fault = None
    assert bench.directory.journal.failed is None, "what is written elsewhere is none of its business"
    (found,) = bench.directory.findings.known.values()
    assert (found.path, found.start, found.end) == (source.path, 0, source.size)
    assert "bad sector" in found.what
    assert bench.take() is None, "the log is left alone until a restart"
    assert len(bench.left()) == 2
