"""New logs: the job that makes their directories and files durable, off the loop and many at a time."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from duramen.model import TopicId, TopicPartition
from duramen.ports import Disk
from duramen.storage.log import Log
from duramen.storage.log_state import LogJournal
from duramen.storage.logconfig import LogConfig
from duramen.storage.reads import HotWindow


class NewLog(NamedTuple):
    """A log to be made."""

    tp: TopicPartition
    topic_id: TopicId
    config: LogConfig


class Creation:
    """Makes logs in one log directory. Touches files and the new logs alone; `logs` are the finished ones."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        journal: LogJournal,
        flush_queue: list[Log],
        hot: HotWindow,
        new: list[NewLog],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._journal = journal
        self._flush_queue = flush_queue
        self._hot = hot
        self.new = new
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
