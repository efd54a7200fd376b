"""Fetches that wait for records: how many partitions they watch, and turns for those that were woken."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from duramen.ports import Clock

WAKES_PER_TURN = 64
"""Parked readers served before the loop turns to sockets again (17 µs each)."""


class ParkedFetch(Protocol):
    """A fetch that waits."""

    def retry(self) -> None:
        """Answer if there is enough by now, else wait on."""


class ParkedFetches:
    """partitions: of all fetches that wait for records."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken: deque[ParkedFetch] = deque()
        self._wake_scheduled = False
        self.partitions = 0

    def wake_soon(self, call: ParkedFetch) -> None:
        """Give a parked reader its turn; many are served in slices, so that sockets are not kept waiting."""
        self._woken.append(call)
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self._clock.call_last(self._wake)

    def _wake(self) -> None:
        woken = self._woken
        for _ in range(min(WAKES_PER_TURN, len(woken))):
            woken.popleft().retry()
        self._wake_scheduled = bool(woken)
        if woken:
            self._clock.call_soon(self._wake)
