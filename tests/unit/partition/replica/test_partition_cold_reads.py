"""Reads of what is not in memory, and of what is no longer what was written."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from tests.worlds.partition_world import Bench, joined, plain

from duramen.errors import CorruptLogError
from duramen.page_cache import DIRECT_BYTES
from duramen.ports import FileSpan
from duramen.sim.world.disk import CrashDisk, CrashFile
from duramen.storage.files.read_buffers import BUFFER_BYTES, KEPT_BUFFERS, ReadBuffers
from duramen.storage.log.truncation import truncate_log
from duramen.storage.read import read_plan
from duramen.storage.read.read_plan import Pending
from duramen.wire.batch import batches, parse_header
from duramen.wire.seal import BLOCK_BYTES

SEGMENT = 100_000
VALUES = [b"%04d" % number * 1000 for number in range(60)]


def sealed(disk: CrashDisk, values: Sequence[bytes] | None = None, segment: int = SEGMENT) -> Bench:
    """A partition of several sealed segments that nobody has read since its process began."""
    bench = Bench(disk, internal_segment_bytes=str(segment))
    for value in values or VALUES:
        bench.produce(plain(value))
    for _ in range(2):
        checkpoint = bench.directory.take_checkpoint(force=True)
        if checkpoint is not None:
            checkpoint.run()
            bench.directory.complete_checkpoint(checkpoint)
        for job in bench.directory.take_maintenance(bench.clock.wall_ms()):
            job.run()
            job.complete()
        bench.run()
    assert len([name for name in disk.list_directory("/data/t-0") if name.endswith(".seal")]) >= 2
    disk.kill()
    disk.power_on()
    return Bench(disk, epoch=2, internal_segment_bytes=str(segment))


def everything(bench: Bench, isolation: int = 0) -> list[bytes | None]:
    values: list[bytes | None] = []
    while len(values) < len(VALUES):
        more = bench.values(len(values), isolation)
        assert more, f"nothing at offset {len(values)}, and no error"
        values += more
    return values


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is ever in memory."""
    monkeypatch.setattr(CrashFile, "pread_nowait", lambda self, buffer, offset: -1)


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("isolation", [0, 1])
def test_what_is_not_in_memory_is_read_elsewhere(isolation: int) -> None:
    bench = sealed(CrashDisk())
    read = bench.partition.read(7, 1 << 20, isolation)
    assert [type(part) for part in read.parts] == [Pending]
    assert read.aborted == ([] if isolation else None)
    assert everything(bench, isolation) == VALUES


@pytest.mark.usefixtures("cold")
def test_a_cold_read_keeps_to_its_limits() -> None:
    bench = sealed(CrashDisk())
    one = len(joined(bench.partition.read(3, 1, 0).parts))
    assert 4000 < one < 4200
    assert len(joined(bench.partition.read(3, 3 * one + 10, 0).parts)) == 3 * one
    assert joined(bench.partition.read(3, one - 1, 0, at_least_one=False).parts) == b""
    assert bench.partition.read(3, 1 << 30, 0).size <= SEGMENT + one


def test_what_is_in_memory_is_answered_at_once_and_verified() -> None:
    disk = CrashDisk()
    bench = sealed(disk)
    first = bench.partition.read(0, 50_000, 0).parts
    assert not any(isinstance(part, Pending | FileSpan) for part in first)
    assert everything(bench) == VALUES


