"""Replies of one connection on their way out: what the socket takes now, the rest when it is writable or due."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duramen.ports import FileSpan, Part, Transport
from duramen.wire.frame import part_size

if TYPE_CHECKING:
    from duramen.server.network import Receiver

SLOW_PIECE_BYTES = 64 * 1024
"""What a connection that is held back sends at a time."""

SLOW_CREDIT_SECONDS = 0.01
"""How far behind the clock it may be: what came too late by the timers' inaccuracy is made up for."""


class Outbox:
    """parts: what is to be sent, in order; size: its bytes. waits: `go_on` will be called when more can be sent."""

    __slots__ = ("_due", "_go_on", "_rate", "_receiver", "_transport", "parts", "size", "waits")

    def __init__(self, transport: Transport, receiver: Receiver, go_on: Callable[[], None]) -> None:
        self._transport = transport
        self._receiver = receiver
        self._go_on = go_on
        self._rate = 0.0
        self._due = 0.0
        self.parts: list[Part] = []
        self.size = 0
        self.waits = False

    def send(self) -> None:
        """Send what the socket takes. OSError: the connection is gone."""
        rate = self._rate
        sent = self._transport.send(first_bytes(self.parts, SLOW_PIECE_BYTES) if rate else self.parts)
        self._receiver.bytes_out += sent
        self.size -= sent
        if self.size == 0:
            self.parts.clear()
            self._rate = 0.0
            if self.waits:
                self.waits = False
                self._transport.set_writer(None)
            return
        drop_sent(self.parts, sent)
        if rate and sent:
            self._wait_until_due(sent)
        elif not self.waits:
            self.waits = True
            self._transport.set_writer(self._go_on)

    def slow_down(self, bytes_per_second: float) -> None:
        """Until everything is sent: small pieces, at this rate, so that others hardly feel them; 0: as ever."""
        self._rate = bytes_per_second

    def _wait_until_due(self, sent: int) -> None:
        now = self._receiver.monotonic()
        self._due = max(self._due, now - SLOW_CREDIT_SECONDS) + sent / self._rate
        if self.waits:
            self._transport.set_writer(None)
        self.waits = True
        self._receiver.call_later(max(self._due - now, 0.0), self._is_due)

    def _is_due(self) -> None:
        self.waits = False
        self._go_on()

    def clear(self) -> None:
        """Nothing of it will be sent."""
        self.parts.clear()
        self.size = 0


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


def drop_sent(parts: list[Part], sent: int) -> None:
    """Take the first `sent` bytes, fewer than there are, from the front of `parts`."""
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
    del parts[:index]
