"""The crash disk loses exactly what was not synced, and says so the way a kernel does."""

from __future__ import annotations

import errno
from contextlib import closing
from random import Random

import pytest

from duramen.errors import DirectoryLockedError
from duramen.ports import Disk, File
from duramen.sim.world.disk import CrashDisk, DiskCall, Killed, PowerCut
from duramen.sim.world.inode import Inode


def durable_file(disk: CrashDisk, path: str, content: bytes) -> File:
    directory = path.rsplit("/", 1)[0]
    disk.make_directories(directory)
    disk.sync_directory("/")
    file = disk.open(path, create=True, write=True)
    file.pwritev([content], 0)
    file.sync()
    disk.sync_directory(directory)
    return file


def reboot(disk: CrashDisk) -> None:
    disk.power_cut()
    disk.power_on()


def test_it_is_a_disk() -> None:
    disk: Disk = CrashDisk()
    assert disk.volume_space("/").free > 0


def test_synced_bytes_survive_and_unsynced_vanish() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"durable")
    file.pwritev([b"un", b"synced"], 7)
    assert file.pread(100, 0) == b"durableunsynced"
    reboot(disk)
    assert disk.contents() == {"/d/a": b"durable"}


def test_an_unsynced_overwrite_reverts() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"0123456789")
    file.pwritev([b"xxx"], 2)
    reboot(disk)
    assert disk.contents()["/d/a"] == b"0123456789"


def test_a_kill_keeps_the_page_cache() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"durable")
    file.pwritev([b"!"], 7)
    disk.open("/d/b", create=True)
    disk.kill()
    disk.power_on()
    assert disk.contents() == {"/d/a": b"durable!", "/d/b": b""}


def test_a_name_is_lost_unless_its_directory_was_synced() -> None:
    disk = CrashDisk()
    disk.make_directories("/d")
    disk.sync_directory("/")
    file = disk.open("/d/a", create=True, write=True)
    file.pwritev([b"data"], 0)
    file.sync()
    reboot(disk)
    assert disk.list_directory("/d") == []


def test_an_unsynced_rename_and_removal_revert() -> None:
    disk = CrashDisk()
    durable_file(disk, "/d/a", b"a")
    durable_file(disk, "/d/b", b"b")
    disk.rename("/d/a", "/d/b")
    assert disk.contents() == {"/d/b": b"a"}
    reboot(disk)
    assert disk.contents() == {"/d/a": b"a", "/d/b": b"b"}
    disk.remove("/d/a")
    reboot(disk)
    assert disk.contents() == {"/d/a": b"a", "/d/b": b"b"}
    disk.rename("/d/a", "/d/b")
    disk.sync_directory("/d")
    reboot(disk)
    assert disk.contents() == {"/d/b": b"a"}


def test_a_rename_between_directories_is_never_half_done() -> None:
    for seed in range(40):
        disk = CrashDisk(Random(seed), torn=True)
        durable_file(disk, "/d/a", b"a")
        disk.make_directories("/e")
        disk.sync_directory("/")
        disk.rename("/d/a", "/e/a")
        reboot(disk)
        assert list(disk.contents().values()) == [b"a"]


def test_removing_a_directory_removes_its_tree() -> None:
    disk = CrashDisk()
    durable_file(disk, "/d/a", b"a")
    disk.make_directories("/d/e/f")
    disk.remove("/d")
    assert not disk.exists("/d")
    disk.sync_directory("/")
    reboot(disk)
    assert disk.list_directory("/") == []


def test_a_truncation_needs_a_sync() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"0123456789")
    file.truncate(4)
    assert file.size() == 4
    reboot(disk)
    assert disk.contents()["/d/a"] == b"0123456789"
    file = disk.open("/d/a", write=True)
    file.truncate(4)
    file.truncate(6)
    file.sync()
    reboot(disk)
    assert disk.contents()["/d/a"] == b"0123\0\0"


def test_a_torn_disk_keeps_only_what_was_there_or_was_written() -> None:
    kept = set()
    for seed in range(60):
        disk = CrashDisk(Random(seed), torn=True)
        file = durable_file(disk, "/d/a", b"s" * 1000)
        file.pwritev([b"u" * 9000], 500)
        reboot(disk)
        content = disk.contents()["/d/a"]
        assert content[:500] == b"s" * 500
        assert 1000 <= len(content) <= 9500
        assert set(content) <= {ord("s"), ord("u"), 0}
        kept.add(content)
    assert b"s" * 1000 in kept
    assert b"s" * 500 + b"u" * 9000 in kept
    assert any(0 < content.count(b"u") < 9000 for content in kept)
    assert any(content.rstrip(b"\0").count(0) for content in kept), "no hole was ever left"


