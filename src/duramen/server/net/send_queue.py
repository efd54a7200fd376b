"""Replies of one connection on their way out: what the socket takes now, the rest when it is writable or due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from duramen.ports import FileSpan, Part, Transport
from duramen.server.net.loop import after_others
from duramen.server.net.reply_memory import UnreadReplies, memory_of
from duramen.wire.frame import part_size

SLOW_PIECE_BYTES = 64 * 1024
"""What a connection that is held back sends at a time."""

PACED_PIECE_BYTES = 128 * 1024
"""The same where the system keeps the pace: what a turn of the loop hands over to it."""

SLOW_CREDIT_SECONDS = 0.01
"""How far behind the clock it may be: what came too late by the timers' inaccuracy is made up for."""


class SendContext(Protocol):
    """What the send queues of one loop share: the memory of unread replies, a count of bytes, and the clock."""

    unread: UnreadReplies
    bytes_out: int

    @property
    def monotonic(self) -> Callable[[], float]: ...

    @property
    def call_soon(self) -> Callable[[Callable[[], None]], None]: ...

    @property
    def call_last(self) -> Callable[[Callable[[], None]], None]: ...

    @property
    def call_later(self) -> Callable[[float, Callable[[], None]], object]: ...


class Outbox:
    """parts: what is to be sent, in order; size: its bytes. waits: `go_on` will be called when more can be sent.

    early: bytes of complete replies whose turn it is not yet. unread_since: since when memory waits here, if it does.
    """

    __slots__ = (
        "_context",
        "_due",
        "_go_on",
        "_held_bytes",
        "_paced",
        "_rate",
        "_transport",
        "_weighed",
        "early",
        "parts",
        "size",
        "unread_since",
        "waits",
    )

    def __init__(self, transport: Transport, context: SendContext, go_on: Callable[[], None]) -> None:
        self._transport = transport
        self._context = context
        self._go_on = go_on
        self._rate = 0.0
        self._paced = False
        """The system keeps the pace, the last one that it was told."""
        self._due = 0.0
        self.parts: list[Part] = []
        self.size = 0
        self.waits = False
        self._weighed = 0
        """So many of the parts are in `_held_bytes` already."""
        self._held_bytes = 0
        self.early = 0
        self.unread_since: float | None = None

    def move(self, context: SendContext) -> None:
        """Share with others from now on: what waits here counts there."""
        before, self._context = self._context, context
        if self._held_bytes:
            before.unread.give(self._held_bytes)
            context.unread.take(self._held_bytes)

    def send(self) -> None:
        """Send what the socket takes. OSError: the connection is gone."""
        rate = self._rate
        if rate:
            sent = self._transport.send(first_bytes(self.parts, PACED_PIECE_BYTES if self._paced else SLOW_PIECE_BYTES))
        else:
            if self._paced:
                self._paced = not self._transport.pace(0)
            sent = self._transport.send(self.parts)
        self._context.bytes_out += sent
        self.size -= sent
        if self.size == 0:
            if self._weighed:
                self._let_go(memory_of(self.parts[: self._weighed]))
                self._weighed = 0
            self.parts.clear()
            self._rate = 0.0
            if self.waits:
                self.waits = False
                self._transport.set_writer(None)
            return
        gone = drop_sent(self.parts, sent)
        self._let_go(memory_of(gone[: self._weighed]))
        self._weighed = max(0, self._weighed - len(gone))
        self.weigh()
        if rate and sent and not self._paced:
            self._wait_until_due(sent)
        elif not self.waits:
            self.waits = True
            self._transport.set_writer(self._go_on_last if self._paced else self._go_on)

    def slow_down(self, bytes_per_second: float) -> None:
        """Until everything is sent: small pieces, at this rate, so that others hardly feel them; 0: as ever."""
        self._rate = bytes_per_second
        if bytes_per_second:
            self._paced = self._transport.pace(int(bytes_per_second))

    def _go_on_last(self) -> None:
        after_others(self._context, self._go_on)

    def _wait_until_due(self, sent: int) -> None:
        now = self._context.monotonic()
        self._due = max(self._due, now - SLOW_CREDIT_SECONDS) + sent / self._rate
        if self.waits:
            self._transport.set_writer(None)
        self.waits = True
        self._context.call_later(max(self._due - now, 0.0), self._is_due)

    def _is_due(self) -> None:
        after_others(self._context, self._take_turn)

    def _take_turn(self) -> None:
        self.waits = False
        self._go_on()

    def clear(self) -> None:
        """Nothing of it will be sent, nor what was set aside."""
        self.parts.clear()
        self.size = self.early = self._weighed = 0
        self._let_go(self._held_bytes)

    # ---- what waits is counted -------------------------------------------------------------------------------

    def set_aside(self, reply: Sequence[Part]) -> None:
        """A complete reply that has to wait for one before it."""
        self.early += sum(map(part_size, reply))
        self._hold(memory_of(reply))

    def take_back(self, reply: Sequence[Part]) -> None:
        """Its turn has come."""
        self.early -= sum(map(part_size, reply))
        self._let_go(memory_of(reply))

    def weigh(self) -> None:
        """The parts have to wait: count those that are not counted yet."""
        self._hold(memory_of(self.parts[self._weighed :]))
        self._weighed = len(self.parts)

    def _hold(self, size: int) -> None:
        if size:
            if not self._held_bytes:
                self.unread_since = self._context.monotonic()
            self._held_bytes += size
            self._context.unread.take(size)

    def _let_go(self, size: int) -> None:
        if size:
            self._held_bytes -= size
            if not self._held_bytes:
                self.unread_since = None
            self._context.unread.give(size)


def first_bytes(parts: list[Part], most: int) -> list[Part]:
    """The parts, or their first `most` bytes."""
    taken: list[Part] = []
    for part in parts:
        length = part_size(part)
        if length > most and isinstance(part, FileSpan):
            taken.append(FileSpan(part.file, part.position, most))
        else:
            taken.append(part if length <= most else memoryview(part)[:most])  # type: ignore[arg-type]
        most -= length
        if most <= 0:
            break
    return taken


def drop_sent(parts: list[Part], sent: int) -> list[Part]:
    """Take the first `sent` bytes, fewer than there are, from the front of `parts`; which of them are gone."""
    index = 0
    for index, part in enumerate(parts):
        length = part_size(part)
        if sent < length:
            if sent and isinstance(part, FileSpan):
                parts[index] = FileSpan(part.file, part.position + sent, length - sent)
            elif sent:
                parts[index] = memoryview(part)[sent:]  # type: ignore[arg-type]
            break
        sent -= length
    gone = parts[:index]
    del parts[:index]
    return gone
