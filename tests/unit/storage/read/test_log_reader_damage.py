"""Reads that meet damage: what is sound in front of it is handed out, and the damage is told with its place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.log_bench import Bench, cold, offset_for_timestamp, without_nowait

from duramen.errors import CorruptLogError
from duramen.storage.files.os_disk import RealFile
from duramen.storage.read.read_plan import Pending
from duramen.storage.segment.segment import Segment
from duramen.wire.batch import batches
from duramen.wire.seal import BLOCK_BYTES

BAD = 5 * BLOCK_BYTES + 30_000
"""A byte of the fifth block, inside of a batch."""


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[Bench]:
    """A segment of some ten blocks, which is finished, and a short one behind it."""
    made = Bench(tmp_path, segment_bytes=10 * BLOCK_BYTES, index_interval_bytes=4096)
    while len(made.log.segments) < 2:
        made.fill(1, size=1900)
    made.fill(3, size=1900)
    made.sync(full=True)
    yield made
    made.close()


def zero(segment: Segment, position: int) -> None:
    with open(segment.path, "r+b") as file:
        file.seek(position)
        file.write(bytes(512))


def touching(segment: Segment, start: int, end: int) -> list[int]:
    """Base offsets of the batches with bytes in start..end."""
    data = memoryview(Path(segment.path).read_bytes())
    return [header.base_offset for at, header in batches(data) if at < end and at + header.size > start]


def consume(bench: Bench, offset: int, most: int) -> tuple[int, BaseException | None]:
    """Read on from there: how far one comes, and the error that ends it."""
    while offset < bench.log.end_offset:
        try:
            read = bench.log.read(offset, most, bench.log.end_offset, at_least_one=True)
            data = bench.bytes_of(read)
        except (CorruptLogError, OSError) as error:
            return offset, error
        for part in read.parts:
            if isinstance(part, Pending):
                part.complete()
        found = bench.offsets(data)
        assert found, f"nothing at {offset}, and no error"
        assert found[0] == offset
        offset = found[-1] + 1
    return offset, None


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("most", [1 << 20, 1 << 18, 1 << 16, 20_000])
def test_one_comes_up_to_the_first_damaged_batch(wide: Bench, pool: bool, sealed: bool, most: int) -> None:
    segment = wide.log.segments[0]
    start, end = (5 * BLOCK_BYTES, 6 * BLOCK_BYTES) if sealed else (BAD, BAD + 1)
    bad = touching(segment, start, end)
    if sealed:
        wide.seal()
    cold(wide)
    if pool:
        without_nowait(wide)
    zero(segment, BAD)
    reached, error = consume(wide, 0, most)
    assert reached == bad[0]
    assert isinstance(error, CorruptLogError)
    assert error.start <= BAD < error.end
    for asked in (bad[0], bad[len(bad) // 2], bad[-1]):
        _, error = consume(wide, asked, most)
        assert isinstance(error, CorruptLogError)
        assert error.offset == bad[0], "which is not the reader's"
        assert error.last_offset == bad[-1], "which is the last of them"
    told = wide.log.take_notices()
    assert len(told) <= 1, "once, however often it was met"
    if most == 1 << 20:
        assert [(each.path, each.start) for each in told] == [(segment.path, error.start)]
        assert (told[0].offset, told[0].last_offset) == (bad[0], error.last_offset)
    behind, error = consume(wide, bad[-1] + 1, most)
    assert (behind, error) == (wide.log.end_offset, None)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_record_in_front_of_damage_is_found_by_time(wide: Bench, sealed: bool) -> None:
    segment = wide.log.segments[0]
    start, end = (5 * BLOCK_BYTES, 6 * BLOCK_BYTES) if sealed else (BAD, BAD + 1)
    bad = touching(segment, start, end)
    stored = [header for _, header in batches(memoryview(Path(segment.path).read_bytes()))]
    if sealed:
        wide.seal()
    zero(segment, BAD)
    refused = []
    for header in stored:
        try:
            found = offset_for_timestamp(wide.log, header.max_timestamp, wide.log.end_offset)
        except CorruptLogError:
            refused.append(header.last_offset)
        else:
            assert found is not None
            assert (found.offset, found.timestamp) == (header.last_offset, header.max_timestamp)
    assert refused, "what is damaged is not passed over"
    assert bad[0] <= refused[0] <= refused[-1] <= bad[-1] + 4, "up to a batch that the index knows"


@pytest.mark.parametrize("sealed", [False, True])
def test_one_comes_up_to_where_the_file_ends_too_early(wide: Bench, sealed: bool) -> None:
    segment = wide.log.segments[0]
    end = 5 * BLOCK_BYTES if sealed else BAD  # of a block that is cut off no sum is known
    bad = touching(segment, end, segment.size)
    if sealed:
        wide.seal()
    cold(wide)
    os.truncate(segment.path, BAD)
    reached, error = consume(wide, 0, 1 << 20)
    assert reached == bad[0]
    assert isinstance(error, CorruptLogError)
    assert (error.start, error.end) == (BAD, segment.size)


@pytest.mark.parametrize("sealed", [False, True])
def test_one_comes_up_to_the_block_that_the_disk_cannot_read(
    wide: Bench, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    segment = wide.log.segments[0]
    bad = touching(segment, 5 * BLOCK_BYTES, 6 * BLOCK_BYTES)
    if sealed:
        wide.seal()
    cold(wide)
    without_nowait(wide)
    read_cold = RealFile.read_cold

    def failing(file: RealFile, buffer: memoryview, offset: int, **more: Any) -> int:
        if file.path == segment.path and offset < 6 * BLOCK_BYTES and offset + len(buffer) > 5 * BLOCK_BYTES:
            raise OSError(errno.EIO, "latent sector error", file.path)
        return read_cold(file, buffer, offset, **more)

    monkeypatch.setattr(RealFile, "read_cold", failing)
    reached, error = consume(wide, 0, 1 << 20)
    assert isinstance(error, OSError)
    assert bad[0] - 2 <= reached <= bad[0], "a direct read takes whole pages around what is wanted"


def test_what_is_in_memory_is_sent_though_the_next_segment_is_damaged(wide: Bench) -> None:
    first, second = wide.log.segments
    cold(wide)
    at = second.base_offset - 5
    assert consume(wide, at, 1 << 16)[1] is None, "all of it is hot"
    second.close()
    wide.log.reader.dropped(second)
    os.remove(second.path)
    reached, error = consume(wide, at, 1 << 16)
    assert reached == second.base_offset
    assert isinstance(error, FileNotFoundError)
    assert first.next_offset == second.base_offset