def test_a_large_batch_is_not_checked_on_the_loop_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the request: a reply brings its first batch whole."""
    bench = sealed(CrashDisk(), [bytes([number]) * 600_000 for number in range(4)], 1_000_000)
    yielded: list[str] = []
    monkeypatch.setattr(read_plan.os, "sched_yield", lambda: yielded.append("by a thread"))
    (part,) = bench.partition.read(0, 1000, 0).parts
    assert isinstance(part, Pending)
    assert not yielded
    assert len(part.run().data) > 600_000
    assert yielded


def damage(disk: CrashDisk, position: int, segment: str = "0" * 20) -> None:
    file = disk.open(f"/data/t-0/{segment}.log", write=True)
    before = file.pread(1, position)
    file.pwritev([bytes([before[0] ^ 0x40])], position)
    file.close()


@pytest.mark.parametrize("force_cold", [True, False])
@pytest.mark.parametrize(
    "inside",
    [
        pytest.param(3000, id="a value"),
        pytest.param(0, id="the base offset, which no batch CRC covers"),
        pytest.param(9, id="the length"),
        pytest.param(13, id="the leader epoch"),
        pytest.param(16, id="the magic byte"),
        pytest.param(18, id="the CRC"),
    ],
)
def test_damage_in_a_sealed_segment_is_an_error_with_its_place(
    monkeypatch: pytest.MonkeyPatch, inside: int, force_cold: bool
) -> None:
    disk = CrashDisk()
    bench = sealed(disk)
    batch_size = len(joined(bench.partition.read(0, 1, 0).parts))
    if force_cold:
        monkeypatch.setattr(CrashFile, "pread_nowait", lambda self, buffer, offset: -1)
    damage(disk, 5 * batch_size + inside)
    bench = Bench(_restarted(disk), epoch=3, internal_segment_bytes=str(SEGMENT))
    with pytest.raises(CorruptLogError) as caught:
        bench.values(5)
    assert caught.value.start <= 5 * batch_size + inside < caught.value.end
    assert caught.value.offset >= 0
    assert caught.value.path.endswith("00000000000000000000.log")
    # Other segments are served, and no value read anywhere is wrong.
    second = bench.partition.log.segments[1].base_offset
    assert bench.values(second)[0] == VALUES[second]


def _restarted(disk: CrashDisk) -> CrashDisk:
    disk.kill()
    disk.power_on()
    return disk


def test_damage_in_the_active_segment_is_an_error_too() -> None:
    disk = CrashDisk()
    bench = sealed(disk)
    active = bench.partition.log.active
    checkpoint = bench.directory.take_checkpoint(force=True)
    if checkpoint is not None:
        checkpoint.run()
        bench.directory.complete_checkpoint(checkpoint)
    damage(disk, active.size - 100, f"{active.base_offset:020d}")
    last = bench.partition.log_end_offset - 1
    with pytest.raises(CorruptLogError):
        bench.values(last)


def test_a_segment_that_became_too_short_is_an_error() -> None:
    disk = CrashDisk()
    bench = sealed(disk)
    size = bench.partition.log.segments[0].size
    file = disk.open(f"/data/t-0/{'0' * 20}.log", write=True)
    file.truncate(size // 2)
    file.close()
    with pytest.raises(CorruptLogError):
        everything(bench)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_index_costs_time_and_nothing_else(suffix: str) -> None:
    disk = CrashDisk()
    bench = sealed(disk)
    path = f"/data/t-0/{'0' * 20}{suffix}"
    file = disk.open(path, write=True)
    file.pwritev([b"\xff" * file.size()], 0)
    file.close()
    assert everything(bench) == VALUES
    assert everything(Bench(_restarted(disk), epoch=3, internal_segment_bytes=str(SEGMENT))) == VALUES


def big(**configs: str) -> Bench:
    """A partition of several megabytes in one segment, written by this process."""
    bench = Bench(**configs)
    for number in range(40):
        bench.produce(plain(b"%04d" % number * 25_000))
    return bench


def evict(bench: Bench) -> None:
    """The kernel needs its memory for something else."""
    for segment in bench.partition.log.segments:
        segment.open_file().sync()
        segment.open_file().drop_cache(0, segment.size)


def test_bytes_that_left_memory_are_never_sent_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "duramen.storage.read.verified_window.RECENT_BYTES", 0
    )  # what was written last may stay in memory
    bench = big()
    assert [type(part) for part in bench.partition.read(0, 1 << 20, 0).parts] == [FileSpan]
    evict(bench)
    bench.disk.record = []
    read = bench.partition.read(0, 1 << 20, 0)
    assert [type(part) for part in read.parts] == [Pending]
    assert not [call for call in bench.disk.record if "pread" in call.operation], "the loop read what was cold"
    data = joined(read.parts)
    assert [call.operation for call in bench.disk.record if call.operation == "drop_cache"], "the cache kept it"
    assert len(data) <= 1 << 20
    # Brought back by somebody else they are in memory, but no longer known to be sound.
    for segment in bench.partition.log.segments:
        segment.open_file().pread(segment.size, 0)
    assert [type(part) for part in bench.partition.read(0, 1 << 20, 0).parts] == [Pending]


@pytest.mark.parametrize(("left", "belongs"), [(0.9, True), (0.6, True), (0.4, False), (0.0, False)])
def test_a_hole_in_what_is_in_memory_is_filled_once(
    monkeypatch: pytest.MonkeyPatch, left: float, belongs: bool
) -> None:
    """The machine takes a page here and there: what is mostly in memory is read back, and leaves from the file."""
    monkeypatch.setattr("duramen.storage.read.verified_window.RECENT_BYTES", 0)
    bench = big()
    (segment,) = bench.partition.log.segments
    file = segment.open_file()
    file.sync()
    file.drop_cache(0, int((1 << 20) * (1 - left)))
    (part,) = bench.partition.read(0, 1 << 20, 0).parts
    assert isinstance(part, Pending)
    assert part.recent == belongs
    assert len(part.run().data) > 900_000
    part.complete()
    (part,) = bench.partition.read(0, 900_000, 0).parts
    assert isinstance(part, FileSpan if belongs else Pending)


def taken(bench: Bench, offset: int, *, stays: bool) -> tuple[Pending, int]:
    """A read that had to wait, and how many bytes it brought from the disk."""
    (part,) = bench.partition.read(offset, 900_000, 0).parts
    assert isinstance(part, Pending)
    part.limit(900_000, stays=stays)
    data = bytes(part.run().data)
    brought = part.complete()
    assert brought == 0 or brought > 850_000
    span = part.span
    assert (span is not None) == stays
    assert span is None or span.file.pread(span.length, span.position) == data
    return part, brought


def test_a_batch_larger_than_may_be_read_at_once_is_read_once_where_the_last_one_tells_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duramen.storage.read.verified_window.RECENT_BYTES", 0)
    bench = Bench(CrashDisk())
    for number in range(4):
        bench.produce(plain(Random(number).randbytes(300_000)))
    evict(bench)
    brought = []
    for offset in range(4):
        (part,) = bench.partition.read(offset, 1 << 20, 0).parts
        assert isinstance(part, Pending)
        part.limit(200_000)
        found = part.run()
        assert (found.next_offset, len(found.data) // 300_000) == (offset + 1, 1)
        brought.append(part.complete())
    assert brought[0] > 500_000, "of the first one nothing was known"
    assert all(300_000 <= size < 300_000 + 2 * BLOCK_BYTES for size in brought[1:])
    evict(bench)
    (part,) = bench.partition.read(0, 1 << 20, 0).parts
    assert isinstance(part, Pending)
    part.limit(200_000)
    assert part.size == 200_000, "what is known of one place bounds nothing at another"


def test_what_may_stay_is_in_memory_for_the_next_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.storage.read.verified_window.RECENT_BYTES", 0)
    bench = big()
    evict(bench)
    for _ in range(2):
        _, brought = taken(bench, 0, stays=False)
        assert brought, "it was not to stay"
    first, brought = taken(bench, 0, stays=True)
    assert brought, "it came from the disk, and is paid for like all that does"
    assert first.found is not None
    second, _ = taken(bench, first.found.next_offset, stays=True)
    assert second.follows, "and what is behind it can be on its way"
    for offset in (0, first.found.next_offset):
        read = bench.partition.read(offset, 900_000, 0)
        assert [type(part) for part in read.parts] == [FileSpan]
        assert read.is_old, "nobody who follows the end reads it"


def test_what_was_written_is_not_old() -> None:
    read = big().partition.read(0, 900_000, 0)
    assert [type(part) for part in read.parts] == [FileSpan]
    assert not read.is_old


def test_damage_in_what_may_stay_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.storage.read.verified_window.RECENT_BYTES", 0)
    bench = big()
    evict(bench)
    bench.disk.damage("/data/t-0/" + "0" * 20 + ".log", 300_000)
    (part,) = bench.partition.read(0, 900_000, 0).parts
    assert isinstance(part, Pending)
    part.limit(900_000, stays=True)
    assert part.run().next_offset == 2, "what lies in front of it"
    part.complete()
    (part,) = bench.partition.read(2, 900_000, 0).parts
    assert isinstance(part, Pending)
    part.limit(900_000, stays=True)
    with pytest.raises(CorruptLogError):
        part.run()
    part.complete()
    assert part.span is None


def checkpoint(bench: Bench) -> None:
    """From here on the active segment has sums of its blocks."""
    job = bench.directory.take_checkpoint(force=True)
    assert job is not None
    job.run()
    bench.directory.complete_checkpoint(job)


def dropping(bench: Bench, start: int, end: int) -> Pending:
    """The machine takes these bytes out of memory: what a read of the first megabyte becomes then."""
    (segment,) = bench.partition.log.segments
    segment.open_file().sync()
    segment.open_file().drop_cache(start, end - start)
    (part,) = bench.partition.read(0, 1 << 20, 0).parts
    assert isinstance(part, Pending)
    assert part.recent
    return part


def test_only_what_the_machine_took_is_read_back() -> None:
    bench = big()
    checkpoint(bench)
    part = dropping(bench, 3 * BLOCK_BYTES + 9000, 5 * BLOCK_BYTES)
    assert part.recall is not None
    assert [type(found) for found in bench.partition.read(11, 1 << 20, 0).parts] == [FileSpan], "what follows is hot"
    bench.disk.record = []
    part.recall.run()
    assert part.complete() == 0
    assert [call.length for call in bench.disk.record if call.operation == "pread"] == [2 * BLOCK_BYTES]
    (again,) = bench.partition.read(0, 1 << 20, 0).parts
    assert isinstance(again, FileSpan)
    assert joined([again]) == part.run().data


def test_a_block_that_came_back_changed_is_damage() -> None:
    bench = big()
    checkpoint(bench)
    part = dropping(bench, 3 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    damage(bench.disk, 3 * BLOCK_BYTES + 70)
    assert part.recall is not None
    with pytest.raises(CorruptLogError) as raised:
        part.recall.run()
    assert (raised.value.start, raised.value.end) == (3 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    part.complete()
    assert [type(found) for found in bench.partition.read(0, 1 << 20, 0).parts] == [Pending]


def test_what_is_read_back_of_a_log_that_was_cut_is_not_hot() -> None:
    bench = big()
    checkpoint(bench)
    part = dropping(bench, 3 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    assert part.recall is not None
    part.recall.run()
    truncate_log(bench.partition.log, 20)
    part.complete()
    assert [type(found) for found in bench.partition.read(0, 1 << 20, 0).parts] == [Pending]


def test_bytes_without_sums_are_read_back_as_a_whole() -> None:
    bench = big()
    part = dropping(bench, 3 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    assert part.recall is None
    assert len(part.run().data) > 900_000
    part.complete()
    assert [type(found) for found in bench.partition.read(0, 900_000, 0).parts] == [FileSpan]


def test_who_has_met_a_hole_looks_ahead() -> None:
    """The next one is filled before anybody asks; while the machine takes nothing, nobody looks."""
    bench = big()
    checkpoint(bench)
    log = bench.partition.log
    (segment,) = log.segments
    read = bench.partition.read(0, 300_000, 0)
    segment.open_file().drop_cache(600_000, BLOCK_BYTES)
    assert log.read_ahead(read.next_offset, 500_000) is None, "nobody has met one"
    segment.open_file().drop_cache(0, BLOCK_BYTES)
    (part,) = bench.partition.read(0, 300_000, 0).parts
    assert isinstance(part, Pending)
    recall = log.read_ahead(read.next_offset, 500_000)
    assert recall is not None
    recall.run()
    recall.complete()
    assert log.read_ahead(read.next_offset, 500_000) is None, "all of it is there"
    assert log.read_ahead(39, 500_000) is None, "nobody has read up to there"
    assert [type(found) for found in bench.partition.read(read.next_offset, 500_000, 0).parts] == [FileSpan]


def test_who_reads_old_data_does_not_make_the_next_megabyte_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it was written by this process; the machine took it out of memory but for most of the first piece."""
    monkeypatch.setattr("duramen.storage.read.verified_window.RECENT_BYTES", 1 << 20)
    bench = big()
    (segment,) = bench.partition.log.segments
    evict(bench)
    segment.open_file().pread(250_000, 0)
    offset, recent = 0, []
    while offset < 18:
        (part,) = bench.partition.read(offset, 310_000, 0).parts
        assert isinstance(part, Pending)
        recent.append(part.recent)
        offset = part.run().next_offset
        part.complete()
    assert recent == [True] + [False] * (len(recent) - 1)
    assert len(recent) > 5


