"""The real disk, with each platform's fallback forced once."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from duramen import page_cache
from duramen.errors import DirectoryLockedError
from duramen.ports import Buffer
from duramen.storage.files import os_disk as disk_module
from duramen.storage.files.os_disk import RealDisk, RealFile


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def test_what_is_written_is_read(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    assert file.pwritev([b"abc", bytearray(b"def"), memoryview(b"ghi")], 5) == 9
    assert file.size() == 14
    assert file.pread(100, 0) == b"\0" * 5 + b"abcdefghi"
    assert file.pread(3, 8) == b"def"
    assert file.pread(3, 14) == b""
    file.sync()
    file.truncate(8)
    assert file.size() == 8
    file.drop_cache(0, 8)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.fileno()


def test_more_buffers_than_one_call_takes(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    pieces = [b"%05d" % i for i in range(2500)]
    assert file.pwritev(pieces, 0) == 12_500
    assert file.pread(20_000, 0) == b"".join(pieces)
    file.close()


@pytest.mark.parametrize("at_most", [1, 3, 4, 7, 100])
def test_short_writes_are_completed(disk: RealDisk, tmp_path: Path, at_most: int) -> None:
    def short(descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(buffers)[:at_most], offset)

    disk.write = short
    file = disk.open(str(tmp_path / "f"), create=True)
    assert file.pwritev([b"abcd", b"", b"efg", b"hij"], 2) == 10
    assert file.pread(99, 2) == b"abcdefghij"
    file.close()


def test_without_pwritev_buffers_go_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pwritev")
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    assert file.pwritev([b"one", b"two"], 0) == 6
    assert file.pread(9, 0) == b"onetwo"
    file.close()


def test_reading_only_what_is_in_memory(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    file.pwritev([b"x" * 10_000], 0)
    buffer = memoryview(bytearray(4000))
    assert file.pread_nowait(buffer, 100) in (4000, -1)  # -1 on file systems that do not serve it
    file.close()


def test_without_nowait_every_read_would_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.pwritev([b"x"], 0)
    assert file.pread_nowait(memoryview(bytearray(1)), 0) == -1
    file.close()


@pytest.mark.parametrize(("code", "again"), [(errno.EOPNOTSUPP, False), (errno.EINVAL, False), (errno.EAGAIN, True)])
def test_a_refused_nowait_is_not_tried_again(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, again: bool
) -> None:
    calls = []

    def refuse(*args: object) -> int:
        calls.append(args)
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "preadv", refuse)
    disk.nowait = 8
    file = disk.open(str(tmp_path / "f"), create=True)
    for _ in range(2):
        assert file.pread_nowait(memoryview(bytearray(1)), 0) == -1
    assert len(calls) == (2 if again else 1)
    file.close()


def test_a_failing_nowait_read_is_an_error(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> int:
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(os, "preadv", fail)
    disk.nowait = 8
    file = disk.open(str(tmp_path / "f"), create=True)
    with pytest.raises(OSError, match="bad sector"):
        file.pread_nowait(memoryview(bytearray(1)), 0)
    file.close()


def test_syncing_fully_where_the_platform_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: commands.append(command))
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.sync()
    assert commands == [51]

    def unsupported(descriptor: int, command: int) -> None:
        raise OSError(errno.ENOTSUP, "no")

    synced = []
    monkeypatch.setattr(fcntl, "fcntl", unsupported)
    monkeypatch.setattr(os, "fsync", synced.append)
    file.sync()
    assert len(synced) == 1
    file.close()


def test_a_failed_full_sync_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, command: int) -> None:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", fail)
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    with pytest.raises(OSError, match="lost"):
        file.sync()
    file.close()


def test_without_fdatasync_fsync_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    monkeypatch.delattr(os, "fdatasync", raising=False)
    assert disk_module.sync_call() is os.fsync


def test_without_fadvise_dropping_cache_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.drop_cache(0, 1)
    file.close()


def test_preallocated_bytes_are_zeros_with_blocks(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    file.pwritev([b"keep"], 0)
    size = 3 * 1024 * 1024 + 5
    disk.preallocate(file, size)
    assert file.size() == size
    assert os.stat(file.path).st_blocks * 512 >= size
    assert file.pread(size, 0) == b"keep" + bytes(size - 4)
    file.close()


def test_a_directory_whose_sync_failed_is_not_called_durable_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    told = [OSError(errno.EIO, "lost")]

    def fsync(descriptor: int) -> None:
        if told:
            raise told.pop()  # the kernel says it once

    monkeypatch.setattr(os, "fsync", fsync)
    for path in (tmp_path / "a", tmp_path / "b"):
        path.mkdir()
    with pytest.raises(OSError, match="lost"):
        disk.sync_directory(str(tmp_path / "a"))
    for _ in range(2):
        with pytest.raises(OSError, match="an earlier sync of it failed"):
            disk.sync_directory(str(tmp_path / "a"))
    disk.sync_directory(str(tmp_path / "b"))
    disk.make_directories(str(tmp_path / "a"))
    with pytest.raises(OSError, match="an earlier sync of it failed"):
        disk.sync_directory(str(tmp_path / "a"))
    disk.rename(str(tmp_path / "a"), str(tmp_path / "gone"))
    disk.make_directories(str(tmp_path / "a"))
    disk.sync_directory(str(tmp_path / "a"))


def test_names(disk: RealDisk, tmp_path: Path) -> None:
    base = str(tmp_path / "a" / "b")
    disk.make_directories(base)
    disk.make_directories(base)
    for name in ("z", "c"):
        disk.open(f"{base}/{name}", create=True).close()
    assert disk.list_directory(base) == ["c", "z"]
    disk.rename(f"{base}/z", f"{base}/c")
    disk.sync_directory(base)
    assert disk.list_directory(base) == ["c"]
    assert disk.exists(f"{base}/c")
    disk.remove(f"{base}/c")
    assert not disk.exists(f"{base}/c")
    disk.remove(str(tmp_path / "a"))
    assert not disk.exists(base)
    with pytest.raises(FileNotFoundError):
        disk.open(f"{base}/c")
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "absent"), write=True)
    space = disk.volume_space(str(tmp_path))
    assert (space.total, 0 < space.free < space.total) == (shutil.disk_usage(tmp_path).total, True)


def test_a_file_is_said_to_be_older_than_it_is(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint: who is not the file's owner has it as young as it is."""
    path = str(tmp_path / "f")
    file = disk.open(path, create=True, write=True)
    file.pwritev([b"x"], 0)
    file.backdate(1_000_000_000_123)
    assert disk.modified_ms(path) == 1_000_000_000_123

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(errno.EPERM, "not the owner")

    monkeypatch.setattr(os, "utime", refuse)
    file.backdate(5)
    assert disk.modified_ms(path) == 1_000_000_000_123
    file.close()


