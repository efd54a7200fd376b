"""Produce requests that have no answer yet, and their time-outs: one timer looks at all of them."""

from __future__ import annotations

from typing import Protocol

from duramen.ports import Clock

SWEEP_SECONDS = 0.1


class ExpiringAppend(Protocol):
    """An append that waits for its acknowledgement."""

    @property
    def deadline(self) -> float: ...

    def expire(self) -> None:
        """Answer that the outcome is unknown."""


class OutstandingAppends:
    """outstanding: appends without an answer; put in by `wait_for`, taken out by whoever answers."""

    __slots__ = ("_clock", "_closed", "outstanding", "sweeping")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._closed = False
        self.outstanding: dict[ExpiringAppend, None] = {}
        self.sweeping = False
        """Whether the timer is set."""

    def wait_for(self, call: ExpiringAppend) -> None:
        """Watch the time-out of an append that begins. `ProduceRequest.append` has this code inline."""
        self.outstanding[call] = None
        if not self.sweeping:
            self.sweep_later()

    def sweep_later(self) -> None:
        """There is an append whose time-out is to be watched."""
        self.sweeping = True
        self._clock.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Answer appends whose time-out has passed; go on while there are any."""
        self.sweeping = bool(self.outstanding) and not self._closed
        if not self.sweeping:
            return
        self.sweep_later()
        now = self._clock.monotonic()
        for call in [call for call in self.outstanding if call.deadline <= now]:
            call.expire()

    def close(self) -> None:
        """The node stops: let no time-out pass any more."""
        self._closed = True