def test_what_the_pool_has_checked_is_hot_if_it_is_in_memory() -> None:
    bench = sealed(CrashDisk())
    for cold in (True, False):
        if cold:
            evict(bench)
        (part,) = bench.partition.read(0, 90_000, 0).parts
        assert isinstance(part, Pending)
        part.run()
        part.complete()
        (part,) = bench.partition.read(0, 70_000, 0).parts
        if cold:
            assert isinstance(part, Pending)
            for segment in bench.partition.log.segments:
                segment.open_file().pread(segment.size, 0)
        else:
            assert isinstance(part, FileSpan)


def test_what_was_checked_before_a_cut_is_not_hot_behind_it() -> None:
    bench = sealed(CrashDisk())
    log = bench.partition.log
    (part,) = bench.partition.read(0, 90_000, 0).parts
    assert isinstance(part, Pending)
    part.run()
    truncate_log(log, len(VALUES) - 1)
    part.complete()
    (part,) = bench.partition.read(0, 90_000, 0).parts
    assert isinstance(part, Pending)


def test_a_sealed_segment_is_not_walked_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashDisk()
    monkeypatch.setitem(globals(), "VALUES", [b"%05d" % number * 40 for number in range(1500)])
    bench = sealed(disk)
    parsed = []
    monkeypatch.setattr(read_plan, "parse_header", lambda *given: parsed.append(given[1]) or parse_header(*given))
    (part,) = bench.partition.read(0, 90_000, 0).parts
    assert isinstance(part, Pending)
    data = part.run().data
    assert 80_000 < len(data) <= 90_000
    assert len(parsed) < 50
    assert [header.base_offset for _, header in batches(bytes(data))] == list(range(part.found.next_offset))
    assert everything(bench) == VALUES


