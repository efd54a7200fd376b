"""New logs: the job that makes their directories and files durable, off the loop and many at a time."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import NamedTuple

from duramen.errors import StorageError
from duramen.model import TopicId, TopicPartition
from duramen.ports import Disk
from duramen.storage.log import Log
from duramen.storage.log_state import LogJournal
from duramen.storage.logconfig import LogConfig
from duramen.storage.reads import HotWindow
from duramen.storage.recovery_plan import LogKey


class NewLog(NamedTuple):
    """A log to be made."""

    tp: TopicPartition
    topic_id: TopicId
    config: LogConfig

    @property
    def key(self) -> LogKey:
        return self.topic_id, self.tp.partition


class Creation:
    """Makes logs in one log directory. Touches files and the new logs alone; `logs` are the finished ones.

    refused: logs that were asked for and are not made, and why.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        journal: LogJournal,
        flush_queue: list[Log],
        hot: HotWindow,
        new: list[NewLog],
        refused: Mapping[LogKey, StorageError],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._journal = journal
        self._flush_queue = flush_queue
        self._hot = hot
        self.new = new
        self.refused = refused
        self.logs: list[Log] = []

    def run(self) -> None:
        """Any thread. OSError: some may be there, none is to be used."""
        for tp, topic_id, config in self.new:
            path = posixpath.join(self._directory, str(tp))
            log = Log.create(
                self._disk, path, tp, topic_id, config, self._journal, flush_queue=self._flush_queue, hot=self._hot
            )
            log.active.release_files()  # many are made at once, and it is synced
            self.logs.append(log)
        self._disk.sync_directory(self._directory)
