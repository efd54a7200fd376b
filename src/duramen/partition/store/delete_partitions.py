"""Deletion of the logs of deleted topics: some in a turn of the loop, for a topic may have thousands of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from duramen.errors import DuramenError, KafkaError
from duramen.model import LogKey, TopicId
from duramen.partition.store.hosted_partitions import HostedPartitions, HostedState
from duramen.ports import Clock
from duramen.storage import Log, LogDirectory

RETRY_SECONDS = 1.0
"""After which a log is tried again for whose deletion there was no room, on the disk or in the journal."""
LOGS_A_TURN = 20
"""Each gets an entry in the journal and another name, in some 40 us; others have waited that long for this turn."""


def delete_offline(directories: Iterable[LogDirectory], unwanted: Callable[[TopicId], bool]) -> None:
    """Delete the logs that are offline and whose topic is not wanted any more; commit afterwards."""
    for directory in directories:
        for key in [key for key in directory.offline if unwanted(key[0])]:
            directory.delete_offline(key)


class PartitionDeletions:
    """Of one store, whose `hosted` partitions are `deleting` from the beginning to the end. Loop thread only.

    delete_log, commit_soon: as of the store. on_failed: called, once, with a log that could not be deleted (OSError,
    DuramenError): that comes when there is room, or with the next start. on_done: called in the turn in which the last
    of those that had to wait went.
    """

    def __init__(
        self,
        directories: list[LogDirectory],
        hosted: HostedPartitions,
        clock: Clock,
        delete_log: Callable[[LogDirectory, Log], None],
        commit_soon: Callable[[], None],
    ) -> None:
        self._directories = directories
        self._hosted = hosted
        self._clock = clock
        self._delete_log = delete_log
        self._commit_soon = commit_soon
        self._waiting: deque[tuple[LogDirectory, Log]] = deque()
        self._left = LOGS_A_TURN
        self._refused: dict[Log, LogDirectory] = {}
        """Those for which there is no room."""
        self._retries = False
        self.on_failed: Callable[[Log, BaseException], None] = _raise
        self.on_done: Callable[[], None] = lambda: None

    @property
    def is_over(self) -> bool:
        """Whether no log waits; one that does still has the name that another one may be about to get."""
        return not self._waiting

    def refused_paths(self) -> set[str]:
        """Where logs are that could not be deleted for want of room."""
        return {log.path for log in self._refused}

    def delete_soon(self, directory: LogDirectory, log: Log) -> None:
        """The log is not used any more: it goes now, or in one of the next turns."""
        if self._left == LOGS_A_TURN:
            self._clock.call_soon(self._next)
        if self._left:
            self._left -= 1
            self._delete(directory, log)
        else:
            self._waiting.append((directory, log))

    def _next(self) -> None:
        had_to_wait = bool(self._waiting)
        self._left = LOGS_A_TURN
        for _ in range(min(len(self._waiting), LOGS_A_TURN)):
            self.delete_soon(*self._waiting.popleft())
        if had_to_wait and not self._waiting:
            self.on_done()

    def _delete(self, directory: LogDirectory, log: Log) -> None:
        refused = self._refused.pop(log, None)
        key = log.topic_id, log.tp.partition
        reason: BaseException | None = None
        try:
            self._delete_log(directory, log)
        except KafkaError as error:  # nothing was done
            reason = error
            self._refused[log] = directory
            if not self._retries:
                self._retries = True
                self._clock.call_later(RETRY_SECONDS, self._retry)
        except (OSError, DuramenError) as error:
            reason = error
        if log not in self._refused:
            self._hosted.forget(key)
        if reason is not None and refused is None:
            self.on_failed(log, reason)

    def _retry(self) -> None:
        self._retries = False
        for log, directory in list(self._refused.items()):
            self.delete_soon(directory, log)

    def delete_offline_logs(self, topic_id: TopicId, on_failed: Callable[[BaseException], None]) -> None:
        """Delete what is offline of a deleted topic; again where there is no room for that.

        on_failed: called once. What fails for another reason the next start does.
        """
        keys = [key for directory in self._directories for key in directory.offline if key[0] == topic_id]
        for key in [key for key in self._hosted.keys_in(HostedState.OFFLINE) if key[0] == topic_id]:
            if key not in keys:
                self._hosted.forget(key)
        for key in keys:
            self._hosted.mark_deleting(key)
        self._delete_offline(topic_id, keys, on_failed)

    def _delete_offline(
        self, topic_id: TopicId, keys: list[LogKey], on_failed: Callable[[BaseException], None]
    ) -> None:
        try:
            delete_offline(self._directories, topic_id.__eq__)
            self._commit_soon()
        except (OSError, DuramenError) as error:
            on_failed(error)
            if isinstance(error, KafkaError):  # the disk or the journal has no room, and nothing was done
                again = partial(self._delete_offline, topic_id, keys, lambda error: None)
                self._clock.call_later(RETRY_SECONDS, again)
                return
        for key in keys:
            self._hosted.forget(key)


def _raise(log: Log, error: BaseException) -> None:
    raise error
