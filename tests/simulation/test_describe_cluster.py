"""DescribeCluster tells of brokers that are fenced where it is asked to (KIP-1073)."""

from __future__ import annotations

from typing import Any

from tests.worlds.quorum_world import QuorumWorld


def brokers(answer: Any) -> dict[int, bool]:
    return {each.broker_id: each.is_fenced for each in answer.brokers}


def test_a_dead_broker_is_told_as_fenced_only_where_it_is_asked_for() -> None:
    world = QuorumWorld()
    for node_id in world.hosts:
        world.join(node_id)
    assert brokers(world.ask_broker(1, "DescribeCluster", 2, include_fenced_brokers=True)) == dict.fromkeys(
        (1, 2, 3), False
    )
    gone = next(each for each in world.others() if each != 1)
    asked = next(each for each in world.running if each != gone)
    world.world.nodes[gone].kill()
    assert world.until(lambda: world.brokers[asked].image.brokers[gone].fenced)
    left = dict.fromkeys(world.running, False)
    assert brokers(world.ask_broker(asked, "DescribeCluster", 2)) == left
    assert brokers(world.ask_broker(asked, "DescribeCluster", 2, include_fenced_brokers=True)) == {**left, gone: True}
    told = world.ask_broker(asked, "DescribeCluster", 1)
    assert {each.broker_id for each in told.brokers} == set(left)
