"""What a checkpoint says of one log: up to where it was on stable storage, and the state of the segment there."""

from __future__ import annotations

from typing import NamedTuple

from duramen.model import TopicPartition


class ActiveState(NamedTuple):
    """What a start need not find out again of the segment that the recovery point lies in.

    index_entries, index_crc, time_entries, time_crc: the beginning of its index files that speaks of bytes below the
    point, with its CRC-32C, so that the files themselves need no sync. Timestamps (ms) as in `Segment`.
    producers: how many were known at the point; transactions: how many segments had a `.txnindex`.
    """

    index_entries: int
    index_crc: int
    time_entries: int
    time_crc: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    producers: int
    transactions: int


class LogPoint(NamedTuple):
    """What was on stable storage of one log: all below `recovery_point`, which lies at `position` of `segment_base`.

    state: None when it is not known (after a cut, or in a checkpoint of an earlier version). is_least: the log was left
    offline when nobody knew where it ends: it reaches so far at least, and its last segment has those bytes.
    unjournaled: when the journal began that goes with the checkpoint, appends were not journaled (page-cache topics).
    """

    tp: TopicPartition
    start_offset: int
    recovery_point: int
    segment_base: int
    position: int
    state: ActiveState | None = None
    is_least: bool = False
    unjournaled: bool = False
