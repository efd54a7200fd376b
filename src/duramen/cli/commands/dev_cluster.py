"""The folder of `duramen dev`: a plan, and for each node its settings and its directories.

The plan says whether the cluster was formed. Once it was, nothing is formatted again: a voter whose directory somebody
removed would vote as if it had never had one.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from duramen.cli.shared.properties_file import split_settings
from duramen.config import load_broker_config, parse_http_address
from duramen.errors import ConfigError
from duramen.partition.metadata.formation import Founding, format_node, new_id, parse_controllers
from duramen.storage import RealDisk, SystemEntropy, is_formatted

HOST: Final = "127.0.0.1"
NODES: Final = 3
MOST_COPIES: Final = 3
PLAN: Final = "dev.json"
PORTS_APART: Final = 10
_PORTS: Final = range(15_000, 32_000)
"""None of those that the system gives to connections (Linux: from 32768 on)."""
_TRIES: Final = 200
_OURS: Final = (
    "node.id",
    "process.roles",
    "listeners",
    "advertised.listeners",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "log.dirs",
    "metadata.log.dir",
    "metrics.listener",
)


class DevNode(NamedTuple):
    """One of the nodes. folder: with its settings, its data and its metadata."""

    id: int
    folder: str
    broker: tuple[str, int]
    controller: tuple[str, int]

    @property
    def settings_file(self) -> str:
        return os.path.join(self.folder, "server.properties")

    @property
    def directories(self) -> tuple[str, str]:
        return os.path.join(self.folder, "data"), os.path.join(self.folder, "metadata")


class DevCluster:
    """A folder with nodes; ConfigError where it is another one than is asked for.

    nodes, port: None for what is there, and for three on free ports in an empty one. settings: of every node.
    """

    def __init__(self, folder: str, nodes: int | None, port: int | None, settings: Mapping[str, str]) -> None:
        for key in _OURS:
            if key in settings:
                raise ConfigError(f"--set {key}: `duramen dev` sets it itself, for each node")
        self.folder = folder
        self._disk = RealDisk()
        self._path = os.path.join(folder, PLAN)
        os.makedirs(folder, exist_ok=True)
        self._plan = self._found() or self._planned(nodes or NODES, port)
        if nodes not in (None, self._plan["nodes"]):
            raise ConfigError(
                f"--nodes {nodes}: the cluster in {folder} has {self._plan['nodes']}; name another folder"
            )
        if port not in (None, self._plan["port"]):
            raise ConfigError(
                f"--port {port}: the cluster in {folder} has its ports, from {self._plan['port']} on, in its log; "
                "leave --port out, or name another folder"
            )
        self.nodes = [self._node(number) for number in range(1, self._plan["nodes"] + 1)]
        self._settings = settings

    def _found(self) -> dict[str, Any] | None:
        if os.path.exists(self._path):
            with open(self._path, encoding="utf-8") as file:
                try:
                    found: dict[str, Any] = json.load(file)
                except ValueError:
                    raise ConfigError(f"{self._path} is no plan of `duramen dev`; name another folder") from None
            return found
        if os.listdir(self.folder):
            raise ConfigError(f"{self.folder} is not empty, and holds no cluster of `duramen dev`; name another folder")
        return None

    def _planned(self, nodes: int, port: int | None) -> dict[str, Any]:
        entropy = SystemEntropy()
        if port is None:
            port = _free_ports(nodes)
        last = port + PORTS_APART * (nodes - 1) + 1
        if last > 65_535:
            raise ConfigError(f"--port {port}: {nodes} nodes need ports up to {last}, and there are 65535")
        plan = {"nodes": nodes, "port": port, "cluster_id": new_id(entropy), "formed": False}
        return {**plan, "directory_ids": [new_id(entropy) for _ in range(nodes)]}

    def _node(self, number: int) -> DevNode:
        port = self._plan["port"] + PORTS_APART * (number - 1)
        return DevNode(number, os.path.join(self.folder, f"node-{number}"), (HOST, port), (HOST, port + 1))

    @property
    def is_formed(self) -> bool:
        return bool(self._plan["formed"])

    def form(self, ended: Callable[[], bool]) -> None:
        """Write the settings, and format what is new. ended: whether to stop before the next node."""
        for node in self.nodes:
            os.makedirs(node.folder, exist_ok=True)
            with open(node.settings_file, "w", encoding="utf-8") as file:
                file.write("# Written anew by each run of `duramen dev`.\n")
                file.writelines(_line(*each) for each in self.settings_of(node).items())
        if self.is_formed:
            return
        self._keep_plan()
        voters = ",".join(
            f"{node.id}@{HOST}:{node.controller[1]}:{directory_id}"
            for node, directory_id in zip(self.nodes, self._plan["directory_ids"], strict=True)
        )
        # A node alone makes its directory itself, as `duramen serve` does.
        for node in self.nodes if len(self.nodes) > 1 else ():
            if ended():
                return
            if not is_formatted(self._disk, node.directories[1]):  # else a run before this one got as far
                config = load_broker_config(None, split_settings(self.settings_of(node))[0])
                founding = Founding(parse_controllers("voters", voters))
                now_ms = int(time.time() * 1000)
                format_node(self._disk, SystemEntropy(), config, self._plan["cluster_id"], founding, now_ms)
        self._plan["formed"] = True
        self._keep_plan()

    def _keep_plan(self) -> None:
        with open(f"{self._path}.tmp", "w", encoding="utf-8") as file:
            json.dump(self._plan, file)
            file.flush()
            os.fsync(file.fileno())
        self._disk.rename(f"{self._path}.tmp", self._path)
        self._disk.sync_directory(self.folder)

    def settings_of(self, node: DevNode) -> dict[str, str]:
        """The settings of one node."""
        data, metadata = node.directories
        own = {
            "node.id": str(node.id),
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{HOST}:{node.broker[1]},CONTROLLER://{HOST}:{node.controller[1]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": data,
            "metadata.log.dir": metadata,
        }
        if len(self.nodes) > 1:
            others = ",".join(f"{HOST}:{each.controller[1]}" for each in self.nodes)
            own["controller.quorum.bootstrap.servers"] = others
            copies = min(MOST_COPIES, len(self.nodes))
            for name in ("default", "offsets.topic", "transaction.state.log"):
                own[f"{name}.replication.factor"] = str(copies)
            if copies == MOST_COPIES:
                # What is acknowledged outlives any one of them.
                own["min.insync.replicas"] = own["transaction.state.log.min.isr"] = "2"
        settings = {**own, **self._settings}
        if "gateway.listener" in settings:  # each node runs one, at the next port
            address = parse_http_address(settings["gateway.listener"])
            settings["gateway.listener"] = str(address.moved(node.id - 1))
        return settings


def _line(key: str, value: str) -> str:
    """A line of a .properties file."""
    escaped = value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
    blank = "\\" if escaped[:1].isspace() else ""
    return f"{key}={blank}{escaped}\n"


def _free_ports(nodes: int) -> int:
    """The first of as many ports as these need, all of them free now."""
    chance = random.SystemRandom()
    for _ in range(_TRIES):
        first = chance.randrange(_PORTS.start, _PORTS.stop - PORTS_APART * nodes)
        if all(_is_free(first + PORTS_APART * number + at) for number in range(nodes) for at in (0, 1)):
            return first
    raise ConfigError(f"no free ports between {_PORTS.start} and {_PORTS.stop}; --port says which to take")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
