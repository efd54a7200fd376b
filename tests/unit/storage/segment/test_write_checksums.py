"""The `.sealing` of an active segment grows by sums taken when it was written, and by reading where none were taken."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duramen.errors import CorruptLogError
from duramen.ports import File
from duramen.storage.segment.seal import grow, read_growing
from duramen.storage.segment.write_checksums import WrittenSums
from duramen.wire.checksum import crc32c
from duramen.wire.seal import BLOCK_BYTES, Seal

from tests.worlds.log_bench import Bench  # isort: skip

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.integers(1, 3 * BLOCK_BYTES), min_size=1, max_size=4)),
        st.tuples(st.just("unsummed"), st.integers(1, BLOCK_BYTES)),
        st.tuples(st.just("sync"), st.booleans()),
        st.tuples(st.just("cut"), st.floats(0, 1)),
    ),
    max_size=12,
)


def sealed(bench: Bench) -> Seal:
    segment = bench.log.active
    seal = read_growing(bench.disk, segment.path_of(".sealing"), segment.size)
    assert seal is not None
    return seal


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
@example(
    steps=[("write", [3 * BLOCK_BYTES]), ("cut", 0.0), *[("unsummed", BLOCK_BYTES)] * 3]
)  # other bytes, same blocks
def test_the_seal_is_of_the_files_bytes_however_they_were_written_synced_and_cut(
    steps: list[tuple[str, object]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        for what, how in steps:
            match what:
                case "write":
                    for size in cast(list[int], how):
                        bench.append((b"%d" % bench.log.end_offset * size)[:size])
                    bench.log.flush()
                case "unsummed":
                    bench.append(b"u" * cast(int, how))
                    bench.log.flush()
                case "sync":
                    bench.sync(full=cast(bool, how))
                case "cut" if bench.log.end_offset:
                    bench.truncate(int(bench.log.end_offset * cast(float, how)))
        bench.append(b"the last one")
        bench.sync(full=True)
        content = memoryview(Path(bench.log.active.path).read_bytes())
        seal = sealed(bench)
        assert seal.length == len(content)
        assert list(seal.checksums) == [
            crc32c(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES)
        ]
        bench.close()


def test_what_happens_to_bytes_between_write_and_checkpoint_is_not_vouched_for(tmp_path: Path) -> None:
    """The base offset of a batch is outside of its CRC: nothing but the seal tells."""
    bench = Bench(tmp_path)
    bench.append(b"v" * 3 * BLOCK_BYTES)
    bench.log.flush()
    with Path(bench.log.active.path).open("r+b") as file:
        file.seek(7)
        file.write(b"\x09")
    bench.sync(full=True)
    content = memoryview(Path(bench.log.active.path).read_bytes())
    with pytest.raises(CorruptLogError, match="differ from the seal"):
        sealed(bench).check(content, 0, "log", 0)


class CountingFile:
    """Counts what is read of it."""

    path = "log"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.bytes_read = 0

    def pread(self, length: int, offset: int) -> bytes:
        self.bytes_read += length
        return self.content[offset : offset + length]


def test_nothing_is_read_of_what_was_summed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    content = bytes(range(256)) * (5 * BLOCK_BYTES // 256) + b"begun"
    sums = WrittenSums()
    sums.add([content[:100], content[100 : BLOCK_BYTES + 7]], 0)
    sums.add([content[BLOCK_BYTES + 7 :]], BLOCK_BYTES + 7)
    file = CountingFile(content)
    path = str(tmp_path / "some.sealing")
    grow(bench.disk, cast(File, file), path, len(content), sums.take(), sync=False)
    assert file.bytes_read == len(b"begun")
    seal = read_growing(bench.disk, path, len(content))
    assert seal is not None
    seal.check(memoryview(content), 0, "log", 0)
    bench.close()


def test_a_block_whose_beginning_was_not_summed_is_none() -> None:
    sums = WrittenSums()
    sums.add([b"x" * 3 * BLOCK_BYTES], 10)
    assert sorted(sums.take()) == [1, 2]
    sums.add([b"x" * 2 * BLOCK_BYTES], 5 * BLOCK_BYTES + 10)  # something small was written in between
    assert sorted(sums.take()) == [6]
    assert not sums.take()


def test_a_file_that_somebody_has_cut_is_not_sealed_as_whole(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    path = str(tmp_path / "some.sealing")
    grow(bench.disk, cast(File, CountingFile(b"short")), path, BLOCK_BYTES, {}, sync=False)
    assert read_growing(bench.disk, path, BLOCK_BYTES) is None
    bench.close()
