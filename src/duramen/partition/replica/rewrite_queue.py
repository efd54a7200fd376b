"""Batches of one partition that must be decoded before they are appended, and what waits behind them in order."""

from __future__ import annotations

from collections.abc import Callable

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.ports import Submit

MAX_QUEUED_BEHIND_REWRITE = 256
"""Batches of one partition that may wait behind one that is being recompressed, before producers are refused."""


class RewriteQueue:
    """One batch at a time is decoded, off the loop; loop thread only.

    is_busy: whether one is, so that what comes meanwhile has to be added. limit: of what may wait.
    """

    __slots__ = ("_queued", "_submit", "_tp", "is_busy", "limit")

    def __init__(self, tp: TopicPartition, submit: Submit) -> None:
        self._tp = tp
        self._submit = submit
        self._queued: list[Callable[[], None]] = []
        self.is_busy = False
        self.limit = MAX_QUEUED_BEHIND_REWRITE

    def add(self, work: Callable[[], None]) -> None:
        """Do this after the batch that is being decoded. KafkaError REQUEST_TIMED_OUT where too much waits."""
        if len(self._queued) >= self.limit:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self._tp}: too many batches wait to be decoded")
        self._queued.append(work)

    def start(
        self, job: Callable[[], bytearray], done: Callable[[bytearray | None, BaseException | None], None]
    ) -> None:
        """Run the job on another thread; `done` with what it made or what it raised, then what waits behind it."""
        self.is_busy = True

        def finish(result: bytearray | None, error: BaseException | None) -> None:
            self.is_busy = False
            done(result, error)
            while self._queued and not self.is_busy:
                self._queued.pop(0)()

        self._submit("rewriting", job, finish)
