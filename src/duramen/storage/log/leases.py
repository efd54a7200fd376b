"""Leases on a log: claims that keep segments from being deleted or replaced, bounded in time and bytes."""

from __future__ import annotations

from collections.abc import Callable

UNBOUNDED = 1 << 62
NEVER_EXPIRES = 1 << 62
"""Expires at a time that no clock is set to: whoever has the lease ends it."""


class Lease:
    """A claim on everything from `from_offset` on, until `release` or `expires_ms` (wall clock).

    max_bytes: of segments that would have been deleted but for this claim; one that holds back more is broken.
    """

    __slots__ = ("_leases", "expires_ms", "from_offset", "max_bytes")

    def __init__(self, leases: Leases, from_offset: int, expires_ms: int, max_bytes: int) -> None:
        self._leases: Leases | None = leases
        self.from_offset = from_offset
        self.expires_ms = expires_ms
        self.max_bytes = max_bytes

    def is_held(self, now_ms: int) -> bool:
        """Whether the claim still stands: not released, not broken, not run out."""
        return self._leases is not None and self.expires_ms > now_ms

    def release(self) -> None:
        """Give the claim up; again has no effect."""
        if self._leases is not None:
            self._leases.drop(self)
            self._leases = None


class Leases:
    """The claims on one log."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[Lease] = []

    def grant(self, from_offset: int, expires_ms: int, max_bytes: int = UNBOUNDED) -> Lease:
        lease = Lease(self, from_offset, expires_ms, max_bytes)
        self._held.append(lease)
        return lease

    def drop(self, lease: Lease) -> None:
        self._held = [held for held in self._held if held is not lease]

    def lowest(self, now_ms: int) -> int | None:
        """Lowest offset claimed; None without claims. Those that ran out are dropped."""
        if not self._held:
            return None
        for lease in [held for held in self._held if held.expires_ms <= now_ms]:
            lease.release()
        return min((held.from_offset for held in self._held), default=None)

    def break_greedy(self, bytes_from: Callable[[int], int]) -> None:
        """Break the claims that hold back more than they may. bytes_from: what could go from an offset on."""
        for lease in [held for held in self._held if bytes_from(held.from_offset) > held.max_bytes]:
            lease.release()
