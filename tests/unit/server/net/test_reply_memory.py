"""Replies that their clients do not read, over all connections: bounded memory, and nobody else waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest
from tests.unit.server.net.test_connection import Server, Wire, frames, payload
from tests.worlds.broker_world import InProcess, SlowLine

from duramen.ports import Part
from duramen.server.api.acceptor import UNREAD_CHECK_SECONDS, UNREAD_SECONDS
from duramen.server.net.connection import ClientConnection
from duramen.server.net.reply_memory import memory_of
from duramen.server.reads.cold_read_scheduler import LANES, ColdReads
from duramen.storage.files.read_buffers import BUFFER_BYTES

CAP = 8 << 20
BATCHES = 8
BATCH = [b"x" * 25_000] * 36
BATCH_BYTES = 900_000
CROWD = 60
OVER = len(LANES) * BUFFER_BYTES
"""A batch comes whole, however little room there was for it."""
SHED_MS = round(1000 * (UNREAD_SECONDS + UNREAD_CHECK_SECONDS)) + 100


def connect(server: InProcess) -> SlowLine:
    return server.connect_slowly(100)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    """A node with megabytes of which nothing is in memory any more, a topic beside them, and a bound of CAP bytes.

    Somebody else is served all the time: what is read leaves from buffers and not from the page cache.
    """
    monkeypatch.setattr(ColdReads, "is_alone", lambda self, reader: False)
    world = InProcess(duramen_cold_read_bytes_per_second="0")
    line = world.connect()
    line.create_topic("old", segment_bytes="1048576")
    line.create_topic("new")
    for _ in range(BATCHES):
        assert line.produce("old", *BATCH).error_code == 0
    world.pass_ms(70_000)  # a checkpoint
    world.forget_cache()
    world.broker.acceptor.receiver.unread.cap_bytes = CAP
    yield world
    for connection in list(world.broker.acceptor.connections):
        connection.close("the end")
    world.pass_ms(60_000)
    assert world.broker.acceptor.receiver.unread.held_bytes == 0, (
        "whatever happened: all that was counted was given back"
    )
    assert world.broker.acceptor.receiver.unread.short_since is None


def held(server: InProcess) -> int:
    """Memory in replies, counted afresh."""
    total = 0
    for connection in server.broker.acceptor.connections:
        total += memory_of(connection.outbox.parts)
        total += sum(memory_of(request.parts or ()) for request in connection.pending)
    return total


def crowd_of(server: InProcess) -> list[SlowLine]:
    crowd = [connect(server) for _ in range(CROWD)]
    for number, line in enumerate(crowd):
        for turn in range(3):
            line.ask_fetch("old", (number + turn) % BATCHES * len(BATCH))
    return crowd


def closed(server: InProcess) -> int:
    return sum("unread" in str(fields.get("reason")) for event, fields in server.events if event == "connection-closed")


def test_a_crowd_that_reads_nothing_holds_no_more_than_the_bound(server: InProcess) -> None:
    crowd_of(server)
    server.run()
    server.pass_ms(5000)
    assert CAP - BUFFER_BYTES < held(server) < CAP + OVER
    assert held(server) == server.broker.acceptor.receiver.unread.held_bytes
    assert len(server.broker.cold_reads) > 0, "the others wait"
    server.pass_ms(120_000)
    assert held(server) < CAP + OVER


def test_meanwhile_producers_and_readers_of_new_records_feel_nothing(server: InProcess) -> None:
    crowd_of(server)
    server.run()
    line = server.connect()
    for number in range(3):
        assert line.produce("new", b"x").base_offset == number
        assert len(line.fetch("new", number).records) > 0
        line.ask_fetch("new", number + 1, wait=500)
        server.pass_ms(500)
        assert line.fetched().error_code == 0


def test_a_reader_of_old_records_gets_on_beside_the_crowd(server: InProcess) -> None:
    crowd_of(server)
    server.run()
    server.pass_ms(5000)
    line = server.connect()
    offset = 0
    rounds = 0
    for _ in range(BATCHES):
        line.ask_fetch("old", offset)
        server.run()
        while (entry := line.fetched()) is None:
            server.pass_ms(SHED_MS)
            rounds += 1
            assert rounds <= CROWD * BATCH_BYTES // CAP + 1, "each time so many are ended as there is room for"
        assert entry.error_code == 0
        offset += len(BATCH)
        assert len(entry.records) > BATCH_BYTES
    assert closed(server) > 0


def test_only_who_reads_nothing_is_ended_and_only_while_memory_is_short(server: InProcess) -> None:
    few = [connect(server) for _ in range(3)]
    for line in few:
        line.ask_fetch("old", 0)
    server.run()
    server.pass_ms(120_000)
    assert closed(server) == 0, "there is room for all"
    crowd = crowd_of(server)
    server.run()
    server.pass_ms(5000)
    assert server.broker.acceptor.receiver.unread.short_since is not None
    for line in few:
        line.read()
        assert len(line.fetched().records) > BATCH_BYTES
    server.pass_ms(SHED_MS - 5000)
    assert closed(server) > 0
    assert not any(line.closed for line in few)
    late = [line for line in crowd if not line.closed]
    answers = 0
    for _ in range(20):
        for line in late:
            line.read()
            while (entry := line.fetched()) is not None:
                assert entry.error_code == 0
                answers += 1
        server.pass_ms(500)
    assert answers == 3 * len(late), "who reads after all gets every reply"
    assert len(server.broker.cold_reads) == 0


def test_at_the_bound_a_connection_gets_one_reply_at_a_time(server: InProcess) -> None:
    crowd_of(server)
    server.run()
    line = connect(server)
    line.room = 0
    for _ in range(50):
        line.ask(3, 12, topics=[])
    server.run()
    connection = next(each for each in server.broker.acceptor.connections if each.transport is line)
    assert "backlog" in connection.muted
    count = 0
    for _ in range(60):
        line.read()
        while line.answer(3, 12) is not None:
            count += 1
        server.run()
    assert count == 50


def test_replies_behind_a_long_poll_count(server: InProcess) -> None:
    """One connection may hold them for as long as it said it would wait: they are nobody's but memory."""
    for _ in range(CROWD):
        line = server.connect()
        line.ask_fetch("new", 0, wait=60_000)
        line.ask_fetch("old", 0)
    server.run()
    server.pass_ms(5000)
    assert CAP - BUFFER_BYTES < held(server) < CAP + OVER
    assert held(server) == server.broker.acceptor.receiver.unread.held_bytes


