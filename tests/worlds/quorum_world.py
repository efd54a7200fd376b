"""Three nodes of one cluster in one world: formatted, started, and asked on their controllers' listeners."""

from __future__ import annotations

from random import Random
from typing import Any

from duramen.client.loop.node_client import NodeClient, NodeRequest, call
from duramen.config import BrokerConfig
from duramen.machines.metadata.commands import Registered
from duramen.partition.metadata.formation import Founding, InitialController, format_node, new_id
from duramen.ports import World
from duramen.server.broker import Broker
from duramen.sim.run.simulation import configuration
from duramen.sim.world.cluster import ClusterWorld, cluster_hosts
from duramen.sim.world.entropy import SimEntropy
from duramen.sim.world.node import Server

PORT = 9092
CONTROLLER_PORT = 9093
WAIT_S = 60.0


class QuorumWorld:
    """Nodes from 1 on, all of them voters."""

    def __init__(self, seed: int = 1, count: int = 3, **settings: str) -> None:
        random = Random(seed)
        self.hosts = cluster_hosts(count)
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.world = ClusterWorld(random, self.hosts)
        self.brokers: dict[int, Broker] = {}
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        _, self.clock, self.port = self.world.clients("clients")
        entropy = SimEntropy(Random(seed))
        cluster_id = self.cluster_id = new_id(entropy)
        voters = [InitialController(each, self.hosts[each], CONTROLLER_PORT, new_id(entropy)) for each in self.hosts]
        for node_id in self.hosts:
            disk = self.world.disks[node_id]
            format_node(disk, entropy, self.config(node_id), cluster_id, Founding(voters), 1)
            self.world.add(node_id, lambda world, node_id=node_id: self.boot(node_id, world))
        self.start(*self.hosts)

    def config(self, node_id: int) -> BrokerConfig:
        host = self.hosts[node_id]
        servers = ",".join(f"{each}:{CONTROLLER_PORT}" for each in self.hosts.values())
        settings = {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{host}:{PORT},CONTROLLER://{host}:{CONTROLLER_PORT}",
            "controller.quorum.bootstrap.servers": servers,
        }
        return configuration(settings | self.settings, node_id)

    def boot(self, node_id: int, world: World) -> Server:
        def report(level: str, event: str, fields: dict[str, Any]) -> None:
            self.events.append((node_id, event, fields))

        broker = self.brokers[node_id] = Broker(world, self.config(node_id), report)
        return broker

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.world.nodes[node_id].start()
        assert self.until(lambda: all(self.world.nodes[each].ready for each in node_ids))

    def wipe(self, node_id: int) -> None:
        """End the node, and give it an empty disk, formatted as one that joins."""
        self.world.nodes[node_id].kill()
        disk = self.world.disks[node_id]
        disk.wipe()
        format_node(disk, SimEntropy(Random(0)), self.config(node_id), self.cluster_id, Founding(), 1)
        disk.end_process()

    def until(self, condition: Any, seconds: float = WAIT_S) -> bool:
        return self.world.until(condition, seconds)

    def run(self, seconds: float) -> None:
        self.world.until(lambda: False, seconds)

    @property
    def running(self) -> list[int]:
        return [each for each, node in self.world.nodes.items() if node.running]

    def active(self) -> int:
        """The node that decides, once all that run know it."""
        found: list[int] = []

        def is_known() -> bool:
            found[:] = [each for each in self.running if self.brokers[each].controller.is_active]
            known = {self.brokers[each].controller.quorum.leader_id for each in self.running}
            return len(found) == 1 and known == set(found)

        assert self.until(is_known), self.events[-20:]
        return found[0]

    def others(self) -> list[int]:
        """Those that run and do not decide."""
        active = self.active()
        return [each for each in self.running if each != active]

    def send(self, node_id: int, request: NodeRequest, port: int = CONTROLLER_PORT) -> list[Any]:
        """What comes back will be in the list."""
        answers: list[Any] = []
        client = NodeClient(self.port, self.clock, self.hosts[node_id], port, "c")
        client.send(request, answers.append)
        return answers

    def ask(self, node_id: int, name: str, version: int, **fields: Any) -> Any:
        return self._answer(self.send(node_id, call(name, version, **fields)))

    def ask_broker(self, node_id: int, name: str, version: int, **fields: Any) -> Any:
        """The same on the listener for clients."""
        return self._answer(self.send(node_id, call(name, version, **fields), PORT))

    def _answer(self, answers: list[Any]) -> Any:
        assert self.until(lambda: bool(answers))
        return answers[0]

    def asked(self, node_id: int, command: Any, timeout: float | None = None) -> list[Any]:
        """The answer to a command of that node will be in the list."""
        answers: list[Any] = []
        self.brokers[node_id].controller_client.ask(command, answers.append, timeout)
        return answers

    def register(self, node_id: int) -> Registered:
        """Of the broker of that node, as soon as it is unfenced."""
        broker = self.brokers[node_id]
        assert self.until(lambda: broker.ready)
        return Registered(broker.broker_epoch)

    def join(self, node_id: int) -> int:
        """The epoch of the broker of that node, as soon as it counts on all nodes."""
        epoch = self.register(node_id).broker_epoch
        assert self.until(lambda: all(self._counts(node_id, each) for each in self.running))
        return epoch

    def _counts(self, node_id: int, at: int) -> bool:
        """Whether the broker is active in the image of that node."""
        found = self.brokers[at].image.brokers.get(node_id)
        return found is not None and found.active
