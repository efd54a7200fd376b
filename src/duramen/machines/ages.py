"""How old things are by a wall clock that is set now and then: what it was set ahead by makes nothing older."""

from __future__ import annotations

from typing import Final

MOST_SETS: Final = 32
"""That are told apart; older ones are taken together, which makes what happened between them younger."""


class Ages:
    """Of one machine, since it was loaded. Times in ms since 1970."""

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead: list[tuple[int, int]] = []
        """(when, by how much) the clock was set ahead and not back again, the latest last."""

    def clock_set(self, now: int, by_ms: int) -> None:
        """The clock was set to `now`: ahead, or back by a negative number."""
        sets = self._ahead
        if by_ms > 0:
            sets.append((now, by_ms))
            if len(sets) > MOST_SETS:
                (_, first), (when, second) = sets[:2]
                sets[:2] = [(when, first + second)]
            return
        back = -by_ms
        while sets and back:
            when, ahead = sets.pop()
            taken = min(ahead, back)
            back -= taken
            if ahead > taken:
                sets.append((min(when, now), ahead - taken))

    def since(self, moment: int, now: int) -> int:
        """How long ago that was. What lies behind the moment that the clock was set at, by itself, was told by a right
        one, before a start: it is as old as it says."""
        return now - moment - sum(ahead for when, ahead in self._ahead if moment <= when - ahead)
