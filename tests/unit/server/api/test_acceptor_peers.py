"""Who comes through a controller's listener: whatever clients do, he is accepted, read and answered."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.worlds.broker_world import CONTROLLER, CONTROLLER_PORT, PORT, InProcess, Line

from duramen.server.api.acceptor import MOST_PEERS, SPARE_DESCRIPTORS
from duramen.server.net.memory_limit import CONTROLLER_SHARE, MemoryShares
from duramen.sim.world.disk import CrashDisk

MIB = 1 << 20
NAMED = {"client_software_name": "s", "client_software_version": "1"}


def answers(server: InProcess, line: Line) -> bool:
    """Whether a request through this connection is answered now."""
    line.ask(18, 4, **NAMED)
    server.run()
    return line.answer(18, 4) is not None


@pytest.fixture
def server() -> InProcess:
    return InProcess(**CONTROLLER)


def test_a_full_journal_keeps_clients_waiting_and_no_peer(server: InProcess) -> None:
    client, peer = server.connect(), server.connect(CONTROLLER_PORT)
    server.broker.store.congested = True
    assert not answers(server, client)
    assert answers(server, peer)
    server.broker.store.congested = False
    server.broker.store.on_relief()
    server.run()
    assert client.answer(18, 4) is not None


def begin_frame(line: Line, size: int) -> None:
    """Announce a request of so many bytes and send its beginning."""
    line._arrived += struct.pack(">i", size) + bytes(10_000)
    line.deliver()


def bounded(**settings: str) -> InProcess:
    server = InProcess(**CONTROLLER, **settings)
    server.broker.acceptor.bound_memory(MemoryShares(256 * MIB, 8 * MIB, 8 * MIB))
    return server


def test_clients_who_hold_all_memory_for_requests_leave_peers_theirs() -> None:
    server = bounded()
    holder, waiting, peer = server.connect(), server.connect(), server.connect(CONTROLLER_PORT)
    begin_frame(holder, 8 * MIB - 100)
    begin_frame(waiting, 4 * MIB)
    assert server.broker.acceptor.receiver.is_short
    begin_frame(peer, MIB)
    assert not server.broker.acceptor.peer_receiver.starved
    assert answers(server, server.connect(CONTROLLER_PORT))


def test_memory_for_peers_requests_is_bounded_too() -> None:
    server = bounded()
    acceptor = server.broker.acceptor
    share = 8 * MIB // CONTROLLER_SHARE
    assert acceptor.peer_receiver.max_frame_bytes == acceptor.peer_receiver.pool.cap_bytes == share
    assert acceptor.peer_receiver.unread.cap_bytes == share
    too_long = server.connect(CONTROLLER_PORT)
    begin_frame(too_long, share + 1)
    assert too_long.closed
    first, second = server.connect(CONTROLLER_PORT), server.connect(CONTROLLER_PORT)
    begin_frame(first, share)
    begin_frame(second, share)
    assert list(acceptor.peer_receiver.starved.values()) == [share + 4]
    for connection in list(acceptor.peers):
        if connection.transport is first:
            connection.close("test")
    server.pass_ms(1000)
    assert not acceptor.peer_receiver.starved
    assert answers(server, server.connect())


def test_clients_who_leave_replies_unread_leave_peers_theirs() -> None:
    server = bounded()
    acceptor = server.broker.acceptor
    acceptor.receiver.unread.take(8 * MIB)
    assert acceptor.receiver.unread.short_since is not None
    assert acceptor.peer_receiver.unread.short_since is None
    assert acceptor.peer_receiver.unread.most_unsent_bytes > 0


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
def test_limits_of_clients_are_none_of_peers(limit: str) -> None:
    server = InProcess(**CONTROLLER, **{limit: "2"})
    peers = [server.connect(CONTROLLER_PORT) for _ in range(5)]
    clients = [server.connect() for _ in range(3)]
    assert [line.closed for line in clients] == [False, False, True], "peers do not count among them either"
    peers.append(server.connect(CONTROLLER_PORT))
    assert not any(line.closed for line in peers)
    assert all(answers(server, line) for line in peers)
    assert server.broker.metrics.connections_refused == 1


def test_peers_have_descriptors_that_clients_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrashDisk, "descriptor_limit", lambda disk: 200)
    server = InProcess(**CONTROLLER)
    room = server.broker.acceptor._room
    most = 200 - 200 // 8 - SPARE_DESCRIPTORS
    assert 0 < sum(room.values()) <= most
    lines: dict[int, list[Line]] = {PORT: [], CONTROLLER_PORT: []}
    for port in (PORT, CONTROLLER_PORT):
        while not lines[port] or not lines[port][-1].closed:
            lines[port].append(server.connect(port))
            assert len(lines[port]) <= most
    assert {len(lines[PORT]) - 1, len(lines[CONTROLLER_PORT]) - 1} == set(room.values())
    assert min(room.values()) >= 8
    assert sum(InProcess().broker.acceptor._room.values()) == max(InProcess().broker.acceptor._room.values())
    assert min(room.values()) <= MOST_PEERS


def test_a_peer_that_comes_before_the_start_is_over_waits_as_clients_do() -> None:
    early: list[Any] = []

    class Early(InProcess):
        def listen(self, host: str, port: int, on_accept: Any) -> Any:
            listener = super().listen(host, port, on_accept)
            early.append(self.connect(port))
            return listener

    server = Early(**CONTROLLER)
    assert len(early) == 2
    assert all(answers(server, line) for line in early)
    assert (len(server.broker.acceptor.connections), len(server.broker.acceptor.peers)) == (1, 1)


def test_peers_are_counted_and_ended_like_others() -> None:
    server = InProcess(**CONTROLLER, connections_max_idle_ms="2000")
    quiet = server.connect(CONTROLLER_PORT)
    server.pass_ms(10_000)
    assert quiet.closed
    metrics = server.broker.metrics
    assert (metrics.connections_opened, metrics.connections_closed) == (1, 1)
    busy = server.connect(CONTROLLER_PORT)
    assert answers(server, busy)
    assert server.broker.acceptor.peer_receiver.bytes_in > 0
    server.broker.stop(lambda: None)
    server.run()
    assert busy.closed
    assert server.broker.acceptor.everybody == []
