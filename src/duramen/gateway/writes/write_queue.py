"""Which writes of one partition leave together as one batch. Pure: it knows neither sockets nor time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

BATCH_MAX_BYTES: Final = 1_000_000
"""Of writes that leave together: below what a topic takes by default. A larger write leaves alone."""

_T = TypeVar("_T")


class _WaitingWrite(NamedTuple, Generic[_T]):
    """alone: it was refused together with others, and is tried by itself."""

    write: _T
    size: int
    alone: bool


class WriteQueue(Generic[_T]):
    """The writes of a partition, in the order in which they came. At most one batch of them is under way.

    A write that comes while none is under way leaves at once; those that come meanwhile wait, and leave together.
    """

    def __init__(self, batch_max_bytes: int = BATCH_MAX_BYTES) -> None:
        self._batch_max_bytes = batch_max_bytes
        self._waiting: deque[_WaitingWrite[_T]] = deque()
        self._under_way = False

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._under_way and not self._waiting

    def put(self, write: _T, size: int) -> None:
        """One more write, of so many bytes."""
        self._waiting.append(_WaitingWrite(write, size, False))

    def take(self) -> list[_T]:
        """The writes of the next batch, which is under way then; none while one is, or when nothing waits."""
        taken: list[_T] = []
        if self._under_way:
            return taken
        room = self._batch_max_bytes
        while self._waiting:
            first = self._waiting[0]
            if taken and (first.alone or first.size > room):
                break
            self._waiting.popleft()
            taken.append(first.write)
            room -= first.size
            if first.alone:
                break
        self._under_way = bool(taken)
        return taken

    def settle(self) -> None:
        """The batch under way has its answer."""
        self._under_way = False

    def part(self, batch: Sequence[tuple[_T, int]]) -> None:
        """The batch under way was refused for what one of its writes holds: each leaves alone, before all others."""
        self._under_way = False
        self._waiting.extendleft(_WaitingWrite(write, size, True) for write, size in reversed(batch))

    def withdraw(self, write: _T) -> bool:
        """Take back a write that still waits; whether it did."""
        for place, waiting in enumerate(self._waiting):
            if waiting.write is write:
                del self._waiting[place]
                return True
        return False
