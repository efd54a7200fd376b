"""Who is still reading what: claims that keep segments from being deleted or replaced, bounded in time."""

from __future__ import annotations


class Lease:
    """A claim on everything from `from_offset` on, until `release` or `expires_ms` (wall clock)."""

    __slots__ = ("_leases", "expires_ms", "from_offset")

    def __init__(self, leases: Leases, from_offset: int, expires_ms: int) -> None:
        self._leases: Leases | None = leases
        self.from_offset = from_offset
        self.expires_ms = expires_ms

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

    def grant(self, from_offset: int, expires_ms: int) -> Lease:
        lease = Lease(self, from_offset, expires_ms)
        self._held.append(lease)
        return lease

    def drop(self, lease: Lease) -> None:
        self._held = [held for held in self._held if held is not lease]

    def lowest(self, now_ms: int) -> int | None:
        """Lowest offset claimed; None without claims. Those that ran out are dropped."""
        if not self._held:
            return None
        self._held = [held for held in self._held if held.expires_ms > now_ms]
        return min((held.from_offset for held in self._held), default=None)
