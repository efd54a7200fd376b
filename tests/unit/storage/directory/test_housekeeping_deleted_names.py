"""The new name of a deleted log's directory is durable before anything relies on it."""

from __future__ import annotations

import errno
from random import Random

import pytest
from tests.worlds.storage_workload import (
    FIRST,
    SECOND,
    append,
    checkpoint,
    commit,
    fill,
    one_log,
    read_all,
    small,
    start,
)

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.directory.housekeeping import SealSegmentJob
from duramen.storage.segment.segment import SEAL

TP = TopicPartition("first", 0)


def test_no_name_is_given_to_a_new_log_before_the_old_one_has_lost_it_on_the_disk() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 3)
    copies: list[CrashDisk] = []
    disk.fault = lambda call: copies.extend(disk.copy(Random(10 * call.number + seed)) for seed in range(10))
    directory.delete_log(log)
    again = directory.create_log(TP, SECOND, small())
    append(again, b"new")
    commit(directory)
    for copy in copies:
        copy.fault, copy.torn = None, True
        copy.power_cut()
        copy.power_on()
        found = start(copy)
        assert [len(read_all(log)) for log in found.logs.values() if log.topic_id == FIRST] in ([], [3])
        assert len(found.logs) <= 1


def test_a_checkpoint_does_not_let_the_journal_forget_a_deletion_before_the_new_name_is_durable() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 3)
    other = directory.create_log(TopicPartition("other", 0), SECOND, small())
    other.assign_epoch(0)
    commit(directory)
    directory.delete_log(log)
    append(other, b"x" * 100)
    assert directory.take_checkpoint(force=True) is None
    commit(directory)
    checkpoint(directory)
    disk.power_cut()
    disk.power_on()
    assert list(start(disk).logs) == [(SECOND, 0)]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_seal_that_finds_no_directory_fails_the_disk_unless_the_log_was_deleted(deleted: bool) -> None:
    """It was passed for a deletion either way: a volume that was gone for a while went unsaid, the segment unsealed."""
    disk, directory, log = one_log()
    fill(directory, log, 3)
    log.roll()
    fill(directory, log, 1)
    checkpoint(directory)
    (seal,) = (job for job in directory.take_maintenance(0) if isinstance(job, SealSegmentJob))

    def missing(call: DiskCall) -> OSError | None:
        return FileNotFoundError(errno.ENOENT, "No such file or directory", call.path) if SEAL in call.path else None

    disk.fault = missing
    with pytest.raises(FileNotFoundError) as failure:
        seal.run()
    disk.fault = None
    if deleted:
        directory.delete_log(log)
    seal.fail(failure.value)
    assert (directory.journal.failed is None) is deleted
    assert not log.writers
