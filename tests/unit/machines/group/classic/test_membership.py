"""Joining, syncing, beating and leaving, as a classic Kafka coordinator does it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.group_harness import REBALANCE, SESSION, Coordinator, subscription

from duramen.config import load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group import (
    DescribeGroups,
    GroupSettings,
    Heartbeat,
    Joined,
    JoinedMember,
    SyncedMember,
    SyncGroup,
)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


# ---------------------------------------------------------------------- joining


def test_a_first_member_is_given_an_id_waits_for_others_and_leads(coordinator: Coordinator) -> None:
    given = coordinator.ask(coordinator.join_command())
    assert given == Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id="c-uuid1")
    assert coordinator.state() == "Empty"
    parked = coordinator.submit(coordinator.join_command("c-uuid1"))
    assert (parked, coordinator.state()) == ([], "PreparingRebalance")
    coordinator.clock.advance(2999)
    assert parked == []
    coordinator.clock.advance(1)
    assert parked == [
        Joined(
            generation=1,
            protocol_type="consumer",
            protocol="range",
            leader="c-uuid1",
            member_id="c-uuid1",
            members=(JoinedMember("c-uuid1", None, b"r"),),
        )
    ]
    assert coordinator.state() == "CompletingRebalance"
    synced = coordinator.ask(coordinator.sync_command(parked[0]))
    assert synced == SyncedMember(ErrorCode.NONE, "consumer", "range", b"for c-uuid1")
    assert coordinator.state() == "Stable"


def test_old_clients_get_their_id_with_the_answer(coordinator: Coordinator) -> None:
    parked = coordinator.join(requires_member_id=False)
    coordinator.clock.advance(3000)
    assert parked[0].member_id == "c-uuid1"
    assert parked[0].error == ErrorCode.NONE


def test_only_the_leader_sees_the_members(coordinator: Coordinator) -> None:
    leader, follower = coordinator.stable(2)
    assert {member.member_id for member in leader.members} == {leader.member_id, follower.member_id}
    assert follower.members == ()
    assert leader.leader == follower.leader == leader.member_id


def test_the_first_rebalance_is_extended_while_members_come_but_not_for_ever(coordinator: Coordinator) -> None:
    first = coordinator.join(rebalance_timeout_ms=7000)
    for _ in range(2):
        coordinator.clock.advance(2900)
        coordinator.join(rebalance_timeout_ms=7000)
        assert first == []
    coordinator.clock.advance(1199)
    assert first == []
    coordinator.clock.advance(1)
    assert len(first) == 1
    assert len(first[0].members) == 3


def test_no_initial_delay_when_it_is_zero() -> None:
    coordinator = Coordinator(GroupSettings(initial_rebalance_delay_ms=0))
    parked = coordinator.join()
    coordinator.clock.advance(0)
    assert parked[0].generation == 1


def test_a_node_lets_a_lone_member_wait_half_a_second() -> None:
    coordinator = Coordinator(GroupSettings.from_config(load_broker_config(None)))
    parked = coordinator.join()
    coordinator.clock.advance(499)
    assert parked == []
    coordinator.clock.advance(1)
    assert parked[0].generation == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "g" * 4097}, ErrorCode.INVALID_REQUEST),
        ({"client_id": "c" * 4097}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": "i" * 4097}, ErrorCode.INVALID_REQUEST),
        ({"session_timeout_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_joins_that_are_refused_leave_no_group_behind(
    coordinator: Coordinator, options: dict[str, Any], error: ErrorCode
) -> None:
    assert coordinator.ask(coordinator.join_command(**options)).error == error
    assert coordinator.machine.groups == {}


@pytest.mark.parametrize(
    "options", [{"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}, {"protocols": ()}]
)
def test_joins_that_do_not_fit_the_members(coordinator: Coordinator, options: dict[str, Any]) -> None:
    coordinator.stable()
    assert coordinator.ask(coordinator.join_command(**options)).error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert coordinator.state() == "Stable"


def test_the_protocol_with_most_votes_that_all_speak_is_taken(coordinator: Coordinator) -> None:
    preferences = [("a", "b", "c"), ("b", "a"), ("b", "a", "c")]
    parked = [coordinator.join(protocols=tuple((name, name.encode()) for name in names)) for names in preferences]
    coordinator.clock.advance(9000)
    assert {answers[0].protocol for answers in parked} == {"b"}
    leader = next(answers[0] for answers in parked if answers[0].members)
    assert {member.metadata for member in leader.members} == {b"b"}


def test_a_pending_id_expires_with_its_session_and_the_group_with_it(coordinator: Coordinator) -> None:
    given = coordinator.ask(coordinator.join_command())
    coordinator.clock.advance(SESSION)
    assert coordinator.machine.groups == {}
    assert coordinator.ask(coordinator.join_command(given.member_id)).error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_holds_a_rebalance_up_until_it_joins_or_expires(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable()
    coordinator.ask(coordinator.join_command(session_timeout_ms=6000))
    again = coordinator.submit(coordinator.join_command(member.member_id))
    assert (again, coordinator.state()) == ([], "PreparingRebalance")
    coordinator.clock.advance(6000)
    assert again[0].generation == 2


def test_ids_that_were_given_out_are_for_dynamic_members(coordinator: Coordinator) -> None:
    given = coordinator.ask(coordinator.join_command())
    answer = coordinator.ask(coordinator.join_command(given.member_id, instance_id="i"))
    assert answer.error == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_second_member_makes_the_first_join_again(coordinator: Coordinator) -> None:
    (first,) = coordinator.stable()
    second = coordinator.join()
    assert coordinator.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS
    assert second == []
    again = coordinator.submit(coordinator.join_command(first.member_id))
    assert again[0].generation == second[0].generation == 2
    assert again[0].leader == first.member_id
    assert len(again[0].members) == 2


def test_a_follower_that_rejoins_unchanged_learns_the_generation_without_a_rebalance(
    coordinator: Coordinator,
) -> None:
    leader, follower = coordinator.stable(2)
    answer = coordinator.ask(coordinator.join_command(follower.member_id))
    assert (answer.error, answer.generation, answer.members) == (ErrorCode.NONE, 1, ())
    assert coordinator.state() == "Stable"
    assert coordinator.heartbeat(leader) == ErrorCode.NONE


@pytest.mark.parametrize("who", ["leader", "changed follower"])
def test_a_leader_or_a_changed_follower_that_rejoins_starts_a_rebalance(coordinator: Coordinator, who: str) -> None:
    leader, follower = coordinator.stable(2)
    if who == "leader":
        parked = coordinator.submit(coordinator.join_command(leader.member_id))
    else:
        parked = coordinator.submit(coordinator.join_command(follower.member_id, protocols=(("range", b"new"),)))
    assert (parked, coordinator.state()) == ([], "PreparingRebalance")


def test_a_lost_join_answer_is_given_again_while_assignments_are_awaited(coordinator: Coordinator) -> None:
    parked = [coordinator.join(), coordinator.join()]
    coordinator.clock.advance(6000)
    for answers in parked:
        assert coordinator.ask(coordinator.join_command(answers[0].member_id)) == answers[0]
    assert coordinator.state() == "CompletingRebalance"
    changed = coordinator.submit(coordinator.join_command(parked[0][0].member_id, protocols=(("range", b"2"),)))
    assert (changed, coordinator.state()) == ([], "PreparingRebalance")


def test_a_join_that_replaces_a_parked_one_answers_the_old_one(coordinator: Coordinator) -> None:
    (first,) = coordinator.stable()
    coordinator.join()
    old = coordinator.join()
    member_id = list(coordinator.machine.groups["g"].members)[-1]
    new = coordinator.submit(coordinator.join_command(member_id))
    assert [answer.error for answer in old] == [ErrorCode.REBALANCE_IN_PROGRESS]
    coordinator.submit(coordinator.join_command(first.member_id))
    assert new[0].generation == 2
    assert len(old) == 1


def test_who_does_not_rejoin_in_time_is_dropped(coordinator: Coordinator) -> None:
    first, second = coordinator.stable(2)
    parked = coordinator.submit(coordinator.join_command(first.member_id))
    for _ in range(REBALANCE // 5000):
        assert parked == []
        coordinator.heartbeat(second)
        coordinator.clock.advance(5000)
    assert [member.member_id for member in parked[0].members] == [first.member_id]
    assert coordinator.heartbeat(second) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_whose_client_vanished_is_dropped_after_five_minutes(coordinator: Coordinator) -> None:
    slow = {"rebalance_timeout_ms": 3_600_000, "session_timeout_ms": 1_800_000}
    (member,) = coordinator.stable(**slow)
    new = coordinator.join(**slow)
    coordinator.clock.advance(5 * 60_000 - 1)
    assert new == []
    coordinator.clock.advance(1)
    assert new == [Joined(ErrorCode.UNKNOWN_MEMBER_ID)]
    again = coordinator.submit(coordinator.join_command(member.member_id, **slow))
    assert len(again[0].members) == 1


# ---------------------------------------------------------------------- size


def test_a_full_group_turns_new_members_away() -> None:
    coordinator = Coordinator(GroupSettings(max_size=2))
    coordinator.stable(2)
    refused = coordinator.join()
    assert [answer.error for answer in refused] == [ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert coordinator.state() == "Stable"


def test_while_members_gather_the_first_to_come_have_the_room() -> None:
    coordinator = Coordinator(GroupSettings(max_size=2))
    answers = [coordinator.join(requires_member_id=False) for _ in range(3)]
    assert [len(answer) for answer in answers] == [0, 0, 1]
    coordinator.clock.advance(6000)
    assert [answer[0].error for answer in answers] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]


def test_a_group_above_a_lowered_maximum_rebalances_at_load() -> None:
    coordinator = Coordinator()
    members = coordinator.stable(3)
    coordinator = coordinator.reloaded(GroupSettings(max_size=2))
    assert coordinator.state() == "PreparingRebalance"
    parked = [coordinator.submit(coordinator.join_command(member.member_id)) for member in members]
    assert [answer[0].error for answer in parked].count(ErrorCode.GROUP_MAX_SIZE_REACHED) == 1
    assert [answer[0].error for answer in parked].count(ErrorCode.NONE) == 2


# ---------------------------------------------------------------------- assignments


def test_followers_wait_for_the_leaders_assignment(coordinator: Coordinator) -> None:
    parked = [coordinator.join() for _ in range(3)]
    coordinator.clock.advance(9000)
    joined = sorted((answers[0] for answers in parked), key=lambda answer: not answer.members)
    waiting = [coordinator.submit(coordinator.sync_command(follower)) for follower in joined[1:]]
    assert waiting == [[], []]
    leader = coordinator.ask(coordinator.sync_command(joined[0]))
    assert leader.assignment == f"for {joined[0].member_id}".encode()
    assert [answers[0].assignment for answers in waiting] == [
        f"for {follower.member_id}".encode() for follower in joined[1:]
    ]


def test_a_member_without_an_assignment_gets_an_empty_one(coordinator: Coordinator) -> None:
    parked = coordinator.join()
    coordinator.clock.advance(3000)
    assert coordinator.ask(coordinator.sync_command(parked[0], assignments=(("ghost", b"x"),))).assignment == b""


def test_assignments_are_answered_only_when_durable(coordinator: Coordinator) -> None:
    parked = [coordinator.join(), coordinator.join()]
    coordinator.clock.advance(6000)
    joined = sorted((answers[0] for answers in parked), key=lambda answer: not answer.members)
    coordinator.partition.commit_at_once = False
    follower = coordinator.submit(coordinator.sync_command(joined[1]))
    leader = coordinator.submit(coordinator.sync_command(joined[0]))
    late = coordinator.submit(coordinator.sync_command(joined[1]))
    assert (leader, follower, late) == ([], [], [])
    assert coordinator.heartbeat(joined[0]) == ErrorCode.NONE
    coordinator.partition.commit()
    assert [answers[0].error for answers in (leader, follower, late)] == [ErrorCode.NONE] * 3
    assert follower[0].assignment == late[0].assignment != b""


def test_an_assignment_the_log_refuses_is_taken_back(coordinator: Coordinator) -> None:
    parked = [coordinator.join(), coordinator.join()]
    coordinator.clock.advance(6000)
    joined = sorted((answers[0] for answers in parked), key=lambda answer: not answer.members)
    follower = coordinator.submit(coordinator.sync_command(joined[1]))
    coordinator.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    leader = coordinator.submit(coordinator.sync_command(joined[0]))
    coordinator.partition.refuse = None
    assert [answers[0].code for answers in (leader, follower)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert coordinator.state() == "PreparingRebalance"
    assert coordinator.machine.stored == {}
    again = [coordinator.submit(coordinator.join_command(member.member_id)) for member in joined]
    assert {answers[0].generation for answers in again} == {2}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": None, "protocol_type": None}, ErrorCode.NONE),
        ({}, ErrorCode.NONE),
    ],
)
def test_syncs_are_checked(coordinator: Coordinator, options: dict[str, Any], error: ErrorCode) -> None:
    (member,) = coordinator.stable()
    assert coordinator.ask(coordinator.sync_command(member, **options)).error == error


def test_syncs_of_nobody(coordinator: Coordinator) -> None:
    assert coordinator.ask(SyncGroup("g", 1, "m")).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.ask(SyncGroup("", 1, "m")).error == ErrorCode.INVALID_GROUP_ID


def test_a_rebalance_tells_those_who_wait_for_assignments(coordinator: Coordinator) -> None:
    parked = [coordinator.join(), coordinator.join()]
    coordinator.clock.advance(6000)
    joined = sorted((answers[0] for answers in parked), key=lambda answer: not answer.members)
    follower = coordinator.submit(coordinator.sync_command(joined[1]))
    coordinator.join()
    assert [answer.error for answer in follower] == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert coordinator.ask(coordinator.sync_command(joined[0])).error == ErrorCode.REBALANCE_IN_PROGRESS


def test_who_never_syncs_is_dropped_after_the_rebalance_timeout(coordinator: Coordinator) -> None:
    parked = [coordinator.join(), coordinator.join()]
    coordinator.clock.advance(6000)
    joined = sorted((answers[0] for answers in parked), key=lambda answer: not answer.members)
    coordinator.ask(coordinator.sync_command(joined[0]))
    for _ in range(REBALANCE // 5000):
        assert coordinator.state() == "Stable"
        for member in joined:
            coordinator.heartbeat(member)
        coordinator.clock.advance(5000)
    assert coordinator.state() == "PreparingRebalance"
    assert coordinator.heartbeat(joined[1]) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(joined[0]) == ErrorCode.REBALANCE_IN_PROGRESS


# ---------------------------------------------------------------------- heartbeats


def test_heartbeats_are_checked(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable()
    assert coordinator.heartbeat(member) == ErrorCode.NONE
    assert coordinator.ask(Heartbeat("g", 2, member.member_id)) == ErrorCode.ILLEGAL_GENERATION
    assert coordinator.ask(Heartbeat("g", 1, "ghost")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.ask(Heartbeat("g", 1, member.member_id, "i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.ask(Heartbeat("h", 1, "m")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.ask(Heartbeat("", 1, "m")) == ErrorCode.INVALID_GROUP_ID


def test_a_member_lives_as_long_as_it_beats(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable()
    for _ in range(20):
        coordinator.clock.advance(SESSION - 1)
        assert coordinator.heartbeat(member) == ErrorCode.NONE
    coordinator.clock.advance(SESSION)
    assert coordinator.heartbeat(member) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.state() == "Empty"
    assert coordinator.machine.stored["g"].generation == 2
    assert coordinator.machine.stored["g"].members == ()


def test_a_silent_member_makes_the_others_rebalance(coordinator: Coordinator) -> None:
    first, second = coordinator.stable(2)
    coordinator.clock.advance(SESSION - 1)
    coordinator.heartbeat(first)
    coordinator.clock.advance(1)
    assert coordinator.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.heartbeat(second) == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_wait_for_the_group_need_not_beat(coordinator: Coordinator) -> None:
    first, second = coordinator.stable(2)
    parked = coordinator.submit(coordinator.join_command(first.member_id))
    for _ in range(4):
        coordinator.clock.advance(SESSION - 1)
        coordinator.heartbeat(second)
    assert parked == []
    coordinator.submit(coordinator.join_command(second.member_id))
    assert parked[0].generation == 2
    coordinator.clock.advance(SESSION)
    assert coordinator.state() == "Empty", "answered members have to beat again"


# ---------------------------------------------------------------------- leaving


def test_leaving_empties_a_group_and_writes_it(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable()
    assert coordinator.leave(member.member_id) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert coordinator.state() == "Empty"
    stored = coordinator.machine.stored["g"]
    assert (stored.generation, stored.members, stored.protocol, stored.leader) == (2, (), None, None)
    assert stored.protocol_type == "consumer"


def test_several_leave_at_once_with_one_answer_each(coordinator: Coordinator) -> None:
    leader, one, two = coordinator.stable(3)
    pending = coordinator.ask(coordinator.join_command())
    answer = coordinator.leave(one.member_id, "ghost", two.member_id, pending.member_id)
    assert answer == (
        ErrorCode.NONE,
        [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE, ErrorCode.NONE],
    )
    assert coordinator.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    again = coordinator.submit(coordinator.join_command(leader.member_id))
    assert again[0].generation == 2


def test_leaving_what_is_not_there(coordinator: Coordinator) -> None:
    assert coordinator.leave("m") == (ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID])
    assert coordinator.leave("m", group="")[0] == ErrorCode.INVALID_GROUP_ID
    assert coordinator.machine.groups == {}


def test_leaving_while_parked_answers_the_join(coordinator: Coordinator) -> None:
    first, second = coordinator.stable(2)
    parked = coordinator.submit(coordinator.join_command(first.member_id))
    coordinator.leave(first.member_id)
    assert [answer.error for answer in parked] == [ErrorCode.UNKNOWN_MEMBER_ID]
    again = coordinator.submit(coordinator.join_command(second.member_id))
    assert [member.member_id for member in again[0].members] == [second.member_id]
    assert again[0].leader == second.member_id


# ---------------------------------------------------------------------- taking over


def test_another_coordinator_goes_on_where_the_log_ends(coordinator: Coordinator) -> None:
    leader, follower = coordinator.stable(2)
    coordinator = coordinator.reloaded()
    assert coordinator.state() == "Stable"
    assert coordinator.heartbeat(follower) == ErrorCode.NONE
    assert coordinator.ask(coordinator.sync_command(follower)).assignment == f"for {follower.member_id}".encode()
    coordinator.clock.advance(SESSION)
    assert coordinator.heartbeat(leader) == ErrorCode.UNKNOWN_MEMBER_ID, "sessions start anew at load, and end"


def test_a_generation_that_was_never_assigned_is_not_taken_over(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable()
    new = coordinator.join()
    coordinator.submit(coordinator.join_command(member.member_id))
    assert new[0].generation == 2
    coordinator = coordinator.reloaded()
    assert coordinator.heartbeat(new[0]) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(member) == ErrorCode.NONE


# ---------------------------------------------------------------------- descriptions


def test_descriptions_follow_the_phases(coordinator: Coordinator) -> None:
    def described() -> Any:
        return coordinator.ask(DescribeGroups(("g",)))[0]

    assert (described().state, described().exists) == ("Dead", False)
    parked = coordinator.join(protocols=(("range", subscription("t")),))
    assert (described().state, described().exists, described().protocol) == ("PreparingRebalance", True, "")
    coordinator.clock.advance(3000)
    assert described().state == "CompletingRebalance"
    assert described().members[0].metadata == b""
    coordinator.ask(coordinator.sync_command(parked[0]))
    stable = described()
    assert (stable.state, stable.protocol_type, stable.protocol) == ("Stable", "consumer", "range")
    member = stable.members[0]
    assert (member.client_id, member.client_host) == ("c", "/127.0.0.1")
    assert (member.metadata, member.assignment) == (subscription("t"), f"for {member.member_id}".encode())
    # What it was given is told on while it joins anew, as Kafka does: tools show who had what.
    coordinator.join()
    first, second = described().members
    assert (described().state, first.metadata, first.assignment) == ("PreparingRebalance", b"", member.assignment)
    assert (second.metadata, second.assignment) == (b"", b"")
    for each in (first, second):
        coordinator.leave(each.member_id)
    assert (described().state, described().members, described().protocol_type) == ("Empty", (), "consumer")
