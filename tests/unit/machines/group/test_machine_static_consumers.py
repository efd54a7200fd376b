"""Static members of consumer groups: one holder at a time, a place kept for the length of a session."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.consumer_harness import BEAT, REBALANCE, SESSION, ConsumerWorld, settle

from duramen.errors import ErrorCode

FULL: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE, "topics": ("t",), "owned": (), "instance_id": "i"}


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld(t=4)


def test_a_second_live_holder_is_refused(world: ConsumerWorld) -> None:
    first = world.member("a", "t", instance_id="i").join()
    assert world.refusal("b", 0, **FULL) == ErrorCode.UNRELEASED_INSTANCE_ID
    assert world.refusal("b", first.epoch, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
    assert world.refusal("b", -1, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
    assert world.refusal("a", first.epoch, instance_id="j") == ErrorCode.UNKNOWN_MEMBER_ID
    first.beat()


def test_the_same_process_may_join_again(world: ConsumerWorld) -> None:
    first = world.member("a", "t", instance_id="i").join()
    assert len(first.join().partitions()) == 4, "its first answer may have been lost"


def test_who_comes_back_takes_its_place_without_a_rebalance(world: ConsumerWorld) -> None:
    first, second = world.member("a", "t", instance_id="i").join(), world.member("b", "t").join()
    settle(first, second)
    had, epoch = first.partitions(), world.machine.consumers.groups["g"].epoch
    first.leave(-2)
    assert world.state() == "Reconciling"
    second.beat()
    assert len(second.partitions()) == 2
    assert world.refusal("a", first.epoch, instance_id="i") == ErrorCode.FENCED_MEMBER_EPOCH
    back = world.member("c", "t", instance_id="i").join()
    assert back.partitions() == had
    assert (back.epoch, world.machine.consumers.groups["g"].epoch) == (epoch, epoch)
    assert set(world.machine.consumers.groups["g"].members) == {"b", "c"}
    assert world.state() == "Stable"
    assert world.machine.consumers.groups["g"].members["c"].held_since(b"t".rjust(16, b"."), had[0][1]) == 0
    world.reload()
    assert back.beat().partitions() == had


def test_the_same_id_may_come_back(world: ConsumerWorld) -> None:
    first = world.member("a", "t", instance_id="i").join()
    first.leave(-2)
    assert len(first.join().partitions()) == 4
    world.reload()
    assert len(first.beat().partitions()) == 4


def test_who_comes_back_with_another_subscription_rebalances(world: ConsumerWorld) -> None:
    world.topics.put("u", 2)
    first = world.member("a", "t", instance_id="i").join()
    first.leave(-2)
    world.clock.advance(BEAT)
    back = world.member("c", "u", instance_id="i").join()
    back.beat()
    assert back.partitions() == [("u", 0), ("u", 1)]


def test_who_does_not_come_back_is_fenced(world: ConsumerWorld) -> None:
    first, second = world.member("a", "t", instance_id="i").join(), world.member("b", "t").join()
    settle(first, second)
    first.leave(-2)
    for _ in range(SESSION // BEAT + 1):
        world.clock.advance(BEAT)
        second.beat()
    settle(second)
    assert len(second.partitions()) == 4
    assert world.machine.consumers.groups["g"].static_ids == {}


def test_leaving_for_a_while_frees_what_was_to_be_given_up(world: ConsumerWorld) -> None:
    first = world.member("a", "t", instance_id="i").join()
    world.clock.advance(BEAT)
    second = world.member("b", "t").join()
    first.beat()
    assert world.machine.consumers.groups["g"].members["a"].revoking
    first.leave(-2)
    second.beat()
    assert len(second.partitions()) == 2
    world.clock.advance(REBALANCE)
    assert "b" not in world.machine.consumers.groups["g"].members, "nobody beat"


def test_leaving_for_good_removes_it(world: ConsumerWorld) -> None:
    world.member("a", "t", instance_id="i").join().leave()
    assert world.state() == "Empty"
    assert world.refusal("a", -2) == ErrorCode.INVALID_REQUEST, "only static members leave for a while"
