"""Which logs a directory has: making and deleting them, also those too damaged to be served."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Container

from duramen.errors import KafkaError, StorageError
from duramen.model import LogKey
from duramen.ports import Disk, Entropy
from duramen.storage.compaction.cleaner import Cleaner
from duramen.storage.directory.checkpointer import Checkpointer, key_of, point_of
from duramen.storage.directory.housekeeping import Housekeeping
from duramen.storage.files.disk_full import NoRoomError
from duramen.storage.journal.format import STRAY, EntryKind
from duramen.storage.journal.journal import Journal
from duramen.storage.log.config import LogConfig
from duramen.storage.log.create import CreateLogsJob, NewLog, StrayLog, Strays
from duramen.storage.log.log import Log
from duramen.storage.log.offline import Offline
from duramen.storage.log.retention import MoveLogJob
from duramen.storage.log.sync import FlushQueue
from duramen.storage.read.verified_window import VerifiedWindow
from duramen.storage.recovery.startup import deleted_name, stray_name
from duramen.storage.segment.corruption import Findings


class LogRegistry:
    """The logs of one directory by topic id and partition; those in `offline` are not served. Loop thread only."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        entropy: Entropy,
        logs: dict[LogKey, Log],
        offline: dict[LogKey, Offline],
        *,
        journal: Journal,
        queue: FlushQueue[Log],
        hot: VerifiedWindow,
        checkpointer: Checkpointer,
        cleaner: Cleaner,
        housekeeping: Housekeeping,
        findings: Findings,
        default_config: LogConfig,
    ) -> None:
        self._disk = disk
        self._path = path
        self._entropy = entropy
        self._logs = logs
        self._offline = offline
        self._half_made: set[str] = set()
        self._journal = journal
        self._queue = queue
        self._hot = hot
        self._checkpointer = checkpointer
        self._cleaner = cleaner
        self._housekeeping = housekeeping
        self._findings = findings
        self._default_config = default_config

    def take_creation(
        self, new: list[NewLog], being_deleted: Container[str], strays: Strays, now_ms: int
    ) -> CreateLogsJob:
        """The job that makes new, empty logs whose names are durable; one whose path exists is refused. One at a time.

        being_deleted: paths of logs that are to be deleted as soon as there is room. strays: which of the logs that
        have the path of a new one are moved aside for it.

        OSError, StorageError: none can be made here.
        """
        refused: dict[LogKey, StorageError | KafkaError | NoRoomError] = {}
        moving = {move.source: move.moved for move in self._housekeeping.moving}
        for each in new:
            path = posixpath.join(self._path, str(each.tp))
            if path in being_deleted or not moving.get(path, True):
                refused[each.key] = NoRoomError(errno.ENOSPC, "a deleted log has no room for another name", path)
            elif each.key in self._logs or each.key in self._offline:
                refused[each.key] = StorageError(f"{path} exists already")
            elif self._is_taken(path):
                owner = self._owner(path)
                if owner is None or not strays.contain(owner[0]):
                    refused[each.key] = StorageError(
                        f"{path} exists already: move it out of the log directory, or create the topic under another "
                        "name"
                    )
                    continue
                try:
                    moved = self._move_aside(owner, now_ms)
                except (KafkaError, NoRoomError) as error:
                    refused[each.key] = error
                else:
                    moving[path] = True
                    strays.moved(StrayLog(each.tp, owner[0], moved))
        wanted = [each for each in new if each.key not in refused]
        follows = any(posixpath.join(self._path, str(each.tp)) in moving for each in wanted)
        return CreateLogsJob(
            self._disk, self._path, self._journal, self._queue, self._hot, wanted, refused, self._half_made, follows
        )

    def _owner(self, path: str) -> LogKey | None:
        """Whose directory it is."""
        for key, log in self._logs.items():
            if log.path == path:
                return key
        return next((key for key, left in self._offline.items() if left.path == path and not left.absent), None)

    def _move_aside(self, key: LogKey, now_ms: int) -> str:
        """Forget a log and give its directory its `-stray` name, which is returned; nothing of it is removed.

        The name comes first: where there is no room for it (NoRoomError), or in the journal (KafkaError), nothing has
        changed. A start that finds the directory under it, and nothing in the journal, takes the log for gone, too.
        """
        log = self._logs.get(key) or self._offline_log(self._offline[key])
        source, target = log.path, posixpath.join(self._path, stray_name(log.tp, self._entropy))
        move = self._rename(source, target)
        try:
            self._journal.append(EntryKind.DELETE, log, log.end_offset, -1, 0, STRAY)
        except KafkaError:
            try:
                self._rename(target, source)
            except NoRoomError as error:
                self._journal.fail(None, error)
            raise
        self._offline.pop(key, None)
        self._forget(log)
        log.move(target)
        self._housekeeping.remove_later(now_ms, log, move, keep=True)
        self._findings.forget(source)
        return target

    def _rename(self, source: str, target: str) -> MoveLogJob:
        """NoRoomError: it is as it was. StorageError: the directory is fenced."""
        move = MoveLogJob(self._disk, self._path, source, target)
        try:
            move.rename()
        except NoRoomError:
            raise
        except OSError as error:
            self._journal.fail(None, error)
            raise StorageError(f"{source} cannot be moved aside: {error}") from error
        return move

    def _is_taken(self, path: str) -> bool:
        return path not in self._half_made and self._disk.exists(path)

    def complete_creation(self, job: CreateLogsJob) -> list[Log]:
        """The job has run: creation is journaled before anything that is appended to the logs.

        KafkaError when the journal has no room for all of them: the rest is removed again, and may be made later.
        """
        for number, log in enumerate(job.logs):
            try:
                self._journal.append(EntryKind.CREATE, log, 0, -1, 0, 0, log.tp.topic.encode())
            except KafkaError:
                for unwritten in job.logs[number:]:
                    try:
                        self._disk.remove(unwritten.path)
                    except OSError:  # what stays is empty
                        self._half_made.add(unwritten.path)
                raise
            self._checkpointer.points[key_of(log)] = point_of(log)
            self._logs[key_of(log)] = log
        names = {log.tp for log in job.logs}
        for key in [key for key, left in self._offline.items() if left.absent and left.tp in names]:
            del self._offline[key]  # Kafka's files have one log of a name
        return job.logs

    def delete(self, log: Log, now_ms: int) -> str:
        """Forget the log and give its directory its `-delete` name, which is returned; files go later.

        KafkaError when the journal has no room for that: nothing has changed.
        """
        self._journal.append(EntryKind.DELETE, log, log.end_offset, -1, 0, 0)
        self._forget(log)
        target = posixpath.join(self._path, deleted_name(log.tp, self._entropy))
        source = log.path
        log.move(target)
        try:
            self._housekeeping.remove_later(now_ms, log, MoveLogJob(self._disk, self._path, source, target))
        except OSError as error:
            self._journal.fail(None, error)
            raise StorageError(f"{source} cannot be deleted: {error}") from error
        self._findings.forget(source)
        return target

    def _forget(self, log: Log) -> None:
        self._logs.pop(key_of(log), None)
        self._checkpointer.points.pop(key_of(log), None)
        self._cleaner.forget(key_of(log))
        self._queue[:] = [other for other in self._queue if other is not log]
        log.abandon()  # or a group, which sees that a large batch is in its segment, would find no room for it
        self._checkpointer.changed.pop(log, None)

    def delete_offline(self, key: LogKey, now_ms: int) -> str:
        """As `delete` for a partition that is not served."""
        target = self.delete(self._offline_log(self._offline[key]), now_ms)
        del self._offline[key]
        return target

    def _offline_log(self, offline: Offline) -> Log:
        return Log(
            self._disk, offline.path, offline.tp, offline.topic_id, self._default_config, self._journal,
            self._queue, self._hot,
        )  # fmt: skip

    def drop_half_made(self) -> None:
        """Before a clean stop: the next start would not know what such a directory is, and keep it. OSError."""
        for path in sorted(self._half_made):
            if self._disk.exists(path):
                self._disk.remove(path)
        self._half_made.clear()
