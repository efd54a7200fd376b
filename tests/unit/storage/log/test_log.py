"""One partition's log: what is appended is read, in every way of reading, across rolls, cuts and reopening."""

from __future__ import annotations

import gc
import os
import tracemalloc
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.worlds.log_bench import (
    TOPIC_ID,
    TP,
    Bench,
    NoteJournal,
    cold,
    max_timestamp_offset,
    offset_for_timestamp,
    rebuild_producers,
    without_nowait,
)

from duramen.errors import ErrorCode, FencedDirectoryError, KafkaError
from duramen.model import topic_id_text
from duramen.ports import FileSpan
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.journal.format import EntryKind
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.create import create_log
from duramen.storage.log.durability import complete_sync, configure_log, take_sync
from duramen.storage.log.log import Log
from duramen.storage.log.open import open_log
from duramen.storage.log.open_segment import SegmentLoader, Walk
from duramen.storage.log.truncation import complete_truncation, truncate_log
from duramen.storage.read.read_plan import Pending
from duramen.storage.read.verified_window import VerifiedWindow
from duramen.storage.segment.scan import NO_LIMIT
from duramen.storage.segment.segment import Segment
from duramen.wire.batch import build_batch, parse_header


def test_a_new_directory_is_kafkas(bench: Bench) -> None:
    names = sorted(os.listdir(bench.path))
    assert names == ["00000000000000000000.log", "leader-epoch-checkpoint", "partition.metadata"]
    text = Path(bench.path, "partition.metadata").read_text()
    assert text == f"version: 0\ntopic_id: {topic_id_text(TOPIC_ID)}\n"


def test_appends_are_journaled_with_their_place(bench: Bench) -> None:
    assert bench.append(b"a", b"b", epoch=4) == 1
    assert bench.append(b"c", epoch=4) == 2
    first, second = bench.journal.entries
    assert first[:5] == (EntryKind.BATCH, 0, 4, 0, 0)
    assert second[:5] == (EntryKind.BATCH, 2, 4, 0, len(first[5]))
    assert isinstance(first[5], bytes)
    assert bench.log.dirty
    assert bench.log.flush_queue == [bench.log]
    bench.log.flush()
    assert not bench.log.dirty
    assert Path(bench.path, "00000000000000000000.log").read_bytes() == first[5] + second[5]
    assert bench.log.epochs.entries == [(4, 0)]


def test_large_batches_are_not_copied(bench: Bench) -> None:
    data = build_batch([(None, bytes(20_000), [], 0)])
    bench.append_raw(data)
    assert bench.journal.entries[0][5].obj is data


def test_a_refused_append_changes_nothing(bench: Bench) -> None:
    bench.append(b"a")
    bench.journal.refuse = FencedDirectoryError("gone")
    with pytest.raises(FencedDirectoryError):
        bench.append(b"b")
    assert (bench.log.end_offset, bench.log.active.size) == (1, len(bench.journal.entries[0][5]))


def test_segments_roll_by_size(bench: Bench) -> None:
    bench.fill(120)
    assert len(bench.log.segments) > 3
    assert all(segment.size <= 5000 for segment in bench.log.segments)
    rolls = [entry for entry in bench.journal.entries if entry[0] == EntryKind.ROLL]
    assert [entry[1] for entry in rolls] == [segment.base_offset for segment in bench.log.segments[1:]]
    assert bench.whole(0, 700) == list(range(120))


def test_segments_roll_by_record_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_ms=100)
    for timestamp in (1000, 1100, 1101, 900, 1202):
        bench.append(b"v", timestamp=timestamp)
    assert [segment.base_offset for segment in bench.log.segments] == [0, 2, 4]
    bench.close()


def test_segments_roll_when_an_index_is_full(tmp_path: Path) -> None:
    bench = Bench(tmp_path, index_interval_bytes=0, segment_index_bytes=60)
    bench.fill(12)
    assert [segment.base_offset for segment in bench.log.segments] == [0, 5, 10]
    bench.close()


