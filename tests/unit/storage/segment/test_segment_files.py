"""Indexes, seals and scans of one segment file, and the hot window, each on its own."""

from __future__ import annotations

import random
from array import array
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import CorruptLogError, StorageError
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.read.verified_window import GRAIN_BYTES, RECENT_BYTES, VerifiedWindow
from duramen.storage.repair.salvage import flipped_bit
from duramen.storage.segment.index import (
    OffsetIndex,
    StoredOffsetIndex,
    StoredTimeIndex,
    TimeIndex,
    decode_offset_index,
    decode_time_index,
)
from duramen.storage.segment.scan import CHUNK_BYTES, scan
from duramen.storage.segment.seal import compute_seal
from duramen.storage.segment.segment import Segment, file_name, parse_base, parse_name
from duramen.wire.batch import build_batch
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES, Seal, decode_seal, joined

ASCENDING = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=40)


@given(ASCENDING)
def test_a_stored_index_answers_like_the_one_in_memory(steps: list[tuple[int, int]]) -> None:
    index, times = OffsetIndex(), TimeIndex()
    offset, position = 0, 0
    for gap, length in steps:
        offset += gap
        position += length
        index.add(offset, position)
        times.add(position * 3, offset)
    data, time_data = index.encode(), times.encode()
    stored = StoredOffsetIndex(lambda at, length: data[at : at + length], len(index))
    stored_times = StoredTimeIndex(lambda at, length: time_data[at : at + length], len(times))
    for wanted in (0, 1, offset // 2, offset, offset + 1):
        assert stored.position_for(wanted) == index.position_for(wanted)
    for wanted in (0, 1, position // 2, position, position + 1):
        assert stored.boundary(wanted) == index.boundary(wanted)
        assert stored_times.offset_before(wanted * 3) == times.offset_before(wanted * 3)
    again = decode_offset_index(data, position + 1, offset + 1)
    assert again is not None
    assert (again.offsets, again.positions, again.written) == (index.offsets, index.positions, len(index))
    padded = decode_offset_index(data + bytes(80), position + 1, offset + 1)
    assert padded is not None
    assert padded.offsets == index.offsets
    times_again = decode_time_index(time_data + bytes(120), offset + 1)
    assert times_again is not None
    assert times_again.timestamps == times.timestamps
    if steps:
        assert decode_offset_index(data[:-1], position + 1, offset + 1) is None
        assert decode_offset_index(data, position, offset + 1) is None
        assert decode_offset_index(data, position + 1, offset) is None
        assert decode_offset_index(data + data, position + 1, offset + 1) is None
        assert decode_time_index(time_data + time_data, offset + 1) is None
        assert decode_time_index(time_data, offset) is None
        half = len(index) // 2
        assert index.encode(half) == data[half * 8 :]
        assert index.count_below(offset) == len(index) - 1
        index.keep_first(len(index) - 1)
        assert index.encode() == data[:-8]


def test_a_time_index_takes_only_what_is_younger() -> None:
    times = TimeIndex()
    for timestamp, offset in ((10, 0), (10, 3), (9, 4), (20, 7)):
        times.add(timestamp, offset)
    assert list(zip(times.timestamps, times.offsets, strict=True)) == [(10, 0), (20, 7)]
    assert (times.last_before(7), times.last_before(8)) == (0, 7)


def test_names() -> None:
    assert file_name(42, ".log") == "00000000000000000042.log"
    assert parse_name("00000000000000000042.index") == (42, ".index")
    assert parse_base("00000000000000000042.log") == 42
    for name in ("42.log", "00000000000000000042.index", "x" * 20 + ".log", "0000000000000000004².log", "meta"):
        assert parse_base(name) is None


def segment_file(tmp_path: Path, sizes: list[int], base: int = 0) -> tuple[Path, int]:
    data = b"".join(
        bytes(build_batch([(None, bytes([i % 251]) * size, [], 100 + i)], base_offset=base + i))
        for i, size in enumerate(sizes)
    )
    path = tmp_path / f"{base:020}.log"
    path.write_bytes(data)
    return path, len(data)


@pytest.mark.parametrize("sizes", [[10] * 30, [CHUNK_BYTES + 5, 3, 2 * CHUNK_BYTES, 0], [CHUNK_BYTES - 130] * 4])
def test_a_scan_meets_every_batch(tmp_path: Path, sizes: list[int]) -> None:
    path, length = segment_file(tmp_path, sizes)
    file = RealDisk().open(str(path))
    for crc in (True, False):
        found = list(scan(file, 0, length, crc=crc))
        assert [header.base_offset for _, header, ok in found if ok and header] == list(range(len(sizes)))
    partial = list(scan(file, 0, length - 1))
    assert [ok for _, _, ok in partial] == [True] * (len(sizes) - 1) + [False]
    assert partial[-1][0] == found[-1][0]
    assert [ok for _, _, ok in scan(file, 0, length, expect_offset=1)] == [False]
    file.close()


@pytest.mark.parametrize("sizes", [[10] * 30, [CHUNK_BYTES + 5, 3, 2 * CHUNK_BYTES, 0]])
def test_a_scan_stops_at_damage(tmp_path: Path, sizes: list[int]) -> None:
    path, length = segment_file(tmp_path, sizes)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    file = RealDisk().open(str(path))
    assert [ok for _, _, ok in scan(file, 0, length)] == [True] * (len(sizes) - 1) + [False]
    assert all(ok for _, _, ok in scan(file, 0, length, crc=False))
    file.close()


SIZES = st.one_of(
    st.integers(0, 3000), st.integers(CHUNK_BYTES - 200, CHUNK_BYTES + 5), st.just(2 * CHUNK_BYTES), st.just(70_000)
)


class CountedFile:
    """A file that counts the bytes which are read of it."""

    def __init__(self, data: bytes) -> None:
        self.path = "counted"
        self.data = data
        self.bytes_read = 0

    def pread(self, length: int, offset: int) -> bytes:
        self.bytes_read += len(self.data[offset : offset + length])
        return self.data[offset : offset + length]


@given(st.lists(SIZES, min_size=1, max_size=12), st.data())
def test_a_segment_is_sealed_in_one_passage(sizes: list[int], drawn: st.DataObject) -> None:
    data = bytearray()
    for number, size in enumerate(sizes):
        data += build_batch([(None, bytes([number]) * size, [], 100 + number)], base_offset=number)
    file = CountedFile(bytes(data))
    seal = compute_seal(file, len(data), 0, len(sizes) - 1)
    assert list(seal.checksums) == [crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    assert (seal.max_timestamp, seal.last_offset) == (99 + len(sizes), len(sizes) - 1)
    assert file.bytes_read == len(data)

    with pytest.raises(CorruptLogError):
        compute_seal(CountedFile(bytes(data[:-1])), len(data), 0, len(sizes) - 1)
    data[drawn.draw(st.integers(0, len(data) - 1))] ^= 1
    with suppress(CorruptLogError):  # what a batch's own sum leaves out is in its block's
        assert compute_seal(CountedFile(bytes(data)), len(data), 0, len(sizes) - 1).checksums != seal.checksums


def test_a_seal_tells_which_block_changed(tmp_path: Path) -> None:
    path, length = segment_file(tmp_path, [5000] * 60)
    file = RealDisk().open(str(path))
    seal = decode_seal(compute_seal(file, length, 0, 59).encode(), "s")
    assert (seal.length, seal.last_offset, seal.max_timestamp) == (length, 59, 159)
    assert len(seal.checksums) == -(-length // BLOCK_BYTES)
    data = bytearray(path.read_bytes())
    seal.check(memoryview(data), 0, "p", 0)
    start, end = seal.block_range(BLOCK_BYTES + 1, length)
    assert (start, end) == (BLOCK_BYTES, length)
    for at in (0, BLOCK_BYTES, 2 * BLOCK_BYTES - 1, length - 1):
        data[at] ^= 4
        with pytest.raises(CorruptLogError) as caught:
            seal.check(memoryview(data), 0, "p", 7)
        assert caught.value.start <= at < caught.value.end
        assert caught.value.offset == 7
        data[at] ^= 4
    with pytest.raises(CorruptLogError):
        compute_seal(file, length, 0, 58)
    with pytest.raises(CorruptLogError):
        compute_seal(file, length - 1, 0, 59)
    file.close()


@pytest.mark.parametrize(("harm", "offset"), [(100, 700), (6000, 701)])
def test_a_segment_that_cannot_be_sealed_tells_from_which_offset_on_it_is_damaged(
    tmp_path: Path, harm: int, offset: int
) -> None:
    path, length = segment_file(tmp_path, [5000] * 3, base=700)
    data = bytearray(path.read_bytes())
    data[harm] ^= 1
    path.write_bytes(data)
    file = RealDisk().open(str(path))
    with pytest.raises(CorruptLogError) as caught:
        compute_seal(file, length, 700, 702)
    assert caught.value.offset == offset
    with pytest.raises(CorruptLogError) as caught:
        compute_seal(file, 0, 700, 698)
    assert caught.value.offset == 700
    file.close()


@given(st.data())
def test_a_damaged_seal_is_refused(data: st.DataObject) -> None:

    encoded = bytearray(Seal(3 * BLOCK_BYTES, 9, 9, array("I", [1, 2, 3])).encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StorageError):
        decode_seal(bytes(encoded), "p")
    with pytest.raises(StorageError):
        decode_seal(b"", "p")


@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 4), st.data())
def test_one_sum_stands_for_those_of_all_blocks(tail: bytes, start: int, blocks: int, data: st.DataObject) -> None:
    whole = random.Random(len(tail)).randbytes((start + blocks) * BLOCK_BYTES) + tail
    pieces = [whole[place : place + BLOCK_BYTES] for place in range(0, len(whole), BLOCK_BYTES)]
    sums = array("I", map(crc32c, pieces))
    assert joined(sums[start : start + blocks]) == crc32c(whole[start * BLOCK_BYTES : (start + blocks) * BLOCK_BYTES])
    seal = Seal(len(whole), 0, 0, sums)
    position = start * BLOCK_BYTES
    seal.check(memoryview(whole)[position:], position, "p", 7)
    if len(whole) > position:
        harmed = bytearray(whole[position:])
        place = data.draw(st.integers(0, len(harmed) - 1))
        harmed[place] ^= data.draw(st.integers(1, 255))
        with pytest.raises(CorruptLogError) as caught:
            seal.check(memoryview(harmed), position, "p", 7)
        first = position + place // BLOCK_BYTES * BLOCK_BYTES
        assert (caught.value.start, caught.value.end) == (first, min(first + BLOCK_BYTES, len(whole)))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000, BLOCK_BYTES])
