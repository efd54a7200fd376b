"""The transactions of one log that are open, or ended by a marker that is not committed: what holds readers back.

Each step costs the same however many there are: a marker of one of thousands must not look at the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

UNKNOWN_PRODUCER: Final = -1


class OpenTransactions:
    """By first offset; appends ascend, and so do these."""

    __slots__ = ("_ended", "_open", "_unstable")

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()
        """First offset -> producer id."""
        self._ended: OrderedDict[int, int] = OrderedDict()
        """Offset of the marker -> first offset, until the marker is committed."""
        self._unstable: OrderedDict[int, None] = OrderedDict()
        """First offsets of both."""

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def first_unstable(self) -> int | None:
        """First offset of all of them; None without."""
        return next(iter(self._unstable), None)

    def first_open_but(self, first_offset: int) -> int | None:
        """First offset of those that are open without this one; None where there is no other."""
        return next((each for each in self._open if each != first_offset), None)

    @property
    def oldest_producer(self) -> int | None:
        """Whose transaction has been open for longest; None without."""
        return next(iter(self._open.values()), None)

    def begin(self, first_offset: int, producer_id: int) -> None:
        """One was opened, behind all others."""
        self._open[first_offset] = producer_id
        self._unstable[first_offset] = None

    def end(self, first_offset: int, marker: int) -> None:
        """Its marker was appended."""
        del self._open[first_offset]
        self._ended[marker] = first_offset

    def committed(self, high_watermark: int) -> bool:
        """Markers below are committed; whether there were any."""
        ended = self._ended
        moved = False
        while ended and next(iter(ended)) < high_watermark:
            del self._unstable[ended.popitem(last=False)[1]]
            moved = True
        return moved

    def take(self, transactions: Iterable[tuple[int, int]]) -> None:
        """(first offset, producer id) of some that were open, in any order."""
        self._open = OrderedDict(sorted({**self._open, **dict(transactions)}.items()))
        self._sort()

    def cut(self, end: int, rolled_back: Iterable[int]) -> None:
        """The log ends at `end` from now on: what a marker behind it had ended is open again, whoever's it is."""
        again = [start for marker, start in self._ended.items() if marker >= end]
        self._ended = OrderedDict((marker, start) for marker, start in self._ended.items() if marker < end)
        starts = sorted({start for start in (*self._open, *again, *rolled_back) if start < end})
        self._open = OrderedDict.fromkeys(starts, UNKNOWN_PRODUCER)
        self._sort()

    def take_open(self, others: OpenTransactions | None) -> None:
        """Those that are open, as the others know them; what has ended was known all the time."""
        self._open = OrderedDict() if others is None else others._open
        self._sort()

    def _sort(self) -> None:
        self._unstable = OrderedDict.fromkeys(sorted((*self._open, *self._ended.values())))
