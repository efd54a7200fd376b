"""Reads that begin behind damage: what is sound comes, wherever the index leads; what only looks so never does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from storage_helpers import Bench, cold

from duramen.errors import CorruptLogError
from duramen.storage.salvage import Landing, chain_behind
from duramen.storage.segment import Segment
from duramen.wire.batch import HEADER_SIZE, BatchHeader, batches, build_batch
from duramen.wire.seal import BLOCK_BYTES

INTERVALS = [0, 4096, 30_000, 1 << 20]
Stored = list[tuple[int, BatchHeader]]


def make(path: Path, interval: int, count: int = 130, values: Callable[[int], bytes] | None = None) -> Bench:
    """A segment of batches of three records, by default some 4 KB each, and the beginning of one behind it."""
    bench = Bench(path, segment_bytes=1 << 30, index_interval_bytes=interval)
    for number in range(count):
        value = b"%d:" % number + b"x" * 1300 if values is None else values(number)
        bench.append(value, b"", value, timestamp=1000 + number)
    bench.log.roll()  # before a checkpoint, which would seal some of it
    bench.fill(2)
    bench.sync(full=True)
    return bench


def contents(segment: Segment) -> Stored:
    return list(batches(memoryview(Path(segment.path).read_bytes())))


def overwrite(segment: Segment, position: int, data: bytes) -> None:
    with open(segment.path, "r+b") as file:
        file.seek(position)
        file.write(data)


def answers(bench: Bench, offset: int) -> CorruptLogError | bytes:
    """What a fetch of this offset, and no other before it, brings: its first batch, or the error."""
    cold(bench)
    try:
        data = bench.read(offset, 1)
    except CorruptLogError as error:
        return error
    [(at, header)] = list(batches(data))
    return data[at : at + header.size]


def check_all(bench: Bench, whole: bytes, stored: Stored, bad: set[int]) -> None:
    """Each offset of the first segment brings its own batch, but for those of the batches that begin at `bad`."""
    damaged = [header for at, header in stored if at in bad]
    for at, header in stored:
        for offset in range(header.base_offset, header.next_offset):
            found = answers(bench, offset)
            if at not in bad:
                assert found == whole[at : at + header.size], offset
                continue
            assert isinstance(found, CorruptLogError), offset
            assert (found.offset, found.last_offset) == (damaged[0].base_offset, damaged[-1].last_offset), offset


def touching(stored: Stored, start: int, end: int) -> set[int]:
    return {at for at, header in stored if at < end and at + header.size > start}


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("inside", [0, 8, 16, 23, 200])
def test_without_a_seal_all_but_the_damaged_batch_is_read(tmp_path: Path, interval: int, inside: int) -> None:
    """Header bytes of it, its length among them, or bytes of its records."""
    bench = make(tmp_path, interval, count=40)
    segment = bench.log.segments[0]
    stored, whole = contents(segment), Path(segment.path).read_bytes()
    for number in (0, 17, 18, len(stored) - 1):
        at, _ = stored[number]
        overwrite(segment, at + inside, bytes(each ^ 0x55 for each in whole[at + inside : at + inside + 8]))
        check_all(bench, whole, stored, {at})
        overwrite(segment, 0, whole)
    bench.close()


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("block", [0, 3, 4])
@pytest.mark.parametrize("inside", [50, 30_000, BLOCK_BYTES - 200])
def test_with_a_seal_all_but_the_batches_in_the_bad_block_is_read(
    tmp_path: Path, interval: int, block: int, inside: int
) -> None:
    bench = make(tmp_path, interval)
    bench.seal()
    segment = bench.log.segments[0]
    stored, whole = contents(segment), Path(segment.path).read_bytes()
    at = block * BLOCK_BYTES + inside
    overwrite(segment, at, bytes(each ^ 0x55 for each in whole[at : at + 120]))
    check_all(bench, whole, stored, touching(stored, block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES))
    bench.close()


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("sealed", [False, True])
def test_batches_in_a_value_are_never_served(tmp_path: Path, interval: int, sealed: bool) -> None:
    """Whole ones, with the very offsets that are asked for, and nothing of the batch around them but its records."""

    def nested(number: int) -> bytes:
        first = 3 * number
        inner = [build_batch([(None, b"forged", [], 1)], base_offset=first + each, leader_epoch=0) for each in range(9)]
        return b"y" * 500 + b"".join(inner)

    bench = make(tmp_path, interval, values=nested)
    if sealed:
        bench.seal()
    segment = bench.log.segments[0]
    stored, whole = contents(segment), Path(segment.path).read_bytes()
    if sealed:
        block = 3 * BLOCK_BYTES
        bad = touching(stored, block, block + BLOCK_BYTES)
        overwrite(segment, max(bad), bytes(HEADER_SIZE))  # it reaches into the next block: there only forged ones begin
    else:
        bad = {stored[50][0]}
        overwrite(segment, stored[50][0], bytes(HEADER_SIZE))
    check_all(bench, whole, stored, bad)
    bench.close()


def test_two_damaged_places_hide_what_is_between_them_at_most(tmp_path: Path) -> None:
    """Nothing vouches for what leads to neither a batch that the index names nor the segment's end."""
    bench = make(tmp_path, 1 << 20, count=40)
    segment = bench.log.segments[0]
    stored, whole = contents(segment), Path(segment.path).read_bytes()
    for number in (10, 20):
        overwrite(segment, stored[number][0], bytes(HEADER_SIZE))
    for number, (at, header) in enumerate(stored):
        found = answers(bench, header.last_offset)
        if 10 <= number <= 20:
            assert isinstance(found, CorruptLogError)
            assert (found.offset, found.last_offset) == (stored[10][1].base_offset, stored[20][1].last_offset)
        else:
            assert found == whole[at : at + header.size]
    bench.close()


