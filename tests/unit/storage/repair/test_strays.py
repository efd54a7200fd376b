"""Files in a partition's directory that are none of its log's: every command tells them, a repair puts them aside."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from tests.worlds.repair_world import Segments, cut_short, filled, findings, opened, repaired
from tests.worlds.storage_workload import FIRST, read_all, start

from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.repair.repair import survey_directory


def put(disk: CrashDisk, path: str, content: bytes) -> None:
    file = disk.open(path, create=True, write=True)
    file.pwritev([content], 0)
    file.sync()
    file.close()
    disk.sync_directory(path.rpartition("/")[0])


def copied(disk: CrashDisk, segments: Segments, which: str) -> tuple[str, bytes]:
    """A `.log.swap` that is a copy of a segment, whole or in part; its path and content."""
    path, size, _ = segments[0 if which == "sealed" else -1]
    content = disk.contents()[path][: 100 if which == "torn" else size // 2]
    if which == "older":  # sound, but for what was appended since
        content = disk.contents()[path]
        content = content[: content.index(b"v" * 300) + 300]
    put(disk, f"{path}.swap", content)
    return f"{path}.swap", content


CASES = [(which, clean) for which in ("older", "torn", "sealed") for clean in (True, False)]


@pytest.mark.parametrize(("which", "clean"), CASES)
def test_a_copy_by_the_name_of_a_swap_is_told_and_put_aside(which: str, clean: bool) -> None:
    """No command said why the partition was offline; after a kill it took the place of the log."""
    disk = CrashDisk()
    records, segments = filled(disk, clean=clean)
    path, content = copied(disk, segments, which)
    before = disk.contents()
    for _ in range(2):
        assert [(finding.kind, finding.path) for finding in findings(disk) if finding.kind != "tail"] == [
            ("damage", path)
        ]
        (action,) = survey_directory(disk, "/data").actions
        assert (action.kind, action.path) == ("moved", path)
        directory = start(disk)
        assert directory.logs == {}
        assert path in str(directory.offline[FIRST, 0].error)
        assert which == "sealed" or "log repair" in str(directory.offline[FIRST, 0].error)
        directory.close(clean=True)
    for name, _, _ in segments[:-1]:
        assert disk.contents()[name] == before[name]
    repaired(disk, 0)
    assert disk.contents()[action.side_file] == content
    assert not disk.exists(path)
    assert findings(disk) == []
    assert read_losses(disk, "/data") == []
    directory, log = opened(disk)
    assert read_all(log) == records
    directory.close(clean=True)


@pytest.mark.parametrize(("which", "clean"), CASES)
def test_nothing_is_lost_behind_a_power_cut_in_any_call(which: str, clean: bool) -> None:
    harmed = CrashDisk()
    records, segments = filled(harmed, clean=clean)
    _, content = copied(harmed, segments, which)
    for disk in cut_short(harmed, lambda disk: repaired(disk, 0)):
        if survey_directory(disk, "/data").actions:
            repaired(disk, 0)
        assert content in [data for name, data in disk.contents().items() if "duramen-lost" in name]
        directory, log = opened(disk)
        assert read_all(log) == records
        directory.close(clean=True)


SUFFIXES = (".log", ".index", ".timeindex", ".seal", ".txnindex")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("number", [1, -1])
def test_a_directory_in_place_of_a_file_is_told_and_put_aside(suffix: str, clean: bool, number: int) -> None:
    """The start, and each command, ended with "Is a directory"."""
    disk = CrashDisk()
    records, segments = filled(disk, clean=clean)
    name, _, base = segments[number]
    path = name.removesuffix(".log") + suffix
    if disk.exists(path):
        disk.remove(path)
    put_directory(disk, path)
    assert ("damage", path) in [(finding.kind, finding.path) for finding in findings(disk)]
    moved = [action for action in survey_directory(disk, "/data").actions if action.kind == "moved"]
    assert [action.path for action in moved] == [path]
    copy = disk.copy(Random(1))
    with contextlib.nullcontext() if clean else contextlib.suppress(IsADirectoryError):
        assert all(path in str(left.error) for left in start(copy).offline.values())
    repaired(disk, int(suffix == ".log"))
    assert f"{moved[0].side_file}/inside" in disk.contents()
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    directory, log = opened(disk)
    lost = {n for loss in read_losses(disk, "/data") for n in range(loss["first_offset"], loss["last_offset"] + 1)}
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}
    assert all(base <= offset < base + 12 for offset in lost)
    directory.close(clean=True)
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []


def put_directory(disk: CrashDisk, path: str) -> None:
    disk.make_directories(path)
    put(disk, f"{path}/inside", b"something")
    disk.sync_directory(path.rpartition("/")[0])
