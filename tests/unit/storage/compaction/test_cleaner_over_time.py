"""Compaction over restarts, days and topics of the same name, and what a pass leaves behind that ends early."""

from __future__ import annotations

import errno
from random import Random

import pytest
from tests.unit.storage.compaction.test_cleaner import HOUR, NOW, TOPIC_ID, TP, Bench, Compacted
from tests.worlds.broker_world import claiming
from tests.worlds.log_bench import offset_for_timestamp

from duramen.errors import CorruptLogError, ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.sim.world.disk import DiskCall
from duramen.storage.checkpoint.kafka_files import decode_offsets
from duramen.storage.compaction import segment_rewrite as cleaning
from duramen.storage.directory.housekeeping import SealSegmentJob
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.storage.log.retention import removable_before
from duramen.storage.read.read_plan import Pending
from duramen.wire.batch import ABORT, DELETE_HORIZON, build_batch, build_marker, parse_header
from duramen.wire.batch_filter import delete_horizon


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("clean", [True, False])
def test_a_new_topic_of_the_same_name_does_not_inherit_what_was_cleaned(bench: Bench, clean: bool) -> None:
    bench.put((b"a", b"1"), (b"a", b"2"), (b"a", b"3"))
    bench.roll()
    bench.clean()
    bench.directory.delete_log(bench.log)
    bench.directory.create_log(TP, bytes(15) + b"\x56", bench.config)
    for value in (b"1", b"2", b"3", b"4"):
        bench.put((b"a", value))
    bench.roll()
    if clean:
        bench.directory.close(clean=True)
    else:
        bench.commit()
        assert decode_offsets(bench.disk.contents()["/data/cleaner-offset-checkpoint"]) == {TP: 3}, "as Kafka has it"
        bench.disk.kill()
        bench.disk.power_on()
    bench.open()
    assert bench.directory.cleaner.first_dirty(bench.log) == 0
    bench.put((b"b", b"1"))
    bench.roll()
    bench.clean()
    assert bench.left() == [(3, b"a", b"4"), (4, b"b", b"1")]


def test_short_copies_do_not_write_what_passes_share_twice(bench: Bench) -> None:
    """The file has a line for each compacted log: each log's first swap was noted in it, too."""
    for value in (b"1", b"2", b"3"):
        bench.put((b"a", value))
        bench.roll()
    cleaning = bench.take()
    assert cleaning is not None
    bench.disk.record = []
    steady_ms = 0
    while not cleaning.over:
        steady_ms += 1
        job = cleaning.next_job(bench.now, steady_ms)
        bench.commit() if job is None else job()
    renames = [call.path for call in bench.disk.record if call.operation == "rename"]
    assert any(path.endswith(".log.swap") for path in renames)
    assert [path.endswith("/duramen-cleaned") for path in renames].count(True) == 1


def test_compaction_and_retention_share_a_log_over_days(bench: Bench) -> None:
    """`compact,delete`: the last of each key above the log start stays, and the log start never moves too early."""
    config = Compacted(segment_bytes=4000, index_interval_bytes=100)
    config.cleanup_policy = frozenset({"compact", "delete"})  # type: ignore[misc]
    config.retention_ms = 10 * HOUR  # type: ignore[attr-defined]
    bench.config = config
    configure_log(bench.log, config)
    random = Random(7)
    written: list[tuple[int, int, bytes, bytes]] = []
    starts = []
    for hour in range(60):
        for _ in range(6):
            key, value = b"k%d" % random.randrange(90), random.randbytes(300)
            offset = bench.put((key, value))
            written.append((bench.now, offset, key, value))
        bench.roll()
        cleaning = bench.take()
        if cleaning is not None:
            bench.run(cleaning)
        bench.housekeep()
        bench.commit()
        bench.housekeep()
        if hour % 10 == 7:
            bench.directory.close(clean=hour % 20 == 7)
            if hour % 20 != 7:
                bench.disk.kill()
                bench.disk.power_on()
            bench.open()
        start = bench.log.start_offset
        starts.append(start)
        left = {offset: (key, value) for offset, key, value in bench.left() if offset >= start}
        last = {key: (offset, value) for _, offset, key, value in written}
        for key, (offset, value) in last.items():
            if offset >= start:
                assert left[offset] == (key, value), "the last of its key stays"
        kept = [each for each in written if each[1] in left]
        assert len(kept) == len(left)
        too_young = [each for each in written if each[1] < start and each[0] >= bench.now - 10 * HOUR]
        assert not too_young, "retention is never early"
        bench.now += HOUR
    assert starts == sorted(starts)
    assert starts[-1] > 200, "retention has deleted"
    assert bench.directory.cleaner.statistics.passes > 0
    assert min(offset for offset, _, _ in bench.left()) >= 200