def test_segments_roll_before_relative_offsets_overflow(bench: Bench) -> None:
    bench.append(b"a")
    bench.log.end_offset = 2**31 - 1
    bench.append(b"b")
    bench.append(b"c")
    assert [segment.base_offset for segment in bench.log.segments] == [0, 2**31]


@pytest.mark.parametrize("way", ["hot", "memory", "pool", "sealed", "reopened"])
@pytest.mark.parametrize("step", [1, 150, 400, 1000, 6000, 1 << 20])
def test_every_way_of_reading_gives_every_batch_once(bench: Bench, way: str, step: int) -> None:
    bench.fill(100)
    if way in ("sealed", "reopened"):
        bench.sync()
        assert bench.seal() == len(bench.log.segments) - 1
    if way == "reopened":
        bench.reopen()
    if way != "hot":
        cold(bench)
    if way == "pool":
        without_nowait(bench)
    assert bench.whole(0, step) == list(range(100))
    assert bench.whole(37, step, 61) == list(range(37, 61))


def test_hot_bytes_leave_as_spans_and_cold_ones_do_not(bench: Bench) -> None:
    bench.fill(10)
    assert all(isinstance(part, FileSpan) for part in bench.log.read(3, 500, 10, at_least_one=True).parts)
    cold(bench)
    without_nowait(bench)
    found = bench.log.read(3, 500, 10, at_least_one=True)
    assert isinstance(found.parts[0], Pending)
    assert found.next_offset == 10
    assert 0 < len(found.parts[0].run().data) <= found.size


def test_a_segment_that_rests_is_read_directly_and_one_that_is_written_is_not(bench: Bench) -> None:
    bench.fill(10)
    cold(bench)
    without_nowait(bench)

    def settled() -> bool:
        part = bench.log.read(3, 500, 10, at_least_one=True).parts[0]
        assert isinstance(part, Pending)
        return part.plan.settled

    assert not settled(), "its writer would wait for readers"
    bench.sync()
    cold(bench)
    assert settled(), "the active segment, too"
    bench.fill(1)
    bench.log.flush()
    cold(bench)
    assert not settled()
    bench.sync()
    bench.truncate(10)
    cold(bench)
    assert not settled(), "the cut is not on the disk"


def test_the_batch_that_contains_the_offset_comes_whole(bench: Bench) -> None:
    bench.append(b"a", b"b", b"c")
    bench.append(b"d", b"e")
    assert bench.offsets(bench.read(1)) == [0, 3]
    assert bench.offsets(bench.read(4)) == [3]
    cold(bench)
    assert bench.offsets(bench.read(4)) == [3]
    assert bench.offsets(bench.read(2)) == [0, 3]