def test_a_torn_disk_may_revert_or_keep_a_truncation() -> None:
    sizes = set()
    for seed in range(30):
        disk = CrashDisk(Random(seed), torn=True)
        file = durable_file(disk, "/d/a", b"0123456789")
        file.truncate(4)
        reboot(disk)
        sizes.add(len(disk.contents()["/d/a"]))
    assert sizes == {4, 10}


def test_torn_crashes_repeat_under_their_seed() -> None:
    def run() -> dict[str, bytes]:
        disk = CrashDisk(Random(11), torn=True)
        for name in ("a", "b", "c"):
            durable_file(disk, f"/d/{name}", bytes(3000)).pwritev([name.encode() * 5000], 100)
            disk.rename(f"/d/{name}", f"/d/{name}{name}")
        reboot(disk)
        return disk.contents()

    assert run() == run()


def test_power_fails_in_the_chosen_call() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"a")
    disk.cut_at = disk.calls + 2
    file.pwritev([b"b"], 1)
    with pytest.raises(PowerCut):
        file.sync()
    with pytest.raises(PowerCut):
        disk.exists("/d/a")
    file.close()
    disk.power_on()
    with pytest.raises(PowerCut, match="before the crash"):
        file.pread(1, 0)
    assert disk.open("/d/a").pread(10, 0) == b"a"


def test_on_a_torn_disk_the_last_call_may_have_its_effect() -> None:
    contents = set()
    for seed in range(20):
        disk = CrashDisk(Random(seed), torn=True)
        file = durable_file(disk, "/d/a", b"a")
        file.pwritev([b"b"], 1)
        disk.cut_at = disk.calls + 1
        with pytest.raises(PowerCut):
            file.sync()
        disk.power_on()
        contents.add(disk.contents()["/d/a"])
    assert contents >= {b"a", b"ab"}


def test_a_kill_at_a_call() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"a")
    disk.kill_at = disk.calls + 2
    file.pwritev([b"b"], 1)
    with pytest.raises(Killed):
        file.pwritev([b"c"], 2)
    disk.power_on()
    assert disk.contents() == {"/d/a": b"ab"}


def test_a_failed_sync_loses_its_pages_silently() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"a")
    file.pwritev([b"b"], 1)
    disk.fault = lambda call: OSError(errno.EIO, "I/O error") if call.operation == "sync" else None
    with pytest.raises(OSError, match="I/O error"):
        file.sync()
    disk.fault = None
    file.pwritev([b"c"], 2)
    file.sync()
    assert file.pread(10, 0) == b"abc"
    reboot(disk)
    assert disk.contents()["/d/a"] == b"a\0c"


def test_a_full_disk_takes_a_prefix_and_refuses_the_rest() -> None:
    disk = CrashDisk(capacity=10)
    file = durable_file(disk, "/d/a", b"12345678")
    with pytest.raises(OSError) as caught:
        file.pwritev([b"9", b"abc"], 8)
    assert caught.value.errno == errno.ENOSPC
    assert disk.contents()["/d/a"] == b"123456789a"
    assert disk.volume_space("/").free == 0
    with pytest.raises(OSError):
        disk.preallocate(file, 100)
    file.truncate(4)
    assert disk.volume_space("/").free == 6
    disk.remove("/d/a")
    assert disk.volume_space("/").free == 10


def test_preallocated_zeros_are_durable() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"abc")
    disk.preallocate(file, 5)
    reboot(disk)
    assert disk.contents()["/d/a"] == b"abc\0\0"


def test_locks_are_exclusive_and_end_with_the_process() -> None:
    disk = CrashDisk()
    disk.make_directories("/d")
    lock = disk.lock("/d/.lock")
    with pytest.raises(DirectoryLockedError):
        disk.lock("/d/.lock")
    lock.release()
    lock = disk.lock("/d/.lock")
    disk.kill()
    disk.power_on()
    again = disk.lock("/d/.lock")
    lock.release()
    with pytest.raises(DirectoryLockedError):
        disk.lock("/d/.lock")
    again.release()


