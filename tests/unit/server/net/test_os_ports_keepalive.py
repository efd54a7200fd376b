"""Connections whose peer is gone without a word: the kernel asks for it, as for Kafka's."""

from __future__ import annotations

import socket

import pytest

from duramen.client.blocking.connection import BlockingConnection
from duramen.errors import DuramenError
from duramen.server.net.loop import EventLoop
from duramen.server.net.os_ports import SocketNetwork, SocketTransport


def _asks(sock: socket.socket) -> bool:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


def test_both_ends_of_a_nodes_connections_ask_whether_the_peer_is_there() -> None:
    """A half-open one was there until it had been idle for ten minutes, and for ever while a reply waited."""
    loop = EventLoop()
    network, accepted = SocketNetwork(loop), []
    listener = network.listen("127.0.0.1", 0, accepted.append)
    begun = network.connect("127.0.0.1", listener.port)
    while not accepted:
        loop.turn()
    for transport in (begun, *accepted):
        assert isinstance(transport, SocketTransport)
        assert _asks(transport._socket)
        transport.close()
    listener.close()
    loop.close()


def test_a_clients_connections_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asks: list[bool] = []

    def negotiate(self: BlockingConnection, until: float) -> object:
        asks.append(_asks(self._socket))
        self.close()
        raise DuramenError("that is all")

    monkeypatch.setattr(BlockingConnection, "_negotiate", negotiate)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(DuramenError, match="that is all"):
        BlockingConnection("127.0.0.1", server.getsockname()[1], "client", 1e9, 1 << 20)
    assert asks == [True]
