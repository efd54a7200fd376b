"""One member on its way to its target: every state, and a random group in which nobody has what another has."""

from __future__ import annotations

from random import Random

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group.consumer.reconciliation import Target, check_known, is_part, reconcile
from duramen.machines.group.consumer.state import ConsumerGroup, ConsumerMember, MemberState
from duramen.model import TopicId

T, U = b"t" * 16, b"u" * 16
BOTH = frozenset((T, U))


def at(
    epoch: int, state: MemberState = MemberState.STABLE, **partitions: dict[TopicId, dict[int, int]]
) -> ConsumerMember:
    return ConsumerMember("m", epoch=epoch, previous_epoch=epoch - 1, state=state, **partitions)  # type: ignore[arg-type]


def nobody(topic_id: TopicId, partition: int) -> str | None:
    return None


def test_it_stays_where_it_has_arrived() -> None:
    member = at(5, assigned={T: {0: 3}})
    assert reconcile(member, Target(5, {T: (0,)}), BOTH, nobody, None, has_changed=False) is member


def test_it_moves_on_with_what_is_free() -> None:
    moved = reconcile(at(5, assigned={T: {0: 3}}), Target(6, {T: (0, 1)}), BOTH, nobody, None, has_changed=False)
    assert (moved.epoch, moved.previous_epoch, moved.state) == (6, 5, MemberState.STABLE)
    assert moved.assigned == {T: {0: 3, 1: 6}}, "what it had it has since then"


def test_it_waits_for_what_another_has() -> None:
    def owner(topic_id: TopicId, partition: int) -> str | None:
        return "other" if partition == 1 else None

    target = Target(6, {T: (0, 1)})
    moved = reconcile(at(5, assigned={T: {0: 3}}), target, BOTH, owner, None, has_changed=False)
    assert (moved.epoch, moved.state, moved.assigned) == (6, MemberState.UNRELEASED, {T: {0: 3}})
    done = reconcile(moved, target, BOTH, nobody, None, has_changed=False)
    assert (done.state, done.assigned) == (MemberState.STABLE, {T: {0: 3, 1: 6}})


def test_it_gives_up_first_and_its_epoch_stays() -> None:
    target = Target(6, {U: (0,)})
    asked = reconcile(at(5, assigned={T: {0: 3, 1: 3}}), target, BOTH, nobody, ((T, (0, 1)),), has_changed=False)
    assert (asked.epoch, asked.state) == (5, MemberState.UNREVOKED)
    assert (asked.assigned, asked.revoking) == ({}, {T: {0: 3, 1: 3}})
    assert reconcile(asked, target, BOTH, nobody, None, has_changed=False) is asked, "it says nothing"
    assert reconcile(asked, target, BOTH, nobody, ((T, (1,)),), has_changed=False) is asked, "it still has one"
    moved = reconcile(asked, target, BOTH, nobody, (), has_changed=False)
    assert (moved.epoch, moved.state, moved.assigned, moved.revoking) == (6, MemberState.STABLE, {U: {0: 6}}, {})


def test_what_it_has_given_up_already_it_is_not_asked_for() -> None:
    moved = reconcile(at(5, assigned={T: {0: 3}}), Target(6, {}), BOTH, nobody, (), has_changed=False)
    assert (moved.epoch, moved.state, moved.assigned) == (6, MemberState.STABLE, {})


def test_it_may_take_again_what_it_was_asked_to_give_up() -> None:
    asked = at(5, MemberState.UNREVOKED, revoking={T: {0: 3}})
    moved = reconcile(asked, Target(7, {T: (0,)}), BOTH, lambda *_: "m", (), has_changed=False)
    assert (moved.epoch, moved.assigned) == (7, {T: {0: 7}})


def test_a_topic_it_does_not_subscribe_to_any_more_is_given_up_before_there_is_another_target() -> None:
    member = at(5, assigned={T: {0: 3}, U: {0: 4}})
    dropped = reconcile(member, Target(5, {T: (0,), U: (0,)}), frozenset((T,)), nobody, None, has_changed=True)
    assert (dropped.epoch, dropped.state) == (5, MemberState.UNREVOKED)
    assert (dropped.assigned, dropped.revoking) == ({T: {0: 3}}, {U: {0: 4}})
    shrunk = reconcile(member, Target(5, {T: (0,), U: (0,)}), frozenset((T,)), nobody, (), has_changed=True)
    assert (shrunk.state, shrunk.assigned, shrunk.revoking) == (MemberState.STABLE, {T: {0: 3}}, {})
    same = reconcile(member, Target(5, {T: (0,), U: (0,)}), BOTH, nobody, None, has_changed=True)
    assert same is member


def test_a_state_of_a_newer_release() -> None:
    member = at(5, MemberState(9), assigned={T: {0: 3}})
    assert member.state is MemberState.UNKNOWN
    for reported in (None, ((T, (0,)),)):
        with pytest.raises(KafkaError) as refused:
            check_known(member, reported)
        assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    check_known(member, ())
    assert reconcile(member, Target(6, {T: (0,)}), BOTH, nobody, (), has_changed=False).state is MemberState.STABLE


def test_a_part_of_what_it_has() -> None:
    assert is_part((), {T: {0: 1}})
    assert is_part(((T, (0,)),), {T: {0: 1, 1: 1}})
    assert not is_part(((T, (0, 2)),), {T: {0: 1}})
    assert not is_part(((U, (0,)),), {T: {0: 1}})
    assert not is_part(None, {})


@pytest.mark.parametrize("seed", range(200))
def test_nobody_ever_has_what_another_has(seed: int) -> None:
    """Random targets, heartbeats in any order, answers that are lost: and at the end everybody has its target."""
    random = Random(seed)
    group = ConsumerGroup("g")
    names = ["a", "b", "c"][: random.randrange(2, 4)]
    for name in names:
        group.put(ConsumerMember(name))
    held: dict[str, set[tuple[TopicId, int]]] = {name: set() for name in names}
    targets: dict[str, dict[TopicId, tuple[int, ...]]] = {name: {} for name in names}
    epoch = 1

    def beat(name: str, *, is_lost: bool) -> None:
        member = group.members[name]
        reported = tuple((each, tuple(p for topic, p in held[name] if topic == each)) for each in (T, U))
        moved = reconcile(
            member, Target(epoch, targets[name]), BOTH, group.owner, reported, has_changed=random.random() < 0.1
        )
        group.put(moved)
        if not is_lost:
            held[name] = {(topic, p) for topic, epochs in moved.assigned.items() for p in epochs}
        for other in names:
            assert other == name or not held[name] & held[other], (name, other)

    for _ in range(60):
        if random.random() < 0.2:
            epoch += 1
            places = [(topic, p) for topic in (T, U) for p in range(3)]
            given: dict[str, dict[TopicId, list[int]]] = {name: {} for name in names}
            for topic, partition in places:
                given[random.choice(names)].setdefault(topic, []).append(partition)
            targets = {name: {topic: tuple(each) for topic, each in mine.items()} for name, mine in given.items()}
        beat(random.choice(names), is_lost=random.random() < 0.2)
    for _ in range(6):
        for name in names:
            beat(name, is_lost=False)
    for name in names:
        assert held[name] == {(topic, p) for topic, indexes in targets[name].items() for p in indexes}
        assert group.members[name].is_at(epoch)
