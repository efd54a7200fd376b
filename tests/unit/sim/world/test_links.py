"""Links between hosts: slow, stalled and cut, one way or both; connections keep their order, whatever happens."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from random import Random
from typing import cast

import pytest

from duramen.ports import Transport
from duramen.sim.world.links import LinkState
from duramen.sim.world.loop import Process, SimLoop
from duramen.sim.world.network import Conditions, SimNetwork, SimPort, SimTransport

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"
OPEN, STALLED, CUT = LinkState.OPEN, LinkState.STALLED, LinkState.CUT


class End:
    """One end of a connection: what has come, and how it ended."""

    def __init__(self, transport: Transport) -> None:
        self.transport = cast("SimTransport", transport)
        self.got = bytearray()
        self.end = ""
        transport.set_reader(self.read)

    def read(self) -> None:
        buffer = bytearray(10_000)
        try:
            count = self.transport.recv_into(memoryview(buffer))
        except OSError as error:
            self.end = errno.errorcode[error.errno or 0]
            self.transport.set_reader(None)
            return
        if count == 0:
            self.end = "FIN"
            self.transport.set_reader(None)
        self.got += buffer[: max(0, count)]

    def send(self, data: bytes) -> int:
        return self.transport.send([data])


class Hosts:
    """Three hosts with a process each; everybody listens on port 1."""

    def __init__(self, seed: int = 1, **conditions: object) -> None:
        self.loop = SimLoop(Random(seed))
        settings = {"partial": 0.0, "pipe_bytes": (1000, 1000)} | conditions
        self.network = SimNetwork(self.loop, Random(seed), Conditions(**settings))  # type: ignore[arg-type]
        self.processes = {host: Process(host) for host in (A, B, C)}
        self.ports = {host: SimPort(self.network, self.processes[host], host) for host in (A, B, C)}
        self.accepted: dict[str, list[End]] = {A: [], B: [], C: []}
        for host, port in self.ports.items():
            port.listen("", 1, lambda transport, host=host: self.accepted[host].append(End(transport)))

    def link(self, source: str, target: str, state: LinkState) -> None:
        self.network.links.set_state(source, target, state)

    def run(self, seconds: float = 0.1) -> None:
        self.loop.run(lambda: False, self.loop.now + seconds)

    def connection(self, source: str, target: str) -> tuple[End, End]:
        """Both ends of a new connection."""
        end = End(self.ports[source].connect(target, 1))
        before = len(self.accepted[target])
        self.run()
        assert len(self.accepted[target]) == before + 1
        return end, self.accepted[target][-1]

    def kill(self, host: str) -> None:
        self.loop.forget(self.processes[host])
        self.ports[host].die(0.0, deliver=True)


def test_addresses_belong_to_hosts() -> None:
    hosts = Hosts()
    a, b = hosts.connection(A, B)
    assert a.transport.peer == f"{B}:1"
    assert b.transport.peer.startswith(f"{A}:")
    with pytest.raises(OSError, match="Cannot assign"):
        hosts.ports[A].listen(B, 2, lambda transport: None)
    with pytest.raises(OSError, match="in use"):
        hosts.ports[A].listen(A, 1, lambda transport: None)
    refused = End(hosts.ports[A].connect(B, 2))
    hosts.run()
    assert refused.end == "ECONNREFUSED"


@pytest.mark.parametrize("seed", range(20))
def test_a_stall_holds_up_one_direction_and_keeps_the_order(seed: int) -> None:
    hosts = Hosts(seed, pipe_bytes=(100_000, 100_000), partial=0.3)
    a, b = hosts.connection(A, B)
    random = Random(seed)
    sent = bytearray()
    for _ in range(20):
        data = random.randbytes(random.randint(1, 2000))
        assert a.transport._room() > len(data)
        sent += data[: a.send(data)]
        hosts.link(A, B, random.choice((OPEN, STALLED)))
        hosts.run(random.choice((0.0, 0.001, 0.1)))
        assert sent.startswith(b.got)
    hosts.link(A, B, STALLED)
    before = len(b.got)
    sent += b"held"[: a.send(b"held")]
    b.send(b"the other way is open")
    hosts.run(10.0)
    assert bytes(a.got) == b"the other way is open"
    assert len(b.got) - before < len(sent)
    assert not b.got.endswith(b"held")
    hosts.link(A, B, OPEN)
    hosts.run()
    assert b.got == sent
    assert (a.end, b.end) == ("", "")


def test_a_stalled_pipe_fills() -> None:
    hosts = Hosts()
    a, b = hosts.connection(A, B)
    hosts.link(A, B, STALLED)
    assert a.send(bytes(700)) == 700
    assert a.send(bytes(700)) == 300
    assert a.send(bytes(700)) == 0
    hosts.link(A, B, OPEN)
    hosts.run()
    assert len(b.got) == 1000
    assert a.send(bytes(700)) == 700


def test_who_is_not_acknowledged_fills_its_pipe_too() -> None:
    """What B sends arrives, but A's word for it does not: B must not go on for ever."""
    hosts = Hosts()
    a, b = hosts.connection(A, B)
    hosts.link(A, B, CUT)
    for _ in range(5):
        b.send(bytes(700))
        hosts.run()
    assert len(a.got) == 1000
    hosts.link(A, B, OPEN)
    hosts.run()
    assert (a.end, b.end) == ("", ""), "a lost acknowledgement is simply sent again"
    assert b.send(bytes(700)) == 700
    hosts.run()
    assert len(a.got) == 1700


