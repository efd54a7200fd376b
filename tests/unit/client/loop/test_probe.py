"""Only refusals say that nobody is there; silence, an answer and an early end say nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from duramen.client.loop.probe import MOST_ANSWERED, AddressProbe
from duramen.ports import Transport
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import SimNetwork, SimPort


def probed(times: int, on_accept: Callable[[Transport], None] | None) -> tuple[int, bool, SimLoop, SimPort]:
    """Look at an address where on_accept listens, or nobody: how often it was refused for good, and what is left."""
    loop, own = SimLoop(Random(1)), Process("own")
    network = SimNetwork(loop, Random(1))
    if on_accept is not None:
        SimPort(network, Process("peer")).listen("h", 1, on_accept)
    port = SimPort(network, own)
    refused: list[float] = []
    probe = AddressProbe(port, SimClock(loop, own, 0), "h", 1, lambda: refused.append(loop.now), times=times)
    loop.run(lambda: False, 10.0)
    assert loop.planned(own) == 0
    assert port.transports == []
    return len(refused), probe.over, loop, port


def test_nobody_there() -> None:
    assert probed(1, None)[:2] == (1, True)
    assert probed(3, None)[:2] == (1, True)


def test_somebody_there() -> None:
    assert probed(1, lambda transport: None)[:2] == (0, True)
    assert probed(1, lambda transport: transport.send([b"hello"]) and None)[:2] == (0, True)


def test_somebody_who_always_closes_is_there() -> None:
    accepted = []

    def close(transport: Transport) -> None:
        accepted.append(transport)
        transport.close()

    assert probed(1, close)[:2] == (0, True)
    assert len(accepted) == MOST_ANSWERED + 1


def test_who_stands_is_told_with_the_address() -> None:
    for keeps, told in ((True, [("h", 1)]), (False, [])):
        loop, own, kept = SimLoop(Random(1)), Process("own"), []
        network = SimNetwork(loop, Random(1))
        take = kept.append if keeps else lambda transport: transport.close()
        SimPort(network, Process("peer")).listen("h", 1, take)
        port, answered = SimPort(network, own), []
        AddressProbe(port, SimClock(loop, own, 0), "h", 1, lambda: None, on_answered=answered.append)
        loop.run(lambda: False, 10.0)
        assert answered == told
        assert port.transports == []


def test_a_cancelled_one_calls_nobody() -> None:
    loop, own = SimLoop(Random(1)), Process("own")
    port = SimPort(SimNetwork(loop, Random(1)), own)
    probe = AddressProbe(port, SimClock(loop, own, 0), "h", 1, lambda: 1 / 0)  # type: ignore[arg-type]
    loop.step()
    probe.cancel()
    loop.run(lambda: False, 10.0)
    assert port.transports == []
    assert probe.over
