"""Three controllers as real processes: formed by `duramen cluster init`, each with its file of settings."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.worlds.served_node import DURAMEN, Served, free_port

from duramen.cli.shared.quorum_look import Address, QuorumAnswer, QuorumLook, look_at_quorum
from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.errors import DuramenError
from duramen.partition.metadata.formation import new_id
from duramen.storage import SystemEntropy
from duramen.wire.messages.metadata import MetadataRequest

WAIT_SECONDS = 60.0
_LOOK_SECONDS = 2.0
_METADATA = 3


class ServedController(Served):
    """One of them, with its own folder and settings."""

    def __init__(self, folder: Path, node_id: int, *, has_broker: bool) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder)
        self.id = node_id
        self.has_broker = has_broker
        self.controller: Address = ("127.0.0.1", free_port())
        self.directory_id = new_id(SystemEntropy())
        self.metadata = folder / "metadata"
        self.log_folder = self.metadata / "__cluster_metadata-0"
        self.properties = folder / "server.properties"

    @property
    def address(self) -> str:
        return f"{self.controller[0]}:{self.controller[1]}"

    def configure(self, others: Iterable[ServedController], settings: dict[str, str]) -> None:
        brokers = f"PLAINTEXT://{self.bootstrap}," if self.has_broker else ""
        own = {
            "node.id": str(self.id),
            "process.roles": "broker,controller" if self.has_broker else "controller",
            "listeners": f"{brokers}CONTROLLER://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(each.address for each in others),
            "log.dirs": str(self.data),
            "metadata.log.dir": str(self.metadata),
            **settings,
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in own.items()))

    def command(self) -> list[str]:
        return [DURAMEN, "serve", "--config", str(self.properties)]

    def init(self, *voters: str) -> None:
        """Format it: `--initial-controllers LIST` and the like."""
        command = [DURAMEN, "cluster", "init", "--config", str(self.properties), *voters]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr

    def ends(self) -> int:
        """Its exit status; it ends by itself."""
        assert self.process is not None
        status = self.process.wait(WAIT_SECONDS)
        self.process = None
        return status

    def whole_log(self) -> str:
        """From its first start on."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def says(self, text: str, since: int = 0) -> None:
        """Wait until its log has this. since: behind so many characters of `whole_log`."""
        until = time.monotonic() + WAIT_SECONDS
        while text not in self.whole_log()[since:]:
            assert time.monotonic() < until, f"no {text!r} in:\n{self.log()}"
            time.sleep(0.05)

    def sees(self) -> tuple[set[int], bool]:
        """The brokers that are not fenced, and whether every replica of every partition is in sync, as it tells."""
        until = time.monotonic() + _LOOK_SECONDS
        asked = BlockingConnection("127.0.0.1", self.port, "test", until, MAX_FRAME_BYTES)
        try:
            told = asked.call(_METADATA, MetadataRequest.new(topics=None), until)
        finally:
            asked.close()
        parts = [part for topic in told.topics for part in topic.partitions]
        in_sync = all(part.leader_id >= 0 and set(part.isr_nodes) == set(part.replica_nodes) for part in parts)
        return {broker.node_id for broker in told.brokers}, in_sync


def waited(what: Callable[[], Any], why: str) -> Any:
    """What it returns, as soon as that is true. why: what never came."""
    until = time.monotonic() + WAIT_SECONDS
    while not (found := what()):
        assert time.monotonic() < until, why
        time.sleep(0.05)
    return found


class ControllerTrio:
    """Three of them (or so many), not started."""

    def __init__(
        self, folder: Path, settings: dict[str, str] | None = None, *, has_broker: bool = True, nodes: int = 3
    ) -> None:
        self.cluster_id = new_id(SystemEntropy())
        self.nodes = [ServedController(folder / str(node), node, has_broker=has_broker) for node in range(1, nodes + 1)]
        for node in self.nodes:
            node.configure(self.nodes, settings or {})

    def voters(self) -> str:
        """As --initial-controllers takes them."""
        return ",".join(f"{node.id}@{node.address}:{node.directory_id}" for node in self.nodes)

    def founding(self) -> tuple[str, ...]:
        return ("--cluster-id", self.cluster_id, "--initial-controllers", self.voters())

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def form(self) -> None:
        for node in self.nodes:
            node.init(*self.founding())

    def launch(self) -> None:
        for node in self.nodes:
            node.launch()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        """All at once."""
        for node in self.nodes:
            if node.process is not None:
                node.process.terminate()
        for node in self.nodes:
            if node.process is not None:
                assert node.process.wait(WAIT_SECONDS) == 0, node.log()
                node.process = None

    @classmethod
    @contextmanager
    def formed(cls, folder: Path, settings: dict[str, str]) -> Iterator[ControllerTrio]:
        """Three with brokers, formed, for as long as this lasts."""
        trio = cls(folder, settings)
        trio.form()
        try:
            yield trio
        finally:
            trio.kill()

    def node(self, number: int) -> ServedController:
        return self.nodes[number - 1]

    def look(self) -> QuorumLook:
        return look_at_quorum([node.controller for node in self.nodes], _LOOK_SECONDS)

    def leader(self, fits: Callable[[QuorumAnswer], bool] = lambda _: True) -> QuorumAnswer:
        """The leader, as soon as there is one that fits."""
        until = time.monotonic() + WAIT_SECONDS
        while True:
            look = self.look()
            if look.leader is not None and fits(look.leader):
                return look.leader
            assert time.monotonic() < until, f"{look}\n" + "\n".join(node.log() for node in self.nodes)
            time.sleep(0.05)

    def caught_up(self, nodes: Sequence[int] = (1, 2, 3)) -> QuorumAnswer:
        """The leader, as soon as these voters lack nothing."""
        return self.leader(lambda answer: all(each.lag == 0 for each in answer.voters if each.id in nodes))

    def whole(self) -> None:
        """Start who is down; wait until all brokers are there and every replica is in sync, as each of them tells."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is not None:
                node.process = None  # it ended by itself
            if node.process is None:
                node.launch()
        self.caught_up()
        ids = {node.id for node in self.nodes}
        until = time.monotonic() + WAIT_SECONDS
        for node in self.nodes:
            told: object = None
            while told != (ids, True):
                try:
                    told = node.sees()
                except (DuramenError, OSError) as error:  # it does not serve clients yet
                    told = error
                if told != (ids, True):
                    assert time.monotonic() < until, f"node {node.id}: {told}\n{node.log()}"
                    time.sleep(0.05)
