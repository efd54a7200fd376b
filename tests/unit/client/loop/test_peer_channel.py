"""A channel between nodes: one answer or None to each request, in time, and a dead process told from a silent one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.worlds.answering_node import AnsweringNode, ask, echo, fetched

from duramen.client.loop.node_client import call
from duramen.client.loop.peer_channel import ChannelLimits, PeerChannel
from duramen.sim.world.entropy import SimEntropy
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import SimNetwork, SimPort

HOST, PORT = "10.0.0.2", 9093


class Pair:
    """A process with a channel, and the process of the node that it leads to."""

    def __init__(self, seed: int = 1, limits: ChannelLimits | None = None) -> None:
        self.loop = SimLoop(Random(seed))
        self.network = SimNetwork(self.loop, Random(seed))
        self.peer = Process("peer")
        self.peer_port = SimPort(self.network, self.peer)
        self.node = AnsweringNode(self.peer_port, HOST, PORT)
        self.own = Process("own")
        self.port = SimPort(self.network, self.own)
        self.clock = SimClock(self.loop, self.own, 0)
        self.deaths: list[float] = []
        self.connects: list[float] = []
        self.answers: list[Any] = []
        connect = self.port.connect

        def counted(host: str, port: int) -> Any:
            self.connects.append(self.loop.now)
            return connect(host, port)

        self.port.connect = counted  # type: ignore[method-assign]
        self.channel = PeerChannel(
            self.port,
            self.clock,
            SimEntropy(Random(seed)),
            HOST,
            PORT,
            "n1-quorum",
            on_died=lambda: self.deaths.append(self.loop.now),
            limits=limits or ChannelLimits(),
        )

    def send(self, timeout: float = 1.0) -> None:
        place = len(self.answers)
        self.answers.append("none yet")

        def on_reply(response: Any) -> None:
            assert self.answers[place] == "none yet", "once"
            self.answers[place] = response and response.controller_id

        self.channel.send(ask(), on_reply, timeout)
        assert self.answers[place] == "none yet", "never from within send"

    def run(self, seconds: float) -> None:
        self.loop.run(lambda: False, self.loop.now + seconds)

    def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        assert self.loop.run(condition, self.loop.now + seconds)

    def kill(self, *, deliver: bool = True) -> None:
        self.loop.forget(self.peer)
        self.peer_port.die(0.0, deliver=deliver)

    def restart(self) -> None:
        self.peer = Process("peer again")
        self.peer_port = SimPort(self.network, self.peer)
        self.node = AnsweringNode(self.peer_port, HOST, PORT)


@pytest.mark.parametrize("seed", range(10))
def test_requests_are_answered_in_order_on_one_connection(seed: int) -> None:
    pair = Pair(seed)
    for _ in range(5):
        pair.send()
    pair.until(lambda: "none yet" not in pair.answers)
    for _ in range(5):
        pair.send()
    pair.until(lambda: "none yet" not in pair.answers)
    assert pair.answers == list(range(1, 11))
    assert len(pair.node.accepted) == 1
    assert pair.channel.pending == 0


def test_a_late_reply_ends_the_connection_and_all_that_is_on_it() -> None:
    pair = Pair()
    pair.node.answer = None
    pair.send(timeout=5.0)
    pair.run(0.1)
    pair.send(timeout=0.5)
    pair.run(0.6)
    assert pair.answers == [None, None], "what was before it can have no reply either"
    assert pair.channel.last_error == "no reply in time"
    assert not pair.channel.connected
    pair.node.answer = echo
    pair.send()
    pair.until(lambda: pair.answers[-1] == 3)
    pair.run(10.0)
    assert pair.deaths == [], "the other side has not ended it"


def test_what_waits_for_a_connection_has_its_deadline_too() -> None:
    pair = Pair(limits=ChannelLimits(connect_s=2.0))
    hanging = Silent()
    pair.port.connect = lambda host, port: hanging  # type: ignore[method-assign,return-value,assignment]
    pair.send(timeout=0.3)
    pair.send(timeout=9.0)
    pair.run(0.4)
    assert pair.answers == [None, "none yet"]
    pair.run(2.0)
    assert pair.answers == [None, None]
    assert pair.channel.last_error == "no connection within 2.0 s"
    assert hanging.closed
    assert pair.deaths == []


class Silent:
    """A connect that hangs."""

    peer = "10.9.9.9:1"

    def __init__(self) -> None:
        self.closed = False

    def set_reader(self, callback: object) -> None: ...

    def set_writer(self, callback: object) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_more_than_the_bounds_is_refused_at_once() -> None:
    pair = Pair(limits=ChannelLimits(requests=3))
    pair.node.answer = None
    for _ in range(5):
        pair.send()
    pair.run(0.0)
    assert pair.answers == ["none yet"] * 3 + [None] * 2
    pair = Pair(limits=ChannelLimits(unsent_bytes=40))
    for _ in range(3):
        pair.send()
    pair.run(0.0)
    assert pair.answers == ["none yet", None, None], "a request of its own is never too large"
    pair.until(lambda: pair.answers[0] == 1)
    pair.send()
    pair.until(lambda: pair.answers[-1] == 4)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("deliver", [True, False])
def test_a_dead_process_is_told_at_once_and_only_once(seed: int, deliver: bool) -> None:
    pair = Pair(seed)
    pair.send()
    pair.until(lambda: pair.answers == [1])
    pair.send()
    pair.kill(deliver=deliver)
    killed = pair.loop.now
    pair.run(5.0)
    assert len(pair.deaths) == 1
    assert pair.deaths[0] - killed < 0.1
    assert pair.answers[1] is None


def test_two_probes_are_fifty_milliseconds_apart() -> None:
    pair = Pair(limits=ChannelLimits(probes=2))
    pair.send()
    pair.until(lambda: pair.answers == [1])
    pair.kill()
    killed = pair.loop.now
    pair.run(5.0)
    assert len(pair.connects) == 3
    assert 0.05 <= pair.deaths[0] - killed < 0.1


def test_a_process_that_is_back_before_the_second_probe_is_not_dead() -> None:
    pair = Pair(limits=ChannelLimits(probes=2))
    pair.send()
    pair.until(lambda: pair.answers == [1])
    pair.kill()
    pair.run(0.03)
    pair.restart()
    pair.run(5.0)
    assert pair.deaths == []
    assert len(pair.connects) == 3


def test_a_connection_that_is_closed_by_a_living_process_is_no_death() -> None:
    pair = Pair()
    pair.send()
    pair.until(lambda: pair.answers == [1])
    pair.node.accepted[0].close()
    pair.run(5.0)
    assert pair.deaths == []
    assert len(pair.connects) == 2, "one probe, which was answered"
    pair.send()
    pair.until(lambda: pair.answers[-1] == 2)


def test_a_listener_that_closes_after_its_connections_is_a_death_all_the_same() -> None:
    """A process that ends closes its descriptors one by one: the probe may get in before the listener's turn."""
    pair = Pair()
    pair.send()
    pair.until(lambda: pair.answers == [1])
    pair.node.on_accept = lambda transport: pair.loop.at(pair.loop.now + 0.01, pair.own, pair.kill) and None
    pair.node.accepted[0].close()
    pair.run(5.0)
    assert len(pair.deaths) == 1