def test_an_index_entry_that_its_batch_does_not_confirm_is_not_believed() -> None:
    disk = CrashDisk()
    bench = sealed(disk)
    expected = bench.bytes_from(0, max_bytes=90_000)
    index = disk.open(f"/data/t-0/{0:020d}.index", write=True)
    content = bytearray(index.pread(1 << 20, 0))
    for at in range(0, len(content) - 7, 8):
        content[at + 3] ^= 1  # every offset is wrong by one
    index.pwritev([content], 0)
    index.close()
    assert bench.bytes_from(0, max_bytes=90_000) == expected


def place(view: memoryview) -> int:
    """Where in memory it begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_read_buffers_are_taken_again_when_nobody_looks() -> None:
    buffers = ReadBuffers()
    first = buffers.view(1 << 20)
    second = buffers.view(1 << 20)
    known = {place(first), place(second)}
    assert max(known) - min(known) >= BUFFER_BYTES
    part = first[5:10]
    del first
    third = buffers.view(1 << 20)  # a part of the first is still in use
    assert place(third) not in known
    del part
    again = [buffers.view(1 << 20)]
    assert place(again[0]) in known
    assert len(buffers.view(100)) == 4096, "whole pages, as direct reads need them"
    again += [buffers.view(1 << 20) for _ in range(20)]
    again += [second, third]
    places = sorted(map(place, again))
    assert all(behind - before >= 1 << 20 for before, behind in pairwise(places)), "no two of them share a byte"
    assert all(each % DIRECT_BYTES == 0 for each in places)
    assert len(again[0].obj) == BUFFER_BYTES, "what a view keeps in memory, for who counts that"
    for number, view in enumerate(again):
        view[:] = bytes([number]) * len(view)
    assert all(set(view) == {number} for number, view in enumerate(again))
    del view
    again.clear()
    assert [place(buffers.view(1 << 20)) in places for _ in range(3)] == [True] * 3


def test_read_buffers_are_taken_again_where_some_are_never_given_back() -> None:
    buffers = ReadBuffers()
    unread = [buffers.view(1 << 20) for _ in range(KEPT_BUFFERS)]
    one, two = buffers.view(1 << 20), buffers.view(300_000)
    known = {place(one), place(two)}
    del one, two
    again = [buffers.view(1 << 20) for _ in range(2)]
    assert {place(view) for view in again} == known
    assert not known & {place(view) for view in unread}
    more = [buffers.view(1 << 20) for _ in range(3 * KEPT_BUFFERS)]
    unread.clear()
    again.clear()
    more.clear()
    assert (len(buffers._rooms), len(buffers._spare)) == (KEPT_BUFFERS, KEPT_BUFFERS), "and no more than that"


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("block", [0, 3, 4, 7, 8, 11])
def test_damage_is_found_in_whichever_piece_of_a_long_read_it_is(block: int) -> None:
    """A seal is checked in pieces of 256 KiB: four blocks."""
    disk = CrashDisk()
    values = [bytes([number]) * 30_000 for number in range(60)]
    bench = sealed(disk, values, 800_000)
    whole = joined(bench.partition.read(0, 1 << 20, 0).parts)
    assert len(whole) > 12 * BLOCK_BYTES - 40_000
    at = min(block * BLOCK_BYTES + BLOCK_BYTES // 2, len(whole) - 1000)
    damage(disk, at)
    bench = Bench(_restarted(disk), epoch=3, internal_segment_bytes="800000")
    pending = bench.partition.read(0, 1 << 20, 0).parts[0]
    assert isinstance(pending, Pending)
    if block == 0:
        with pytest.raises(CorruptLogError) as caught:
            pending.run()
        met = caught.value
    else:
        found = pending.run()
        assert found.damage is not None
        assert whole.startswith(found.data)
        assert block * BLOCK_BYTES - 40_000 < len(found.data) <= block * BLOCK_BYTES
        met = found.damage
    assert met.start <= at < met.end
