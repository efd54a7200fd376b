"""A node's channels: one for each purpose and peer, addresses that change, one end for all."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.worlds.answering_node import AnsweringNode, ask

from duramen.client.loop.peer_channel import ChannelLimits
from duramen.client.loop.peer_channels import PeerChannels, Purpose
from duramen.sim.world.entropy import SimEntropy
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import SimNetwork, SimPort


def test_channels_by_purpose_and_node() -> None:
    loop = SimLoop(Random(1))
    network = SimNetwork(loop, Random(1))
    peer = Process("peer")
    peer_port = SimPort(network, peer)
    node = AnsweringNode(peer_port, "10.0.0.2", 9092)
    moved = AnsweringNode(peer_port, "10.0.0.2", 9093)
    own = Process("own")
    port = SimPort(network, own)
    deaths: list[tuple[Purpose, int, float]] = []
    channels = PeerChannels(
        port,
        SimClock(loop, own, 0),
        SimEntropy(Random(1)),
        "n1",
        lambda purpose, node_id: deaths.append((purpose, node_id, loop.now)),
        {Purpose.CONTROL: ChannelLimits(probes=2)},
    )
    quorum = channels.to(Purpose.QUORUM, 2, "10.0.0.2", 9092)
    control = channels.to(Purpose.CONTROL, 2, "10.0.0.2", 9092)
    assert channels.to(Purpose.QUORUM, 2, "10.0.0.2", 9092) is quorum
    assert control is not quorum
    assert control.client_id == "n1-control"
    answers: list[Any] = []
    for channel in (quorum, control):
        channel.send(ask(), answers.append, 1.0)
    assert loop.run(lambda: len(answers) == 2, 10.0)
    assert len(node.accepted) == 2
    assert channels.to(Purpose.QUORUM, 2, "10.0.0.2", 9093) is quorum
    quorum.send(ask(), answers.append, 1.0)
    assert loop.run(lambda: len(answers) == 3, 10.0)
    assert len(moved.accepted) == 1

    loop.forget(peer)
    peer_port.die(0.0, deliver=True)
    killed = loop.now
    loop.run(lambda: False, loop.now + 1.0)
    assert sorted((purpose.value, node_id) for purpose, node_id, _ in deaths) == [("control", 2), ("quorum", 2)]
    assert all((time - killed >= 0.05) == (purpose is Purpose.CONTROL) for purpose, _, time in deaths)

    channels.drop(Purpose.CONTROL, 2)
    channels.drop(Purpose.CONTROL, 7)
    assert len(channels) == 1
    for channel in (quorum, control):
        channel.send(ask(), answers.append, 100.0)
    channels.close()
    late = channels.to(Purpose.STABLE, 3, "10.0.0.3", 9092)
    late.send(ask(), answers.append, 100.0)
    loop.run(lambda: False, loop.now + 1.0)
    assert answers[3:] == [None, None, None]
    assert len(channels) == 0
    assert port.transports == []
    assert loop.planned(own) == 0