def test_behind_the_last_of_several_bad_blocks_all_is_read(tmp_path: Path) -> None:
    """In a bad block batches may have their CRCs, and lead to where they should: none of them is served."""
    bench = make(tmp_path, 1 << 20)
    bench.seal()
    segment = bench.log.segments[0]
    stored, whole = contents(segment), Path(segment.path).read_bytes()
    for block in (1, 3):
        overwrite(segment, block * BLOCK_BYTES + 500, bytes(100))
    for at, header in stored:
        found = answers(bench, header.base_offset)
        if at + header.size <= BLOCK_BYTES or at >= 4 * BLOCK_BYTES:
            assert found == whole[at : at + header.size], header.base_offset
        else:
            assert isinstance(found, CorruptLogError), header.base_offset
    bench.close()


def test_damage_that_was_got_around_is_told(tmp_path: Path) -> None:
    bench = make(tmp_path, 1 << 20, count=40)
    segment = bench.log.segments[0]
    (start, damaged), (end, following) = contents(segment)[10:12]
    overwrite(segment, start, bytes(HEADER_SIZE))
    cold(bench)
    read = bench.log.read(following.base_offset, 1, bench.log.end_offset, at_least_one=True)
    [part] = read.parts
    part.run()
    part.complete()
    [told] = bench.log.take_notices()
    assert (told.start, told.end) == (start, end)
    assert (told.offset, told.last_offset) == (damaged.base_offset, damaged.last_offset)
    bench.close()


class Counted:
    """Bytes in memory as a file that counts what is read of them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.count = 0

    def pread(self, length: int, offset: int) -> bytes:
        self.count += length
        return self.data[offset : offset + length]


def test_a_search_among_what_looks_like_batches_has_an_end() -> None:
    size = 1 << 19
    head = bytearray(build_batch([(None, b"v", [], 1)], base_offset=5)[:HEADER_SIZE])
    head[8:12] = (size // 2).to_bytes(4, "big")  # as if each went on for as long
    source = Counted(bytes(head) * (size // HEADER_SIZE))
    assert chain_behind(source, 0, Landing(size, 0, 100), from_offset=0) is None
    assert source.count < 80 << 20


def test_batches_that_end_elsewhere_are_not_believed() -> None:
    made = [bytes(build_batch([(None, b"v" * each, [], 1)], base_offset=each)) for each in range(5)]
    data = b"".join([bytes(100), *made])
    whole = Landing(len(data), 5, 5)
    assert chain_behind(Counted(data), 0, whole, from_offset=0) == (100, 0)
    assert chain_behind(Counted(data), 0, whole, from_offset=0, likely=100 + len(made[0])) == (100 + len(made[0]), 1)
    assert chain_behind(Counted(data), 0, Landing(len(data), 6, 6), from_offset=0) is None
    assert chain_behind(Counted(data), 0, Landing(len(data), 0, 4), from_offset=0) is None
    assert chain_behind(Counted(data + b"."), 0, Landing(len(data) + 1, 0, 9), from_offset=0) is None
    assert chain_behind(Counted(data), 0, Landing(len(data) + 500, 0, 9), from_offset=0) is None
