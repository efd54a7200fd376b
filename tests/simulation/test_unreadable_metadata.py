"""A node among others whose disk does not read its metadata log: it waits a little, and then ends."""

from __future__ import annotations

import pytest
from tests.worlds.quorum_world import QuorumWorld

from duramen.machines.metadata.commands import AllocateProducerIds, ProducerIds
from duramen.model import METADATA_TOPIC
from duramen.sim.world.disk import DiskCall
from duramen.storage.read.tail_cache import TailCache


@pytest.fixture(autouse=True)
def _nothing_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written just now is read from the file, too."""
    monkeypatch.setattr(TailCache, "add", lambda *batches: None)


def unreadable(call: DiskCall) -> OSError | None:
    """Of the metadata log no read succeeds."""
    return OSError(5, "lost", call.path) if call.operation == "pread" and METADATA_TOPIC in call.path else None


def told(cluster: QuorumWorld, node_id: int) -> list[str]:
    """What the node said of its metadata log, and that it ends."""
    wanted = ("metadata-not-applied", "metadata-unreadable", "quorum-halted")
    return [event for each, event, _ in cluster.events if each == node_id and event in wanted]


def change_something(cluster: QuorumWorld, node_id: int) -> None:
    """What a broker asks for is committed, whoever decides."""
    answers = cluster.asked(node_id, AllocateProducerIds(node_id, cluster.join(node_id)))
    assert cluster.until(lambda: bool(answers))
    assert isinstance(answers[0], ProducerIds), answers


def test_a_disk_that_fails_for_a_while_is_waited_for() -> None:
    cluster = QuorumWorld()
    behind, asks = cluster.others()
    cluster.join(asks)
    cluster.world.disks[behind].fault = unreadable
    change_something(cluster, asks)
    cluster.run(4)
    position = cluster.brokers[behind].controller.position
    assert position < cluster.brokers[asks].controller.position
    cluster.world.disks[behind].fault = None
    cluster.run(2)
    assert cluster.brokers[behind].controller.position >= cluster.brokers[asks].controller.position > position
    assert told(cluster, behind) == ["metadata-not-applied"]


def test_a_node_that_stays_behind_ends_and_the_others_go_on() -> None:
    cluster = QuorumWorld()
    behind, asks = cluster.others()
    cluster.join(asks)
    ended: list[str] = []
    cluster.brokers[behind].on_halt = ended.append
    cluster.world.disks[behind].fault = unreadable
    change_something(cluster, asks)
    cluster.run(15)
    assert told(cluster, behind) == ["metadata-not-applied", "metadata-unreadable", "quorum-halted"]
    assert len(ended) == 1
    assert "cannot be read" in ended[0]
    change_something(cluster, asks)


def test_an_active_controller_that_cannot_read_gives_way_and_follows_once_it_can() -> None:
    """What it can hand to nobody is not committed: it reads none of it either, and the others elect another one."""
    cluster = QuorumWorld()
    active, (asks, _) = cluster.active(), cluster.others()
    epoch = cluster.join(asks)
    cluster.world.disks[active].fault = unreadable
    answers = cluster.asked(asks, AllocateProducerIds(asks, epoch), 60.0)
    assert cluster.until(lambda: bool(answers))
    assert isinstance(answers[0], ProducerIds), answers
    assert cluster.active() != active
    cluster.world.disks[active].fault = None
    reached = cluster.brokers[asks].controller.position
    assert cluster.until(lambda: cluster.brokers[active].controller.position >= reached)