def test_what_a_cut_link_lost_ends_its_connection_and_no_other() -> None:
    hosts = Hosts()
    a, b = hosts.connection(A, B)
    idle, idle_there = hosts.connection(A, B)
    other, other_there = hosts.connection(A, C)
    hosts.link(A, B, CUT)
    a.send(b"lost")
    other.send(b"not lost")
    hosts.run(60.0)
    assert (a.end, b.end) == ("", ""), "nobody knows yet"
    assert bytes(other_there.got) == b"not lost"
    hosts.link(A, B, OPEN)
    hosts.run()
    assert (a.end, b.end) == ("ECONNRESET", "ECONNRESET")
    assert bytes(b.got) == b""
    idle.send(b"still there")
    hosts.run()
    assert bytes(idle_there.got) == b"still there"
    assert (idle.end, other.end) == ("", "")


@pytest.mark.parametrize(("source", "target"), [(A, B), (B, A)])
def test_a_one_way_cut_stops_connects_from_both_sides(source: str, target: str) -> None:
    """Either the first packet is lost or the answer to it; nobody is refused, for no refusal arrives."""
    hosts = Hosts()
    hosts.link(source, target, CUT)
    ends = [End(hosts.ports[A].connect(B, port)) for port in (1, 2)]
    hosts.run(5.0)
    assert [end.end for end in ends] == ["", ""]
    assert hosts.accepted[B] == []
    given_up = End(hosts.ports[A].connect(B, 1))
    hosts.run()
    given_up.transport.close()
    hosts.link(source, target, OPEN)
    hosts.run()
    assert [end.end for end in ends] == ["", "ECONNREFUSED"]
    assert len(hosts.accepted[B]) == 1, "not of the one that gave up"


def test_a_death_behind_a_cut_is_not_news() -> None:
    for state in (STALLED, CUT):
        hosts = Hosts()
        a, _ = hosts.connection(A, B)
        hosts.link(B, A, state)
        hosts.kill(B)
        hosts.run(60.0)
        assert a.end == ""
        hosts.link(B, A, OPEN)
        hosts.run()
        assert a.end == "ECONNRESET"
        refused = End(hosts.ports[A].connect(B, 1))
        hosts.run()
        assert refused.end == "ECONNREFUSED"


