"""Checkpoints of a log directory: which segments to sync next, what to persist then, and when the journal is recycled.

A round fixes the journal's next LSN, syncs every log a few at a time (pacing: many syncs at once would hold up the
journal's own), and ends by writing the checkpoint files. Only then are journal parts below that LSN free.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from duramen.errors import KafkaError
from duramen.model import LogKey, TopicPartition
from duramen.ports import Disk
from duramen.storage.checkpoint.kafka_files import (
    CHECKPOINT,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    DirectoryCheckpoint,
    MetaProperties,
    encode_checkpoint,
    encode_offsets,
)
from duramen.storage.checkpoint.manifest import MANIFEST, DirectoryManifest, encode_manifest
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.disk_full import NoRoomError, lacks_files, retriable_open
from duramen.storage.files.parallel import Together, run_serial
from duramen.storage.journal.format import EntryKind
from duramen.storage.journal.journal import Journal
from duramen.storage.log.durability import complete_sync, give_back_sync, take_sync
from duramen.storage.log.log import Log
from duramen.storage.log.offline import Offline
from duramen.storage.log.sync import SyncJob
from duramen.storage.segment.recovery_point import ActiveState, LogPoint

SLICE_LOGS = 8
"""Logs synced by one job of a round while the journal has room."""
MOST_SLICES = 20
"""With very many logs, jobs of a round sync more than SLICE_LOGS each, so that it ends after about this many."""
REFUSING_LOGS = 1000
"""Logs of one job while writes are refused for want of room: none is held up, and the round's end ends that."""
STOP_LOGS = 256
"""Logs that a clean stop syncs side by side."""
URGENT_FILL = 0.75
"""From this fill on a round syncs everything that is left in one job."""


class CheckpointFiles(NamedTuple):
    """The checkpoint files of a directory, ready to be written; the caller's thread does not matter."""

    disk: Disk
    directory: str
    checkpoint: DirectoryCheckpoint
    high_watermarks: Mapping[TopicPartition, int]
    manifest: DirectoryManifest | None = None

    def write(self) -> None:
        """Replace all of them and make their names durable."""
        points = self.checkpoint.logs.values()
        starts = {point.tp: point.start_offset for point in points if point.start_offset > 0}
        contents = {
            RECOVERY_POINT: encode_offsets({point.tp: point.recovery_point for point in points}),
            LOG_START: encode_offsets(starts),
            HIGH_WATERMARK: encode_offsets(self.high_watermarks),
            **({} if self.manifest is None else {MANIFEST: encode_manifest(self.manifest)}),
            CHECKPOINT: encode_checkpoint(self.checkpoint),
        }
        if not points:
            # A directory without logs: readers take a missing file for an empty one, and starting stays quick.
            contents = {
                name: content
                for name, content in contents.items()
                if name == CHECKPOINT or self.disk.exists(posixpath.join(self.directory, name))
            }
        for name, content in contents.items():
            replace_file(self.disk, posixpath.join(self.directory, name), content, durable_name=False)
        self.disk.sync_directory(self.directory)


@dataclass(slots=True)
class CheckpointJob:
    """One job of a round. `files` and `lsn` are set in its last one."""

    syncs: list[tuple[Log, SyncJob, LogPoint]]
    files: CheckpointFiles | None
    lsn: int
    gone: Callable[[Log], bool]

    def run(self) -> None:
        """Sync the logs, then persist the checkpoint files if this is the round's last job.

        NoRoomError: the round is given up, and another may be begun; any other OSError fences.
        """
        lacking: tuple[int | None, str | None, str] | None = None
        for log, sync, _ in self.syncs:
            try:
                sync.run()
            except FileNotFoundError:
                if not self.gone(log):
                    raise
            except NoRoomError as error:
                lacking = error.errno, error.strerror, error.filename  # the others can be synced, and then closed
        if lacking is not None:
            raise NoRoomError(*lacking)  # an error that was kept would name this job, and that its files
        if self.files is not None:
            with retriable_open():
                self.files.write()


