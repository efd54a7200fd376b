"""What a node tells of the other brokers as committed metadata has them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.partition_world import Bench

from duramen.machines.metadata.committed_image import Changes, CommittedImage
from duramen.machines.metadata.image import BrokerImage
from duramen.partition.metadata.publisher import MetadataPublisher


class Node:
    """Node 1; nodes 2 and 3 are there before it starts."""

    def __init__(self) -> None:
        bench = Bench()
        self.told: list[tuple[str, int]] = []
        self.publisher = MetadataPublisher(bench.world, bench.store, bench.broker_config, 1, self._report)
        self.publisher.load(CommittedImage())
        self.brokers = self.publisher.image.brokers
        self.brokers.update({node_id: BrokerImage(node_id, 70 + node_id, bytes(16), ()) for node_id in (1, 2, 3)})
        self.publisher.start(frozenset())

    def _report(self, event: str, **fields: Any) -> None:
        if event.startswith("peer-"):
            self.told.append((event, fields["node"]))

    def change(self, node_id: int, **fields: Any) -> None:
        """The metadata has the broker so from now on."""
        self.brokers[node_id] = self.brokers[node_id]._replace(**fields)
        self.publisher.publish(Changes(brokers=[node_id]))


@pytest.fixture
def node() -> Node:
    return Node()


def test_peers_that_go_and_come_are_told_once_each(node: Node) -> None:
    node.change(2, fenced=True)
    node.change(2, in_controlled_shutdown=True)
    node.change(2, fenced=False)
    assert node.told == [("peer-fenced", 2), ("peer-unfenced", 2)]
    del node.brokers[3]
    node.publisher.publish(Changes(brokers=[3]))
    assert node.told[2:] == [("peer-fenced", 3)]


def test_a_node_is_no_peer_of_itself(node: Node) -> None:
    node.change(1, fenced=True)
    node.change(1, fenced=False)
    assert node.told == []
