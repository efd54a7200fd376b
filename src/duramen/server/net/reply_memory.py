"""Memory in replies that their clients have not taken yet: bounded over all connections.

Most replies leave at once and are never counted. Counted is what the socket did not take, what waits for a reply before
it, and what is being read from the disk for a reply. Spans of files are no memory, wherever they wait.

The closer the bound, and the more wait, the less old data a reply brings. At the bound *memory is short*, until half of
it is free: a connection gets one reply at a time (as Kafka's do), reads of old data wait for room, and who leaves one
unread for long is ended by the acceptor. Who asks for nothing old does not feel it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from duramen.ports import FileSpan, Part

CAP_BYTES = 256 * 1024 * 1024
"""Of all connections together."""

MOST_UNSENT_BYTES = 8 * 1024 * 1024
"""Replies one client has not read, beyond which its requests are not read either (Kafka: one reply); those count, too,
that wait for the reply before them."""

SHARES = 16
"""Into so many the room that is left is divided, and one for each who waits: a few who never read do not use it up."""

PART_BYTES = 64
"""What a piece of a reply costs beside its content."""


class UnreadReplies:
    """on_short: memory has become short. on_room: while it is, and when it is no longer, there is room again."""

    __slots__ = (
        "_monotonic",
        "_most_unsent",
        "cap_bytes",
        "held_bytes",
        "most_unsent_bytes",
        "on_room",
        "on_short",
        "short_since",
    )

    def __init__(self, monotonic: Callable[[], float], cap_bytes: int = CAP_BYTES) -> None:
        self._monotonic = monotonic
        self.cap_bytes = cap_bytes
        self.held_bytes = 0
        self._most_unsent = self.most_unsent_bytes = MOST_UNSENT_BYTES
        """What one connection may leave unread, spans of files included, before it is not read from."""
        self.short_since: float | None = None
        """Since when memory is short, if it is."""
        self.on_short: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None

    def bound(self, cap_bytes: int) -> None:
        """Hold no more than this, of one connection no more than a share of it."""
        self.cap_bytes = cap_bytes
        self._most_unsent = self.most_unsent_bytes = min(MOST_UNSENT_BYTES, cap_bytes // 4)

    @property
    def has_room(self) -> bool:
        """Whether another reply may be read from the disk."""
        return self.held_bytes < self.cap_bytes

    def share(self, waiting: int) -> int:
        """How many bytes it should bring at most, if so many others wait for their turn."""
        return max(self.cap_bytes - self.held_bytes, 0) // (SHARES + waiting)

    def take(self, size: int) -> None:
        """So many bytes more are held."""
        self.held_bytes += size
        if self.short_since is None and not self.has_room:
            self.short_since = self._monotonic()
            self.most_unsent_bytes = 0
            self.on_short()

    def give(self, size: int) -> None:
        """So many are no longer."""
        self.held_bytes -= size
        if self.short_since is not None and self.has_room:
            if self.held_bytes <= self.cap_bytes // 2:
                self.short_since = None
                self.most_unsent_bytes = self._most_unsent
            self.on_room()


def memory_of(parts: Iterable[Part]) -> int:
    """Bytes that these parts keep in memory: a view keeps all that it looks into."""
    total = 0
    for part in parts:
        if type(part) is not FileSpan:
            total += PART_BYTES + len(part.obj if type(part) is memoryview else part)  # type: ignore[arg-type]
    return total
