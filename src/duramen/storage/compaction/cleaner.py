"""Compaction of one directory's logs, as seen from the loop: which log is next, how its pass goes on, how it ended.

A pass is a sequence of jobs for a lane of its own, handed out by `Cleaning.take` one by one. Between them everything
may change: a log may be deleted or cut, a lease be taken, the disk fail. Every step asks again, and a pass that may not
go on is given up; whatever it had swapped in by then stays. Groups of segments are swapped in from the oldest to the
youngest, never one without those before it: otherwise a tombstone could go before what it deletes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from duramen.errors import CorruptLogError, DuramenError, ErrorCode, KafkaError
from duramen.model import LogKey, TopicPartition
from duramen.ports import Disk
from duramen.storage.checkpoint.kafka_files import CLEANED as CLEANED_FILE
from duramen.storage.checkpoint.kafka_files import (
    CLEANER,
    Cleaned,
    decode_cleaned,
    encode_cleaned,
    encode_offsets,
    read_offsets,
)
from duramen.storage.compaction.eligibility import (
    Cleanable,
    bound_but_for_checkpoints,
    bound_of,
    cleanable,
    groups,
    is_compacted,
)
from duramen.storage.compaction.key_map import OffsetMap
from duramen.storage.compaction.segment_rewrite import Copy, Rules, UncleanableBatchError, build_map
from duramen.storage.compaction.transactions import CleanedTransactions
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.files.disk_full import NoRoomError, opening, told
from duramen.storage.journal.format import EntryKind
from duramen.storage.journal.journal import Journal
from duramen.storage.log.log import Log
from duramen.storage.segment.corruption import Findings, damage_of
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.replacement import CLEANED, SWAP, drop_cleaned, remove_replaced, stage, unstage
from duramen.storage.segment.segment import Segment

Job = Callable[[], int]
"""Work for the lane; returns the bytes it read and wrote."""
Pieces = Generator[int, None, None]
Steps = Generator["Job | None", None, None]
"""What a pass does next; None: ask again a little later."""

LEAST_LATE_MS = 1000
"""See `Cleaner.lateness`."""


class CleanerSettings(NamedTuple):
    """How compaction works. dedupe_bytes: of one pass's map of last offsets; io_bytes: read at a time.

    threads: passes at a time; 0 for none. bytes_per_second: over all of them, reading and writing.
    """

    threads: int = 1
    dedupe_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_bytes: int = 256 << 10
    bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000


@dataclass(slots=True)
class CleanerStatistics:
    """What compaction has done since the start. max_dirty_ratio: as of the last look; last_pass_ms: wall clock."""

    passes: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    last_pass_ms: int = -1
    max_dirty_ratio: float = 0.0


class Cleaning:
    """One pass over one log."""

    def __init__(self, cleaner: Cleaner, work: Cleanable, settings: CleanerSettings, now_ms: int) -> None:
        self.log = work.log
        self.swapping = False
        """New files have been named `.swap`: from here to the end of step 5 the pass has to be finished."""
        self.leaving: tuple[int, ...] = ()
        """Base offsets of segments that a copy takes in, from the SWAP entry on until they are gone from the log."""
        self.over = False
        self.completed = False
        """The pass went through: the log's next pass begins behind it."""
        self.swaps = 0
        self._copy: Segment | None = None
        """Whose `.cleaned` files are there, or half there."""
        self._cleaner = cleaner
        self._work = work
        self._settings = settings
        self._now_ms = self._steady_ms = now_ms
        self._cuts = work.log.truncations
        self._finishing = False
        self._steps = self._pass()

    def take(self, now_ms: int, steady_ms: int | None = None) -> Job | None:
        """The next job for the lane, None when there is none now: the pass is `over`, or waits. OSError fences.

        steady_ms: by a clock that nobody sets; None: the wall clock is not set meanwhile.
        """
        self._now_ms = now_ms
        self._steady_ms = now_ms if steady_ms is None else steady_ms
        if self._abandoned():
            self.end()
            return None
        try:
            return next(self._steps)
        except StopIteration:
            self.end()
        except (OSError, DuramenError) as error:
            self.fail(error)
        return None

    def fail(self, error: BaseException) -> None:
        """The last job failed."""
        if not self.over and not self._abandoned():
            self._cleaner.failed(self, error)
        self.end()

    def end(self) -> None:
        """No more of it."""
        if not self.over:
            self.over = True
            self._steps.close()
            self._cleaner.ended(self)
            if self._copy is not None and self._cleaner.knows(self.log):
                with suppress(OSError):  # else the next start removes them
                    drop_cleaned(self.log.disk, self.log.path, self._copy.base_offset)

    def finish_swap(self) -> None:
        """The directory is about to be closed cleanly: bring a swap that has begun to its end, here, now. OSError."""
        self._finishing = True
        while self.swapping and not self.over:
            job = next(self._steps)
            if job is not None:
                job()
        self.end()

    def _abandoned(self) -> bool:
        """Whether the pass must not touch the log any more."""
        if not self._cleaner.knows(self.log):
            return True
        return not self.swapping and (self._cuts != self.log.truncations or not is_compacted(self.log))

    # ---- the pass ------------------------------------------------------------------------------------------------

    def _pass(self) -> Steps:
        work, log, settings = self._work, self.log, self._settings
        offsets = OffsetMap(
            settings.dedupe_bytes,
            settings.load_factor,
            max(0, work.end - work.first_dirty),
            log.topic_id,
        )
        aborted = [entry for segment in log.segments for entry in segment.aborted()]
        dirty_from = work.dirty[0].base_offset
        seen = CleanedTransactions(entry for entry in aborted if entry.last_offset >= dirty_from)
        disk = log.disk
        yield from _jobs(build_map(disk, work.dirty, work.first_dirty, seen, offsets, settings.io_bytes))
        if offsets.latest < work.first_dirty:
            return
        rules = self._rules(self._cleaner.seen_from(log))
        owed = -1
        transactions = CleanedTransactions(aborted)
        config = log.config
        inside = [segment for segment in work.segments if segment.base_offset <= offsets.latest]
        for group in groups(inside, config.segment_bytes, config.segment_index_bytes):
            target = Segment(disk, log.path, group[0].base_offset, log.open_files)
            target.staged = CLEANED
            self._copy = target
            rules = rules._replace(now_ms=self._now_ms)
            began_ms = self._steady_ms
            copy = Copy(
                disk, group, target, offsets, rules, transactions,
                chunk_bytes=settings.io_bytes, index_interval_bytes=config.index_interval_bytes,
            )  # fmt: skip
            yield from _jobs(copy.steps())
            if copy.left:
                rules = rules.without_horizons
            owed = copy.owed if owed < 0 else owed
            self._cleaner.statistics.bytes_read += copy.bytes_in
            self._cleaner.statistics.bytes_written += copy.bytes_out
            if copy.changed:
                # Noted first, and as much again for the swap: who dies in it leaves a copy that nobody saw begin.
                yield from self._note_late(2 * (self._steady_ms - began_ms))
                swapped = yield from self._swap(group, target)
                if not swapped:
                    return
                yield from self._note_late(self._steady_ms - began_ms)
            else:
                yield partial(_drop, disk, log.path, target.base_offset)
            self._copy = None
        if not rules.horizons and owed < 0:
            owed = offsets.begun
        yield from self._note(lambda: self._cleaner.cleaned_to(log, offsets, owed))
        self._cleaner.passed(self._now_ms)
        self.completed = True

    def _note(self, job: Callable[[], Job]) -> Steps:
        """Have a job run that writes what all passes share, when no other pass has one."""
        while self._cleaner.noting is not None and not self._cleaner.noting.over:
            yield None
        self._cleaner.noting = self
        yield job()
        self._cleaner.noting = None

    def _note_late(self, late_ms: int) -> Steps:
        """What a copy leaves out was there to be read so long behind its beginning. In whole seconds: seldom anew.

        The file has all compacted logs: it is not written for what every log is granted (`Cleaner.lateness`).
        """
        late_ms = -(-late_ms // 1000) * 1000
        if late_ms > self._cleaner.lateness(self.log):
            yield from self._note(lambda: self._cleaner.was_late(self.log, late_ms))

    def _rules(self, seen_from: int) -> Rules:
        batches: dict[int, frozenset[int]] = {}
        epochs: dict[int, int] = {}
        for producer in self.log.producers.active():
            if producer.batches:
                batches[producer.id] = frozenset(batch[3] for batch in producer.batches)
            else:
                epochs[producer.id] = producer.epoch
        expired_ms = self._now_ms - self._cleaner.lateness(self.log)
        return Rules(self._now_ms, expired_ms, self.log.config.delete_retention_ms, seen_from, batches, epochs)

    def _swap(self, group: list[Segment], target: Segment) -> Generator[Job | None, None, bool]:
        """Put the copy in place; False when it may not be any more. See `segment/replacement.py` for the steps."""
        log = self.log
        if self._may_swap(group):
            log.journal.admit(0)
            end = group[-1].next_offset
            lsn = log.journal.append(EntryKind.SWAP, log, end, log.epochs.latest, target.base_offset, 0)
            self.leaving = tuple(segment.base_offset for segment in group[1:])
            while not self._cleaner.is_durable(lsn):
                yield None
        if not self._may_swap(group):
            self.leaving = ()
            yield partial(_drop, log.disk, log.path, target.base_offset)
            return False
        self.swapping = True
        self._copy = None
        yield from self._insist(partial(stage, log.disk, log.path, target.base_offset))
        while group[-1].next_offset > self._cleaner.bound(log, self._now_ms) and not self._finishing:
            yield None  # leased at the last moment; nobody holds a lease over a stop
        target.staged = SWAP
        log.replace_segments(group, target)
        replaced, self.leaving = self.leaving, ()
        yield from self._insist(partial(remove_replaced, log.disk, lambda: log.path, replaced))
        while not self._unstaged(target):
            yield None
        target.staged, target.unstaged = "", ()
        target.release_files()
        # The next pass writes beside these names: half of them without it would look like a step 3 that it began.
        yield from self._insist(lambda: log.disk.sync_directory(log.path))
        self.swapping = False
        self.swaps += 1
        return True

    def _insist(self, step: Callable[[], None]) -> Steps:
        """Have a step of a swap done, which can be repeated: again a little later where it found no room."""
        while not self._finishing:
            job = _Step(step)
            yield job
            if job.done:
                return
            yield None
        step()

    def _unstaged(self, target: Segment) -> bool:
        """Step 5, here, for the segment's names and what it takes for them change at once; False for want of room."""

        def renamed(suffix: str) -> None:
            target.unstaged = (*target.unstaged, suffix)

        try:
            unstage(self.log.disk, self.log.path, target.base_offset, renamed)
        except NoRoomError:
            if self._finishing:
                raise
            self._cleaner.journal.give_way()
            return False
        return True

    def _may_swap(self, group: list[Segment]) -> bool:
        """Whether the group is still there, whole, and nobody has laid hands on it."""
        segments = self.log.segments
        if group[0] not in segments:
            return False
        first = segments.index(group[0])
        if segments[first : first + len(group)] != group:
            return False
        return group[-1].next_offset <= self._cleaner.bound(self.log, self._now_ms)


def _jobs(steps: Pieces) -> Steps:
    """The pieces of a generator as jobs, until it ends."""
    over = False

    def step() -> int:
        nonlocal over
        try:
            return next(steps)
        except StopIteration:
            over = True
            return 0

    try:
        while not over:
            yield step
    finally:
        steps.close()


@dataclass(slots=True)
class _Step:
    """A job; done: it found room."""

    step: Callable[[], None]
    done: bool = False

    def __call__(self) -> int:
        with suppress(NoRoomError), opening():
            self.step()
            self.done = True
        return 0


def _drop(disk: Disk, path: str, base: int) -> int:
    drop_cleaned(disk, path, base)
    return 0


@dataclass(slots=True)
class Cleaner:
    """Compaction of one directory. Loop thread only.

    persisted: the points of the last durable checkpoint. high_watermark: as for retention. findings: damage goes there.
    uncleanable: logs whose last pass failed, with the reason; they are left alone until a restart, the others go on.
    unread: of them, those with a batch that cannot be looked into, and its offset; they are cleaned up to there.
    waits: for a checkpoint, without which there is nothing to do. noting: the pass that writes the files which
    all of them share, one after the other. holds: no pass is begun. late_ms: of each log, how long what a copy leaves
    out was there to be read behind the beginning of that copy, from which delete horizons count: the longest ever.
    cleaned: see `seen_from`. within: where the next pass goes on in the batch at `cleaned`, which has more keys
    than fit into a map, and how often the log had been cut. owing: `cleaned` of logs whose last pass had no room for a
    delete horizon there.
    """

    disk: Disk
    directory: str
    journal: Journal
    logs: Mapping[LogKey, Log]
    persisted: Callable[[], Mapping[LogKey, LogPoint]]
    high_watermark: Callable[[Log], int]
    findings: Findings
    on_uncleanable: Callable[[Log, BaseException], None] = lambda log, error: None
    statistics: CleanerStatistics = field(default_factory=CleanerStatistics)
    uncleanable: dict[LogKey, str] = field(default_factory=dict)
    unread: dict[LogKey, int] = field(default_factory=dict)
    cleaned: dict[LogKey, int] = field(default_factory=dict)
    running: list[Cleaning] = field(default_factory=list)
    waits: bool = False
    noting: Cleaning | None = None
    holds: bool = False
    late_ms: dict[LogKey, int] = field(default_factory=dict)
    within: dict[LogKey, tuple[int, int]] = field(default_factory=dict)
    owing: dict[LogKey, int] = field(default_factory=dict)

    def load(self) -> None:
        """Take over our own checkpoint, or, where Kafka was here last, its one, which knows names only.

        Both may be older than the logs, or missing. What ours does not know is a topic that no pass has been over.
        """
        content = read_file(self.disk, posixpath.join(self.directory, CLEANED_FILE))
        ours = None if content is None else decode_cleaned(content)
        named = read_offsets(self.disk, posixpath.join(self.directory, CLEANER)) if ours is None else {}
        for key, log in self.logs.items():
            offset, late_ms = Cleaned(named.get(log.tp, -1)) if ours is None else ours.get(key, Cleaned(-1))
            if log.start_offset <= offset <= log.end_offset:
                self.cleaned[key] = offset
            if late_ms:
                self.late_ms[key] = late_ms

    def first_dirty(self, log: Log) -> int:
        """From where on no pass has looked at the log's keys."""
        cuts, offset = self.within.get((log.topic_id, log.tp.partition), (0, 0))
        return max(self.seen_from(log), offset if cuts == log.truncations else 0)

    def seen_from(self, log: Log) -> int:
        """The same, but the base offset of a batch of which passes have looked at the beginning only."""
        return max(self.cleaned.get((log.topic_id, log.tp.partition), 0), log.start_offset)

    def bound(self, log: Log, now_ms: int) -> int:
        """Offset at and above which nothing of the log may be replaced."""
        return min(self._reach(log), bound_of(log, self.high_watermark(log), self.synced_below(log), now_ms))

    def _reach(self, log: Log) -> int:
        """Offset of a batch that no pass gets over: what lies before it can be cleaned."""
        return self.unread.get((log.topic_id, log.tp.partition), log.end_offset)

    def synced_below(self, log: Log) -> int:
        """Base offset of the segment that was active at the last durable checkpoint; -1 when none knows the log."""
        point = self.persisted().get((log.topic_id, log.tp.partition))
        return -1 if point is None else point.segment_base

    def _awaits_checkpoint(self, log: Log, now_ms: int) -> bool:
        """Whether a pass would be due behind a checkpoint."""
        first_dirty, synced_below = self.first_dirty(log), self.synced_below(log)
        if log.active.base_offset <= max(first_dirty, synced_below):
            return False
        bound = min(self._reach(log), bound_but_for_checkpoints(log, self.high_watermark(log), now_ms))
        work = cleanable(log, first_dirty, bound, now_ms, as_if_sealed=True)
        return work is not None and work.end > synced_below and work.is_due

    def take(self, settings: CleanerSettings, now_ms: int) -> Cleaning | None:
        """Begin a pass over the log that has it most necessary; None when none has. OSError."""
        if self.journal.failed is not None or self.holds:
            return None
        found: list[Cleanable] = []
        looked_at: list[Log] = []
        busy = [cleaning.log for cleaning in self.running]
        for key, log in self.logs.items():
            if self.unread.get(key, log.end_offset) < log.segments[0].base_offset:
                self.forget_reasons(key)  # retention took the batch
            if not is_compacted(log) or (key in self.uncleanable and key not in self.unread) or log in busy:
                continue
            work = cleanable(log, self.first_dirty(log), self.bound(log, now_ms), now_ms)
            looked_at.append(log)
            if work is not None:
                found.append(work)
        self.statistics.max_dirty_ratio = max((work.ratio for work in found), default=0.0)
        due = [work for work in found if work.is_due]
        if not due:
            self.waits = any(self._awaits_checkpoint(log, now_ms) for log in looked_at)
            return None
        cleaning = Cleaning(self, max(due, key=lambda work: work.ratio), settings, now_ms)
        self.running.append(cleaning)
        return cleaning

    def is_swapping(self, log: Log) -> bool:
        """Whether the log's segments are being replaced: nobody else may remove any of them now."""
        return any(cleaning.log is log and cleaning.swapping for cleaning in self.running)

    def leaving(self, log: Log) -> set[int]:
        """Base offsets of segments of the log that a copy is about to take in, which was journaled already."""
        return {base for cleaning in self.running if cleaning.log is log for base in cleaning.leaving}

    def is_busy(self, paths: list[str]) -> bool:
        """Whether a pass may still write into one of these directories, which are to be removed."""
        return any(cleaning.log.path in paths for cleaning in self.running)

    def forget(self, key: LogKey) -> None:
        """The log is deleted."""
        for known in (self.cleaned, self.late_ms, self.within, self.owing):
            known.pop(key, None)
        self.forget_reasons(key)

    def forget_reasons(self, key: LogKey) -> None:
        """Nothing is in the way of a pass over the log any more."""
        self.uncleanable.pop(key, None)
        self.unread.pop(key, None)

    def finish(self) -> None:
        """Nothing more is begun; a swap under way is completed. No job may be running. OSError."""
        for cleaning in list(self.running):
            cleaning.finish_swap()

    def take_checkpoint(self) -> Job:
        """The job that writes down what passes leave behind of each compacted log, as of now. OSError."""
        offsets: dict[TopicPartition, int] = {}
        known: dict[LogKey, Cleaned] = {}
        for key in {**self.cleaned, **self.late_ms}:
            log = self.logs.get(key)
            if log is not None:
                offset = min(self.cleaned.get(key, -1), log.end_offset)
                known[key] = Cleaned(offset, self.late_ms.get(key, 0))
                if offset >= 0:
                    offsets[log.tp] = offset

        def write() -> int:
            replace_file(self.disk, posixpath.join(self.directory, CLEANED_FILE), encode_cleaned(known))
            replace_file(self.disk, posixpath.join(self.directory, CLEANER), encode_offsets(offsets))
            return 0

        return write

    # ---- what a pass tells ---------------------------------------------------------------------------------------

    def knows(self, log: Log) -> bool:
        """Whether the log is in use and the disk takes writes."""
        return self.logs.get((log.topic_id, log.tp.partition)) is log and self.journal.failed is None

    def is_durable(self, lsn: int) -> bool:
        """Whether that journal entry is on stable storage."""
        return self.journal.durable_lsn >= lsn

    def cleaned_to(self, log: Log, offsets: OffsetMap, owed: int) -> Job:
        """A pass with this map went through; the job that writes down up to where the log is cleaned.

        Not in the midst of a batch: its tombstones' time begins when a pass has come to its end. Nor, unless the pass
        before could do no better, behind the batch that is `owed` a delete horizon (-1: none is).
        """
        key = log.topic_id, log.tp.partition
        seen, end = self.seen_from(log), offsets.latest + 1
        self.within.pop(key, None)
        held = max(owed, seen) if owed >= 0 else -1
        if held >= 0 and self.owing.get(key) != held:
            self.owing[key] = self.cleaned[key] = held
        else:
            self.owing.pop(key, None)
            self.cleaned[key] = end
            if owed < 0 <= offsets.begun:
                self.cleaned[key] = max(offsets.begun, seen)
                self.within[key] = log.truncations, end
        return self.take_checkpoint()

    def was_late(self, log: Log, late_ms: int) -> Job:
        """A copy is swapped in so long after it was begun; the job that writes it down."""
        self.late_ms[log.topic_id, log.tp.partition] = max(late_ms, self.lateness(log))
        return self.take_checkpoint()

    def lateness(self, log: Log) -> int:
        """How much longer than to their horizons the log's tombstones stay, for who reads from its beginning.

        A second at least: copies that take no longer, as of small logs, need not be noted.
        """
        return max(LEAST_LATE_MS, self.late_ms.get((log.topic_id, log.tp.partition), 0))

    def passed(self, now_ms: int) -> None:
        """A pass came to its end."""
        self.statistics.passes += 1
        self.statistics.last_pass_ms = now_ms

    def ended(self, cleaning: Cleaning) -> None:
        """A pass is over, in whatever way."""
        self.running.remove(cleaning)

    def failed(self, cleaning: Cleaning, error: BaseException) -> None:
        """A pass failed: a full disk is tried again, one that fails is fenced, a log that is damaged is left alone."""
        self.statistics.failures += 1
        if isinstance(error, FileNotFoundError):
            return  # retention was faster
        if isinstance(error, OSError):
            if not isinstance(told(error), NoRoomError) or cleaning.swapping:
                self.journal.fail(None, error)
            return
        if isinstance(error, KafkaError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            return  # the journal is full
        if isinstance(error, CorruptLogError):
            self.findings.add(damage_of(error))
        log = cleaning.log
        if isinstance(error, UncleanableBatchError):
            self.unread[log.topic_id, log.tp.partition] = error.offset
        self.uncleanable[log.topic_id, log.tp.partition] = str(error)
        self.on_uncleanable(log, error)
