"""How many stored bytes lie before each offset of a partition: what planning by bytes is computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class ByteCurve:
    """A few known points, straight lines between them, and the last line beyond."""

    def __init__(self, offsets: Sequence[int], positions: Sequence[int]) -> None:
        """offsets: strictly ascending, at least two; positions: bytes before each of them, ascending."""
        self._offsets = np.asarray(offsets, np.float64)
        self._positions = np.maximum.accumulate(np.asarray(positions, np.float64))

    @classmethod
    def even(cls, start: int, end: int, total: int) -> ByteCurve:
        """`total` bytes spread evenly over the offsets: all that is known of a foreign Kafka."""
        return cls([start, max(end, start + 1)], [0, max(total, 0)])

    def between(self, start: int, end: int) -> int:
        """Bytes of the offsets start..end (exclusive), about."""
        before, behind = np.interp([start, end], self._offsets, self._positions)
        return int(behind - before) + self._beyond(end) - self._beyond(start)

    def _beyond(self, offset: int) -> int:
        """Bytes between the last known point and an offset behind it."""
        if offset <= self._offsets[-1]:
            return 0
        slope = (self._positions[-1] - self._positions[0]) / (self._offsets[-1] - self._offsets[0])
        return int((offset - self._offsets[-1]) * slope)

    def reach(self, start: int, end: int, max_bytes: int) -> int:
        """The offset up to `end` before which about `max_bytes` lie from `start` on; at least one offset further."""
        if self.between(start, end) <= max_bytes:
            return end
        wanted = float(np.interp(start, self._offsets, self._positions)) + self._beyond(start) + max_bytes
        reached = int(np.interp(wanted, self._positions, self._offsets)) if wanted < self._positions[-1] else end
        return min(end, max(start + 1, reached))

    def cuts(self, start: int, end: int, pieces: int) -> list[int]:
        """`pieces` - 1 ascending offsets at most, between which about equally many bytes lie."""
        if pieces < 2 or end - start < 2:
            return []
        first, last = np.interp([start, end], self._offsets, self._positions)
        even: Any
        if end > self._offsets[-1] or last <= first:
            even = np.linspace(start, end, pieces + 1)
        else:
            even = np.interp(np.linspace(first, last, pieces + 1), self._positions, self._offsets)
        inner = np.unique(even[1:-1].astype(np.int64))
        return [int(offset) for offset in inner if start < offset < end]
