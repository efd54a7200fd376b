"""Files in a partition's directory that are none of its log's: every command tells them, a repair puts them aside."""

from __future__ import annotations

import pytest
from repair_world import Segments, filled, findings, opened
from storage_workload import FIRST, read_all, start
from test_lost_directories import cut_short, repaired

from duramen.cli.repair import survey_directory
from duramen.sim.disk import CrashDisk
from duramen.storage.losses import losses


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
    assert losses(disk, "/data") == []
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
