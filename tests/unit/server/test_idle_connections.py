"""Who is idle: a client that takes nothing, and not one that takes its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.unit.server.broker_world import InProcess, Line

from duramen.ports import Part
from duramen.server.outbox import first_bytes

PIECE_BYTES = 50_000


class SlowLine(Line):
    """Takes PIECE_BYTES of a reply whenever it is let."""

    def __init__(self, server: InProcess) -> None:
        super().__init__(server)
        self.writer: Callable[[], None] | None = None
        self.room = PIECE_BYTES

    def send(self, parts: Sequence[Part]) -> int:
        sent = super().send(first_bytes(list(parts), self.room)) if self.room else 0
        self.room -= sent
        return sent

    def set_writer(self, callback: Callable[[], None] | None) -> None:
        self.writer = callback

    def take(self) -> None:
        self.room = PIECE_BYTES
        if self.writer is not None:
            self.writer()


def _asked(server: InProcess) -> SlowLine:
    producer = server.connect()
    producer.create_topic("events")
    for _ in range(10):
        producer.produce("events", bytes(100_000))
    line = SlowLine(server)
    server.lines.append(line)
    accept: Any = server._accept
    accept(line)
    line.ask_fetch("events", 0, most=1 << 20)
    server.run()
    return line


def test_a_reply_that_is_taken_slowly_is_not_cut_off() -> None:
    server = InProcess(connections_max_idle_ms="2000")
    line = _asked(server)
    for _ in range(19):
        assert line.writer is not None, "this reply has gone at once"
        server.pass_ms(1000)
        line.take()
        assert not line.closed


def test_a_reply_that_nobody_takes_ends_its_connection() -> None:
    server = InProcess(connections_max_idle_ms="2000")
    line = _asked(server)
    server.pass_ms(3000)
    assert not line.closed
    server.pass_ms(7000)
    assert line.closed
