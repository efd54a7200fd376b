"""A directory of ours in which Kafka was started and died, and what looks like it."""

from __future__ import annotations

import pytest
from tests.worlds.storage_workload import checkpoint, fill, housekeep, one_log, read_all, start

from duramen.errors import StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.files.atomic import replace_file
from duramen.wire.batch import build_batch, parse_header, place

LOG0 = "/data/first-0/00000000000000000000.log"


@pytest.mark.parametrize("rolled", [False, True])
def test_a_directory_of_ours_in_which_kafka_died_is_refused_and_left_as_it_is(rolled: bool) -> None:
    """It looked like a crash in our stop: Kafka's records were taken for ours, and its epochs taken away."""
    disk, directory, log = one_log()
    fill(directory, log, 6)
    directory.close(clean=True)
    disk.remove("/data/.kafka_cleanshutdown")  # as Kafka does at its start
    batch = build_batch([(b"k", b"kafka's", [], 1)])
    place(memoryview(batch), parse_header(memoryview(batch)), 6, 9)
    end = len(disk.contents()[LOG0])
    name = "/data/first-0/00000000000000000006.log" if rolled else LOG0
    file = disk.open(name, create=rolled, write=True)
    file.pwritev([batch], 0 if rolled else end)
    file.close()
    epochs = "/data/first-0/leader-epoch-checkpoint"
    replace_file(disk, epochs, b"0\n2\n1 0\n9 6\n")
    before = disk.contents()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"first-0 .* Kafka broker that did not stop cleanly"):
            start(disk)
    assert disk.contents() == before
    # Kafka recovers it, and stops.
    replace_file(disk, "/data/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":7}')
    replace_file(disk, "/data/recovery-point-offset-checkpoint", b"0\n1\nfirst 0 7\n")
    (log,) = start(disk).logs.values()
    assert read_all(log)[6] == b"kafka's"


def test_a_crash_in_the_last_step_of_our_own_stop_is_recovered() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 6)
    directory.close(clean=True)
    disk.remove("/data/.kafka_cleanshutdown")
    (log,) = start(disk).logs.values()
    assert len(read_all(log)) == 6


def damaged(*, length: int = 0, flipped: int = 0) -> CrashDisk:
    """A partition that is offline, for its file is so long or a byte of it differs; then a crash in our stop's last
    step."""
    disk, directory, log = one_log()
    fill(directory, log, 6)
    checkpoint(directory)
    housekeep(directory)
    directory.close(clean=bool(length))
    file = disk.open(LOG0, write=True)
    if length:
        file.truncate(length)
    else:
        (byte,) = file.pread(1, flipped)
        file.pwritev([bytes([byte ^ 1])], flipped)
    file.sync()
    disk.end_process()
    directory = start(disk)
    assert directory.offline
    directory.close(clean=True)
    disk.remove("/data/.kafka_cleanshutdown")
    return disk


def test_a_crash_in_our_stop_leaves_a_damaged_partition_offline() -> None:
    """The damage lies in an offset, which no batch's CRC covers: without what was summed, the batch was taken for a
    later one, and what came behind it was cut off."""
    disk = damaged(flipped=3)
    before = disk.contents()[LOG0]
    assert start(disk).offline
    assert disk.contents()[LOG0] == before


def test_a_damaged_partition_with_more_than_it_should_have_is_not_taken_for_kafkas() -> None:
    disk = damaged(length=10_000)
    directory = start(disk)
    assert not directory.clean_start
    (log,) = directory.logs.values()
    assert len(read_all(log)) == 6
