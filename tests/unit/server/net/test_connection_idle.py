"""Who is idle: a client that takes nothing, and not one that takes its time."""

from __future__ import annotations

from tests.worlds.broker_world import InProcess, SlowLine

PIECE_BYTES = 50_000


def _asked(server: InProcess) -> SlowLine:
    producer = server.connect()
    producer.create_topic("events")
    for _ in range(10):
        producer.produce("events", bytes(100_000))
    line = server.connect_slowly(PIECE_BYTES)
    line.ask_fetch("events", 0, most=1 << 20)
    server.run()
    return line


def test_a_reply_that_is_taken_slowly_is_not_cut_off() -> None:
    server = InProcess(connections_max_idle_ms="2000")
    line = _asked(server)
    for _ in range(19):
        assert line.writer is not None, "this reply has gone at once"
        server.pass_ms(1000)
        line.read(PIECE_BYTES)
        assert not line.closed


def test_a_reply_that_nobody_takes_ends_its_connection() -> None:
    server = InProcess(connections_max_idle_ms="2000")
    line = _asked(server)
    server.pass_ms(3000)
    assert not line.closed
    server.pass_ms(7000)
    assert line.closed
