"""Channels between nodes, and the question whether a peer is gone, on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.worlds.answering_node import AnsweringNode, ask, fetched

from duramen.client.loop.node_client import call
from duramen.client.loop.peer_channel import ChannelLimits, PeerChannel
from duramen.client.loop.probe import AddressProbe
from duramen.ports import Transport
from duramen.server.net.os_ports import real_world


def test_a_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, a batch without a copy, a death that is told, a refusal, and nothing left open."""
    loop, world, executor = real_world()
    errors: list[BaseException] = []
    monkeypatch.setattr(loop, "on_error", errors.append)
    node = AnsweringNode(world.network, "127.0.0.1")
    port = node.listener.port
    deaths: list[float] = []
    channel = PeerChannel(
        world.network,
        world.clock,
        world.entropy,
        "127.0.0.1",
        port,
        "c",
        on_died=lambda: deaths.append(world.clock.monotonic()),
        limits=ChannelLimits(probes=2),
    )
    answers: list[Any] = []

    def until(condition: Callable[[], bool]) -> None:
        end = world.clock.monotonic() + 10.0
        while not condition():
            world.clock.call_later(0.01, lambda: None)
            loop.turn()
            assert world.clock.monotonic() < end
        assert errors == []

    for _ in range(3):
        channel.send(ask(), lambda reply: answers.append(reply.controller_id), 5.0)
    until(lambda: answers == [1, 2, 3])
    records = Random(1).randbytes(1_000_000)
    node.answer = lambda header, request: fetched(records)
    channel.send(call("Fetch", 17), answers.append, 5.0)
    until(lambda: len(answers) == 4)
    view = answers[3].responses[0].partitions[0].records
    assert bytes(view) == records
    assert isinstance(view.obj, bytearray)

    node.listener.close()
    for transport in list[Transport](node.accepted):
        transport.close()
    ended = world.clock.monotonic()
    channel.send(ask(), answers.append, 5.0)
    until(lambda: bool(deaths))
    assert 0.05 <= deaths[0] - ended < 1.0
    until(lambda: answers[4:] == [None])
    channel.send(ask(), answers.append, 5.0)
    until(lambda: answers[4:] == [None, None])
    assert "refused" in channel.last_error
    channel.close()
    readers = set(loop._readers) | set(loop._writers)
    assert readers == {loop._wake_read}
    executor.close()
    loop.close()


def test_real_refusals_and_a_backlog_that_is_full() -> None:
    """A stopped process with a full backlog lets connects hang; a closed one refuses them."""
    loop, world, executor = real_world()
    refused: list[str] = []
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [world.network.connect("127.0.0.1", port) for _ in range(4)]
        silent = AddressProbe(world.network, world.clock, "127.0.0.1", port, lambda: refused.append("silent"))
        while not silent.over:
            world.clock.call_later(0.05, lambda: None)
            loop.turn()
        assert refused == []
        for filler in fillers:
            filler.close()
    AddressProbe(world.network, world.clock, "127.0.0.1", port, lambda: refused.append("closed"), times=2)
    end = world.clock.monotonic() + 10.0
    while not refused:
        world.clock.call_later(0.05, lambda: None)
        loop.turn()
        assert world.clock.monotonic() < end
    assert refused == ["closed"]
    assert set(loop._readers) == {loop._wake_read}
    assert not loop._writers
    executor.close()
    loop.close()