def test_a_killed_process_is_told_of_by_fin_or_reset() -> None:
    ends = set()
    for seed in range(20):
        hosts = Hosts(seed, fin=0.5)
        a, _ = hosts.connection(A, B)
        hosts.kill(B)
        hosts.run()
        ends.add(a.end)
        if a.end == "FIN":
            a.send(b"nobody is there")
            a.transport.set_reader(a.read)
            hosts.run()
            with pytest.raises(ConnectionResetError):
                a.send(b"x")
    assert ends == {"FIN", "ECONNRESET"}


def test_a_close_behind_a_stall_comes_last() -> None:
    hosts = Hosts()
    a, b = hosts.connection(A, B)
    hosts.link(A, B, STALLED)
    a.send(b"last words")
    a.transport.close()
    hosts.run(1.0)
    assert b.end == ""
    hosts.link(A, B, OPEN)
    hosts.run()
    assert (bytes(b.got), b.end) == (b"last words", "FIN")


def test_a_host_without_power_does_not_even_refuse() -> None:
    hosts = Hosts()
    a, b = hosts.connection(A, B)
    hosts.network.links.set_power(B, on=False)
    hosts.kill(B)
    waiting = End(hosts.ports[A].connect(B, 1))
    a.send(b"hello?")
    hosts.run(60.0)
    assert (a.end, waiting.end) == ("", "")
    hosts.link(A, B, CUT)
    hosts.network.links.set_power(B, on=True)
    hosts.run(1.0)
    assert waiting.end == "", "power is back, the link is not"
    hosts.network.links.mend()
    hosts.run()
    assert (a.end, waiting.end) == ("ECONNRESET", "ECONNREFUSED")
    assert bytes(b.got) == b""


def test_each_direction_has_its_delay() -> None:
    hosts = Hosts()
    a, b = hosts.connection(A, B)
    hosts.network.links.get(A, B).delay_s = (1.0, 1.1)

    def took(sender: End, receiver: End) -> float:
        began, before = hosts.loop.now, len(receiver.got)
        sender.send(b"x")
        assert hosts.loop.run(lambda: len(receiver.got) > before, began + 10)
        return hosts.loop.now - began

    assert 1.0 <= took(a, b) < 1.11
    assert took(b, a) < 0.01
    hosts.network.links.get(A, B).delay_s = None
    assert took(a, b) < 0.01


@pytest.mark.parametrize("seed", range(10))
def test_the_same_seed_is_the_same_history(seed: int) -> None:
    def history() -> list[tuple[float, str, int]]:
        hosts = Hosts(seed, partial=0.3)
        random = Random(seed)
        seen: list[tuple[float, str, int]] = []
        pairs = [hosts.connection(A, B), hosts.connection(B, C), hosts.connection(C, A)]
        for _ in range(50):
            source, target = random.sample((A, B, C), 2)
            hosts.link(source, target, random.choice((OPEN, OPEN, STALLED, CUT)))
            for end in random.choice(pairs):
                sends(end, random.randbytes(random.randint(1, 900)))
            hosts.run(random.uniform(0.0, 0.01))
            seen += [(hosts.loop.now, end.end, len(end.got)) for pair in pairs for end in pair]
        return seen

    def sends(end: End, data: bytes) -> None:
        with contextlib.suppress(ConnectionResetError):
            end.send(data)

    assert history() == history()


def test_held_things_of_the_dead_go_nowhere() -> None:
    hosts = Hosts()
    a, _ = hosts.connection(A, B)
    hosts.link(A, B, STALLED)
    a.send(b"x")
    End(hosts.ports[A].connect(B, 1))
    hosts.run()
    hosts.kill(A)
    hosts.link(A, B, OPEN)
    hosts.run()
    assert [end.end for end in hosts.accepted[B]] == ["ECONNRESET"]
    callbacks: list[Callable[[], None]] = [one.deliver for one in hosts.network.links.get(A, B).held]
    assert callbacks == []
