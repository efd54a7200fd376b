"""A partition that is on disk and not served, as its directory remembers it."""

from __future__ import annotations

from typing import NamedTuple

from duramen.model import LogKey, TopicId, TopicPartition
from duramen.storage.segment.recovery_point import LogPoint


class Offline(NamedTuple):
    """A partition that is on disk and not served. point: for the checkpoint, where it ends as far as that is known.

    segments: those it should have, as the next start has to know, too. absent: not even its directory is there.
    """

    tp: TopicPartition
    topic_id: TopicId
    path: str
    error: Exception
    point: LogPoint
    segments: tuple[int, ...] = ()
    absent: bool = False

    @property
    def key(self) -> LogKey:
        """As of a log."""
        return self.topic_id, self.tp.partition
