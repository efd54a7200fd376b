"""What a start after a crash has to find again, because no checkpoint knows of it."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest
from tests.unit.storage.recovery.test_startup_bounded import (
    CONFIG,
    FIRST,
    SETTINGS,
    TP,
    SeededEntropy,
    checkpoint,
    commit,
    filled,
    more,
    start,
)
from tests.worlds.stored_batches import stored_batches

from duramen.errors import KafkaError
from duramen.sim.world.disk import CrashDisk, DiskCall, NodeDied
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.create import NewLog
from duramen.storage.log.durability import complete_sync, configure_log, take_sync
from duramen.storage.log.log import Log
from duramen.storage.log.seals import complete_seal, take_seals
from duramen.storage.log.truncation import truncate_log
from duramen.storage.segment.producer_state import Duplicate
from duramen.wire.batch import build_batch, parse_header

PAGE_CACHE = PlainLogConfig(durability="page-cache", index_interval_bytes=300)


def restarted(disk: CrashDisk) -> tuple[LogDirectory, Log]:
    """After a power cut; nothing may be offline, and no damage told."""
    disk.power_cut()
    disk.power_on()
    directory = start(disk)
    assert not directory.offline
    assert directory.recovery.damage == []
    return directory, directory.logs[FIRST, 0]


def is_known(log: Log, batch: bytearray) -> None:
    """Its producer sends it again, and is told where it is."""
    header = parse_header(batch)
    answer = log.producers.check(header)
    assert isinstance(answer, Duplicate)
    assert answer.base_offset == header.base_offset


def test_a_producer_is_known_whose_segment_never_got_its_name_and_whose_records_were_deleted() -> None:
    """They are below the log start, but the journal alone knows of them: retention has not been there."""
    disk, directory, log = filled(10)
    log.roll()
    more(directory, log, 1, producer=7)
    log.roll()
    log.advance_start(log.end_offset)
    commit(directory)
    directory, log = restarted(disk)
    assert (log.start_offset, log.end_offset) == (11, 11)
    sent_again = build_batch(
        [(None, b"10" + bytes(100), [], 1010)], producer_id=7, producer_epoch=0, base_sequence=10, base_offset=10
    )
    is_known(log, sent_again)


def test_a_checkpoint_does_not_count_what_a_sync_before_it_was_to_do_and_did_not() -> None:
    """Of a page-cache topic, `flush.messages` syncs beside checkpoints: here it was to sync the name of a segment."""
    disk, directory, log = filled(10)
    configure_log(log, PAGE_CACHE)
    more(directory, log, 3)
    log.roll()
    more(directory, log, 3)
    flushing = take_sync(log)
    more(directory, log, 1)
    job = directory.take_checkpoint(force=True)
    assert flushing is not None
    assert job is not None

    def full(call: DiskCall) -> OSError | None:
        return OSError(errno.EIO, "the index cannot be written") if call.operation == "pwritev" else None

    disk.fault = full
    with pytest.raises(OSError, match="cannot be written"):
        flushing.run()
    disk.fault = None
    with pytest.raises(OSError, match="earlier"):
        job.run()
    restarted(disk)


def put(directory: LogDirectory, log: Log, epoch: int) -> bytearray:
    """One batch of a leader epoch and of producer 7, who numbers by offset."""
    offset = log.end_offset
    batch = build_batch(
        [(None, bytes(100), [], 2000)],
        base_offset=offset, leader_epoch=epoch, producer_id=7, producer_epoch=0, base_sequence=offset,
    )  # fmt: skip
    log.append(memoryview(batch), parse_header(batch), 0)
    directory.flush()
    commit(directory)
    return batch


@pytest.mark.parametrize("rolled", [False, True])
def test_epochs_and_producers_of_which_the_journal_does_not_know(rolled: bool) -> None:
    """A page-cache topic that was made stable: the journal has its later batches at most."""
    disk, directory, log = filled(10)
    configure_log(log, PAGE_CACHE)
    batches = [put(directory, log, 5) for _ in range(3)]
    if rolled:
        log.roll()
        directory.flush()
        commit(directory)
    configure_log(log, CONFIG)
    directory.flush()
    commit(directory)
    if rolled:  # then the start has no reason to read what it may believe
        for seal in take_seals(log):
            seal.run()
            complete_seal(log, seal)
        assert log.segments[0].sealed
    else:
        batches.append(put(directory, log, 5))
    directory, log = restarted(disk)
    assert log.epochs.entries == [(0, 0), (5, 10)]
    for batch in batches:
        is_known(log, batch)


def test_a_topic_whose_creation_was_not_journaled_is_not_taken_for_the_deleted_one() -> None:
    """The deleted one's files are gone, so nothing but the journal says that it was deleted."""
    disk, directory, log = filled(10)
    directory.delete_log(log)
    commit(directory)
    for job in directory.take_maintenance(2_000_000):
        job.run()
        job.complete()
    directory.take_creation([NewLog(log.tp, b"\x99" * 16, CONFIG)]).run()
    disk.power_cut()
    disk.power_on()
    directory = start(disk)
    assert directory.recovery.damage == []
    assert list(directory.logs) == [(b"\x99" * 16, 0)]


