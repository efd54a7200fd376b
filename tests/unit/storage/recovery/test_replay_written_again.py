"""What a kill leaves in a segment is written again from the journal, over what is there, and cut only behind that."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.unit.storage.recovery.test_startup_bounded import LOG0, again, filled, more, start, whole

from duramen.sim.world.disk import CrashDisk, DiskCall, NodeDied
from duramen.wire.batch import build_batch

COUNT, MORE = 300, 50


def recovered(disk: CrashDisk) -> list[DiskCall]:
    """The calls of a start after kill -9."""
    disk.kill()
    disk.power_on()
    disk.record = []
    start(disk)
    calls, disk.record = disk.record, None
    return calls


def named(calls: list[DiskCall], operation: str, path: str = LOG0) -> list[DiskCall]:
    return [call for call in calls if call.operation == operation and call.path == path]


def test_what_a_kill_left_is_written_again_and_nothing_is_cut() -> None:
    disk, directory, log = filled(COUNT)
    before = log.active.size
    more(directory, log, MORE)
    written = log.active.size - before
    calls = recovered(disk)
    assert sum(call.length for call in named(calls, "pwritev")) == written
    assert len(named(calls, "sync")) == 1
    assert not named(calls, "truncate")
    assert not [call for call in calls if call.path.endswith(".cut")]
    whole(again(disk, "power"), COUNT + MORE)


def test_a_page_that_only_the_cache_has_reaches_the_disk() -> None:
    """The sync of the segment failed when the node ended: its pages count as clean, and another sync does nothing."""
    disk, directory, log = filled(COUNT)
    more(directory, log, MORE)
    lose = True

    def fault(call: DiskCall) -> OSError | None:
        return OSError(5, "lost") if lose and call.operation == "sync" and call.path == LOG0 else None

    disk.fault = fault
    with pytest.raises(OSError, match="lost"):
        log.active.open_file().sync()
    lose = False
    recovered(disk)
    whole(again(disk, "power"), COUNT + MORE)


def test_what_lies_behind_the_last_journaled_batch_is_cut() -> None:
    disk, directory, log = filled(COUNT)
    more(directory, log, MORE)
    end = log.active.size
    batch = build_batch([(None, bytes(500), [], 5000)], base_offset=COUNT + MORE, leader_epoch=0)
    file = disk.open(LOG0, write=True)
    file.pwritev([batch], end)  # of a group that the journal never got
    file.close()
    calls = recovered(disk)
    assert len(named(calls, "truncate")) == 1
    assert [call for call in calls if call.path.endswith(".cut")]
    log = again(disk, "power")
    assert log.active.size == end
    whole(log, COUNT + MORE)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_start_that_dies_in_every_third_call_is_followed_by_one_that_finds_all(how: str) -> None:
    disk, directory, log = filled(COUNT)
    more(directory, log, MORE)
    calls = len(recovered(disk))
    for number in range(1, calls + 1, 3):
        disk, directory, log = filled(COUNT)
        more(directory, log, MORE)
        disk.kill()
        disk.power_on()
        if how == "kill":
            disk.kill_at = disk.calls + number
        else:
            disk.cut_at = disk.calls + number
        with suppress(NodeDied):
            start(disk)
        whole(again(disk, "power"), COUNT + MORE)
