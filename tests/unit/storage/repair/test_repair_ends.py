"""A repair that loses the end of a log: readers pass over these offsets, too, without an append behind them."""

from __future__ import annotations

import pytest
from tests.worlds.log_bench import max_timestamp_offset, offset_for_timestamp
from tests.worlds.repair_world import TP, Harm, Segments, filled, findings, interrupted, opened, scribble
from tests.worlds.storage_workload import append, checkpoint, commit, housekeep, read_all
from tests.worlds.stored_batches import stored_batches

from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.files.atomic import remove_file
from duramen.storage.log.log import Log
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED

END = 60


def reached(log: Log) -> int:
    """Where a reader stands who fetched the log from its start."""
    position = log.start_offset
    for header, _ in stored_batches(log, position, log.end_offset, 1 << 20):
        position = header.next_offset
    return position


def cut(disk: CrashDisk, segments: Segments) -> None:
    path, size, _ = segments[-1]
    with_end = disk.open(path, write=True)
    with_end.truncate(size - 400)
    with_end.sync()
    with_end.close()


def destroy_last_batch(disk: CrashDisk, segments: Segments) -> None:
    path, size, _ = segments[-1]
    scribble(disk, path, size - 200, 100)


def destroy_all(disk: CrashDisk, segments: Segments) -> None:
    path, size, _ = segments[-1]
    scribble(disk, path, 0, size)


def remove_active(disk: CrashDisk, segments: Segments) -> None:
    for name in list(disk.contents()):
        if name.startswith(segments[-1][0].removesuffix("log")):
            remove_file(disk, name)
    disk.sync_directory("/data/first-0")


HARMS = (cut, destroy_last_batch, destroy_all, remove_active)


def made_right(disk: CrashDisk, records: dict[int, bytes]) -> None:
    """All agree that the log ends where it did, and readers get there; also behind a start and an append."""
    assert findings(disk) == []
    assert survey_directory(disk, "/data").actions == []
    (lost,) = [(each["first_offset"], each["last_offset"]) for each in read_losses(disk, "/data")]
    assert lost[1] == END - 1
    kept = {offset: value for offset, value in records.items() if offset < lost[0]}
    directory, log = opened(disk)
    assert (log.end_offset, reached(log), read_all(log)) == (END, END, kept)
    youngest = max_timestamp_offset(log, END)
    assert youngest is not None
    assert youngest.offset == lost[0] - 1
    assert offset_for_timestamp(log, 1000 + lost[0], END) is None
    assert append(log, b"on") == END
    commit(directory)
    assert reached(log) == END + 1
    found = offset_for_timestamp(log, 1000 + lost[0], END + 1)
    assert found is not None
    assert found.offset == END
    log.roll()
    checkpoint(directory)
    housekeep(directory)
    directory.close(clean=True)
    assert findings(disk) == []
    directory, log = opened(disk)
    assert read_all(log) == {**kept, END: b"on"}
    directory.close(clean=False)


@pytest.mark.parametrize("harm", HARMS)
def test_readers_reach_the_end_of_a_log_that_lost_it(harm: Harm) -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    harm(disk, segments)
    apply_repair(disk, survey_directory(disk, "/data"))
    made_right(disk, records)


@pytest.mark.parametrize("harm", HARMS)
def test_readers_reach_it_after_a_repair_that_was_cut_short_anywhere(harm: Harm) -> None:
    for _, disk, records, *_ in interrupted(harm):
        apply_repair(disk, survey_directory(disk, "/data"))
        made_right(disk, records)


def rolled_and_shortened() -> tuple[CrashDisk, dict[int, bytes]]:
    """The active segment is empty; the one before it lost its last batch, which the list of losses has."""
    disk = CrashDisk()
    records, segments = filled(disk)
    directory, log = opened(disk)
    log.roll()
    checkpoint(directory)
    housekeep(directory)
    directory.close(clean=True)
    destroy_last_batch(disk, segments)
    return disk, records


def test_readers_reach_an_empty_segment_behind_offsets_that_are_lost() -> None:
    disk, records = rolled_and_shortened()
    apply_repair(disk, survey_directory(disk, "/data"))
    made_right(disk, records)


def test_a_log_without_any_segment_begins_at_its_end() -> None:
    disk = CrashDisk()
    _, segments = filled(disk)
    for path, *_ in segments:
        disk.remove(path)
    found = survey_directory(disk, "/data")
    assert [action.kind for action in found.actions][:1] == [DROPPED]
    apply_repair(disk, found)
    assert survey_directory(disk, "/data").actions == []
    directory, log = opened(disk)
    assert (log.tp, log.start_offset, log.end_offset) == (TP, END, END)
    directory.close(clean=False)
