"""New logs: the job that makes their directories and files durable, off the loop and many at a time."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import NamedTuple

from duramen.errors import KafkaError, StorageError
from duramen.model import LogKey, TopicId, TopicPartition, topic_id_text
from duramen.ports import Disk
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.disk_full import NoRoomError, retriable_open, retriable_write
from duramen.storage.journal.journal import LogJournal
from duramen.storage.log.config import LogConfig
from duramen.storage.log.log import Log
from duramen.storage.log.sync import FlushQueue
from duramen.storage.read.verified_window import VerifiedWindow
from duramen.storage.segment.leader_epochs import LEADER_EPOCHS
from duramen.storage.segment.partition_metadata import PARTITION_METADATA, encode_partition_metadata


def create_log(
    disk: Disk,
    path: str,
    tp: TopicPartition,
    topic_id: TopicId,
    config: LogConfig,
    journal: LogJournal,
    *,
    flush_queue: FlushQueue[Log] | None = None,
    hot: VerifiedWindow | None = None,
) -> Log:
    """A new, empty log in the new directory `path`: its files and the names in it are durable on return.

    The directory's own name is not: sync its parent. OSError.
    """
    log = Log(disk, path, tp, topic_id, config, journal, flush_queue, hot)
    disk.make_directories(path)
    replace_file(
        disk, posixpath.join(path, PARTITION_METADATA), encode_partition_metadata(topic_id_text(topic_id)),
        durable_name=False,
    )  # fmt: skip
    replace_file(disk, posixpath.join(path, LEADER_EPOCHS), log.epochs.encode(), durable_name=False)
    log.add_segment(0)
    log.active.open_file().sync()
    disk.sync_directory(path)
    log.names_changed = False
    return log


class NewLog(NamedTuple):
    """A log to be made."""

    tp: TopicPartition
    topic_id: TopicId
    config: LogConfig

    @property
    def key(self) -> LogKey:
        return self.topic_id, self.tp.partition


class StrayLog(NamedTuple):
    """A log that was moved aside for another one of its name. path: where it is now."""

    tp: TopicPartition
    topic_id: TopicId
    path: str


class Strays(NamedTuple):
    """Which logs are nobody's: their topic is gone, and nobody said that they may go, too. moved: takes each that had
    the name of a new one.
    """

    contain: Callable[[TopicId], bool] = lambda topic_id: False
    moved: Callable[[StrayLog], None] = lambda stray: None


class CreateLogsJob:
    """Makes logs in one log directory. Touches files and the new logs alone; `logs` are the finished ones.

    refused: logs that were asked for and are not made, and why. half_made: paths of logs that could not be made, nor
    removed again; nothing is in them, and they are removed before there is one. follows: on deleted logs of the same
    names, whose new names are made durable first.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        journal: LogJournal,
        flush_queue: FlushQueue[Log],
        hot: VerifiedWindow,
        new: list[NewLog],
        refused: Mapping[LogKey, StorageError | KafkaError | NoRoomError],
        half_made: set[str],
        follows: bool = False,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._journal = journal
        self._flush_queue = flush_queue
        self._hot = hot
        self.new = new
        self.refused = refused
        self._half_made = half_made
        self._follows = follows
        self.logs: list[Log] = []

    def run(self) -> None:
        """Any thread. NoRoomError: nothing of them is left but half made. Any other OSError: some may be there, none is
        to be used.

        A sync that finds no room is no worse here than a write: only these new files depend on it, and all of them go.
        """
        try:
            if self._follows:
                with retriable_open():
                    self._disk.sync_directory(self._directory)
            with retriable_write():
                for new in self.new:
                    self._drop(self._path(new.tp))
                    self._make(*new)
            with retriable_open():
                self._disk.sync_directory(self._directory)
        except NoRoomError:
            self._half_made.update(self._path(new.tp) for new in self.new)
            with retriable_open():
                self._remove()
            raise

    def _make(self, tp: TopicPartition, topic_id: TopicId, config: LogConfig) -> None:
        path = self._path(tp)
        log = create_log(
            self._disk, path, tp, topic_id, config, self._journal, flush_queue=self._flush_queue, hot=self._hot
        )
        log.active.release_files()  # many are made at once, and it is synced
        self.logs.append(log)

    def _remove(self) -> None:
        for log in self.logs:
            log.active.forget()
        self.logs.clear()
        for new in self.new:
            self._drop(self._path(new.tp))
        self._disk.sync_directory(self._directory)

    def _drop(self, path: str) -> None:
        if path in self._half_made:
            if self._disk.exists(path):
                self._disk.remove(path)
            self._half_made.discard(path)

    def _path(self, tp: TopicPartition) -> str:
        return posixpath.join(self._directory, str(tp))
