"""Decides what compaction may touch: which segments of a log, which log first, and which segments become one.

`cleanable` is the only place that decides: it asks leases, the high watermark, open transactions, the active
segment, what recovery may still write (the last durable checkpoint) and `min.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duramen.model import METADATA_TOPIC
from duramen.storage.log.log import Log
from duramen.storage.segment.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from duramen.storage.segment.segment import MAX_RELATIVE, Segment


class Cleanable(NamedTuple):
    """What a pass over a log may read and replace. first_dirty: below it keys were looked at by earlier passes.

    segments: whole ones from the log's first on. overdue: something in the log is older than
    `max.compaction.lag.ms`, so the ratio does not matter.
    """

    log: Log
    first_dirty: int
    segments: tuple[Segment, ...]
    overdue: bool

    @property
    def end(self) -> int:
        """Offset behind the last segment."""
        return self.segments[-1].next_offset

    @property
    def dirty(self) -> tuple[Segment, ...]:
        """The segments that no pass has looked at, or not to their ends."""
        return tuple(segment for segment in self.segments if segment.next_offset > self.first_dirty)

    @property
    def ratio(self) -> float:
        """Share of the bytes in dirty segments (`min.cleanable.dirty.ratio`)."""
        total = sum(segment.size for segment in self.segments)
        return sum(segment.size for segment in self.dirty) / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether a pass is worth its while, or has to be."""
        return bool(self.dirty) and (self.overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio)


def is_compacted(log: Log) -> bool:
    """Whether the log's topic is compacted by us. The metadata log never is: Kafka has snapshots for it."""
    return "compact" in log.config.cleanup_policy and log.tp.topic != METADATA_TOPIC


def bound_of(log: Log, high_watermark: int, synced_below: int, now_ms: int) -> int:
    """Offset at and above which nothing may be replaced now.

    synced_below: base offset of the segment that was active at the last durable checkpoint: recovery writes to that one
    and those behind it.
    """
    return min(synced_below, bound_but_for_checkpoints(log, high_watermark, now_ms))


def bound_but_for_checkpoints(log: Log, high_watermark: int, now_ms: int) -> int:
    """The same if a checkpoint had synced all that is closed."""
    if not log.is_whole:
        return 0  # the last batches of each producer stay: those have to be known
    bound = min(high_watermark, log.active.base_offset)
    unstable = log.producers.first_unstable_offset
    leased = log.leased_from(now_ms)
    return min(each for each in (bound, unstable, leased) if each is not None)


def cleanable(log: Log, first_dirty: int, bound: int, now_ms: int, *, as_if_sealed: bool = False) -> Cleanable | None:
    """What a pass over a compacted log may touch below `bound`; None when that is nothing. OSError.

    as_if_sealed: what it might if a checkpoint had synced all that is closed, and that was sealed.
    """
    lag_ms = log.config.min_compaction_lag_ms
    segments = []
    for segment in log.segments[:-1]:
        if segment.next_offset <= log.start_offset:
            continue  # it is about to go, and is not sealed any more
        dirty = segment.next_offset > first_dirty
        if segment.next_offset > bound:
            break
        if not as_if_sealed and (not segment.sealed or segment.synced < segment.size):
            break
        if dirty and lag_ms > 0 and segment.latest_ms > now_ms - lag_ms:
            break
        segments.append(segment)
    if not segments or segments[-1].next_offset <= first_dirty:
        return None
    return Cleanable(log, first_dirty, tuple(segments), _is_overdue(log, first_dirty, now_ms))


def _is_overdue(log: Log, first_dirty: int, now_ms: int) -> bool:
    """Whether a rolled segment that was not cleaned begins with a batch older than `max.compaction.lag.ms`."""
    oldest = now_ms - log.config.max_compaction_lag_ms
    if oldest <= 0:
        return False
    dirty = [segment for segment in log.segments[:-1] if segment.next_offset > first_dirty]
    return any(0 <= segment.first_batch_ms(now_ms) < oldest for segment in dirty)


def groups(segments: Sequence[Segment], max_bytes: int, max_index_bytes: int) -> list[list[Segment]]:
    """Neighbours that fit into one segment together, by bytes, by index bytes and by the reach of an index entry."""
    found: list[list[Segment]] = []
    size = index = times = 0
    for segment in segments:
        size += segment.size
        index += segment.index_entries * OFFSET_ENTRY_SIZE
        times += segment.time_entries * TIME_ENTRY_SIZE
        if (
            not found
            or size > max_bytes
            or max(index, times) > max_index_bytes
            or segment.next_offset - 1 - found[-1][0].base_offset > MAX_RELATIVE
        ):
            found.append([])
            size = segment.size
            index = segment.index_entries * OFFSET_ENTRY_SIZE
            times = segment.time_entries * TIME_ENTRY_SIZE
        found[-1].append(segment)
    return found
