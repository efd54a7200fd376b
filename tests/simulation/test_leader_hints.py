"""Replies that refuse name the leader, and where it listens: to clients that know what that means (KIP-951)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.copies_world import TOPIC, CopiesWorld
from tests.worlds.quorum_world import PORT

from duramen.client.loop.node_client import call
from duramen.errors import ErrorCode
from duramen.sim.world.node import WALL_START_MS
from duramen.wire.batch import build_batch
from duramen.wire.messages import API


@pytest.fixture(scope="module")
def world() -> CopiesWorld:
    return CopiesWorld(partitions=3)


def ask(world: CopiesWorld, node_id: int, name: str, version: int, **fields: Any) -> Any:
    answers: list[Any] = []
    world.ask_broker(node_id, call(name, version, **fields), answers.append)
    assert world.until(lambda: bool(answers))
    return answers[0]


def produce(world: CopiesWorld, node_id: int, version: int, *indexes: int, topic: str = TOPIC) -> Any:
    request = API[0].request
    records = build_batch([(b"k", b"v", (), WALL_START_MS)])
    parts = [request.PartitionProduceData(index=index, records=records) for index in indexes]
    named = {"topic_id": world.brokers[node_id].image.topic_id(topic)} if version >= 13 else {"name": topic}
    data = request.TopicProduceData(partition_data=parts, **named)
    return ask(world, node_id, "Produce", version, acks=-1, timeout_ms=5000, topic_data=[data])


def fetch(world: CopiesWorld, node_id: int, version: int, *indexes: int, epoch: int = -1, **fields: Any) -> Any:
    request = API[1].request
    parts = [
        request.FetchPartition(
            partition=index, current_leader_epoch=epoch, fetch_offset=0, partition_max_bytes=1000, last_fetched_epoch=-1
        )
        for index in indexes
    ]
    topic_id = world.brokers[node_id].image.topic_id(TOPIC)
    named = {"topic_id": topic_id} if version >= 13 else {"topic": TOPIC}
    wanted = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 10_000,
        "topics": [request.FetchTopic(partitions=parts, **named)],
    }
    return ask(world, node_id, "Fetch", version, **(wanted | fields))


def elsewhere(world: CopiesWorld, index: int = 0) -> tuple[int, int, int]:
    """Leader, its epoch, and a node that follows."""
    leader = world.leader(index)
    return leader, world.partition(leader, index).leader_epoch, world.followers(index)[0]


def told(response: Any) -> tuple[list[tuple[int, int, int]], list[tuple[int, str, int]]]:
    """(error, leader, epoch) of each partition, and the endpoints."""
    parts = response.responses[0]
    parts = parts.partition_responses if hasattr(parts, "partition_responses") else parts.partitions
    hints = [(each.error_code, each.current_leader.leader_id, each.current_leader.leader_epoch) for each in parts]
    return hints, [(each.node_id, each.host, each.port) for each in response.node_endpoints]


NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize("version", [10, 12, 13])
def test_a_producer_is_told_who_leads(world: CopiesWorld, version: int) -> None:
    leader, epoch, node_id = elsewhere(world)
    hints, endpoints = told(produce(world, node_id, version, 0))
    assert hints == [(NOT_LEADER, leader, epoch)]
    assert endpoints == [(leader, world.hosts[leader], PORT)]


def test_of_many_partitions_each_leader_is_named_and_each_endpoint_once(world: CopiesWorld) -> None:
    node_id = world.leader(0)
    led = {index: world.leader(index) for index in range(3)}
    assert len(set(led.values())) == 3
    hints, endpoints = told(produce(world, node_id, 10, 0, 1, 2))
    assert [(code, leader) for code, leader, _ in hints] == [(0, -1), (NOT_LEADER, led[1]), (NOT_LEADER, led[2])]
    assert sorted(node for node, _, _ in endpoints) == sorted((led[1], led[2]))
    hints, endpoints = told(fetch(world, node_id, 16, 0, 1, 2))
    assert [(code, leader) for code, leader, _ in hints] == [(0, -1), (NOT_LEADER, led[1]), (NOT_LEADER, led[2])]
    assert sorted(node for node, _, _ in endpoints) == sorted((led[1], led[2]))


def test_who_does_not_know_of_it_is_told_nothing(world: CopiesWorld) -> None:
    _, _, node_id = elsewhere(world)
    assert told(produce(world, node_id, 9, 0)) == ([(NOT_LEADER, -1, -1)], [])
    assert told(fetch(world, node_id, 15, 0)) == ([(NOT_LEADER, -1, -1)], [])


@pytest.mark.parametrize("version", [16, 18])
def test_a_consumer_is_told_who_leads(world: CopiesWorld, version: int) -> None:
    leader, epoch, node_id = elsewhere(world)
    hints, endpoints = told(fetch(world, node_id, version, 0))
    assert hints == [(NOT_LEADER, leader, epoch)]
    assert endpoints == [(leader, world.hosts[leader], PORT)]


def test_in_a_session_the_leader_is_named_each_time(world: CopiesWorld) -> None:
    leader, epoch, node_id = elsewhere(world)
    first = fetch(world, node_id, 17, 0, session_id=0, session_epoch=0)
    assert told(first)[0] == [(NOT_LEADER, leader, epoch)]
    again = fetch(world, node_id, 17, session_id=first.session_id, session_epoch=1, topics=[])
    assert told(again) == ([(NOT_LEADER, leader, epoch)], [(leader, world.hosts[leader], PORT)])


def test_an_old_epoch_is_told_the_new_one() -> None:
    world = CopiesWorld(seed=3)
    old = world.leader()
    epoch = world.partition(old).leader_epoch
    world.world.nodes[old].kill()
    assert world.until(lambda: world.image().leader not in (old, -1))
    new = world.leader()
    newest = world.partition(new).leader_epoch
    assert newest > epoch
    hints, endpoints = told(fetch(world, new, 16, 0, epoch=epoch))
    assert hints == [(int(ErrorCode.FENCED_LEADER_EPOCH), new, newest)]
    assert endpoints == [(new, world.hosts[new], PORT)]


def test_who_waits_at_a_leader_is_told_who_leads_now() -> None:
    """Without the hint it would ask for metadata first."""
    world = CopiesWorld(seed=4)
    old = world.leader()
    request = API[1].request
    part = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000, last_fetched_epoch=-1)
    topic = request.FetchTopic(topic_id=world.brokers[old].image.topic_id(TOPIC), partitions=[part])
    answers: list[Any] = []
    wanted = call("Fetch", 16, max_wait_ms=20_000, min_bytes=1, max_bytes=1000, topics=[topic])
    world.ask_broker(old, wanted, answers.append)
    world.run(0.5)
    assert answers == []
    world.world.nodes[old].stop()
    assert world.until(lambda: bool(answers))
    hints, endpoints = told(answers[0])
    assert hints[0][:2] == (NOT_LEADER, world.image().leader)
    assert [node for node, _, _ in endpoints] == [world.image().leader]
    assert world.image().leader != old


def test_without_a_leader_nobody_is_named() -> None:
    world = CopiesWorld(seed=5)
    node_id = world.brokers[1].node_id
    client, answers = world.brokers[1].controller_client, []
    owner = next(each for each in world.hosts if each not in (node_id, world.active()))
    client.create(
        [client.new_topic("one")._replace(partitions=-1, replication_factor=-1, assignments=((0, (owner,)),))],
        answers.append,
    )
    assert world.until(lambda: bool(answers))
    world.world.nodes[owner].kill()
    others = [each for each in world.hosts if each != owner]
    assert world.until(lambda: all(world.brokers[each].image.brokers[owner].fenced for each in others))
    hints, endpoints = told(produce(world, others[0], 12, 0, topic="one"))
    assert hints[0][1:] == (-1, -1)
    assert endpoints == []