@pytest.mark.parametrize("warm", [True, False])
def test_limits(bench: Bench, warm: bool) -> None:
    bench.fill(10)
    if not warm:
        bench.log.flush()
        cold(bench)
    size = len(bench.read(0, 1))
    assert bench.read(0, size - 1, at_least_one=False) == b""
    assert bench.offsets(bench.read(0, size - 1)) == [0]
    assert bench.offsets(bench.read(0, 2 * size)) == [0, 1]
    assert bench.offsets(bench.read(0, 3 * size - 1)) == [0, 1]
    assert bench.offsets(bench.read(2, end=4)) == [2, 3]
    assert bench.read(4, end=4) == b""
    assert bench.read(10) == b""
    assert bench.read(0, 0, at_least_one=False) == b""
    for offset in (-1, 11):
        with pytest.raises(KafkaError) as caught:
            bench.read(offset)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_against_a_list(tmp_path: Path, data: st.DataObject) -> None:
    """Random appends, reads, cuts and restarts, compared with a plain list of batches."""
    path = tmp_path / str(len(os.listdir(tmp_path)))
    path.mkdir()
    bench = Bench(path, segment_bytes=data.draw(st.sampled_from([400, 1500, 100_000])), index_interval_bytes=200)
    model: list[tuple[int, int]] = []  # (base offset, next offset) of each batch
    step = st.sampled_from(["append", "append", "append", "read", "cut", "clean", "unclean", "seal", "cold", "time"])
    for _ in range(data.draw(st.integers(5, 40))):
        what = data.draw(step)
        end = bench.log.end_offset
        if what == "append":
            count = data.draw(st.integers(1, 4))
            bench.append_batch(
                [(None, b"x" * data.draw(st.integers(0, 300)), [], 1000 + end + i) for i in range(count)]
            )
            model.append((end, end + count))
        elif what == "read" and model:
            offset = data.draw(st.integers(0, end))
            size = data.draw(st.sampled_from([1, 300, 2000, 1 << 20]))
            bound = data.draw(st.sampled_from([base for base, _ in model] + [end]))
            got = bench.offsets(bench.read(offset, size, bound))
            expected = [base for base, upper in model if upper > offset and base < bound]
            assert got == expected[: len(got)]
            assert bool(got) == bool(expected)
        elif what == "cut" and model:
            offset = data.draw(st.integers(0, end))
            bench.truncate(offset)
            model = [(base, upper) for base, upper in model if upper <= offset]
            assert bench.log.end_offset == (model[-1][1] if model else 0)
        elif what in ("clean", "unclean"):
            bench.reopen(clean=what == "clean")
            assert bench.log.end_offset == end
        elif what == "seal":
            bench.sync()
            bench.seal()
        elif what == "cold":
            bench.log.flush()
            cold(bench)
        elif what == "time" and model:
            wanted = data.draw(st.integers(990, 1000 + end + 5))
            found = offset_for_timestamp(bench.log, wanted, end)
            assert (found.offset if found else None) == (max(0, wanted - 1000) if wanted - 1000 < end else None)
            best = max_timestamp_offset(bench.log, end)
            assert best is not None
            assert best.offset == end - 1
    assert bench.whole(0, 900) == [base for base, _ in model]
    bench.close()


def test_page_cache_logs_journal_a_mark_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path, durability="page-cache", segment_bytes=600)
    assert bench.append(b"a") == 1
    assert bench.append(b"b") == 0
    assert bench.journal.entries == [(EntryKind.DURABILITY, 0, 0, 0, 0, None)]
    bench.append(b"x" * 500)
    assert bench.journal.kinds() == [EntryKind.DURABILITY, EntryKind.DURABILITY, EntryKind.ROLL, EntryKind.DURABILITY]
    assert bench.log.durable_end == 0
    bench.sync()
    assert (bench.log.durable_end, bench.log.recovery_point) == (3, 3)
    bench.config.durability = "stable"
    configure_log(bench.log, bench.config)
    assert bench.journal.entries[-1][0] == EntryKind.DURABILITY
    assert bench.journal.entries[-1][5] == b"stable"
    assert bench.append(b"c") > 0
    assert bench.journal.kinds()[-1] == EntryKind.BATCH
    bench.close()


def test_only_the_journal_makes_a_stable_log_durable(bench: Bench) -> None:
    bench.append(b"a", b"b")
    bench.sync()
    assert (bench.log.durable_end, bench.log.recovery_point) == (0, 2)
    bench.log.mark_durable(9)
    assert bench.log.durable_end == 2
    bench.log.mark_durable(1)
    assert bench.log.durable_end == 2
    assert take_sync(bench.log) is None


def test_a_sync_that_a_cut_overtook_counts_for_nothing(bench: Bench) -> None:
    bench.fill(10)
    job = take_sync(bench.log)
    assert job is not None
    assert (job.end_offset, job.segment_base, job.position) == (10, 0, bench.log.active.size)
    job.run()
    truncate_log(bench.log, 5)
    complete_sync(bench.log, job)
    assert bench.log.recovery_point == 0
    complete_truncation(bench.log)


