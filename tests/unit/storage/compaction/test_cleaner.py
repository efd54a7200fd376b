"""The rules of compaction, one at a time: what goes, what stays, what may be touched, what happens when it cannot."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from tests.worlds.log_bench import max_timestamp_offset, offset_for_timestamp

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.model import METADATA_TOPIC, TopicPartition
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.checkpoint.kafka_files import decode_offsets
from duramen.storage.compaction.compaction_pass import CleanerSettings, CompactionPass
from duramen.storage.compaction.eligibility import groups
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.storage.segment.segment import Segment
from duramen.wire.batch import (
    ABORT,
    COMMIT,
    DELETE_HORIZON,
    BatchHeader,
    batches,
    build_batch,
    build_marker,
    parse_header,
    records,
)
from duramen.wire.compression import NAMES
from duramen.wire.records.control import writer_record

NOW = 1_000_000_000
HOUR = 3_600_000
TP = TopicPartition("compacted", 0)
TOPIC_ID = bytes(15) + b"\x55"
Pair = tuple[bytes | None, bytes | None]


@dataclass
class Compacted(PlainLogConfig):
    """A compacted topic in small segments that are rolled by the tests."""

    cleanup_policy: frozenset[str] = frozenset({"compact"})
    min_cleanable_dirty_ratio: float = 0.0
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = HOUR
    file_delete_delay_ms: int = 0


class Entropy:
    """Counts."""

    def random_bytes(self, length: int) -> bytes:
        return bytes(length)

    def uniform(self, low: float, high: float) -> float:
        return low


class Bench:
    """One compacted log in a directory, and its cleaner, step by step."""

    def __init__(self, tp: TopicPartition = TP, **settings: Any) -> None:
        self.disk = CrashDisk(Random(1))
        self.now = NOW
        self.settings = CleanerSettings(**{"io_bytes": 4096, **settings})
        self.config = Compacted(segment_bytes=4000, index_interval_bytes=100)
        self.directory = self.open()
        self.directory.create_log(tp, TOPIC_ID, self.config)
        self.checkpoint()

    def open(self) -> LogDirectory:
        self.directory = LogDirectory.open(
            self.disk, "/data", DirectorySettings(retention_check_interval_ms=1), now_ms=self.now, entropy=Entropy()
        )
        for log in self.directory.logs.values():
            configure_log(log, self.config)
        return self.directory

    @property
    def log(self) -> Log:
        (log,) = self.directory.logs.values()
        return log

    def put(self, *pairs: Pair, timestamp: int | None = None, **more: Any) -> int:
        """One batch; returns its base offset."""
        at = self.now if timestamp is None else timestamp
        new = [(key, value, (), at) for key, value in pairs]
        return self.append(build_batch(new, base_offset=self.log.end_offset, leader_epoch=0, **more))

    def append(self, batch: bytearray) -> int:
        base = self.log.end_offset
        batch[0:8] = base.to_bytes(8, "big")
        self.log.append(batch, parse_header(batch), self.now)
        return base

    def commit(self) -> None:
        while (group := self.directory.take_group()) is not None:
            group.run()
            self.directory.journal.complete(group)
        self.log.producers.committed(self.log.durable_end)

    def checkpoint(self) -> None:
        self.commit()
        force = True
        while (job := self.directory.take_checkpoint(force)) is not None:
            job.run()
            self.directory.complete_checkpoint(job)
            force = False
            if job.files is not None:
                break
        self.commit()

    def roll(self) -> None:
        """What was put so far becomes a sealed segment below a durable checkpoint."""
        self.log.roll()
        self.checkpoint()
        self.housekeep()

    def housekeep(self) -> None:
        for job in self.directory.take_maintenance(self.now):
            job.run()
            job.complete()

    def take(self) -> CompactionPass | None:
        return self.directory.cleaner.begin_pass(self.settings, self.now)

    def begin(self, steps: int, *more: Pair) -> CompactionPass:
        """A pass over three segments, each with another value of one key (and with `more`), so many steps later."""
        for number in range(3):
            self.put((b"a", b"%d" % number), *more)
            self.roll()
        cleaning = self.take()
        assert cleaning is not None
        for _ in range(steps):
            self.step(cleaning)
        return cleaning

    def run(self, cleaning: CompactionPass) -> None:
        while not cleaning.over:
            self.step(cleaning)

    def step(self, cleaning: CompactionPass) -> None:
        job = cleaning.next_job(self.now)
        if job is None:
            self.commit()
            return
        try:
            job()
        except (OSError, DuramenError) as error:
            cleaning.fail(error)

    def clean(self) -> None:
        """One whole pass, which must be due."""
        cleaning = self.take()
        assert cleaning is not None
        self.run(cleaning)
        assert cleaning.completed

    def headers(self) -> list[BatchHeader]:
        return [header for header, _ in self.stored()]

    def stored(self) -> list[tuple[BatchHeader, memoryview]]:
        self.log.flush()
        found = []
        for segment in self.log.segments:
            data = memoryview(segment.open_file().pread(segment.size, 0))
            found += [(header, data[at : at + header.size]) for at, header in batches(data)]
        return found

    def left(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """(offset, key, value) of every data record in the files."""
        return [
            (record.offset, record.key, record.value)
            for header, view in self.stored()
            if not header.is_control
            for record in records(view, header, max_bytes=1 << 20)
        ]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- what goes and what stays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
def test_the_last_record_of_every_key_stays_at_its_offset(bench: Bench, codec: int) -> None:
    bench.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), compression=codec)
    bench.put((b"c", b"1"), (b"b", b"2"), compression=codec)
    bench.roll()
    bench.put((b"c", b"2"))
    bench.clean()
    assert bench.left() == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2"), (5, b"c", b"2")], "active: not looked at"
    assert [(header.base_offset, header.last_offset) for header in bench.headers()] == [(0, 2), (3, 4), (5, 5)]
    assert {header.compression for header in bench.headers()[:2]} == {codec}


def test_a_tombstone_goes_a_second_after_its_time_has_come(bench: Bench) -> None:
    """Copies that take no longer need not be noted."""
    bench.put((b"a", b"1"))
    bench.put((b"a", None), (b"b", b"1"))
    bench.roll()
    bench.clean()
    assert bench.left() == [(1, b"a", None), (2, b"b", b"1")]
    (header,) = [header for header in bench.headers() if header.attributes & DELETE_HORIZON]
    assert header.base_timestamp == NOW + HOUR
    for wait, still_there in ((HOUR + 999, True), (1, False)):
        bench.now += wait
        bench.put((b"x", b"%d" % wait))
        bench.roll()
        bench.clean()
        assert ((1, b"a", None) in bench.left()) is still_there


def test_a_record_without_a_key_is_superseded_by_nothing(bench: Bench) -> None:
    bench.put((None, b"1"), (b"a", b"1"))
    bench.put((None, b"2"), (b"a", b"2"))
    bench.roll()
    bench.clean()
    assert bench.left() == [(0, None, b"1"), (2, None, b"2"), (3, b"a", b"2")]


def test_an_unchanged_log_is_not_written_again(bench: Bench) -> None:
    bench.put((b"a", b"1"))
    bench.roll()
    bench.clean()
    before = bench.log.segments[0]
    bench.put((b"b", b"1"), (b"b", b"2"))
    bench.config.segment_bytes = 100
    bench.roll()
    bench.clean()
    assert bench.log.segments[0] is before
    assert bench.take() is None, "nothing is dirty"


def test_rolled_back_records_go_at_once_and_their_marker_later(bench: Bench) -> None:
    more: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    bench.put((b"a", b"committed before"))
    bench.put((b"a", b"rolled back"), base_sequence=0, **more)
    bench.append(build_marker(9, 0, ABORT, 0, bench.now))
    for sequence in range(1, 6):
        bench.put((b"later-%d" % sequence, b"1"), base_sequence=sequence, **more)
    bench.append(build_marker(9, 0, COMMIT, 0, bench.now))
    bench.roll()
    assert bench.log.aborted(0, bench.log.end_offset) == [(9, 1)]
    bench.clean()
    assert (0, b"a", b"committed before") in bench.left()
    assert all(key != b"a" or offset == 0 for offset, key, _ in bench.left())
    markers = [header.base_offset for header in bench.headers() if header.is_control]
    assert markers == [2, 8]
    assert bench.log.aborted(0, 9) == [(9, 1)], "a reader between the two may still need it"
    for wait in (0, HOUR + 1000):
        bench.now += wait
        bench.put((b"x", b"%d" % wait))
        bench.roll()
        bench.clean()
    assert [header.base_offset for header in bench.headers() if header.is_control] == [8]
    assert bench.log.aborted(0, bench.log.end_offset) == []


def test_of_a_coordinators_transactions_only_the_last_marker_stays(bench: Bench) -> None:
    """Offsets are committed without sequences: the epoch is known by markers, and one of them is enough."""
    more: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0, "base_sequence": -1, "transactional": True}
    for turn in range(5):
        bench.put((b"offset", b"%d" % turn), **more)
        bench.append(build_marker(9, 0, COMMIT, 7, bench.now))
    bench.put((b"offset", b"plain"))
    for wait in (0, HOUR + 1000, HOUR + 1000):
        bench.now += wait
        bench.put((b"x", b"%d" % wait))
        bench.roll()
        bench.clean()
    assert [header.base_offset for header in bench.headers() if header.is_control] == [9]
    assert [(each.id, each.epoch, each.coordinator_epoch) for each in bench.log.producers.active()] == [(9, 0, 7)]


def test_what_opened_the_log_for_a_writer_stays(bench: Bench) -> None:
    bench.append(writer_record(50, "w", bench.now))
    for wait in (0, HOUR + 1000, HOUR + 1000):
        bench.now += wait
        bench.put((b"x", b"%d" % wait))
        bench.roll()
        bench.clean()
    assert [header.base_offset for header in bench.headers() if header.is_control] == [0]
    assert bench.left()[-1][2] == b"%d" % (HOUR + 1000)


def test_nothing_behind_an_open_transaction_is_touched(bench: Bench) -> None:
    bench.put((b"a", b"1"))
    bench.roll()
    bench.put((b"a", b"2"), producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    bench.roll()
    bench.put((b"a", b"3"))
    bench.roll()
    bench.clean()
    assert len(bench.left()) == 3
    assert bench.directory.cleaner.first_dirty(bench.log) == 1
    bench.append(build_marker(9, 0, COMMIT, 0, bench.now))
    bench.commit()
    bench.clean()
    assert bench.left() == [(2, b"a", b"3")]


def test_a_producer_is_known_by_its_last_five_batches(bench: Bench) -> None:
    for sequence in range(7):
        bench.put((b"a", b"%d" % sequence), producer_id=4, producer_epoch=0, base_sequence=sequence)
    bench.put((b"a", b"end"))
    bench.roll()
    bench.clean()
    kept = [(header.base_offset, header.count) for header in bench.headers()]
    assert kept == [(2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 1)]
    for segment in bench.log.segments:
        segment.close()
    bench.disk.kill()
    bench.disk.power_on()
    names = [name for name in bench.disk.list_directory(bench.log.path) if name.endswith((".producers", ".snapshot"))]
    for name in names:
        bench.disk.remove(f"{bench.log.path}/{name}")
    bench.open()
    for sequence in range(2, 7):
        again = build_batch([(b"a", b"", (), 1)], producer_id=4, producer_epoch=0, base_sequence=sequence)
        duplicate = bench.log.producers.check(parse_header(again))
        assert duplicate is not None
        assert duplicate.base_offset == sequence


def test_a_map_that_is_full_needs_several_passes() -> None:
    bench = Bench(dedupe_bytes=8 * 24)
    for number in range(40):
        bench.put((b"key-%d" % (number % 20), b"%d" % number))
    bench.put(*[(b"wide-%d" % number, b"1") for number in range(30)])
    bench.put((b"key-0", b"last"))
    bench.roll()
    passes = 0
    while (cleaning := bench.take()) is not None:
        bench.run(cleaning)
        assert cleaning.completed
        passes += 1
    assert passes > 5
    left = {key: value for _, key, value in bench.left()}
    assert len(bench.left()) == len(left) == 50
    assert left[b"key-0"] == b"last"
    assert left[b"key-19"] == b"39"


# ---- what may be touched -----------------------------------------------------------------------------------------


def test_the_dirty_ratio_decides(bench: Bench) -> None:
    bench.config.min_cleanable_dirty_ratio = 0.5
    bench.put((b"a", b"x" * 900))
    bench.roll()
    bench.clean()
    bench.put((b"a", b"x" * 100))
    bench.roll()
    assert bench.take() is None
    assert 0.1 < bench.directory.cleaner.statistics.max_dirty_ratio < 0.5
    bench.put((b"a", b"x" * 1800))
    bench.roll()
    bench.clean()


def test_young_records_are_left_alone(bench: Bench) -> None:
    bench.config.min_compaction_lag_ms = HOUR
    bench.put((b"a", b"1"), timestamp=NOW - HOUR)
    bench.put((b"a", b"2"), timestamp=NOW - HOUR)
    bench.roll()
    bench.put((b"a", b"3"), timestamp=NOW - HOUR + 1)
    bench.roll()
    bench.clean()
    assert bench.left() == [(1, b"a", b"2"), (2, b"a", b"3")]
    assert bench.take() is None
    bench.now += 1
    bench.clean()
    assert bench.left() == [(2, b"a", b"3")]


def test_old_records_are_cleaned_whatever_the_ratio(bench: Bench) -> None:
    bench.config.min_cleanable_dirty_ratio = 1.0
    bench.config.max_compaction_lag_ms = HOUR
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.roll()
    assert bench.take() is None
    bench.now += HOUR + 1
    bench.clean()
    assert bench.left() == [(1, b"a", b"2")]


def test_a_segment_is_rolled_before_its_records_are_overdue(bench: Bench) -> None:
    bench.config.max_compaction_lag_ms = HOUR
    configure_log(bench.log, bench.config)
    bench.put((b"a", b"1"))
    bench.now += HOUR + 1
    bench.put((b"a", b"2"))
    assert len(bench.log.segments) == 2


def test_what_a_lease_covers_waits(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.roll()
    lease = bench.log.lease(0, NOW + HOUR)
    assert bench.take() is None
    lease.release()
    cleaning = bench.take()
    assert cleaning is not None
    lease = bench.log.lease(1, NOW + HOUR)  # taken while the pass is under way
    bench.run(cleaning)
    assert not cleaning.completed
    assert len(bench.left()) == 2
    lease.release()
    bench.clean()
    assert bench.left() == [(1, b"a", b"2")]


def test_what_recovery_may_still_write_waits_for_a_checkpoint(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.log.roll()
    bench.commit()
    assert bench.take() is None
    bench.checkpoint()
    assert bench.take() is None, "not sealed"
    bench.housekeep()
    bench.clean()


def test_nothing_above_the_high_watermark_is_touched(bench: Bench) -> None:
    bench.directory.high_watermark = lambda log: 1
    bench.put((b"a", b"1"))
    bench.roll()
    bench.put((b"a", b"2"))
    bench.roll()
    bench.clean()
    assert bench.directory.cleaner.first_dirty(bench.log) == 1
    assert len(bench.left()) == 2


def test_the_metadata_log_is_never_compacted() -> None:
    bench = Bench(TopicPartition(METADATA_TOPIC, 0))
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.roll()
    assert bench.take() is None


def test_neighbours_become_one_segment(bench: Bench) -> None:
    for number in range(6):
        bench.put((b"a%d" % number, b"x" * 900), (b"gone", b"%d" % number))
        bench.roll()
    bench.clean()
    assert [segment.base_offset for segment in bench.log.segments] == [0, 8, 12]
    assert len(bench.left()) == 7
    names = bench.disk.list_directory(bench.log.path)
    assert [name for name in names if name.endswith(".log")] == [
        f"{base:020d}.log" for base in (0, 8, 12)
    ]  # fmt: skip
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert all(segment.sealed for segment in bench.log.segments[:-1])


def test_groups_stay_within_the_reach_of_an_index_entry() -> None:
    found = []
    for base, end in ((0, 10), (10, 2**31 - 1), (2**31 - 1, 2**31 + 5)):
        segment = Segment(CrashDisk(), "/", base)
        segment.next_offset = end
        segment.size = 10
        segment.index_entries = 3
        found.append(segment)
    assert [len(group) for group in groups(found, 1000, 1000)] == [2, 1]
    assert [len(group) for group in groups(found, 15, 1000)] == [1, 1, 1]
    assert [len(group) for group in groups(found, 1000, 24)] == [1, 1, 1]


# ---- when it cannot go on ----------------------------------------------------------------------------------------


def test_a_damaged_log_is_left_alone_and_named(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.roll()
    bench.disk.damage(bench.log.segments[0].path, 3)  # in the base offset, which no CRC covers
    told: list[str] = []
    bench.directory.cleaner.on_uncleanable = lambda log, error: told.append(f"{log.tp} {error}")
    cleaning = bench.take()
    assert cleaning is not None
    job = cleaning.next_job(bench.now)
    assert job is not None
    with pytest.raises(Exception, match="differ from the seal") as raised:
        job()
    cleaning.fail(raised.value)
    assert cleaning.over
    assert len(told) == 1
    assert list(bench.directory.cleaner.uncleanable) == [(TOPIC_ID, 0)]
    assert bench.directory.findings.count == 1
    assert bench.directory.journal.failed is None
    assert bench.take() is None


def test_a_full_disk_ends_the_pass_and_the_next_one_tries_again(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.roll()
    cleaning = bench.take()
    assert cleaning is not None

    def full(call: DiskCall) -> OSError | None:
        return OSError(errno.ENOSPC, "full") if call.operation == "pwritev" and "cleaned" in call.path else None

    bench.disk.fault = full
    bench.run(cleaning)
    bench.disk.fault = None
    assert not cleaning.completed
    assert bench.directory.journal.failed is None
    assert not any("cleaned" in name for name in bench.disk.list_directory(bench.log.path)), "the disk is full"
    bench.clean()
    assert bench.left() == [(1, b"a", b"2")]


def test_a_disk_that_fails_is_fenced(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.roll()
    cleaning = bench.take()
    assert cleaning is not None
    bench.disk.fault = lambda call: OSError(errno.EIO, "broken") if "cleaned" in call.path else None
    bench.run(cleaning)
    assert bench.directory.journal.failed is not None
    assert len(bench.left()) == 2


@pytest.mark.parametrize("steps", range(12))
def test_a_log_that_is_deleted_meanwhile_needs_no_goodbye(bench: Bench, steps: int) -> None:
    cleaning = bench.begin(steps)
    bench.directory.delete_log(bench.log)
    while (group := bench.directory.take_group()) is not None:
        group.run()
        bench.directory.journal.complete(group)
    bench.housekeep()
    while not cleaning.over:
        job = cleaning.next_job(bench.now)
        if job is not None:
            job()
    bench.housekeep()
    assert bench.directory.journal.failed is None
    assert not [name for name in bench.disk.list_directory("/data") if "compacted" in name]


@pytest.mark.parametrize("steps", range(14))
def test_a_clean_stop_leaves_no_swap_half_done(bench: Bench, steps: int) -> None:
    bench.begin(steps)
    bench.directory.close(clean=True)
    bench.open()
    assert bench.directory.clean_start
    assert [value for _, _, value in bench.left()][-1] == b"2"
    assert len(bench.left()) in (1, 3)
    names = bench.disk.list_directory(bench.log.path)
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    known = decode_offsets(bench.disk.contents()["/data/cleaner-offset-checkpoint"])
    assert known is not None
    assert known.get(TP, 0) in (0, 3)


def test_what_was_cleaned_is_known_after_a_restart(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.roll()
    bench.clean()
    bench.directory.close(clean=True)
    bench.open()
    assert bench.directory.cleaner.first_dirty(bench.log) == 2
    assert bench.take() is None


@pytest.mark.parametrize("claimed", [1, 2, 3])
def test_a_wrong_checkpoint_brings_nothing_back(bench: Bench, claimed: int) -> None:
    """A file keyed by names may speak of another topic: a tombstone that no map has seen must not be dropped."""
    bench.put((b"a", b"1"))
    bench.put((b"a", None))
    bench.put((b"b", b"1"))
    bench.roll()
    bench.directory.cleaner.cleaned[TOPIC_ID, 0] = claimed
    for _ in range(4):
        bench.now += 2 * HOUR
        bench.put((b"b", b"%d" % bench.now))
        bench.roll()
        bench.clean()
        folded: dict[bytes | None, bytes | None] = {}
        for _, key, value in bench.left():
            folded[key] = value
        assert folded.get(b"a") is None


def test_readers_keep_what_they_have_opened(bench: Bench) -> None:
    bench.put((b"a", b"1"), (b"a", b"2"))
    bench.put((b"a", b"3"))
    bench.roll()
    old = bench.log.segments[0]
    file, size = old.open_file(), old.size
    before = file.pread(size, 0)
    bench.clean()
    assert file.pread(size, 0) == before
    answer = bench.log.read(0, 1000, bench.log.end_offset, at_least_one=True)
    assert answer.next_offset == 3
    with pytest.raises(KafkaError) as raised:
        bench.log.read(4, 1000, 4, at_least_one=True)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_lookups_by_time_know_nothing_of_records_that_are_gone(bench: Bench) -> None:
    bench.put((b"a", b"1"), timestamp=NOW + 500, producer_id=4, producer_epoch=0, base_sequence=0)
    bench.put((b"b", b"1"), timestamp=NOW + 100)
    bench.put((b"a", b"2"), timestamp=NOW + 200)
    bench.roll()
    bench.clean()
    end = bench.log.end_offset
    assert [header.count for header in bench.headers()] == [0, 1, 1]
    youngest = max_timestamp_offset(bench.log, end)
    assert youngest is not None
    assert (youngest.offset, youngest.timestamp) == (2, NOW + 200)
    found = offset_for_timestamp(bench.log, NOW + 150, end)
    assert found is not None
    assert found.offset == 2
    assert offset_for_timestamp(bench.log, NOW + 300, end) is None
    bench.directory.close(clean=True)
    bench.open()
    assert max_timestamp_offset(bench.log, end) == youngest
