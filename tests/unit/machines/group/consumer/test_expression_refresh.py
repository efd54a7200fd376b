"""When expressions are resolved, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.consumer_harness import BEAT, REBALANCE, ConsumerWorld, settle

from duramen.errors import ErrorCode
from duramen.machines.group.consumer.commands import ExpressionsResolved, ResolveExpressions

FULL: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE, "owned": ()}


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld(ta=2, tb=2, u=1)


def asked(world: ConsumerWorld) -> list[tuple[str, ...]]:
    return [effect.expressions for effect in world.effects if isinstance(effect, ResolveExpressions)]


def test_a_member_waits_until_its_expression_is_resolved(world: ConsumerWorld) -> None:
    world.held = []
    member = world.member("a", expression="t.", caller="somebody").join()
    assert (member.partitions(), member.epoch) == ([], 1)
    assert world.held == [ResolveExpressions("g", ("t.",), "somebody")]
    world.clock.advance(BEAT)
    member.beat()
    assert len(world.held) == 1, "one at a time"
    world.finish(world.held.pop())
    member.beat()
    assert {name for name, _ in member.partitions()} == {"ta", "tb"}
    assert world.state() == "Stable"


def test_names_and_an_expression_go_together(world: ConsumerWorld) -> None:
    member = world.member("a", "u", expression="ta").join()
    world.clock.advance(BEAT)
    assert {name for name, _ in member.beat().partitions()} == {"ta", "u"}


def test_a_second_member_with_the_same_expression_shares_at_once(world: ConsumerWorld) -> None:
    first = world.member("a", expression="t.").join()
    world.clock.advance(BEAT)
    first.beat()
    world.clock.advance(BEAT)
    second = world.member("b", expression="t.").join()
    settle(first, second)
    assert sorted(len(member.partitions()) for member in (first, second)) == [2, 2]
    assert asked(world) == [("t.",)]


def test_new_topics_are_found_ten_seconds_after_the_last_time(world: ConsumerWorld) -> None:
    member = world.member("a", expression="t.").join()
    world.clock.advance(BEAT)
    member.beat()
    world.change_topic("tc", 1)
    world.clock.advance(BEAT)
    member.beat()
    assert len(asked(world)) == 1, "it is too soon"
    world.clock.advance(BEAT)
    member.beat()
    assert len(asked(world)) == 2
    member.beat()
    assert ("tc", 0) in member.partitions()
    world.clock.advance(BEAT * 4)
    member.beat()
    assert len(asked(world)) == 2, "nothing is new"


def test_they_are_resolved_again_after_the_refresh_interval(world: ConsumerWorld) -> None:
    member = world.member("a", expression="t.").join()
    for _ in range(125):
        world.clock.advance(BEAT)
        member.beat()
    assert len(asked(world)) == 2


def test_what_was_not_resolved_is_asked_for_again(world: ConsumerWorld) -> None:
    world.held = []
    member = world.member("a", expression="t.").join()
    assert world.coordinator.ask(ExpressionsResolved("g", None, 0)) is True
    member.beat()
    assert len(world.held) == 1, "not at once"
    world.clock.advance(BEAT * 3)
    member.beat()
    assert len(world.held) == 2


def test_another_expression_takes_the_place_of_the_first(world: ConsumerWorld) -> None:
    member = world.member("a", expression="t.").join()
    world.clock.advance(BEAT)
    member.beat()
    world.clock.advance(BEAT * 3)
    member.beat(expression="u")
    for _ in range(3):
        world.clock.advance(BEAT)
        member.beat()
    assert member.partitions() == [("u", 0)]
    group = world.machine.consumers.groups["g"]
    assert list(group.expressions) == ["u"]
    world.clock.advance(BEAT)
    member.beat(expression="", topics=("tb",))
    for _ in range(3):
        world.clock.advance(BEAT)
        member.beat()
    assert {name for name, _ in member.partitions()} == {"tb"}
    assert group.expressions == {}


def test_the_last_member_takes_its_expression_with_it(world: ConsumerWorld) -> None:
    member = world.member("a", expression="t.").join()
    world.clock.advance(BEAT)
    member.beat()
    member.leave()
    assert world.machine.consumers.groups["g"].expressions == {}


def test_no_expression_is_refused_before_its_member_is_admitted(world: ConsumerWorld) -> None:
    assert world.refusal("a", 0, expression="(", **FULL) == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.machine.consumers.groups == {}


def test_after_a_load_they_stand_and_are_resolved_anew_once(world: ConsumerWorld) -> None:
    member = world.member("a", expression="t.").join()
    world.clock.advance(BEAT)
    member.beat()
    world.topics.put("tc", 1)
    world.reload()
    assert len(member.beat().partitions()) == 4
    world.clock.advance(BEAT * 3)
    member.beat()
    member.beat()
    assert len(member.partitions()) == 5
    assert len(asked(world)) == 2
