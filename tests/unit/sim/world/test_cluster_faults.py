"""Several nodes in one world: each has a host, a disk, threads and clocks of its own, and faults of its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.worlds.answering_node import AnsweringNode, ask

from duramen.client.loop.peer_channel import ChannelLimits, PeerChannel
from duramen.client.loop.peer_channels import PeerChannels, Purpose
from duramen.ports import World
from duramen.sim.world.cluster import CLIENTS, CLUSTER, MOST_DRIFT, ClusterWorld, cluster_hosts, draw_rate
from duramen.sim.world.entropy import SimEntropy

PORT = 9093
HOSTS = cluster_hosts(3)


class TinyNode:
    """Writes how often it was started, answers, and asks the two others every 100 ms of its own clock."""

    def __init__(self, cluster: TinyCluster, node_id: int, world: World) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.world = world
        self.answered: dict[int, int] = dict.fromkeys(HOSTS, 0)
        self.lost: dict[int, int] = dict.fromkeys(HOSTS, 0)
        self.channels: PeerChannels

    def start(self, on_ready: Callable[[], None]) -> None:
        disk, world = self.world.disk, self.world
        file = disk.open("/count", create=True, write=True)
        disk.sync_directory("/")
        file.pwritev([b"x"], file.size())
        AnsweringNode(world.network, "", PORT)
        self.channels = PeerChannels(
            world.network,
            world.clock,
            world.entropy,
            f"n{self.node_id}",
            lambda purpose, node_id: self.cluster.died(self.node_id, node_id),
            dict.fromkeys(Purpose, ChannelLimits(connect_s=0.5, probes=2)),
        )
        world.executor.submit("journal", file.sync, lambda *_: on_ready())
        for node_id in HOSTS.keys() - {self.node_id}:
            self.ask(node_id)

    def ask(self, node_id: int) -> None:
        def on_reply(response: Any) -> None:
            (self.lost if response is None else self.answered)[node_id] += 1
            self.world.clock.call_later(0.1, lambda: self.ask(node_id))

        self.channels.to(Purpose.QUORUM, node_id, HOSTS[node_id], PORT).send(ask(), on_reply, 0.5)

    def stop(self, on_stopped: Callable[[], None]) -> None:
        self.channels.close()
        self.world.clock.call_later(0.01, on_stopped)


class TinyCluster:
    """Three of them, started. deaths: (who saw it, who died, when)."""

    def __init__(self, seed: int = 1) -> None:
        random = Random(seed)
        self.world = ClusterWorld(random, HOSTS, conditions=CLUSTER, keep_lines=True)
        self.deaths: list[tuple[int, int, float]] = []
        self.servers: dict[int, TinyNode] = {}
        for node_id in HOSTS:
            self.world.add(node_id, lambda world, node_id=node_id: self.boot(node_id, world), draw_rate(random))
        for node in self.world.nodes.values():
            node.start()
        self.run(1.0)
        assert all(node.ready for node in self.world.nodes.values())

    def boot(self, node_id: int, world: World) -> TinyNode:
        self.servers[node_id] = TinyNode(self, node_id, world)
        return self.servers[node_id]

    def died(self, seen_by: int, node_id: int) -> None:
        self.deaths.append((seen_by, node_id, self.world.loop.now))

    def run(self, seconds: float) -> None:
        self.world.until(lambda: False, seconds)

    def talk(self, seconds: float = 2.0) -> set[tuple[int, int]]:
        """Who gets answers from whom while so much time passes."""
        before = {node_id: dict(server.answered) for node_id, server in self.servers.items()}
        self.run(seconds)
        return {
            (node_id, other)
            for node_id, server in self.servers.items()
            for other in HOSTS
            if server.answered[other] > before[node_id][other] and self.world.nodes[node_id].running
        }


EVERYBODY = {(one, other) for one in HOSTS for other in HOSTS if one != other}


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_is_seen_by_the_others_at_once(seed: int) -> None:
    cluster = TinyCluster(seed)
    assert cluster.talk() == EVERYBODY
    cluster.world.nodes[1].kill()
    killed = cluster.world.loop.now
    assert cluster.talk() == {(2, 3), (3, 2)}
    assert sorted(death[:2] for death in cluster.deaths) == [(2, 1), (3, 1)]
    assert all(0.04 < time - killed < 0.2 for *_, time in cluster.deaths)
    cluster.world.nodes[1].start()
    cluster.run(3.0)
    assert cluster.talk() == EVERYBODY
    assert cluster.world.disks[1].contents()["/count"] == b"xx"
    assert cluster.world.disks[2].contents()["/count"] == b"x"


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_is_silence_until_the_machine_is_back(seed: int) -> None:
    cluster = TinyCluster(seed)
    cluster.world.nodes[1].power_cut()
    cluster.run(10.0)
    assert cluster.talk() == {(2, 3), (3, 2)}
    assert cluster.deaths == []
    cluster.world.nodes[1].start()
    cluster.run(3.0)
    assert cluster.talk() == EVERYBODY


def test_a_pause_answers_nothing_and_keeps_its_connections() -> None:
    cluster = TinyCluster()
    server = cluster.servers[1]
    own, clock, port = cluster.world.clients("watcher")
    answers: list[Any] = []
    channel = PeerChannel(port, clock, SimEntropy(Random(1)), HOSTS[1], PORT, "w")
    channel.send(ask(), answers.append, 60.0)
    assert cluster.world.until(lambda: len(answers) == 1, 1.0)
    cluster.world.nodes[1].pause(5.0)
    paused = cluster.world.loop.now
    late = port.connect(HOSTS[1], PORT)
    accepted: list[float] = []

    def on_connected() -> None:
        accepted.append(cluster.world.loop.now)
        late.set_writer(None)

    late.set_writer(on_connected)
    channel.send(ask(), answers.append, 60.0)
    answered = dict(server.answered)
    cluster.run(4.9)
    assert accepted, "by the kernel"
    assert accepted[0] - paused < 0.01
    assert len(answers) == 1
    assert channel.connected
    assert server.answered == answered, "it does nothing itself, either"
    assert cluster.deaths == []
    cluster.run(0.2)
    assert len(answers) == 2
    cluster.run(3.0)
    assert cluster.talk() == EVERYBODY
    assert cluster.deaths == []
    late.close()
    channel.close()
    cluster.run(1.0)
    assert cluster.world.loop.planned(own) == 0


def test_a_paused_node_can_be_killed() -> None:
    cluster = TinyCluster()
    cluster.world.nodes[1].pause(100.0)
    cluster.run(0.05)
    cluster.world.nodes[1].kill()
    cluster.run(1.0)
    assert sorted(death[:2] for death in cluster.deaths) == [(2, 1), (3, 1)]
    with pytest.raises(ValueError, match="does not run"):
        cluster.world.nodes[1].pause(1.0)
    cluster.world.nodes[1].start()
    cluster.run(3.0)
    assert cluster.talk() == EVERYBODY


@pytest.mark.parametrize("seed", range(2))
def test_cuts_and_stalls_between_two_of_three(seed: int) -> None:
    cluster = TinyCluster(seed)
    world = cluster.world
    world.cut(1, 2)
    cluster.run(2.0)
    assert cluster.talk() == EVERYBODY - {(1, 2), (2, 1)}
    world.heal(1, 2)
    cluster.run(3.0)
    assert cluster.talk() == EVERYBODY
    world.cut(1, 2, one_way=True)
    cluster.run(2.0)
    assert cluster.talk() == EVERYBODY - {(1, 2), (2, 1)}, "a question or its answer is lost"
    world.heal_all()
    cluster.run(3.0)
    world.stall(2, 3)
    cluster.run(2.0)
    assert cluster.talk() == EVERYBODY - {(2, 3), (3, 2)}
    world.heal(2, 3)
    cluster.run(3.0)
    assert cluster.talk() == EVERYBODY
    world.isolate(3)
    cluster.run(2.0)
    assert cluster.talk() == {(1, 2), (2, 1)}
    world.heal_all()
    cluster.run(3.0)
    assert cluster.talk() == EVERYBODY
    assert cluster.deaths == [], "nobody has died"
    world.slow(1, 2, (0.3, 0.3))
    cluster.run(1.0)
    talk = cluster.talk()
    assert {(1, 2), (2, 1)} <= talk, "slow is not gone"
    assert any("cut 1 -> 2" in line for line in world.history.lines)


def test_clients_can_be_cut_off_too() -> None:
    cluster = TinyCluster()
    _, clock, port = cluster.world.clients("client")
    channel = PeerChannel(port, clock, SimEntropy(Random(1)), HOSTS[1], PORT, "c")
    answers: list[Any] = []
    cluster.world.cut(CLIENTS, 1)
    channel.send(ask(), answers.append, 1.0)
    cluster.run(2.0)
    assert answers == [None]
    cluster.world.heal(CLIENTS, 1)
    channel.send(ask(), answers.append, 1.0)
    cluster.run(2.0)
    assert answers[1] is not None
    assert cluster.talk() == EVERYBODY


def test_clocks_run_at_their_own_rates_and_jump_alone() -> None:
    cluster = TinyCluster(3)
    world, loop = cluster.world, cluster.world.loop
    rates = {node_id: node.rate for node_id, node in world.nodes.items()}
    assert len(set(rates.values())) == 3
    assert all(abs(rate - 1) <= MOST_DRIFT for rate in rates.values())
    clocks = {node_id: server.world.clock for node_id, server in cluster.servers.items()}
    began, rang = loop.now, dict[int, float]()
    before = {node_id: (clock.monotonic(), clock.wall_ms()) for node_id, clock in clocks.items()}
    for node_id, clock in clocks.items():
        clock.call_later(10.0, lambda node_id=node_id: rang.setdefault(node_id, loop.now))  # type: ignore[misc]
    world.nodes[2].set_clock(-3_600_000)
    cluster.run(20.0)
    for node_id, clock in clocks.items():
        monotonic, wall_ms = before[node_id]
        assert rang[node_id] - began == pytest.approx(10.0 / rates[node_id], abs=1e-6)
        assert clock.monotonic() - monotonic == pytest.approx(20.0 * rates[node_id], abs=1e-6)
        jump = -3_600_000 if node_id == 2 else 0
        assert clock.wall_ms() - wall_ms == pytest.approx(20_000 * rates[node_id] + jump, abs=2)
        assert clock.wall_ms() == world.nodes[node_id].wall_ms()


@pytest.mark.parametrize("rate", [0.95, 0.99993, 1.0, 1.000001, 1.05])
def test_a_timer_is_never_early_by_its_own_clock(rate: float) -> None:
    """Who asks again for what is left to wait must come to an end."""
    world = ClusterWorld(Random(1), {1: "h"})
    node = world.add(1, lambda ports: _waits(ports), rate)
    node.start()
    assert world.until(lambda: node.ready, 10.0)
    assert world.loop.events_run < 3000


def _waits(ports: World) -> Any:
    random = Random(2)

    class Waiting:
        def start(self, on_ready: Callable[[], None]) -> None:
            due = [ports.clock.monotonic() + random.uniform(0.0, 9.0) for _ in range(500)]
            left = set(due)

            def look(end: float) -> None:
                wait = end - ports.clock.monotonic()
                if wait > 0:
                    ports.clock.call_later(wait, lambda: look(end))
                else:
                    left.discard(end)
                    if not left:
                        on_ready()

            for end in due:
                look(end)

        def stop(self, on_stopped: Callable[[], None]) -> None: ...

    return Waiting()


def test_the_same_seed_is_the_same_history() -> None:
    def history(seed: int) -> tuple[str, int, list[tuple[int, int, float]]]:
        cluster = TinyCluster(seed)
        random = Random(seed)
        for _ in range(10):
            one, other = random.sample(sorted(HOSTS), 2)
            random.choice((cluster.world.cut, cluster.world.stall, cluster.world.heal))(one, other)
            node = cluster.world.nodes[one]
            if not node.running:
                node.start()
            else:
                random.choice((node.kill, node.power_cut, lambda node=node: node.pause(1.0)))()  # type: ignore[misc]
            cluster.run(random.uniform(0.1, 2.0))
        return cluster.world.history.digest(), cluster.world.loop.events_run, cluster.deaths

    assert history(1) == history(1)
    assert history(1) != history(2)
