"""From a plan of offsets to the splits that Spark's tasks read: a few calls whatever the history's length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition
from duramen.spark.options.positions import Positions
from duramen.spark.source.byte_curve import ByteCurve

_PIECES_MAX: Final = 10_000
"""Of one partition: each piece is a task, and Spark's own plan grows with them."""


class Split(InputPartition):
    """What one task reads: the offsets start..end (exclusive) of one partition. Plain values, they travel.

    size_hint: stored bytes, about; 0 where nobody knows.
    """

    def __init__(self, topic: str, partition: int, start: int, end: int, size_hint: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.size_hint = size_hint
        self.topic_id = NO_TOPIC_ID
        """Of the topic that is meant; zeros where nobody said."""
        self.pieces: tuple[Any, ...] = ()
        """Files that hold the front of it (`storage_plan.Piece`), in order."""
        self.leases: tuple[Any, ...] = ()
        """What keeps these files."""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __repr__(self) -> str:
        return f"Split({self.tp} {self.start}..{self.end})"


class Cutting(NamedTuple):
    """How ranges are cut into splits."""

    target_bytes: int
    min_partitions: int | None = None
    max_records: int | None = None


def splits(
    start: Positions, end: Positions, curves: Mapping[TopicPartition, ByteCurve], cutting: Cutting
) -> list[Split]:
    """The ranges of `end` from `start` on, in order, cut so that each holds about the target's bytes at most.

    Empty ranges are left out. A partition without a curve is cut by offsets alone.
    """
    ranges = [(tp, start[tp], end[tp]) for tp in sorted(end) if end[tp] > start.get(tp, end[tp])]
    total = sum(until - since for _, since, until in ranges)
    found = []
    for tp, since, until in ranges:
        curve = curves.get(tp) or ByteCurve.even(since, until, 0)
        size = curve.between(since, until)
        pieces = _pieces(until - since, size, total, cutting)
        if pieces == 1:
            found.append(Split(tp.topic, tp.partition, since, until, size))
            continue
        bounds = [since, *curve.cuts(since, until, pieces), until]
        if cutting.max_records is not None:
            bounds = _no_wider(bounds, cutting.max_records)
        found += [Split(tp.topic, tp.partition, a, b, curve.between(a, b)) for a, b in itertools.pairwise(bounds)]
    return found


def identified(found: list[Split], ids: Mapping[str, TopicId]) -> list[Split]:
    """The splits, each with its topic's id."""
    for split in found:
        split.topic_id = ids.get(split.topic, NO_TOPIC_ID)
    return found


def _pieces(offsets: int, size: int, total: int, cutting: Cutting) -> int:
    pieces = math.ceil(size / cutting.target_bytes)
    if cutting.min_partitions is not None:
        pieces = max(pieces, math.ceil(cutting.min_partitions * offsets / total))
    if cutting.max_records is not None:
        pieces = max(pieces, math.ceil(offsets / cutting.max_records))
    return max(1, min(pieces, offsets, _PIECES_MAX))


def _no_wider(bounds: list[int], widest: int) -> list[int]:
    out = [bounds[0]]
    for bound in bounds[1:]:
        steps = math.ceil((bound - out[-1]) / widest)
        begin = out[-1]
        out += [begin + (bound - begin) * step // steps for step in range(1, steps + 1)]
    return out
