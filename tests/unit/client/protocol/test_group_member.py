"""Members of a consumer group before our own coordinator, and before answers that a test makes up."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.worlds.consumer_harness import ConsumerWorld
from tests.worlds.group_members import OwnMember, refusal, response, settle

from duramen.client.protocol.group_member import GroupMembership, MembershipState
from duramen.errors import ConfigError, DeadlineError, ErrorCode, KafkaError, NetworkError
from duramen.machines.group import GroupSettings
from duramen.machines.group.commands import NewOffset
from duramen.machines.group.consumer.commands import ConsumerAnswer, TopicsChanged
from duramen.machines.group.consumer.commits import check_commit
from duramen.model import TopicPartition


def fields(request: Any) -> set[str]:
    """What a heartbeat says."""
    names = ("subscribed_topic_names", "subscribed_topic_regex", "topic_partitions", "server_assignor")
    found = {name for name in names if getattr(request, name) is not None}
    return found | ({"rebalance_timeout_ms"} if request.rebalance_timeout_ms != -1 else set())


def failure_of(member: GroupMembership) -> ErrorCode:
    assert isinstance(member.failure, KafkaError)
    return member.failure.code


def test_it_joins_in_full_and_says_then_what_has_changed() -> None:
    world = ConsumerWorld(t=2)
    member = OwnMember(world, "m", "t")
    assert (member.membership.due, member.membership.heartbeat(member.now)) == (None, None)
    member.subscribe()
    assert member.membership.due == member.now
    assert not member.membership.is_known
    assert member.turn()
    assert member.membership.is_known
    assert fields(member.requests[0]) == {"subscribed_topic_names", "topic_partitions", "rebalance_timeout_ms"}
    assert (member.requests[0].member_epoch, member.requests[0].topic_partitions) == (0, [])
    assert member.told == [("assigned", [0, 1])]
    assert member.membership.topic_ids == {"t": world.topics.seen["t"].id}
    assert member.membership.due == member.now + 5
    assert not member.turn()
    world.clock.advance(5_000)
    assert member.turn()
    assert fields(member.requests[1]) == {"topic_partitions"}
    world.clock.advance(5_000)
    assert member.turn()
    assert fields(member.requests[2]) == set()
    assert member.requests[2].member_epoch == member.membership.epoch > 0


def test_two_members_share_and_hand_over() -> None:
    world = ConsumerWorld(t=4)
    first, second = OwnMember(world, "a", "t").subscribe(), OwnMember(world, "b", "t").subscribe()
    first.turn()
    first.holds = True
    second.turn()
    world.clock.advance(5_000)
    first.turn()
    ((change, moved),) = first.told[1:]
    assert (change, len(moved)) == ("revoked", 2)
    for _ in range(3):  # it beats on, and nobody has what it has not given up
        world.clock.advance(5_000)
        assert first.turn()
        second.turn()
        assert (first.numbers, second.numbers) == ([0, 1, 2, 3], [])
    first.holds = False
    first.release()
    assert first.membership.due == first.now, "somebody waits for it"
    first.turn()
    assert fields(first.requests[-1]) == {"topic_partitions"}
    world.clock.advance(5_000)
    second.turn()
    assert second.numbers == moved
    assert sorted(first.numbers + second.numbers) == [0, 1, 2, 3]

    second.membership.leave(second.now)
    second.settle()
    assert second.told[-1] == ("revoked", moved)
    second.turn()
    assert (second.requests[-1].member_epoch, second.membership.state) == (-1, MembershipState.OUTSIDE)
    assert second.membership.is_over
    assert second.membership.epoch == -1
    settle(first)
    assert first.numbers == [0, 1, 2, 3]
    second.subscribe()  # and again
    settle(first, second)
    assert len(first.numbers) == len(second.numbers) == 2


def test_what_it_acknowledges_while_a_heartbeat_is_in_flight_is_said_at_once() -> None:
    world = ConsumerWorld(t=2)
    first, second = OwnMember(world, "a", "t").subscribe(), OwnMember(world, "b", "t").subscribe()
    first.turn()
    first.holds = True
    second.turn()
    world.clock.advance(5_000)
    first.turn()
    world.clock.advance(5_000)
    request = first.membership.heartbeat(first.now)
    assert len(request.topic_partitions or []) <= 1
    first.release()
    assert first.membership.due is None
    first.membership.answered(response(ConsumerAnswer("a", first.membership.epoch, 5_000)), first.now)
    assert first.membership.due == first.now
    assert first.turn()
    assert [list(each.partitions) for each in first.requests[-1].topic_partitions] == [first.numbers]


def test_a_lost_answer_is_followed_by_a_full_heartbeat() -> None:
    world = ConsumerWorld(t=2, u=2)
    member = OwnMember(world, "m", "t").subscribe()
    member.turn(loses="answer")
    assert not member.turn(), "a pause comes first"
    world.clock.advance(100)
    assert member.turn()
    assert member.requests[-1].member_epoch == 0
    member.topics = ("u",)
    member.subscribe()
    member.turn(loses="answer")  # the coordinator is at the next epoch now
    assert fields(member.requests[-1]) == {"subscribed_topic_names", "topic_partitions"}
    world.clock.advance(200)
    assert member.turn()
    assert fields(member.requests[-1]) == {"subscribed_topic_names", "topic_partitions", "rebalance_timeout_ms"}
    settle(member)
    assert sorted(tp.topic for tp in member.membership.assignment) == ["u", "u"]
    assert [what for what, _ in member.told] == ["assigned", "revoked", "assigned"]


@pytest.mark.parametrize("error", [NetworkError("gone"), DeadlineError("late"), KafkaError(ErrorCode.NOT_COORDINATOR)])
def test_a_coordinator_that_is_away_is_asked_again_ever_more_slowly(error: Any) -> None:
    member = GroupMembership("g", "m")
    member.subscribe(["t"], None, 0.0)
    moments = []
    now = 0.0
    for _ in range(6):
        assert member.heartbeat(now) is not None
        member.failed(error, now)
        assert member.due is not None
        moments.append(round(member.due - now, 3))
        now = member.due
    assert moments == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert member.state is MembershipState.JOINING


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE],
)
def test_a_coordinator_that_moves_costs_no_partition(code: ErrorCode) -> None:
    world = ConsumerWorld(t=2)
    member = OwnMember(world, "m", "t").subscribe()
    member.turn()
    world.clock.advance(5_000)
    assert member.membership.heartbeat(member.now) is not None
    member.membership.answered(refusal(code), member.now)
    world.reload()
    assert member.numbers == [0, 1]
    world.clock.advance(100)
    assert member.turn()
    assert fields(member.requests[-1]) == {"subscribed_topic_names", "topic_partitions", "rebalance_timeout_ms"}
    assert member.told == [("assigned", [0, 1])]


def test_one_that_is_thrown_out_joins_again_when_its_owner_has_stopped() -> None:
    world = ConsumerWorld(t=2)
    member = OwnMember(world, "m", "t").subscribe()
    member.turn()
    member.holds = True
    world.clock.advance(60_000)  # its session is over
    other = OwnMember(world, "o", "t").subscribe()
    other.turn()
    assert other.numbers == [0, 1]
    member.turn()
    assert member.told[1:] == [("lost", [0, 1])]
    assert (member.numbers, member.membership.epoch) == ([], -1)
    world.clock.advance(5_000)
    assert member.membership.due is None
    assert not member.turn()
    member.holds = False
    member.release()
    assert member.turn()
    assert (member.requests[-1].member_epoch, member.requests[-1].topic_partitions) == (0, [])
    settle(member, other)
    assert sorted(member.numbers + other.numbers) == [0, 1]


def test_one_that_does_not_give_up_in_time_loses_all() -> None:
    """The acknowledgement of the revocation that the loss has overtaken counts for nothing."""
    world = ConsumerWorld(t=4)
    first = OwnMember(world, "a", "t", rebalance_timeout_ms=20_000).subscribe()
    first.turn()
    first.holds = True
    second = OwnMember(world, "b", "t").subscribe()
    for _ in range(8):
        world.clock.advance(5_000)
        first.turn()
        second.turn()
    assert [what for what, _ in first.told] == ["assigned", "revoked", "lost"]
    assert first.told[-1] == ("lost", [0, 1, 2, 3])
    assert second.numbers == [0, 1, 2, 3]
    revoked, lost = first.held
    first.membership.acknowledge(revoked, first.now)
    assert first.membership.due is None
    first.membership.acknowledge(lost, first.now)
    first.holds, first.held = False, []
    settle(first, second)
    assert sorted(first.numbers + second.numbers) == [0, 1, 2, 3]


def test_a_member_that_is_thrown_out_each_time_takes_its_time() -> None:
    member = GroupMembership("g", "m")
    member.subscribe(["t"], None, 0.0)
    now, pauses = 0.0, []
    for _ in range(5):
        member.heartbeat(now)
        member.answered(response(ConsumerAnswer("m", 1, 1_000, ())), now)
        member.refresh(now)
        member.heartbeat(now)
        member.answered(refusal(ErrorCode.UNKNOWN_MEMBER_ID), now)
        assert member.due is not None
        pauses.append(round(member.due - now, 3))
        now = member.due
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_expressions_are_subscribed_to_and_taken_back() -> None:
    world = ConsumerWorld(t1=1, t2=1, u=1)
    member = OwnMember(world, "m", pattern="t.").subscribe()
    member.turn()
    assert fields(member.requests[0]) >= {"subscribed_topic_names", "subscribed_topic_regex"}
    settle(member)
    assert sorted(tp.topic for tp in member.membership.assignment) == ["t1", "t2"]
    world.change_topic("t3", 1)
    world.clock.advance(600_000 - 5_000)
    settle(member)
    assert sorted(tp.topic for tp in member.membership.assignment) == ["t1", "t2", "t3"]
    member.topics, member.pattern = ("u",), None
    member.subscribe()
    member.turn()
    assert (member.requests[-1].subscribed_topic_regex, member.requests[-1].subscribed_topic_names) == ("", ["u"])
    settle(member)
    assert [tp.topic for tp in member.membership.assignment] == ["u"]


def test_a_bad_expression_is_final_and_its_partitions_are_free_at_once() -> None:
    world = ConsumerWorld(t=2)
    member, other = OwnMember(world, "m", "t").subscribe(), OwnMember(world, "o", "t").subscribe()
    settle(member, other)
    member.topics, member.pattern = (), "("
    member.subscribe()
    member.turn()
    assert failure_of(member.membership) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert member.told[-1] == ("revoked", [member.told[-1][1][0]])
    assert not member.membership.is_known
    member.turn()
    assert (member.requests[-1].member_epoch, member.membership.is_over) == (-1, True)
    settle(other)
    assert other.numbers == [0, 1]
    member.topics, member.pattern = ("t",), None
    member.subscribe()
    assert member.membership.failure is None
    settle(member, other)
    assert len(member.numbers) == 1


def test_refused_joins_are_final() -> None:
    world = ConsumerWorld(GroupSettings(consumer_max_size=1), t=2)
    first = OwnMember(world, "a", "t", instance_id="i").subscribe()
    settle(first)
    full = OwnMember(world, "b", "t").subscribe()
    full.turn()
    assert failure_of(full.membership) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert full.membership.is_over
    assert full.told == []
    assigning = OwnMember(world, "a", "t", assignor="none").subscribe()
    assigning.turn()
    assert failure_of(assigning.membership) is ErrorCode.UNSUPPORTED_ASSIGNOR
    world = ConsumerWorld(t=2)
    OwnMember(world, "a", "t", instance_id="i").subscribe().turn()
    same = OwnMember(world, "c", "t", instance_id="i").subscribe()
    same.turn()
    assert failure_of(same.membership) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert same.membership.is_over


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION])
def test_a_refusal_for_good_ends_a_member_that_has_joined(code: ErrorCode) -> None:
    """It gives up what it has, and asks once to leave."""
    world = ConsumerWorld(t=2)
    member = OwnMember(world, "m", "t").subscribe()
    member.turn()
    world.clock.advance(5_000)
    assert member.membership.heartbeat(member.now) is not None
    member.membership.answered(refusal(code, "no"), member.now)
    member.settle()
    assert member.told == [("assigned", [0, 1]), ("revoked", [0, 1])]
    leaving = member.membership.heartbeat(member.now)
    assert leaving is not None
    assert leaving.member_epoch == -1
    member.membership.answered(refusal(code, "no"), member.now)
    assert member.membership.is_over
    assert failure_of(member.membership) is code
    assert str(member.membership.failure) == "group g: no"


def test_a_static_member_comes_back_to_what_it_had() -> None:
    world = ConsumerWorld(t=4)
    first, second = OwnMember(world, "a", "t", instance_id="i").subscribe(), OwnMember(world, "b", "t").subscribe()
    settle(first, second)
    had = first.numbers
    first.membership.leave(first.now)
    first.settle()
    first.turn()
    assert (first.requests[-1].member_epoch, first.membership.is_over) == (-2, True)
    settle(second)
    assert len(second.numbers) == 2
    again = OwnMember(world, "c", "t", instance_id="i").subscribe()
    settle(again, second)
    assert again.numbers == had
    world.clock.advance(5_000)
    first.membership.subscribe(["t"], None, first.now)
    first.turn()
    assert failure_of(first.membership) is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_member_whose_instance_another_has_taken_over_loses_all() -> None:
    member = GroupMembership("g", "m", instance_id="i")
    member.subscribe(["t"], None, 0.0)
    member.heartbeat(0.0)
    member.answered(response(ConsumerAnswer("m", 1, 1_000, ((b"t" * 16, (0,)),))), 0.0)
    member.name({b"t" * 16: "t", b"u" * 16: "u"})
    assert member.assignment == {TopicPartition("t", 0)}
    member.heartbeat(1.0)
    member.answered(refusal(ErrorCode.FENCED_INSTANCE_ID), 1.0)
    _, lost = member.events()
    assert lost.change.value == "lost"
    assert failure_of(member) is ErrorCode.FENCED_INSTANCE_ID
    assert not member.is_over
    member.acknowledge(lost, 1.0)
    assert member.is_over
    assert member.due is None


def test_coordinators_of_version_0_give_the_id() -> None:
    world = ConsumerWorld(t=1)
    member = OwnMember(world, "", "t")
    member.version = 0
    member.subscribe()
    member.turn()
    assert member.membership.member_id == "given"
    settle(member)
    assert member.numbers == [0]
    assert member.requests[-1].member_id == "given"


def test_leaving_before_it_has_joined() -> None:
    member = GroupMembership("g", "m")
    member.leave(0.0)
    member.subscribe(["t"], None, 0.0)
    member.leave(0.0)
    assert member.is_over, "nothing was sent"
    member.subscribe(["t"], None, 0.0)
    assert member.heartbeat(0.0) is not None
    member.leave(0.0)
    assert (member.state, member.due) == (MembershipState.LEAVING, None)
    member.answered(response(ConsumerAnswer("m", 4, 1_000, ((b"t" * 16, (0,)),))), 0.0)
    assert (member.events(), member.unnamed) == ([], frozenset())
    leaving = member.heartbeat(0.0)
    assert leaving is not None
    assert leaving.member_epoch == -1
    member.failed(NetworkError("lost"), 0.0)
    assert member.heartbeat(0.1) is not None
    member.answered(refusal(ErrorCode.UNKNOWN_MEMBER_ID), 0.1)
    assert member.is_over
    assert member.failure is None


def test_who_subscribes_while_it_leaves_joins_when_it_has_left() -> None:
    world = ConsumerWorld(t=2)
    member = OwnMember(world, "m", "t").subscribe()
    member.turn()
    member.membership.leave(member.now)
    member.subscribe()
    member.settle()
    member.turn()
    assert (member.requests[-1].member_epoch, member.membership.state) == (-1, MembershipState.JOINING)
    settle(member)
    assert member.told == [("assigned", [0, 1]), ("revoked", [0, 1]), ("assigned", [0, 1])]


def test_leaving_in_the_middle_of_a_revocation_gives_up_the_rest_too() -> None:
    world = ConsumerWorld(t=4)
    first, second = OwnMember(world, "a", "t").subscribe(), OwnMember(world, "b", "t").subscribe()
    first.turn()
    first.holds = True
    second.turn()
    world.clock.advance(5_000)
    first.turn()
    first.membership.leave(first.now)
    assert first.membership.due is None
    first.release()
    first.settle()
    assert [what for what, _ in first.told] == ["assigned", "revoked", "revoked"]
    assert sorted(first.told[1][1] + first.told[2][1]) == [0, 1, 2, 3]
    assert first.membership.due is None
    first.release()
    first.turn()
    assert first.membership.is_over


def test_a_topic_made_again_is_another_one() -> None:
    world = ConsumerWorld(t=1)
    member = OwnMember(world, "m", "t").subscribe()
    member.turn()
    old = member.membership.topic_ids["t"]
    world.topics.put("t", 1, b"another id......")
    assert world.coordinator.ask(TopicsChanged(world.topics, ("t",), True)) is True
    settle(member)
    assert [what for what, _ in member.told] == ["assigned", "revoked", "assigned"]
    assert old != member.membership.topic_ids["t"] == b"another id......"


def test_topics_without_a_name_wait_for_it() -> None:
    member = GroupMembership("g", "m")
    member.subscribe(None, ".*", 0.0)
    member.heartbeat(0.0)
    here, away = b"h" * 16, b"a" * 16
    member.answered(response(ConsumerAnswer("m", 1, 1_000, ((here, (0, 1)), (away, (0,))))), 0.0)
    assert (member.unnamed, member.events()) == ({here, away}, [])
    member.name({here: "here"})
    assert member.assignment == {TopicPartition("here", 0), TopicPartition("here", 1)}
    assert member.unnamed == {away}
    member.heartbeat(1.0)
    member.answered(response(ConsumerAnswer("m", 2, 1_000, ((here, (0,)),))), 1.0)
    assert member.unnamed == frozenset()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="has a name"):
        GroupMembership("", "m")
    member = GroupMembership("g", "m")
    for topics, pattern in ((None, None), ([], ""), ([], None)):
        with pytest.raises(ConfigError, match="topics or to a pattern"):
            member.subscribe(topics, pattern, 0.0)
    member.answered(response(ConsumerAnswer("m", 1)), 0.0)  # of no heartbeat
    member.failed(NetworkError("of none"), 0.0)
    assert member.is_over


@pytest.mark.parametrize("seed", range(12))
def test_no_partition_is_read_by_two_whatever_is_lost(seed: int) -> None:
    """Requests and answers are lost, owners take their time, members leave and come back, the coordinator moves; but no
    session ends. In the end all partitions are read."""
    chance = random.Random(seed)
    world = ConsumerWorld(t=7)
    members = [OwnMember(world, name, "t").subscribe() for name in "abc"]
    for _ in range(400):
        member = chance.choice(members)
        act = chance.random()
        if act < 0.03:
            member.membership.leave(member.now)
        elif act < 0.1:
            member.subscribe()
        elif act < 0.12:
            world.reload()
        elif act < 0.4:
            member.holds = not member.holds
            if not member.holds:
                member.release()
        else:
            world.clock.advance(chance.choice([0, 50, 200]))
            member.turn(loses=chance.choice(["", "", "", "request", "answer"]))
        for each in members:
            each.settle()
        owners = [tp for each in members for tp in each.reads]
        assert len(owners) == len(set(owners)), [sorted(each.reads) for each in members]
        assert all(what != "lost" for each in members for what, _ in each.told)
    for each in members:
        each.holds = False
        each.release()
        each.subscribe()
    settle(*members)
    assert sorted(number for each in members for number in each.numbers) == list(range(7))


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])
def test_what_a_coordinator_lets_a_member_commit_is_its_own(seed: int) -> None:
    """Also where sessions end, owners are too late, and a topic is made again: an assignment of which the member does
    not know yet that it is lost lets it commit nothing that another member has."""
    chance = random.Random(seed)
    world = ConsumerWorld(t=5, u=2)
    members = [OwnMember(world, name, "t", rebalance_timeout_ms=8_000).subscribe() for name in "abc"]
    refused = accepted = 0
    for _ in range(300):
        member = chance.choice(members)
        act = chance.random()
        if act < 0.1:
            member.topics = chance.choice([("t",), ("t", "u"), ("u",)])
            member.subscribe()
        elif act < 0.12:
            world.topics.put("u", 2, bytes([chance.randrange(1, 256)]) * 16)
            assert world.coordinator.ask(TopicsChanged(world.topics, ("u",), True)) is True
        elif act < 0.14:
            world.clock.advance(chance.choice([9_000, 46_000]))
        elif act < 0.3:
            member.holds = not member.holds
            if not member.holds:
                member.release()
        else:
            world.clock.advance(chance.choice([0, 50, 200]))
            member.turn(loses=chance.choice(["", "", "", "request", "answer"]))
        group = world.machine.consumers.groups.get("g")
        if group is None or not group.members:
            continue
        for each in (one.membership for one in members):
            for tp in each.assignment:
                topic_id = each.topic_ids[tp.topic]
                offset = NewOffset(tp.topic, tp.partition, 1, -1, "", topic_id)
                try:
                    check_commit(group, each.member_id, None, each.epoch, [offset])
                except KafkaError:
                    refused += 1
                else:
                    accepted += 1
                    assert group.owner(topic_id, tp.partition) in (None, each.member_id)
    assert accepted
    assert refused
