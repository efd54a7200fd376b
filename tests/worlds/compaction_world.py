"""Random histories of compacted logs, and what must be true of what is left of them. Used by the compaction tests.

The model keeps every batch that was ever queued, in order. After a crash it is cut to where the log ends; what had been
acknowledged may not be missing. What a reader sees of the log must fold, key by key, to what the model folds to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tests.worlds.storage_workload import SeededEntropy, checkpoint, commit
from tests.worlds.stored_batches import stored_batches

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.compaction.compaction_pass import CleanerSettings, CompactionPass
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.wire.batch import (
    ABORT,
    COMMIT,
    BatchHeader,
    Record,
    build_batch,
    build_marker,
    check_crc,
    parse_header,
    records,
)

KIB = 1024
HOUR_MS = 3_600_000
TOPIC_ID = bytes(15) + b"\x44"
TP = TopicPartition("compacted", 0)
SETTINGS = DirectorySettings(
    journal_max_bytes=128 * KIB,
    journal_part_bytes=32 * KIB,
    journal_first_part_bytes=16 * KIB,
    bypass_bytes=6 * KIB,
    retention_check_interval_ms=0,
)

CHECKPOINT = "/data/duramen-checkpoint"

Fold = dict[bytes, bytes]


@dataclass
class CompactedConfig(PlainLogConfig):
    """A compacted topic with small segments."""

    cleanup_policy: frozenset[str] = frozenset({"compact"})
    retention_ms: int = -1
    retention_bytes: int = -1
    file_delete_delay_ms: int = 0
    min_cleanable_dirty_ratio: float = 0.0
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = HOUR_MS


class Stored(NamedTuple):
    """One batch of the model. records: by offset; marker: ABORT or COMMIT, None for data."""

    header: BatchHeader
    data: bytes
    records: dict[int, tuple[bytes | None, bytes | None, int]]
    marker: int | None
    queued_ms: int


def read_batches(log: Log, start: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch from the one at or behind `start`, as a fetch would bring it, each checked against its CRC."""
    for header, view in stored_batches(log, start, end, 3 * KIB):
        assert check_crc(view, header), header
        yield header, view


def visible(log: Log, end: int) -> dict[int, Record]:
    """What a read_committed consumer sees from the log start on, by offset."""
    aborted = sorted(log.aborted(log.start_offset, end), key=lambda entry: entry[1], reverse=True)
    skipping: set[int] = set()
    found: dict[int, Record] = {}
    for header, view in read_batches(log, log.start_offset, end):
        while aborted and aborted[-1][1] <= header.last_offset:
            skipping.add(aborted.pop()[0])
        content = list(records(view, header, max_bytes=1 << 20))
        if header.is_control:
            if content and content[0].key == b"\0\0\0\0":
                skipping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipping):
            for record in content:
                assert record.offset not in found
                if record.offset >= log.start_offset:
                    found[record.offset] = record
    return found


def fold(found: dict[int, tuple[bytes | None, bytes | None]]) -> Fold:
    """The last value of every key; a tombstone takes the key away."""
    values: Fold = {}
    for offset in sorted(found):
        key, value = found[offset]
        if key is None:
            continue
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values


