"""Connections without sockets: what is kept, what is paused, and in which order replies leave."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from duramen.ports import Part
from duramen.server.net.connection import (
    KEPT_BY_REFERENCE_BYTES,
    MAX_PENDING_REQUESTS,
    SCRATCH_BYTES,
    ClientConnection,
    ReceiveContext,
)
from duramen.server.net.listener_type import ListenerType
from duramen.server.net.receive_buffers import BufferPool
from duramen.server.net.reply_memory import MOST_UNSENT_BYTES
from duramen.server.net.send_queue import PACED_PIECE_BYTES, SLOW_PIECE_BYTES


class Wire:
    """A transport whose peer is the test."""

    def __init__(self) -> None:
        self.peer = "127.0.0.1:1"
        self.arrived: list[bytes] = []
        self.sent = bytearray()
        self.sends = 0
        self.takes = 1 << 60
        self.rooms: list[int] = []
        self.reader: Callable[[], None] | None = None
        self.writer: Callable[[], None] | None = None
        self.closed = False
        self.paces: list[int] | None = None
        """What it was told, where its system can keep a pace."""

    def recv_into(self, view: memoryview) -> int:
        if not self.arrived:
            return -1
        self.rooms.append(len(view))
        data = self.arrived[0][: len(view)]
        view[: len(data)] = data
        rest = self.arrived[0][len(data) :]
        self.arrived[:1] = [rest] if rest else []
        return len(data)

    def send(self, parts: Sequence[Part]) -> int:
        self.sends += 1
        data = b"".join(bytes(part) for part in parts)[: self.takes]  # type: ignore[arg-type]
        self.takes -= len(data)
        self.sent += data
        return len(data)

    def pace(self, bytes_per_second: int) -> bool:
        if self.paces is None:
            return False
        self.paces.append(bytes_per_second)
        return True

    def set_reader(self, callback: Callable[[], None] | None) -> None:
        self.reader = callback

    def set_writer(self, callback: Callable[[], None] | None) -> None:
        self.writer = callback

    def close(self) -> None:
        self.closed = True


class Asked:
    """Stands for a Request: the connection needs its `parts` only."""

    def __init__(self, connection: ClientConnection, view: memoryview) -> None:
        self.connection = connection
        self.view = view
        self.size = len(view)
        self.number = struct.unpack_from(">i", view)[0] if self.size >= 4 else -1
        self.parts: tuple[bytes, ...] | None = None

    def answer(self, *parts: bytes) -> None:
        self.parts = parts
        self.connection.ready(self)


class Server:
    """A receiver whose frames land in `asked`; `auto` answers each at once."""

    def __init__(self, auto: Callable[[Asked], None] | None = None, cap: int = 1 << 30) -> None:
        self.asked: list[Asked] = []
        self.auto = auto
        self.closed: list[str] = []
        self.agenda: list[Callable[[], None]] = []
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.pool = BufferPool(cap)
        self.receiver = ReceiveContext(
            ListenerType.BROKER,
            self.pool,
            100 << 20,
            self.on_frame,
            lambda connection, reason: self.closed.append(reason),
            lambda: self.now,
            self.agenda.append,
            self.agenda.append,
            lambda seconds, callback: self.timers.append((self.now + seconds, callback)),
        )

    def on_frame(self, connection: ClientConnection, view: memoryview) -> None:
        request: Any = Asked(connection, view)
        self.asked.append(request)
        connection.expect(request)
        if self.auto is not None:
            self.auto(request)

    def connect(self) -> tuple[Wire, ClientConnection]:
        wire = Wire()
        return wire, ClientConnection(self.receiver, wire, "PLAINTEXT", "User:ANONYMOUS")

    def pass_to(self, now: float) -> None:
        """Time goes by."""
        while self.timers and min(due for due, _ in self.timers) <= now:
            timer = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
            self.run()
        self.now = now

    def deliver(self, wire: Wire, data: bytes) -> None:
        wire.arrived.append(data)
        while wire.arrived and wire.reader is not None and not wire.closed:
            wire.reader()

    def run(self) -> None:
        while self.agenda:
            self.agenda.pop(0)()


def frames(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


def payload(number: int, size: int = 100) -> bytes:
    return struct.pack(">i", number) * (size // 4)


def test_a_large_frame_stays_as_it_was_though_garbage_followed_it() -> None:
    """Its bytes may be on their way to the disk: nobody may receive into the same buffer."""
    for garbage in (struct.pack(">i", -1), frames(b"bad")):
        server = Server(lambda asked: asked.connection.close("bad") if len(asked.view) < 10 else None)
        wire, connection = server.connect()
        big = payload(7, KEPT_BY_REFERENCE_BYTES + 4)
        server.deliver(wire, frames(big) + garbage)
        assert connection.closed
        other, _ = server.connect()
        server.deliver(other, frames(payload(9, SCRATCH_BYTES - 100)))
        assert bytes(server.asked[0].view) == big


def test_requests_behind_a_pause_wait_and_keep_their_order() -> None:
    server = Server()
    wire, _connection = server.connect()
    count = 3 * MAX_PENDING_REQUESTS
    server.deliver(wire, frames(*(payload(number) for number in range(count))))
    assert len(server.asked) == MAX_PENDING_REQUESTS
    assert wire.reader is None
    answered = 0
    while answered < count:
        for asked in server.asked[answered:]:
            asked.answer(bytes(asked.view[:4]))
            answered += 1
        server.run()
    assert wire.sent == b"".join(struct.pack(">i", number) for number in range(count))
    assert wire.reader is not None


def test_who_sends_expensive_requests_together_lets_others_have_their_turn() -> None:
    """A small request may ask for much: 250 of them, sent at once, were one turn of the loop."""

    def answer(asked: Asked) -> None:
        server.now += 0.009  # what it took
        asked.answer(bytes(asked.view[:4]))

    server = Server(answer)
    wire, connection = server.connect()
    wire.arrived.append(frames(*(payload(number) for number in range(10))) + frames(payload(10))[:50])
    turns = []
    while len(server.asked) < 10:
        before = len(server.asked)
        if server.agenda:
            server.agenda.pop(0)()
        elif wire.reader is not None:
            wire.reader()
        turns.append(len(server.asked) - before)
    assert turns == [3, 3, 3, 1]
    assert not connection.muted
    server.run()
    server.deliver(wire, frames(payload(10))[50:])
    server.run()
    assert wire.sent == b"".join(struct.pack(">i", number) for number in range(11))


def test_what_waits_for_its_turn_comes_before_what_arrives() -> None:
    def answer(asked: Asked) -> None:
        server.now += 0.03
        asked.answer(bytes(asked.view[:4]))

    server = Server(answer)
    wire, _ = server.connect()
    wire.arrived.append(frames(payload(0), payload(1), payload(2)))
    assert wire.reader is not None
    wire.reader()
    assert len(server.asked) == 1
    server.deliver(wire, frames(payload(3)))  # the poller is quicker than what was planned
    server.run()
    assert wire.sent == b"".join(struct.pack(">i", number) for number in range(4))


def test_requests_without_a_reply_do_not_pause_the_connection_for_ever() -> None:
    server = Server()
    wire, _ = server.connect()
    server.deliver(wire, frames(*(payload(number) for number in range(MAX_PENDING_REQUESTS))))
    assert wire.reader is None
    for asked in server.asked:
        asked.answer()
    assert wire.reader is not None


def test_replies_leave_in_the_order_of_the_requests() -> None:
    server = Server()
    wire, _ = server.connect()
    server.deliver(wire, frames(*(payload(number) for number in range(5))))
    for number in (4, 2, 0, 3, 1):
        server.asked[number].answer(b"%d" % number)
        server.run()
        assert wire.sent == {4: b"", 2: b"", 0: b"0", 3: b"0", 1: b"01234"}[number]


def test_replies_of_one_turn_leave_together_and_a_lone_one_at_once() -> None:
    server = Server()
    wire, connection = server.connect()
    server.deliver(wire, frames(*(payload(number) for number in range(5))))
    for number in range(3):
        server.asked[number].answer(b"%d" % number)
    assert wire.sends == 0, "the turn may have more for this client"
    server.run()
    assert (wire.sends, wire.sent) == (1, b"012")
    server.asked[3].answer(b"3")
    server.asked[4].answer(b"4")
    assert (wire.sends, wire.sent) == (2, b"01234"), "nothing else is asked for: nothing to wait for"
    server.run()
    assert wire.sends == 2
    server.deliver(wire, frames(payload(5), payload(6)))
    server.asked[5].answer(b"5")
    connection.close("test")
    server.run()
    assert wire.sends == 2


def test_a_client_that_does_not_read_is_not_read() -> None:
    reply = b"r" * (1 << 20)
    server = Server(lambda asked: asked.answer(reply))
    wire, connection = server.connect()
    wire.takes = 1000
    server.deliver(wire, frames(*(payload(number) for number in range(500))))
    assert len(server.asked) <= MOST_UNSENT_BYTES // len(reply) + 2
    assert wire.reader is None
    assert wire.writer is not None
    while len(wire.sent) < 500 * len(reply):
        wire.takes = 700_001
        if wire.writer is not None:
            wire.writer()
        server.run()
    assert len(server.asked) == 500
    assert wire.writer is None
    assert not connection.muted


def test_an_unfinished_frame_gets_memory_as_it_arrives() -> None:
    server = Server()
    wires = [server.connect()[0] for _ in range(100)]
    lent = server.pool.lent_bytes
    for wire in wires:
        server.deliver(wire, struct.pack(">i", 50 << 20) + b"x" * 20)
    assert server.pool.lent_bytes - lent <= 100 * 4096
    server.deliver(wires[0], b"x" * 100_000)
    assert server.pool.lent_bytes - lent <= 99 * 4096 + (1 << 19)


def test_a_frame_arrives_whole_however_it_is_cut() -> None:
    content = bytes(range(256)) * 2000
    for cut in (1, 2, 3, 4, 5, 4095, 4096, 4097, 70_000, SCRATCH_BYTES - 1, SCRATCH_BYTES, 300_000):
        server = Server()
        wire, _ = server.connect()
        stream = frames(content, b"next!")
        server.deliver(wire, stream[:cut])
        server.deliver(wire, stream[cut:])
        assert [bytes(asked.view) for asked in server.asked] == [content, b"next!"], cut


def test_a_large_frame_behind_a_large_one_is_received_where_it_stays() -> None:
    first, second = payload(1, 600_000), payload(2, 700_000)
    begins = len(frames(first))
    for cut in (begins + more for more in (1, 2, 3, 4, 5, SCRATCH_BYTES, len(second))):
        server = Server()
        wire, connection = server.connect()
        stream = frames(first, second, b"small", second)
        server.deliver(wire, stream[:begins])
        wire.rooms.clear()
        server.deliver(wire, stream[begins:cut])
        server.deliver(wire, stream[cut:])
        assert [bytes(asked.view) for asked in server.asked] == [first, second, b"small", second], cut
        assert SCRATCH_BYTES not in wire.rooms, cut
        for _ in range(4):
            server.deliver(wire, frames(b"small"))
        assert wire.rooms[-1] == SCRATCH_BYTES
        server.deliver(wire, frames(first))
        server.deliver(wire, struct.pack(">i", -1))
        assert connection.closed


def test_without_buffer_memory_reading_pauses_until_there_is_some() -> None:
    server = Server(cap=1 << 20)
    held = server.pool.acquire(1 << 20)
    wire, connection = server.connect()
    content = payload(1, 600_000)
    wire.arrived.append(frames(content))
    assert wire.reader is not None
    while wire.reader is not None and wire.arrived:
        wire.reader()
    assert connection.muted == {"memory"}
    assert not server.asked
    server.receiver.feed_starved()
    assert connection.muted
    server.pool.release(held)
    server.receiver.feed_starved()
    while wire.reader is not None and wire.arrived:
        wire.reader()
    assert bytes(server.asked[0].view) == content


def test_what_was_received_before_a_pause_is_dropped_with_the_connection() -> None:
    server = Server()
    wire, connection = server.connect()
    server.deliver(wire, frames(*(payload(number) for number in range(2 * MAX_PENDING_REQUESTS))))
    connection.close("test")
    for asked in server.asked:
        asked.answer(b"x")
    server.run()
    assert wire.closed
    assert not wire.sent
    assert len(server.asked) == MAX_PENDING_REQUESTS


def test_a_connection_that_is_slowed_down_sends_small_pieces_at_its_rate() -> None:
    server = Server(lambda asked: asked.answer(b"s"))
    wire, connection = server.connect()
    connection.outbox.slow_down(1 << 20)
    server.auto = lambda asked: asked.answer(b"a" * 100_000, b"b" * 400_000)
    server.deliver(wire, frames(b"x"))
    pieces = [len(wire.sent)]
    while len(wire.sent) < 500_000:
        assert len(server.timers) == 1
        server.pass_to(server.timers[0][0])
        pieces.append(len(wire.sent) - sum(pieces))
    assert max(pieces) == SLOW_PIECE_BYTES
    assert 0.4 < server.now < 0.5, "less the credit, and the last piece leaves when it is due"
    assert wire.sent == b"a" * 100_000 + b"b" * 400_000
    server.auto = lambda asked: asked.answer(b"c" * 500_000)
    server.deliver(wire, frames(b"x"))
    assert len(wire.sent) == 1_000_000, "only until everything was sent"
    assert not server.timers


def test_where_the_system_keeps_the_pace_it_is_handed_larger_pieces_at_the_end_of_each_turn() -> None:
    server = Server(lambda asked: asked.answer(b"s"))
    wire, connection = server.connect()
    wire.paces = []
    connection.outbox.slow_down(1 << 20)
    server.auto = lambda asked: asked.answer(b"a" * 100_000, b"b" * 400_000)
    server.deliver(wire, frames(b"x"))
    pieces = [len(wire.sent)]
    while len(wire.sent) < 500_000:
        assert wire.writer is not None
        assert not server.timers
        wire.writer()
        assert len(wire.sent) == sum(pieces), "others come first"
        server.run()
        pieces.append(len(wire.sent) - sum(pieces))
    assert pieces[:-1] == [PACED_PIECE_BYTES] * 3
    assert wire.writer is None
    assert wire.sent == b"a" * 100_000 + b"b" * 400_000
    assert wire.paces == [1 << 20]
    server.auto = lambda asked: asked.answer(b"c" * 500_000)
    server.deliver(wire, frames(b"x"))
    server.deliver(wire, frames(b"x"))
    assert len(wire.sent) == 1_500_000, "at once"
    assert wire.paces == [1 << 20, 0], "it is lifted with the next reply, once"


def test_a_pace_that_is_lifted_while_pieces_wait_holds_for_none_of_them() -> None:
    server = Server(lambda asked: asked.answer(b"a" * 500_000))
    wire, connection = server.connect()
    wire.paces = []
    connection.outbox.slow_down(1 << 20)
    server.deliver(wire, frames(b"x"))
    connection.outbox.slow_down(0)
    assert wire.writer is not None
    wire.writer()
    server.run()
    assert wire.paces == [1 << 20, 0]
    assert len(wire.sent) == 500_000
    assert wire.writer is None


def test_a_slow_connection_waits_for_its_peer_too_and_ends_like_others() -> None:
    server = Server(lambda asked: asked.answer(b"a" * 500_000))
    wire, connection = server.connect()
    connection.outbox.slow_down(1 << 20)
    wire.takes = SLOW_PIECE_BYTES + 10
    server.deliver(wire, frames(b"x"))
    server.pass_to(1.0)
    assert len(wire.sent) == SLOW_PIECE_BYTES + 10
    assert wire.writer is not None, "the peer reads no more for now"
    assert not server.timers
    wire.takes = 1 << 60
    wire.writer()
    assert wire.writer is None
    assert len(server.timers) == 1
    server.pass_to(1.0 + 3 * SLOW_PIECE_BYTES / (1 << 20))
    assert SLOW_PIECE_BYTES * 4 < len(wire.sent) < 500_000
    sent = len(wire.sent)
    connection.close("test")
    server.pass_to(5.0)
    assert len(wire.sent) == sent


def connected(server: Server, count: int, size: int, cut: int) -> list[tuple[Wire, bytes]]:
    """So many connections that have each sent `cut` bytes of a frame, and what is still to come of each."""
    wires = []
    for number in range(count):
        wire, _ = server.connect()
        whole = frames(payload(number, size))
        wire.arrived.append(whole[:cut])
        receive(wire)
        wires.append((wire, whole[cut:]))
    return wires


def receive(wire: Wire) -> None:
    while wire.reader is not None and wire.arrived:
        wire.reader()


def held_bytes(server: Server) -> int:
    """Buffers in use, and what has been received and waits for one."""
    server.pool.reclaim()
    waiting = sum(len(connection._held or b"") for connection in server.receiver.starved)
    return server.pool.lent_bytes + waiting


def test_frames_begin_as_far_as_there_is_memory_to_finish_them_and_the_first_goes_first() -> None:
    for cut in (1, 3, 4, 5, 100_000, 899_999):
        server = Server(cap=4 << 20)
        wires = connected(server, 20, 900_000, cut)
        for wire, rest in wires:
            wire.arrived.append(rest[:-1])
            receive(wire)
        most = 0
        for step in range(1, 100):
            for wire, rest in wires:
                receive(wire)
                if not wire.arrived and rest:
                    wire.arrived.append(rest[-1:])
                    wires[wires.index((wire, rest))] = (wire, b"")
                    receive(wire)
            most = max(most, held_bytes(server))
            for asked in server.asked:
                asked.view.release()
            server.pass_to(step / 100)
        assert most <= (4 << 20) + SCRATCH_BYTES, cut
        assert [asked.number for asked in server.asked] == list(range(20)), cut
        assert server.pool.promised_bytes == 0
        assert held_bytes(server) == 0


def test_a_frame_larger_than_what_is_free_waits_until_nothing_else_is_held() -> None:
    server = Server(cap=1 << 20)
    (small, end), (large, rest) = *connected(server, 1, 400_000, 200_000), *connected(server, 1, 3_000_000, 4)
    (late, last) = connected(server, 1, 400_000, 8)[0]
    for wire, more in ((large, rest), (late, last), (small, end)):
        wire.arrived.append(more)
        receive(wire)
    assert [asked.size for asked in server.asked] == [400_000]
    server.asked[0].view.release()
    server.pass_to(1.0)
    receive(large)
    receive(late)
    assert [asked.size for asked in server.asked] == [400_000, 3_000_000], "who came later does not overtake"
    server.asked[1].view.release()
    server.pass_to(2.0)
    receive(late)
    assert len(server.asked) == 3


def test_a_connection_that_ends_leaves_its_promise_to_others() -> None:
    server = Server(cap=1 << 20)
    (first, _), (second, rest) = connected(server, 2, 900_000, 100)
    second.arrived.append(rest)
    assert second.reader is None
    first.arrived.append(b"")  # its end
    assert first.reader is not None
    first.reader()
    assert server.closed
    server.receiver.feed_starved()
    server.run()
    receive(second)
    assert len(server.asked) == 1


def test_small_requests_are_served_while_large_ones_wait_for_memory() -> None:
    server = Server(lambda asked: asked.answer(b"yes"), cap=1 << 20)
    connected(server, 2, 900_000, 100)
    wire, _ = server.connect()
    server.deliver(wire, frames(*(payload(number) for number in range(1000))))
    assert len(server.asked) == 1000
