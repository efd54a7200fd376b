"""Who is dead is fenced at once, and who only says nothing when its session has ended."""

from __future__ import annotations

import pytest
from tests.worlds.quorum_world import QuorumWorld

SESSION_S = 3.0
AT_ONCE_S = 0.2
"""Two connects 50 ms apart, and a commit."""


@pytest.fixture
def cluster() -> QuorumWorld:
    cluster = QuorumWorld()
    for node_id in cluster.hosts:
        cluster.register(node_id)
    cluster.active()
    cluster.run(1.0)  # addresses are known by then
    return cluster


def fenced_after(cluster: QuorumWorld, node_id: int, seconds: float) -> float:
    """When the others know that it is fenced."""
    begun = cluster.world.loop.now
    others = [each for each in cluster.hosts if each != node_id]
    assert cluster.until(lambda: all(cluster.brokers[each].image.brokers[node_id].fenced for each in others), seconds)
    return cluster.world.loop.now - begun


def test_a_killed_broker_is_fenced_at_once(cluster: QuorumWorld) -> None:
    killed = cluster.others()[0]
    cluster.world.nodes[killed].kill()
    assert fenced_after(cluster, killed, AT_ONCE_S) > 0.05
    cluster.start(killed)
    assert not cluster.brokers[killed].image.brokers[killed].fenced


def test_a_killed_broker_that_told_by_an_end_is_fenced_at_once(cluster: QuorumWorld) -> None:
    cluster.world.network.conditions.fin = 1.0
    killed = cluster.others()[0]
    cluster.world.nodes[killed].kill()
    fenced_after(cluster, killed, AT_ONCE_S)


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_active_controller_that_is_killed_is_fenced_by_its_successor(seed: int) -> None:
    cluster = QuorumWorld(seed)
    for node_id in cluster.hosts:
        cluster.register(node_id)
    killed = cluster.active()
    cluster.run(1.0)
    cluster.world.nodes[killed].kill()
    fenced_after(cluster, killed, 1.0)


def test_a_broker_that_is_paused_has_its_session(cluster: QuorumWorld) -> None:
    paused = cluster.others()[0]
    cluster.world.nodes[paused].pause(10.0)
    assert fenced_after(cluster, paused, SESSION_S + 1.0) > SESSION_S - 0.6
    assert not [event for _, event, _ in cluster.events if event == "broker-died"]


def test_a_host_without_power_that_says_nothing_has_its_session(cluster: QuorumWorld) -> None:
    cluster.world.network.conditions.silent = True
    gone = cluster.others()[0]
    cluster.world.nodes[gone].power_cut()
    assert fenced_after(cluster, gone, SESSION_S + 1.0) > SESSION_S - 0.6


def test_a_connection_that_was_reset_fences_nobody(cluster: QuorumWorld) -> None:
    active, reset = cluster.active(), cluster.others()[0]
    for connection in list(cluster.brokers[active].acceptor.peers):
        if connection.transport.peer.startswith(cluster.hosts[reset]):
            connection.transport.reset()
    cluster.run(SESSION_S + 1.0)
    assert not cluster.brokers[active].image.brokers[reset].fenced
    assert not [event for _, event, _ in cluster.events if event == "broker-died"]
