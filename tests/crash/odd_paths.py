"""Workloads of the storage engine that come by what the write paths do not: reads, look-ups, rare files."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import patch

from tests.crash.promises import LogPromise
from tests.crash.session import DATA, KIB, NOW, Session, SmallSegments, small, topic_id

from duramen.errors import CorruptLogError, DuramenError, KafkaError
from duramen.model import TopicPartition
from duramen.ports import Disk
from duramen.storage.checkpoint.kafka_files import CHECKPOINT, CLEAN_SHUTDOWN
from duramen.storage.compaction import segment_rewrite
from duramen.storage.directory.housekeeping import HousekeepingJob
from duramen.storage.directory.log_directory import DirectorySettings
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.log import create, durability
from duramen.storage.log.create import CreateLogsJob, NewLog
from duramen.storage.log.producer_retention import ProducerSnapshotJob
from duramen.storage.log.segment_layout import Outline
from duramen.storage.read import verified_window
from duramen.storage.read.read_plan import Pending
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS
from duramen.wire.batch import ABORT, build_batch, build_marker, parse_header
from duramen.wire.records.control import ControlType, StreamClosedRecord, build_own

BIG = DirectorySettings(
    journal_max_bytes=8192 * KIB,
    journal_part_bytes=2048 * KIB,
    journal_first_part_bytes=2048 * KIB,
    bypass_bytes=1024 * KIB,
    retention_check_interval_ms=0,
)


def long_groups(run: Session) -> None:
    """More batches in one group than one write takes, and more bytes in one segment than recovery writes at once."""
    run.settings, run.segment_bytes = BIG, 4096 * KIB
    run.start()
    run.create(1)
    run.commit()
    for _ in range(1030):
        run.put(1, 90)
    run.commit()
    for _ in range(3):
        for _ in range(14):
            run.put(1, 30 * KIB)
        run.commit()
    run.crash()
    run.start()


def reads(run: Session) -> None:
    """Records just written, in memory and not in memory, with and without seals; look-ups by time."""
    filled(run)
    for recent_bytes in (1 << 20, 0):  # the machine took it out of memory: what was written last, and what is old
        run.disk.cold = False  # type: ignore[attr-defined]
        _read_all(run)
        run.disk.cold = True  # type: ignore[attr-defined]
        with patch.object(verified_window, "RECENT_BYTES", recent_bytes):
            _read_all(run)
    run.disk.cold = False  # type: ignore[attr-defined]
    run.keep_house(NOW)
    run.disk.cold = True  # type: ignore[attr-defined]
    _read_all(run)  # what was hot is held to the seals
    run.disk.cold = False  # type: ignore[attr-defined]
    run.stop()
    run.disk.end_process()
    run.start()
    for cold in (True, False):
        run.disk.cold = cold  # type: ignore[attr-defined]
        _read_all(run)
        log = run.log(1)
        for timestamp in (NOW, NOW + 3, NOW + log.end_offset - 1):
            log.time_lookup(timestamp, log.end_offset).run()
        log.max_timestamp_lookup(log.end_offset).run()
    run.disk.cold = False  # type: ignore[attr-defined]


def _read_all(run: Session) -> None:
    log = run.log(1)
    for offset in reversed(range(log.start_offset, log.end_offset)):
        for part in log.read(offset, 900, log.end_offset, at_least_one=True).parts:
            if isinstance(part, Pending):
                if part.recall is not None:
                    part.recall.run()
                part.run()
                part.complete()


def scrub(run: Session) -> None:
    """Sealed segments are read again against their seals, also a damaged one and pages that are not in memory."""
    filled(run)
    run.keep_house(NOW)
    path = f"{run.log(1).path}/{0:020}.log"
    run.disk.damage(path, 300)  # type: ignore[attr-defined]
    now = NOW
    for cold in (False, True):
        run.disk.cold = cold  # type: ignore[attr-defined]
        for _ in range(6):
            job = run.directory.take_scrub(now)
            now += 150_000_000
            if job is None:
                continue
            try:
                job.run()
            except (OSError, DuramenError) as error:
                run.directory.scrubber.fail(error)
            else:
                run.directory.complete_scrub(job)
    run.disk.damage(path, 300)  # type: ignore[attr-defined]
    run.disk.cold = False  # type: ignore[attr-defined]


def damaged_journal(run: Session) -> None:
    """An entry that was durable is not intact: the start says so and stops."""
    run.start()
    run.create(1)
    run.commit()
    run.put(1, 500)
    run.commit()
    run.put(1, 500)
    run.commit()
    run.crash()
    run.disk.end_process()
    (part,) = [name for name in run.disk.contents() if name.endswith(".part")]
    run.disk.damage(part, 4096 + 1024 + 300)  # type: ignore[attr-defined]
    try:
        run.start()
    except CorruptLogError:
        pass
    finally:
        run.disk.damage(part, 4096 + 1024 + 300)  # type: ignore[attr-defined]
        run.disk.end_process()
    run.start()


def old_checkpoint(run: Session) -> None:
    """The file of a clean stop is that of the one before: a start takes it away."""
    filled(run)
    run.stop()
    run.disk.end_process()
    path = f"{DATA}/{CHECKPOINT}"
    old = run.disk.contents()[path]
    run.start()
    run.put(1, 900)
    run.commit()
    run.stop()
    run.disk.end_process()
    for promise in run.promises.values():
        promise.lost = path
    replace_file(run.disk, path, old)
    run.start()


def transactions(run: Session) -> None:
    """A transaction is rolled back, its index synced, lost, found damaged, and made again."""
    filled(run)
    for producer in (50, 51):
        rolled_back(run, producer)
    run.checkpoint()
    (index,) = [name for name in run.disk.contents() if name.endswith(".txnindex")]
    run.stop()
    run.disk.end_process()
    run.disk.damage(index, 0)
    run.start()
    run.stop()
    run.disk.end_process()
    run.disk.inner.remove(index)  # type: ignore[attr-defined]
    run.start()
    run.stop()
    run.disk.end_process()
    file = run.disk.inner.open(index, write=True)  # type: ignore[attr-defined]
    file.pwritev([struct.pack(">hqqqq", 0, 50, 9000, 9001, 9000)], file.size())
    file.close()
    run.start()
    run.put(1, 2900)
    run.commit()
    run.checkpoint()


def rolled_back(run: Session, producer: int) -> None:
    """A transaction of one record, and the marker that takes it back."""
    log = run.log(1)
    promise = run.promises[topic_id(1)]
    base = log.end_offset
    begun = build_batch(
        [(b"k", b"v", (), NOW + base)],
        base_offset=base,
        leader_epoch=log.epochs.latest,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    for data in (bytes(begun), _marker(producer, base + 1, log.epochs.latest)):
        promise.queued.setdefault(log.end_offset, []).append((promise.cuts_asked, data))
        log.append(data, parse_header(data), NOW)
    run.commit()


def _marker(producer: int, offset: int, epoch: int) -> bytes:
    data = build_marker(producer, 0, ABORT, 0, NOW)
    data[0:8] = offset.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    return bytes(data)


def lost_side_files(run: Session) -> None:
    """Indexes, snapshots, epochs and segments are gone or left over after a clean stop, and after a crash."""
    filled(run)
    run.checkpoint()
    run.keep_house(NOW)
    for promise in run.promises.values():
        promise.lost = f"{DATA}/{promise.tp}/{LEADER_EPOCHS}"
    for clean in (True, False):
        if clean:
            run.stop()
        else:
            run.put(1, 300)
            run.commit()
            run.crash()
        run.disk.end_process()
        disk = run.disk.inner  # type: ignore[attr-defined]
        for name in list(disk.contents()):
            if name.endswith((".timeindex", "leader-epoch-checkpoint")):
                disk.remove(name)
        if not clean:
            disk.open(f"{DATA}/topic1-0/00000000000000000000.log.tail.new", create=True, write=True).close()
        for left in (
            f"{DATA}/topic1-0/00000000000000000001.log.deleted",
            f"{DATA}/topic1-0/00000000000000099999.snapshot",
            f"{DATA}/cleaner-offset-checkpoint.tmp",
            max(name for name in disk.contents() if name.endswith(".log"))[:-4] + ".seal",
        ):
            disk.open(left, create=True, write=True).close()
        disk.make_directories(f"{DATA}/halfmade-0")
        if not clean:
            disk.open(f"{DATA}/halfmade-0/00000000000000000000.log", create=True, write=True).close()
        else:
            disk.remove(f"{DATA}/halfmade-0")
        run.start()
        for _ in range(2):
            run.keep_house(NOW + 100_000)


def bypass_in_one_segment(run: Session) -> None:
    """Recovery writes journaled batches in front of an extent again, and accepts rolled segments of the page cache."""
    run.segment_bytes = 64 * KIB
    run.start()
    run.create(1)
    run.segment_bytes = 1 * KIB
    run.create(2, stable=False)
    run.commit()
    run.put(1, 400)
    run.put(1, 6500)
    run.put(1, 300)
    for _ in range(5):
        run.put(2, 400)
    run.commit()
    run.crash()
    run.disk.end_process()
    run.start()


def empty_partition(run: Session) -> None:
    """A partition's directory without a segment is given one."""
    run.start()
    run.create(1)
    run.commit()
    run.stop()
    run.disk.end_process()
    disk = run.disk.inner  # type: ignore[attr-defined]
    for name in list(disk.contents()):
        if "topic1-0/0" in name:
            disk.remove(name)
    run.start()