def test_a_sync_that_a_cut_overtook_leaves_nothing_of_the_old_history(bench: Bench) -> None:
    for number in range(10):
        bench.append(b"old" * 40, producer_id=7, producer_epoch=0, base_sequence=number)
    job = take_sync(bench.log, full=True)
    assert job is not None
    truncate_log(bench.log, 5)
    job.run()
    complete_sync(bench.log, job)
    complete_truncation(bench.log)
    rebuild_producers(bench.log)
    for _ in range(8):
        bench.append(b"new" * 40, producer_id=8, producer_epoch=0, base_sequence=bench.log.end_offset - 5)
    assert bench.log.snapshots.offsets == ()
    assert not [name for name in os.listdir(bench.path) if name.endswith((".snapshot", ".producers"))]
    bench.sync()
    index = bench.log.active.index
    assert index is not None
    assert Path(bench.log.active.path_of(".index")).read_bytes() == index.encode()
    bench.reopen(clean=False)
    assert {producer.id: producer.last_offset for producer in bench.log.producers.active()} == {7: 4, 8: 12}


def test_epochs_are_journaled_and_survive(bench: Bench) -> None:
    bench.log.assign_epoch(2)
    bench.append(b"a", epoch=2)
    bench.log.assign_epoch(2)
    bench.log.assign_epoch(5)
    assert bench.journal.kinds() == [EntryKind.EPOCH, EntryKind.BATCH, EntryKind.EPOCH]
    bench.reopen()
    assert bench.log.epochs.entries == [(2, 0), (5, 1)]
    os.remove(os.path.join(bench.path, "leader-epoch-checkpoint"))
    bench.reopen(clean=False)
    assert bench.log.epochs.entries == [(2, 0)]


def test_the_log_start_moves_up_only(bench: Bench) -> None:
    bench.fill(100)
    bench.log.advance_start(60)
    bench.log.advance_start(10)
    assert bench.journal.entries[-1][:2] == (EntryKind.LOG_START, 60)
    with pytest.raises(KafkaError):
        bench.read(59)
    assert bench.offsets(bench.read(60, 1)) == [60]
    with pytest.raises(KafkaError):
        bench.log.advance_start(101)
    assert not bench.log.detach_before(60), "it is not synced"
    bench.sync()
    gone = bench.log.detach_before(60)
    assert gone
    assert all(segment.next_offset <= 60 for segment in gone)
    assert bench.log.segments[0].base_offset <= 60 < bench.log.segments[0].next_offset
    for segment in gone:
        for path in segment.files():
            os.remove(path)
        segment.close()
    assert bench.offsets(bench.read(60, 1)) == [60]
    active = bench.log.active
    assert active not in bench.log.detach_before(10**9)
    assert bench.log.segments == [active]
    bench.reopen(start_offset=60)
    assert bench.log.start_offset >= 60


def test_leases_name_the_lowest_offset_until_they_end(bench: Bench) -> None:
    assert bench.log.leased_from(0) is None
    first = bench.log.lease(30, expires_ms=100)
    second = bench.log.lease(10, expires_ms=50)
    assert bench.log.leased_from(49) == 10
    assert bench.log.leased_from(50) == 30
    second.release()
    first.release()
    first.release()
    assert bench.log.leased_from(0) is None


def test_an_idle_log_is_two_kibibytes_at_most(tmp_path: Path) -> None:
    """Beside its path, which is as long as it is."""
    disk, journal, config, hot = RealDisk(), NoteJournal(), PlainLogConfig(), VerifiedWindow()
    queue: list[Log] = []
    for number in range(50):
        path = str(tmp_path / str(number))
        create_log(disk, path, TP, TOPIC_ID, config, journal, flush_queue=queue, hot=hot).close()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        logs = [
            open_log(
                disk, str(tmp_path / str(number)), TP, TOPIC_ID, config, journal,
                clean=True, start_offset=0, recovery_point=0, flush_queue=queue, hot=hot,
            )
            for number in range(50)
        ]  # fmt: skip
        gc.collect()
        assert (tracemalloc.get_traced_memory()[0] - before) / len(logs) <= 2048 + len(str(tmp_path))
    finally:
        tracemalloc.stop()


