"""How much one connection may send before the others have their turn."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from duramen.ports import FileSpan
from duramen.server.net.os_ports import (
    ALONE_SECONDS,
    ALONE_TURN_BYTES,
    SEND_TURN_BYTES,
    SENDFILE_BYTES,
    SHORT_BYTES,
    SendQuantum,
    SocketTransport,
    real_world,
)
from duramen.storage.files.os_disk import RealDisk

LONG = bytes(4 * ALONE_TURN_BYTES)


class Endless:
    """A socket whose buffer takes everything."""

    def fileno(self) -> int:
        return -1

    def send(self, data: Any) -> int:
        return len(data)

    def sendmsg(self, vectors: list[Any], *_: Any) -> int:
        return sum(map(len, vectors))


class Pair:
    """Two connections of one loop."""

    def __init__(self) -> None:
        self.quantum = SendQuantum()
        self.one, self.other = self._connection(), self._connection()

    def _connection(self) -> SocketTransport:
        sock: Any = Endless()
        loop: Any = None
        return SocketTransport(loop, sock, "client", self.quantum)

    def silence(self) -> None:
        """As if no short reply had left for long enough."""
        self.quantum.short_at -= ALONE_SECONDS


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_beside_short_replies_a_long_one_is_sent_in_small_turns(pair: Pair) -> None:
    pair.other.send([b"short"])
    assert pair.one.send([LONG]) == SEND_TURN_BYTES
    assert pair.one.send([b"head", LONG]) == SEND_TURN_BYTES


def test_alone_it_is_sent_in_larger_ones(pair: Pair) -> None:
    pair.silence()
    assert pair.one.send([LONG]) == ALONE_TURN_BYTES
    assert pair.one.send([b"head", LONG]) == ALONE_TURN_BYTES
    pair.other.send([b"short"])
    assert pair.one.send([LONG]) == SEND_TURN_BYTES


def test_the_rest_of_a_long_reply_is_not_a_short_one(pair: Pair) -> None:
    pair.silence()
    assert pair.one.send([bytes(ALONE_TURN_BYTES + 10)]) == ALONE_TURN_BYTES
    assert pair.one.send([bytes(10)]) == 10
    assert pair.other.send([LONG]) == ALONE_TURN_BYTES
    assert pair.one.send([bytes(10)]) == 10
    assert pair.other.send([LONG]) == SEND_TURN_BYTES


def test_spans_of_files_keep_to_the_turn(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", lambda target, source, position, count: count)
    path = tmp_path / "segment"
    path.write_bytes(LONG)
    file = RealDisk().open(str(path))
    try:
        reply = [b"head", FileSpan(file, 0, len(LONG))]
        pair.silence()
        assert pair.one.send(reply) == ALONE_TURN_BYTES
        assert pair.other.send([bytes(SHORT_BYTES - 1)]) == SHORT_BYTES - 1
        assert pair.one.send(reply) == SEND_TURN_BYTES
    finally:
        file.close()


@pytest.mark.parametrize(("wanted", "given"), [(100_000, 100_000), (1, SENDFILE_BYTES), (-1, None)])
def test_accepted_connections_have_the_send_buffer_that_was_asked_for(wanted: int, given: int | None) -> None:
    loop, world, executor = real_world(wanted)
    accepted: list[Any] = []
    try:
        listener = world.network.listen("127.0.0.1", 0, accepted.append)
        with socket.create_connection((listener.host, listener.port), timeout=10) as client:
            client.setblocking(False)
            while not accepted:
                loop.turn()
            held = accepted[0]._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            usual = client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            assert given <= held <= 2 * given if given else held > usual // 2  # Linux doubles what it is told
            accepted[0].close()
        listener.close()
    finally:
        executor.close()
        loop.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a pace for us")
def test_the_system_keeps_a_pace_until_it_is_told_otherwise() -> None:
    loop, world, executor = real_world()
    accepted: list[Any] = []
    took = []
    try:
        listener = world.network.listen("127.0.0.1", 0, accepted.append)
        with socket.create_connection((listener.host, listener.port), timeout=10) as client:
            while not accepted:
                loop.turn()
            for pace in (4 << 20, 0):
                assert accepted[0].pace(pace)
                began = time.monotonic()
                sent = got = 0
                while got < 1 << 20:
                    sent += accepted[0].send([bytes((1 << 20) - sent)]) if sent < 1 << 20 else 0
                    got += len(client.recv(1 << 20))
                took.append(time.monotonic() - began)
            accepted[0].close()
            assert not accepted[0].pace(1), "it is closed"
        listener.close()
    finally:
        executor.close()
        loop.close()
    assert took[0] > 0.15, "a quarter of a second for a megabyte, less what leaves before the first round trip"
    assert took[1] < took[0]