def test_the_cache_is_cold_after_a_reboot_and_after_a_drop() -> None:
    disk = CrashDisk()
    durable_file(disk, "/d/a", b"x" * 10000)
    reboot(disk)
    file = disk.open("/d/a")
    buffer = bytearray(10000)
    assert file.pread_nowait(memoryview(buffer), 0) == -1
    assert file.pread(4096, 0) == b"x" * 4096
    assert file.pread_nowait(memoryview(buffer), 0) == 4096
    assert file.pread_nowait(memoryview(buffer), 10000) == 0
    file.pread(10000, 0)
    assert file.pread_nowait(memoryview(buffer), 100) == 9900
    file.drop_cache(0, 8192)
    assert file.pread_nowait(memoryview(buffer), 0) == -1


def test_a_cold_read_of_a_file_that_is_cut_meanwhile_brings_what_is_left() -> None:
    disk = CrashDisk()
    with closing(disk.open("/f", create=True, write=True)) as file:
        file.pwritev([b"x" * 5000], 0)
        file.sync()
        file.drop_cache(0, 8192)

        def cut(call: DiskCall) -> float:
            if call.operation == "pread":
                node = disk.names.find("/f")
                assert isinstance(node, Inode)
                node.truncate(100)
            return 0.0

        disk.latency = cut
        buffer = memoryview(bytearray(5000))
        assert file.read_cold(buffer, 0) == 100
        assert bytes(buffer) == b"x" * 100 + bytes(4900)


def test_bad_calls_get_the_errors_of_a_kernel() -> None:
    disk = CrashDisk()
    file = durable_file(disk, "/d/a", b"a")
    with pytest.raises(FileNotFoundError):
        disk.open("/d/missing")
    with pytest.raises(IsADirectoryError):
        disk.open("/d")
    with pytest.raises(NotADirectoryError):
        disk.list_directory("/d/a")
    with pytest.raises(FileNotFoundError):
        disk.list_directory("/none")
    with pytest.raises(OSError, match="Bad file"):
        disk.open("/d/a").pwritev([b"x"], 0)
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.pread(1, 0)
    with pytest.raises(OSError):
        file.fileno()
    disk.make_directories("/e")
    with pytest.raises(OSError):
        disk.rename("/e", "/d")


def test_calls_are_counted_recorded_and_slow() -> None:
    disk = CrashDisk()
    disk.record = []
    disk.latency = lambda call: 0.25 if call.operation == "sync" else 0.0
    durable_file(disk, "/d/a", b"abc")
    assert [call.operation for call in disk.record] == [
        "make_directories",
        "sync_directory",
        "open",
        "pwritev",
        "sync",
        "sync_directory",
    ]
    assert disk.record[3] == DiskCall(4, "pwritev", "/d/a", 3)
    assert disk.calls == 6
    assert disk.take_delay() == 0.25
    assert disk.take_delay() == 0.0


def test_damage_outlives_a_reboot() -> None:
    disk = CrashDisk()
    durable_file(disk, "/d/a", b"abc")
    disk.damage("/d/a", 1, 0x01)
    reboot(disk)
    assert disk.contents()["/d/a"] == b"acc"


def test_a_copy_is_as_the_disk_and_goes_its_own_way() -> None:
    """Also what waits for a sync is the same: bytes, names, and a file that a rename is about to replace."""
    disk = CrashDisk(Random(1))
    disk.make_directories("/d/e")
    for name in ("old", "new"):
        with closing(disk.open(f"/d/e/{name}", create=True, write=True)) as file:
            file.pwritev([name.encode()], 0)
            file.sync()
    for path in ("/", "/d", "/d/e"):
        disk.sync_directory(path)
    disk.rename("/d/e/new", "/d/e/old")
    with closing(disk.open("/d/e/old", write=True)) as file:
        file.pwritev([b"er"], 3)
    other = disk.copy(Random(1))
    for either in (other, disk):
        assert either.contents() == {"/d/e/old": b"newer"}
        either.power_cut()
        assert either.contents() == {"/d/e/old": b"old", "/d/e/new": b"new"}
        either.power_on()
        with closing(either.open("/d/e/new", write=True)) as file:
            file.truncate(0)
        either.remove("/d/e/old")
        either.sync_directory("/d/e")
