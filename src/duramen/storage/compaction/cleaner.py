"""Compaction of one directory's logs, seen from the loop: which log is next, and what a pass over it has led to."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from duramen.errors import CorruptLogError, ErrorCode, KafkaError
from duramen.model import LogKey, TopicPartition
from duramen.ports import Disk
from duramen.storage.checkpoint.kafka_files import CLEANED as CLEANED_FILE
from duramen.storage.checkpoint.kafka_files import (
    CLEANER,
    CleanedLog,
    decode_cleaned,
    encode_cleaned,
    encode_offsets,
    read_offsets,
)
from duramen.storage.compaction.compaction_pass import (
    CleanerSettings,
    CleanerStatistics,
    CompactionJob,
    CompactionPass,
    Noting,
)
from duramen.storage.compaction.eligibility import (
    Cleanable,
    bound_but_for_checkpoints,
    bound_of,
    cleanable,
    is_compacted,
)
from duramen.storage.compaction.key_map import OffsetMap
from duramen.storage.compaction.segment_rewrite import UncleanableBatchError
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.files.disk_full import NoRoomError, as_disk_full, retriable_open
from duramen.storage.journal.journal import Journal
from duramen.storage.log.log import Log
from duramen.storage.segment.corruption import Findings, damage_of
from duramen.storage.segment.recovery_point import LogPoint

LEAST_LATE_MS = 1000
"""See `Cleaner.lateness`."""


@dataclass(slots=True)
class CleanedNote:
    """Writes the file anew that speaks of what was cut off since. run: on any thread; the rest on the loop."""

    cleaner: Cleaner
    logs: set[LogKey]
    write: CompactionJob
    over: bool = False

    def run(self) -> None:
        """Write it. NoRoomError, OSError."""
        with retriable_open():
            self.write()

    def complete(self) -> None:
        """A checkpoint may be taken of these logs."""
        self.over = True

    def fail(self, error: BaseException) -> None:
        """Where there was no room it is written later; else the directory is fenced."""
        self.over = True
        self.cleaner.outdated |= self.logs
        if isinstance(error, NoRoomError):
            self.cleaner.journal.give_way()
        else:
            self.cleaner.journal.fail(None, error)


@dataclass(slots=True)
class Cleaner:
    """Compaction of one directory. Loop thread only.

    persisted: the points of the last durable checkpoint. high_watermark: as for retention. findings: damage goes there.
    uncleanable: logs whose last pass failed, with the reason; they are left alone until a restart, the others go on.
    unread: of them, those with a batch that cannot be looked into, and its offset; they are cleaned up to there.
    waits: for a checkpoint, without which there is nothing to do. noting: the pass that writes the files which all of
    them share, one after the other. suspended: no pass is begun. late_ms: of each log, how long what a copy leaves out
    was there to be read after the beginning of that copy, from which delete horizons count: the longest ever.
    cleaned: see `seen_from`. within: where the next pass goes on in the batch at `cleaned`, which has more keys
    than fit into a map, and how often the log had been cut. owing: `cleaned` of logs whose last pass had no room for a
    delete horizon there. noted: at most so far goes what the file says of a log. outdated: logs that were cut below
    that: only the journal's entry tells, and no checkpoint is taken before the file does (`take_note`).
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
    running: list[CompactionPass] = field(default_factory=list)
    waits: bool = False
    noting: Noting | None = None
    suspended: bool = False
    late_ms: dict[LogKey, int] = field(default_factory=dict)
    within: dict[LogKey, tuple[int, int]] = field(default_factory=dict)
    owing: dict[LogKey, int] = field(default_factory=dict)
    noted: dict[LogKey, int] = field(default_factory=dict)
    outdated: set[LogKey] = field(default_factory=set)

    def load(self, cuts: Mapping[LogKey, int]) -> None:
        """Take over our own checkpoint, or, where Kafka was here last, its one, which knows names only.

        Both may be older than the logs, or missing. What ours does not know is a topic that no pass has been over.
        cuts: where the journal says that a log was cut since, -1 where it was begun anew.
        """
        content = read_file(self.disk, posixpath.join(self.directory, CLEANED_FILE))
        ours = None if content is None else decode_cleaned(content)
        named = read_offsets(self.disk, posixpath.join(self.directory, CLEANER)) if ours is None else {}
        for key, log in self.logs.items():
            offset, late_ms = CleanedLog(named.get(log.tp, -1)) if ours is None else ours.get(key, CleanedLog(-1))
            if offset >= 0:
                self.noted[key] = offset
            if log.start_offset <= offset <= log.end_offset:
                self.cleaned[key] = offset
            if late_ms:
                self.late_ms[key] = late_ms
            if key in cuts:
                self.cut(key, cuts[key])

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

    def begin_pass(self, settings: CleanerSettings, now_ms: int) -> CompactionPass | None:
        """Begin a pass over the log that has it most necessary; None when none has. OSError."""
        if self.journal.failed is not None or self.suspended:
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
        cleaning = CompactionPass(self, max(due, key=lambda work: work.ratio), settings, now_ms)
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

    def cut(self, key: LogKey, offset: int) -> None:
        """The log was cut off there; -1: it was dropped, and begins anew."""
        if offset < 0:
            self.forget(key)
        elif self.cleaned.get(key, -1) > offset:
            self.cleaned[key] = offset
        if self.noted.get(key, -1) > offset:
            self.outdated.add(key)

    @property
    def is_outdated(self) -> bool:
        """Whether the file has still to be written anew behind a cut."""
        return bool(self.outdated) or (isinstance(self.noting, CleanedNote) and not self.noting.over)

    def take_note(self) -> CleanedNote | None:
        """The job that does it; None when there is no need, or while a pass writes the file."""
        if not self.outdated or (self.noting is not None and not self.noting.over):
            return None
        logs, self.outdated = self.outdated, set()
        for key in logs:
            self.noted.pop(key, None)
        self.noting = note = CleanedNote(self, logs, self.take_checkpoint())
        return note

    def forget_reasons(self, key: LogKey) -> None:
        """Nothing is in the way of a pass over the log any more."""
        self.uncleanable.pop(key, None)
        self.unread.pop(key, None)

    def finish(self) -> None:
        """Nothing more is begun; a swap under way is completed. No job may be running. OSError."""
        for cleaning in list(self.running):
            cleaning.finish_swap()

    def take_checkpoint(self) -> CompactionJob:
        """The job that writes down what passes leave behind of each compacted log, as of now. OSError."""
        offsets: dict[TopicPartition, int] = {}
        known: dict[LogKey, CleanedLog] = {}
        for key in {**self.cleaned, **self.late_ms}:
            log = self.logs.get(key)
            if log is not None:
                offset = min(self.cleaned.get(key, -1), log.end_offset)
                known[key] = CleanedLog(offset, self.late_ms.get(key, 0))
                self.noted[key] = max(offset, self.noted.get(key, -1))
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

    def cleaned_to(self, log: Log, offsets: OffsetMap, owed: int) -> CompactionJob:
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

    def was_late(self, log: Log, late_ms: int) -> CompactionJob:
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

    def ended(self, cleaning: CompactionPass) -> None:
        """A pass is over, in whatever way."""
        self.running.remove(cleaning)

    def failed(self, cleaning: CompactionPass, error: BaseException) -> None:
        """A pass failed: a full disk is tried again, one that fails is fenced, a log that is damaged is left alone."""
        self.statistics.failures += 1
        if isinstance(error, FileNotFoundError):
            return  # retention was faster
        if isinstance(error, OSError):
            if not isinstance(as_disk_full(error), NoRoomError) or cleaning.swapping:
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
