"""A broker with a topic, and what members of consumer groups send it."""

from __future__ import annotations

from typing import Any

from tests.worlds.broker_world import InProcess, Line

from duramen.wire.messages import API

FIND, LIST, CREATE, UPDATE_FEATURES, HEARTBEAT, DESCRIBE = 10, 16, 19, 57, 68, 69

JOINING: dict[str, Any] = {
    "group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 300_000,
    "subscribed_topic_names": ["t"], "topic_partitions": [],
}  # fmt: skip
"""The first heartbeat of a member."""


def create(client: Line, name: str, count: int) -> None:
    topic = API[CREATE].request.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    assert client.call(CREATE, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == 0


def prepared(node: InProcess) -> Line:
    """A client of a node with topic t, of three partitions, and group coordinators."""
    client = node.connect()
    create(client, "t", 3)
    assert client.call(FIND, 4, coordinator_keys=["g"]).coordinators[0].error_code == 0
    return client