def strangers(run: Session) -> None:
    """What only looks like partitions is there before the first start, which ends before it has made its journal."""
    disk = run.disk.inner  # type: ignore[attr-defined]
    disk.make_directories(f"{DATA}/.Trash-1000/files")
    disk.open(f"{DATA}/core-1234", create=True, write=True).close()
    run.start()
    run.disk.end_process()
    for name in list(disk.contents()):
        if name.endswith(".part"):
            disk.remove(name)
    run.start()


def timeless(run: Session) -> None:
    """Segments whose records have no timestamps: the age of their files counts."""
    run.start()
    run.create(1)
    for _ in range(9):
        run.put(1, 900, timeless=True)
        run.commit()
    run.disk.end_process()
    run.start()
    run.stop()
    run.disk.end_process()
    run.start()


def after_kafka(run: Session) -> None:
    """Kafka stopped cleanly here since: its files are the truth, and our seals go."""
    filled(run)
    run.keep_house(NOW)
    run.stop()
    run.disk.end_process()
    disk = run.disk.inner  # type: ignore[attr-defined]
    replace_file(disk, f"{DATA}/{CLEAN_SHUTDOWN}", b'{"version":0,"brokerEpoch":5}')
    run.start()


def cold_compaction(run: Session) -> None:
    """Compaction that is overdue, of segments that are not in memory."""
    run.start()
    run.create(1, compacted=True)
    run.commit()
    for number in range(9):
        run.put(1, 900, records=3, timeless=number < 3)
        run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    run.stop()
    run.disk.end_process()
    run.start()
    run.put(1, 100)
    run.commit()
    run.checkpoint()
    run.log(1).config.max_compaction_lag_ms = 1000  # type: ignore[attr-defined]
    run.disk.cold = True  # type: ignore[attr-defined]
    with patch.object(segment_rewrite, "SYNC_BYTES", 1000):  # a long copy is synced on the way
        run.compact(NOW + 100_000)
    run.disk.cold = False  # type: ignore[attr-defined]


