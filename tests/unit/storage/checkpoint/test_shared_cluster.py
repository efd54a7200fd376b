"""The sign of a cluster of several nodes: durable when it is set, and there whatever is in it."""

from __future__ import annotations

import pytest

from duramen.errors import StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.shared_cluster import (
    SHARED_CLUSTER,
    is_shared,
    mark_shared,
    refuse_shared,
    spread_sign,
    unmark_shared,
)
from duramen.storage.files.atomic import replace_file


def test_it_outlives_a_power_cut() -> None:
    disk = CrashDisk()
    disk.make_directories("/d")
    disk.sync_directory("/")
    assert not is_shared(disk, "/d")
    refuse_shared(disk, "/d", "nothing is cut")
    mark_shared(disk, "/d")
    mark_shared(disk, "/d")
    assert disk.synced
    assert is_shared(disk, "/d")
    with pytest.raises(StorageError, match="/d belongs to a cluster of several nodes: nothing is cut, for a voter"):
        refuse_shared(disk, "/d", "nothing is cut")


def test_a_damaged_one_counts_and_only_formatting_takes_it_away() -> None:
    disk = CrashDisk()
    disk.make_directories("/d")
    replace_file(disk, f"/d/{SHARED_CLUSTER}", b"")
    assert is_shared(disk, "/d")
    unmark_shared(disk, "/d")
    unmark_shared(disk, "/d")
    assert not is_shared(disk, "/d")


def test_a_directory_that_is_added_to_a_node_gets_it() -> None:
    disk = CrashDisk()
    for path in ("/a", "/b"):
        disk.make_directories(path)
    spread_sign(disk, ["/a", "/b"])
    assert not is_shared(disk, "/a")
    mark_shared(disk, "/a")
    spread_sign(disk, ["/a", "/b"])
    assert is_shared(disk, "/b")
