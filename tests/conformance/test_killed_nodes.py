"""Who is killed is fenced at once where controllers reach it; an address that they cannot reach fences nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.controller_trio import ControllerTrio, ServedController
from tests.worlds.served_node import free_port, only_duramen

from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.errors import NoConnectionError
from duramen.wire.messages.metadata import MetadataRequest

pytestmark = [pytest.mark.timeout(120), only_duramen]

METADATA = 3
SESSION_S = 3.0
BETWEEN_HEARTBEATS_S = 0.5
AT_ONCE_S = 1.5
"""It takes a tenth of that on a machine that has nothing else to do, and two where a leader is elected first."""
WAIT_S = 20.0
KNOWN_AFTER_S = 1.0
"""Controllers know by then whether a broker's address answers."""


class Four(ControllerTrio):
    """Three combined nodes, and a broker whose address for clients is one where nobody listens here."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.elsewhere = ServedController(folder / "4", 4, has_broker=True)
        own = {
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{self.elsewhere.bootstrap}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        }
        self.elsewhere.configure(self.nodes, own)

    def form(self) -> None:
        super().form()
        self.elsewhere.init("--cluster-id", self.cluster_id)
        self.nodes.append(self.elsewhere)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Four]:
    four = Four(tmp_path_factory.mktemp("dead"))
    four.form()
    four.launch()
    try:
        for node in four.nodes:
            node.says("is ready")
        yield four
    finally:
        four.kill()


def alive(asked: BlockingConnection) -> set[int]:
    """The brokers that are not fenced, as a node tells."""
    answer = asked.call(METADATA, MetadataRequest.new(topics=[]), time.monotonic() + WAIT_S)
    return {broker.node_id for broker in answer.brokers}


def connected(node: ServedController) -> BlockingConnection:
    """As soon as it serves clients."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return BlockingConnection("127.0.0.1", node.port, "test", until, MAX_FRAME_BYTES)
        except NoConnectionError:
            assert time.monotonic() < until
            time.sleep(0.05)


def fenced_after(four: Four, node: ServedController) -> float:
    """Seconds from the kill until another node knows that it is fenced."""
    other = next(each for each in four.nodes if each is not node and each is not four.elsewhere)
    asked = connected(other)
    while alive(asked) != {1, 2, 3, 4}:
        time.sleep(0.05)
    time.sleep(KNOWN_AFTER_S)
    begun = time.monotonic()
    node.kill()
    while node.id in alive(asked):
        assert time.monotonic() < begun + WAIT_S
        time.sleep(0.01)
    asked.close()
    return time.monotonic() - begun


def test_a_killed_broker_and_a_killed_controller_are_fenced_at_once(four: Four) -> None:
    for is_active in (False, True):
        active = four.leader().leader_id
        node = next(each for each in four.nodes if each is not four.elsewhere and (each.id == active) is is_active)
        seconds = fenced_after(four, node)
        print(f"fenced after {seconds:.3f} s")
        assert seconds < AT_ONCE_S
        node.launch()
        assert "broker-died" in "".join(each.log() for each in four.nodes if each is not node)


def test_an_advertised_address_that_controllers_cannot_reach_fences_nobody(four: Four) -> None:
    elsewhere = four.elsewhere
    logs = "".join(node.log() for node in four.nodes)
    assert f"broker-died node={elsewhere.id}" not in logs
    assert "broker-fenced" not in elsewhere.log()
    seconds = fenced_after(four, elsewhere)
    assert seconds > SESSION_S - BETWEEN_HEARTBEATS_S - 0.1
