"""What belongs to a cluster of several nodes is not cut by itself: one line says why, and nothing is changed."""

from __future__ import annotations

import pytest
from tests.worlds.repair_world import Agreeing, filled, scribble
from tests.worlds.storage_workload import SeededEntropy

from duramen.errors import StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.shared_cluster import mark_shared, unmark_shared
from duramen.storage.repair.rebuild_metadata import rebuild_metadata_log
from duramen.storage.repair.repair import repair_directory, survey_journal_reset
from duramen.storage.repair.rewrite_partition import DROPPED

REFUSED = "/data belongs to a cluster of several nodes: {}, for a voter without committed records would vote"


def damaged() -> CrashDisk:
    disk = CrashDisk()
    _, segments = filled(disk)
    scribble(disk, segments[1][0], 30, 50)
    return disk


@pytest.mark.parametrize("dry_run", [False, True])
def test_no_records_are_dropped_from_one_copy(dry_run: bool) -> None:
    disk = damaged()
    mark_shared(disk, "/data")
    before = disk.contents()
    with pytest.raises(StorageError, match=REFUSED.format("no records are dropped from one copy alone")):
        repair_directory(disk, "/data", SeededEntropy(), Agreeing(), dry_run=dry_run)
    assert disk.contents() == before
    unmark_shared(disk, "/data")
    found = repair_directory(disk, "/data", SeededEntropy(), Agreeing(), dry_run=dry_run)
    assert any(action.kind == DROPPED for action in found.actions)


def test_a_flipped_bit_is_turned_back_all_the_same() -> None:
    disk = CrashDisk()
    _, segments = filled(disk)
    path = segments[0][0]
    sound = disk.contents()[path]
    disk.damage(path, 100, 0x01)
    mark_shared(disk, "/data")
    assert repair_directory(disk, "/data", SeededEntropy(), Agreeing()).is_applied
    assert disk.contents()[path] == sound


def test_its_metadata_log_does_not_begin_anew() -> None:
    disk = damaged()
    mark_shared(disk, "/data")
    with pytest.raises(StorageError, match=REFUSED.format("its metadata log does not begin anew")):
        rebuild_metadata_log(disk, "/data", 1000, SeededEntropy(), lambda _: None, dry_run=True)


def test_its_journal_is_not_given_up() -> None:
    disk = damaged()
    mark_shared(disk, "/data")
    assert survey_journal_reset(disk, "/data") is None
    disk.remove("/data/.kafka_cleanshutdown")
    for name in disk.list_directory("/data"):
        if name.endswith(".part"):
            disk.remove(f"/data/{name}")
    with pytest.raises(StorageError, match=REFUSED.format("its journal is not given up")):
        survey_journal_reset(disk, "/data")
