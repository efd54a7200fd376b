"""How far one micro-batch goes: the newest offsets, cut down to the limits that the query was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from duramen.model import TopicPartition
from duramen.spark.byte_curve import ByteCurve
from duramen.spark.positions import Positions


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
    """`end`, cut so that at most `most` offsets lie between, shared out by how much each partition has waiting."""
    waiting = {tp: max(0, end[tp] - start[tp]) for tp in end}
    total = sum(waiting.values())
    if total <= most:
        return end
    taken = {tp: most * size // total for tp, size in waiting.items()}
    left = most - sum(taken.values())
    # The rest goes to those that were cut off most, so that a small partition is not starved for ever.
    by_remainder = sorted(waiting, key=lambda tp: (-(most * waiting[tp] % total), tp))
    for tp in by_remainder[:left]:
        taken[tp] += 1
    return {tp: start[tp] + taken[tp] if waiting[tp] else end[tp] for tp in end}


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