class Promises:
    """What must be true of a compacted log. `stored` is the model; the rest as `History` says."""

    directory: LogDirectory
    disk: CrashDisk
    config: CompactedConfig
    stored: list[Stored]
    open: dict[int, int]
    excused: dict[int, int]
    now_ms: int
    cleaning: CompactionPass | None

    @property
    def log(self) -> Log:
        (log,) = self.directory.logs.values()
        return log

    @property
    def stable_end(self) -> int:
        unstable = self.log.producers.first_unstable_offset
        return self.log.end_offset if unstable is None else unstable

    def expected(self, end: int) -> dict[int, tuple[bytes | None, bytes | None, int]]:
        """The model's records below `end` that were not rolled back."""
        outcome: dict[int, int] = {}
        content: dict[int, tuple[bytes | None, bytes | None, int]] = {}
        for each in reversed(self.stored):
            header = each.header
            if header.base_offset >= end:
                if each.marker is not None:
                    outcome[header.producer_id] = each.marker
                continue
            if each.marker is not None:
                outcome[header.producer_id] = each.marker
            elif not header.is_transactional or outcome.get(header.producer_id) == COMMIT:
                content.update(each.records)
        return content

    def check(self) -> None:
        """What is left folds to what was written; nothing else is there; producers are known as before."""
        log = self.log
        assert self.directory.cleaner.uncleanable == {}
        end = self.stable_end
        full = self.expected(end)
        found = visible(log, end)
        for offset, record in found.items():
            assert full.get(offset) == (record.key, record.value, record.timestamp), offset
        left = {offset: (record.key, record.value) for offset, record in found.items()}
        assert fold(left) == fold({offset: each[:2] for offset, each in full.items()})
        last = {key: offset for offset, (key, _, _) in sorted(full.items())}
        queued = {offset: each.queued_ms for each in self.stored for offset in each.records}
        for key, offset in last.items():
            if full[offset][1] is not None or self.now_ms < queued[offset] + self.config.delete_retention_ms:
                assert offset in found, f"the last record of {key!r}, at {offset}, is gone"
        self.check_producers()
        if self.cleaning is None:
            names = self.disk.list_directory(log.path)
            assert (
                not [name for name in names if name.endswith((".cleaned", ".swap"))] or self.directory.cleaner.running
            )

    def check_producers(self) -> None:
        """A batch that is sent again is recognised: the last five of every producer."""
        remembered: dict[int, list[Stored]] = {}
        for each in self.stored:
            if each.header.producer_id >= 0 and each.marker is None:
                remembered.setdefault(each.header.producer_id, []).append(each)
        for producer, sent in remembered.items():
            state = self.log.producers.get(producer)
            if state is None:
                continue  # it wrote nothing for a day
            assert state.last_sequence == sent[-1].header.last_sequence
            for each in sent[-5:]:
                if each.header.base_offset < self.excused.get(producer, 0):
                    continue
                again = parse_header(each.data)
                found = self.log.producers.check(again)
                assert found is not None, each.header
                assert found.base_offset == each.header.base_offset
            assert self.open.get(producer, -1) == state.transaction_start


