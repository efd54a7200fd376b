"""Long work of several parties: one piece of one of them a turn of the loop, and who comes first is done first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from duramen.ports import Clock


class LoadTurns:
    """A queue of works. Each is called once a turn until it says that it is over (True); then the next one is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._works: deque[Callable[[], bool]] = deque()

    def add_load(self, work: Callable[[], bool]) -> None:
        """Do it when its turn comes, never at once."""
        self._works.append(work)
        if len(self._works) == 1:
            self._clock.call_soon(self._next)

    def _next(self) -> None:
        is_over = True
        try:
            is_over = self._works[0]()
        finally:
            if is_over:
                self._works.popleft()
            if self._works:
                self._clock.call_soon(self._next)
