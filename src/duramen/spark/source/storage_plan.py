"""Which sealed segments a split may read from their files instead of from a broker, and the lease that keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from duramen.client.blocking.sealed_segments import SealedSegmentFile, check_directory, sealed_segment
from duramen.client.protocol.segments import DescribedPartition, DescribedSegment, HeldLease
from duramen.errors import ConfigError, UnreachableStorageError
from duramen.model import TopicPartition
from duramen.spark.source.plan import Split

BROKER: Final = "broker"
STORAGE: Final = "storage"

LEASE_MS: Final = 600_000
"""Asked for at planning; tasks that still read prolong it."""


class SegmentSlice(NamedTuple):
    """A part of one sealed segment: batches that begin in its bytes start..stop (None: its end).

    end_offset: behind the last offset that the segment covers.
    """

    segment: SealedSegmentFile
    start: int
    stop: int | None
    end_offset: int


class StoragePlan(NamedTuple):
    """The sealed segments of each partition, in order, and what keeps them."""

    partitions: dict[TopicPartition, DescribedPartition]
    leases: list[HeldLease]


NO_STORAGE: Final = StoragePlan({}, [])


def reachable(partitions: Iterable[DescribedPartition], leases: list[HeldLease], read_from: str) -> StoragePlan:
    """What this process can reach of a plan. Raises UnreachableStorageError naming the directory for STORAGE."""
    seen: dict[tuple[str, str], bool] = {}
    found: dict[TopicPartition, DescribedPartition] = {}
    for each in partitions:
        place = (each.log_dir, each.directory_id)
        if place not in seen:
            seen[place] = _can_reach(*place, must=read_from == STORAGE)
        if seen[place]:
            found[each.tp] = each
    return StoragePlan(found, leases)


def _can_reach(log_dir: str, directory_id: str, *, must: bool) -> bool:
    try:
        check_directory(log_dir, directory_id)
    except UnreachableStorageError as error:
        if must:
            raise ConfigError(f"readFrom=storage, but {error}") from error
        return False
    return True


def assign(splits: list[Split], plan: StoragePlan) -> list[Split]:
    """The splits, told which files hold their front; what lies behind is the broker's."""
    for split in splits:
        described = plan.partitions.get(split.tp)
        if described is not None:
            split.pieces = tuple(pieces(described, split.start, split.end))
            split.leases = tuple(plan.leases) if split.pieces else ()
    return splits


def pieces(described: DescribedPartition, start: int, end: int) -> list[SegmentSlice]:
    """The sealed segments that hold the offsets from `start` on without a gap, up to `end`.

    Where the log starts later than that by now, there are none: a fetch finds the loss, which a file cannot tell.
    """
    found: list[SegmentSlice] = []
    at = start
    for segment in described.segments:
        if segment.end_offset <= at or segment.base_offset >= end:
            continue
        if not segment.is_sealed or segment.base_offset > at:
            break
        found.append(_piece(described, segment, at, end))
        at = segment.end_offset
    return found


def _piece(described: DescribedPartition, segment: DescribedSegment, at: int, end: int) -> SegmentSlice:
    start = max((position for offset, position in segment.boundaries if offset <= at), default=0)
    stop = min((position for offset, position in segment.boundaries if offset >= end), default=None)
    return SegmentSlice(sealed_segment(described, segment), start, stop, segment.end_offset)
