"""What a consumer group's machine has the node's log say of its members."""

from __future__ import annotations

import pytest
from tests.worlds.consumer_harness import REBALANCE, ConsumerWorld

from duramen.machines.group.consumer.heartbeats import TIMED_OUT

DAY_MS = 86_400_000


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld(t=4)


def said(world: ConsumerWorld) -> list[tuple[str, str, str, str]]:
    """(event, member, instance, cause) since the last look."""
    changes = [(each.event, each.member_id, each.instance_id, each.cause) for each in world.changes]
    world.changes.clear()
    return changes


def test_a_join_and_a_leave_are_said_once(world: ConsumerWorld) -> None:
    member = world.member("a", "t").join()
    assert said(world) == [("group-member-joined", "a", "", "")]
    member.beat()
    member.join()  # again: its first answer may have been lost
    assert said(world) == []
    member.leave()
    assert said(world) == [("group-member-left", "a", "", "")]


def test_a_member_that_does_not_beat_is_removed_for_that(world: ConsumerWorld) -> None:
    world.member("a", "t").join()
    said(world)
    world.clock.advance(DAY_MS)
    assert said(world) == [("group-member-removed", "a", "", TIMED_OUT["session"])]


def test_a_member_that_keeps_what_it_must_give_up_is_removed_for_that(world: ConsumerWorld) -> None:
    first = world.member("a", "t").join()
    world.member("b", "t").join()
    kept = first.owned()
    said(world)
    for _ in range(REBALANCE // 1000 + 2):
        world.clock.advance(1000)
        if "a" in world.machine.consumers.groups["g"].members:
            first.beat(owned=kept)
        world.beat("b", world.machine.consumers.groups["g"].members["b"].epoch)
    assert said(world) == [("group-member-removed", "a", "", TIMED_OUT["rebalance"])]


def test_a_static_member_that_goes_for_a_while_stays_a_member_until_it_is_replaced(world: ConsumerWorld) -> None:
    member = world.member("a", "t", instance_id="i").join()
    assert said(world) == [("group-member-joined", "a", "i", "")]
    member.leave(-2)
    assert said(world) == []
    world.member("b", "t", instance_id="i").join()
    assert said(world) == [
        ("group-member-removed", "a", "i", "b joined with its group.instance.id"),
        ("group-member-joined", "b", "i", ""),
    ]
