"""The range assignor: runs that differ by one, equal topics cut alike, one order of members."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.machines.group.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec
from duramen.model import TopicId

assign = ASSIGNORS["range"]
ORDERS, CLICKS, VISITS = (bytes([0] * 15 + [number]) for number in (1, 2, 3))


def member(*topic_ids: TopicId, instance_id: str | None = None) -> MemberSpec:
    return MemberSpec(instance_id, frozenset(topic_ids), {})


def keeping(members: dict[str, MemberSpec], assignment: Assignment) -> dict[str, MemberSpec]:
    return {name: spec._replace(owned=assignment.get(name, {})) for name, spec in members.items()}


def moved(members: dict[str, MemberSpec], assignment: Assignment) -> int:
    return sum(
        partition not in assignment[name].get(topic_id, ())
        for name, spec in members.items()
        for topic_id, partitions in spec.owned.items()
        for partition in partitions
    )


def test_equal_topics_are_cut_alike_and_the_first_members_have_one_more() -> None:
    members = {"a": member(ORDERS, CLICKS), "b": member(ORDERS, CLICKS), "c": member(ORDERS, CLICKS)}
    assert assign(GroupSpec(members), {ORDERS: 4, CLICKS: 4}) == {
        "a": {ORDERS: (0, 1), CLICKS: (0, 1)},
        "b": {ORDERS: (2,), CLICKS: (2,)},
        "c": {ORDERS: (3,), CLICKS: (3,)},
    }


def test_more_members_than_partitions() -> None:
    members = {"a": member(ORDERS), "b": member(ORDERS)}
    assert assign(GroupSpec(members), {ORDERS: 1}) == {"a": {ORDERS: (0,)}, "b": {}}


def test_static_members_come_first_by_their_instance_ids() -> None:
    members = {"a": member(ORDERS), "z": member(ORDERS, instance_id="1"), "y": member(ORDERS, instance_id="2")}
    assert assign(GroupSpec(members), {ORDERS: 3}) == {"z": {ORDERS: (0,)}, "y": {ORDERS: (1,)}, "a": {ORDERS: (2,)}}


def test_a_member_that_joins_comes_last_whatever_its_id() -> None:
    members = {"m": member(ORDERS), "n": member(ORDERS)}
    members = keeping(members, assign(GroupSpec(members), {ORDERS: 4}))
    assignment = assign(GroupSpec({"a": member(ORDERS), **members}), {ORDERS: 4})
    assert assignment == {"m": {ORDERS: (0, 1)}, "n": {ORDERS: (2,)}, "a": {ORDERS: (3,)}}
    assert moved(members, assignment) == 1


def test_different_subscriptions_share_each_topic_among_its_subscribers() -> None:
    members = {"a": member(ORDERS), "b": member(ORDERS, CLICKS), "c": member(CLICKS)}
    assert assign(GroupSpec(members), {ORDERS: 2, CLICKS: 3}) == {
        "a": {ORDERS: (0,)},
        "b": {ORDERS: (1,), CLICKS: (0, 1)},
        "c": {CLICKS: (2,)},
    }


def test_topics_that_do_not_exist_are_nobodys() -> None:
    assert assign(GroupSpec({"a": member(ORDERS, CLICKS)}), {ORDERS: 1, VISITS: 3}) == {"a": {ORDERS: (0,)}}


def test_no_members() -> None:
    assert assign(GroupSpec({}), {ORDERS: 1}) == {}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_complete_in_runs_and_stable(data: st.DataObject) -> None:
    counts = {topic_id: data.draw(st.integers(0, 30)) for topic_id in (ORDERS, CLICKS, VISITS)}
    names = data.draw(st.permutations([f"m{number}" for number in range(data.draw(st.integers(1, 8)))]))
    alike = data.draw(st.booleans())
    common = data.draw(st.frozensets(st.sampled_from(sorted(counts))))
    members = {
        name: MemberSpec(
            data.draw(st.sampled_from([None, f"i{name}"])),
            common if alike else data.draw(st.frozensets(st.sampled_from(sorted(counts)))),
            {},
        )
        for name in names
    }
    first = assign(GroupSpec(members), counts)
    for topic_id, count in counts.items():
        subscribers = [name for name, spec in members.items() if topic_id in spec.topic_ids]
        runs = [first[name].get(topic_id, ()) for name in subscribers]
        if subscribers:
            assert sorted(partition for run in runs for partition in run) == list(range(count))
            assert max(map(len, runs)) - min(map(len, runs)) <= 1
        assert all(run == tuple(range(run[0], run[-1] + 1)) for run in runs if run)
        assert all(topic_id not in first[name] for name in members if name not in subscribers)
    if alike and len({counts[topic_id] for topic_id in common}) == 1:
        assert all(len(set(mine.values())) <= 1 for mine in first.values())
    kept = keeping(members, first)
    assert assign(GroupSpec(kept), counts) == first
    if alike and len(members) > 1:
        gone = data.draw(st.sampled_from(sorted(members)))
        rest = {name: spec for name, spec in kept.items() if name != gone}
        second = assign(GroupSpec(rest), counts)
        assert assign(GroupSpec(keeping(rest, second)), counts) == second
