"""Deleting the logs of partitions that are gone: some in a turn of the loop, for a topic may have thousands of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from duramen.errors import DuramenError, KafkaError
from duramen.ports import Clock
from duramen.storage import Log, LogDirectory

if TYPE_CHECKING:
    from duramen.partition.store.store import Store

RETRY_SECONDS = 1.0
"""After which a log is tried again for whose deletion there was no room, on the disk or in the journal."""
LOGS_A_TURN = 20
"""Each gets an entry in the journal and another name, in some 40 us; others have waited that long for this turn."""


class Deleting:
    """Of one store. Loop thread only.

    on_failed: told, once, of a log that could not be deleted (OSError, DuramenError): that comes when there is room, or
    with the next start. on_done: called in the turn in which the last of those that had to wait went.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
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

    @property
    def is_settled(self) -> bool:
        """Nor any for which there is no room: what speaks of its deletion must stay."""
        return not self._waiting and not self._refused

    def add(self, directory: LogDirectory, log: Log) -> None:
        """Nobody uses the log any more: it goes now, or in one of the next turns."""
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
            self.add(*self._waiting.popleft())
        if had_to_wait and not self._waiting:
            self.on_done()

    def _delete(self, directory: LogDirectory, log: Log) -> None:
        refused = self._refused.pop(log, None)
        reason: BaseException | None = None
        directory.undeleted.discard(log.path)
        path = log.path
        try:
            self._store.delete_log(directory, log)
        except KafkaError as error:  # nothing was done
            reason = error
            directory.undeleted.add(path)
            self._refused[log] = directory
            if not self._retries:
                self._retries = True
                self._clock.call_later(RETRY_SECONDS, self._retry)
        except (OSError, DuramenError) as error:
            reason = error
        if reason is not None and refused is None:
            self.on_failed(log, reason)

    def _retry(self) -> None:
        self._retries = False
        for log, directory in list(self._refused.items()):
            self.add(directory, log)


def _raise(log: Log, error: BaseException) -> None:
    raise error
