"""A group that changes its protocol while it has members, up and down, and both kinds of members in it meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.consumer_harness import BEAT, REBALANCE, Consumer, ConsumerWorld, settle

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group import GroupSettings, Heartbeat, Joined, NewOffset, SyncedMember, SyncGroup
from duramen.wire.records.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from duramen.wire.records.versioned import encode

FULL: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE, "topics": ("t",), "owned": ()}
SESSION = 10_000


def subscription(*topics: str, owned: tuple[int, ...] = ()) -> bytes:
    kind = ConsumerProtocolSubscription
    parts = [kind.TopicPartition(topic="t", partitions=list(owned))] if owned else []
    return encode(kind, kind.new(topics=list(topics), owned_partitions=parts), 1)


def written(*partitions: int) -> bytes:
    kind = ConsumerProtocolAssignment
    parts = [kind.TopicPartition(topic="t", partitions=list(partitions))] if partitions else []
    return encode(kind, kind.new(assigned_partitions=parts), 1)


def read(synced: SyncedMember) -> list[int]:
    assert synced.error is ErrorCode.NONE, synced
    told = ConsumerProtocolAssignment.decode(synced.assignment, 1, 2)
    return sorted(index for part in told.assigned_partitions for index in part.partitions)


class Classic:
    """A consumer of the classic protocol; it gives everything up when it joins again."""

    def __init__(self, world: ConsumerWorld, member_id: str = "", generation: int = -1) -> None:
        self.world = world
        self.id = member_id
        self.generation = generation
        self.has: list[int] = []

    def join(self, **options: Any) -> Joined:
        self.has = []
        fields = {"protocols": (("range", subscription("t")),), **options}
        coordinator = self.world.coordinator
        answer: Joined = coordinator.ask(coordinator.join_command(self.id, **fields))
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            answer = coordinator.ask(coordinator.join_command(self.id, **fields))
        if answer.error is ErrorCode.NONE:
            self.id, self.generation = answer.member_id, answer.generation
        return answer

    def sync(self) -> SyncedMember:
        command = SyncGroup("g", self.generation, self.id, None, "consumer", "range")
        answer: SyncedMember = self.world.coordinator.ask(command)
        if answer.error is ErrorCode.NONE:
            self.has = read(answer)
        return answer

    def beat(self) -> ErrorCode:
        answer = self.world.coordinator.ask(Heartbeat("g", self.generation, self.id))
        if answer is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            self.sync()
        return answer  # type: ignore[no-any-return]


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld(t=4)


def classic_group(world: ConsumerWorld, count: int) -> list[Classic]:
    """A stable classic group whose members share the four partitions."""
    coordinator = world.coordinator
    parked = [coordinator.join("", protocols=(("range", subscription("t")),)) for _ in range(count)]
    world.clock.advance(3000 * count)
    joined = sorted((answers[0] for answers in parked), key=lambda answer: not answer.members)
    ids = [answer.member_id for answer in joined]
    shares = {member_id: written(*range(place, 4, count)) for place, member_id in enumerate(ids)}
    syncs = [
        coordinator.submit(coordinator.sync_command(each, assignments=tuple(shares.items()) if each.members else ()))
        for each in reversed(joined)
    ]
    assert all(answers[0].error is ErrorCode.NONE for answers in syncs)
    members = [Classic(world, answer.member_id, answer.generation) for answer in joined]
    for place, member in enumerate(members):
        member.has = list(range(place, 4, count))
    return members


def settled(world: ConsumerWorld, classics: list[Classic], consumers: list[Consumer]) -> list[int]:
    """After enough heartbeats; how many partitions each has."""
    for _ in range(8):
        world.clock.advance(BEAT)
        for consumer in consumers:
            consumer.beat()
        for classic in classics:
            classic.beat()
        held = [index for each in classics for index in each.has]
        held += [index for each in consumers for _, index in each.partitions()]
        assert len(held) == len(set(held)), held
    assert sorted(held) == [0, 1, 2, 3]
    return [*(len(each.has) for each in classics), *(len(each.partitions()) for each in consumers)]


def test_up_with_the_first_member_of_the_consumer_protocol(world: ConsumerWorld) -> None:
    first, second = classic_group(world, 2)
    generation = first.generation
    joined = world.member("c", "t").join()
    group = world.machine.consumers.groups["g"]
    assert world.coordinator.state() is None
    assert joined.epoch == generation + 1
    assert {each.classic is None for each in group.members.values()} == {True, False}
    assert sorted(settled(world, [first, second], [joined])) == [1, 1, 2]
    before = world.durable()
    world.reload()
    assert world.durable() == before
    assert sorted(settled(world, [first, second], [joined])) == [1, 1, 2]


def test_everybody_is_moved_one_after_the_other_and_back(world: ConsumerWorld) -> None:
    first, second = classic_group(world, 2)
    one = world.member("c", "t").join()
    settled(world, [first, second], [one])
    assert world.coordinator.leave(first.id) == (ErrorCode.NONE, [ErrorCode.NONE])
    two = world.member("d", "t").join()
    settled(world, [second], [one, two])
    assert world.coordinator.leave(second.id) == (ErrorCode.NONE, [ErrorCode.NONE])
    settle(one, two)
    back = Classic(world)
    assert back.join().error is ErrorCode.NONE
    settled(world, [back], [one, two])
    one.leave()
    settled(world, [back], [two])
    assert world.coordinator.state() is None
    two.leave()
    assert world.machine.consumers.groups == {}
    assert world.coordinator.state() == "PreparingRebalance"
    world.reload()
    assert world.coordinator.state() == "Stable", "the last assignment stands until there is another one"


def test_who_waits_in_the_classic_group_is_told_to_join_again(world: ConsumerWorld) -> None:
    first, _ = classic_group(world, 2)
    parked = world.coordinator.submit(
        world.coordinator.join_command(first.id, protocols=(("range", subscription("t", "u")),))
    )
    assert parked == []
    assert world.refusal("c", 0, **{**FULL, "expression": "("}) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert parked == []
    world.member("c", "t").join()
    assert parked[0].error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_silent_classic_member_is_fenced(world: ConsumerWorld) -> None:
    first, second = classic_group(world, 2)
    joined = world.member("c", "t").join()
    for _ in range(6):
        world.clock.advance(BEAT)
        joined.beat()
        first.beat()
    assert second.id not in world.machine.consumers.groups["g"].members
    assert sorted(settled(world, [first], [joined])) == [2, 2]


def test_the_last_member_of_the_consumer_protocol_is_fenced_and_the_group_goes_down(world: ConsumerWorld) -> None:
    (first,) = classic_group(world, 1)
    world.member("c", "t").join()
    for _ in range(12):
        world.clock.advance(BEAT)
        if not world.machine.consumers.groups:
            break
        first.beat()
    assert world.machine.consumers.groups == {}
    assert first.id in world.machine.groups["g"].members


@pytest.mark.parametrize(("policy", "up"), [("disabled", False), ("downgrade", False), ("upgrade", True)])
def test_the_policy_says_which_way_is_open(policy: str, up: bool) -> None:
    world = ConsumerWorld(GroupSettings(consumer_migration_policy=policy), t=4)
    (first,) = classic_group(world, 1)
    if not up:
        assert world.refusal("c", 0, **FULL) is ErrorCode.GROUP_ID_NOT_FOUND
        assert first.beat() is ErrorCode.NONE
        return
    joined = world.member("c", "t").join()
    settled(world, [first], [joined])
    joined.leave()
    assert world.machine.consumers.groups["g"].members.keys() == {first.id}, "it does not go down"
    assert settled(world, [first], []) == [4]


def test_what_the_log_refuses_leaves_the_group_as_it_was(world: ConsumerWorld) -> None:
    first, second = classic_group(world, 2)
    world.coordinator.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert world.refusal("c", 0, **FULL) is ErrorCode.KAFKA_STORAGE_ERROR
    assert world.coordinator.state() == "Stable"
    assert world.machine.consumers.groups == {}
    world.coordinator.refuse = None
    assert first.beat() is ErrorCode.NONE
    joined = world.member("c", "t").join()
    settled(world, [first, second], [joined])
    world.coordinator.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert world.refusal("c", -1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert world.coordinator.state() is None
    world.coordinator.refuse = None
    assert settled(world, [first, second], [joined])


@pytest.mark.parametrize("has_offsets", [False, True])
def test_a_static_member_of_the_consumer_protocol_is_replaced_by_a_classic_one(
    world: ConsumerWorld, has_offsets: bool
) -> None:
    """Where the group had offsets, it lost its members, and the next member of the consumer protocol got everything."""
    (first,) = classic_group(world, 1)
    joined = world.member("c", "t", instance_id="i").join()
    settled(world, [first], [joined])
    if has_offsets:
        epoch = world.machine.consumers.groups["g"].members["c"].epoch
        position = NewOffset("t", 0, 7)
        answer = world.coordinator.commit(position, member_id="c", generation=epoch, instance_id="i")
        assert answer == [ErrorCode.NONE]
    answer = Classic(world).join(instance_id="i")
    assert answer.error is ErrorCode.NONE
    assert world.machine.consumers.groups == {}
    assert set(world.machine.groups["g"].members) == {first.id, answer.member_id}


def test_a_group_with_an_assignor_of_its_own_stays(world: ConsumerWorld) -> None:
    (first,) = classic_group(world, 1)
    world.machine.groups["g"].members[first.id].assignment = written(0)[:-4] + b"\0\0\0\1x"
    assert world.refusal("c", 0, **FULL) is ErrorCode.GROUP_ID_NOT_FOUND
    assert first.beat() is ErrorCode.NONE
