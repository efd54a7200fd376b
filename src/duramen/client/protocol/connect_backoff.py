"""When an address that could not be reached may be tried again."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.02
LONGEST_S: Final = 0.25


class ConnectBackoff:
    """The failures of one address in a row: 20 ms until the next attempt, doubling, at most 250 ms."""

    __slots__ = ("_pause_s", "not_before", "reason")

    def __init__(self) -> None:
        self.reason = ""
        """What the last attempt failed with; empty when there is nothing to wait for."""
        self.not_before = 0.0
        """The moment from which it may be tried."""
        self._pause_s = FIRST_S

    def failed(self, reason: str, now: float) -> None:
        """An attempt came to nothing."""
        self.reason = reason
        self.not_before = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_S)

    def holds(self, now: float) -> bool:
        """Whether it is too early."""
        return bool(self.reason) and now < self.not_before
