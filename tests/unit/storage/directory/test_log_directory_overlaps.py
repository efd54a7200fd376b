"""Group commits, checkpoints and changes of durability that overlap: what one of them counts on, another may undo."""

from __future__ import annotations

import errno
from random import Random
from threading import Thread

import pytest

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.sim.world.entropy import SimEntropy
from duramen.storage.directory.housekeeping import HousekeepingJob
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.journal.journal import JournaledLog
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.durability import complete_sync, configure_log, take_sync
from duramen.storage.log.log import Log
from duramen.wire.batch import build_batch, parse_header

NOW = 1_000_000
TOPIC_ID = bytes(15) + b"\x07"
SETTINGS = DirectorySettings(
    journal_max_bytes=1 << 20, journal_part_bytes=1 << 16, bypass_bytes=1 << 15, retention_check_interval_ms=0
)
STABLE = PlainLogConfig(segment_bytes=1 << 20)
PAGE_CACHE = PlainLogConfig("page-cache", segment_bytes=1 << 20)
SMALL, LARGE = 300, 40 << 10
ENDS = pytest.mark.parametrize("ends", ["kill", "power_cut"])


def start(disk: CrashDisk) -> LogDirectory:
    return LogDirectory.open(disk, "/data", SETTINGS, now_ms=NOW, entropy=SimEntropy(Random(disk.calls)))


def begun(config: PlainLogConfig = STABLE, disk: CrashDisk | None = None) -> tuple[CrashDisk, LogDirectory, Log]:
    disk = disk or CrashDisk()
    directory = start(disk)
    log = directory.create_log(TopicPartition("t", 0), TOPIC_ID, config)
    log.assign_epoch(0)
    commit(directory)
    return disk, directory, log


def put(directory: LogDirectory, log: Log, size: int = SMALL) -> None:
    batch = build_batch([(None, b"v" * size, [], NOW)], base_offset=log.end_offset, leader_epoch=0)
    log.append(batch, parse_header(batch), NOW)
    directory.flush()


def commit(directory: LogDirectory) -> None:
    while (group := directory.take_group()) is not None:
        group.run()
        directory.journal.complete(group)
    for job in directory.take_rebuilds():
        job.run()
        job.complete()


def checkpoint(directory: LogDirectory) -> None:
    job = directory.take_checkpoint(force=True)
    assert job is not None
    job.run()
    directory.complete_checkpoint(job)


def sync(log: Log) -> None:
    job = take_sync(log)
    assert job is not None
    job.run()
    complete_sync(log, job)


def run_all(jobs: list[HousekeepingJob]) -> None:
    for job in jobs:
        job.run()
        job.complete()


def refuse_to_sync(disk: CrashDisk) -> None:
    def fault(call: DiskCall) -> OSError | None:
        failing = call.operation == "sync" and call.path.endswith(".log")
        return OSError(errno.EIO, "EIO", call.path) if failing else None

    disk.fault = fault


def after(disk: CrashDisk, ends: str) -> Log:
    """The log as the next start finds it, which must not be damaged."""
    getattr(disk, ends)()
    disk.power_on()
    directory = start(disk)
    assert not directory.offline
    (log,) = directory.logs.values()
    return log


@ENDS
def test_a_checkpoint_persists_nothing_behind_a_sync_that_failed_in_a_group(ends: str) -> None:
    """The kernel tells of lost pages once: the checkpoint's own sync of that file succeeds, and proves nothing."""
    disk, directory, log = begun()
    put(directory, log)
    put(directory, log)
    commit(directory)
    assert log.durable_end == 2
    put(directory, log, LARGE)
    group = directory.take_group()
    round_ = directory.take_checkpoint(force=True)
    assert group is not None
    assert round_ is not None
    refuse_to_sync(disk)
    with pytest.raises(OSError, match="EIO") as failure:
        group.run()
    disk.fault = None
    with pytest.raises(OSError, match="an earlier sync of it failed"):
        round_.run()
    directory.journal.fail(group, failure.value)
    assert after(disk, ends).end_offset == 2
    assert after(disk, "power_cut").end_offset == 2  # what a kill left is on the platter once it is served


@ENDS
def test_a_group_journals_no_extent_behind_a_sync_that_failed_in_a_checkpoint(ends: str) -> None:
    disk, directory, log = begun()
    put(directory, log)
    commit(directory)
    put(directory, log, LARGE)
    round_ = directory.take_checkpoint(force=True)
    group = directory.take_group()
    assert round_ is not None
    assert group is not None
    refuse_to_sync(disk)
    with pytest.raises(OSError, match="EIO") as failure:
        round_.run()
    disk.fault = None
    with pytest.raises(OSError, match="an earlier sync of it failed"):
        group.run()
    directory.fail_checkpoint(round_, failure.value)
    assert after(disk, ends).end_offset == 1


def test_a_topic_becomes_stable_with_the_names_that_a_checkpoint_was_going_to_sync() -> None:
    """A checkpoint's job that waits for its lane has taken the new segment's name upon itself."""
    config = PlainLogConfig("page-cache", segment_bytes=2000)
    disk, directory, log = begun(config)
    for _ in range(8):
        put(directory, log)
    commit(directory)
    assert len(log.segments) > 1
    assert directory.take_checkpoint(force=True) is not None
    configure_log(log, PlainLogConfig(segment_bytes=2000))
    put(directory, log)
    commit(directory)
    assert log.durable_end == 9
    assert after(disk, "power_cut").end_offset == 9