@pytest.mark.parametrize("after", [0.005, 0.03, 0.06, 0.1])
def test_who_gets_in_again_before_the_listener_closes_learns_of_the_death(after: float) -> None:
    """A connection that no reply came by does not show that the process lives: its backlog took it."""
    pair = Pair()
    again_and_again(pair, 0.1)
    pair.node.answer = None
    pair.node.on_accept = lambda transport: None
    pair.loop.at(pair.loop.now + after, pair.own, pair.kill)
    pair.node.accepted[0].close()
    pair.run(5.0)
    assert len(pair.deaths) == 1


def test_an_address_that_never_answered_proves_nothing() -> None:
    pair = Pair()
    pair.kill()
    pair.send()
    pair.run(1.0)
    assert pair.answers == [None]
    assert "refused" in pair.channel.last_error
    assert pair.deaths == []


def again_and_again(pair: Pair, seconds: float) -> None:
    """Send, and at every answer once more."""

    def on_reply(response: Any) -> None:
        pair.channel.send(ask(), on_reply, 30.0)

    pair.channel.send(ask(), on_reply, 30.0)
    pair.run(seconds)


def test_pauses_grow_to_a_second_and_a_reply_ends_them() -> None:
    pair = Pair()
    pair.kill()
    again_and_again(pair, 20.0)
    pauses = [later - earlier for earlier, later in zip(pair.connects, pair.connects[1:], strict=False)]
    assert 0.016 <= pauses[0] <= 0.03
    assert all(0.8 <= pause <= 1.21 for pause in pauses[7:])
    assert len(set(pauses)) == len(pauses), "with jitter"
    pair.restart()
    pair.until(lambda: pair.channel.connected)
    pair.run(0.1)
    pair.kill()
    before = len(pair.connects)
    pair.run(0.5)
    assert len(pair.connects) - before > 4


