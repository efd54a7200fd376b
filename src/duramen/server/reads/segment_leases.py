"""The leases this broker gave to readers of sealed segments, by id. They are soft: a restart forgets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from duramen.config import BrokerConfig
from duramen.ports import Timer, World
from duramen.storage import NEVER_EXPIRES, Lease, Log

MOST_LEASES = 10_000
"""Requests that may hold a lease at a time; a reader beyond them goes without."""
_POSITIVE = (1 << 63) - 1


@dataclass(slots=True)
class _Held:
    """The leases of one request. until: by the clock that is never set (seconds)."""

    leases: list[Lease]
    until: float
    timer: Timer

    def is_whole(self, now: float) -> bool:
        return now < self.until and all(lease.is_held(0) for lease in self.leases)


class SegmentAccess:
    """Grants, extends and ends leases over many logs at once.

    They end by a timer here: whoever sets the wall clock neither ends one early nor makes it last.

    working_directory: what relative paths of log directories are relative to; "" where nobody reads files directly.
    """

    def __init__(self, world: World, config: BrokerConfig) -> None:
        self.working_directory = ""
        self._world = world
        self._max_ms = config.integer("duramen.segment.lease.ms.max")
        self._max_bytes = config.integer("duramen.segment.lease.bytes.max")
        self._held: dict[int, _Held] = {}

    def lease(self, log: Log, offset: int) -> Lease:
        """Keep the log from an offset on, until `grant` has taken it up, or whoever has it releases it."""
        return log.lease(offset, NEVER_EXPIRES, self._max_bytes)

    def grant(self, leases: Sequence[Lease], lease_ms: int) -> tuple[int, int]:
        """Take them up: (lease id, ms they are granted for); (-1, 0) when none is to be had, and they are over."""
        granted = min(lease_ms, self._max_ms)
        if granted <= 0 or not leases or not self._room():
            for lease in leases:
                lease.release()
            return -1, 0
        lease_id = int.from_bytes(self._world.entropy.random_bytes(8), "big") & _POSITIVE
        self._held[lease_id] = _Held(list(leases), *self._timed(lease_id, granted))
        return lease_id, granted

    def extend(self, lease_id: int, lease_ms: int) -> int | None:
        """Milliseconds for which it holds from now on; None when it does not hold everything any more.

        lease_ms 0 ends it.
        """
        held = self._held.get(lease_id)
        if held is None:
            return None
        granted = min(lease_ms, self._max_ms)
        if granted <= 0 or not held.is_whole(self._world.clock.monotonic()):
            self._end(lease_id)
            return 0 if lease_ms <= 0 else None
        held.timer.cancel()
        held.until, held.timer = self._timed(lease_id, granted)
        return granted

    @property
    def count(self) -> int:
        """Leases that are known, those included that were broken."""
        return len(self._held)

    def _timed(self, lease_id: int, granted_ms: int) -> tuple[float, Timer]:
        """When it is over, and what ends it then."""
        clock, seconds = self._world.clock, granted_ms / 1000
        return clock.monotonic() + seconds, clock.call_later(seconds, partial(self._end, lease_id))

    def _end(self, lease_id: int) -> None:
        held = self._held.pop(lease_id)
        held.timer.cancel()
        for lease in held.leases:
            lease.release()

    def _room(self) -> bool:
        """Whether one more lease can be kept; forgets those that were broken."""
        if len(self._held) >= MOST_LEASES:
            now = self._world.clock.monotonic()
            for lease_id in [lease_id for lease_id, held in self._held.items() if not held.is_whole(now)]:
                self._end(lease_id)
        return len(self._held) < MOST_LEASES
