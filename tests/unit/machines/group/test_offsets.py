"""Offsets: who may commit and delete, what is kept, what expires, and what the log holds of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.group_harness import Coordinator, subscription

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.ages import MOST_SETS, Ages
from duramen.machines.contract import LogRecord
from duramen.machines.group import (
    CommittedOffset,
    DeleteGroups,
    DeleteOffsets,
    DescribeGroups,
    GroupMachine,
    GroupSettings,
    LeaveGroup,
    Leaver,
    ListedGroup,
    ListGroups,
    NewOffset,
    TopicsDeleted,
    records,
)
from duramen.machines.group.classic.subscription import MOST_TOPICS, subscribed_topics, topics_of_all
from duramen.wire.records import consumer
from duramen.wire.records import offsets as schema
from duramen.wire.records.versioned import encode

MINUTE = 60_000
SETTINGS = GroupSettings(offsets_retention_ms=60 * MINUTE, retention_check_interval_ms=MINUTE)
T0 = NewOffset("t", 0, 5, 3, "note")
ID = b"i" * 16
OTHER_ID = b"o" * 16


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(SETTINGS)


def stable(coordinator: Coordinator, *topics: str) -> Any:
    (member,) = coordinator.stable(protocols=(("range", subscription(*topics)),))
    return member


# ---------------------------------------------------------------------- committing


def test_a_simple_consumer_commits_and_fetches(coordinator: Coordinator) -> None:
    now = coordinator.clock.wall_ms()
    assert coordinator.commit(T0, NewOffset("t", 1, 7)) == [ErrorCode.NONE, ErrorCode.NONE]
    assert coordinator.fetch() == {
        ("t", 0): CommittedOffset(5, 3, "note", now, -1),
        ("t", 1): CommittedOffset(7, -1, "", now, -1),
    }
    assert coordinator.fetch(partitions=(("t", 1), ("t", 2), ("u", 0))).keys() == {("t", 1)}
    assert coordinator.fetch("other") == {}
    assert coordinator.ask(ListGroups()) == [ListedGroup("g", "", "Empty", "classic")]


def test_commits_are_answered_and_visible_only_when_durable(coordinator: Coordinator) -> None:
    coordinator.partition.commit_at_once = False
    answers: list[Any] = []
    from_commit = NewOffset("t", 0, 1)
    coordinator.host.submit(_commit("g", from_commit), answers.append)
    coordinator.host.submit(_fetch("g"), answers.append)
    assert answers == []
    coordinator.partition.commit()
    assert answers[0] == [ErrorCode.NONE]
    assert answers[1][("t", 0)].offset == 1


def _commit(group: str, *offsets: NewOffset) -> Any:
    from duramen.machines.group import CommitOffsets

    return CommitOffsets(group, "", None, -1, offsets)


def _fetch(group: str) -> Any:
    from duramen.machines.group import FetchOffsets

    return FetchOffsets(group, None)


def test_metadata_that_is_too_long_refuses_its_partition_alone(coordinator: Coordinator) -> None:
    long = NewOffset("t", 1, 5, -1, "x" * 4097)
    assert coordinator.commit(T0, long) == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert coordinator.fetch().keys() == {("t", 0)}
    astral = NewOffset("t", 2, 5, -1, "\U0001f600" * 2049)
    assert coordinator.commit(astral) == [ErrorCode.OFFSET_METADATA_TOO_LARGE], "Kafka counts UTF-16 units"
    assert coordinator.commit(NewOffset("t", 2, 5, -1, "\U0001f600" * 2048)) == [ErrorCode.NONE]


def test_members_commit_for_their_generation(coordinator: Coordinator) -> None:
    member = stable(coordinator, "t")
    known = {"member_id": member.member_id, "generation": 1}
    assert coordinator.commit(T0, **known) == [ErrorCode.NONE]
    for options, error in [
        ({**known, "generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({**known, "generation": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({**known, "member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({**known, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        assert coordinator.commit(T0, **options).code == error, options
    assert coordinator.commit(T0, group="none", generation=0).code == ErrorCode.GROUP_ID_NOT_FOUND
    coordinator.join()
    assert coordinator.state() == "PreparingRebalance"
    assert coordinator.commit(T0, **known) == [ErrorCode.NONE], "what was read before the rebalance counts"
    coordinator.submit(coordinator.join_command(member.member_id))
    assert coordinator.state() == "CompletingRebalance"
    assert coordinator.commit(T0, **{**known, "generation": 2}).code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_was_replaced_cannot_commit(coordinator: Coordinator) -> None:
    parked = coordinator.join(instance_id="i")
    coordinator.clock.advance(3000)
    old = parked[0]
    coordinator.ask(coordinator.sync_command(old, instance_id="i"))
    coordinator.ask(coordinator.join_command(instance_id="i"))
    refused = coordinator.commit(T0, member_id=old.member_id, generation=1, instance_id="i")
    assert refused.code == ErrorCode.FENCED_INSTANCE_ID


def test_a_commit_is_a_sign_of_life(coordinator: Coordinator) -> None:
    member = stable(coordinator, "t")
    for _ in range(5):
        coordinator.clock.advance(9_000)
        assert coordinator.commit(T0, member_id=member.member_id, generation=1) == [ErrorCode.NONE]
    assert coordinator.heartbeat(member) == ErrorCode.NONE


def test_an_administrator_commits_for_an_empty_group(coordinator: Coordinator) -> None:
    member = stable(coordinator, "t")
    coordinator.leave(member.member_id)
    assert coordinator.commit(T0) == [ErrorCode.NONE]
    assert coordinator.commit(NewOffset("t", 0, 9)) == [ErrorCode.NONE]
    assert coordinator.fetch()[("t", 0)].offset == 9


def test_members_that_the_log_still_has_do_not_come_back_over_what_is_committed_without_them(
    coordinator: Coordinator,
) -> None:
    """The log was full when they left, and did not take that the group is empty."""
    member = stable(coordinator, "t")
    coordinator.commit(T0, member_id=member.member_id, generation=1)
    coordinator.partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    coordinator.submit(LeaveGroup("g", (Leaver(member.member_id),)))
    coordinator.partition.refuse = None
    assert coordinator.state() == "Empty"
    assert coordinator.commit(NewOffset("t", 0, 1)) == [ErrorCode.NONE]
    coordinator = coordinator.reloaded()
    late = coordinator.commit(T0, member_id=member.member_id, generation=1)
    assert isinstance(late, KafkaError)
    assert late.code == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.fetch()[("t", 0)].offset == 1


def test_a_refused_commit_changes_nothing(coordinator: Coordinator) -> None:
    coordinator.commit(T0)
    coordinator.partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert coordinator.commit(NewOffset("t", 0, 6)).code == ErrorCode.NOT_ENOUGH_REPLICAS
    coordinator.partition.refuse = None
    assert coordinator.fetch()[("t", 0)].offset == 5


# ---------------------------------------------------------------------- deleting


def delete(coordinator: Coordinator, *positions: tuple[str, int], group: str = "g") -> Any:
    return coordinator.ask(DeleteOffsets(group, positions))


def test_offsets_of_topics_that_members_read_are_kept(coordinator: Coordinator) -> None:
    member = stable(coordinator, "t")
    known = {"member_id": member.member_id, "generation": 1}
    coordinator.commit(T0, NewOffset("u", 0, 1), **known)
    assert delete(coordinator, ("t", 0), ("u", 0), ("u", 9)) == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert coordinator.fetch().keys() == {("t", 0)}
    coordinator.leave(member.member_id)
    assert delete(coordinator, ("t", 0)) == [ErrorCode.NONE]
    assert coordinator.fetch() == {}


def test_who_cannot_be_asked_what_it_reads_is_taken_to_read_everything(coordinator: Coordinator) -> None:
    (member,) = coordinator.stable(protocols=(("range", b"\0\0\0\0\0\x09"),))
    coordinator.commit(T0, member_id=member.member_id, generation=1)
    assert delete(coordinator, ("t", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_deletions_that_are_refused_as_a_whole(coordinator: Coordinator) -> None:
    assert delete(coordinator, ("t", 0)).code == ErrorCode.GROUP_ID_NOT_FOUND
    coordinator.stable(protocol_type="connect")
    assert delete(coordinator, ("t", 0)).code == ErrorCode.NON_EMPTY_GROUP


def test_groups_are_deleted_with_their_offsets(coordinator: Coordinator) -> None:
    member = stable(coordinator, "t")
    coordinator.commit(T0, NewOffset("t", 1, 1), member_id=member.member_id, generation=1)
    coordinator.commit(T0, group="simple")
    ids = ("g", "simple", "ghost")
    assert coordinator.ask(DeleteGroups(ids)) == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.NONE,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    coordinator.leave(member.member_id)
    assert coordinator.ask(DeleteGroups(("g", "g"))) == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert coordinator.ask(ListGroups()) == []
    assert coordinator.durable() == ({}, {})
    assert coordinator.reloaded().durable() == ({}, {})
    assert coordinator.machine.groups == {}


def test_a_deleted_groups_pending_ids_are_void(coordinator: Coordinator) -> None:
    coordinator.commit(T0)
    given = coordinator.ask(coordinator.join_command())
    coordinator.ask(DeleteGroups(("g",)))
    assert coordinator.ask(coordinator.join_command(given.member_id)).error == ErrorCode.UNKNOWN_MEMBER_ID
    coordinator.clock.advance(3_600_000)
    assert coordinator.machine.groups == {}


def test_lists_are_filtered_by_state_and_type(coordinator: Coordinator) -> None:
    coordinator.commit(T0, group="empty")
    coordinator.stable(group="busy")
    assert [group.group_id for group in coordinator.ask(ListGroups())] == ["empty", "busy"]
    assert [g.group_id for g in coordinator.ask(ListGroups(frozenset({"stable"})))] == ["busy"]
    assert [g.group_id for g in coordinator.ask(ListGroups(frozenset({"empty", "dead"})))] == ["empty"]
    assert len(coordinator.ask(ListGroups(types=frozenset({"classic"})))) == 2
    assert coordinator.ask(ListGroups(types=frozenset({"consumer"}))) == []


# ---------------------------------------------------------------------- expiry (KIP-211)


def test_a_simple_groups_offsets_expire_since_their_commit(coordinator: Coordinator) -> None:
    coordinator.commit(T0)
    coordinator.clock.advance(30 * MINUTE)
    coordinator.commit(NewOffset("t", 1, 1))
    coordinator.clock.advance(31 * MINUTE)
    assert coordinator.fetch().keys() == {("t", 1)}
    coordinator.clock.advance(30 * MINUTE)
    assert coordinator.fetch() == {}
    assert coordinator.machine.groups == {}


def test_a_groups_offsets_expire_since_it_is_empty(coordinator: Coordinator) -> None:
    member = stable(coordinator, "t")
    coordinator.commit(T0, member_id=member.member_id, generation=1)
    for _ in range(200):
        coordinator.clock.advance(9_000)
        coordinator.clock.wall += 9 * MINUTE
        coordinator.heartbeat(member)
    assert coordinator.fetch().keys() == {("t", 0)}, "a live subscription keeps offsets whatever their age"
    coordinator.leave(member.member_id)
    coordinator.clock.advance(59 * MINUTE)
    assert coordinator.fetch().keys() == {("t", 0)}
    coordinator.clock.advance(3 * MINUTE)
    assert coordinator.fetch() == {}
    assert coordinator.ask(DescribeGroups(("g",)))[0].exists is False
    assert coordinator.durable() == ({}, {})


def test_what_is_committed_for_an_empty_group_expires_since_its_commit(coordinator: Coordinator) -> None:
    """Also where the group is empty for long: a reset must last, and so must what a simple consumer goes on with."""
    member = stable(coordinator, "t")
    coordinator.commit(T0, member_id=member.member_id, generation=1)
    coordinator.leave(member.member_id)
    coordinator.clock.advance(59 * MINUTE)
    assert coordinator.commit(NewOffset("t", 1, 7)) == [ErrorCode.NONE]
    coordinator.clock.advance(2 * MINUTE)
    assert coordinator.fetch().keys() == {("t", 1)}
    coordinator.clock.advance(56 * MINUTE)
    assert coordinator.fetch().keys() == {("t", 1)}
    coordinator.clock.advance(3 * MINUTE)
    assert coordinator.state() is None


def test_the_time_a_group_is_empty_outlives_a_take_over(coordinator: Coordinator) -> None:
    member = stable(coordinator, "t")
    coordinator.commit(T0, member_id=member.member_id, generation=1)
    coordinator.leave(member.member_id)
    coordinator.clock.advance(50 * MINUTE)
    coordinator = coordinator.reloaded()
    coordinator.clock.advance(9 * MINUTE)
    assert coordinator.fetch().keys() == {("t", 0)}
    coordinator.clock.advance(3 * MINUTE)
    assert coordinator.fetch() == {}


YEARS = 20 * 365 * 24 * 60 * MINUTE


@pytest.mark.parametrize(
    "jumps", [(YEARS,), (YEARS, YEARS), (YEARS, -YEARS), (2 * MINUTE,) * 50, (YEARS, -YEARS // 2)], ids=str
)
def test_what_a_clock_is_set_ahead_by_makes_no_commit_older(coordinator: Coordinator, jumps: tuple[int, ...]) -> None:
    """A board without a battery that is told the time, a machine that slept: groups that had nobody there lost all."""
    member = stable(coordinator, "t")
    coordinator.commit(T0, member_id=member.member_id, generation=1)
    coordinator.leave(member.member_id)
    coordinator.commit(NewOffset("t", 1, 7), group="simple")
    for jump in jumps:
        coordinator.clock.advance(50 * MINUTE // len(jumps))
        coordinator.clock.wall += jump
    coordinator.clock.advance(8 * MINUTE)
    assert coordinator.fetch().keys() == {("t", 0)}
    assert coordinator.fetch("simple").keys() == {("t", 1)}
    coordinator.commit(NewOffset("t", 2, 8), group="later")
    coordinator.clock.advance(4 * MINUTE)
    assert coordinator.fetch() == coordinator.fetch("simple") == {}
    coordinator.clock.advance(54 * MINUTE)
    assert coordinator.fetch("later").keys() == {("t", 2)}
    coordinator.clock.advance(4 * MINUTE)
    assert coordinator.fetch("later") == {}


def test_what_was_committed_before_the_clock_was_wrong_gets_no_younger() -> None:
    """A board that begins each day in 1970: nothing would ever expire there."""
    ages = Ages()
    ages.clock_set(YEARS + MINUTE, YEARS)
    assert ages.since(YEARS - MINUTE, YEARS + MINUTE) == 2 * MINUTE
    assert ages.since(0, YEARS + 2 * MINUTE) == 2 * MINUTE
    assert ages.since(YEARS + MINUTE, YEARS + 2 * MINUTE) == MINUTE


def test_of_many_settings_of_the_clock_a_few_are_kept() -> None:
    ages = Ages()
    for number in range(1, 1000):
        ages.clock_set(10 * number, 5)
    assert len(ages._ahead) == MOST_SETS
    assert ages.since(0, 10_000) == 10_000 - 999 * 5
    ages.clock_set(5_000, -998 * 5)
    assert ages.since(0, 5_000) == 5_000 - 5
    assert ages.since(4_999, 5_000) <= 1
    ages.clock_set(4_000, -1_000)
    assert ages.since(0, 4_000) == 4_000


def test_offsets_of_topics_no_longer_read_expire_under_a_live_group(coordinator: Coordinator) -> None:
    member = stable(coordinator, "t")
    coordinator.commit(T0, NewOffset("u", 0, 1), member_id=member.member_id, generation=1)
    for _ in range(8 + 61 * MINUTE // 9_000):
        coordinator.clock.advance(9_000)
        coordinator.heartbeat(member)
    assert coordinator.fetch().keys() == {("t", 0)}


def test_a_client_may_ask_for_a_retention_of_its_own(coordinator: Coordinator) -> None:
    coordinator.commit(T0, retention_ms=10 * MINUTE)
    coordinator.clock.advance(9 * MINUTE)
    assert coordinator.fetch()[("t", 0)].expire_timestamp != -1
    coordinator = coordinator.reloaded()
    coordinator.clock.advance(2 * MINUTE)
    assert coordinator.fetch() == {}


@pytest.mark.parametrize(("retention_ms", "is_kept"), [(2**63 - 1, True), (0, False), (-2, False), (-(2**63), False)])
def test_a_retention_of_any_size_is_taken(coordinator: Coordinator, retention_ms: int, is_kept: bool) -> None:
    assert coordinator.commit(T0, retention_ms=retention_ms) == [ErrorCode.NONE]
    coordinator.clock.advance(90 * MINUTE)
    assert bool(coordinator.fetch()) is is_kept


def test_tombstones_that_the_log_refuses_are_tried_again(coordinator: Coordinator) -> None:
    coordinator.commit(T0)
    coordinator.partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    coordinator.clock.advance(70 * MINUTE)
    assert coordinator.fetch().keys() == {("t", 0)}
    coordinator.partition.refuse = None
    coordinator.clock.advance(2_000)
    assert coordinator.fetch() == {}


# ---------------------------------------------------------------------- deleted topics


def test_a_deleted_topics_offsets_go_in_slices(coordinator: Coordinator) -> None:
    for number in range(3):
        offsets = [NewOffset("t", partition, 1, topic_id=ID) for partition in range(400)]
        coordinator.commit(*offsets, NewOffset("u", 0, 1, topic_id=ID), group=f"g{number}")
    batches = coordinator.partition.batch_count
    answers = coordinator.submit(TopicsDeleted((("t", ID),)))
    assert answers == [], "only the first slice is written"
    coordinator.clock.advance(10)
    assert answers == [True]
    assert coordinator.partition.batch_count == batches + 3
    assert [coordinator.fetch(f"g{number}").keys() for number in range(3)] == [{("u", 0)}] * 3
    assert coordinator.reloaded().durable() == coordinator.durable()


def test_one_decision_looks_at_a_part_of_many_offsets(coordinator: Coordinator) -> None:
    for number in range(8):
        coordinator.commit(
            *(NewOffset("u", partition, 1, topic_id=ID) for partition in range(1000)), group=f"g{number}"
        )
    coordinator.commit(NewOffset("t", 0, 1, topic_id=ID))
    answers = coordinator.submit(TopicsDeleted((("t", ID),)))
    assert coordinator.machine.offsets.of("g"), "it was not looked at yet"
    coordinator.clock.wall += 1
    coordinator.commit(NewOffset("t", 1, 1))
    coordinator.clock.advance(0)
    assert answers == [True]
    assert coordinator.fetch().keys() == {("t", 1)}, "what is committed since, without an id, is of a later topic"


def test_a_recreated_topics_offsets_stay(coordinator: Coordinator) -> None:
    coordinator.commit(NewOffset("t", 0, 1, topic_id=OTHER_ID), NewOffset("t", 1, 1), NewOffset("t", 2, 1, topic_id=ID))
    assert coordinator.machine.committed_topics() == {("t", OTHER_ID), ("t", bytes(16)), ("t", ID)}
    coordinator.submit(TopicsDeleted((("t", ID),)))
    assert coordinator.fetch().keys() == {("t", 0)}


# ---------------------------------------------------------------------- records


def test_records_are_kafkas(coordinator: Coordinator) -> None:
    coordinator.commit(T0)
    record = records.offset_commit("g", T0, 77, -1)
    assert record.key is not None
    assert record.value is not None
    decoded = schema.decode_record(record.key, record.value)
    assert (decoded.kind, decoded.key.group, decoded.key.topic, decoded.key.partition) == ("offset", "g", "t", 0)
    assert record.key[:2] == b"\0\1"
    assert record.value[:2] == b"\0\3"
    assert (decoded.value.offset, decoded.value.leader_epoch, decoded.value.metadata) == (5, 3, "note")
    assert records.offset_tombstone("g", "t", 0) == LogRecord(record.key, None)
    with_expiry = records.offset_commit("g", T0, 77, 99).value
    assert with_expiry is not None
    assert with_expiry[:2] == b"\0\1"


def test_records_of_newer_protocols_are_skipped_and_damage_is_named() -> None:
    machine = GroupMachine()
    machine.apply(LogRecord(b"\0\x0aanything", b"x"), 0, 0)
    assert machine.stored == {}
    with pytest.raises(KafkaError):
        machine.apply(LogRecord(None, b"x"), 1, 0)


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_are_read_in_every_version(version: int) -> None:
    message = consumer.ConsumerProtocolSubscription.new(topics=["b", "a"], user_data=b"u")
    assert subscribed_topics(encode(consumer.ConsumerProtocolSubscription, message, version)) == {"a", "b"}


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\0", b"\0\0\0\0\0", b"\0\0\xff\xff\xff\xff", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\2a",
     b"\xff\xff\0\0\0\0", b"\0\0\0\0\0\1\0\1\xff", b"\0\0\0\0\0\1\xff\xff"],
)  # fmt: skip
def test_what_is_no_subscription_says_nothing(data: bytes) -> None:
    assert subscribed_topics(data) is None


def test_subscriptions_of_more_topics_than_can_be_read_say_nothing() -> None:
    """45 million names of no letters fit into a request, and everybody waited while they were read."""

    def subscription(names: int) -> bytes:
        return b"\0\0" + names.to_bytes(4, "big") + b"\0\0" * names

    assert subscribed_topics(subscription(MOST_TOPICS)) == {""}
    assert subscribed_topics(subscription(MOST_TOPICS + 1)) is None
    half = subscription(MOST_TOPICS // 2)
    assert topics_of_all([half, half]) == {""}
    assert topics_of_all([half, half, subscription(1)]) is None


def test_records_of_groups_that_are_not_decided_here_change_nothing() -> None:
    from duramen.machines.contract import LogRecord
    from duramen.machines.group import GroupMachine
    from duramen.wire.records import consumer_groups, offsets

    machine = GroupMachine()
    key = offsets.encode_key(consumer_groups.ConsumerGroupMetadataKey.new(group="g"))
    value = offsets.encode_value(consumer_groups.ConsumerGroupMetadataValue.new(epoch=1))
    machine.apply(LogRecord(key, value), 0, 0)
    machine.apply(LogRecord(key, None), 1, 0)
    assert not machine.groups