def adoption(run: Session) -> None:
    """A directory whose checkpoint is not ours, as Kafka leaves one."""
    filled(run)
    run.stop()
    run.disk.end_process()
    disk = run.disk.inner  # type: ignore[attr-defined]
    for name in list(disk.contents()):
        if name.endswith(("duramen-checkpoint", ".part")):
            disk.remove(name)
    run.start()


def adopted_stream(run: Session) -> None:
    """A log that is closed, in such a directory, where only Kafka's own files say what was there."""
    run.start()
    run.create(1)
    run.commit()
    run.put(1, 900, producer=4)
    run.say(1, build_own(ControlType.STREAM_CLOSED, StreamClosedRecord.new(version=0), NOW))
    run.commit()
    run.stop()
    run.disk.end_process()
    disk = run.disk.inner  # type: ignore[attr-defined]
    for name in list(disk.contents()):
        if name.endswith(("duramen-checkpoint", ".part", ".producers")):
            disk.remove(name)
    run.start()


def transaction_ids(run: Session) -> None:
    """A log whose timestamps are no times any more, which is as old as its files."""
    filled(run)
    durability.configure_log(run.log(1), _with_ids())
    run.put(1, 900)
    run.commit()
    run.stop()
    run.disk.end_process()
    run.start()
    durability.configure_log(run.log(1), _with_ids())
    run.keep_house(NOW)


