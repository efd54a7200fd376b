"""A leader that may have been fenced says nothing by itself: of three brokers one sleeps, or is alone with clients."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.copies_world import CopiesWorld
from tests.worlds.quorum_world import QuorumWorld

from duramen.client.loop.node_client import BY_NAME, call
from duramen.config import BrokerConfig
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.partition.replica.partition import Partition
from duramen.server.controller.broker_lifecycle import BrokerLifecycle
from duramen.sim.world.node import WALL_START_MS
from duramen.wire.batch import build_batch
from duramen.wire.messages.offset_fetch import OffsetFetchRequest

SESSION_S = 3.0
LEASE_S = 2.7
HEARTBEAT_S = 0.5


def not_active(world: CopiesWorld) -> int:
    """A partition whose leader does not decide about fencing."""
    active = world.active()
    return next(index for index in range(3) if world.leader(index) != active)


@pytest.fixture
def world() -> CopiesWorld:
    settings = {"offsets_topic_replication_factor": "3", "offsets_topic_num_partitions": "3"}
    world = CopiesWorld(partitions=3, settings=settings)
    for index in range(3):
        world.produce(b"first", index=index)
    return world


def acknowledged(answer: Any) -> bool:
    return answer is not None and not answer.error_code


def fenced_at(world: CopiesWorld, node_id: int, seconds: float = 10.0) -> float:
    others = [each for each in world.hosts if each != node_id]
    assert world.until(lambda: any(world.brokers[each].image.brokers[node_id].fenced for each in others), seconds)
    return world.world.loop.now


def test_one_that_slept_acknowledges_nothing_when_it_wakes_until_it_leads_anew(world: CopiesWorld) -> None:
    index = not_active(world)
    leader = world.leader(index)
    epoch = world.partition(leader, index).leader_epoch
    world.world.nodes[leader].pause(10.0)
    woken = world.world.loop.now + 10.0
    waiting = [world.send(leader, b"slept", index=index, acks=acks) for acks in (1, -1)]
    fenced_at(world, leader)
    assert acknowledged(world.send_and_wait(other_leader(world, leader, index), b"meanwhile", index=index))
    end = world.partition(other_leader(world, leader, index), index).log_end_offset
    assert world.until(lambda: world.world.loop.now >= woken)
    while world.partition(leader, index).leader_epoch == epoch:
        waiting.append(world.send(leader, b"awake", index=index, acks=1))
        world.run(0.0005)
    assert len(waiting) > 2
    assert world.until(lambda: all(waiting), 20.0)
    for (answer,) in waiting:
        assert not acknowledged(answer)
    assert world.in_sync(1, 2, 3, index=index)
    assert world.partition(leader, index).leader_epoch > epoch
    assert world.until(lambda: world.are_equal(index))
    assert world.partition(leader, index).log_end_offset == end
    assert world.produce(b"and on", index=index) == end


def other_leader(world: CopiesWorld, before: int, index: int) -> int:
    """Who leads instead, as soon as it does."""
    others = [each for each in world.hosts if each != before]
    assert world.until(lambda: any(world.partition(each, index).replication.is_leader for each in others))
    return next(each for each in others if world.partition(each, index).replication.is_leader)


def test_one_that_hears_no_controller_stops_before_it_is_fenced(world: CopiesWorld) -> None:
    index = not_active(world)
    leader = world.leader(index)
    begun = world.world.loop.now
    world.world.isolate(leader, world.hosts)
    last = begun
    while world.world.loop.now < begun + LEASE_S + 0.3:
        if acknowledged(world.send_and_wait(leader, b"by itself", index=index, acks=1)):
            last = world.world.loop.now
        world.run(0.02)
    assert LEASE_S - HEARTBEAT_S - 0.1 < last - begun < LEASE_S + 0.05
    refused = world.send_and_wait(leader, b"by itself", index=index, acks=1)
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    stored = world.partition(leader, index).log_end_offset
    fenced = fenced_at(world, leader)
    assert fenced > last
    world.run(1.0)
    assert world.partition(leader, index).log_end_offset == stored, "nothing was stored without a lease"
    world.world.heal_all()
    assert world.until(lambda: "lease-renewed" in [event for node, event, _ in world.events if node == leader])
    assert world.until(lambda: world.are_equal(index))


def test_a_lease_that_comes_back_in_time_lets_everything_go_on(world: CopiesWorld) -> None:
    """Alone in sync: the high watermark stands still, and follows what was stored when the lease holds again."""
    index = not_active(world)
    leader, name = world.leader(index), "alone"
    other = next(each for each in world.hosts if each not in (leader, world.active()))
    partition = two_copies(world, name, leader, other)
    world.world.nodes[other].kill()
    assert world.until(lambda: partition.replication.isr == (leader,))
    assert partition.replication.is_alone
    active = world.active()
    lease = world.brokers[leader].publisher.lease
    assert lease is not None
    assert world.until(lease.holds)
    world.world.cut(leader, active, one_way=True)  # it hears everything, and nobody hears it
    assert world.until(lambda: not lease.holds(), LEASE_S + 0.1)
    answer = world.send_and_wait(leader, b"v", topic=name)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log_end_offset == 0
    partition.append(memoryview(build_batch([(b"k", b"v", (), WALL_START_MS)])), 0, WALL_START_MS, lambda _: None)
    assert world.until(lambda: partition.durable_end == 1)
    assert (partition.log_end_offset, partition.high_watermark) == (1, 0)
    world.world.heal_all()
    assert world.until(lambda: partition.high_watermark == 1, 5.0)
    assert acknowledged(world.send_and_wait(leader, b"v", topic=name))


def two_copies(world: CopiesWorld, name: str, leader: int, other: int) -> Partition:
    """A topic of which one copy is enough, led there; the leader's copy."""
    client, answers = world.brokers[leader].controller_client, []
    settings = (("min.insync.replicas", "1"),)
    wanted = client.new_topic(name)._replace(
        partitions=-1, replication_factor=-1, assignments=((0, (leader, other)),), configs=settings
    )
    client.create([wanted], answers.append)
    assert world.until(lambda: bool(answers))
    assert answers[0][0].result.error is ErrorCode.NONE, answers
    partitions = world.brokers[leader].store.partitions
    assert world.until(lambda: partitions[TopicPartition(name, 0)].replication.is_leader)
    return partitions[TopicPartition(name, 0)]


