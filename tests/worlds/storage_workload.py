"""A small life of a log directory, and what must be true of it after any crash. Used by the power-cut scenarios."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.worlds.stored_batches import stored_batches

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.kafka_files import encode_checkpoint, read_checkpoint
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.wire.batch import build_batch, parse_header, records

KIB = 1024
SETTINGS = DirectorySettings(
    journal_max_bytes=128 * KIB,
    journal_part_bytes=32 * KIB,
    journal_first_part_bytes=16 * KIB,
    bypass_bytes=6 * KIB,
    retention_check_interval_ms=0,
)
FIRST = bytes(15) + b"\x11"
SECOND = bytes(15) + b"\x22"
LOOSE = bytes(15) + b"\x33"


class SeededEntropy:
    """Entropy from a seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)

    def random_bytes(self, length: int) -> bytes:
        return self._random.randbytes(length)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


@dataclass
class SmallSegments(PlainLogConfig):
    """Segments of a few batches; deleted records' files go at once."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = -1
    retention_bytes: int = -1
    file_delete_delay_ms: int = 0


def small(durability: str = "stable") -> SmallSegments:
    return SmallSegments(durability=durability, segment_bytes=4 * KIB, index_interval_bytes=256)


def forget_lists(disk: CrashDisk) -> None:
    """The checkpoint says of no log which segments it has, as one of an earlier version does."""
    checkpoint = read_checkpoint(disk, "/data")
    assert checkpoint is not None
    assert checkpoint.segments
    replace_file(disk, "/data/duramen-checkpoint", encode_checkpoint(checkpoint._replace(segments={})))


def start(disk: CrashDisk, settings: DirectorySettings = SETTINGS) -> LogDirectory:
    directory = LogDirectory.open(disk, "/data", settings, now_ms=1_000_000, entropy=SeededEntropy(disk.calls))
    for log in directory.logs.values():
        configure_log(log, small("page-cache" if log.topic_id == LOOSE else "stable"))
    return directory


def append(log: Log, value: bytes) -> int:
    """Queue one record; returns its offset."""
    offset = log.end_offset
    data = build_batch([(b"k", value, [], 1000 + offset)], base_offset=offset, leader_epoch=log.epochs.latest)
    log.append(data, parse_header(data), 1000)
    return offset


def one_log(durability: str = "stable") -> tuple[CrashDisk, LogDirectory, Log]:
    """A started directory on a disk of its own, with an empty log."""
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TopicPartition("first", 0), FIRST, small(durability))
    log.assign_epoch(0)
    return disk, directory, log


def fill(directory: LogDirectory, log: Log, count: int, size: int = 300) -> None:
    """So many records of `size` bytes, each committed by itself."""
    for _ in range(count):
        append(log, b"v" * size)
        commit(directory)


def commit(directory: LogDirectory) -> None:
    """Run group commits until nothing is queued, and what truncations leave to other threads."""
    while (group := directory.take_group()) is not None:
        group.run()
        directory.journal.complete(group)
    for job in directory.take_rebuilds():
        job.run()
        job.complete()


def checkpoint(directory: LogDirectory) -> None:
    """One whole checkpoint, and the mark that lets its parts be recycled."""
    force = True
    while (job := directory.take_checkpoint(force)) is not None:
        job.run()
        directory.complete_checkpoint(job)
        force = False
        if job.files is not None:
            break
    commit(directory)


def housekeep(directory: LogDirectory, now_ms: int = 2_000_000) -> None:
    for job in directory.take_maintenance(now_ms):
        job.run()
        job.complete()


def read_all(log: Log, start: int | None = None) -> dict[int, bytes]:
    """Value by offset of everything from the log start on."""
    found: dict[int, bytes] = {}
    first = log.start_offset if start is None else start
    for header, view in stored_batches(log, first, log.end_offset, 1 << 20):
        for record in records(view, header, max_bytes=1 << 20):
            if record.offset >= first:
                found[record.offset] = record.value
    return found


class Life:
    """Runs the workload and remembers what was promised: acknowledged records, log starts, deletions."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.acknowledged: dict[bytes, dict[int, bytes]] = {FIRST: {}, SECOND: {}}
        self.queued: dict[bytes, dict[int, bytes]] = {FIRST: {}, SECOND: {}}
        self.starts: dict[bytes, int] = {FIRST: 0, SECOND: 0}
        self.start_asked: dict[bytes, int] = {FIRST: 0, SECOND: 0}
        self.created: set[bytes] = set()
        self.delete_asked: set[bytes] = set()
        self.deleted: set[bytes] = set()
        self.counter = 0

    def put(self, log: Log, size: int) -> None:
        self.counter += 1
        value = (b"%d:" % self.counter).ljust(size, b"x")
        self.queued[log.topic_id][append(log, value)] = value

    def commit(self, directory: LogDirectory) -> None:
        queued = {key: dict(values) for key, values in self.queued.items()}
        asked, gone = dict(self.start_asked), set(self.delete_asked)
        created = {log.topic_id for log in directory.logs.values()}
        commit(directory)
        for key, values in queued.items():
            self.acknowledged[key].update(values)
        self.starts.update(asked)
        self.deleted |= gone
        self.created |= created

    def run(self, directory: LogDirectory) -> None:
        """About 300 disk calls: create, append, roll, bypass, checkpoint, delete records, seal, delete a topic."""
        first = directory.create_log(TopicPartition("first", 0), FIRST, small())
        second = directory.create_log(TopicPartition("second", 3), SECOND, small())
        first.assign_epoch(4)
        second.assign_epoch(1)
        for number in range(4):
            self.put(first, 700)
            self.put(second, 10 * number)
            self.commit(directory)
        for _ in range(3):
            self.put(first, 2500)
            self.put(first, 900)
        self.commit(directory)
        checkpoint(directory)
        self.put(first, 9000)
        self.put(first, 100)
        self.put(second, 100)
        self.commit(directory)
        first.assign_epoch(5)
        self.put(first, 1500)
        self.commit(directory)
        self.start_asked[FIRST] = 7
        first.advance_start(7)
        self.commit(directory)
        housekeep(directory)
        self.commit(directory)
        housekeep(directory)
        self.put(first, 3000)
        self.put(second, 200)
        self.commit(directory)
        self.delete_asked.add(SECOND)
        directory.delete_log(second)
        self.put(first, 50)
        self.commit(directory)
        checkpoint(directory)
        self.put(first, 1200)
        self.commit(directory)
        housekeep(directory, 3_000_000)
        self.put(first, 10)

    def check(self, directory: LogDirectory) -> None:
        """What was promised holds, and nothing is there that was never written."""
        assert directory.recovery.damage == []
        logs = {log.topic_id: log for log in directory.logs.values()}
        for key in (FIRST, SECOND):
            log = logs.get(key)
            if key in self.deleted:
                assert log is None
                continue
            if log is None:
                assert key in self.delete_asked or key not in self.created
                continue
            found = read_all(log)
            assert self.starts[key] <= log.start_offset <= max(self.start_asked[key], self.starts[key])
            for offset, value in self.acknowledged[key].items():
                if offset >= log.start_offset:
                    assert found.get(offset) == value, (key, offset)
            for offset, value in found.items():
                assert self.queued[key].get(offset) == value, (key, offset)
            assert log.durable_end == log.end_offset
