"""Leaders that move though nobody died: handed over at a stop and from a failing directory, and led back."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tests.worlds.copies_world import TOPIC, CopiesWorld
from tests.worlds.quorum_world import QuorumWorld

from duramen.client.loop.node_client import call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.wire.messages import API

PARTITIONS = 6
ALL = range(PARTITIONS)


def world_of(seed: int = 1, **settings: str) -> CopiesWorld:
    return CopiesWorld(seed, PARTITIONS, settings)


def leaders(world: CopiesWorld) -> list[int]:
    return [world.image(index).leader for index in ALL]


def first_places(world: CopiesWorld) -> list[int]:
    return [world.image(index).replicas[0] for index in ALL]


def is_whole(world: CopiesWorld) -> bool:
    return all(len(world.image(index).isr) == 3 for index in ALL)


def stop(world: CopiesWorld, node_id: int) -> None:
    world.world.nodes[node_id].stop()
    assert world.until(lambda: not world.world.nodes[node_id].running, 10.0)


def come_back(world: CopiesWorld, node_id: int) -> None:
    world.clients.pop(node_id, None)
    world.start(node_id)
    world.join(node_id)
    assert world.until(lambda: is_whole(world))


def elect(world: CopiesWorld, node_id: int, kind: int = 0, *, indexes: tuple[int, ...] | None = None) -> Any:
    """Errors by partition."""
    request = API[43].request
    topics = None if indexes is None else [request.TopicPartitions(topic=TOPIC, partitions=list(indexes))]
    answers: list[Any] = []
    wanted = call("ElectLeaders", 2, election_type=kind, topic_partitions=topics, timeout_ms=10_000)
    world.ask_broker(node_id, wanted, answers.append)
    assert world.until(lambda: bool(answers))
    (answer,) = answers
    assert answer.error_code == 0
    return {
        part.partition_id: (ErrorCode(part.error_code), part.error_message)
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }


def test_each_node_in_turn_hands_over_and_comes_back() -> None:
    world = world_of()
    assert sorted(leaders(world)) == [1, 1, 2, 2, 3, 3]
    for number, node_id in enumerate(world.hosts):
        led = leaders(world).count(node_id)
        assert led > 0
        waits = world.send(world.leader(0), b"before %d" % number)
        world.world.nodes[node_id].stop()
        # It goes on serving what it leads until others do, and when its process ends they know that they do.
        assert world.until(lambda node_id=node_id: not world.world.nodes[node_id].running, 10.0)
        assert world.until(lambda waits=waits: bool(waits))
        rest = [each for each in world.hosts if each != node_id]
        for index in ALL:
            assert world.image(index).leader in rest
            assert world.partition(world.image(index).leader, index).replication.is_leader
            assert set(world.image(index).isr) == set(rest)
        assert (node_id, "broker-hands-over", {"leads": led}) in world.events
        assert "broker-not-handed-over" not in [event for _, event, _ in world.events]
        world.produce(b"meanwhile %d" % number)
        come_back(world, node_id)
    assert world.until(lambda: all(world.are_equal(index) for index in ALL))


def test_clients_are_told_of_a_broker_that_stops_until_nobody_needs_it() -> None:
    """Else some would forget with the broker, in one answer, who leads now what it led."""
    world = world_of(11)
    active = world.active()
    node_id, asked = (each for each in world.hosts if each != active)
    world.world.nodes[node_id].stop()
    image = world.brokers[asked].image
    assert world.until(lambda: image.brokers[node_id].in_controlled_shutdown)
    assert not image.brokers[node_id].fenced
    answers: list[Any] = []
    topics = [API[3].request.MetadataRequestTopic(name=TOPIC)]
    world.ask_broker(asked, call("Metadata", 12, topics=topics), answers.append)
    assert world.until(lambda: bool(answers))
    assert node_id not in {part.leader_id for part in answers[0].topics[0].partitions}
    assert {broker.node_id for broker in answers[0].brokers} == {1, 2, 3}
    assert world.until(lambda: image.brokers[node_id].fenced)
    world.ask_broker(asked, call("Metadata", 12, topics=topics), answers.append)
    assert world.until(lambda: len(answers) == 2)
    assert node_id not in {broker.node_id for broker in answers[1].brokers}


def test_the_active_controller_hands_over_its_partitions_and_then_its_quorum() -> None:
    world = world_of(2)
    active = world.active()
    stop(world, active)
    assert active not in leaders(world)
    assert world.active() != active
    told = [event for node_id, event, _ in world.events if node_id == active]
    assert "broker-not-handed-over" not in told


def test_without_a_majority_a_stop_waits_for_three_seconds() -> None:
    world = world_of(3)
    last, *dead = world.hosts
    for node_id in dead:
        world.world.nodes[node_id].kill()
    began = world.world.loop.now
    stop(world, last)
    assert world.world.loop.now - began < 5.0
    assert last in world.told("broker-not-handed-over")


def test_who_will_not_wait_ends_it() -> None:
    world = world_of(4)
    last, *dead = world.hosts
    for node_id in dead:
        world.world.nodes[node_id].kill()
    began = world.world.loop.now
    world.world.nodes[last].stop()
    world.run(0.5)
    world.brokers[last].stop_waiting()
    assert world.until(lambda: not world.world.nodes[last].running, 1.0)
    assert world.world.loop.now - began < 2.0


def test_all_at_once_end_soon() -> None:
    world = world_of(5)
    began = world.world.loop.now
    for node_id in world.hosts:
        world.world.nodes[node_id].stop()
    assert world.until(lambda: not world.running, 10.0)
    assert world.world.loop.now - began < 5.0


def test_without_controlled_shutdown_others_find_that_it_is_gone() -> None:
    world = world_of(6, controlled_shutdown_enable="false")
    node_id = next(each for each in world.hosts if each != world.active())
    began = world.world.loop.now
    stop(world, node_id)
    assert world.world.loop.now - began < 0.5
    assert world.told("broker-hands-over") == []
    assert world.until(lambda: node_id not in leaders(world))


@pytest.mark.parametrize("which", ["a follower", "the active controller"])
def test_a_node_whose_directory_fails_lets_others_lead_and_ends(which: str) -> None:
    world = world_of(7)
    active = world.active()
    node_id = active if which == "the active controller" else next(each for each in world.hosts if each != active)
    index = next(index for index in ALL if world.image(index).leader == node_id)
    world.produce(b"before", index=index)
    ended: list[str] = []
    lease = world.brokers[node_id].publisher.lease
    assert lease is not None
    assert lease.holds()

    def end(reason: str) -> None:
        ended.append(reason)
        assert not lease.holds(), "it may not read who leads instead, and would answer by what it knew"
        world.world.nodes[node_id].stop()

    world.brokers[node_id].on_halt = end
    disk = world.world.disks[node_id]
    disk.fault = lambda made: OSError(errno.EIO, "broken") if made.operation in ("write", "sync") else None
    began = world.world.loop.now
    answers = world.send(node_id, b"lost", index=index)
    assert world.until(lambda: bool(answers))
    assert answers[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.until(lambda: not world.world.nodes[node_id].running, 10.0)
    assert world.until(lambda: node_id not in leaders(world), 10.0)
    assert world.world.loop.now - began < 5.0
    assert ended
    assert "others can lead" in ended[0]
    world.produce(b"behind", index=index)
    disk.fault = None
    come_back(world, node_id)
    assert world.until(lambda: world.are_equal(index))


def test_a_node_alone_whose_directory_fails_reads_on() -> None:
    alone = QuorumWorld(count=1)
    alone.join(1)
    ended: list[str] = []
    broker = alone.brokers[1]
    broker.on_halt = ended.append
    alone.world.disks[1].fault = lambda made: OSError(errno.EIO, "broken") if made.operation == "sync" else None
    answers: list[Any] = []
    broker.controller_client.create([broker.controller_client.new_topic("t")], answers.append)
    alone.run(5.0)
    assert (1, "directory-failed") in [(node_id, event) for node_id, event, _ in alone.events]
    assert ended == []
    assert alone.world.nodes[1].running


def test_leaders_go_back_when_any_broker_is_asked() -> None:
    world = world_of(8)
    before = first_places(world)
    assert leaders(world) == before
    gone = next(each for each in world.hosts if each != world.active())
    stop(world, gone)
    come_back(world, gone)
    moved = [index for index in ALL if before[index] == gone]
    assert [index for index in ALL if leaders(world)[index] != before[index]] == moved
    asked = next(each for each in world.hosts if each != world.active())
    assert elect(world, asked) == dict.fromkeys(moved, (ErrorCode.NONE, None))
    assert world.until(lambda: leaders(world) == before)
    assert elect(world, asked) == {}
    told = elect(world, gone, indexes=(*ALL, 77))
    assert [told[index][0] for index in ALL] == [ErrorCode.ELECTION_NOT_NEEDED] * PARTITIONS
    assert told[77][0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.produce(b"goes on")


def test_a_first_replica_that_is_away_is_not_elected_and_no_other_one_uncleanly() -> None:
    world = world_of(9)
    gone = next(each for each in world.hosts if each != world.active())
    moved = [index for index in ALL if world.image(index).leader == gone]
    stop(world, gone)
    asked = world.running[0]
    told = elect(world, asked)
    assert {index: code for index, (code, _) in told.items()} == dict.fromkeys(
        moved, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    )
    told = elect(world, asked, 1, indexes=tuple(ALL))
    assert {code for code, _ in told.values()} == {ErrorCode.ELECTION_NOT_NEEDED}


def test_leaders_go_back_by_themselves() -> None:
    world = world_of(10, leader_imbalance_check_interval_seconds="20")
    before = first_places(world)
    gone = next(each for each in world.hosts if each != world.active())
    stop(world, gone)
    come_back(world, gone)
    assert leaders(world) != before
    assert world.until(lambda: leaders(world) == before, 30.0)
    for index in ALL:
        assert world.until(lambda index=index: world.is_settled(TOPIC, index))
        partition = world.brokers[before[index]].store.partitions[TopicPartition(TOPIC, index)]
        assert partition.replication.is_leader