@pytest.mark.parametrize(("ratio", "lag_ms", "asks"), [(0.5, 0, True), (1.0, 0, False), (0.5, HOUR, False)])
def test_a_checkpoint_that_a_pass_waits_for_is_asked_for(bench: Bench, ratio: float, lag_ms: int, asks: bool) -> None:
    """It came with the timer, after a minute: Kafka compacts what has just been closed."""
    bench.config.min_cleanable_dirty_ratio = ratio
    bench.config.min_compaction_lag_ms = lag_ms
    assert bench.take() is None
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    assert bench.take() is None
    assert not bench.directory.checkpoint_due, "nothing is closed"
    bench.log.roll()
    bench.commit()
    assert bench.take() is None, "recovery may still write there"
    assert bench.directory.checkpoint_due == asks
    bench.checkpoint()
    bench.housekeep()
    assert not bench.directory.checkpoint_due
    assert (bench.take() is not None) == asks
    assert not bench.directory.checkpoint_due


@pytest.mark.parametrize("how", ["retention", "journal", "damage", "stop"])
@pytest.mark.parametrize("steps", range(3, 12, 2))
def test_a_pass_that_does_not_come_to_its_end_leaves_no_copy_behind(bench: Bench, how: str, steps: int) -> None:
    cleaning = bench.begin(steps, (b"a", b"again"))
    if how == "stop":
        bench.directory.close(clean=True)
    elif how == "retention":
        bench.log.advance_start(bench.log.end_offset)
        for _ in range(3):
            bench.commit()
            bench.now += 1
            bench.housekeep()
    elif how == "journal":
        cleaning.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the journal is full"))
    else:
        cleaning.fail(CorruptLogError(bench.log.path, 0, 0, "damaged"))
    while not cleaning.over:
        bench.step(cleaning)
    assert not any("cleaned" in name for name in bench.disk.list_directory(bench.log.path))