def test_a_topic_whose_creation_was_not_journaled_does_not_begin_where_the_deleted_one_did() -> None:
    disk, directory, log = filled(10)
    log.advance_start(5)
    commit(directory)
    checkpoint(directory)
    directory.delete_log(log)
    commit(directory)
    creation = directory.take_creation([NewLog(log.tp, b"\x99" * 16, PAGE_CACHE)])
    creation.run()
    (again,) = directory.complete_creation(creation)
    batch = build_batch([(None, b"x", [], 1000)] * 7, base_offset=0, leader_epoch=0)
    again.append(memoryview(batch), parse_header(batch), 0)
    directory.flush()
    disk.kill()
    disk.power_on()
    directory = start(disk)
    assert [(key[0], log.start_offset) for key, log in directory.logs.items()] == [(b"\x99" * 16, 0)]


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_what_a_power_cut_tore_beside_a_segment_is_no_damage(seed: int, sealed: bool) -> None:
    """Nobody syncs what is sealed of a segment that grows; an index is synced before its seal vouches for it."""
    disk, directory, log = filled(10, CrashDisk(Random(seed), torn=True))
    more(directory, log, 200)
    log.roll()
    more(directory, log, 200)
    checkpoint(directory)
    for seal in take_seals(log) if sealed else ():
        seal.run()
        complete_seal(log, seal)
    more(directory, log, 200)
    checkpoint(directory)
    _, log = restarted(disk)
    assert log.segments[0].sealed == sealed
    assert sum(1 for _ in stored_batches(log, 0, 610, 1 << 14)) == 610
    assert log.take_notices() == ()


@pytest.mark.parametrize("config", [CONFIG, PAGE_CACHE])
def test_a_segment_that_was_begun_before_a_kill_has_its_name_behind_the_next_checkpoint(config: PlainLogConfig) -> None:
    """Nothing was in it, so that the start had nothing to write there, and synced no name."""
    disk, directory, log = filled(10)
    configure_log(log, config)
    log.roll()
    commit(directory)
    disk.kill()
    disk.power_on()
    directory = start(disk)
    log = directory.logs[FIRST, 0]
    assert log.active.base_offset == 10
    configure_log(log, config)
    more(directory, log, 3)
    checkpoint(directory)
    commit(directory)
    _, log = restarted(disk)
    assert log.end_offset == 13


def test_an_older_checkpoint_that_ends_later_does_not_leave_old_epochs() -> None:
    _, directory, log = filled(10)
    log.assign_epoch(1)
    older = take_sync(log)
    more(directory, log, 1)
    log.assign_epoch(2)
    newer = take_sync(log)
    for job in (newer, older):
        assert job is not None
        job.run()
        complete_sync(log, job)
    directory.close(clean=True)
    stored = log.disk.contents()[f"{log.path}/leader-epoch-checkpoint"]  # type: ignore[attr-defined]
    assert stored == b"0\n3\n0 0\n1 10\n2 11\n"


@pytest.mark.parametrize("sync_failed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_kill_left_of_the_journal_unsynced_is_on_the_disk_before_a_start_acts_upon_it(
    seed: int, sync_failed: bool
) -> None:
    """A truncation was written and not synced. The start after the kill cut the log, and a power cut took the entry:

    the next start missed what had been cut, and left the partition offline. So it did where the sync had failed: then
    the machine takes the entry for stored, and another sync does nothing.
    """
    disk, directory, log = filled(6)
    log.roll()
    more(directory, log, 3)
    commit(directory)
    checkpoint(directory)
    truncate_log(log, 2)
    group = directory.take_group()
    assert group is not None
    if sync_failed:
        disk.fault = lambda call: OSError(errno.EIO, "a bad sector") if call.operation == "sync" else None
        with pytest.raises(OSError, match="a bad sector"):
            group.run()
        disk.fault = None
        disk.kill()
    else:
        disk.kill_at = disk.calls + 2
        with pytest.raises(NodeDied):
            group.run()
    disk.power_on()
    call, died = 0, True
    while died:
        call += 1
        copy = disk.copy(Random(seed * 1000 + call))
        copy.torn = True
        copy.cut_at = copy.calls + call
        try:
            start(copy).close(clean=False)
            died = False
        except NodeDied:
            copy.power_on()
            again = start(copy)
            assert not again.offline, f"power failed in call {call}"
            assert again.logs[FIRST, 0].end_offset in (2, 9)
            again.close(clean=False)


def test_a_segment_whose_beginning_the_journal_has_no_room_for_is_not_begun() -> None:
    """It was, and a kill between the two files of the next checkpoint left it named in one of them, which nothing else
    spoke of: the start took it away for a leftover, missed it, and left the partition offline.
    """
    disk = CrashDisk()
    small = SETTINGS._replace(
        journal_max_bytes=48 << 10, journal_part_bytes=16 << 10, journal_first_part_bytes=16 << 10, bypass_bytes=8 << 10
    )
    directory = LogDirectory.open(disk, "/data", small, now_ms=1_000_000, entropy=SeededEntropy(0))
    log = directory.create_log(TP, FIRST, CONFIG)
    log.assign_epoch(0)
    more(directory, log, 1)
    checkpoint(directory)
    more(directory, log, 3)  # a group of another size: so the last part is full to its end when a batch is refused
    with suppress(KafkaError):
        while log.end_offset < 1000:
            more(directory, log, 1)
    segment = log.active
    with pytest.raises(KafkaError, match="journal"):
        log.roll()
    assert log.active is segment
    assert not disk.exists(f"{log.path}/{log.end_offset:020}.log")
    checkpoint(directory)
    log.roll()
    more(directory, log, 1)
    _, log = restarted(disk)
    assert [each.base_offset for each in log.segments][-1] == log.end_offset - 1
