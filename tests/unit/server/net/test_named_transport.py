"""Connects to names, numbers, nobody and nothing: what the transport then says, and that no name holds the loop up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duramen.ports import Transport, World
from duramen.server.net import named_transport
from duramen.server.net.loop import EventLoop
from duramen.server.net.named_transport import NamedTransport, numeric_address
from duramen.server.net.os_ports import SocketTransport, real_world


@pytest.fixture
def real() -> Iterator[tuple[EventLoop, World]]:
    loop, world, executor = real_world()
    yield loop, world
    assert set(loop._readers) == {loop._wake_read}
    assert not loop._writers
    executor.close()
    loop.close()


def until(loop: EventLoop, condition: Callable[[], object]) -> None:
    ticks = 0
    while not condition():
        loop.call_later(0.01, lambda: None)
        loop.turn()
        ticks += 1
        assert ticks < 1000


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def outcome(loop: EventLoop, world: World, host: str, port: int) -> str:
    """ "connected", or the name of the error, of which the reader and the writer are told alike."""
    told: list[str] = []
    try:
        transport = world.network.connect(host, port)
    except OSError as error:
        return type(error).__name__

    def look(call: Callable[[], object], what: str) -> None:
        try:
            call()
            told.append(what)
        except OSError as error:
            told.append(type(error).__name__)
        transport.set_reader(None)
        transport.set_writer(None)

    transport.set_reader(lambda: look(lambda: transport.recv_into(memoryview(bytearray(1))), "closed"))
    transport.set_writer(lambda: look(lambda: transport.send(()), "connected"))
    until(loop, lambda: told)
    transport.close()
    return told[0]


def test_a_refused_connect_is_told_apart(real: tuple[EventLoop, World], monkeypatch: pytest.MonkeyPatch) -> None:
    loop, world = real
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert outcome(loop, world, "127.0.0.1", port) == "connected"
        assert outcome(loop, world, "localhost", port) == "connected"
    assert outcome(loop, world, "127.0.0.1", closed_port()) == "ConnectionRefusedError"
    assert outcome(loop, world, "localhost", closed_port()) == "ConnectionRefusedError"
    assert outcome(loop, world, "x" * 70, port) == "OSError"

    def nothing_found(host: str, port: int) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(named_transport, "look_up", nothing_found)
    assert outcome(loop, world, "node-2.example", port) == "gaierror"


def test_a_connect_that_fails_at_once_leaves_no_descriptor(
    real: tuple[EventLoop, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []

    class Unreachable(socket.socket):
        def connect(self, address: Any) -> None:
            made.append(self)
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "socket", Unreachable)
    with pytest.raises(OSError, match="unreachable"):
        real[1].network.connect("127.0.0.1", 1)
    assert [sock.fileno() for sock in made] == [-1]


def test_a_name_server_that_is_silent_holds_nobody_up(
    real: tuple[EventLoop, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, world = real
    asked, answer = threading.Event(), threading.Event()

    def look_up(host: str, port: int) -> Any:
        asked.set()
        assert answer.wait(10.0)
        return socket.AF_INET, ("127.0.0.1", port)

    monkeypatch.setattr(named_transport, "look_up", look_up)
    accepted: list[Transport] = []
    listener = world.network.listen("127.0.0.1", 0, accepted.append)
    got: list[bytes] = []
    named = world.network.connect("node-2.example", listener.port)
    forgotten = world.network.connect("node-3.example", listener.port)
    assert isinstance(named, NamedTransport)
    assert named.peer == f"node-2.example:{listener.port}"

    def write() -> None:
        named.send([b"hi"])
        named.set_writer(None)

    named.set_writer(write)
    assert named.send([b"too early"]) == 0
    assert named.recv_into(memoryview(bytearray(1))) == -1
    assert not named.pace(1)
    forgotten.close()
    assert asked.wait(10.0)
    direct = world.network.connect("127.0.0.1", listener.port)
    assert isinstance(direct, SocketTransport)
    until(loop, lambda: len(accepted) == 1)
    answer.set()
    until(loop, lambda: len(accepted) == 2)
    assert named.peer == f"127.0.0.1:{listener.port}"
    buffer = bytearray(10)
    accepted[1].set_reader(lambda: got.append(bytes(buffer[: accepted[1].recv_into(memoryview(buffer))])))
    until(loop, lambda: got)
    assert got == [b"hi"]
    for transport in (named, direct, *accepted):
        transport.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        forgotten.send(())
    listener.close()
    loop.turn()


def test_numbers_of_both_families() -> None:
    assert numeric_address("10.0.0.1", 5) == (socket.AF_INET, ("10.0.0.1", 5))
    found = numeric_address("::1", 5)
    assert found is not None
    assert found[0] == socket.AF_INET6
    assert numeric_address("localhost", 5) is None
    assert numeric_address("x" * 70, 5) is None
