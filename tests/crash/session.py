"""A log directory on a taped disk, driven step by step, with a ledger of what it acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, partialmethod
from random import Random
from unittest.mock import patch

from tests.crash.promises import LogPromise, Promises, require
from tests.crash.retention_oracle import allowed_start
from tests.crash.tape import TapeDisk

from duramen.errors import DuramenError, KafkaError, StorageError
from duramen.model import TopicId, TopicPartition
from duramen.ports import Disk
from duramen.storage.compaction.compaction_pass import CleanerSettings
from duramen.storage.directory.checkpointer import Checkpointer, CheckpointJob
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.log import markers
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.create import Strays
from duramen.storage.log.durability import configure_log
from duramen.storage.log.follower import append_as_follower
from duramen.storage.log.log import Log
from duramen.storage.log.truncation import truncate_log
from duramen.wire.batch import ABORT, COMMIT, build_batch, build_marker, parse_header, place

KIB = 1024
DATA = "/data"
SETTINGS = DirectorySettings(
    journal_max_bytes=96 * KIB,
    journal_part_bytes=16 * KIB,
    journal_first_part_bytes=16 * KIB,
    bypass_bytes=6 * KIB,
    retention_check_interval_ms=0,
)
"""Small parts, so that the journal goes round often and a state is opened quickly."""
NOW = 1_000_000


CLEANER = CleanerSettings(dedupe_bytes=100_000, io_bytes=4096)


class Numbers:
    """Entropy that is none."""

    def __init__(self, first: int = 1) -> None:
        self.next = first

    def random_bytes(self, length: int) -> bytes:
        self.next += 1
        return (self.next * 2654435761).to_bytes(length + 8, "little")[:length]

    def uniform(self, low: float, high: float) -> float:
        return low


@dataclass
class SmallSegments(PlainLogConfig):
    """Segments of a few batches; removed files go at once."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = -1
    retention_bytes: int = -1
    file_delete_delay_ms: int = 0
    min_cleanable_dirty_ratio: float = 0.01
    delete_retention_ms: int = 0


def small(*, stable: bool = True, compacted: bool = False, segment_bytes: int = 3 * KIB) -> SmallSegments:
    """The configuration of a test's topic."""
    durability = "stable" if stable else "page-cache"
    config = SmallSegments(durability=durability, segment_bytes=segment_bytes, index_interval_bytes=256)
    config.cleanup_policy = frozenset({"compact" if compacted else "delete"})
    return config


def open_directory(
    disk: Disk, promises: Promises, first: int = 1, settings: DirectorySettings = SETTINGS
) -> LogDirectory:
    """Start the directory as the engine does, its topics configured."""
    directory = LogDirectory.open(disk, DATA, settings, now_ms=NOW, entropy=Numbers(first))
    for log in directory.logs.values():
        promise = promises.get(log.topic_id)
        if promise is not None:
            configure_log(log, small(stable=promise.stable, compacted=promise.compacted))
    return directory


