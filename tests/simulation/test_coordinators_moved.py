"""Groups and idempotent producers when whoever served them dies, or is not the leader any more."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.copies_world import TOPIC, CopiesWorld

from duramen.client.loop.node_client import call
from duramen.errors import ErrorCode
from duramen.model import OFFSETS_TOPIC, TopicPartition
from duramen.wire.messages import API

GROUP = "g"
SESSION_MS = 8000
SINK = 100


@pytest.fixture
def world() -> CopiesWorld:
    return CopiesWorld(
        settings={
            "offsets_topic_replication_factor": "3",
            "offsets_topic_num_partitions": "1",
            "group_initial_rebalance_delay_ms": "0",
        }
    )


def ask(world: CopiesWorld, node_id: int, name: str, version: int, **fields: Any) -> Any:
    answers: list[Any] = []
    world.ask_broker(node_id, call(name, version, **fields), answers.append)
    assert world.until(lambda: bool(answers), 30.0)
    return answers[0]


def coordinator(world: CopiesWorld, *not_these: int) -> int:
    """As every node that runs tells."""
    found: set[int] = set()

    def is_told() -> bool:
        found.clear()
        for node_id in world.running:
            (told,) = ask(world, node_id, "FindCoordinator", 4, key_type=0, coordinator_keys=[GROUP]).coordinators
            found.add(told.node_id if told.error_code == 0 else -1)
        return len(found) == 1 and found.isdisjoint({-1, *not_these})

    for _ in range(100):
        if is_told():
            return found.pop()
        world.run(0.1)
    raise AssertionError(f"no coordinator: {found}")


class Member:
    """Of the group; `members` joins all of them."""

    def __init__(self, world: CopiesWorld) -> None:
        self.world = world
        self.id = ""
        self.generation = -1

    def join(self, at: int) -> list[Any]:
        request = API[11].request
        protocols = [request.JoinGroupRequestProtocol(name="range", metadata=b"")]
        answers: list[Any] = []
        wanted = call(
            "JoinGroup", 5, group_id=GROUP, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS,
            member_id=self.id, protocol_type="consumer", protocols=protocols,
        )  # fmt: skip
        self.world.ask_broker(at, wanted, answers.append)
        return answers

    def beat(self, at: int) -> ErrorCode:
        told = ask(self.world, at, "Heartbeat", 3, group_id=GROUP, generation_id=self.generation, member_id=self.id)
        return ErrorCode(told.error_code)

    def commit(self, at: int, offset: int) -> ErrorCode:
        request = API[8].request
        part = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        topics = [request.OffsetCommitRequestTopic(name=TOPIC, partitions=[part])]
        told = ask(
            self.world, at, "OffsetCommit", 7, group_id=GROUP, generation_id_or_member_epoch=self.generation,
            member_id=self.id, topics=topics,
        )  # fmt: skip
        return ErrorCode(told.topics[0].partitions[0].error_code)


def pair(world: CopiesWorld, at: int) -> list[Member]:
    """A group of two, stable."""
    members = [Member(world), Member(world)]
    for member in members:  # an id each
        answers = member.join(at)
        assert world.until(lambda answers=answers: bool(answers))
        assert answers[0].error_code == ErrorCode.MEMBER_ID_REQUIRED
        member.id = answers[0].member_id
    alone = members[0].join(at)
    assert world.until(lambda: bool(alone))
    joined = [member.join(at) for member in reversed(members)]  # the second one waits for the first to join again
    assert world.until(lambda: all(joined))
    for member in members:
        member.generation = joined[0][0].generation_id
    leader = joined[0][0].leader
    request = API[14].request
    shares = [request.SyncGroupRequestAssignment(member_id=each.id, assignment=each.id.encode()) for each in members]
    for member in sorted(members, key=lambda each: each.id != leader):
        told = ask(
            world, at, "SyncGroup", 3, group_id=GROUP, generation_id=member.generation, member_id=member.id,
            assignments=shares if member.id == leader else [],
        )  # fmt: skip
        assert (told.error_code, bytes(told.assignment)) == (0, member.id.encode())
    return members


def position(world: CopiesWorld, at: int) -> tuple[ErrorCode, int]:
    request = API[9].request
    topics = [request.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    told = ask(world, at, "OffsetFetch", 7, group_id=GROUP, topics=topics, require_stable=True)
    if told.error_code:
        return ErrorCode(told.error_code), -1
    return ErrorCode(told.topics[0].partitions[0].error_code), told.topics[0].partitions[0].committed_offset


def loaded(world: CopiesWorld, at: int) -> int:
    """The group's position, as soon as the coordinator there has loaded."""
    while (told := position(world, at))[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        world.run(0.01)
    assert told[0] is ErrorCode.NONE
    return told[1]


def test_a_group_goes_on_where_its_coordinator_died(world: CopiesWorld) -> None:
    at = coordinator(world)
    first, second = pair(world, at)
    assert first.commit(at, 42) is ErrorCode.NONE
    world.world.nodes[at].kill()
    new = coordinator(world, at)
    assert new != at
    assert loaded(world, new) == 42
    assert first.beat(new) is ErrorCode.NONE, "members and generation are known"
    assert second.beat(new) is ErrorCode.NONE
    assert first.commit(new, 43) is ErrorCode.NONE
    other = next(each for each in world.running if each != new)
    assert first.beat(other) is ErrorCode.NOT_COORDINATOR


def test_whose_member_died_with_the_coordinator_has_a_session_of_its_own_there(world: CopiesWorld) -> None:
    at = coordinator(world)
    first, second = pair(world, at)
    world.run(SESSION_MS / 2000)
    assert {first.beat(at), second.beat(at)} == {ErrorCode.NONE}
    world.world.nodes[at].kill()
    new = coordinator(world, at)
    loaded(world, new)
    began = world.world.loop.now
    while (code := first.beat(new)) is ErrorCode.NONE:
        assert world.world.loop.now - began < 2 * SESSION_MS / 1000, "nobody hears the second one any more"
        world.run(0.5)
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.world.loop.now - began > SESSION_MS / 1000 - 2.0, "its time begins with the new coordinator"
    assert second.beat(new) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_led_elsewhere_is_told_so_at_the_old_coordinator(world: CopiesWorld) -> None:
    at = coordinator(world)
    members = pair(world, at)
    assert members[0].commit(at, 7) is ErrorCode.NONE
    waiting = members[0].join(at)  # until the other one joins as well
    world.run(0.2)
    assert waiting == []
    # It stops: others lead before it ends.
    world.world.nodes[at].stop()
    assert world.until(lambda: bool(waiting))
    assert waiting[0].error_code == ErrorCode.NOT_COORDINATOR
    new = coordinator(world, at)
    assert world.until(lambda: not world.world.nodes[at].running, 10.0)
    assert loaded(world, new) == 7
    world.clients.pop(at)
    world.start(at)
    world.join(at)
    assert members[1].beat(at) is ErrorCode.NOT_COORDINATOR
    place = TopicPartition(OFFSETS_TOPIC, 0)
    assert world.until(lambda: len(world.brokers[at].image.partition(place).isr) == 3)
    kind = API[43].request
    topics = [kind.TopicPartitions(topic=OFFSETS_TOPIC, partitions=[0])]
    told = ask(world, new, "ElectLeaders", 2, election_type=0, topic_partitions=topics, timeout_ms=5000)
    assert told.replica_election_results[0].partition_result[0].error_code == 0
    assert coordinator(world, new) == at
    assert loaded(world, at) == 7
    assert members[1].beat(new) is ErrorCode.NOT_COORDINATOR
    assert position(world, new)[0] is ErrorCode.NOT_COORDINATOR


def test_an_idempotent_producer_goes_on_and_nothing_is_doubled(world: CopiesWorld) -> None:
    producer = {"producer_id": 4711, "producer_epoch": 0}
    assert world.produce(b"one", base_sequence=0, **producer) == 0
    old = world.leader()
    unheard = world.send(old, b"two", base_sequence=1, **producer)
    # Everybody has it, and its acknowledgement is lost with the leader.
    others = [each for each in world.hosts if each != old]
    assert world.until(lambda: all(world.partition(each).log_end_offset == 2 for each in others))
    world.world.nodes[old].kill()
    assert world.until(lambda: world.image().leader not in (old, -1))
    assert unheard == [] or unheard[0] is None or unheard[0].base_offset == 1
    assert world.produce(b"two", base_sequence=1, **producer) == 1, "where it is already"
    assert world.produce(b"three", base_sequence=2, **producer) == 2
    late = world.send(world.leader(), b"four", base_sequence=9, **producer)
    assert world.until(lambda: bool(late))
    assert late[0].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.partition(world.leader()).log_end_offset == 3


def test_producer_ids_are_new_behind_a_failover(world: CopiesWorld) -> None:
    def new_id(node_id: int) -> int:
        told = ask(world, node_id, "InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)
        assert told.error_code == 0
        return int(told.producer_id)

    ids = [new_id(each) for each in world.hosts]
    active = world.active()
    world.world.nodes[active].kill()
    ids += [new_id(each) for each in world.running for _ in range(2)]
    world.clients.pop(active)
    world.start(active)
    world.join(active)
    ids += [new_id(each) for each in world.hosts]
    assert len(set(ids)) == len(ids)


def test_sinks_are_refused_by_several_brokers_behind_a_failover_too(world: CopiesWorld) -> None:
    def refusals() -> set[int]:
        asked = {"key_type": SINK, "coordinator_keys": ["s"]}
        return {ask(world, each, "FindCoordinator", 4, **asked).coordinators[0].error_code for each in world.running}

    assert refusals() == {ErrorCode.UNSUPPORTED_VERSION}
    world.world.nodes[world.active()].kill()
    world.active()
    assert refusals() == {ErrorCode.UNSUPPORTED_VERSION}
