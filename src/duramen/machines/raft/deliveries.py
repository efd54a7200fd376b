"""A message that several nodes have to answer: each gets it again, after pauses that double, until it does."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Deliveries:
    """Who is yet to answer, and when each is asked next (never, while an answer is on its way)."""

    __slots__ = ("_first", "_longest", "_next", "_tries")

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next: dict[int, float] = {}
        self._tries: dict[int, int] = {}

    def begin(self, ids: Iterable[int]) -> None:
        """A new message: everybody is due at once, what was begun before is forgotten."""
        self._next = dict.fromkeys(ids, -math.inf)
        self._tries = {}

    def end(self) -> None:
        self.begin(())

    def take_due(self, now: float) -> list[int]:
        """Who is asked now."""
        due = [id for id, when in self._next.items() if when <= now]
        for id in due:
            self._next[id] = math.inf
        return due

    def lost(self, id: int, now: float) -> None:
        """It did not answer, or not what counts."""
        if id in self._next:
            tries = self._tries.get(id, 0)
            self._tries[id] = tries + 1
            self._next[id] = now + min(self._longest, self._first * 2 ** min(tries, 16))

    def again(self, id: int, when: float) -> None:
        """Its answer will soon be another one."""
        if id in self._next:
            self._next[id] = when

    def answered(self, id: int) -> None:
        self._next.pop(id, None)

    @property
    def deadline(self) -> float:
        return min(self._next.values(), default=math.inf)