def test_the_last_one_in_sync_that_restarts_never_leads_in_the_epoch_that_it_had(
    world: CopiesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have records of that epoch that it has lost. Something about the topic is committed meanwhile."""
    start = BrokerLifecycle.start
    monkeypatch.setattr(BrokerLifecycle, "start", lambda life: life._clock.call_later(1.0, lambda: start(life)))
    leader = next(each for each in world.hosts if each != world.active())
    other = next(each for each in world.hosts if each not in (leader, world.active()))
    partition = two_copies(world, "alone", leader, other)
    world.world.nodes[other].kill()
    assert world.until(lambda: partition.replication.isr == (leader,))
    before, killed = partition.leader_epoch, world.brokers[leader]
    world.world.network.conditions.silent = True  # it is back before anybody has noticed
    world.world.nodes[leader].kill()
    world.world.nodes[leader].start()
    led: set[int] = set()

    def leads() -> bool:
        broker = world.brokers[leader]
        found = broker.store.partitions.get(TopicPartition("alone", 0))
        if broker is not killed and found is not None and found.replication.is_leader:
            led.add(found.leader_epoch)
        return bool(led)

    kinds = BY_NAME["CreatePartitions"].request
    placed = kinds.CreatePartitionsAssignment(broker_ids=[leader, other])
    more = kinds.CreatePartitionsTopic(name="alone", count=2, assignments=[placed])
    answer = world.ask_broker_of(world.active(), call("CreatePartitions", 3, topics=[more], timeout_ms=5000))
    assert answer.results[0].error_code == 0
    assert world.until(leads)
    world.run(2.0)
    assert leads()
    assert min(led) > before


def test_a_group_coordinator_without_a_lease_sends_members_elsewhere(world: CopiesWorld) -> None:
    active = world.active()
    for number in range(50):
        group = f"g{number}"
        found = coordinator_of(world, group)
        if found != active:
            break
    fetched = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}
    assert world.until(lambda: offset_fetch(world, found, fetched) == ErrorCode.NONE)
    lease = world.brokers[found].publisher.lease
    assert lease is not None
    world.world.isolate(found, world.hosts)
    assert world.until(lambda: not lease.holds(), LEASE_S + 0.1)
    assert offset_fetch(world, found, fetched) == ErrorCode.NOT_COORDINATOR
    beat = world.ask_broker_of(found, call("Heartbeat", 4, group_id=group, generation_id=1, member_id="m"))
    assert beat.error_code == ErrorCode.NOT_COORDINATOR
    joined = world.ask_broker_of(found, call("DescribeGroups", 5, groups=[group]))
    assert joined.groups[0].error_code == ErrorCode.NOT_COORDINATOR


def coordinator_of(world: CopiesWorld, group: str) -> int:
    while True:
        answer = world.ask_broker_of(1, call("FindCoordinator", 4, key_type=0, coordinator_keys=[group])).coordinators[
            0
        ]
        if not answer.error_code:
            return int(answer.node_id)
        world.run(0.1)


def offset_fetch(world: CopiesWorld, node_id: int, group: dict[str, Any]) -> int:
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(**group)
    answer = world.ask_broker_of(node_id, call("OffsetFetch", 9, groups=[wanted], require_stable=False))
    return int(answer.groups[0].error_code)


class UnlikeWorld(QuorumWorld):
    """Node 1 fences who is silent for a second, the others who is for three."""

    def config(self, node_id: int) -> BrokerConfig:
        self.settings["broker.session.timeout.ms"] = "1000" if node_id == 1 else "3000"
        return super().config(node_id)


def test_a_lease_goes_by_the_shorter_of_the_broker_s_and_the_controller_s_session() -> None:
    led: set[bool] = set()
    for seed in range(1, 20):
        world = UnlikeWorld(seed)
        for node_id in world.hosts:
            world.join(node_id)
        active = world.active()
        world.run(1.0)
        if (active == 1) in led:
            continue
        led.add(active == 1)
        for node_id in world.others():
            lease = world.brokers[node_id].publisher.lease
            assert lease is not None
            assert world.until(lease.holds)
            world.world.isolate(node_id)
            seconds = 0.9 * (1.0 if 1 in (node_id, active) else 3.0)
            world.run(seconds - HEARTBEAT_S - 0.1)
            assert lease.holds()
            world.run(HEARTBEAT_S + 0.1)
            assert not lease.holds()
            world.world.heal_all()
            assert world.until(lease.holds)
        told = {node for node, event, _ in world.events if event == "session-timeouts-differ"}
        assert told == ({2, 3} if active == 1 else {1})
        if len(led) == 2:
            return
    raise AssertionError("it never led, or always")


def test_a_node_alone_has_no_lease_and_needs_none() -> None:
    alone = QuorumWorld(count=1)
    alone.join(1)
    assert alone.brokers[1].publisher.lease is None
