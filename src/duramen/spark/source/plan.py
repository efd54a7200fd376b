"""From a plan of offsets to the splits that Spark's tasks read: a few calls whatever the history's length."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition
from duramen.spark.options.positions import Positions
from duramen.spark.source.byte_curve import ByteCurve

_TASKS_PER_CORE: Final = 4
_RANGE_BYTES: Final = 4096
"""What a range costs its task beside its bytes, in bytes."""
_UNTOLD_RECORD_BYTES: Final = 1024
"""Of a record where nobody knows its size."""
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


class Pack(InputPartition):
    """What one task reads where ranges are small: several splits, one after the other. It travels as they do."""

    def __init__(self, splits: tuple[Split, ...]) -> None:
        self.splits = splits

    def __repr__(self) -> str:
        return f"Pack({', '.join(map(repr, self.splits))})"


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


def packed(found: list[Split], cutting: Cutting, cores: int | None = None) -> list[Split | Pack]:
    """The splits as tasks, in order: where there are more than a few for each core, neighbours are packed, so that all
    hold about equally much, and none much more than the target's bytes.

    cores: of this machine unless it is said; `minPartitions` keeps more tasks for a larger cluster.
    """
    weights = [(each.size_hint or (each.end - each.start) * _UNTOLD_RECORD_BYTES) + _RANGE_BYTES for each in found]
    total = sum(weights)
    few = _TASKS_PER_CORE * (cores or len(os.sched_getaffinity(0)))
    tasks = max(math.ceil(total / cutting.target_bytes), few, cutting.min_partitions or 0)
    if len(found) <= tasks:
        return list(found)
    packs: list[Split | Pack] = []
    waiting: list[Split] = []
    before = behind = 0
    for split, weight in zip(found, weights, strict=True):
        offsets = sum(each.end - each.start for each in waiting) if cutting.max_records is not None else 0
        full = cutting.max_records is not None and offsets + split.end - split.start > cutting.max_records
        # Where the middle of a split falls decides which share it belongs to.
        if waiting and (full or (2 * behind + weight) * tasks // (2 * total) > before):
            packs.append(_pack(waiting))
            waiting = []
        if not waiting:
            before = (2 * behind + weight) * tasks // (2 * total)
        waiting.append(split)
        behind += weight
    packs.append(_pack(waiting))
    return packs if len(packs) >= (cutting.min_partitions or 0) else list(found)


def splits_of(task: object) -> tuple[Split, ...]:
    """What a task reads; nothing of what is no task of ours."""
    if isinstance(task, Pack):
        return task.splits
    return (task,) if isinstance(task, Split) else ()


def _pack(found: list[Split]) -> Split | Pack:
    return found[0] if len(found) == 1 else Pack(tuple(found))


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
