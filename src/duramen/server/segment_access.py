"""The leases this broker gave to readers of sealed segments, by id. They are soft: a restart forgets them."""

from __future__ import annotations

from collections.abc import Iterable

from duramen.config import BrokerConfig
from duramen.ports import World
from duramen.storage.leases import Lease
from duramen.storage.log import Log

MOST_LEASES = 10_000
"""Requests that may hold a lease at a time; a reader beyond them goes without."""
_POSITIVE = (1 << 63) - 1


class SegmentAccess:
    """Grants, extends and ends leases over many logs at once.

    working_directory: what relative paths of log directories are relative to; "" where nobody reads files directly.
    """

    def __init__(self, world: World, config: BrokerConfig) -> None:
        self.working_directory = ""
        self._world = world
        self._max_ms = config.integer("duramen.segment.lease.ms.max")
        self._max_bytes = config.integer("duramen.segment.lease.bytes.max")
        self._held: dict[int, list[Lease]] = {}

    def grant(self, wanted: Iterable[tuple[Log, int]], lease_ms: int) -> tuple[int, int]:
        """Keep each log from its offset on: (lease id, ms it is granted for), (-1, 0) when there is none to be had."""
        granted = min(lease_ms, self._max_ms)
        if granted <= 0 or not self._room():
            return -1, 0
        until = self._world.clock.wall_ms() + granted
        lease_id = int.from_bytes(self._world.entropy.random_bytes(8), "big") & _POSITIVE
        self._held[lease_id] = [log.lease(offset, until, self._max_bytes) for log, offset in wanted]
        return lease_id, granted

    def extend(self, lease_id: int, lease_ms: int) -> int | None:
        """Milliseconds for which it holds from now on; None when it does not hold everything any more.

        lease_ms 0 ends it.
        """
        leases = self._held.get(lease_id)
        if leases is None:
            return None
        now = self._world.clock.wall_ms()
        granted = min(lease_ms, self._max_ms)
        if granted <= 0 or not all(lease.is_held(now) for lease in leases):
            self._end(lease_id)
            return 0 if lease_ms <= 0 else None
        for lease in leases:
            lease.expires_ms = now + granted
        return granted

    @property
    def count(self) -> int:
        """Leases that are known, those that ran out included until room is needed."""
        return len(self._held)

    def _end(self, lease_id: int) -> None:
        for lease in self._held.pop(lease_id, ()):
            lease.release()

    def _room(self) -> bool:
        """Whether one more lease can be kept; forgets those that ran out."""
        if len(self._held) >= MOST_LEASES:
            now = self._world.clock.wall_ms()
            over = [each for each, leases in self._held.items() if not any(lease.is_held(now) for lease in leases)]
            for lease_id in over:
                self._end(lease_id)
        return len(self._held) < MOST_LEASES