class Session:
    """One run. `promises`: by topic id; `mark` writes what holds now on the tape."""

    def __init__(self, seed: int, disk: TapeDisk | None = None) -> None:
        self.random = Random(seed)
        self.disk = disk or TapeDisk()
        self.promises: Promises = {}
        self.directory: LogDirectory
        self.settings = SETTINGS
        self.segment_bytes = 3 * KIB
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._sequences: dict[tuple[TopicId, int], int] = {}
        self._count = 0
        self._synced: list[tuple[Log, int]] = []
        """Logs that the jobs of a checkpoint have synced, and up to where, until its files are there."""
        self.first_step = 0
        self.now = NOW
        self.stored_ms: dict[bytes, int] = {}
        """When batches without timestamps were appended."""

    def start(self) -> None:
        """Open the directory."""
        self.directory = open_directory(self.disk, self.promises, len(self.disk.tape.steps) + 1, self.settings)

    def begin(self) -> None:
        """States before this moment are another path's."""
        self.first_step = len(self.disk.tape.steps)

    def mark(self) -> None:
        """What holds from here on."""
        self.disk.mark({topic_id: promise.snapshot() for topic_id, promise in self.promises.items()})

    def log(self, number: int) -> Log:
        """The log of topic `number`. StorageError when it could not be opened, and the others were."""
        key = (topic_id(number), 0)
        if key in self.directory.offline:
            raise StorageError(f"{self.directory.offline[key].path} is offline: {self.directory.offline[key].error}")
        return self.directory.logs[key]

    def _later(self, acknowledged: Callable[[], None]) -> None:
        """To be noted when everything journaled so far is durable."""
        self._waiting.append((self.directory.journal.last_lsn, acknowledged))

    # ---- topics

    def create(self, number: int, *, stable: bool = True, compacted: bool = False, name: str = "") -> Log:
        """A topic with one partition, led in epoch 1."""
        tp = TopicPartition(name or f"topic{number}", 0)
        promise = self.promises[topic_id(number)] = LogPromise(tp, stable, compacted)
        self.mark()
        config = small(stable=stable, compacted=compacted, segment_bytes=self.segment_bytes)
        log = self.directory.create_log(tp, topic_id(number), config)

        def acknowledged() -> None:
            promise.created = True

        self._later(acknowledged)
        self.epoch(number, 1)
        return log

    def delete(self, number: int) -> None:
        """Delete a topic."""
        promise = self.promises[topic_id(number)]
        for each in (promise, promise.anew):
            if each is not None:
                each.delete_asked = True
        self.mark()
        self.directory.delete_log(self.log(number))

        def acknowledged() -> None:
            self.promises[topic_id(number)].deleted = True

        self._later(acknowledged)

    def make_way(self, number: int, other: int) -> None:
        """Topic `number`, to whose log nothing was written since the start, is nobody's: another gets its name."""
        promise = self.promises[topic_id(number)]
        promise.delete_asked = promise.kept = True
        self.directory.strays = Strays(topic_id(number).__eq__)
        self.create(other, name=promise.tp.topic)

        def acknowledged() -> None:
            promise.deleted = True

        self._later(acknowledged)

    def epoch(self, number: int, epoch: int) -> None:
        """A leader epoch begins."""
        self.log(number).assign_epoch(epoch)

        def acknowledged() -> None:
            promise = self.promises[topic_id(number)]  # it may have begun anew before that
            promise.epoch = max(promise.epoch, epoch)

        self._later(acknowledged)

    # ---- records

    def put(
        self,
        number: int,
        size: int,
        *,
        records: int = 1,
        producer: int = -1,
        tombstone: bool = False,
        timeless: bool = False,
        gap: int = 0,
        behind: tuple[int, int] | None = None,
        transactional: bool = False,
    ) -> int:
        """Append one batch of about `size` bytes, of seven keys in turn; returns its base offset.

        gap: offsets in front of it that its leader has no more, where the log follows. behind: (topic, offset) of a
        record without which it must not be there.
        """
        log = self.log(number)
        promise = self.promises[topic_id(number)]
        self._count += 1
        base = log.end_offset + gap
        sequence = self._sequences.get((log.topic_id, producer), 0)
        value = b"%d:" % self._count + self.random.randbytes(max(0, size // records - 80))
        rows = [
            (
                b"k%d" % ((self._count + index) % 7),
                None if tombstone else value,
                (),
                -1 if timeless else self.now + base + index,
            )
            for index in range(records)
        ]
        identity = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence} if producer >= 0 else {}
        data = bytes(
            build_batch(rows, base_offset=base, leader_epoch=log.epochs.latest, transactional=transactional, **identity)
        )
        if producer >= 0:
            self._sequences[(log.topic_id, producer)] = sequence + records
        if behind is not None:
            promise.behind[data] = topic_id(behind[0]), behind[1]
        self._append(log, promise, data, gap, timeless=timeless)
        return base

    def end_transaction(self, number: int, producer: int, *, commit: bool) -> None:
        """Append the marker; in a page-cache topic it is journaled, and its coordinator hears of it behind that."""
        log = self.log(number)
        promise = self.promises[topic_id(number)]
        kind = COMMIT if commit else ABORT
        base, generation = log.end_offset, promise.cuts_asked
        data = bytes(build_marker(producer, 0, kind, 1, self.now, base_offset=base, leader_epoch=log.epochs.latest))
        self._append(log, promise, data)
        if promise.stable:
            return
        markers.journal_marker(log, data)

        def ended() -> None:
            if promise.cuts_asked == generation:
                promise.ended[base] = data

        self._later(ended)

    def say(self, number: int, record: bytearray) -> None:
        """Append a control batch of ours: it opens the log for a writer, or closes it."""
        log = self.log(number)
        place(memoryview(record), parse_header(record), log.end_offset, log.epochs.latest)
        self._append(log, self.promises[topic_id(number)], bytes(record))

    def _append(self, log: Log, promise: LogPromise, data: bytes, gap: int = 0, *, timeless: bool = False) -> None:
        base = log.end_offset + gap
        promise.queued.setdefault(base, []).append((promise.cuts_asked, data))
        if gap:
            promise.gaps[data] = log.end_offset
        if timeless:
            self.stored_ms[data] = self.now
        if gap:
            append_as_follower(log, data, parse_header(data), self.now)
        else:
            log.append(data, parse_header(data), self.now)
        if promise.stable:

            def acknowledged() -> None:
                promise.acknowledged[base] = data

            self._later(acknowledged)

    def keep_order(self) -> None:
        """What follows is durable only with all that was put before."""
        self.directory.keep_order()

    def truncate(self, number: int, offset: int) -> None:
        """Cut a log's end off."""
        log = self.log(number)
        promise = self.promises[topic_id(number)]
        promise.cuts_asked += 1
        promise.cut_asked = offset
        self.mark()
        truncate_log(log, offset)
        for base, data in list(promise.acknowledged.items()):
            if parse_header(data).next_offset > offset:
                del promise.acknowledged[base]
        promise.ended = {base: data for base, data in promise.ended.items() if base < log.end_offset}
        promise.synced_end = min(promise.synced_end, log.end_offset)
        promise.epoch = min(promise.epoch, log.epochs.latest)
        number_of_cut = promise.cuts_asked

        def acknowledged() -> None:
            promise.cuts = number_of_cut
            promise.cut_asked = None

        self._later(acknowledged)

    def begin_anew(self, number: int, offset: int, segment_base: int | None = None) -> None:
        """Drop all of a log; it begins with an offset, empty."""
        promise = self.promises[topic_id(number)]
        anew = LogPromise(promise.tp, promise.stable, promise.compacted, created=True, start=offset, start_asked=offset)
        promise.anew = anew
        self.mark()
        try:
            self.directory.begin_anew(self.log(number), offset, segment_base)
        except (KafkaError, NoRoomError):
            promise.anew = None
            raise
        for producer in [producer for known, producer in self._sequences if known == topic_id(number)]:
            self._sequences[topic_id(number), producer] = 0

        def acknowledged() -> None:
            self.promises[topic_id(number)] = anew

        self._later(acknowledged)

    def advance_start(self, number: int, offset: int) -> None:
        """Delete the records below an offset."""
        promise = self.promises[topic_id(number)]
        promise.start_asked = max(promise.start_asked, offset)
        self.mark()
        self.log(number).advance_start(offset)

        self._later(partial(_started, promise, offset))

    def configure(self, number: int, *, stable: bool) -> None:
        """Change a topic's durability. Page-cache records are promised once it is stable again."""
        promise = self.promises[topic_id(number)]
        log = self.log(number)
        configure_log(log, small(stable=stable))
        promise.stable = stable
        if stable:
            everything = promise.history(log.start_offset, log.end_offset)
            self._later(lambda: promise.acknowledged.update(everything))

    # ---- the engine's cycle

    def commit(self) -> None:
        """Group commits until nothing is queued, and what truncations leave to other threads."""
        self.run_groups()
        self.rebuild_producers()

    def run_groups(self) -> None:
        """Group commits until nothing is queued."""
        while (group := self.directory.take_group()) is not None:
            try:
                group.run()
            except OSError as error:
                self.directory.journal.fail(group, error)
                raise
            self.directory.journal.complete(group)
            self.settle()

    def rebuild_producers(self) -> None:
        """What is known of them behind truncations."""
        for job in self.directory.take_rebuilds():
            try:
                job.run()
            except OSError as error:
                job.fail(error)
                raise
            job.complete()

    def settle(self) -> None:
        """Note what became durable."""
        durable = self.directory.journal.durable_lsn
        due = [entry for entry in self._waiting if entry[0] <= durable]
        self._waiting = [entry for entry in self._waiting if entry[0] > durable]
        for _, acknowledged in due:
            acknowledged()
        self.mark()

    def checkpoint(self) -> None:
        """A whole round, and the mark that lets its parts be recycled."""
        self.checkpoint_round()
        self.commit()

    def checkpoint_round(self, between: Callable[[], None] | None = None) -> None:
        """A round, while a group may be open: as far as the journal lets it come.

        between: is called when the first log of it has been synced, and no other.
        """
        force = True
        while (job := self._take_checkpoint(force, one=between is not None)) is not None:
            try:
                job.run()
            except OSError as error:
                self.directory.fail_checkpoint(job, error)
                raise
            syncs = job.syncs  # which the job lets go
            self.directory.complete_checkpoint(job)
            force = False
            self._synced += [(log, sync.end_offset) for log, sync, _ in syncs]
            if job.files is not None:
                for log, end in self._synced:
                    promise = self.promises[log.topic_id]
                    promise.synced_end = max(promise.synced_end, min(end, log.end_offset))
                self._synced.clear()
                break
            if between is not None:
                between()
                between = None

    def _take_checkpoint(self, force: bool, *, one: bool) -> CheckpointJob | None:
        with (
            patch.object(Checkpointer, "take_job", partialmethod(_take_one, Checkpointer.take_job))
            if one
            else nullcontext()
        ):
            return self.directory.take_checkpoint(force)

    def keep_house(self, now_ms: int) -> None:
        """Sealing, retention, removals, the journal's growth: two turns, since removals follow renames."""
        for _ in range(2):
            allowed = self.allow_retention(now_ms)
            self.mark()
            jobs = self.directory.take_maintenance(now_ms)
            require_not_early(allowed)
            for log in self.directory.logs.values():
                promise = self.promises[log.topic_id]
                promise.start_asked = log.start_offset
                self._later(partial(_started, promise, log.start_offset))
            self.mark()
            for job in jobs:
                try:
                    job.run()
                except (OSError, DuramenError) as error:
                    job.fail(error)
                else:
                    job.complete()
            self.commit()

    def allow_retention(self, now_ms: int) -> dict[Log, int]:
        """Log starts that retention may ask for now, which the ledger notes; as they are, if nothing may go."""
        allowed = {}
        for log in self.directory.logs.values():
            promise = self.promises[log.topic_id]
            leased = self.leased_from(log, now_ms)
            allowed[log] = allowed_start(log, promise, now_ms, self.stored_ms, leased)
            promise.start_asked = max(promise.start_asked, allowed[log])
        return allowed

    def leased_from(self, log: Log, now_ms: int) -> list[int]:
        """Offsets from which on a lease holds the log."""
        return []

    def compact(self, now_ms: int) -> None:
        """One pass of compaction, to its end; its jobs fail as the engine lets them fail."""
        cleaning = self.directory.cleaner.begin_pass(CLEANER, now_ms)
        while cleaning is not None and not cleaning.over:
            job = cleaning.next_job(now_ms)
            try:
                if job is not None:
                    job()
            except (OSError, DuramenError) as error:
                cleaning.fail(error)
            if job is None:
                self.commit()
        self.commit()

    def stop(self) -> None:
        """A clean stop."""
        self.directory.close(clean=True)
        for _, acknowledged in self._waiting:
            acknowledged()
        self._waiting.clear()
        self.mark()

    def crash(self) -> None:
        """The process ends; what it had queued is nobody's."""
        self._waiting.clear()
        self.directory.close(clean=False)


def commit(directory: LogDirectory) -> None:
    """Run group commits until nothing is queued, and what truncations leave to other threads."""
    while (group := directory.take_group()) is not None:
        group.run()
        directory.journal.complete(group)
    for job in directory.take_rebuilds():
        job.run()
        job.complete()


def require_not_early(allowed: dict[Log, int]) -> None:
    """No log starts behind what it may."""
    for log, start in allowed.items():
        require(log.start_offset <= start, f"{log.tp} starts at {log.start_offset}, retention may take it to {start}")


def _take_one(
    checkpointer: Checkpointer, take_job: Callable[[Checkpointer, int], CheckpointJob | None], limit: int
) -> CheckpointJob | None:
    return take_job(checkpointer, 1)


def _started(promise: LogPromise, offset: int) -> None:
    promise.start = max(promise.start, offset)


def topic_id(number: int) -> TopicId:
    """The id of topic `number`."""
    return bytes(15) + bytes([number])
