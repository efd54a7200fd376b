"""Which logs a directory has: making and deleting them, also those too damaged to be served; what is known of them."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from duramen.errors import ClosedError, ErrorCode, FencedDirectoryError, KafkaError, StorageError
from duramen.model import LogKey, TopicId, TopicPartition
from duramen.ports import DirectoryLock, Disk, Entropy
from duramen.storage.compaction.cleaner import Cleaner
from duramen.storage.directory.checkpointer import Checkpointer, key_of, point_of
from duramen.storage.directory.housekeeping import Housekeeping
from duramen.storage.directory.scrubber import Scrubber, ScrubJob
from duramen.storage.files.ballast import Reserve
from duramen.storage.files.disk_full import NoRoomError, to_keep
from duramen.storage.journal import kinds
from duramen.storage.journal.journal import Journal
from duramen.storage.log.config import LogConfig
from duramen.storage.log.create import Creation, NewLog
from duramen.storage.log.log import Log
from duramen.storage.log.offline import Offline
from duramen.storage.log.retention import MoveLog
from duramen.storage.log.sync import FlushQueue
from duramen.storage.read.verified_window import HotWindow
from duramen.storage.recovery.startup import deleted_name
from duramen.storage.segment.corruption import Damage, Findings
from duramen.storage.segment.segment import SUFFIXES

if TYPE_CHECKING:
    from duramen.storage.directory.log_directory import DirectorySettings


class DirectoryLogs:
    """The part of `LogDirectory` that this module owns; loop thread only."""

    disk: Disk
    path: str
    settings: DirectorySettings
    entropy: Entropy
    hot: HotWindow
    logs: dict[LogKey, Log]
    offline: dict[LogKey, Offline]
    findings: Findings
    undeleted: set[str]
    journal: Journal
    reserve: Reserve
    cleaner: Cleaner
    scrubber: Scrubber
    _half_made: set[str]
    _lock: DirectoryLock
    _queue: FlushQueue[Log]
    _checkpointer: Checkpointer
    _housekeeping: Housekeeping
    _now_ms: int
    _closed: bool
    _dirty: int

    def create_log(self, tp: TopicPartition, topic_id: TopicId, config: LogConfig) -> Log:
        """A new empty log, at once and on this thread: `take_creation` and what belongs to it."""
        job = self.take_creation([NewLog(tp, topic_id, config)])
        for problem in job.refused.values():
            raise problem
        try:
            job.run()
        except OSError as error:
            if not isinstance(error, NoRoomError):
                self.journal.fail(None, error)
            raise StorageError(f"{posixpath.join(self.path, str(tp))} cannot be created: {error}") from error
        return self.complete_creation(job)[0]

    def take_creation(self, new: list[NewLog]) -> Creation:
        """The job that makes new, empty logs whose names are durable; one whose path exists is refused. One at a time.

        OSError, StorageError: none can be made here.
        """
        self._check_usable()
        refused: dict[LogKey, StorageError | NoRoomError] = {}
        moving = {move.source: move.moved for move in self._housekeeping.moving}
        for each in new:
            path = posixpath.join(self.path, str(each.tp))
            if path in self.undeleted or not moving.get(path, True):
                refused[each.key] = NoRoomError(errno.ENOSPC, "a deleted log has no room for another name", path)
            elif each.key in self.logs or each.key in self.offline or self._is_taken(path):
                problem = (
                    f"{path} exists already: move it out of the log directory, or create the topic under another name"
                )
                refused[each.key] = StorageError(problem)
        wanted = [each for each in new if each.key not in refused]
        follows = any(posixpath.join(self.path, str(each.tp)) in moving for each in wanted)
        return Creation(
            self.disk, self.path, self.journal, self._queue, self.hot, wanted, refused, self._half_made, follows
        )

    def _is_taken(self, path: str) -> bool:
        return path not in self._half_made and self.disk.exists(path)

    def drop_half_made(self) -> None:
        """Before a clean stop, behind which a directory that nobody knows is nobody's to remove. OSError."""
        for path in sorted(self._half_made):
            if self.disk.exists(path):
                self.disk.remove(path)
        self._half_made.clear()

    def complete_creation(self, job: Creation) -> list[Log]:
        """The job has run: creation is journaled before anything that is appended to the logs.

        KafkaError when the journal has no room for all of them: the rest is taken away again, and may be made anew.
        """
        self._check_usable()
        for number, log in enumerate(job.logs):
            try:
                self.journal.append(kinds.CREATE, log, 0, -1, 0, 0, log.tp.topic.encode())
            except KafkaError:
                for unmade in job.logs[number:]:
                    try:
                        self.disk.remove(unmade.path)
                    except OSError:  # what stays is empty
                        self._half_made.add(unmade.path)
                raise
            self._checkpointer.points[key_of(log)] = point_of(log)
            self.logs[key_of(log)] = log
        names = {log.tp for log in job.logs}
        for key in [key for key, left in self.offline.items() if left.absent and left.tp in names]:
            del self.offline[key]  # Kafka's files have one log of a name
        return job.logs

    def delete_log(self, log: Log) -> str:
        """Forget the log and give its directory its `-delete` name, which is returned; files go later.

        KafkaError when the journal has no room for that: nothing has changed.
        """
        self._check_usable()
        self.journal.append(kinds.DELETE, log, log.end_offset, -1, 0, 0)
        self.logs.pop(key_of(log), None)
        self._checkpointer.points.pop(key_of(log), None)
        self.cleaner.forget(key_of(log))
        self._queue[:] = [other for other in self._queue if other is not log]
        log.abandon()  # or a group, which sees that a large batch is in its segment, would find no room for it
        self._checkpointer.changed.pop(log, None)
        target = posixpath.join(self.path, deleted_name(log.tp, self.entropy))
        source = log.path
        log.move(target)
        try:
            self._housekeeping.remove_later(self._now_ms, log, MoveLog(self.disk, self.path, source, target))
        except OSError as error:
            self.journal.fail(None, error)
            raise StorageError(f"{source} cannot be deleted: {error}") from error
        self.findings.forget(source)
        return target

    def delete_offline(self, key: LogKey) -> str:
        """As `delete_log` for a partition that is not served."""
        offline = self.offline[key]
        log = Log(
            self.disk, offline.path, offline.tp, offline.topic_id, self.settings.default_config, self.journal,
            self._queue, self.hot,
        )  # fmt: skip
        target = self.delete_log(log)
        del self.offline[key]
        return target

    def take_scrub(self, now_ms: int) -> ScrubJob | None:
        """The scrubber's next job for a lane of its own, None when there is none; a failed directory is read, too."""
        return None if self._closed else self.scrubber.take(self.logs, now_ms)

    def complete_scrub(self, job: ScrubJob) -> None:
        """The job has run."""
        self.scrubber.complete(job, self.logs)

    def flush(self) -> None:
        """Write what was appended since the last call, one write per log.

        NoRoomError: what is not written waits for the next call, and no more is taken until there is room. Any other
        OSError: the directory is fenced.
        """
        queue = self._queue
        queue.unwritten = 0
        if not queue:
            return
        logs = queue[:]
        queue.clear()
        self._checkpointer.changed.update(dict.fromkeys(logs))
        written = 0
        try:
            for log in logs:
                unwritten = log.active.size - log.active.flushed
                log.flush()
                self._dirty += unwritten
                written += 1
            self.hot.files.trim()
        except NoRoomError as error:
            queue[:0] = logs[written:]
            queue.unwritten = sum(log.active.size - log.active.flushed for log in queue)
            self._found_none(error)
            raise
        except OSError as error:
            self.journal.fail(None, error)
            raise

    def _relieve(self, size: int) -> None:
        """Before so much waits for being written that the reserve would not hold it: write it, or take no more.

        What makes room is journaled behind all that waits: where a disk is full and the reserve is less, nothing can.
        KafkaError for a batch that is alone too much.
        """
        journal = self.journal
        if journal.failed is not None or journal.no_room is not None:
            return
        fits = True
        with suppress(OSError):  # found none, or failed: the journal says so now, and refuses
            self.flush()
            fits = size <= self._queue.limit or self.reserve.fits(beside=size)
        if not fits:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} has no room for {size} bytes and its reserve")

    def _found_none(self, error: NoRoomError) -> None:
        """No writes are taken; files that were synced meanwhile may be what is in the way."""
        self.journal.no_room = to_keep(error)
        self.hot.files.trim(again=True)

    def keep_producers(self, keeps: Callable[[int], bool]) -> None:
        """Producer ids for which `keeps` holds do not expire; every sink's until this is called."""
        self._housekeeping.keeps_producer = keeps

    def hold(self) -> None:
        """Nothing expires and nothing is compacted: what the topics' settings say is not to be believed."""
        self._housekeeping.holds = self.cleaner.holds = True

    def expire_producers_after(self, milliseconds: int) -> None:
        """From now on instead of what the settings said."""
        self._housekeeping.producer_expiration_ms = milliseconds

    def _release(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
        for log in self.logs.values():
            for segment in log.segments:
                segment.close()
        self._lock.release()

    def known_damage(self) -> list[Damage]:
        """What is known to be damaged in files that are still there, sorted by place; no file is looked at."""
        homes = {log.path: {segment.base_offset for segment in log.segments} for log in self.logs.values()}
        found = []
        for damage in self.findings.known.values():
            home, _, name = damage.path.rpartition("/")
            stem = name.partition(".")[0]
            gone = home in homes and stem.isdecimal() and name.endswith(SUFFIXES) and int(stem) not in homes[home]
            if not gone:
                found.append(damage)
        return sorted(found)

    def sealed_bytes(self) -> int:
        """Bytes in sealed segments: what a round of the scrubber reads."""
        return sum(segment.size for log in self.logs.values() for segment in log.segments if segment.sealed)

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path} was closed")
        if self.journal.failed is not None:
            raise FencedDirectoryError(f"{self.path}: no writes since a failure of the disk: {self.journal.failed}")