def test_a_walk_for_transactions_forgets_no_producer_whose_batches_are_gone(bench: Bench) -> None:
    """Behind a kill a marker that no checkpoint covers has the log walked from its first batch; snapshots know more."""
    bench.put((b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    bench.roll()
    bench.put((b"b", b"1"))
    bench.log.advance_start(1)
    for _ in range(3):
        bench.checkpoint()
        bench.now += 1
        bench.housekeep()
    assert bench.log.segments[0].base_offset == 1
    first = bench.put((b"c", b"1"), producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    bench.append(build_marker(8, 0, ABORT, 0, bench.now))
    bench.commit()
    bench.disk.kill()
    bench.disk.power_on()
    bench.open()
    known = bench.log.producers.get(7)
    assert known is not None, "its retry would be stored again"
    assert known.last_sequence == 0
    assert bench.log.aborted(0, bench.log.end_offset) == [(8, first)]


@pytest.mark.parametrize("steps", range(0, 16, 3))
def test_a_topic_that_is_compacted_no_more_loses_nothing_more_to_the_pass_under_way(bench: Bench, steps: int) -> None:
    cleaning = bench.begin(steps)
    begun = cleaning.swapping or cleaning.swaps > 0
    bench.config.cleanup_policy = frozenset({"delete"})
    configure_log(bench.log, bench.config)
    bench.run(cleaning)
    assert len(bench.left()) == (1 if begun else 3), "a swap that has begun is finished"
    assert cleaning.swaps == begun


def test_young_records_without_timestamps_are_left_alone_too(bench: Bench) -> None:
    """As in Kafka, they are as young as what was stored last beside them."""
    bench.config.min_compaction_lag_ms = HOUR
    for value in (b"1", b"2"):
        bench.put((b"a", value), timestamp=-1)
    bench.roll()
    bench.now += HOUR - 1
    assert bench.take() is None
    bench.now += 1
    bench.clean()
    assert bench.left() == [(1, b"a", b"2")]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("timestamps", [(-1, -1), (-1, 10 * NOW), (0, 0)])
def test_what_has_no_timestamp_is_cleaned_in_time_too(bench: Bench, timestamps: tuple[int, int], restart: bool) -> None:
    """By when it was stored, and behind a restart by what its file says: it waited for the ratio, as in Kafka."""
    bench.disk.wall_ms = lambda: bench.now
    bench.config.min_cleanable_dirty_ratio = 1.0
    bench.config.max_compaction_lag_ms = HOUR
    for value, timestamp in zip((b"1", b"2"), timestamps, strict=True):
        bench.put((b"a", value), timestamp=timestamp)
    bench.roll()
    bench.now += 1000
    if restart:
        bench.directory.close(clean=True)
        bench.open()
        bench.housekeep()
    if timestamps != (0, 0):
        bench.now += HOUR - 1000
        assert bench.take() is None
    bench.now += 1
    bench.clean()
    assert bench.left() == [(1, b"a", b"2")]


@pytest.mark.parametrize("restart", [False, True])
def test_nor_does_it_wait_for_years_when_the_clock_was_set_back(bench: Bench, restart: bool) -> None:
    bench.disk.wall_ms = lambda: bench.now
    bench.config.min_cleanable_dirty_ratio = 1.0
    bench.config.max_compaction_lag_ms = HOUR
    bench.put((b"a", b"1"), (b"a", b"2"), timestamp=-1)
    bench.roll()
    bench.now -= 100 * HOUR
    if restart:
        bench.directory.close(clean=True)
        bench.open()
        bench.housekeep()
    else:
        for segment in bench.log.segments:
            segment.clock_set(bench.now, -100 * HOUR)
    assert bench.take() is None
    bench.now += HOUR + 1
    bench.clean()
    assert bench.left() == [(1, b"a", b"2")]


def test_records_without_timestamps_expire_also_behind_a_pass(bench: Bench) -> None:
    """What a pass has copied is as old as what it was copied from: it stayed until the next start."""
    bench.config.cleanup_policy = frozenset({"compact", "delete"})
    bench.config.retention_ms = HOUR  # type: ignore[attr-defined]
    for value in (b"1", b"2"):
        bench.put((b"a", value), timestamp=-1)
    bench.roll()
    bench.now += HOUR
    bench.clean()
    assert removable_before(bench.log, bench.now, bench.log.end_offset) == 0
    assert removable_before(bench.log, bench.now + 1, bench.log.end_offset) == 2


@pytest.mark.parametrize("timestamp", [-1, NOW + HOUR])
def test_and_also_where_the_node_was_started_again_since(bench: Bench, timestamp: int) -> None:
    """A start believes what the file says."""
    bench.disk.wall_ms = lambda: bench.now
    for value in (b"1", b"2"):
        bench.put((b"a", value), timestamp=timestamp)
        bench.roll()
    written = bench.now
    bench.now += HOUR
    bench.clean()
    age = bench.disk.modified_ms(bench.log.segments[0].path)
    assert age == (written if timestamp < 0 else bench.now)
    bench.directory.close(clean=False)
    bench.disk.end_process()
    bench.open()
    assert bench.log.segments[0].latest_ms == (written if timestamp < 0 else timestamp)


class Two(Bench):
    """A bench whose directory has another log, too."""

    @property
    def log(self) -> Log:
        return next(log for log in self.directory.logs.values() if log.tp == TP)


def test_two_passes_that_end_together_write_down_what_is_cleaned_one_after_the_other() -> None:
    bench, other = Two(), TopicPartition("other", 0)
    first = bench.log
    bench.directory.create_log(other, bytes(15) + b"\x56", bench.config)
    second = next(log for log in bench.directory.logs.values() if log is not first)
    for log in (first, second):
        for value in (b"1", b"2"):
            batch = build_batch([(b"a", value, (), bench.now)], base_offset=log.end_offset, leader_epoch=0)
            log.append(batch, parse_header(batch), bench.now)
        log.roll()
    bench.checkpoint()
    bench.housekeep()
    one, two = bench.take(), bench.take()
    assert one is not None
    assert two is not None
    noted = None
    while one.swaps == 0 or noted is None:
        noted = one.next_job(bench.now)
        bench.commit()
        if one.swaps == 0 and noted is not None:
            noted()
    for _ in range(100):
        bench.step(two)
    assert (two.swaps, two.over) == (1, False), "it waits for the files, which the other lane is writing"
    noted()
    bench.run(one)
    bench.run(two)
    assert (one.completed, two.completed) == (True, True)
    bench.directory.close(clean=True)
    assert len(bench.open().cleaner.cleaned) == 2


def test_segments_below_the_log_start_hold_up_nothing(bench: Bench) -> None:
    """DeleteRecords came before they were sealed, and retention has not looked at them since."""
    for value in (b"1", b"2", b"3"):
        bench.put((b"a", value))
        bench.log.roll()
    bench.commit()
    bench.log.advance_start(1)
    bench.checkpoint()
    for job in (job for job in bench.directory.take_maintenance(bench.now) if isinstance(job, SealSegmentJob)):
        job.run()
        job.complete()
    assert [segment.sealed for segment in bench.log.segments[:-1]] == [False, True, True]
    bench.clean()
    assert bench.left()[1:] == [(2, b"a", b"3")]


@pytest.mark.parametrize("reason", ["inflates", "cannot be read (the batch at offset 2 holds a broken record)"])
def test_a_batch_that_no_pass_can_look_into_is_named_and_what_lies_before_it_is_cleaned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Too large, or with other records than its header says: the topic was not compacted when it was produced."""
    monkeypatch.setattr("duramen.storage.compaction.segment_rewrite.DECODED_BYTES", 10_000)
    told: list[str] = []
    bench.directory.cleaner.on_uncleanable = lambda log, error: told.append(str(error))
    for value in (b"1", b"2"):
        bench.put((b"a", value))
        bench.roll()
    if reason == "inflates":
        large = bench.put((b"a", bytes(20_000)), compression=1)
    else:
        large = bench.append(claiming(build_batch([(b"a", b"3", (), NOW)] * 2), last_offset_delta=0, count=1))
    bench.roll()
    for value in (b"4", b"5"):
        bench.put((b"a", value))
        bench.roll()
    cleaning = bench.take()
    assert cleaning is not None
    bench.run(cleaning)
    assert [f"the batch at offset {large} {reason}" in each for each in told] == [True]
    bench.clean()
    assert [header.base_offset for header in bench.headers()] == [1, 2, 3, 4]
    assert bench.take() is None
    assert not bench.directory.cleaner.waits
    assert len(bench.directory.cleaner.uncleanable) == 1
    bench.log.advance_start(large + 1)
    for _ in range(3):
        bench.now += 10
        bench.checkpoint()
        bench.housekeep()
    bench.clean()
    assert not bench.directory.cleaner.uncleanable
    assert bench.left() == [(4, b"a", b"5")]


def test_a_topic_made_again_while_a_swap_removes_files_of_the_deleted_one_keeps_its_own(bench: Bench) -> None:
    """The disk took its time for the first of them, and the new log has segments of the same names by then."""
    bench.config.segment_bytes = 100_000  # all becomes one group
    bench.begin(0)
    cleaning = bench.directory.cleaner.running[0]
    old, made = bench.log, []

    def slow(call: DiskCall) -> None:
        if call.operation != "remove" or not call.path.endswith(".index") or made:
            return
        made.append(call.path)
        bench.directory.delete_log(old)
        log = bench.directory.create_log(TP, bytes(15) + b"\x66", bench.config)
        for number in range(3):
            bench.put((b"new", b"%d" % number))
            log.roll()
        bench.commit()

    bench.disk.fault = slow
    bench.run(cleaning)
    bench.disk.fault = None
    assert made
    assert [value for _, _, value in bench.left()] == [b"0", b"1", b"2"]
    names = bench.disk.list_directory(bench.log.path)
    assert sorted(name for name in names if name.endswith(".log")) == [f"{base:020d}.log" for base in range(4)]


def test_a_copy_that_grows_stays_within_what_an_index_reaches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Horizons make tombstones longer: a segment near 2 GiB of them could not be compacted any more."""
    bench.config.segment_bytes = 100_000
    bench.put((b"a", b"before"), *((b"gone-%d" % number, None) for number in range(30)))
    bench.put((b"a", None))
    bench.put(*((b"more-%d" % number, None) for number in range(30)))
    bench.roll()
    most = bench.config.segment_bytes = bench.log.segments[0].size + 20
    monkeypatch.setattr(cleaning, "MAX_BYTES", most, raising=False)
    bench.clean()
    assert bench.log.segments[0].size <= most
    for name in ("x", "y"):
        bench.now += 2 * HOUR
        bench.put((name.encode(), b"1"))
        bench.roll()
        bench.clean()
    left = {key: value for _, key, value in bench.left()}
    assert left[b"a"] is None, "the tombstone stays for as long as what it deletes"
    assert all(segment.size <= most for segment in bench.log.segments)
    monkeypatch.undo()
    bench.put((b"a", b"after"))
    bench.roll()
    bench.clean()
    assert [value for _, key, value in bench.left() if key == b"a"] == [b"after"]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".seal", ".log"])
def test_segments_can_be_read_while_a_swap_lacks_room_for_a_name(bench: Bench, suffix: str) -> None:
    """Those of its files that had got their names already were not found: damage was told that there was not."""
    bench.config.segment_bytes = 100_000
    for number in range(10):
        bench.put((b"a", b"%d" % number), (b"key-%d" % number, b"v" * 50))
        if number % 5 == 4:
            bench.roll()
    cleaning = bench.take()
    assert cleaning is not None
    refused = []

    def full(call: DiskCall) -> OSError | None:
        if call.operation == "rename" and call.path.endswith(f"{suffix}.swap -> {bench.log.path}/{0:020d}{suffix}"):
            refused.append(call)
            return OSError(errno.ENOSPC, "full")
        return None

    bench.disk.fault = full
    while len(refused) < 3:
        bench.step(cleaning)
    (segment, _) = bench.log.segments
    assert segment.staged
    segment.release_files()
    bench.log.reader.dropped(segment)
    assert segment.index_entries > 3
    read = bench.log.read(9, 10_000, bench.log.end_offset, at_least_one=True)
    for part in read.parts:
        if isinstance(part, Pending):
            part.run()
    assert 0 < read.size < segment.size
    assert offset_for_timestamp(bench.log, NOW, bench.log.end_offset) is not None
    assert segment.load_seal() is not None
    assert not bench.log.take_notices()
    bench.housekeep()
    bench.disk.fault = None
    bench.run(cleaning)
    assert cleaning.completed
    assert not segment.staged
    assert sorted(segment.files()) == sorted(map(segment.path_of, (".log", ".index", ".timeindex", ".seal")))
    bench.commit()
    before = bench.left()
    bench.disk.kill()
    bench.disk.power_on()
    bench.open()
    assert bench.left() == before


def test_tombstones_of_a_batch_that_is_larger_than_the_map_go_behind_the_pass_that_came_to_its_end() -> None:
    bench = Bench(dedupe_bytes=240)
    bench.put(*((b"key-%d" % number, b"1") for number in range(40)))
    bench.put(*((b"key-%d" % number, None) for number in range(40)))
    bench.put((b"other", b"1"))
    bench.roll()
    passes = 0
    while (cleaning := bench.take()) is not None:
        assert [value for _, _, value in bench.left()].count(None) == 40, "no time to go has begun"
        bench.run(cleaning)
        bench.now += HOUR + 1
        passes += 1
        assert passes < 30
    horizons = list(filter(None, map(delete_horizon, bench.headers())))
    assert passes > 8
    assert horizons
    assert all(horizon > bench.now - 2 * HOUR for horizon in horizons)
    bench.now += 2 * HOUR
    for number in range(8):
        bench.put((b"other", b"%d" % number))
        bench.roll()
        bench.clean()
    assert [(key, value) for _, key, value in bench.left()] == [(b"other", b"7")]


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_in_the_midst_of_such_a_batch_begins_it_again(clean: bool) -> None:
    bench = Bench(dedupe_bytes=240)
    base = bench.put(*((b"key-%d" % number, None) for number in range(30)))
    bench.roll()
    bench.clean()
    assert bench.directory.cleaner.first_dirty(bench.log) > base
    bench.directory.close(clean=clean)
    bench.disk.end_process()
    bench.open()
    assert bench.directory.cleaner.first_dirty(bench.log) == base
    bench.checkpoint()
    for number in range(12):
        bench.now += HOUR + 1
        bench.put((b"other", b"%d" % number))
        bench.roll()
        while (cleaning := bench.take()) is not None:
            bench.run(cleaning)
    assert [(key, value) for _, key, value in bench.left()] == [(b"other", b"11")]


@pytest.mark.parametrize("claimed", [3, 12, 25])
def test_a_wrong_checkpoint_within_such_a_batch_brings_nothing_back(claimed: int) -> None:
    """No map has had the tombstones before that place, and what they delete is there."""
    bench = Bench(dedupe_bytes=240)
    bench.put(*((b"key-%d" % number, b"1") for number in range(2)))
    bench.put(*((b"key-%d" % number, None) for number in range(30)))
    bench.roll()
    bench.directory.cleaner.cleaned[TOPIC_ID, 0] = claimed
    for number in range(12):
        bench.now += 2 * HOUR
        bench.put((b"other", b"%d" % number))
        bench.roll()
        while (cleaning := bench.take()) is not None:
            bench.run(cleaning)
        folded: dict[bytes | None, bytes | None] = {}
        for _, key, value in bench.left():
            folded[key] = value
        assert folded.get(b"key-0") is None
        assert folded.get(b"key-1") is None


def test_tombstones_that_had_no_room_for_a_horizon_get_one_from_the_next_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.config.segment_bytes = 100_000
    bench.put(*((b"gone-%d" % number, None) for number in range(30)))
    bench.put(*((b"more-%d" % number, b"v" * 100) for number in range(10)))
    bench.put(*((b"more-%d" % number, b"1") for number in range(10)))
    bench.roll()
    most = bench.config.segment_bytes = bench.log.segments[0].size + 2
    monkeypatch.setattr(cleaning, "MAX_BYTES", most, raising=False)
    bench.clean()
    assert not any(header.attributes & DELETE_HORIZON for header in bench.headers())
    bench.clean()
    assert any(header.attributes & DELETE_HORIZON for header in bench.headers())
    assert bench.take() is None
    bench.now += 2 * HOUR
    bench.put((b"x", b"1"))
    bench.roll()
    bench.clean()
    assert [key for _, key, value in bench.left() if value is None] == []
