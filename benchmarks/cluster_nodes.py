"""Owns the nodes of a cluster under measurement: formed, started and read as users would, all on this machine."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clients
from benchmarks.broker_process import LOOPBACK, BrokerFailedError, free_port
from benchmarks.duramen_broker import EXECUTABLE, DuramenBroker
from benchmarks.scenarios import TOPIC_SETTINGS, Durability
from duramen.cli.shared.quorum_look import look_at_quorum
from duramen.client import Cluster

READY_SECONDS = 60.0
LOOK_SECONDS = 2.0


def _new_id() -> str:
    while True:
        found = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not found.startswith("-"):
            return found


class ClusterNode(DuramenBroker):
    """One node of the cluster: broker and controller in one process, with the settings of our templates."""

    def __init__(self, directory: Path, node_id: int) -> None:
        super().__init__(directory)
        self.name = f"node {node_id}"
        self.id = node_id
        self.controller = (LOOPBACK, free_port())
        self.directory_id = _new_id()

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    def configure(self, nodes: Sequence[ClusterNode], settings: Mapping[str, str]) -> None:
        self.prepare()
        own = {
            "node.id": str(self.id),
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self.controller[0]}:{self.controller[1]}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(f"{LOOPBACK}:{each.controller[1]}" for each in nodes),
            "log.dirs": str(self.directory / "data"),
            "metadata.log.dir": str(self.directory / "metadata"),
            "metrics.listener": f"{LOOPBACK}:{self.metrics_port}",
            **settings,
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in own.items()))

    def command(self) -> Sequence[str]:
        return [str(EXECUTABLE), "serve", "--config", str(self.properties)]

    def bytes_written(self) -> int:
        """What it gave the file systems to write, since it started; 0 where the system does not tell."""
        try:
            lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes")), 0)


class NodesCluster:
    """So many nodes that form one cluster."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self.nodes = [ClusterNode(directory / f"node-{number}", number) for number in range(1, count + 1)]
        self._admin: AdminClient | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def form(self) -> None:
        """Format every node's directories: the same cluster, the same voters."""
        settings = {"default.replication.factor": str(len(self.nodes)), "min.insync.replicas": "2"}
        settings["offsets.topic.replication.factor"] = settings["default.replication.factor"]
        if len(self.nodes) < 3:
            settings["min.insync.replicas"] = "1"
        cluster = _new_id()
        voters = ",".join(f"{n.id}@{LOOPBACK}:{n.controller[1]}:{n.directory_id}" for n in self.nodes)
        for node in self.nodes:
            node.configure(self.nodes, settings)
            command = [str(EXECUTABLE), "cluster", "init", "--config", str(node.properties)]
            words = ["--cluster-id", cluster, "--initial-controllers", voters]
            ran = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=False)
            if ran.returncode:
                raise BrokerFailedError(f"{node.name} cannot be formatted: {ran.stderr}")

    def start(self) -> float:
        """Start all; seconds until each knows all of them."""
        began = time.perf_counter()
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.await_reply(READY_SECONDS, began)
        while True:
            try:
                counts = {
                    len(AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0}).list_topics("", 5).brokers)
                    for node in self.nodes
                }
            except KafkaException:
                counts = set()
            if counts == {len(self.nodes)}:
                break
            if time.perf_counter() - began > READY_SECONDS:
                raise BrokerFailedError(f"the nodes know {sorted(counts)} of {len(self.nodes)} brokers")
            time.sleep(0.05)
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return time.perf_counter() - began

    def stop(self) -> None:
        """All at once."""
        for node in self.nodes:
            node.ask_to_stop()
        for node in self.nodes:
            node.stop()

    def node(self, number: int) -> ClusterNode:
        return self.nodes[number - 1]

    def active_controller(self) -> ClusterNode:
        until = time.monotonic() + READY_SECONDS
        while True:
            found = look_at_quorum([node.controller for node in self.nodes], LOOK_SECONDS).leader
            if found is not None:
                return self.node(found.leader_id)
            if time.monotonic() > until:
                raise BrokerFailedError(f"no active controller for {READY_SECONDS:.0f} s")
            time.sleep(0.1)

    def quorum_epoch(self) -> int:
        found = look_at_quorum([node.controller for node in self.nodes], LOOK_SECONDS).leader
        return -1 if found is None else found.leader_epoch

    # -- topics

    def create_topic(self, topic: str, replicas: Sequence[Sequence[int]], durability: Durability) -> None:
        """replicas: of each partition the ids of the nodes that have it, its leader first."""
        assert self._admin is not None
        settings = dict(TOPIC_SETTINGS[durability]["Duramen"])
        placed = [list(each) for each in replicas]
        new = NewTopic(topic, num_partitions=len(placed), replica_assignment=placed, config=settings)
        self._admin.create_topics([new])[topic].result(timeout=60)
        self._await_leaders(topic, replicas)

    def spread_topic(
        self,
        topic: str,
        partitions: int,
        copies: int,
        durability: Durability,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """The cluster places it; more: further settings."""
        assert self._admin is not None
        settings = {**TOPIC_SETTINGS[durability]["Duramen"], **(more or {})}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=copies, config=settings)
        self._admin.create_topics([new])[topic].result(timeout=120)

    def _await_leaders(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Write one record to its first partition until that is taken."""
        patience = time.monotonic() + 20
        while True:
            try:
                port = self.node(replicas[0][0]).port
                clients.raw("produce", port, 30, topic=topic, partitions=1, connections=1, requests=1, seconds=5)
                return
            except clients.ClientFailedError:
                if time.monotonic() > patience:
                    raise
                time.sleep(0.1)

    def delete_topic(self, topic: str) -> None:
        assert self._admin is not None
        self._admin.delete_topics([topic])[topic].result(timeout=60)

    def leader_epochs(self) -> dict[tuple[str, int], int]:
        """Of every partition, as a node tells them: an election raises one."""
        with Cluster(self.bootstrap) as cluster:
            topics = cluster.metadata().topics
        return {
            (name, index): partition.leader_epoch
            for name, topic in topics.items()
            for index, partition in topic.partitions.items()
        }


def disk_busy_seconds(directory: Path) -> float | None:
    """How long the disk of `directory` has had work so far; None where the system does not tell."""
    device = os.stat(directory).st_dev
    wanted = (str(os.major(device)), str(os.minor(device)))
    try:
        lines = Path("/proc/diskstats").read_text().splitlines()
    except OSError:
        return None
    for words in map(str.split, lines):
        if tuple(words[:2]) == wanted and len(words) > 12:
            return int(words[12]) / 1e3
    return None


def processor_seconds() -> float:
    """Of all processors since they were started: how long they had work, waiting for a disk and stolen time aside."""
    if sys.platform != "linux":
        return 0.0
    words = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    user, nice, system, _, _, interrupts, soft = (int(word) for word in words[:7])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")
