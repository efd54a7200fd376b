"""An overlay shows what was done to it, and the disk below stays as it was."""

from __future__ import annotations

import errno
from typing import cast

import pytest

from duramen.ports import Disk
from duramen.sim.world.disk import CrashDisk
from duramen.storage.files.atomic import replace_file
from duramen.storage.repair.overlay_disk import OverlayDisk, without_files


def filled() -> tuple[CrashDisk, Disk]:
    disk = CrashDisk()
    disk.make_directories("/d")
    for name in ("a", "b", "c"):
        replace_file(disk, f"/d/{name}", name.encode())
    return disk, cast(Disk, OverlayDisk(disk))


def content(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def test_names_change_on_the_overlay_alone() -> None:
    disk, overlay = filled()
    before = disk.contents()
    overlay.remove("/d/a")
    overlay.rename("/d/b", "/d/c")
    overlay.rename("/d/c", "/d/new")
    assert overlay.list_directory("/d") == ["new"]
    assert content(overlay, "/d/new") == b"b"
    assert [overlay.exists(f"/d/{name}") for name in ("a", "b", "c", "new")] == [False, False, False, True]
    assert disk.contents() == before
    assert disk.list_directory("/d") == ["a", "b", "c"]


def test_a_removed_name_can_be_given_again() -> None:
    _, overlay = filled()
    overlay.remove("/d/a")
    overlay.rename("/d/b", "/d/a")
    assert overlay.list_directory("/d") == ["a", "c"]
    assert content(overlay, "/d/a") == b"b"


def test_what_is_not_there_cannot_be_opened_removed_or_renamed() -> None:
    _, overlay = filled()
    overlay.remove("/d/a")
    for attempt in (overlay.open, overlay.remove, lambda path: overlay.rename(path, "/d/new")):
        with pytest.raises(FileNotFoundError):
            attempt("/d/a")  # type: ignore[operator]


def test_nothing_is_written() -> None:
    _, overlay = filled()
    for options in ({"write": True}, {"create": True}):
        with pytest.raises(OSError, match="Read-only") as error:
            overlay.open("/d/a", **options)
        assert error.value.errno == errno.EROFS


def test_without_files_hides_what_is_there_and_needs_no_overlay_for_nothing() -> None:
    disk, _ = filled()
    assert without_files(disk, []) is disk
    assert without_files(disk, ["/d/a", "/d/none"]).list_directory("/d") == ["b", "c"]
