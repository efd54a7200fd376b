"""Who is killed is fenced at once where controllers reach it; an address that they cannot reach fences nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.worlds.controller_trio import ControllerTrio, ServedController
from tests.worlds.served_node import free_port, only_duramen

from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.wire.messages.metadata import MetadataRequest

pytestmark = [pytest.mark.timeout(240), only_duramen]

METADATA = 3
SESSION_S = 20.0
"""So long that a machine with much to do tells a fence at once from a session's end."""
AT_ONCE_S = SESSION_S / 2
"""It takes 0.15 s on a machine that has nothing else to do, and two where a leader is elected first."""
WATCHED_S = 3.0
WAIT_S = 60.0
KNOWN_AFTER_S = 1.0
"""Controllers know by then whether a broker's address answers."""
SETTINGS = {"broker.session.timeout.ms": str(round(1000 * SESSION_S))}


class Four(ControllerTrio):
    """Three combined nodes, and a broker whose address for clients is one where nobody listens here."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SETTINGS)
        self.elsewhere = ServedController(folder / "4", 4, has_broker=True)
        own = {
            **SETTINGS,
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
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Four]:
    four = Four(tmp_path_factory.mktemp("dead"))
    four.form()
    try:
        yield four
    finally:
        four.kill()


@pytest.fixture
def four(nodes: Four) -> Four:
    """Whole, whatever the test before has left."""
    nodes.whole()
    return nodes


def alive(asked: BlockingConnection) -> set[int]:
    """The brokers that are not fenced, as a node tells."""
    answer = asked.call(METADATA, MetadataRequest.new(topics=[]), time.monotonic() + WAIT_S)
    return {broker.node_id for broker in answer.brokers}


def told_of_others(four: Four, node: ServedController) -> str:
    return "".join(each.whole_log() for each in four.nodes if each is not node)


@contextmanager
def killed(four: Four, node: ServedController) -> Iterator[BlockingConnection]:
    """The process is gone; a connection to another node, which knew of it."""
    other = next(each for each in four.nodes if each is not node and each is not four.elsewhere)
    until = time.monotonic() + WAIT_S
    with closing(BlockingConnection("127.0.0.1", other.port, "test", until, MAX_FRAME_BYTES)) as asked:
        time.sleep(KNOWN_AFTER_S)
        assert alive(asked) == {1, 2, 3, 4}
        node.kill()
        yield asked


def test_a_killed_broker_and_a_killed_controller_are_fenced_at_once(four: Four) -> None:
    for is_active in (False, True):
        four.whole()
        active = four.leader().leader_id
        node = next(each for each in four.nodes if each is not four.elsewhere and (each.id == active) is is_active)
        died = f"broker-died node={node.id}"
        before = told_of_others(four, node).count(died)
        with killed(four, node) as asked:
            begun = time.monotonic()
            while node.id in alive(asked):
                assert time.monotonic() < begun + AT_ONCE_S
                time.sleep(0.01)
        print(f"fenced after {time.monotonic() - begun:.3f} s")
        while told_of_others(four, node).count(died) == before:
            assert time.monotonic() < begun + WAIT_S
            time.sleep(0.05)


def test_an_advertised_address_that_controllers_cannot_reach_fences_nobody(four: Four) -> None:
    elsewhere = four.elsewhere
    assert "broker-fenced" not in elsewhere.whole_log()
    with killed(four, elsewhere) as asked:
        until = time.monotonic() + WATCHED_S
        while time.monotonic() < until:
            assert elsewhere.id in alive(asked), "only its session may tell"
            time.sleep(0.05)
    assert f"broker-died node={elsewhere.id}" not in told_of_others(four, elsewhere)
