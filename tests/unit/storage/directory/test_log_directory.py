"""A log directory: starting, stopping, what may be deleted, what is refused, and what a failure leaves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from tests.worlds.storage_workload import (
    FIRST,
    KIB,
    LOOSE,
    SECOND,
    SETTINGS,
    SeededEntropy,
    append,
    checkpoint,
    commit,
    fill,
    housekeep,
    one_log,
    read_all,
    small,
    start,
)

from duramen.errors import CorruptLogError, DirectoryLockedError, FencedDirectoryError, KafkaError, StorageError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.storage.log.truncation import truncate_log
from duramen.wire.batch import build_batch

TP = TopicPartition("first", 0)
LOG0 = "/data/first-0/00000000000000000000.log"


def cut(disk: CrashDisk) -> LogDirectory:
    """Power fails, and the directory starts again."""
    disk.power_cut()
    disk.power_on()
    return start(disk)


def test_an_empty_directory_becomes_one_with_an_identity() -> None:
    disk = CrashDisk()
    directory = start(disk)
    assert directory.clean_start
    assert directory.recovery.damage == []
    cluster, identity = directory.cluster_id, directory.directory_id
    assert len(cluster) == len(identity) == 22
    with pytest.raises(DirectoryLockedError):
        start(disk)
    directory.close(clean=True)
    again = start(disk)
    assert (again.cluster_id, again.directory_id) == (cluster, identity)
    assert again.clean_start


def test_a_clean_stop_leaves_what_kafka_expects() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 5)
    log.advance_start(2)
    directory.close(clean=True)
    files = disk.contents()
    assert json.loads(files["/data/.kafka_cleanshutdown"]) == {"version": 0, "brokerEpoch": -1}
    assert files["/data/recovery-point-offset-checkpoint"] == b"0\n1\nfirst 0 5\n"
    assert files["/data/log-start-offset-checkpoint"] == b"0\n1\nfirst 0 2\n"
    assert files["/data/replication-offset-checkpoint"] == b"0\n1\nfirst 0 5\n"
    assert files["/data/cleaner-offset-checkpoint"] == b"0\n0\n"
    assert b"version=1\n" in files["/data/meta.properties"]
    journal = [name for name in files if "journal" in name]
    assert [len(files[name]) for name in journal] == [4096]
    directory = start(disk)
    assert "/data/.kafka_cleanshutdown" not in disk.contents()
    (log,) = directory.logs.values()
    assert (log.start_offset, log.end_offset, directory.clean_start) == (2, 5, True)


def test_what_is_gone_since_a_clean_stop_is_not_made_anew() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 20)
    directory.close(clean=True)
    disk.remove("/data/first-0")
    for _ in range(2):
        directory = start(disk)
        (left,) = directory.offline.values()
        assert "/data/first-0 is missing, and the log went up to offset 20" in str(left.error)
        assert directory.recovery.damage == []
        directory.close(clean=True)


SIDE_FILES = [
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "duramen-checkpoint",
    ".kafka_cleanshutdown",
    ".lock",
    "first-0/leader-epoch-checkpoint",
    "first-0/partition.metadata",
    "first-0/*.index",
    "first-0/*.timeindex",
    "first-0/*.snapshot",
    "first-0/*.producers",
    "first-0/*.seal",
]


def test_a_clean_stop_names_the_broker_and_the_next_start_knows_it() -> None:
    disk, directory, _ = one_log()
    assert directory.stopped_epoch == -1
    directory.broker_epoch = 31
    directory.close(clean=True)
    assert json.loads(disk.contents()["/data/.kafka_cleanshutdown"]) == {"version": 0, "brokerEpoch": 31}
    directory = start(disk)
    assert (directory.clean_start, directory.stopped_epoch) == (True, 31)
    directory.close(clean=True)  # by a process that no controller has heard of
    directory = start(disk)
    assert (directory.clean_start, directory.stopped_epoch) == (True, 31)
    disk.kill()
    disk.power_on()
    directory = start(disk)
    assert (directory.clean_start, directory.stopped_epoch) == (False, -1)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("gone", SIDE_FILES)
def test_any_side_file_can_be_deleted(gone: str, clean: bool) -> None:
    """Nothing acknowledged is lost, renumbered or brought back, whichever checkpoint or index is removed."""
    disk, directory, log = one_log()
    fill(directory, log, 20)
    log.advance_start(3)
    checkpoint(directory)
    housekeep(directory)
    fill(directory, log, 5)
    log.assign_epoch(2)
    fill(directory, log, 2)
    expected = read_all(log)
    epochs = [log.epochs.epoch_at(offset) for offset in expected]
    assert len(log.segments) > 1
    if clean:
        directory.close(clean=True)
    else:
        disk.power_cut()
        disk.power_on()
    folder, _, pattern = f"/data/{gone}".rpartition("/")
    for name in disk.list_directory(folder):
        if name == pattern or (pattern[0] == "*" and name.endswith(pattern[1:])):
            disk.remove(f"{folder}/{name}")
    directory = start(disk)
    (log,) = directory.logs.values()
    assert log.topic_id == FIRST
    assert log.start_offset == 3
    assert read_all(log) == expected
    assert [log.epochs.epoch_at(offset) for offset in expected] == epochs
    assert append(log, b"next") == max(expected) + 1


def test_the_log_start_survives_without_its_checkpoint_through_ours() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 20)
    log.advance_start(9)
    directory.close(clean=True)
    disk.remove("/data/log-start-offset-checkpoint")
    directory = start(disk)
    assert next(iter(directory.logs.values())).start_offset == 9
    directory.close(clean=True)
    disk.remove("/data/duramen-checkpoint")
    directory = start(disk)
    assert next(iter(directory.logs.values())).start_offset == 9


def test_another_node_or_cluster_is_refused_by_name() -> None:
    disk, directory, _ = one_log()
    directory.close(clean=True)
    for settings, text in (
        (DirectorySettings(node_id=7), "belongs to node 0, not to 7"),
        (DirectorySettings(cluster_id="other"), "belongs to cluster"),
    ):
        with pytest.raises(StorageError, match=text):
            start(disk, settings)
    start(disk).close(clean=True)


def test_a_topic_that_was_created_again_inherits_nothing() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 12)
    log.advance_start(8)
    checkpoint(directory)
    directory.delete_log(log)
    again = directory.create_log(TP, SECOND, small())
    append(again, b"new")
    commit(directory)
    directory = cut(disk)
    (log,) = directory.logs.values()
    assert (log.topic_id, log.start_offset, read_all(log)) == (SECOND, 0, {0: b"new"})


def test_a_deleted_log_goes_from_disk_and_stays_gone() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 3)
    name = directory.delete_log(log)
    assert name.endswith("-delete")
    commit(directory)
    housekeep(directory, 1_000_000)
    assert not [path for path in disk.contents() if "first-0" in path]
    directory = cut(disk)
    assert directory.logs == {}
    housekeep(directory)
    assert not [path for path in disk.contents() if "first-0" in path]


def test_a_journaled_deletion_is_carried_out_at_the_next_start() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 3)
    disk.fault = lambda call: OSError(errno.EIO, "no") if call.operation == "rename" else None
    with pytest.raises(StorageError, match="cannot be deleted"):
        directory.delete_log(log)
    disk.fault = None
    with pytest.raises(FencedDirectoryError):
        directory.create_log(TopicPartition("x", 0), SECOND, small())
    directory = cut(disk)
    assert len(directory.logs) == 1


def test_truncated_records_do_not_come_back() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 20)
    checkpoint(directory)
    fill(directory, log, 3)
    before = read_all(log)
    truncate_log(log, 6)
    commit(directory)
    log.assign_epoch(3)
    append(log, b"other history")
    commit(directory)
    expected = {offset: value for offset, value in before.items() if offset < 6} | {6: b"other history"}
    assert read_all(log) == expected
    directory = cut(disk)
    (log,) = directory.logs.values()
    assert read_all(log) == expected
    assert log.epochs.entries == [(0, 0), (3, 6)]


def test_a_checkpoint_after_a_truncation_trusts_only_what_is_left() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 10)
    checkpoint(directory)
    truncate_log(log, 4)
    commit(directory)
    fill(directory, log, 2, 50)
    checkpoint(directory)
    fill(directory, log, 1, 60)
    expected = read_all(log)
    directory = cut(disk)
    (log,) = directory.logs.values()
    assert read_all(log) == expected


def test_extents_are_checked_at_recovery() -> None:
    disk, directory, log = one_log()
    append(log, b"a" * 8000)
    commit(directory)
    disk.power_cut()
    disk.power_on()
    directory = start(disk)
    (log,) = directory.logs.values()
    assert read_all(log) == {0: b"a" * 8000}
    append(log, b"b" * 8000)
    commit(directory)
    segment = log.active.path
    disk.power_cut()
    disk.power_on()
    disk.damage(segment, 4000)
    directory = start(disk)
    assert not directory.logs
    (offline,) = directory.offline.values()
    assert isinstance(offline.error, CorruptLogError)
    assert (offline.error.path, offline.error.reason) == (segment, "CRC of a synced extent")


def test_a_missing_partition_directory_whose_name_nobody_knows_stops_the_start() -> None:
    """The journal says its topic id, and the file that says the name of that is gone, too."""
    disk, directory, log = one_log()
    fill(directory, log, 2)
    checkpoint(directory)
    fill(directory, log, 2)
    disk.power_cut()
    disk.power_on()
    disk.remove("/data/first-0")
    disk.remove("/data/duramen-checkpoint")
    with pytest.raises(StorageError, match="directory is missing: put it back from a copy"):
        start(disk)


def test_journal_damage_stops_the_start_and_names_the_way_out() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 4)
    assert directory.journal.take_idle_mark() is None, "`commit` has written one"
    (part,) = [path for path in disk.contents() if path.endswith(".part")]
    disk.power_cut()
    disk.power_on()
    disk.damage(part, 4096 + 400)
    with pytest.raises(CorruptLogError, match="were durable"):
        start(disk)
    disk.end_process()
    disk.remove(part)
    with pytest.raises(CorruptLogError, match="it is missing; look for a copy of it, else `duramen log repair"):
        start(disk)


def foreign(disk: CrashDisk, *, clean: bool, magic: int = 2) -> None:
    """A directory as Kafka leaves it: our files of a clean stop without what is ours."""
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    fill(directory, log, 6)
    directory.close(clean=True)
    for name in disk.list_directory("/data"):
        if name.startswith("duramen"):
            disk.remove(f"/data/{name}")
    if not clean:
        disk.remove("/data/.kafka_cleanshutdown")
    disk.damage(LOG0, 16, magic ^ 2)


def test_a_directory_that_kafka_stopped_cleanly_is_adopted() -> None:
    disk = CrashDisk()
    foreign(disk, clean=True)
    directory = start(disk)
    assert directory.recovery.adopted
    (log,) = directory.logs.values()
    assert len(read_all(log)) == 6


def test_a_directory_that_kafka_left_unclean_is_refused() -> None:
    disk = CrashDisk()
    foreign(disk, clean=False)
    with pytest.raises(StorageError, match="did not stop cleanly"):
        start(disk)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_by_name(magic: int) -> None:
    disk = CrashDisk()
    foreign(disk, clean=True, magic=magic)
    with pytest.raises(StorageError, match=rf"{LOG0} holds messages of the old format \(magic {magic}\)"):
        start(disk)


def test_what_kafka_wrote_after_our_clean_stop_is_kept() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 3)
    directory.close(clean=True)
    data = build_batch([(None, b"kafka's", [], 5000)], base_offset=3, leader_epoch=0)
    file = disk.open(LOG0, write=True)
    file.pwritev([data], file.size())
    file.sync()
    directory = start(disk)
    (log,) = directory.logs.values()
    assert read_all(log)[3] == b"kafka's"
    fill(directory, log, 1)
    directory = cut(disk)
    assert read_all(next(iter(directory.logs.values())))[3] == b"kafka's"


def test_a_journal_older_than_kafkas_clean_stop_is_not_replayed() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 3)
    disk.power_cut()
    disk.power_on()
    file = disk.open("/data/.kafka_cleanshutdown", create=True, write=True)
    file.pwritev([b'{"version":0,"brokerEpoch":7}'], 0)
    with pytest.raises(StorageError, match="the journal is older"):
        start(disk)


def test_a_failed_sync_fences_writes_and_leaves_reads() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 3)
    append(log, b"never acknowledged")
    group = directory.take_group()
    assert group is not None
    disk.fault = lambda call: OSError(errno.EIO, "I/O error") if call.operation == "sync" else None
    with pytest.raises(OSError, match="I/O error") as error:
        group.run()
    directory.journal.fail(group, error.value)
    disk.fault = None
    with pytest.raises(FencedDirectoryError):
        append(log, b"refused")
    assert log.durable_end == 3
    assert len(read_all(log)) == 4
    assert directory.take_checkpoint(force=True) is None
    directory.close(clean=True)
    assert "/data/.kafka_cleanshutdown" not in disk.contents()
    directory = cut(disk)
    assert len(read_all(next(iter(directory.logs.values())))) >= 3


def test_a_full_disk_refuses_writes_and_loses_nothing() -> None:
    disk = CrashDisk(capacity=120 * KIB)
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())

    def write_until_refused() -> None:
        for _ in range(1000):
            append(log, b"v" * 2000)
            commit(directory)

    with pytest.raises((KafkaError, OSError, FencedDirectoryError)):
        write_until_refused()
    acknowledged = log.durable_end
    assert acknowledged > 5
    assert len(read_all(log, 0)) >= acknowledged
    disk.power_cut()
    disk.power_on()
    disk.capacity = 1 << 20
    (log,) = start(disk).logs.values()
    assert len(read_all(log)) >= acknowledged


def test_a_long_run_stays_within_the_journals_bounds() -> None:
    disk, directory, log = one_log()
    for number in range(400):
        append(log, b"v" * 1500)
        commit(directory)
        if number % 10 == 0:
            housekeep(directory)
            while directory.checkpoint_due and (job := directory.take_checkpoint()) is not None:
                job.run()
                directory.complete_checkpoint(job)
            mark = directory.journal.take_idle_mark()
            if mark is not None:
                mark.run()
                directory.journal.complete(mark)
        assert directory.journal.size <= SETTINGS.journal_max_bytes
    assert directory.journal.laps > 8
    directory = cut(disk)
    assert directory.recovery.entries_replayed < 200
    assert len(read_all(next(iter(directory.logs.values())))) == 400


def test_a_partition_directory_without_an_id_stops_the_start() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 2)
    directory.close(clean=True)
    disk.remove("/data/first-0/partition.metadata")
    disk.remove("/data/duramen-checkpoint")
    disk.remove("/data/duramen-directory")
    with pytest.raises(StorageError, match=r"partition\.metadata is missing"):
        start(disk)


# ---- page-cache topics


def loose() -> tuple[CrashDisk, LogDirectory, Log]:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TopicPartition("loose", 0), LOOSE, small("page-cache"))
    log.assign_epoch(0)
    return disk, directory, log


def test_page_cache_records_survive_a_kill() -> None:
    disk, directory, log = loose()
    fill(directory, log, 30)
    checkpoint(directory)
    fill(directory, log, 12)
    expected = read_all(log)
    disk.kill()
    disk.power_on()
    (log,) = start(disk).logs.values()
    assert read_all(log) == expected
    disk.power_cut()
    disk.power_on()
    (log,) = start(disk).logs.values()
    assert read_all(log) == expected, "what recovery accepted is on stable storage"


def test_a_power_cut_takes_a_suffix_of_page_cache_records_at_most() -> None:
    for seed in range(25):
        disk = CrashDisk(torn=True)
        disk.random.seed(seed)
        directory = start(disk)
        log = directory.create_log(TopicPartition("loose", 0), LOOSE, small("page-cache"))
        fill(directory, log, 8)
        checkpoint(directory)
        fill(directory, log, 30)
        expected = read_all(log)
        (log,) = cut(disk).logs.values()
        found = read_all(log)
        assert len(found) >= 8
        assert found == {offset: expected[offset] for offset in range(len(found))}


@pytest.mark.parametrize("how", ["cut", "kill"])
def test_a_crash_in_every_call_of_the_recovery_of_page_cache_records(how: str) -> None:
    call = 0
    while True:
        call += 1
        disk, directory, log = loose()
        fill(directory, log, 9)
        checkpoint(directory)
        fill(directory, log, 9)
        expected = read_all(log)
        disk.kill()
        disk.power_on()
        if how == "cut":
            disk.cut_at = disk.calls + call
        else:
            disk.kill_at = disk.calls + call
        try:
            start(disk)
        except BaseException:
            if disk.powered:
                raise
            disk.power_on()
        else:
            break
        (log,) = start(disk).logs.values()
        found = read_all(log)
        assert found == {offset: expected[offset] for offset in range(len(found))}
        assert len(found) == 18 if how == "kill" else len(found) >= 9
    assert call > 20


def test_from_page_cache_to_stable_and_back() -> None:
    disk, directory, log = loose()
    fill(directory, log, 5)
    configure_log(log, small("stable"))
    fill(directory, log, 5)
    configure_log(log, small("page-cache"))
    fill(directory, log, 5)
    disk.power_cut()
    disk.power_on()
    (log,) = start(disk).logs.values()
    assert log.end_offset >= 10
    assert sorted(read_all(log)) == list(range(log.end_offset))


def test_page_cache_records_count_once_recovery_would_find_them() -> None:
    _, directory, log = loose()
    append(log, b"first")
    assert not directory.journal.knows(log)
    group = directory.take_group()
    assert group is not None
    append(log, b"second")
    group.run()
    assert directory.journal.complete(group) == [log]
    assert directory.journal.knows(log)
    append(log, b"third")
    assert directory.journal.knows(log), "one mark is enough until the next roll or checkpoint"


def test_a_leader_epoch_without_records_survives() -> None:
    disk, directory, log = one_log()
    fill(directory, log, 2)
    log.assign_epoch(6)
    commit(directory)
    (log,) = cut(disk).logs.values()
    assert log.epochs.entries == [(0, 0), (6, 2)]
    assert log.epochs.latest == 6


def test_on_a_real_disk(tmp_path: Path) -> None:
    """The same life on the machine's own file system: unclean stop, recovery, clean stop, and no descriptor left."""
    disk = RealDisk()
    path = str(tmp_path / "data")
    descriptors = len(os.listdir("/dev/fd"))
    settings = DirectorySettings(journal_first_part_bytes=1 << 20, bypass_bytes=100_000)
    expected: dict[int, bytes] = {}
    for clean in (False, True, False, False):
        directory = LogDirectory.open(disk, path, settings, now_ms=1, entropy=SeededEntropy(len(expected)))
        assert len(expected) == 0 or len(directory.logs) == 1
        log = next(iter(directory.logs.values()), None) or directory.create_log(TP, FIRST, small())
        configure_log(log, small())
        log.assign_epoch(log.epochs.latest + 1)
        assert read_all(log) == expected
        for size in (10, 3000, 200_000, 10):
            value = b"r" * size
            expected[append(log, value)] = value
            commit(directory)
        checkpoint(directory)
        housekeep(directory)
        directory.close(clean=clean)
    assert len(os.listdir("/dev/fd")) == descriptors