@dataclass(slots=True)
class CheckpointRound:
    """A round under way: entries below `lsn` are being brought into synced segments; `share`: logs per job at least.

    unjournaled: logs of which such an entry says, or the checkpoint before, that their appends are not journaled.
    """

    lsn: int
    waiting: list[Log]
    share: int = 0
    unjournaled: frozenset[LogKey] = frozenset()


@dataclass(slots=True)
class Checkpointer:
    """Takes and completes the rounds of one directory. points: what is known to be synced of each log.

    changed: logs that something was journaled or written of since they were synced: what rests costs a round nothing.
    persisted: what the checkpoint on disk says of it: recovery writes nothing below that.
    leaving: base offsets of the log's segments that are being merged into others: the journal may not say so for long.
    """

    disk: Disk
    directory: str
    generation: int
    journal: Journal
    logs: dict[LogKey, Log]
    high_watermark: Callable[[Log], int]
    points: dict[LogKey, LogPoint] = field(default_factory=dict)
    offline: Mapping[LogKey, Offline] = field(default_factory=dict)
    persisted: dict[LogKey, LogPoint] = field(default_factory=dict)
    changed: dict[Log, None] = field(default_factory=dict)
    rounds: int = 0
    identity: MetaProperties | None = None
    leaving: Callable[[Log], Collection[int]] = lambda log: ()
    ordered_lsn: int = -1
    """What is journaled behind it is to be there only with all before it (`LogDirectory.keep_order`)."""
    _taken_lsn: int = -1
    """The same when logs were last taken to be synced."""
    _round: CheckpointRound | None = None
    _job: CheckpointJob | None = None
    _truncated_meanwhile: set[LogKey] = field(default_factory=set)

    @property
    def under_way(self) -> bool:
        """Whether a round has begun and not ended."""
        return self._round is not None

    @property
    def dirty_bytes(self) -> int:
        """Bytes in segments, rolled ones too, that wait for their sync."""
        waiting = () if self._round is None else self._round.waiting
        return sum(log.unsynced_bytes for log in {**self.changed, **dict.fromkeys(waiting)})

    def begin(self) -> None:
        """Start a round: everything journaled so far (and flushed by the caller) will be synced."""
        if self._round is None:
            waiting, self.changed = list(self.changed), {}
            unjournaled = frozenset(key for key, log in self.logs.items() if log.marked)
            if waiting and not self.journal.entries:
                # Or this checkpoint would have the last one's LSN, which tells one that is older than it should be.
                with suppress(KafkaError, NoRoomError):
                    self.journal.append(EntryKind.LOG_START, waiting[0], waiting[0].start_offset, -1, 0, 0)
            self._round = CheckpointRound(self.journal.end_extents(), waiting, len(waiting) // MOST_SLICES, unjournaled)

    def take_job(self, limit: int = SLICE_LOGS) -> CheckpointJob | None:
        """The round's next job; None when no round is under way or a job of it is.

        The last one waits until the journal has what came before anything ordered that the logs had when they were
        taken: what is appended to one log behind the record of another one must not be there without that.
        """
        current = self._round
        if current is None or self._job is not None:
            return None
        limit = max(limit, current.share)
        if self.journal.fill >= URGENT_FILL:
            limit = len(current.waiting)
        elif self.journal.no_room is not None:
            limit = max(limit, REFUSING_LOGS)
        syncs: list[tuple[Log, SyncJob, LogPoint]] = []
        taken = 0
        for log in current.waiting:
            if len(syncs) >= limit:
                break
            taken += 1
            if self.logs.get(key_of(log)) is not log:
                continue
            if not _take_sync(log, syncs):
                self.points[key_of(log)] = point_of(log)
        del current.waiting[:taken]
        if taken:
            self._taken_lsn = self.ordered_lsn
        files = None
        if not current.waiting and self.journal.durable_lsn >= self._taken_lsn:
            ahead = {key_of(log): point for log, _, point in syncs}
            files = self.files(ahead)
        elif not syncs:
            return None
        self._job = CheckpointJob(syncs, files, current.lsn, self._is_gone)
        return self._job

    @property
    def makes_files_free(self) -> bool:
        """Whether files will be closed that are open now: a job syncs some, or `take_written` gives one that does."""
        return self._job is not None or next(self._written(), None) is not None

    def _written(self) -> Iterator[Log]:
        """Logs that have been written and wait for their sync: their files are open."""
        for log in (*self.changed, *(() if self._round is None else self._round.waiting)):
            if not log.dirty and log.unsynced_bytes and log.pending_truncation is None and not self._is_gone(log):
                yield log

    def take_written(self) -> CheckpointJob | None:
        """Where no file can be opened: a job, outside of a round, for logs whose files are. Then they may be closed.

        None where there is no such log, or a job is under way.
        """
        if self._job is not None:
            return None
        syncs: list[tuple[Log, SyncJob, LogPoint]] = []
        for log in dict.fromkeys(islice(self._written(), REFUSING_LOGS)):
            _take_sync(log, syncs)
        if not syncs:
            return None
        self._taken_lsn = self.ordered_lsn
        self._job = CheckpointJob(syncs, None, 0, self._is_gone)
        return self._job

    def complete(self, job: CheckpointJob) -> None:
        """The job has run: advance recovery points; at the round's end recycle the journal."""
        self._job = None
        for log, sync, point in job.syncs:
            complete_sync(log, sync)
            if not self._is_gone(log) and log.end_offset >= point.recovery_point:
                self.points[key_of(log)] = point
        job.syncs = []  # whoever has the job would keep the files open
        if job.files is not None:
            self.wrote(job.files)
            self.journal.recycle(job.lsn)
            self._round = None
            self.rounds += 1

    def sync_and_close(self, together: Together) -> None:
        """Everything, for good; a share of the logs at a time, for each has a file open meanwhile. OSError.

        A round under way is at its end: what is written next speaks of all of it, not of where that began.
        """
        self._round = None
        logs = list(self.logs.values())
        most = logs[0].open_files.limit if logs else -1
        size = STOP_LOGS if most < 0 else max(1, min(STOP_LOGS, most // 8))
        for first in range(0, len(logs), size):
            share = logs[first : first + size]
            try:
                self._close(share, together)
            except NoRoomError as error:
                if not lacks_files(error):
                    raise
                for log in share:
                    log.open_files.trim(again=True)
                    self._close([log], run_serial)

    def _close(self, logs: list[Log], together: Together) -> None:
        """Sync and close them. NoRoomError: it can be done again. OSError."""
        syncs: list[tuple[Log, SyncJob]] = []
        try:
            for log in logs:
                sync = take_sync(log, full=True)
                self.points[key_of(log)] = point_of(log)
                if sync is not None:
                    syncs.append((log, sync))
            together([sync.run for _, sync in syncs])
        except NoRoomError:
            for failed in (sync.failed for _, sync in syncs):
                if failed is not None and not isinstance(failed, NoRoomError):
                    raise failed from None
            for log, sync in syncs:
                give_back_sync(log, sync)
            raise
        for log, sync in syncs:
            complete_sync(log, sync)
        for log in logs:
            log.close()

    def wrote(self, files: CheckpointFiles) -> None:
        """These files are on stable storage."""
        self.persisted = {
            key: point for key, point in files.checkpoint.logs.items() if key not in self._truncated_meanwhile
        }  # fmt: skip
        self._truncated_meanwhile.clear()

    def fail(self, job: CheckpointJob) -> None:
        """The job failed: the round is over, the journal keeps everything."""
        self._job = None
        self._round = None

    def give_up(self, job: CheckpointJob) -> None:
        """The job found no room for a side file, and no sync has failed: the next round has all of this one to do.

        Others first: they may have files open that can then be closed.
        """
        left = [] if self._round is None else self._round.waiting
        for log, sync, _ in job.syncs:
            give_back_sync(log, sync)
            left.append(log)
        job.syncs = []
        self.changed.update(dict.fromkeys(log for log in left if not self._is_gone(log)))
        self.fail(job)

    def files(self, ahead: Mapping[LogKey, LogPoint]) -> CheckpointFiles:
        """The checkpoint files as of now, with the points of `ahead` where it has them."""
        points: dict[LogKey, LogPoint] = {key: left.point for key, left in self.offline.items()}
        marks: dict[TopicPartition, int] = {}
        unjournaled = frozenset() if self._round is None else self._round.unjournaled
        for key, log in self.logs.items():
            known = ahead.get(key) or self.points[key]
            now = log.start_offset, key in unjournaled
            if (known.start_offset, known.unjournaled) != now:
                known = known._replace(start_offset=log.start_offset, unjournaled=key in unjournaled)
            points[key] = known
            marks[log.tp] = self.high_watermark(log)
        lsn = self._round.lsn if self._round is not None else self.journal.next_lsn
        epochs = {key: tuple(log.epochs.entries) for key, log in self.logs.items()}
        checkpoint = DirectoryCheckpoint(self.generation, lsn, points, epochs, self._segments(points))
        manifest = None
        if self.identity is not None:
            tps = {key: log.tp for key, log in self.logs.items()}
            manifest = DirectoryManifest(self.identity, self.generation, lsn, tps)
        return CheckpointFiles(self.disk, self.directory, checkpoint, marks, manifest)

    def _segments(self, points: Mapping[LogKey, LogPoint]) -> Mapping[LogKey, tuple[int, ...]]:
        segments = {key: left.segments for key, left in self.offline.items() if left.segments}
        for key, log in self.logs.items():
            if len(log.segments) > 1:
                synced, leaving = points[key].segment_base, self.leaving(log)
                bases = (segment.base_offset for segment in log.segments)
                segments[key] = tuple(base for base in bases if base <= synced and base not in leaving)
        return segments

    def truncated(self, key: LogKey, offset: int, segment_base: int, position: int) -> None:
        """The log was truncated: nothing behind is known to be synced any more."""
        self.persisted.pop(key, None)
        if self._job is not None:
            self._truncated_meanwhile.add(key)
        known = self.points.get(key)
        if known is not None and known.recovery_point > offset:
            self.points[key] = LogPoint(known.tp, known.start_offset, offset, segment_base, position)
        job = self._job
        if job is not None:
            job.syncs = [
                (log, sync, LogPoint(point.tp, point.start_offset, offset, segment_base, position))
                if key_of(log) == key and point.recovery_point > offset
                else (log, sync, point)
                for log, sync, point in job.syncs
            ]

    def begun_anew(self, key: LogKey, offset: int, segment_base: int) -> None:
        """All of the log was dropped: nothing that is known of what it was counts for what it is.

        No checkpoint of this is written before its files are gone: none is begun until then.
        """
        known = self.points[key]
        point = LogPoint(known.tp, offset, offset, segment_base, 0)
        self.persisted.pop(key, None)
        self.points[key] = point
        if (job := self._job) is not None:
            self._truncated_meanwhile.add(key)
            job.syncs = [(log, sync, point if key_of(log) == key else known) for log, sync, known in job.syncs]

    def _is_gone(self, log: Log) -> bool:
        return self.logs.get(key_of(log)) is not log


def _take_sync(log: Log, syncs: list[tuple[Log, SyncJob, LogPoint]]) -> bool:
    """Add the log's to those of a job; whether there is anything to sync. NoRoomError: all go back. OSError."""
    try:
        sync = take_sync(log)
    except NoRoomError:
        for other, job, _ in syncs:
            give_back_sync(other, job)
        raise
    if sync is not None:
        syncs.append((log, sync, point_of(log)))
    return sync is not None


def key_of(log: Log) -> LogKey:
    """The identity of a log: names may be used again, topic ids are not."""
    return log.topic_id, log.tp.partition


def point_of(log: Log) -> LogPoint:
    """Where the log ends now; valid as a recovery point once what `take_sync` gave at this moment has run."""
    active = log.active
    state = active.dormant
    if active.index is not None and active.times is not None:
        state = ActiveState(
            *active.index.summary(),
            *active.times.summary(),
            active.first_timestamp,
            active.max_timestamp,
            active.max_timestamp_offset,
            log.producer_count,
            sum(segment.has_aborted for segment in log.segments),
        )
    return LogPoint(log.tp, log.start_offset, log.end_offset, active.base_offset, active.size, state)
