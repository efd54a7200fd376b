"""Reads that begin behind damage: what is sound comes, wherever the index leads; what only looks so never does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.log_bench import Bench, cold

from duramen.errors import CorruptLogError
from duramen.storage.segment import corruption
from duramen.storage.segment.index import decode_offset_index
from duramen.storage.segment.segment import INDEX, Segment
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


def check_all(bench: Bench, whole: bytes, stored: Stored, bad: set[int], *, headers: bool = False) -> None:
    """Each offset of the first segment brings its own batch, but for those of the batches that begin at `bad`.

    headers: of the last of them nobody can tell where it ended. So none is read up to one that the index names.
    """
    hidden = set(bad)
    if headers:
        named = next((at for at in named_in(bench.log.segments[0]) if at > max(bad)), segment_end(stored))
        hidden |= {at for at, _ in stored if max(bad) < at < named}
    damaged = [header for at, header in stored if at in hidden]
    for at, header in stored:
        for offset in range(header.base_offset, header.next_offset):
            found = answers(bench, offset)
            if at not in hidden:
                assert found == whole[at : at + header.size], offset
                continue
            assert isinstance(found, CorruptLogError), offset
            assert (found.offset, found.last_offset) == (damaged[0].base_offset, damaged[-1].last_offset), offset


def named_in(segment: Segment) -> list[int]:
    """Where the batches begin that the index names."""
    index = decode_offset_index(Path(segment.path_of(INDEX)).read_bytes(), segment.size, 1 << 30)
    assert index is not None
    return list(index.positions)


def segment_end(stored: Stored) -> int:
    at, header = stored[-1]
    return at + header.size


def is_in_header(stored: Stored, start: int, end: int) -> bool:
    return any(at < end and start < at + HEADER_SIZE for at, _ in stored)


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
        check_all(bench, whole, stored, {at}, headers=inside in (8, 16))
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
    bad = touching(stored, block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
    lost = is_in_header(stored, at, at + 120)
    known = any(at + 120 <= each < (block + 1) * BLOCK_BYTES for each in named_in(segment))
    check_all(bench, whole, stored, bad, headers=lost and not known)
    bench.close()


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("sealed", [False, True])
def test_all_behind_a_damaged_batch_is_read_that_is_larger_than_what_is_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int, sealed: bool
) -> None:
    """It was told damaged up to the segment's end, and nothing behind it was read."""
    monkeypatch.setattr(corruption, "MOST_WALKED", 200_000)
    bench = make(tmp_path, interval, count=40, values=lambda number: b"x" * (400_000 if number == 17 else 1300))
    if sealed:
        bench.seal()
    segment = bench.log.segments[0]
    stored, whole = contents(segment), Path(segment.path).read_bytes()
    at, _ = stored[17]
    overwrite(segment, at + 2 * BLOCK_BYTES, b"?" * 50)
    check_all(bench, whole, stored, {at})
    bench.close()


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("sealed", [False, True])
def test_batches_in_a_value_are_never_served(tmp_path: Path, interval: int, sealed: bool) -> None:
    """Whole ones, with the very offsets that are asked for, and nothing of the batch around them but its records."""

    def nested(number: int) -> bytes:
        first = 3 * number
        inner = [build_batch([(None, b"forged", [], 1)], base_offset=first + each, leader_epoch=0) for each in range(9)]
        # The last byte of the batch around it, its last record's number of headers, ends the last one of these.
        last = build_batch([(None, b"forged", [], 1)] * 3, base_offset=first, leader_epoch=0)[:-1]
        return b"y" * 500 + b"".join(inner) + last

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
    check_all(bench, whole, stored, bad, headers=True)
    bench.close()


def test_behind_each_of_two_damaged_places_all_is_read(tmp_path: Path) -> None:
    """From the next batch on that the index names, for nothing else says where one begins."""
    bench = make(tmp_path, 4096, count=40)
    segment = bench.log.segments[0]
    stored, whole = contents(segment), Path(segment.path).read_bytes()
    hidden = set()
    for number in (10, 20):
        overwrite(segment, stored[number][0], bytes(HEADER_SIZE))
        named = next(at for at in named_in(segment) if at > stored[number][0])
        hidden |= {at for at, _ in stored if stored[number][0] <= at < named}
    assert len(hidden) < 6
    for at, header in stored:
        found = answers(bench, header.last_offset)
        assert found == whole[at : at + header.size] if at not in hidden else isinstance(found, CorruptLogError)
    bench.close()


def test_behind_each_of_several_bad_blocks_all_is_read(tmp_path: Path) -> None:
    """In a bad block batches may have their CRCs, and lead to where they should: none of them is served."""
    bench = make(tmp_path, 4096)
    bench.seal()
    segment = bench.log.segments[0]
    stored, whole = contents(segment), Path(segment.path).read_bytes()
    bad = set()
    for block in (1, 3):
        overwrite(segment, block * BLOCK_BYTES + 500, bytes(100))
        bad |= touching(stored, block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
    for at, header in stored:
        found = answers(bench, header.base_offset)
        assert found == whole[at : at + header.size] if at not in bad else isinstance(found, CorruptLogError)
    bench.close()


def test_damage_that_was_got_around_is_told(tmp_path: Path) -> None:
    bench = make(tmp_path, 4096, count=40)
    segment = bench.log.segments[0]
    stored = contents(segment)
    start, damaged = stored[10]
    overwrite(segment, start, bytes(HEADER_SIZE))
    named = next(at for at in named_in(segment) if at > start)
    behind = next(header for at, header in stored if at == named)
    cold(bench)
    read = bench.log.read(behind.base_offset, 1, bench.log.end_offset, at_least_one=True)
    [part] = read.parts
    part.run()
    part.complete()
    [told] = bench.log.take_notices()
    assert told.start == start
    assert (told.offset, told.last_offset) == (damaged.base_offset, behind.base_offset - 1)
    bench.close()


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("value", [b"\x02" * 200_000, b"x" * 20_000])
def test_a_fetch_at_damage_reads_what_is_near_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: bytes, sealed: bool
) -> None:
    """A consumer that stays there asks again and again: others, who also read from the disk, would wait for it."""
    bench = Bench(tmp_path, segment_bytes=1 << 30)
    while bench.log.active.size < 24 << 20:
        bench.append(value)
    bench.log.roll()
    bench.fill(2)
    bench.sync(full=True)
    if sealed:
        bench.seal()
    segment = bench.log.segments[0]
    at, header = contents(segment)[-3]
    overwrite(segment, at + 8, bytes(60))
    calls = []
    kind = type(segment.open_file())
    for name in ("pread", "read_cold", "read_back"):
        whole = getattr(kind, name)

        def counted(self: object, what: int | memoryview, *more: int, whole: Any = whole, **named: Any) -> Any:
            calls.append(what if isinstance(what, int) else len(what))
            return whole(self, what, *more, **named)

        monkeypatch.setattr(kind, name, counted)
    for offset in (header.base_offset, header.base_offset - 1, header.next_offset):
        cold(bench)
        calls.clear()
        read = bench.log.read(offset, 1 << 20, bench.log.end_offset, at_least_one=True)
        [part] = read.parts
        with suppress(CorruptLogError):
            part.run()
        assert sum(calls) < 8 << 20, offset
        assert len(calls) < 200, offset
    bench.close()