@ENDS
def test_nothing_is_acknowledged_while_a_change_of_durability_waits_for_its_group(ends: str) -> None:
    """What came in between is synced, and in no entry that a group which was under way before it has."""
    disk, directory, log = begun()
    put(directory, log)
    before = directory.take_group()
    assert before is not None
    before.run()
    configure_log(log, PAGE_CACHE)
    put(directory, log)
    configure_log(log, STABLE)
    acknowledged: dict[JournaledLog, int] = dict.fromkeys(directory.journal.complete(before), log.durable_end)
    assert after(disk, ends).end_offset >= acknowledged.get(log, 0)


def test_a_change_of_durability_acknowledges_with_its_group() -> None:
    disk, directory, log = begun()
    put(directory, log)
    before = directory.take_group()
    assert before is not None
    before.run()
    configure_log(log, PAGE_CACHE)
    put(directory, log)
    configure_log(log, STABLE)
    assert log not in directory.journal.complete(before)
    change = directory.take_group()
    assert change is not None
    change.run()
    assert log in directory.journal.complete(change)
    assert log.durable_end == 2
    assert after(disk, "power_cut").end_offset == 2


def test_a_segment_below_the_log_start_is_synced_before_it_is_let_go() -> None:
    """No checkpoint syncs what the log has let go of: a power cut before it is removed would leave it torn."""
    for seed in range(16):
        disk, directory, log = begun(PlainLogConfig(segment_bytes=2000), CrashDisk(Random(seed), torn=True))
        for _ in range(8):
            put(directory, log)
        log.advance_start(6)
        commit(directory)
        assert directory.take_maintenance(NOW)
        checkpoint(directory)
        commit(directory)
        assert after(disk, "power_cut").end_offset == 8


def test_a_segment_below_the_log_start_goes_once_it_is_synced() -> None:
    disk, directory, log = begun(PlainLogConfig(segment_bytes=2000))
    for _ in range(8):
        put(directory, log)
    log.advance_start(6)
    commit(directory)
    run_all(directory.take_maintenance(NOW))
    assert log.segments[0].base_offset == 0
    checkpoint(directory)
    run_all(directory.take_maintenance(NOW))
    assert log.segments[0].base_offset == 5
    assert not disk.exists("/data/t-0/00000000000000000000.log")


def test_a_checkpoint_knows_of_a_roll_whose_entry_the_power_cut_took() -> None:
    """The journal's last word of the log is its change of durability, at the same offset, in the segment before."""
    disk, directory, log = begun(PAGE_CACHE)
    put(directory, log)
    configure_log(log, STABLE)
    commit(directory)
    log.roll()
    assert directory.take_group() is not None
    checkpoint(directory)
    assert after(disk, "power_cut").active.base_offset == 1


def test_a_seal_that_a_start_gave_up_does_not_come_back() -> None:
    """Sealed behind a roll that the power cut took, the segment grows again: its seal would call it damaged."""
    disk, directory, log = begun()
    put(directory, log)
    commit(directory)
    checkpoint(directory)
    commit(directory)
    log.roll()
    sync(log)  # in a round that does not come to its end
    run_all(directory.take_maintenance(NOW))
    assert log.segments[0].sealed
    log = after(disk, "power_cut")
    assert not log.active.sealed
    disk.power_cut()
    disk.power_on()
    assert not disk.exists("/data/t-0/00000000000000000000.seal")


@ENDS
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_checkpoint_names_no_segment_of_the_page_cache_that_retention_took(ends: str, checkpointed: bool) -> None:
    """The journal has no rolls of such a log: a start looked for the end in the segment that the checkpoint names."""
    disk, directory, log = begun(PAGE_CACHE)
    put(directory, log)
    if checkpointed:
        commit(directory)
        checkpoint(directory)
        commit(directory)
    put(directory, log)
    log.roll()
    put(directory, log)
    sync(log)  # as a sink's commit has it, without a checkpoint of the directory
    log.advance_start(2)
    commit(directory)
    run_all(directory.take_maintenance(NOW))
    run_all(directory.take_maintenance(NOW))
    assert directory.checkpoint_due
    disk.sync_directory(log.path)
    found = after(disk.copy(Random(1)), ends)
    assert (found.start_offset, found.end_offset) == (2, 3)
    commit(directory)
    checkpoint(directory)
    commit(directory)
    run_all(directory.take_maintenance(NOW))
    run_all(directory.take_maintenance(NOW))
    assert [segment.base_offset for segment in log.segments] == [2]
    assert not directory.checkpoint_due
    found = after(disk, ends)
    assert (found.start_offset, found.end_offset) == (2, 3)


def test_two_syncs_of_a_log_do_not_take_each_others_files() -> None:
    """One of a topic that becomes stable, on the loop, beside a checkpoint's: a rename then failed, which fences."""
    disk, directory, log = begun()
    put(directory, log)
    log.assign_epoch(1)
    first = take_sync(log)
    log.assign_epoch(2)
    second = take_sync(log)
    assert first is not None
    assert second is not None
    beside = Thread(target=second.run)

    def overtaken(call: DiskCall) -> None:
        if call.operation == "rename" and "leader-epoch-checkpoint" in call.path and not beside.ident:
            beside.start()
            beside.join(0.2)

    disk.fault = overtaken
    first.run()
    beside.join()
    assert second.failed is None
    for job in (first, second):
        complete_sync(log, job)
    assert disk.contents()[f"{log.path}/leader-epoch-checkpoint"].split() == b"0 2 0 0 2 1".split()


def test_a_deletion_that_a_power_cut_takes_back_leaves_no_damage_behind() -> None:
    """A batch that bypassed the journal was synced under the directory's old name, and its segment's name was not."""
    disk, directory, log = begun()
    put(directory, log)
    commit(directory)
    log.roll()
    put(directory, log, LARGE)
    group = directory.take_group()
    assert group is not None
    directory.delete_log(log)
    group.run()
    directory.journal.complete(group)
    assert after(disk, "power_cut").end_offset == 2
