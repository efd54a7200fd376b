"""What was written last is in memory as well: the same bytes as the file's, never older ones, and not too much."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.worlds.log_bench import Bench

from duramen.errors import KafkaError
from duramen.ports import FileSpan
from duramen.storage.read.tail_cache import LARGEST_BYTES, MOST_BYTES, MOST_WRITES
from duramen.wire.batch import build_batch


def _write(bench: Bench, *sizes: int) -> None:
    """A write of one batch for each size."""
    for size in sizes:
        bench.append(b"%d" % bench.log.end_offset + b"x" * size)
        bench.log.flush()


def _follow(bench: Bench) -> None:
    """Somebody has read all there is: one more record, which nobody asked for in time to find it in memory."""
    _write(bench, 1)
    assert _from_file(bench, bench.log.end_offset - 1)


def _from_file(bench: Bench, offset: int, *, most: int = 1 << 20, end: int | None = None) -> bool:
    """Whether a read asks the file; either way it brings what it should."""
    end = bench.log.end_offset if end is None else end
    found = bench.log.read(offset, most, end, at_least_one=True)
    assert found.next_offset <= end
    data = bench.bytes_of(found)
    assert len(data) == found.size
    assert data
    assert data in Path(bench.log.active.path).read_bytes()
    kinds = {isinstance(part, FileSpan) for part in found.parts}
    assert len(kinds) == 1
    return kinds == {True}


def test_who_follows_the_end_is_served_from_memory(bench: Bench) -> None:
    _follow(bench)
    _write(bench, 10, 200, 3000)
    assert not _from_file(bench, 3)
    assert not _from_file(bench, 1), "as far back as a few writes"
    assert not _from_file(bench, 1, end=3), "only as far as it may see"
    assert bench.offsets(bench.read(1, end=3)) == [1, 2]
    _write(bench, *[10] * MOST_WRITES)
    assert not _from_file(bench, 4), "it goes on as long as somebody reads"


def test_a_log_that_nobody_follows_keeps_nothing(bench: Bench) -> None:
    latest = bench.log.reader._hot.latest
    _write(bench, 10, 10, 10)
    assert _from_file(bench, 0, most=100), "but not to its end"
    _write(bench, 10)
    assert not latest._writes
    assert _from_file(bench, 3)
    _write(bench, *[10] * (MOST_WRITES + 3))
    assert len(latest._writes) == MOST_WRITES, "who comes back finds what one read brings together"
    assert bench.offsets(bench.read(4)) == list(range(4, bench.log.end_offset))


def test_writes_of_several_batches_are_one(bench: Bench) -> None:
    _follow(bench)
    bench.fill(5)
    bench.log.flush()
    assert not _from_file(bench, 1)
    assert bench.offsets(bench.read(1)) == [1, 2, 3, 4, 5]


def test_all_other_reads_ask_the_file(bench: Bench) -> None:
    bench.fill(5)
    _write(bench, 10, 10)
    assert _from_file(bench, 1), "from within a write"
    assert _from_file(bench, 0, end=3), "up to within a write"
    assert _from_file(bench, 0, most=300), "less than all"
    bench.append(b"a", b"b", b"c")
    bench.log.flush()
    assert _from_file(bench, 8), "from within a batch"
    assert not _from_file(bench, 7)


def test_who_is_further_behind_asks_the_file(bench: Bench) -> None:
    _follow(bench)
    _write(bench, *[10] * MOST_WRITES)
    assert _from_file(bench, 0)
    assert not _from_file(bench, 1)
    _write(bench, *[10] * (MOST_WRITES + 1))
    assert _from_file(bench, 1 + MOST_WRITES)


def test_a_large_write_is_not_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append_raw(build_batch([(None, bytes(LARGEST_BYTES), [], 0)]))
    bench.log.flush()
    assert _from_file(bench, 0)
    _write(bench, 10)
    assert not _from_file(bench, 1)
    assert _from_file(bench, 0)
    bench.close()


def test_nothing_of_a_history_that_was_cut_comes_back(bench: Bench) -> None:
    _write(bench, 10, 10)
    bench.truncate(1)
    bench.append(b"another")
    bench.log.flush()
    assert bench.values(bench.read(1)) == [b"another"]
    bench.truncate(0)
    assert bench.read(0) == b""
    bench.append(b"history")
    bench.log.flush()
    assert bench.values(bench.read(0)) == [b"history"]


def test_deleted_records_are_not_read(bench: Bench) -> None:
    _write(bench, 10, 10, 10)
    bench.log.advance_start(1)
    assert bench.offsets(bench.read(1)) == [1, 2]
    with pytest.raises(KafkaError, match="is outside 1"):
        bench.read(0)


def test_across_a_roll(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=400)
    for _ in range(20):
        _write(bench, 100)
        offset = bench.log.end_offset - 1
        assert bench.offsets(bench.read(offset)) == [offset]
        assert bench.offsets(bench.read(max(0, offset - 3))) == list(range(max(0, offset - 3), offset + 1))
    assert len(bench.log.segments) > 5
    bench.close()


def test_memory_is_bounded(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    latest = bench.log.reader._hot.latest
    _follow(bench)
    for _ in range(3 * MOST_BYTES // 4000):
        _write(bench, 4000)
        assert not _from_file(bench, bench.log.end_offset - 1)
    kept = [data for _, data in latest._writes.values()]
    assert sum(map(len, kept)) + 100 * len(kept) < MOST_BYTES
    assert len(kept) > MOST_BYTES // 8000
    bench.log.reader.dropped(bench.log.active)
    assert not latest._writes
    bench.close()