def test_removing_a_link_leaves_what_it_points_to(disk: RealDisk, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    disk.remove(str(tmp_path / "link"))
    assert (tmp_path / "real" / "f").exists()


def test_the_lock_keeps_other_processes_out_until_released(disk: RealDisk, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = disk.lock(path)
    with pytest.raises(DirectoryLockedError, match="another process"):
        RealDisk().lock(path)
    program = (
        "import sys\nfrom duramen.storage.files.os_disk import RealDisk\n"
        "from duramen.errors import DirectoryLockedError\n"
        "try:\n    RealDisk().lock(sys.argv[1])\nexcept DirectoryLockedError:\n    sys.exit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, path], timeout=30, check=False).returncode == 3
    lock.release()
    lock.release()
    assert subprocess.run([sys.executable, "-c", program, path], timeout=30, check=False).returncode == 0


def test_a_dropped_file_gives_its_descriptor_back(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    descriptor = file.fileno()
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_cold_read_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    for forced in ("", "uncached"):
        disk = RealDisk()
        if forced:
            disk.uncached = None
        file = disk.open(str(tmp_path / f"f{forced}"), create=True)
        data = os.urandom(3 << 20)
        file.pwritev([data], 0)
        file.sync()
        if not evicted(file, len(data)):
            pytest.skip("this file system keeps its pages")
        assert not file.resident(0, len(data))
        assert not file.resident(5000, 1)
        file.pread(4096, 2 << 20)  # somebody else's page stays where it is
        buffer = memoryview(bytearray(1 << 20))
        assert file.read_cold(buffer, 4096) == 1 << 20
        assert buffer == data[4096 : 4096 + (1 << 20)]
        assert not any(file.resident(place, 1) for place in range(0, 2 << 20, page_cache.PAGE_BYTES))
        assert file.resident(2 << 20, 4096)
        assert file.read_cold(buffer, (2 << 20) + 4096) == (1 << 20) - 4096  # the end of the file
        assert file.read_cold(buffer, 4 << 20) == 0
        file.close()


def test_what_is_read_back_stays_and_nothing_else_comes_with_it(disk: RealDisk, tmp_path: Path) -> None:
    """A disk may read megabytes ahead: the next reader would take them for what somebody keeps in memory."""
    file = disk.open(str(tmp_path / "f"), create=True)
    data = os.urandom(16 << 20)
    file.pwritev([data], 0)
    file.sync()
    if not evicted(file, len(data)):
        pytest.skip("this file system keeps its pages")
    buffer = memoryview(bytearray(1 << 20))
    for place in (0, 1 << 20):
        assert file.read_back(buffer, place) == len(buffer)
        assert buffer == data[place : place + (1 << 20)]
    assert file.resident(0, 2 << 20)
    assert not any(file.resident(place, 1) for place in range(3 << 20, len(data), page_cache.PAGE_BYTES))
    assert file.read_back(buffer, len(data) - 1000) == 1000
    file.close()


def test_what_follows_is_on_its_way_where_that_is_wanted(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    data = os.urandom(8 << 20)
    file.pwritev([data], 0)
    file.sync()
    if not evicted(file, len(data)):
        pytest.skip("this file system keeps its pages")
    buffer = memoryview(bytearray(1 << 20))
    assert file.read_back(buffer, 0, ahead=256 << 10) == len(buffer)
    assert file.resident(0, (1 << 20) + (256 << 10))
    assert not any(file.resident(place, 1) for place in range(4 << 20, len(data), page_cache.PAGE_BYTES))
    disk.prefetch = None  # a system that cannot be told
    assert file.read_back(buffer, 5 << 20, ahead=256 << 10) == len(buffer)
    assert not file.resident(6 << 20, 1)
    file.close()


@pytest.mark.parametrize("direct", [True, False])
def test_a_settled_file_is_read_without_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    disk = RealDisk()
    if not direct:
        disk.direct = None
    elif disk.direct is None or not takes_direct_reads(disk, tmp_path):
        pytest.skip("no direct reads here")
    file = disk.open(str(tmp_path / "f"), create=True)
    data = os.urandom((1 << 20) + 12_345)
    file.pwritev([data], 0)
    file.sync()
    if not evicted(file, len(data)):
        pytest.skip("this file system keeps its pages")
    disk.uncached = None
    past = disk._read_and_drop
    by_cache: list[int] = []

    def read_and_drop(descriptor: int, buffer: memoryview, offset: int) -> int:
        by_cache.append(offset)
        return past(descriptor, buffer, offset)

    monkeypatch.setattr(disk, "_read_and_drop", read_and_drop)
    room = page_cache.aligned(bytearray(2 << 20))
    places = [(0, 65_536, 65_536), (8192, 1 << 20, 1 << 20), (1 << 20, 16_384, 12_345), (2 << 20, 4096, 0)]
    for offset, length, there in places:
        buffer = room[:length]
        assert file.read_cold(buffer, offset, settled=True) == there
        assert buffer[:there] == data[offset : offset + there]
        assert not any(file.resident(place, 1) for place in range(0, len(data), page_cache.PAGE_BYTES))
    assert by_cache == ([] if direct else [offset for offset, _, _ in places])
    by_cache.clear()
    # What is not aligned is read as ever, and what somebody keeps in memory comes from there and stays.
    assert file.read_cold(room[1:4097], 0, settled=True) == 4096
    assert room[1:4097] == data[:4096]
    file.pread(len(data), 0)
    assert file.read_cold(room[:65_536], 0, settled=True) == 65_536
    assert by_cache == [0, 0]
    assert file.resident(0, 65_536)
    file.close()


@pytest.mark.parametrize("way", ["direct", "uncached", "neither"])
def test_others_get_a_processor_while_much_is_read_past_the_page_cache(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way != "direct":
        disk.direct = None
    if way == "neither":
        disk.uncached = None
    file = disk.open(str(tmp_path / "f"), create=True)
    data = os.urandom(1 << 20)
    file.pwritev([data], 0)
    file.sync()
    evicted(file, len(data))
    sizes: list[int] = []
    preadv = os.preadv

    def counts(descriptor: int, buffers: list[memoryview], *rest: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return preadv(descriptor, buffers, *rest)

    monkeypatch.setattr(os, "preadv", counts)
    room = page_cache.room_for(len(data))
    assert file.read_cold(room, 0, settled=True) == len(data)
    assert room == data
    assert max(sizes) == page_cache.PIECE_BYTES
    # A program of its own, as Spark's tasks are, has nobody to give way to: fewer calls cost it less.
    sizes.clear()
    cache = page_cache.PastCache()
    cache.direct, cache.uncached = disk.direct, disk.uncached
    assert cache.read_settled(file.fileno(), room, 0) == len(data)
    assert max(sizes) == len(data)
    file.close()


def takes_direct_reads(disk: RealDisk, path: Path) -> bool:
    try:
        os.close(os.open(path / "probe", os.O_RDONLY | os.O_CREAT | (disk.direct or 0)))
    except OSError:
        return False
    return True


def evicted(file: RealFile, length: int) -> bool:
    """Drop all pages; some may be held for a moment by another processor's lists."""
    for _ in range(50):
        file.drop_cache(0, length)
        if not any(file.resident(place, 1) for place in range(0, length, page_cache.PAGE_BYTES)):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("ask", ["cachestat_call", "mincore_call"])
def test_what_is_in_memory_is_resident(tmp_path: Path, ask: str) -> None:
    disk = RealDisk()
    disk.count = getattr(page_cache, ask)()
    if disk.count is None:
        pytest.skip(f"no {ask} here")
    file = disk.open(str(tmp_path / "f"), create=True)
    file.pwritev([bytes(300_000)], 0)
    file.sync()
    for offset, length in ((0, 1), (0, 300_000), (4095, 2), (299_999, 1)):
        assert file.resident(offset, length)
        assert not file.nonresident(offset, length)
    if evicted(file, 300_000):
        for offset, length in ((0, 1), (0, 300_000), (4095, 2), (299_999, 1)):
            assert not file.resident(offset, length)
            assert file.nonresident(offset, length)
        file.pread(1, 299_999)
        assert file.resident(299_999, 1)
        assert not file.nonresident(0, 300_000)
    disk.count = None
    assert file.resident(0, 300_000)  # nothing can be asked
    assert not file.nonresident(0, 300_000)
    file.close()


def test_the_kernels_share_of_memory_is_sensible(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 16 << 20 < disk.cache_bytes() < 1 << 50
    monkeypatch.setattr(page_cache.os, "sysconf", _raises)
    assert disk.cache_bytes() == page_cache.UNKNOWN_SHARE_BYTES


def _raises(name: str) -> int:
    raise ValueError(name)
