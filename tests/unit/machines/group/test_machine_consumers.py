"""A member's life in a consumer group: join, share, give up, lose answers, leave, be fenced; and after a load."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.consumer_harness import BEAT, REBALANCE, SESSION, ConsumerWorld, settle

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group import DescribeGroups, GroupSettings, ListGroups
from duramen.machines.group.consumer.commands import (
    ComputeTarget,
    ConsumerAnswer,
    ConsumerHeartbeat,
    TargetComputed,
)
from duramen.machines.group.consumer.heartbeats import TARGET_WAIT_MS
from duramen.machines.group.consumer.target import compute, is_due

FULL: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE, "topics": ("t",), "owned": ()}


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld(t=4)


def test_the_first_member_gets_everything_at_once(world: ConsumerWorld) -> None:
    member = world.member("a", "t").join()
    assert sorted(member.partitions()) == [("t", 0), ("t", 1), ("t", 2), ("t", 3)]
    assert member.epoch == 2, "a group begins at 1, and its first member raises that"
    assert world.state() == "Stable"


def test_a_second_member_takes_what_the_first_has_given_up(world: ConsumerWorld) -> None:
    first = world.member("a", "t").join()
    world.clock.advance(BEAT)
    second = world.member("b", "t").join()
    assert second.partitions() == []
    assert second.epoch == 3
    assert world.state() == "Reconciling"
    before = first.epoch
    first.beat()
    assert first.epoch == before, "the epoch stays until it has said that it gave up"
    assert len(first.partitions()) == 2
    second.beat()
    assert second.partitions() == []
    first.beat()
    assert first.epoch == 3
    second.beat()
    assert len(second.partitions()) == 2
    assert sorted(first.partitions() + second.partitions()) == [("t", index) for index in range(4)]
    assert world.state() == "Stable"


def test_nobody_has_what_another_has(world: ConsumerWorld) -> None:
    world.topics.put("u", 6)
    members = [world.member(name, "t", "u").join() for name in "abc"]
    for _ in range(12):
        world.clock.advance(700)
        for member in members:
            member.beat()
            held = [each for other in members for each in other.partitions()]
            assert len(held) == len(set(held)), held
    assert sorted(len(member.partitions()) for member in members) == [3, 3, 4]


def test_assignments_are_not_computed_more_often_than_the_interval(world: ConsumerWorld) -> None:
    world.member("a", "t").join()
    second = world.member("b", "t").join()
    assert (second.epoch, world.state()) == (2, "Assigning")
    world.clock.advance(1000)
    assert second.beat().epoch == 3


def test_the_answer_tells_the_assignment_only_when_it_is_news(world: ConsumerWorld) -> None:
    member = world.member("a", "t").join()
    answer = world.beat("a", member.epoch)
    assert answer == ConsumerAnswer("a", 2, BEAT, None)
    full = world.beat("a", member.epoch, **{**FULL, "owned": member.owned()})
    assert isinstance(full, ConsumerAnswer)
    assert full.assignment == member.owned()
    again = world.beat("a", 0, **FULL)
    assert isinstance(again, ConsumerAnswer)
    assert again.assignment == member.owned()


def test_a_lost_answer_is_given_again(world: ConsumerWorld) -> None:
    first = world.member("a", "t").join()
    had = first.owned()
    world.clock.advance(BEAT)
    second = world.member("b", "t").join()
    first.beat()
    world.beat("a", first.epoch, owned=first.owned())  # lost on the way
    assert first.beat().epoch == 3, "the epoch before, and no more than it gave"
    second.beat()
    assert len(second.partitions()) == 2
    assert world.refusal("a", 2, owned=had) == ErrorCode.FENCED_MEMBER_EPOCH, "it has what it gave up"
    assert world.refusal("a", 2) == ErrorCode.FENCED_MEMBER_EPOCH, "it does not say what it has"
    assert world.refusal("a", 1, owned=()) == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.refusal("a", 4, owned=()) == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_fenced_member_joins_anew(world: ConsumerWorld) -> None:
    member = world.member("a", "t").join()
    assert world.refusal("a", 9) == ErrorCode.FENCED_MEMBER_EPOCH
    member.join()
    assert len(member.partitions()) == 4
    assert world.state() == "Stable"


def test_who_is_unknown_is_told_so(world: ConsumerWorld) -> None:
    assert world.refusal("a", 1) == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.refusal("a", -1) == ErrorCode.GROUP_ID_NOT_FOUND
    world.member("a", "t").join()
    assert world.refusal("b", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.refusal("b", -1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_frees_what_the_member_had(world: ConsumerWorld) -> None:
    first, second = world.member("a", "t").join(), world.member("b", "t").join()
    settle(first, second)
    second.leave()
    settle(first)
    assert len(first.partitions()) == 4
    first.leave()
    assert world.state() == "Empty"
    assert world.coordinator.ask(ListGroups())[0].state == "Empty"


def test_a_silent_member_is_fenced(world: ConsumerWorld) -> None:
    first, second = world.member("a", "t").join(), world.member("b", "t").join()
    settle(first, second)
    for _ in range(SESSION // BEAT):
        world.clock.advance(BEAT)
        first.beat()
    settle(first)
    assert len(first.partitions()) == 4
    assert world.refusal("b", second.epoch) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_give_up_in_time_is_fenced(world: ConsumerWorld) -> None:
    first = world.member("a", "t").join()
    held = first.owned()
    world.clock.advance(BEAT)
    second = world.member("b", "t").join()
    for _ in range(REBALANCE // BEAT + 1):
        if "a" in world.machine.consumers.groups["g"].members:
            world.beat("a", 2, owned=held)
        world.clock.advance(BEAT)
        second.beat()
    assert world.refusal("a", 2, owned=held) == ErrorCode.UNKNOWN_MEMBER_ID
    settle(second)
    assert len(second.partitions()) == 4


def test_after_a_load_both_timers_begin_anew(world: ConsumerWorld) -> None:
    first = world.member("a", "t").join()
    world.clock.advance(BEAT)
    world.member("b", "t").join()
    first.beat()
    world.clock.advance(SESSION - 1)
    world.reload()
    assert set(world.machine.consumers.groups["g"].members) == {"a", "b"}
    world.clock.advance(SESSION - 1)
    assert set(world.machine.consumers.groups["g"].members) == {"a", "b"}
    world.clock.advance(1)
    assert world.state() == "Empty"


def test_a_replay_gives_the_same_groups(world: ConsumerWorld) -> None:
    first, second = world.member("a", "t").join(), world.member("b", "t", instance_id="i").join()
    settle(first, second)
    second.leave(-2)
    before = world.durable()
    assert before["g"][6] == {"i": "b"}
    world.reload()
    assert world.durable() == before


def test_a_changed_subscription_rebalances_at_once(world: ConsumerWorld) -> None:
    world.topics.put("u", 2)
    member = world.member("a", "t").join()
    world.clock.advance(BEAT)
    member.topics = ("t", "u")
    member.beat(topics=("t", "u"))
    assert len(member.partitions()) == 6
    world.clock.advance(BEAT)
    member.beat(topics=("u",))
    assert [name for name, _ in member.partitions()] == ["u", "u"]
    member.beat()
    assert world.state() == "Stable"


def test_new_partitions_are_assigned_at_the_next_heartbeat(world: ConsumerWorld) -> None:
    member = world.member("a", "t", "u").join()
    assert len(member.partitions()) == 4
    world.change_topic("u", 1)
    world.clock.advance(BEAT)
    assert len(member.beat().partitions()) == 5
    world.change_topic("t", 6)
    world.clock.advance(BEAT)
    assert len(member.beat().partitions()) == 7


def test_a_topic_that_is_gone_is_given_up(world: ConsumerWorld) -> None:
    member = world.member("a", "t").join()
    world.delete_topic("t")
    world.clock.advance(BEAT)
    member.beat()
    assert member.has == {}


def test_after_a_load_topics_are_looked_at_again(world: ConsumerWorld) -> None:
    member = world.member("a", "t").join()
    world.topics.put("t", 6)
    world.reload()
    world.clock.advance(BEAT)
    assert len(member.beat().partitions()) == 6
    epoch = member.epoch
    world.reload()
    world.clock.advance(BEAT)
    assert member.beat().epoch == epoch, "they are as they were"


def test_a_full_group_takes_nobody_else(world: ConsumerWorld) -> None:
    world.machine.settings = GroupSettings(consumer_max_size=1)
    member = world.member("a", "t").join()
    assert world.refusal("b", 0, **FULL) == ErrorCode.GROUP_MAX_SIZE_REACHED
    member.join()


def test_a_client_without_an_id_is_given_one(world: ConsumerWorld) -> None:
    answer = world.beat("", 0, new_id="made", brings_id=False, **FULL)
    assert isinstance(answer, ConsumerAnswer)
    assert answer.member_id == "made"
    assert world.refusal("", 0, new_id="made", **FULL) == ErrorCode.INVALID_REQUEST


# ---------------------------------------------------------------------- the assignor


def test_most_members_decide_which_assignor(world: ConsumerWorld) -> None:
    world.topics.put("u", 4)
    members = [world.member(name, "t", "u", assignor="range").join() for name in "ab"]
    settle(*members)
    assert sorted(members[0].partitions()) == [("t", 0), ("t", 1), ("u", 0), ("u", 1)]
    assert world.refusal("c", 0, assignor="sticky", **FULL) == ErrorCode.UNSUPPORTED_ASSIGNOR


@pytest.mark.parametrize(("now", "due"), [(999, True), (1000, False), (1199, False), (1200, True)])
def test_a_target_waits_for_its_interval_unless_the_clock_was_set_back(now: int, due: bool) -> None:
    """A group did not rebalance any more until the wall clock had caught up."""
    assert is_due(1000, 200, now) is due
    assert is_due(1000, 0, now)
    assert is_due(0, 200, now)


# ---------------------------------------------------------------------- large assignments


def test_a_large_assignment_is_computed_beside_the_loop_and_its_members_wait_for_it() -> None:
    world = ConsumerWorld(t=3000)
    world.held = []
    first, second = world.member("a", "t"), world.member("b", "t")
    answers = [first.ask_to_join(), second.ask_to_join()]
    assert answers == [[], []]
    assert world.state() == "Assigning"
    assert len(world.held) == 1, "one at a time"
    assert isinstance(world.held[0], ComputeTarget)
    world.finish(world.held.pop())
    first.take(answers[0])
    second.take(answers[1])
    assert (first.epoch, len(first.partitions())) == (2, 3000), "as it was asked, without the second"
    assert second.partitions() == []
    world.held = None
    settle(first, second)
    assert [len(member.partitions()) for member in (first, second)] == [1500, 1500]


def test_a_heartbeat_does_not_wait_long_for_a_large_assignment() -> None:
    world = ConsumerWorld(t=3000)
    world.held = []
    first = world.member("a", "t")
    answers = first.ask_to_join()
    world.clock.advance(TARGET_WAIT_MS - 1)
    assert answers == []
    world.clock.advance(1)
    first.take(answers)
    assert (first.epoch, first.has) == (1, {}), "its first epoch is the one before"
    world.finish(world.held.pop())
    first.beat()
    assert (first.epoch, len(first.partitions())) == (2, 3000)


def test_an_answer_that_says_what_to_give_up_does_not_wait() -> None:
    world = ConsumerWorld(t=3000)
    first = world.member("a", "t").join()
    world.clock.advance(BEAT)
    second = world.member("b", "t").join()
    world.held = []
    third = world.member("c", "t")
    world.clock.advance(BEAT)
    answers = third.ask_to_join()
    assert len(world.held) == 1
    first.beat()
    assert len(first.partitions()) == 1500, "by the target before, and at once"
    world.finish(world.held.pop())
    world.held = None
    settle(first, second, third.take(answers))
    assert {len(member.partitions()) for member in (first, second, third)} == {1000}


def test_whoever_waits_for_a_large_assignment_that_the_log_refuses_is_answered() -> None:
    world = ConsumerWorld(t=3000)
    world.held = []
    first = world.member("a", "t")
    answers = first.ask_to_join()
    world.coordinator.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
    done = world.held.pop()
    refused = world.coordinator.submit(TargetComputed("g", done.epoch, compute(done.assignor, done.spec, done.counts)))
    assert refused == [world.coordinator.refuse]
    world.coordinator.refuse = None
    assert answers, "it is decided again, and would have a target computed again"


def test_a_large_assignment_that_is_overtaken_is_used_and_computed_again() -> None:
    world = ConsumerWorld(t=3000)
    world.held = []
    first, second = world.member("a", "t"), world.member("b", "t", instance_id="i")
    answers = [first.ask_to_join(), second.ask_to_join()]
    world.finish(world.held.pop())
    first.take(answers[0])
    second.take(answers[1])
    assert len(first.partitions()) == 3000, "as it was asked, without the second"
    world.clock.advance(BEAT)
    beaten = world.coordinator.submit(ConsumerHeartbeat("g", "b", second.epoch, instance_id="i", owned=()))
    second.leave(-2)
    back = world.member("c", "t", instance_id="i")
    joined = back.ask_to_join()
    world.held, last = None, world.held.pop()
    world.finish(last)
    assert [each.code for each in beaten] == [ErrorCode.FENCED_INSTANCE_ID], "it has left since"
    settle(first, back.take(joined))
    assert sorted(len(member.partitions()) for member in (first, back)) == [1500, 1500]


def test_a_computation_that_failed_is_asked_for_again() -> None:
    world = ConsumerWorld(t=3000)
    world.held = []
    member = world.member("a", "t")
    answers = member.ask_to_join()
    assert world.coordinator.ask(TargetComputed("g", 2, None)) is True
    member.take(answers)
    assert len(world.held) == 2, "by the heartbeat that had waited"


# ---------------------------------------------------------------------- what the log refuses


def test_what_the_log_refuses_has_not_happened(world: ConsumerWorld) -> None:
    member = world.member("a", "t").join()
    before = world.durable()
    world.coordinator.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert world.refusal("b", 0, **FULL) == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.refusal("a", -1) == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.durable() == before
    world.coordinator.refuse = None
    settle(member)


def test_a_session_that_ended_while_the_log_refused_ends_later(world: ConsumerWorld) -> None:
    world.member("a", "t").join()
    world.coordinator.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    world.clock.advance(SESSION + BEAT)
    assert world.state() == "Stable"
    world.coordinator.refuse = None
    world.clock.advance(1000)
    assert world.state() == "Empty"


def test_work_outside_is_asked_for_again_when_the_log_refused_it() -> None:
    world = ConsumerWorld(t=3000)
    world.held = []
    world.coordinator.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    world.beat("a", 0, **FULL)
    assert world.held == []
    world.coordinator.refuse = None
    assert world.member("a", "t").ask_to_join() == []
    assert len(world.held) == 1


# ---------------------------------------------------------------------- beside classic groups


def test_an_empty_classic_group_gives_way(world: ConsumerWorld) -> None:
    (joined,) = world.coordinator.stable(1)
    assert world.refusal("a", 0, **FULL) == ErrorCode.GROUP_ID_NOT_FOUND
    world.coordinator.leave(joined.member_id)
    world.member("a", "t").join()
    assert world.coordinator.state() is None
    assert world.coordinator.ask(ListGroups())[0].group_type == "consumer"
    world.reload()
    assert world.state() == "Stable"
    assert world.coordinator.state() is None


def test_an_empty_consumer_group_gives_way(world: ConsumerWorld) -> None:
    member = world.member("a", "t").join()
    refused = world.coordinator.join("", requires_member_id=False)
    assert refused[0].error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    member.leave()
    world.coordinator.stable(1)
    assert world.machine.consumers.groups == {}
    world.reload()
    assert world.machine.consumers.groups == {}
    assert world.coordinator.state() == "Stable"


def test_an_empty_consumer_group_stays_where_the_log_refuses(world: ConsumerWorld) -> None:
    world.member("a", "t").join().leave()
    world.coordinator.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert isinstance(world.coordinator.submit(world.coordinator.join_command())[0], KafkaError)
    assert world.coordinator.state() is None
    assert world.state() == "Empty"


def test_describing_it_as_a_classic_group_finds_nothing(world: ConsumerWorld) -> None:
    world.member("a", "t").join()
    (described,) = world.coordinator.ask(DescribeGroups(("g",)))
    assert (described.exists, described.state, described.is_other_type) == (False, "Dead", True)
