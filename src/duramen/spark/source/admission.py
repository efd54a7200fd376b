"""How far one micro-batch goes: the newest offsets, cut down to the limits that the query was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from duramen.model import TopicPartition
from duramen.spark.options.positions import Positions
from duramen.spark.source.byte_curve import ByteCurve


@dataclass(frozen=True)
class Limits:
    """Of one micro-batch; None is no limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 0

    @property
    def any(self) -> bool:
        """Whether there is one at all."""
        return not self.max_offsets is self.max_bytes is self.min_offsets is None


def by_offsets(start: Positions, end: Positions, most: int) -> Positions:
    """`end`, cut so that at most `most` offsets lie between.

    Each partition with records goes one offset on, and the rest is shared out by how much each has waiting: beside one
    that is never worked off, a small share alone would be none for ever. With more partitions than that it is their
    turn one after the other.
    """
    waiting = {tp: end[tp] - start[tp] for tp in sorted(end) if end[tp] > start[tp]}
    total, count = sum(waiting.values()), len(waiting)
    if total <= most:
        return end
    if most < count:
        # Where this batch ends by so many offsets the next one begins.
        first = sum(start[tp] for tp in waiting) % count
        taken = {tp: int((place - first) % count < most) for place, tp in enumerate(waiting)}
    else:
        rest, more = most - count, total - count
        taken = {tp: 1 + rest * (size - 1) // more for tp, size in waiting.items()}
        # What is left goes to those that were cut off most.
        by_remainder = sorted(waiting, key=lambda tp: (-(rest * (waiting[tp] - 1) % more), tp))
        for tp in by_remainder[: most - sum(taken.values())]:
            taken[tp] += 1
    return {tp: start[tp] + taken[tp] if tp in taken else at for tp, at in end.items()}


def byte_shares(
    start: Positions, end: Positions, most: int, curves: Mapping[TopicPartition, ByteCurve]
) -> dict[TopicPartition, int]:
    """How many of `most` stored bytes each partition may take, by how much it has waiting; none where all of it fits.

    A partition of unknown size has no share: it is not cut.
    """
    sizes = {tp: curves[tp].between(start[tp], end[tp]) for tp in end if tp in curves and end[tp] > start[tp]}
    total = sum(sizes.values())
    return {} if total <= most else {tp: most * size // total for tp, size in sizes.items()}


def by_bytes(
    start: Positions, end: Positions, shares: Mapping[TopicPartition, int], curves: Mapping[TopicPartition, ByteCurve]
) -> Positions:
    """`end`, cut to about these shares of stored bytes; every partition with records gets one offset further."""
    return {**end, **{tp: curves[tp].reach(start[tp], end[tp], share) for tp, share in shares.items()}}