def _with_ids() -> SmallSegments:
    config = small()
    config.txid, config.retention_ms = "application", 1 << 50
    return config


def no_room_for_a_part(run: Session) -> None:
    """The journal grows on the spot, and off the loop."""
    run.start()
    run.create(1)
    run.commit()
    for _ in range(5):
        for _ in range(4):
            run.put(1, 2900)
        run.commit()
        run.keep_house(NOW)


def filled(run: Session) -> None:
    """One topic with some segments of producer 4's batches."""
    run.start()
    run.create(1)
    run.commit()
    for _ in range(8):
        run.put(1, 900, producer=4)
        run.commit()
    run.checkpoint()


def creation_without_room(run: Session) -> None:
    """Neither the journal nor the disk has room for all of some new topics: the rest is taken away, and made later."""
    filled(run)
    maker = run.directory.journal.maker
    new = [NewLog(TopicPartition(f"{'long' * 50}{number}", 0), topic_id(number), small()) for number in range(2, 9)]
    for tp, its_id, _ in new:
        run.promises[its_id] = LogPromise(tp)
    run.mark()
    with patch.object(maker, "make", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        with suppress(KafkaError):
            while True:
                run.put(1, 300)
        job = run.directory.take_creation(new)
        job.run()
        try:
            run.directory.complete_creation(job)
        except KafkaError:
            pass
        else:
            raise AssertionError("there was room")
    run.commit()
    run.checkpoint()
    made = [number for number in range(2, 9) if (topic_id(number), 0) in run.directory.logs]
    again = new[len(made)]
    run.create(len(made) + 2, name=again.tp.topic)
    run.put(1, 300)
    run.commit()


def creation_on_a_full_disk(run: Session) -> None:
    """The second of some new topics finds no room for its files: none of them is made, and later they are."""
    filled(run)
    create_log = create.create_log

    def limited(disk: object, path: str, *rest: object, **more: object) -> object:
        if path.endswith("topic3-0"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create_log(disk, path, *rest, **more)  # type: ignore[arg-type]

    new = [NewLog(TopicPartition(f"topic{number}", 0), topic_id(number + 5), small()) for number in (2, 3)]
    for tp, its_id, _ in new:
        run.promises[its_id] = LogPromise(tp)
    run.mark()
    with patch.object(create, "create_log", limited), suppress(NoRoomError):
        run.directory.take_creation(new).run()
        raise AssertionError("there was room")
    names = {str(tp) for tp, _, _ in new}
    assert not names & set(run.disk.list_directory(DATA))
    for number in (2, 3):
        run.create(number)
        run.put(number, 300)
    run.commit()


def half_made_at_the_stop(run: Session) -> None:
    """With no descriptor left a new topic is not made, nor its directory removed: a clean stop does that."""
    filled(run)
    none_left = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def limited(disk: Disk, path: str, *_: object, **__: object) -> object:
        disk.make_directories(path)
        raise none_left

    new = [NewLog(TopicPartition("halfmade", 0), topic_id(7), small())]
    run.mark()
    with (
        patch.object(create, "create_log", limited),
        patch.object(CreateLogsJob, "_remove", side_effect=none_left),
        suppress(NoRoomError),
    ):
        run.directory.take_creation(new).run()
        raise AssertionError("there were descriptors")
    assert run.disk.exists(f"{DATA}/halfmade-0")
    run.stop()
    run.disk.end_process()
    assert not run.disk.exists(f"{DATA}/halfmade-0")
    run.start()


def deleted_without_room(run: Session) -> None:
    """The directory of a deleted topic has no room for another name at first."""
    filled(run)
    rename, lacks = run.disk.rename, [1]

    def refused(source: str, target: str) -> None:
        if lacks and target.endswith("-delete"):
            lacks.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)
        rename(source, target)

    with patch.object(run.disk, "rename", refused):
        run.delete(1)
        run.commit()
        run.keep_house(NOW)
    assert not lacks
    assert not run.disk.exists(f"{DATA}/topic1-0")
    run.create(2, name="topic1")
    run.put(2, 300)
    run.commit()


def deleted_beside_a_group(run: Session) -> None:
    """A topic is deleted while a group is under way that has a batch of it, which bypassed the journal."""
    filled(run)
    run.log(1).roll()
    run.put(1, 8 * KIB)
    group = run.directory.take_group()
    assert group is not None
    run.delete(1)
    try:
        group.run()
    except OSError as error:
        run.directory.journal.fail(group, error)
        raise
    run.directory.journal.complete(group)
    run.settle()
    run.commit()


def overtaken_checkpoint(run: Session) -> None:
    """A truncation comes while a checkpoint's job is under way: what the job wrote of the old end goes with that."""
    filled(run)
    run.put(1, 900, producer=4)
    run.commit()
    end = run.log(1).end_offset
    with patch.object(durability, "SNAPSHOT_BYTES", 100):
        job = run.directory.take_checkpoint(force=True)
    assert job is not None
    run.truncate(1, end - 1)
    try:
        job.run()
    except OSError as error:
        run.directory.fail_checkpoint(job, error)
        raise
    run.directory.complete_checkpoint(job)
    run.commit()
    log = run.log(1)
    assert end not in log.snapshots.offsets
    assert not run.disk.exists(f"{log.path}/{end:020}.snapshot")
    run.put(1, 400)
    run.put(1, 700, producer=9)
    run.commit()
    run.checkpoint()
    run.crash()
    run.disk.end_process()
    run.start()


def overtaken_producers(run: Session) -> None:
    """A truncation comes while what is known of producers is kept for retention: what speaks of the old end goes."""
    filled(run)
    run.put(1, 900, producer=4)
    run.commit()
    end = run.log(1).end_offset
    run.log(1).config.retention_ms = 1000  # type: ignore[attr-defined]
    run.promises[topic_id(1)].start_asked = end
    run.mark()
    jobs: list[HousekeepingJob] = []
    for now_ms in (NOW + 100_000, NOW + 1_000_000):  # again where there was no room for the next segment
        if not any(isinstance(job, ProducerSnapshotJob) for job in jobs):
            jobs += run.directory.take_maintenance(now_ms)
    assert jobs
    for job in jobs:
        try:
            job.run()
        except OSError as error:
            job.fail(error)
            raise
    run.truncate(1, end - 1)
    for job in jobs:
        job.complete()
    run.commit()
    assert not run.disk.exists(f"{run.log(1).path}/{end:020}.snapshot")
    run.put(1, 400)
    run.commit()


def cut_behind_a_marker(run: Session) -> None:
    """Into a closed segment that an earlier process wrote, and whose batches say no time; a transaction ended there."""
    run.start()
    run.create(1)
    run.commit()
    for _ in range(2):
        run.put(1, 300, timeless=True)
    rolled_back(run, 9)
    run.put(1, 300, producer=4)
    run.commit()
    end = run.log(1).end_offset
    run.log(1).roll()
    run.put(1, 300)
    run.commit()
    run.stop()
    run.disk.end_process()
    run.start()
    run.truncate(1, end - 1)
    run.commit()
    assert run.log(1).producers.get(9) is not None
    run.put(1, 300)
    run.commit()


def outlines(run: Session) -> None:
    """What readers that divide a log by bytes are told of it, with index entries in memory and in files."""
    filled(run)
    log = run.log(1)
    for start in range(log.start_offset, log.end_offset):
        Outline(log, start, log.end_offset, log.end_offset, 1, 100).run()


ODD_PATHS: dict[str, Callable[[Session], None]] = {
    path.__name__: path
    for path in (
        long_groups,
        reads,
        scrub,
        damaged_journal,
        old_checkpoint,
        transactions,
        lost_side_files,
        bypass_in_one_segment,
        empty_partition,
        strangers,
        timeless,
        cold_compaction,
        adoption,
        adopted_stream,
        transaction_ids,
        after_kafka,
        no_room_for_a_part,
        creation_without_room,
        creation_on_a_full_disk,
        half_made_at_the_stop,
        deleted_without_room,
        deleted_beside_a_group,
        overtaken_checkpoint,
        overtaken_producers,
        cut_behind_a_marker,
        outlines,
    )
}