def test_records_that_the_machine_dropped_wait_for_room_like_old_ones(server: InProcess) -> None:
    crowd_of(server)
    server.run()
    waiting = len(server.broker.cold_reads)
    line = server.connect()
    results: list[str] = []
    connection = next(each for each in server.broker.acceptor.connections if each.transport is line)
    server.broker.cold_reads.submit(
        connection,
        lambda most: min(most, 1000),
        lambda: None,
        lambda result, error: results.append("read"),
        recent=True,
    )
    server.run()
    assert results == []
    assert len(server.broker.cold_reads) == waiting + 1
    server.pass_ms((CROWD * BATCH_BYTES // CAP + 1) * SHED_MS)
    assert results == ["read"]


def test_a_short_reply_does_not_keep_a_large_buffer(server: InProcess) -> None:
    """A read takes a buffer for a mebibyte."""
    line = server.connect()
    line.create_topic("short")
    for _ in range(10):
        assert line.produce("short", b"x" * 20_000).error_code == 0
    server.forget_cache()
    slow = connect(server)
    slow.ask_fetch("short", 0, most=100_000)
    server.run()
    assert 80_000 < held(server) < 110_000


# ---- one connection, anything at all -----------------------------------------------------------------------------


class Tap(Wire):
    """A wire that takes a few bytes now and then."""

    def send(self, parts: Sequence[Part]) -> int:
        if self.takes <= 0:
            return 0
        return super().send(parts)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_held_is_what_waits_whatever_happens(seed: int) -> None:
    chance = Random(seed)
    server = Server()
    unread = server.receiver.unread
    unread.cap_bytes = 40_000
    wires: list[tuple[Tap, ClientConnection]] = []
    for _ in range(3):
        wire = Tap()
        wire.takes = 0
        wires.append((wire, ClientConnection(server.receiver, wire, "PLAINTEXT", "User:ANONYMOUS")))
    shorts = 0
    for _ in range(300):
        wire, connection = chance.choice(wires)
        match chance.randrange(10):
            case 0 | 1 | 2:
                if not connection.closed:
                    server.deliver(wire, frames(payload(1), payload(2)))
            case 3 | 4 | 5 | 6:
                asked = [each for each in server.asked if each.parts is None]
                if asked:
                    size = chance.choice((1, 50, 3000))
                    chance.choice(asked).answer(b"a" * size, bytes(memoryview(b"b" * 2 * size)[size:]))
            case 7 | 8:
                wire.takes = chance.choice((0, 10, 2000, 1 << 30))
                if wire.writer is not None:
                    wire.writer()
            case _:
                if chance.random() < 0.05:
                    connection.close("test")
        server.now += 1
        server.run()
        expected = 0
        for _, each in wires:
            early = [request for request in list(each.pending)[1:] if request.parts is not None]
            expected += memory_of(each.outbox.parts) + sum(memory_of(request.parts or ()) for request in early)
            assert (each.outbox.unread_since is None) == (each.outbox._held_bytes == 0)
        assert unread.held_bytes == expected
        assert (unread.most_unsent_bytes == 0) == (unread.short_since is not None)
        shorts += unread.short_since is not None
    for _, connection in wires:
        connection.close("test")
    assert unread.held_bytes == 0
    assert shorts or seed