def test_one_flipped_bit_is_found_wherever_it_is(size: int) -> None:
    dice = random.Random(size)
    block = bytearray(dice.randbytes(size))
    wanted = crc32c(block)
    assert flipped_bit(block, wanted) is None
    for at in {0, size - 1, size // 2, *(dice.randrange(size) for _ in range(20))}:
        mask = 1 << dice.randrange(8)
        block[at] ^= mask
        assert flipped_bit(block, wanted) == (at, mask)
        if size > 1:
            block[at - 1] ^= 8
            assert flipped_bit(block, wanted) is None, "two of them"
            block[at - 1] ^= 8
        block[at] ^= mask


def test_the_hot_window_lets_go_of_what_is_oldest() -> None:
    window = VerifiedWindow(limit_bytes=2 * GRAIN_BYTES)
    one, two = Segment(RealDisk(), "d", 0), Segment(RealDisk(), "d", 9)
    window.add(one, 10, 40)
    window.add(one, 40, GRAIN_BYTES + 60)
    assert window.covers(one, 10, GRAIN_BYTES + 60)
    assert window.covers(one, 10, 10)
    assert not window.covers(one, 9, 20)
    assert not window.covers(one, 20, GRAIN_BYTES + 61)
    window.add(two, 0, GRAIN_BYTES)
    assert not window.covers(one, 10, 20)  # the oldest grain went, and only that
    assert window.covers(one, GRAIN_BYTES, GRAIN_BYTES + 60)
    assert window.covers(two, 0, GRAIN_BYTES)


def test_the_hot_window_keeps_one_run_of_a_grain() -> None:
    window = VerifiedWindow()
    segment = Segment(RealDisk(), "d", 0)
    window.add(segment, 100, 200)
    window.add(segment, 50, 120)
    assert window.covers(segment, 50, 200)
    window.add(segment, 300, 400)
    assert window.covers(segment, 300, 400)
    assert not window.covers(segment, 100, 200)
    window.forget(segment, 390, 391)
    assert not window.covers(segment, 300, 310)


STEPS = st.sampled_from(["add", "add", "forget", "drop", "add back"])


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 160), st.integers(1, 120), STEPS), max_size=60))
def test_the_hot_window_never_claims_what_was_not_added(
    steps: list[tuple[int, int, int, str]],
) -> None:
    """Against a set of the pieces that were added; its size in bytes stays within the limit."""
    unit = BLOCK_BYTES // 2
    window = VerifiedWindow(limit_bytes=3 * GRAIN_BYTES)
    segments = [Segment(RealDisk(), "d", 0), Segment(RealDisk(), "d", 9)]
    added: set[tuple[int, int]] = set()
    dropped: set[tuple[int, int]] = set()
    for which, start, length, step in steps:
        pieces = {(which, piece) for piece in range(start, start + length)}
        blocks = {
            (which, piece)
            for block in range(start // 2, -(-(start + length) // 2))
            for piece in (2 * block, 2 * block + 1)
        }
        if step == "forget":
            window.forget(segments[which], start * unit, (start + length) * unit)
            added -= pieces
        elif step == "drop":
            window.drop(segments[which], start * unit, (start + length) * unit)
            dropped |= blocks & added
            added -= blocks
        elif step == "add back":
            for number, block in sorted(dropped & blocks):
                if block % 2 == 0:
                    window.add_back(segments[number], block * unit, (block + 2) * unit)
            added |= dropped & blocks
            dropped -= blocks
        else:
            window.add(segments[which], start * unit, (start + length) * unit)
            added |= pieces
        hot = {
            (number, piece)
            for number, segment in enumerate(segments)
            for piece in range(290)
            if window.covers(segment, piece * unit, (piece + 1) * unit)
        }
        assert hot <= added
        assert len(hot) * unit <= window.size <= window.limit_bytes


def test_what_was_written_last_is_recent_and_what_lies_behind_it_is_not() -> None:
    window = VerifiedWindow(4 * RECENT_BYTES)
    early, late = Segment(RealDisk(), "d", 0), Segment(RealDisk(), "d", 9)
    window.add(early, 0, 100, written=True)
    assert window.is_recent(early, 50)
    window.add(late, 0, RECENT_BYTES - 1, written=True)
    assert window.is_recent(early, 50)
    window.add(late, RECENT_BYTES - 1, RECENT_BYTES, written=True)
    assert not window.is_recent(early, 50)
    window.add(early, 0, 100)
    assert not window.is_recent(early, 50), "verified is not written"
    assert window.covers(early, 0, 100), "hot it stays"
    window.drop(late, 0, RECENT_BYTES)
    assert not window.covers(late, 0, 1)
    assert window.is_recent(late, 0), "it belongs in memory"
    window.forget(late, 0, RECENT_BYTES)
    assert not window.is_recent(late, 0)
