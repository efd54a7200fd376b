"""A start reads what is not checkpointed and no more; one damaged partition does not keep the others from serving."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
from tests.worlds.log_bench import offset_for_timestamp
from tests.worlds.storage_workload import FIRST, SECOND, SeededEntropy, append, checkpoint, commit, read_all

from duramen.errors import CorruptLogError, StorageError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, CrashFile
from duramen.storage.checkpoint.kafka_files import read_checkpoint
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.files import parallel
from duramen.storage.files.parallel import THREADS, run_parallel, run_serial
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.log import Log
from duramen.storage.log.truncation import truncate_log
from duramen.wire.batch import build_batch, parse_header
from duramen.wire.seal import BLOCK_BYTES

TP = TopicPartition("first", 0)
OTHER = TopicPartition("second", 0)
LOG0 = "/data/first-0/00000000000000000000.log"
CONFIG = PlainLogConfig(index_interval_bytes=300)
SETTINGS = DirectorySettings(
    journal_max_bytes=8 << 20, journal_part_bytes=1 << 20, journal_first_part_bytes=1 << 20, bypass_bytes=1 << 19,
    default_config=CONFIG,
)  # fmt: skip


def start(disk: CrashDisk) -> LogDirectory:
    return LogDirectory.open(disk, "/data", SETTINGS, now_ms=1_000_000, entropy=SeededEntropy(disk.calls))


class Reads:
    """Bytes that were read from `.log` files."""

    def __init__(self) -> None:
        self.bytes = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    seen = Reads()
    plain = CrashFile.pread

    def counted(self: CrashFile, length: int, offset: int) -> bytes:
        data = plain(self, length, offset)
        if self.path.endswith(".log"):
            seen.bytes += len(data)
        return data

    monkeypatch.setattr(CrashFile, "pread", counted)
    return seen


def filled(count: int = 300, disk: CrashDisk | None = None) -> tuple[CrashDisk, LogDirectory, Log]:
    """A log whose first `count` batches are checkpointed."""
    disk = disk or CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, CONFIG)
    log.assign_epoch(0)
    more(directory, log, count)
    checkpoint(directory)
    return disk, directory, log


def more(directory: LogDirectory, log: Log, count: int, producer: int = -1, at: int = -1) -> None:
    for _ in range(count):
        offset = log.end_offset
        batch = build_batch(
            [(None, b"%d" % offset + bytes(100), [], 1000 + offset if at < 0 else at)],
            base_offset=offset,
            leader_epoch=log.epochs.latest,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=offset if producer >= 0 else -1,
        )
        log.append(memoryview(batch), parse_header(batch), 0)
    directory.flush()
    commit(directory)


def again(disk: CrashDisk, how: str) -> Log:
    if how == "power":
        disk.power_cut()
    else:
        disk.kill()
    disk.power_on()
    return start(disk).logs[FIRST, 0]


def whole(log: Log, count: int) -> None:
    assert log.end_offset == count
    assert sorted(read_all(log)) == list(range(count))
    for offset in (0, 1, count // 2, count - 1):
        found = offset_for_timestamp(log, 1000 + offset, log.end_offset)
        assert found is not None
        assert found[:2] == (offset, 1000 + offset)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_an_unclean_start_reads_what_is_not_checkpointed(reads: Reads, how: str) -> None:
    disk, directory, log = filled(2500)
    more(directory, log, 5)
    assert log.active.size > 6 * BLOCK_BYTES
    reads.bytes = 0
    log = again(disk, how)
    if how == "kill":  # a power cut may take the index, which is not synced
        assert reads.bytes < 3 * BLOCK_BYTES  # whole blocks, for their checksums
    whole(log, 2505)


def test_indexes_after_an_unclean_start_are_those_of_a_whole_read() -> None:
    disk, directory, log = filled()
    more(directory, log, 50)
    log = again(disk, "kill")
    assert log.active.index is not None
    positions = list(log.active.index.positions)
    assert len(positions) > 60
    assert positions == sorted(set(positions))
    # Killed again without a word written: what the start persisted is believed, too.
    log = again(disk, "kill")
    assert log.active.index is not None
    assert list(log.active.index.positions) == positions
    whole(log, 350)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_index_is_made_again(suffix: str, clean: bool) -> None:
    disk, directory, log = filled()
    path = log.active.path_of(suffix)
    if clean:
        directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    disk.damage(path, 9)
    directory = start(disk)
    log = directory.logs[FIRST, 0]
    whole(log, 300)
    more(directory, log, 20)
    whole(log, 320)
    directory.close(clean=True)
    whole(start(disk).logs[FIRST, 0], 320)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("kept", [0.0, 0.5, None])
def test_an_index_that_lost_entries_behind_a_clean_stop_is_made_again(suffix: str, kept: float | None) -> None:
    """A stop does not write index files again that are written, and a power cut may take what was never synced."""
    disk, directory, log = filled(0)
    more(directory, log, 1, at=5000)
    more(directory, log, 299)
    checkpoint(directory)
    directory.close(clean=True)
    path = log.active.path_of(suffix)
    if kept is None:
        disk.remove(path)
    else:
        file = disk.open(path, write=True)
        entry = 8 if suffix == ".index" else 12
        file.truncate(int(file.size() // entry * kept) * entry)
        file.close()
    directory = start(disk)
    log = directory.logs[FIRST, 0]
    assert (log.active.max_timestamp, log.active.max_timestamp_offset) == (5000, 0), "retention goes by that"
    for more_batches in (0, 20):
        more(directory, log, more_batches)
        for at in (1001, 2000, 5000):
            found = offset_for_timestamp(log, at, log.end_offset)
            assert found is not None
            assert found[:2] == (0, 5000)


def test_a_clean_start_reads_nothing_of_a_log_and_its_first_append_brings_the_index(reads: Reads) -> None:
    disk, directory, log = filled()
    directory.close(clean=True)
    reads.bytes = 0
    directory = start(disk)
    log = directory.logs[FIRST, 0]
    assert reads.bytes == 0
    assert log.active.index is None
    whole(log, 300)
    more(directory, log, 1)
    assert log.active.index is not None
    more(directory, log, 50)
    whole(log, 351)
    directory.close(clean=True)
    directory = start(disk)
    log = directory.logs[FIRST, 0]
    assert log.active.index is None
    whole(log, 351)
    truncate_log(log, 100)
    commit(directory)
    more(directory, log, 10)
    whole(log, 110)


@pytest.mark.parametrize("how", ["kill", "power", "clean"])
def test_producers_are_known_after_a_start_without_a_walk(how: str) -> None:
    disk, directory, log = filled(10)
    more(directory, log, 3, producer=7)
    checkpoint(directory)
    more(directory, log, 2, producer=8)
    if how == "clean":
        directory.close(clean=True)
        log = start(disk).logs[FIRST, 0]
    else:
        log = again(disk, how)
    assert sorted(producer.id for producer in log.producers.active()) == [7, 8]
    seven = log.producers.get(7)
    assert seven is not None
    assert seven.last_offset == 12


# ---- damage ------------------------------------------------------------------------------------------------------


def damaged(disk: CrashDisk, directory: LogDirectory, log: Log) -> None:
    """The synced part of the log gets shorter behind its back, while the journal holds more of it."""
    more(directory, log, 4)
    disk.kill()
    disk.power_on()
    file = disk.open(LOG0, write=True)
    file.truncate(5000)
    file.sync()
    file.close()


@pytest.mark.parametrize("then", ["kill", "clean"])
def test_a_damaged_partition_is_offline_alone_and_stays_so(then: str) -> None:
    disk, directory, log = filled()
    other = directory.create_log(OTHER, SECOND, CONFIG)
    more(directory, other, 3)
    damaged(disk, directory, log)
    directory = start(disk)
    for _ in range(3):
        assert list(directory.logs) == [(SECOND, 0)]
        other = directory.logs[SECOND, 0]
        count = other.end_offset
        more(directory, other, 1)
        assert sorted(read_all(other)) == list(range(count + 1))
        offline = directory.offline[FIRST, 0]
        assert isinstance(offline.error, CorruptLogError)
        assert offline.error.path == LOG0
        assert (offline.tp, offline.point.recovery_point) == (TP, 304)
        if then == "clean":
            directory.close(clean=True)
        else:
            disk.kill()
            disk.power_on()
        checkpointed = read_checkpoint(disk, "/data")
        assert checkpointed is not None
        assert checkpointed.logs[FIRST, 0].recovery_point == 304
        directory = start(disk)


def test_what_the_journal_had_of_a_damaged_partition_is_in_its_place() -> None:
    disk, directory, log = filled()
    end = log.active.size
    damaged(disk, directory, log)
    start(disk)
    file = disk.open(LOG0)
    tail = file.pread(1 << 20, end)
    assert parse_header(tail).base_offset == 300
    assert tail.count(b"304") <= 1
    assert b"303" in tail


def test_a_log_that_is_offline_is_not_made_anew_and_can_be_deleted() -> None:
    disk, directory, log = filled()
    damaged(disk, directory, log)
    directory = start(disk)
    with pytest.raises(StorageError):
        directory.create_log(TP, FIRST, CONFIG)
    directory.delete_offline((FIRST, 0))
    commit(directory)
    assert not directory.offline
    disk.kill()
    disk.power_on()
    directory = start(disk)
    assert not directory.offline
    fresh = directory.create_log(TP, SECOND, CONFIG)
    append(fresh, b"anew")
    commit(directory)
    assert read_all(fresh) == {0: b"anew"}


# ---- side by side ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [run_serial, run_parallel])
@pytest.mark.parametrize("count", [0, 1, 15, 100])
def test_results_come_in_the_order_of_the_work(run: object, count: int) -> None:
    assert run([lambda n=n: n * n for n in range(count)]) == [n * n for n in range(count)]  # type: ignore[operator]


def test_work_that_waits_overlaps_and_the_first_error_is_raised() -> None:
    barrier = threading.Barrier(THREADS)
    run_parallel([lambda: time.sleep(0.05), *[lambda: barrier.wait(10)] * (THREADS * 2)])  # type: ignore[list-item]

    def fail(number: int) -> None:
        time.sleep(0.01)
        raise OSError(number, "no")

    with pytest.raises(OSError, match="no") as caught:
        run_parallel([lambda: time.sleep(0.05), *[lambda n=n: fail(n) for n in range(40)]])  # type: ignore[list-item]
    assert caught.value.errno == 0


@pytest.mark.parametrize(("share", "threads"), [(1.0, 1), (0.9, 1), (0.6, 4), (0.1, THREADS)])
def test_as_many_threads_as_the_work_waits(share: float, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """share: how much of its time a piece computes."""
    passed = 0.0
    clock = SimpleNamespace(perf_counter=lambda: passed, thread_time=lambda: passed * share)
    monkeypatch.setattr(parallel, "time", clock)
    ran: set[int] = set()
    arrived = threading.Barrier(threads)

    def piece(number: int) -> None:
        nonlocal passed
        if number < 16:
            passed += 0.0005
        else:
            ran.add(threading.get_ident())
            arrived.wait(10)  # as many as there should be wait for one another

    run_parallel([partial(piece, number) for number in range(16 + 2 * threads)])
    assert len(ran) == threads


def test_any_error_on_another_thread_is_raised() -> None:
    """A MemoryError there ended the thread, and the result that was missing was a KeyError."""

    def piece() -> None:
        time.sleep(0.005)
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError

    with pytest.raises(MemoryError):
        run_parallel([piece] * 40)


def test_nothing_runs_any_more_behind_an_interrupt() -> None:
    began: list[int] = []

    def piece(number: int) -> None:
        if number > 8 and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        began.append(number)
        time.sleep(0.02)

    with pytest.raises(KeyboardInterrupt):
        run_parallel([partial(piece, number) for number in range(500)])
    count = len(began)
    assert count < 500
    time.sleep(0.1)
    assert len(began) == count
