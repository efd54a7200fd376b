"""Reading a sealed segment from its directory: every byte once, and a typed error for whatever became of it."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from duramen.client.blocking.sealed_segments import SealedReader, SealedSegmentFile, check_directory
from duramen.errors import CorruptLogError, SegmentGoneError, StorageError, UnreachableStorageError
from duramen.page_cache import PAGE_BYTES, PastCache
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.segment.seal import compute_seal
from duramen.wire.batch import batches, build_batch, stamp
from duramen.wire.seal import BLOCK_BYTES

DIRECTORY_ID = "dirdirdirdirdirdirdirA"
TOPIC_ID = "toptoptoptoptoptoptopA"


def write_segment(folder: Path, base: int, sizes: list[int], seed: int = 0) -> SealedSegmentFile:
    """A data directory with one sealed segment of one-record batches with values of these sizes."""
    source = random.Random(seed)
    partition = folder / "t-0"
    partition.mkdir(parents=True, exist_ok=True)
    (folder / "meta.properties").write_text(f"cluster.id=c\ndirectory.id={DIRECTORY_ID}\nnode.id=1\nversion=1\n")
    (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    data = bytearray()
    for number, size in enumerate(sizes):
        batch = build_batch([(None, source.randbytes(size), (), 1000)])
        stamp(batch, base + number, 3)
        data += batch
    path = partition / f"{base:020d}.log"
    path.write_bytes(data)
    file = RealDisk().open(str(path))
    path.with_suffix(".seal").write_bytes(compute_seal(file, len(data), base, base + len(sizes) - 1).encode())
    file.close()
    return SealedSegmentFile(str(folder), DIRECTORY_ID, "t", 0, TOPIC_ID, base, len(data))


@pytest.fixture
def segment(tmp_path: Path) -> SealedSegmentFile:
    source = random.Random(5)
    return write_segment(tmp_path / "data", 100, [source.choice((10, 3000, 70_000)) for _ in range(60)])


def content(segment: SealedSegmentFile) -> bytes:
    return Path(segment.path).read_bytes()


def test_every_byte_comes_once_whatever_the_chunks(segment: SealedSegmentFile) -> None:
    for chunk in (1, BLOCK_BYTES, 200_000, 4 << 20):
        with SealedReader(segment) as reader:
            pieces = list(reader.read(chunk_bytes=chunk))
        assert b"".join(bytes(piece.data) for piece in pieces) == content(segment)
        assert pieces[-1].next_offset == 160
        for piece in pieces:
            *_, (position, last) = batches(piece.data)
            assert position + last.size == len(piece.data)
            assert last.next_offset == piece.next_offset


def test_ranges_between_boundaries_add_up(segment: SealedSegmentFile) -> None:
    data = content(segment)
    starts = [position for position, _ in batches(data)]
    cuts = [0, *sorted(random.Random(2).sample(starts[1:], 7)), len(data)]
    with SealedReader(segment) as reader:
        parts = [
            b"".join(bytes(piece.data) for piece in reader.read(left, right, 100_000))
            for left, right in itertools.pairwise(cuts)
        ]
    assert parts == [data[left:right] for left, right in itertools.pairwise(cuts)]


def test_a_batch_larger_than_a_chunk_comes_whole(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, 0, [10, 3 << 20, 10])
    with SealedReader(segment) as reader:
        pieces = list(reader.read(chunk_bytes=BLOCK_BYTES))
    assert b"".join(bytes(piece.data) for piece in pieces) == content(segment)


@pytest.mark.parametrize("place", [0.0, 0.4, 0.999])
def test_a_flipped_bit_is_never_handed_on(segment: SealedSegmentFile, place: float) -> None:
    data = bytearray(content(segment))
    at = int(place * len(data))
    data[at] ^= 4
    with open(segment.path, "r+b") as file:  # the same file: damage, not another segment
        file.write(data)
    good = bytearray()
    with SealedReader(segment) as reader, pytest.raises(CorruptLogError) as damaged:
        good.extend(byte for piece in reader.read(chunk_bytes=BLOCK_BYTES) for byte in piece.data)
    assert damaged.value.start <= at < damaged.value.end
    assert len(good) <= at
    assert data.startswith(good)


def test_what_was_deleted_has_to_be_planned_again(segment: SealedSegmentFile) -> None:
    log = Path(segment.path)
    for name in (log.with_suffix(".seal"), log, log.parent / "partition.metadata"):
        name.rename(name.with_suffix(".deleted"))
        with pytest.raises(SegmentGoneError):
            SealedReader(segment)
    log.parent.rename(log.parent.with_name("gone"))
    with pytest.raises(SegmentGoneError):
        SealedReader(segment)


def test_an_open_segment_outlives_its_deletion(segment: SealedSegmentFile) -> None:
    data = content(segment)
    with SealedReader(segment) as reader:
        os.remove(segment.path)
        assert b"".join(bytes(piece.data) for piece in reader.read()) == data


@pytest.mark.parametrize("before", [True, False])
def test_what_was_compacted_has_to_be_planned_again(segment: SealedSegmentFile, tmp_path: Path, before: bool) -> None:
    other = write_segment(tmp_path / "other", 100, [50] * 9)
    reader = None if before else SealedReader(segment)
    for suffix in (".seal", ".log"):  # one after the other, as a swap does it
        os.replace(Path(other.path).with_suffix(suffix), Path(segment.path).with_suffix(suffix))
    if reader is None:
        with pytest.raises(SegmentGoneError):
            SealedReader(segment)
    else:  # its open file is the old one, and so is its seal
        with reader:
            assert sum(len(piece.data) for piece in reader.read()) == segment.size_bytes


def test_a_segment_that_is_swapped_while_it_is_opened_is_no_damage(tmp_path: Path) -> None:
    """The seal is the new one, the open file the old one, of the same length."""
    segment = write_segment(tmp_path / "data", 0, [5000] * 9, seed=1)
    other = write_segment(tmp_path / "other", 0, [5000] * 9, seed=2)
    os.replace(Path(other.path).with_suffix(".seal"), Path(segment.path).with_suffix(".seal"))
    with SealedReader(segment) as reader:
        os.replace(other.path, segment.path)
        with pytest.raises(SegmentGoneError):
            list(reader.read())


def test_another_topic_of_that_name_is_not_read(segment: SealedSegmentFile) -> None:
    with pytest.raises(SegmentGoneError, match="topic"):
        SealedReader(segment._replace(topic_id="A" * 22))


def test_another_directory_is_not_read(segment: SealedSegmentFile, tmp_path: Path) -> None:
    check_directory(segment.log_dir, DIRECTORY_ID)
    for elsewhere in (
        segment._replace(directory_id="A" * 22),
        segment._replace(log_dir=str(tmp_path / "nowhere")),
        segment._replace(log_dir=str(tmp_path)),
    ):
        with pytest.raises(UnreachableStorageError):
            SealedReader(elsewhere)


def test_a_position_of_another_plan_is_noticed(segment: SealedSegmentFile) -> None:
    with SealedReader(segment) as reader, pytest.raises(SegmentGoneError):
        list(reader.read(start=33))


def test_a_damaged_seal_vouches_for_nothing(segment: SealedSegmentFile) -> None:
    seal = Path(segment.path).with_suffix(".seal")
    data = bytearray(seal.read_bytes())
    data[40] ^= 1
    seal.write_bytes(data)
    with pytest.raises(StorageError):
        SealedReader(segment)


def pages_in_memory(path: str) -> int:
    cache = PastCache()
    if cache.count is None:
        pytest.skip("this system does not tell what is in memory")
    with open(path, "rb") as file:
        return cache.count(file.fileno(), 0, os.path.getsize(path))


def chill(path: str, seconds: float = 10.0) -> None:
    """Out of memory with it."""
    patience = time.monotonic() + seconds
    while True:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not pages_in_memory(path):
            return
        if time.monotonic() > patience:
            pytest.skip("this file system keeps its files in memory")
        time.sleep(0.05)


HOT_AT, HOT_BYTES = 6 << 20, 2 << 20
HOT_PAGES = HOT_BYTES // PAGE_BYTES


def warm(path: str) -> int:
    """Bring a part of the file into memory, and nothing else of it; how many pages of it are there then."""
    chill(path)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        file.seek(HOT_AT)
        assert len(file.read(HOT_BYTES)) == HOT_BYTES
    return pages_in_memory(path)


@pytest.mark.parametrize("flag", [True, False])
def test_the_page_cache_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: bool) -> None:
    """The machine may take pages at any time. It took them if a file that nobody reads lost its own, too; and the
    reader did if they are gone each time, three times of three in which that other file kept its own."""
    if not flag:  # where the kernel or the file system has no reads past the cache
        monkeypatch.setattr("duramen.page_cache.uncached_flag", lambda: None)
    segment = write_segment(tmp_path, 0, [60_000] * 300)
    beside = shutil.copyfile(segment.path, tmp_path / "beside")
    lost: list[tuple[int, int]] = []
    for _ in range(10):
        warm(str(beside))
        before = warm(segment.path)
        assert before < 2 * HOT_PAGES
        with SealedReader(segment) as reader:
            assert sum(len(piece.data) for piece in reader.read()) == segment.size_bytes
        after = pages_in_memory(segment.path)
        assert after <= before + segment.size_bytes // PAGE_BYTES // 20
        if after >= 0.8 * HOT_PAGES:
            return
        if pages_in_memory(str(beside)) >= 0.8 * HOT_PAGES:
            lost.append((before, after))
            assert len(lost) < 3, f"pages in memory before and after: {lost}"
    pytest.skip("this machine takes pages out of memory all the time")
