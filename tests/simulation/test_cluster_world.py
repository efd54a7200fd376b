"""The production server on three hosts of one world, which is what a cluster's simulation is built from."""

from __future__ import annotations

from random import Random
from typing import Any

from duramen.client.loop.node_client import NodeClient, NodeRequest, call
from duramen.ports import World
from duramen.server.broker import Broker
from duramen.sim.check.leaks import check_stopped
from duramen.sim.run.simulation import configuration
from duramen.sim.world.cluster import CLUSTER, ClusterWorld, cluster_hosts, draw_rate
from duramen.sim.world.node import Server

PORT = 9092
WAIT_S = 60.0


class Brokers:
    """Three brokers that do not know each other yet, and a client of each."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.hosts = cluster_hosts(3)
        self.world = ClusterWorld(random, self.hosts, conditions=CLUSTER)
        _, self.clock, self.port = self.world.clients("clients")
        for node_id in self.hosts:
            self.world.add(node_id, lambda world, node_id=node_id: self.boot(node_id, world), draw_rate(random))
        self.start(*self.hosts)

    def boot(self, node_id: int, world: World) -> Server:
        listeners = {"listeners": f"PLAINTEXT://{self.hosts[node_id]}:{PORT}"}
        return Broker(world, configuration(listeners, node_id), lambda level, event, fields: None)

    def start(self, *node_ids: int) -> None:
        nodes = [self.world.nodes[node_id] for node_id in node_ids]
        for node in nodes:
            node.start()
        assert self.world.until(lambda: all(node.ready for node in nodes), WAIT_S)

    def ask(self, node_id: int, request: NodeRequest) -> Any:
        answers: list[Any] = []
        client = NodeClient(self.port, self.clock, self.hosts[node_id], PORT, "c")
        client.send(request, answers.append)
        assert self.world.until(lambda: bool(answers), WAIT_S)
        client.drop()
        return answers[0]

    def topics(self, node_id: int) -> list[str] | None:
        """What the node has, whose address is its own; None when it does not answer."""
        answer = self.ask(node_id, call("Metadata", 12, topics=None))
        if answer is None:
            return None
        assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
            (node_id, self.hosts[node_id], PORT)
        ]
        return [topic.name for topic in answer.topics]


def test_three_brokers_live_and_die_apart() -> None:
    brokers = Brokers(1)
    for node_id in brokers.hosts:
        request = call("CreateTopics", 7, timeout_ms=1000)
        topic = request.api.request.CreatableTopic(name=f"of-{node_id}", num_partitions=1, replication_factor=1)
        request.request.topics = [topic]
        assert [topic.error_code for topic in brokers.ask(node_id, request).topics] == [0]
    nodes = brokers.world.nodes
    nodes[1].kill()
    nodes[2].power_cut()
    nodes[3].pause(2.0)
    assert [brokers.topics(node_id) for node_id in (1, 2)] == [None, None]
    assert brokers.topics(3) == ["of-3"]
    brokers.start(1, 2)
    assert [brokers.topics(node_id) for node_id in (1, 2, 3)] == [["of-1"], ["of-2"], ["of-3"]]
    brokers.world.isolate(2)
    assert [brokers.topics(node_id) for node_id in (1, 2, 3)] == [["of-1"], None, ["of-3"]]
    brokers.world.heal_all()
    assert brokers.topics(2) == ["of-2"]
    for node in nodes.values():
        node.stop()
    assert brokers.world.until(lambda: not any(node.running for node in nodes.values()), WAIT_S)
    for disk in brokers.world.disks.values():
        check_stopped(disk)
