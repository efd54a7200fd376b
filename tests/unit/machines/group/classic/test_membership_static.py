"""Static members: they keep their place under an instance id, and fence whoever held it before (KIP-345, KIP-814)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.group_harness import REBALANCE, SESSION, Coordinator

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group import Heartbeat, Joined, LeaveGroup, Leaver


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def static_pair(coordinator: Coordinator, **options: Any) -> list[Joined]:
    parked = [coordinator.join(instance_id=name, **options) for name in ("i1", "i2")]
    coordinator.clock.advance(6000)
    joined = [answers[0] for answers in parked]
    syncs = [coordinator.submit(coordinator.sync_command(answer)) for answer in reversed(joined)]
    assert all(answers[0].error == ErrorCode.NONE for answers in syncs)
    return joined


def test_a_restarted_static_follower_takes_its_place_without_a_rebalance(coordinator: Coordinator) -> None:
    leader, old = static_pair(coordinator)
    answer = coordinator.ask(coordinator.join_command(instance_id="i2"))
    assert (answer.error, answer.generation, answer.leader) == (ErrorCode.NONE, 1, leader.member_id)
    assert (answer.members, answer.skip_assignment) == ((), False)
    assert answer.member_id != old.member_id
    assert coordinator.state() == "Stable"
    synced = coordinator.ask(coordinator.sync_command(answer, instance_id="i2"))
    assert synced.assignment == f"for {old.member_id}".encode()
    assert coordinator.heartbeat(old, instance_id="i2") == ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.heartbeat(old) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(answer, instance_id="i2") == ErrorCode.NONE
    stored = {member.instance_id: member.member_id for member in coordinator.machine.stored["g"].members}
    assert stored == {"i1": leader.member_id, "i2": answer.member_id}


def test_a_restarted_static_leader_is_told_to_skip_the_assignment(coordinator: Coordinator) -> None:
    old, follower = static_pair(coordinator)
    answer = coordinator.ask(coordinator.join_command(instance_id="i1"))
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert {member.member_id for member in answer.members} == {answer.member_id, follower.member_id}
    synced = coordinator.ask(coordinator.sync_command(answer, instance_id="i1"))
    assert synced.assignment == f"for {old.member_id}".encode()


def test_an_old_client_that_is_the_restarted_static_leader_does_not_learn_that_it_leads(
    coordinator: Coordinator,
) -> None:
    old, _ = static_pair(coordinator)
    answer = coordinator.ask(coordinator.join_command(instance_id="i1", may_skip_assignment=False))
    assert (answer.leader, answer.skip_assignment, answer.members) == (old.member_id, False, ())


def test_a_static_member_with_other_protocols_rebalances(coordinator: Coordinator) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    leader, _ = static_pair(coordinator, protocols=both)
    parked = coordinator.submit(coordinator.join_command(instance_id="i2", protocols=(("sticky", b"s"),)))
    assert (parked, coordinator.state()) == ([], "PreparingRebalance")
    coordinator.submit(coordinator.join_command(leader.member_id, instance_id="i1", protocols=both))
    assert parked[0].protocol == "sticky"


def test_a_static_member_replaced_while_its_join_is_parked_is_fenced(coordinator: Coordinator) -> None:
    old = coordinator.join(instance_id="i")
    new = coordinator.join(instance_id="i")
    assert [answer.error for answer in old] == [ErrorCode.FENCED_INSTANCE_ID]
    coordinator.clock.advance(3000)
    assert new[0].error == ErrorCode.NONE
    assert len(new[0].members) == 1


def test_a_static_member_replaced_while_assignments_are_awaited_rebalances(coordinator: Coordinator) -> None:
    parked = [coordinator.join(instance_id=name) for name in ("i1", "i2")]
    coordinator.clock.advance(6000)
    follower = coordinator.submit(coordinator.sync_command(parked[1][0], instance_id="i2"))
    new = coordinator.submit(coordinator.join_command(instance_id="i2"))
    assert [answer.error for answer in follower] == [ErrorCode.FENCED_INSTANCE_ID]
    assert (new, coordinator.state()) == ([], "PreparingRebalance")
    coordinator.submit(coordinator.join_command(parked[0][0].member_id, instance_id="i1"))
    assert new[0].generation == 2


def test_a_replacement_the_log_refuses_is_taken_back(coordinator: Coordinator) -> None:
    leader, old = static_pair(coordinator)
    coordinator.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    answer = coordinator.ask(coordinator.join_command(instance_id="i2"))
    coordinator.partition.refuse = None
    assert answer.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert coordinator.heartbeat(old, instance_id="i2") == ErrorCode.NONE
    assert coordinator.heartbeat(leader, instance_id="i1") == ErrorCode.NONE


def test_static_members_outlive_a_rebalance_they_missed_until_their_session_ends(coordinator: Coordinator) -> None:
    leader, silent = static_pair(coordinator)
    parked = coordinator.submit(coordinator.join_command(leader.member_id, instance_id="i1"))
    for _ in range(REBALANCE // 5000):
        coordinator.heartbeat(silent, instance_id="i2")
        coordinator.clock.advance(5000)
    assert {member.member_id for member in parked[0].members} == {leader.member_id, silent.member_id}
    assert coordinator.machine.groups["g"].members.keys() == {leader.member_id, silent.member_id}


def test_a_static_member_that_forgot_its_id_is_told_to_join_anew(coordinator: Coordinator) -> None:
    """librdkafka beats on without it when the node was away for a session, and would not outlive to be fenced."""
    _, member = static_pair(coordinator)
    assert coordinator.ask(Heartbeat("g", 1, "", "i2")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(member, instance_id="i2") == ErrorCode.NONE


def test_an_administrator_removes_static_members_by_instance(coordinator: Coordinator) -> None:
    static_pair(coordinator)
    command = LeaveGroup("g", (Leaver("", "i1"), Leaver("", "nobody"), Leaver("", None)))
    assert coordinator.ask(command)[1] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    fenced = LeaveGroup("g", (Leaver("wrong", "i2"),))
    assert coordinator.ask(fenced)[1] == [ErrorCode.FENCED_INSTANCE_ID]
    assert list(coordinator.machine.groups["g"].static_ids) == ["i2"]


def test_static_members_are_known_after_a_take_over(coordinator: Coordinator) -> None:
    _, old = static_pair(coordinator)
    coordinator = coordinator.reloaded()
    answer = coordinator.ask(coordinator.join_command(instance_id="i2"))
    assert (answer.error, answer.generation) == (ErrorCode.NONE, 1)
    assert coordinator.heartbeat(old, instance_id="i2") == ErrorCode.FENCED_INSTANCE_ID


BOTH = (("range", b"r"), ("sticky", b"s"))
OTHER = (("range", b"other"), ("sticky", b"s"))


@pytest.mark.parametrize("when", ["members gather", "assignments are awaited", "it votes otherwise", "it had left"])
def test_a_static_member_that_came_back_in_a_rebalance_is_not_fenced_by_a_take_over(
    coordinator: Coordinator, when: str
) -> None:
    """The log knew it by its old id until the generation had its assignments."""
    leader, old = static_pair(coordinator, protocols=BOTH)
    first: dict[str, Any] = {"member_id": leader.member_id, "instance_id": "i1", "protocols": OTHER}
    mine: dict[str, Any] = {"instance_id": "i2", "protocols": BOTH}
    if when == "members gather":
        coordinator.join(**first)
        joined = coordinator.join(**mine)
    else:
        if when == "assignments are awaited":
            coordinator.join(**first)
            coordinator.join(old.member_id, **mine)
        elif when == "it votes otherwise":
            mine["protocols"] = BOTH[1:]
        else:
            coordinator.leave(old.member_id)
        joined = coordinator.join(**mine)
        coordinator.join(**first)
    assert joined[0].error == ErrorCode.NONE
    assert coordinator.machine.stored["g"].generation == 1 < joined[0].generation
    coordinator = coordinator.reloaded()
    synced = coordinator.ask(coordinator.sync_command(joined[0], instance_id="i2"))
    assert synced.error == ErrorCode.ILLEGAL_GENERATION
    if when != "it had left":
        assert coordinator.heartbeat(old, instance_id="i2") == ErrorCode.FENCED_INSTANCE_ID
    coordinator.join(**first)
    again = coordinator.join(joined[0].member_id, **mine)
    # What a member spoke beside the generation's protocol the log has never held.
    lost = ErrorCode.INCONSISTENT_GROUP_PROTOCOL if when == "it votes otherwise" else ErrorCode.NONE
    assert again[0].error == lost


@pytest.mark.parametrize("last", [False, True])
def test_a_new_id_that_the_log_refuses_in_a_rebalance_holds_up_nobody(coordinator: Coordinator, last: bool) -> None:
    """last: with it the generation would have been complete, and all are told the error."""
    leader, _ = static_pair(coordinator)
    first: dict[str, Any] = {"member_id": leader.member_id, "instance_id": "i1"}
    parked = coordinator.join(**first) if last else []
    if not last:
        third = coordinator.join(instance_id="i3")
    coordinator.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert coordinator.ask(coordinator.join_command(instance_id="i2")).code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert [answer.code for answer in parked] == [ErrorCode.NOT_ENOUGH_REPLICAS] * last
    coordinator.partition.refuse = None
    if last:  # neither comes back for its assignment
        coordinator.clock.advance(SESSION)
        assert coordinator.state() == "Empty"
        return
    coordinator.clock.advance(REBALANCE)  # only the one that is parked is still there
    assert [(answer.error, len(answer.members)) for answer in third] == [(ErrorCode.NONE, 1)]


def test_a_new_id_that_the_log_refused_is_recorded_when_its_member_asks_again(coordinator: Coordinator) -> None:
    leader, _ = static_pair(coordinator)
    coordinator.join(leader.member_id, instance_id="i1", protocols=OTHER)
    coordinator.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    coordinator.ask(coordinator.join_command(instance_id="i2"))
    coordinator.partition.refuse = None
    joined = coordinator.join(instance_id="i2")
    coordinator.join(leader.member_id, instance_id="i1", protocols=OTHER)
    assert joined[0].error == ErrorCode.NONE
    stored = {member.instance_id: member.member_id for member in coordinator.machine.stored["g"].members}
    assert stored == {"i1": leader.member_id, "i2": joined[0].member_id}
