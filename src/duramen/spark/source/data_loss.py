"""Records that a query should have read and that are gone: one error that names the exact range."""

from __future__ import annotations

import logging
from typing import Final

from duramen.errors import DuramenError, ErrorCode, TopicReplacedError
from duramen.model import TopicPartition

IS_GONE: Final = "the topic or the partition is gone"

_log = logging.getLogger("duramen.spark")


class DataLossError(DuramenError):
    """Offsets `start`..`end` (exclusive, None: all there may have been) of `tp` can no longer be read, or not any more
    what they were.

    Gaps inside the log (compaction, markers of transactions) are none of these: only its start and its end count.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, tp: TopicPartition, start: int, end: int | None, reason: str) -> None:
        what = f"from offset {start} on, all" if end is None else f"offsets {start} to {end - 1}"
        count = "" if end is None else f" ({end - start} of them)"
        super().__init__(
            f"{what} of {tp}{count} are lost to this query: {reason}. Set failOnDataLoss to false to go on without them"
        )
        self.tp = tp
        self.start = start
        self.end = end
        self.reason = reason


def lost(tp: TopicPartition, start: int, end: int | None, reason: str, *, fail: bool) -> None:
    """Raise DataLossError, or say the same in a warning."""
    error = DataLossError(tp, start, end, reason)
    if fail:
        raise error
    _log.warning("%s", error)


def not_meant(topic: str, option: str, *, fail: bool) -> None:
    """Raise TopicReplacedError for a topic that has another id than stands beside its offsets in an option, or say the
    same in a warning."""
    what = (
        f"{option}: topic {topic} was deleted and made anew since these offsets were taken: they are other records now"
    )
    if fail:
        raise TopicReplacedError(
            f"{what}. Give others; or set failOnDataLoss to false, and it is read as if none were given for it"
        )
    _log.warning("%s; it is read as if none were given for it", what)


def replaced(topic: str, *, fail: bool) -> None:
    """Raise TopicReplacedError for a topic that has another id than the checkpoint, or say the same in a warning."""
    what = f"topic {topic} was deleted and made anew since this query read it: its offsets are other records now"
    if fail:
        raise TopicReplacedError(
            f"{what}. Start the query again, a stream with a new checkpoint (a pipeline: `duramen spark reprocess`), "
            "or set failOnDataLoss to false: a stream then reads the new topic from its first record"
        )
    _log.warning("%s; it is read from its first record", what)
