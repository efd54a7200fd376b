"""Logs whose directories are gone, and that are in another log directory."""

from __future__ import annotations

from tests.unit.storage.repair.test_lost_directories import lost
from tests.worlds.repair_world import TP, findings
from tests.worlds.storage_workload import FIRST, start

from duramen.partition.metadata.directory_checks import check_apart
from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.config import PlainLogConfig


def test_where_somebody_has_moved_it_to_another_log_directory_it_is_not_missed() -> None:
    disk, _, _ = lost(clean=True)
    directory = start(disk)
    elsewhere = CrashDisk()
    other: LogDirectory = start(elsewhere)
    other.create_log(TP, FIRST, PlainLogConfig())
    check_apart([directory, other])
    assert directory.offline == {}
    directory.close(clean=True)
    assert findings(disk) == []
