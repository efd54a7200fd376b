"""A log that finds damage, makes its side files again, and writes them as Kafka does."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.log_bench import TOPIC_ID, TP, Bench, NoteJournal, cold, offset_for_timestamp, without_nowait

from duramen.errors import CorruptLogError, StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.create import create_log
from duramen.storage.log.durability import complete_sync, take_sync
from duramen.storage.log.open import open_log
from duramen.storage.log.seals import take_seals
from duramen.storage.segment.producer_snapshot import SnapshotHome, encode_ours
from duramen.storage.segment.producer_state import ProducerStates
from duramen.storage.segment.seal import read_growing
from duramen.wire.batch import ABORT, COMMIT, build_batch, build_marker, parse_header

# ---- damage --------------------------------------------------------------------------------------------------------


def flip(path: str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x40]))


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("at", [3, 10, 14, 18, 30, 100])
def test_damaged_bytes_are_never_handed_out(bench: Bench, pool: bool, sealed: bool, at: int) -> None:
    bench.fill(60)
    bench.sync()
    if sealed:
        bench.seal()
    cold(bench)
    if pool:
        without_nowait(bench)
    if at == 14 and not sealed:
        return  # a leader epoch lies outside the CRC: what the seal is for
    # So does the base offset, but one that is none of the segment's would be a gap for ever.
    flip(bench.log.segments[0].path, at)
    with pytest.raises(CorruptLogError) as caught:
        bench.read(0, 100)
    assert caught.value.path == bench.log.segments[0].path
    assert caught.value.start == 0


def test_a_file_that_lost_its_end_is_damage(bench: Bench) -> None:
    bench.fill(60)
    bench.sync()
    cold(bench)
    os.truncate(bench.log.segments[0].path, 1000)
    found = bench.log.read(len(bench.offsets(bench.read(0, 5000))), 5000, 60, at_least_one=True)
    with pytest.raises(CorruptLogError, match="too short"):
        bench.bytes_of(found)


def test_a_damaged_seal_is_an_error_and_no_seal_is_made_of_damage(bench: Bench) -> None:
    bench.fill(60)
    bench.sync()
    flip(bench.log.segments[1].path, 200)
    jobs = take_seals(bench.log)
    jobs[0].run()
    with pytest.raises(CorruptLogError):
        jobs[1].run()
    assert not os.path.exists(jobs[1].path)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut", "zeros", "garbage"])
@pytest.mark.parametrize("clean", [True, False])
def test_missing_and_damaged_indexes_are_made_again(bench: Bench, suffix: str, how: str, clean: bool) -> None:
    bench.fill(100)
    bench.sync(full=True)
    bench.log.close()
    good = {name: Path(bench.path, name).read_bytes() for name in os.listdir(bench.path) if name.endswith(suffix)}
    for name, content in good.items():
        path = Path(bench.path, name)
        if how == "gone":
            path.unlink()
        elif how == "empty":
            path.write_bytes(b"")
        elif how == "cut":
            path.write_bytes(content[:-3])
        elif how == "zeros":
            path.write_bytes(content + bytes(len(content)))
        else:
            path.write_bytes(b"\x7f" * len(content))
    bench.reopen(clean=clean, recovery_point=0)
    assert bench.whole(0, 700) == list(range(100))
    for offset in (0, 1, 50, 99):
        found = offset_for_timestamp(bench.log, 1000 + 10 * offset, 100)
        assert found is not None
        assert found[:2] == (offset, 1000 + 10 * offset)
    if how != "empty" or not clean:
        bench.sync(full=True)
        for name, content in good.items():
            assert Path(bench.path, name).read_bytes() == content, name


def test_an_unclean_open_checks_what_is_beyond_the_recovery_point(bench: Bench) -> None:
    bench.fill(100)
    bench.sync()
    flip(bench.log.active.path, 90)
    with pytest.raises(CorruptLogError) as caught:
        bench.reopen(clean=False, recovery_point=0)
    assert caught.value.offset == bench.log.active.base_offset


def test_garbage_behind_the_end_is_not_accepted_silently(bench: Bench) -> None:
    bench.fill(20)
    bench.sync(full=True)
    bench.log.close()
    with open(bench.log.active.path, "ab") as file:
        file.write(b"junk")
    with pytest.raises(CorruptLogError):
        bench.reopen(clean=True)


def test_an_interrupted_compaction_is_named(bench: Bench) -> None:
    Path(bench.path, "00000000000000000000.log.swap").write_bytes(b"")
    Path(bench.path, "00000000000000000000.log.deleted").write_bytes(b"")
    with pytest.raises(Exception, match="swap: a compaction was interrupted"):
        bench.reopen()


def test_left_over_files_are_removed(bench: Bench) -> None:
    Path(bench.path, "00000000000000000000.log.deleted").write_bytes(b"")
    Path(bench.path, "00000000000000000009.log.cleaned").write_bytes(b"")
    bench.reopen()
    assert not [name for name in os.listdir(bench.path) if name.endswith((".deleted", ".cleaned"))]


# ---- Kafka's formats -----------------------------------------------------------------------------------------------


def test_index_files_hold_kafkas_entries(bench: Bench) -> None:
    bench.fill(40)
    bench.sync(full=True)
    segment = bench.log.segments[1]
    log = Path(segment.path).read_bytes()
    index = Path(segment.path_of(".index")).read_bytes()
    entries = list(struct.iter_unpack(">ii", index))
    assert entries
    previous = -1
    for relative, position in entries:
        base, delta = struct.unpack_from(">q", log, position)[0], struct.unpack_from(">i", log, position + 23)[0]
        assert base + delta == segment.base_offset + relative
        assert position > previous
        previous = position
    times = list(struct.iter_unpack(">qi", Path(segment.path_of(".timeindex")).read_bytes()))
    assert times == sorted(set(times))
    assert times[-1] == (segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset)


def test_producers_survive_restarts_with_and_without_snapshots(bench: Bench) -> None:
    ids: dict[str, Any] = {"producer_id": 4, "producer_epoch": 1}
    for sequence in range(60):
        bench.append(b"v" * 100, base_sequence=sequence, **ids)
    expected = [tuple(batch) for batch in bench.log.producers.get(4).batches]  # type: ignore[union-attr]
    assert len(expected) == 5
    for clean in (True, False):
        for remove in ((), (".producers",), (".snapshot", ".producers")):
            bench.reopen(clean=clean)
            for name in os.listdir(bench.path):
                if name.endswith(remove or ("nothing",)):
                    os.remove(os.path.join(bench.path, name))
            bench.log.snapshots.offsets = ()
            bench.reopen(clean=False)
            known = bench.log.producers.get(4)
            assert known is not None
            assert [tuple(batch) for batch in known.batches] == expected


def test_a_damaged_snapshot_of_ours_is_not_replaced_by_kafkas_which_knows_less(bench: Bench) -> None:
    ids: dict[str, Any] = {"producer_id": 4, "producer_epoch": 1}
    for sequence in range(9):
        bench.append(b"v" * 100, base_sequence=sequence, **ids)
    expected = [tuple(batch) for batch in bench.log.producers.get(4).batches]  # type: ignore[union-attr]
    bench.sync(full=True)
    bench.log.close()
    ours = [name for name in os.listdir(bench.path) if name.endswith(".producers")]
    assert ours
    for name in ours:
        flip(os.path.join(bench.path, name), 60)
    bench.reopen()
    known = bench.log.producers.get(4)
    assert known is not None
    assert [tuple(batch) for batch in known.batches] == expected


def test_a_snapshot_of_another_log_or_offset_is_not_believed(bench: Bench) -> None:
    """Whole, as a file system leaves it that mixes up two names. Retries would be stored twice."""
    ids: dict[str, Any] = {"producer_id": 4, "producer_epoch": 1}
    for sequence in range(9):
        bench.append(b"v" * 100, base_sequence=sequence, **ids)
    expected = [tuple(batch) for batch in bench.log.producers.get(4).batches]  # type: ignore[union-attr]
    bench.sync(full=True)
    bench.log.close()
    (name,) = [name for name in os.listdir(bench.path) if name.endswith(".producers")]
    path = Path(bench.path, name)
    for home in (
        SnapshotHome(TOPIC_ID, TP.partition + 1, 9),
        SnapshotHome(bytes(16), TP.partition, 9),
        SnapshotHome(TOPIC_ID, TP.partition, 8),
    ):
        path.write_bytes(encode_ours(ProducerStates(), home))
        bench.reopen()
        known = bench.log.producers.get(4)
        assert known is not None
        assert [tuple(batch) for batch in known.batches] == expected
    path.write_bytes(encode_ours(ProducerStates(), SnapshotHome(TOPIC_ID, TP.partition, 9)))
    bench.reopen()
    assert bench.log.producers.get(4) is None


def test_what_a_growing_segment_was_sealed_with_is_never_computed_anew(bench: Bench) -> None:
    """Otherwise a bit that flipped between two checkpoints would be vouched for by the second."""
    bench.fill(3)
    bench.sync(full=True)
    segment = bench.log.active
    flip(segment.path_of(".log"), 10)
    bench.fill(3)
    bench.sync(full=True)
    seal = read_growing(bench.disk, segment.path_of(".sealing"), segment.size)
    assert seal is not None
    assert seal.length == segment.size
    content = memoryview(Path(segment.path_of(".log")).read_bytes())
    with pytest.raises(CorruptLogError, match="differ from the seal"):
        seal.check(content, 0, "log", 0)
    flip(segment.path_of(".log"), 10)
    seal.check(memoryview(Path(segment.path_of(".log")).read_bytes()), 0, "log", 0)


def test_a_growing_seal_that_changed_after_a_clean_stop_is_damage(bench: Bench) -> None:
    """A snapshot of the producers, whose name is a later offset, does not make the segment an old one."""
    bench.append(b"v" * 100, base_sequence=0, producer_id=4, producer_epoch=1)
    bench.sync(full=True)
    bench.log.close()
    assert any(name.endswith(".producers") for name in os.listdir(bench.path))
    flip(bench.log.active.path_of(".sealing"), 10)
    point = bench.log.recovery_point
    where: Any = (bench.disk, bench.path, TP, TOPIC_ID, bench.config, bench.journal)
    log = open_log(*where, clean=True, start_offset=0, recovery_point=point)
    with pytest.raises(StorageError, match=r"\.sealing"):
        log.active.load_seal()


def test_a_segment_that_changed_since_it_began_to_be_sealed_gets_no_seal(bench: Bench) -> None:
    bench.fill(3)
    bench.sync(full=True)
    flip(bench.log.active.path_of(".log"), 13)  # outside of any batch's own CRC
    bench.log.roll()
    bench.sync(full=True)
    with pytest.raises(CorruptLogError, match="what was sealed"):
        bench.seal()


def test_snapshots_beyond_a_cut_are_forgotten(bench: Bench) -> None:
    ids: dict[str, Any] = {"producer_id": 4, "producer_epoch": 1}
    for sequence in range(60):
        bench.append(b"v" * 100, base_sequence=sequence, **ids)
    bench.sync(full=True)
    bench.truncate(33)
    known = bench.log.producers.get(4)
    assert known is not None
    assert known.last_sequence == 32
    assert all(offset <= 33 for offset in bench.log.snapshots.offsets)
    assert not os.path.exists(os.path.join(bench.path, f"{60:020d}.snapshot"))
    bench.reopen()
    known = bench.log.producers.get(4)
    assert known is not None
    assert known.last_sequence == 32


def test_aborted_transactions_are_listed_and_survive(bench: Bench) -> None:
    ids: dict[str, Any] = {"producer_epoch": 0, "transactional": True}
    bench.append(b"a", producer_id=1, base_sequence=0, **ids)
    bench.append(b"b", producer_id=2, base_sequence=0, **ids)
    bench.fill(60)
    end = bench.log.end_offset
    bench.append_raw(build_marker(1, 0, ABORT, 0, 5, base_offset=end, leader_epoch=0))
    bench.append_raw(build_marker(2, 0, COMMIT, 0, 5, base_offset=end + 1, leader_epoch=0))
    assert bench.log.aborted(0, 10) == [(1, 0)]
    assert bench.log.aborted(end, end + 1) == [(1, 0)]
    assert bench.log.aborted(end + 1, end + 2) == []
    data = Path(bench.log.active.path_of(".txnindex")).read_bytes()
    assert data == struct.pack(">hqqqq", 0, 1, 0, end, 1)
    for clean in (True, False):
        bench.reopen(clean=clean)
        assert bench.log.aborted(0, 10) == [(1, 0)]
        assert bench.log.producers.first_unstable_offset is None
    bench.truncate(end)
    assert bench.log.aborted(0, 10) == []
    assert bench.log.producers.first_unstable_offset == 0
    assert not os.path.exists(bench.log.active.path_of(".txnindex"))


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_txnindex_is_made_again(bench: Bench, clean: bool) -> None:
    bench.append(b"a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    bench.fill(60)
    end = bench.log.end_offset
    bench.append_raw(build_marker(1, 0, ABORT, 0, 5, base_offset=end, leader_epoch=0))
    bench.fill(60)
    path = next(Path(bench.path, name) for name in os.listdir(bench.path) if name.endswith(".txnindex"))
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    bench.reopen(clean=clean)
    assert bench.log.aborted(0, 10) == [(1, 0)]
    assert path.read_bytes() == good
    path.unlink()
    bench.reopen(clean=clean)
    assert bench.log.aborted(0, 10) == [(1, 0)]
    assert path.read_bytes() == good
    path.write_bytes(good + struct.pack(">hqqqq", 0, 5, 10**6, 10**6 + 1, 10**6))
    bench.reopen(clean=clean)
    assert path.read_bytes() == good


@pytest.mark.parametrize("pool", [False, True])
def test_an_index_that_lies_never_hides_records(bench: Bench, pool: bool) -> None:
    bench.fill(100)
    bench.sync(full=True)
    bench.log.close()
    segment = bench.log.segments[1]
    path = Path(segment.path_of(".index"))
    entries = list(struct.iter_unpack(">ii", path.read_bytes()))
    wrong = [(offset - 2 if number else offset, position) for number, (offset, position) in enumerate(entries)]
    wrong[0] = (entries[0][0], entries[0][1] + 7)
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in wrong))
    bench.reopen()
    if pool:
        without_nowait(bench)
    for offset in range(segment.base_offset, segment.next_offset):
        cold(bench)
        assert bench.offsets(bench.read(offset, 1)) == [offset]


def test_a_checkpoint_makes_the_txnindex_durable() -> None:
    disk = CrashDisk()
    disk.make_directories("/data")
    disk.sync_directory("/")
    config = PlainLogConfig()
    log = create_log(disk, "/data/events-3", TP, TOPIC_ID, config, NoteJournal())
    disk.sync_directory("/data")
    batch = build_batch([(None, b"a", [], 1000)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    for data in (batch, build_marker(1, 0, ABORT, 0, 5, base_offset=1, leader_epoch=0)):
        log.append(memoryview(data), parse_header(memoryview(data)), 0)
    job = take_sync(log)
    assert job is not None
    job.run()
    complete_sync(log, job)
    assert take_sync(log) is None
    disk.power_cut()
    disk.power_on()
    assert len(disk.contents()["/data/events-3/00000000000000000000.txnindex"]) == 34