# ---- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_time_look_ups_are_exact_inside_a_batch(bench: Bench, codec: int) -> None:
    stamps = [100, 90, 120, 110, 130]
    bench.append_batch([(None, b"v%d" % i, [], t) for i, t in enumerate(stamps)], epoch=3, compression=codec)
    bench.append_batch([(None, b"w", [], 50)], epoch=4, compression=codec)
    look = partial(offset_for_timestamp, bench.log)
    assert look(0, 6) == (0, 100, 3)
    assert look(101, 6) == (2, 120, 3)
    assert look(125, 6) == (4, 130, 3)
    assert look(131, 6) is None
    assert look(125, 4) is None
    assert max_timestamp_offset(bench.log, 6) == (4, 130, 3)
    bench.log.advance_start(3)
    assert look(0, 6) == (3, 110, 3)


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("codec", [0, 2])
def test_the_youngest_record_behind_a_log_start_inside_its_batch(bench: Bench, codec: int, rolled: bool) -> None:
    bench.append_batch([(None, b"v", [], t) for t in (70, 90, 50, 60)], epoch=1, compression=codec)
    assert max_timestamp_offset(bench.log, 4) == (1, 90, 1)
    bench.log.advance_start(2)
    assert max_timestamp_offset(bench.log, 4) == (3, 60, 1), "the record at 90 is deleted, the batch is still there"
    if rolled:
        bench.log.roll()
    bench.append_batch([(None, b"w", [], 65)], epoch=2)
    assert max_timestamp_offset(bench.log, 5) == (4, 65, 2)
    assert max_timestamp_offset(bench.log, 4) == (3, 60, 1)


def test_nothing_is_found_in_an_empty_log(bench: Bench) -> None:
    assert offset_for_timestamp(bench.log, 0, 0) is None
    assert max_timestamp_offset(bench.log, 0) is None


def test_the_youngest_record_below_a_bound(bench: Bench) -> None:
    for offset in range(100):
        bench.append(b"x" * 100, timestamp=1000 + (offset * 37) % 100)
    stamps = [1000 + (offset * 37) % 100 for offset in range(100)]
    for bound in (1, 2, 30, 55, 99, 100):
        best = max_timestamp_offset(bench.log, bound)
        assert best is not None
        assert best.timestamp == max(stamps[:bound])
        assert best.offset == stamps.index(max(stamps[:bound]))
    for wanted in (1000, 1050, 1099):
        found = offset_for_timestamp(bench.log, wanted, 100)
        assert found is not None
        assert found.offset == next(i for i, t in enumerate(stamps) if t >= wanted)


def test_what_waits_for_a_sync_is_counted_behind_an_empty_segment_too(bench: Bench) -> None:
    bench.fill(3)
    bench.log.flush()
    waiting = bench.log.unsynced_bytes
    assert waiting == bench.log.active.size
    bench.log.roll()
    assert bench.log.unsynced_bytes == waiting
    bench.sync()
    assert bench.log.unsynced_bytes == 0


def accounted(segment: Segment) -> tuple[object, ...]:
    """What a segment knows of the batches that it was told of."""
    index, times = segment.index, segment.times
    assert index is not None
    assert times is not None
    bounds = segment.size, segment.next_offset, segment.unindexed
    stamps = segment.first_timestamp, segment.max_timestamp, segment.max_timestamp_offset
    return bounds, stamps, index.encode(0), times.encode(0)


def test_all_ways_to_account_for_batches_agree(tmp_path: Path) -> None:
    """`Log.append` and the rebuild of indexes have the code of `Segment.note` inline, for they are hot."""
    random = Random(3)
    bench = Bench(tmp_path, index_interval_bytes=400)
    noted = Segment(bench.disk, str(tmp_path), 0)
    noted.activate()
    for _ in range(200):
        stamp = random.randrange(1000, 1_000_000)
        new = [(None, bytes(random.randrange(1, 300)), [], stamp - random.randrange(500)) for _ in range(3)]
        batch = build_batch(new, base_offset=bench.log.end_offset)
        bench.append_raw(batch)
        noted.note(parse_header(memoryview(batch)), noted.size, 400)
    bench.log.flush()
    appended = accounted(bench.log.active)
    assert accounted(noted) == appended
    SegmentLoader(bench.log.active, 400, Walk()).rebuild(NO_LIMIT)
    assert accounted(bench.log.active) == appended
    bench.close()
