"""How many stored bytes lie before each offset of a partition: what planning by bytes is computed from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np


class ByteCurve:
    """A few known points, straight lines between them, and the last line beyond."""

    def __init__(self, offsets: Sequence[int], positions: Sequence[int]) -> None:
        """offsets: strictly ascending, at least two; positions: bytes before each of them, ascending."""
        self._offsets = list(offsets)
        self._positions = list(accumulate(positions, max))

    @classmethod
    def even(cls, start: int, end: int, total: int) -> ByteCurve:
        """`total` bytes spread evenly over the offsets: all that is known of a foreign Kafka."""
        return cls([start, max(end, start + 1)], [0, max(total, 0)])

    def between(self, start: int, end: int) -> int:
        """Bytes of the offsets start..end (exclusive), about."""
        return int(self._before(end) - self._before(start)) + self._beyond(end) - self._beyond(start)

    def _before(self, offset: int) -> float:
        """Bytes before an offset, on the lines between the known points: plain Python is faster than numpy for one."""
        behind = bisect_right(self._offsets, offset)
        if behind == 0 or behind == len(self._offsets):
            return self._positions[max(behind - 1, 0)]
        first, last = self._offsets[behind - 1], self._offsets[behind]
        low, high = self._positions[behind - 1], self._positions[behind]
        return low + (high - low) * (offset - first) / (last - first)

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
        wanted = self._before(start) + self._beyond(start) + max_bytes
        reached = int(np.interp(wanted, self._positions, self._offsets)) if wanted < self._positions[-1] else end
        return min(end, max(start + 1, reached))

    def cuts(self, start: int, end: int, pieces: int) -> list[int]:
        """`pieces` - 1 ascending offsets at most, between which about equally many bytes lie."""
        if pieces < 2 or end - start < 2:
            return []
        first, last = self._before(start), self._before(end)
        even: Any
        if end > self._offsets[-1] or last <= first:
            even = np.linspace(start, end, pieces + 1)
        else:
            even = np.interp(np.linspace(first, last, pieces + 1), self._positions, self._offsets)
        inner = np.unique(even[1:-1].astype(np.int64))
        return [int(offset) for offset in inner if start < offset < end]
