"""Several nodes in one simulation: a host, disk, executor and clock for each, and the links between the hosts.

A node is started, stopped, killed, paused, and loses power by itself (`SimNode`); here is what they share: the agenda,
the network, the history. A simulation of one node is a world with one host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from duramen.ports import World
from duramen.sim.world.disk import CrashDisk
from duramen.sim.world.disk_faults import Latency
from duramen.sim.world.history import History
from duramen.sim.world.links import LinkState
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import Conditions, SimNetwork, SimPort
from duramen.sim.world.node import WALL_START_MS, Server, SimNode

CLIENTS = 0
"""Stands for the host of the clients where a node id is asked for."""

CLUSTER = Conditions(fin=0.5, silent=True)
"""How the network of several hosts behaves."""

MOST_DRIFT = 0.05
"""Share by which a machine's clock is fast or slow at most."""


def cluster_hosts(count: int) -> dict[int, str]:
    """Node ids from 1 on, and the address of each one's host."""
    return {node_id: f"10.0.0.{node_id}" for node_id in range(1, count + 1)}


def draw_rate(random: Random) -> float:
    """Of a clock that is somewhat fast or slow."""
    return random.uniform(1 - MOST_DRIFT, 1 + MOST_DRIFT)


class ClusterWorld:
    """What the nodes of one simulation share, the nodes, and what goes wrong between them.

    hosts: by node id; the clients have one of their own unless CLIENTS is named. torn: what a power cut leaves is torn.
    """

    def __init__(
        self,
        random: Random,
        hosts: dict[int, str],
        *,
        conditions: Conditions | None = None,
        torn: bool = True,
        keep_lines: bool = False,
    ) -> None:
        self.random = random
        self.hosts = {CLIENTS: "10.0.1.1"} | hosts
        self.loop = SimLoop(Random(random.getrandbits(64)))
        self.history = History(lambda: self.loop.now, keep=keep_lines)
        self.network = SimNetwork(self.loop, Random(random.getrandbits(64)), conditions)
        self.nodes: dict[int, SimNode] = {}
        self.disks: dict[int, CrashDisk] = {}
        self.latencies: dict[int, Latency] = {}
        for node_id in sorted(self.hosts.keys() - {CLIENTS}):
            disk = self.disks[node_id] = CrashDisk(Random(random.getrandbits(64)), torn=torn)
            latency = Latency(Random(random.getrandbits(64)))
            disk.latency = self.latencies[node_id] = latency

    def add(self, node_id: int, boot: Callable[[World], Server], rate: float = 1.0) -> SimNode:
        """A node on its host, not started yet. boot: builds its server. rate: of its clocks."""
        disk = self.disks[node_id]
        node = SimNode(
            node_id,
            self.loop,
            self.network,
            self.random,
            disk,
            boot,
            self.history.note,
            host=self.hosts[node_id],
            rate=rate,
        )
        disk.wall_ms = node.wall_ms
        self.nodes[node_id] = node
        return node

    def clients(self, name: str) -> tuple[Process, SimClock, SimPort]:
        """A process on the clients' host, its clock, and its port."""
        process = Process(name)
        return process, SimClock(self.loop, process, WALL_START_MS), SimPort(self.network, process, self.hosts[CLIENTS])

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Run until the condition holds, so long at most; returns whether it holds."""
        return self.loop.run(condition, self.loop.now + seconds)

    # ---- between the hosts -----------------------------------------------------------------------------------

    def cut(self, first: int, second: int, *, one_way: bool = False) -> None:
        """Lose what they send each other; one_way: only what the first one sends the second."""
        self._set("cut", LinkState.CUT, first, second, one_way=one_way)

    def stall(self, first: int, second: int, *, one_way: bool = False) -> None:
        """Hold up what they send each other: it arrives later, in order."""
        self._set("stall", LinkState.STALLED, first, second, one_way=one_way)

    def heal(self, first: int, second: int, *, one_way: bool = False) -> None:
        """Open the way between them again."""
        self._set("heal", LinkState.OPEN, first, second, one_way=one_way)

    def isolate(self, node_id: int, others: Iterable[int] | None = None) -> None:
        """Cut a node off from the others, in both directions; from all of them, and the clients, unless named."""
        for other in self.hosts if others is None else others:
            if other != node_id:
                self.cut(node_id, other)

    def heal_all(self) -> None:
        """Open every link; the delays stay."""
        self.history.note("links: all heal")
        self.network.links.mend()

    def slow(self, first: int, second: int, delay_s: tuple[float, float] | None) -> None:
        """Let what the first one sends the second take so long; None: as long as everywhere."""
        self.network.links.get(self.hosts[first], self.hosts[second]).delay_s = delay_s

    def _set(self, what: str, state: LinkState, first: int, second: int, *, one_way: bool) -> None:
        self.history.note(f"links: {what} {first} {'->' if one_way else '<->'} {second}")
        source, target = self.hosts[first], self.hosts[second]
        self.network.links.set_state(source, target, state)
        if not one_way:
            self.network.links.set_state(target, source, state)