def test_a_peer_that_does_not_understand_is_not_hammered() -> None:
    pair = Pair()
    pair.node.on_accept = lambda transport: transport.close()
    again_and_again(pair, 10.0)
    assert len(pair.connects) < 25


@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"\0\0\0\1x", b"\0\0\0\x08\0\0\0\x07abcd"])
def test_garbage_ends_the_connection(garbage: bytes) -> None:
    pair = Pair()
    pair.node.answer = None
    pair.node.on_accept = lambda transport: transport.send([garbage]) and None
    pair.send()
    pair.run(1.0)
    assert pair.answers == [None]
    assert not pair.channel.connected
    assert pair.channel.last_error != ""
    assert pair.deaths == []


def test_another_address_is_tried_without_a_pause() -> None:
    pair = Pair()
    pair.kill()
    again_and_again(pair, 10.0)
    other = AnsweringNode(SimPort(pair.network, Process("other")), "10.0.0.3", PORT)
    pair.channel.move("10.0.0.3", PORT)
    pair.run(0.1)
    assert len(other.requests) > 3
    pair.channel.move("10.0.0.3", PORT)
    assert pair.channel.connected, "the same address is none"


def test_closing_leaves_nothing_behind() -> None:
    pair = Pair(limits=ChannelLimits(probes=2))
    pair.send()
    pair.until(lambda: pair.answers == [1])
    pair.send(timeout=100.0)
    pair.kill()
    pair.until(lambda: len(pair.connects) == 2)
    pair.send(timeout=100.0)
    pair.channel.close()
    pair.send()
    pair.run(0.01)
    assert pair.answers[1:] == [None, None, None]
    assert pair.loop.planned(pair.own) == 0
    assert pair.port.transports == []
    assert pair.deaths == []


def test_a_handler_that_fails_costs_nobody_else_the_answer() -> None:
    pair = Pair()
    errors: list[Exception] = []
    pair.own.on_error = errors.append

    def fail(response: Any) -> None:
        raise RuntimeError("handler")

    pair.channel.send(ask(), fail, 1.0)
    pair.send()
    pair.until(lambda: pair.answers == [2])
    assert len(errors) == 1


def test_fetched_batches_are_views_of_what_was_received() -> None:
    pair = Pair()
    records = Random(1).randbytes(200_000)
    pair.node.answer = lambda header, request: fetched(records)
    views: list[memoryview] = []

    def on_reply(response: Any) -> None:
        views.append(response.responses[0].partitions[0].records)

    for _ in range(3):
        pair.channel.send(call("Fetch", 17), on_reply, 10.0)
    pair.until(lambda: len(views) == 3, 60.0)
    assert all(bytes(view) == records for view in views)
    assert all(isinstance(view.obj, bytearray) for view in views), "no copy"
    assert len({id(view.obj) for view in views}) == 3