class History(Promises):
    """One seeded life of a compacted log."""

    def __init__(self, seed: int, *, crashes: bool = True) -> None:
        self.random = random = Random(seed)
        self.disk = CrashDisk(Random(seed + 1), torn=random.random() < 0.5)
        self.crashes = crashes
        self.now_ms = 1_700_000_000_000
        self.config = CompactedConfig(
            segment_bytes=random.choice((700, 1500, 4000)),
            index_interval_bytes=random.choice((100, 400)),
            durability=random.choice(("stable", "stable", "page-cache")),
        )
        self.config.delete_retention_ms = random.choice((0, 60_000, HOUR_MS))
        self.config.min_cleanable_dirty_ratio = random.choice((0.0, 0.0, 0.5))
        self.config.min_compaction_lag_ms = random.choice((0, 0, 30_000))
        self.settings = CleanerSettings(
            dedupe_bytes=random.choice((8 * 24, 30 * 24, 1 << 16)), io_bytes=random.choice((300, 4096))
        )
        self.keys = [b"key-%d" % number for number in range(random.choice((3, 12, 40)))]
        self.codecs = random.choice(((0,), (0, 1, 2, 3, 4)))
        self.stored: list[Stored] = []
        self.acknowledged = 0
        self.sequences: dict[int, int] = {}
        self.open: dict[int, int] = {}
        self.excused: dict[int, int] = {}
        self.epoch = 0
        self.cleaning: CompactionPass | None = None
        self.passes = self.swaps = self.deaths = self.values = 0
        self.directory = self._open()
        self.directory.create_log(TP, TOPIC_ID, self.config)
        commit(self.directory)
        checkpoint(self.directory)

    def _open(self) -> LogDirectory:
        entropy = SeededEntropy(self.disk.calls)
        directory = LogDirectory.open(self.disk, "/data", SETTINGS, now_ms=self.now_ms, entropy=entropy)
        for log in directory.logs.values():
            configure_log(log, self.config)
            self.epoch = max(self.epoch, log.epochs.latest) + 1
            log.assign_epoch(self.epoch)
        return directory

    # ---- what happens --------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """So many random steps; the power may fail, or the process be killed, in any disk call."""
        actions = [
            (30, self.put),
            (8, self.put_idempotent),
            (6, self.put_transaction),
            (10, self.commit),
            (5, self.checkpoint),
            (5, self.housekeep),
            (14, self.clean),
            (3, self.pass_time),
            (2, self.restart),
            (1, self.lease),
        ]
        if not self.crashes:
            actions = [(weight, action) for weight, action in actions if action != self.restart]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            (action,) = self.random.choices([action for _, action in actions], weights)
            if self.crashes and self.random.random() < 0.03:
                calls = self.disk.calls + self.random.choice((1, 5, 20, 60, 200))
                if self.random.random() < 0.7:
                    self.disk.cut_at = calls
                else:
                    self.disk.kill_at = calls
            try:
                action()
            except NodeDied:
                self.recover()
        self.disk.cut_at = self.disk.kill_at = None

    def recover(self) -> None:
        """The next process finds what is left; the power may fail again meanwhile."""
        while True:
            self.deaths += 1
            self.cleaning = None
            self.disk.power_on()
            if self.random.random() < 0.15 and not self.disk.torn and self.disk.exists(CHECKPOINT):
                self.disk.remove(CHECKPOINT)  # it may be lost: the journal and Kafka's files know enough
            if self.random.random() < 0.3:
                self.disk.cut_at = self.disk.calls + self.random.randint(1, 150)
            try:
                self.directory = self._open()
                commit(self.directory)
                self.disk.cut_at = None
            except NodeDied:
                continue
            break
        self.cut_to(self.log.end_offset)
        self.check()

    def cut_to(self, end: int) -> None:
        """The model loses what was never acknowledged and is not in the log."""
        if self.config.durability == "stable":
            assert end >= self.acknowledged, f"acknowledged up to {self.acknowledged}, the log ends at {end}"
        lost = [each for each in self.stored if each.header.base_offset >= end]
        self.stored = [each for each in self.stored if each.header.base_offset < end]
        self.excuse(lost)
        if self.stored:
            assert self.stored[-1].header.next_offset == end, "the log ends within a batch"
        else:
            assert end == 0
        self.acknowledged = end
        self.sequences = {}
        self.open = {}
        for each in self.stored:
            header = each.header
            if header.producer_id < 0:
                continue
            if each.marker is None:
                self.sequences[header.producer_id] = header.last_sequence + 1
                if header.is_transactional:
                    self.open.setdefault(header.producer_id, header.base_offset)
            else:
                self.open.pop(header.producer_id, None)

    def excuse(self, lost: list[Stored]) -> None:
        """A producer that has sent a batch, lost or not, never sends its sixth last one again: five are in flight."""
        for producer in {each.header.producer_id for each in lost if each.header.producer_id >= 0}:
            sent = [each for each in self.stored if each.header.producer_id == producer and each.marker is None]
            gone = sum(each.header.producer_id == producer and each.marker is None for each in lost)
            window = sent[-(5 - gone) :] if gone < 5 else []
            known_from = window[0].header.base_offset if window else self.log.end_offset
            self.excused[producer] = max(self.excused.get(producer, 0), known_from)

    def put(self, **more: int | bool) -> None:
        """Queue a batch of one to six records."""
        new = []
        for _ in range(self.random.randint(1, 6)):
            self.values += 1
            value = (
                None if self.random.random() < 0.2 else b"%d:" % self.values + b"v" * self.random.choice((0, 9, 150))
            )
            headers = [(b"h", b"1")] if self.random.random() < 0.1 else []
            new.append((self.random.choice(self.keys), value, headers, self.now_ms + self.random.randint(-50, 50)))
        self.append(build_batch(new, compression=self.random.choice(self.codecs), **more), None)

    def append(self, batch: bytearray, marker: int | None) -> None:
        log = self.log
        view = memoryview(batch)
        view[0:8] = log.end_offset.to_bytes(8, "big")
        view[12:16] = self.epoch.to_bytes(4, "big")
        header = parse_header(view)
        if marker is None:
            content = {
                record.offset: (record.key, record.value, record.timestamp)
                for record in records(view, header, max_bytes=1 << 20)
            }
        else:
            content = {}
        if header.producer_id >= 0 and marker is None:
            assert log.producers.check(header) is None
        data = bytes(view)
        try:
            log.append(view, header, self.now_ms)
        except KafkaError as error:
            if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            self.checkpoint()  # the journal was full
            return
        self.stored.append(Stored(header, data, content, marker, self.now_ms))
        if marker is None and header.producer_id >= 0:
            self.sequences[header.producer_id] = header.last_sequence + 1
            if header.is_transactional:
                self.open.setdefault(header.producer_id, header.base_offset)
        elif marker is not None:
            self.open.pop(header.producer_id, None)

    def put_idempotent(self) -> None:
        """A batch of one of three idempotent producers."""
        producer = self.random.randint(1, 3)
        self.put(producer_id=producer, producer_epoch=0, base_sequence=self.sequences.get(producer, 0))

    def put_transaction(self) -> None:
        """Begin, continue or end a transaction of one of two producers; the broker writes the marker."""
        producer = self.random.randint(11, 12)
        if producer in self.open and self.random.random() < 0.6:
            kind = self.random.choice((ABORT, COMMIT))
            self.append(build_marker(producer, 0, kind, 0, self.now_ms), kind)
        else:
            sequence = self.sequences.get(producer, 0)
            self.put(producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)

    def commit(self) -> None:
        """Group commits until nothing is queued: everything is acknowledged then."""
        end = self.log.end_offset
        commit(self.directory)
        self.acknowledged = max(self.acknowledged, end if self.log.stable else 0)
        self.log.producers.committed(self.log.durable_end)

    def checkpoint(self) -> None:
        self.commit()
        checkpoint(self.directory)
        self.log.producers.committed(self.log.durable_end)

    def housekeep(self) -> None:
        """Sealing and retention."""
        for job in self.directory.take_maintenance(self.now_ms):
            job.run()
            job.complete()

    def pass_time(self) -> None:
        self.now_ms += self.random.choice((100, 40_000, 2 * HOUR_MS))

    def lease(self) -> None:
        """Somebody reads some segment's files for a while."""
        self.log.lease(self.random.randint(0, self.log.end_offset), self.now_ms + self.random.choice((10, 50_000)))

    def restart(self) -> None:
        """A clean stop and a start."""
        self.cleaning = None
        self.commit()
        self.directory.close(clean=True)
        self.directory = self._open()
        assert self.directory.clean_start
        commit(self.directory)
        self.cut_to(self.log.end_offset)
        self.check()

    def clean(self) -> None:
        """Go on with the pass that is under way, or begin one; often not to its end."""
        if self.cleaning is None:
            if self.random.random() < 0.7:
                self.checkpoint()
                self.housekeep()
            self.cleaning = self.directory.cleaner.begin_pass(self.settings, self.now_ms)
        pieces = self.random.choice((3, 12, 1000, 1000))
        while self.cleaning is not None and pieces:
            pieces -= 1
            self.piece(self.cleaning)
            if self.cleaning.over:
                self.passes += self.cleaning.completed
                self.swaps += self.cleaning.swaps
                self.cleaning = None
                self.check()

    def piece(self, cleaning: CompactionPass) -> None:
        job = cleaning.next_job(self.now_ms)
        if self.crashes and cleaning.swapping and self.random.random() < 0.1:
            self.disk.cut_at = self.disk.calls + self.random.randint(1, 25)
        if job is not None:
            job()
        elif not cleaning.over:
            commit(self.directory)
            self.now_ms += 1000

    def end_transactions(self) -> None:
        """Commit what is open."""
        for producer in list(self.open):
            self.append(build_marker(producer, 0, COMMIT, 0, self.now_ms), COMMIT)

    def settle(self) -> None:
        """Compact everything there is, and see that it was."""
        self.cleaning = None
        self.crashes = False
        self.now_ms += 60_000  # longer than any lease
        self.directory.close(clean=True)
        self.directory = self._open()
        self.config.min_cleanable_dirty_ratio = 0.0
        self.config.min_compaction_lag_ms = 0
        self.end_transactions()
        self.put()
        self.log.roll()
        self.put()
        self.checkpoint()
        self.checkpoint()
        self.housekeep()
        commit(self.directory)
        for _ in range(200):
            cleaning = self.directory.cleaner.begin_pass(self.settings, self.now_ms)
            if cleaning is None:
                break
            while not cleaning.over:
                self.piece(cleaning)
            self.checkpoint()
        else:
            raise AssertionError("compaction does not come to an end")
        self.check()
        cleaned = self.directory.cleaner.first_dirty(self.log)
        assert cleaned == self.log.active.base_offset
        keys = [record.key for offset, record in sorted(visible(self.log, self.stable_end).items()) if offset < cleaned]
        assert len(keys) == len(set(keys)), "a key is there twice"
        self.directory.close(clean=True)
