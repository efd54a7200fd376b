"""What the parts of a store ask of it, so that none of them has to know the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from duramen.errors import KafkaError
from duramen.model import TopicPartition
from duramen.storage import LogDirectory


@dataclass(slots=True)
class CommitStatistics:
    """Counters of the commit cycle, for metrics. Times in seconds."""

    groups: int = 0
    failures: int = 0
    observers: list[Callable[[float], None]] = field(default_factory=list)
    checkpointed: Callable[[float, float], None] = lambda job, pause: None
    """Called after each checkpoint job: how long it ran off the loop, and how long it held up the loop."""

    def committed(self, seconds: float) -> None:
        """A group took so long."""
        for observe in self.observers:
            observe(seconds)


class StoreServices(Protocol):
    """A store, as its parts see it. Loop thread only."""

    directories: list[LogDirectory]
    statistics: CommitStatistics
    congested: bool
    on_relief: Callable[[], None]

    @property
    def is_maintained(self) -> bool:
        """Whether maintenance has begun and was not stopped."""

    def home(self, tp: TopicPartition) -> LogDirectory:
        """The directory that holds this partition."""

    def submit(self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` off the loop, and know that it is under way."""

    def commit(self) -> None:
        """Write what was appended, start the journal's next group, advance page-cache topics."""

    def commit_soon(self) -> None:
        """Run `commit` after the current event, once, however often this is called."""

    def when_synced(self, tp: TopicPartition, callback: Callable[[KafkaError | None], None]) -> None:
        """Call back once everything journaled so far for this partition's directory is on stable storage."""

    def fail(self, directory: LogDirectory, error: BaseException) -> None:
        """A write or sync failed: this directory takes no more writes until a restart."""

    def answer_unknown(self, directory: LogDirectory, what: str) -> None:
        """Everybody who waits for something to be written in the directory learns that its outcome is unknown."""
