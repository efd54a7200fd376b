"""The group APIs in every version: each request and reply passes through its codec, the machines are the real ones."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from tests.worlds.group_broker import (
    COMMIT,
    DELETE,
    DESCRIBE,
    FETCH,
    FIND,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    OFFSET_DELETE,
    SYNC,
    TOPIC_ID,
    Broker,
    versions,
)
from tests.worlds.group_harness import subscription

from duramen.config import load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.model import OFFSETS_TOPIC
from duramen.server.api.authorizer import Resource
from duramen.server.coordinators.partitioner import _kept, java_hash, partition_for
from duramen.server.coordinators.shell import RELOAD_SECONDS
from duramen.wire.messages import API


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    found = made.ask(FIND, 0, key="g")
    assert found.error_code == 0
    made.clock.advance(1)
    return made


# ---------------------------------------------------------------------- finding


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("g", 103), ("group", 98629247), ("polygenelubricants", 2**31), ("é\U0001f600", 1996812)],
)
def test_groups_are_hashed_as_java_does(text: str, number: int) -> None:
    assert java_hash(text) == number


@pytest.mark.parametrize("length", [255, 256, 257, 512, 513, 5000])
def test_long_names_are_hashed_as_java_does(length: int) -> None:
    text = "".join(chr(33 + number * number % 1000) for number in range(length))
    assert java_hash(text) == functools.reduce(lambda value, unit: (31 * value + ord(unit)) % 2**32, text, 0)


def test_long_names_are_not_remembered() -> None:
    """16,384 of them would take gigabytes, for as long as the node runs."""
    before = _kept.cache_info().currsize
    assert partition_for("x" * 30_000, 50) == java_hash("x" * 30_000) % 50
    assert _kept.cache_info().currsize == before


def test_partitions_are_found_as_kafka_finds_them() -> None:
    assert partition_for("polygenelubricants", 50) == 0, "the one number whose absolute value is negative"
    assert partition_for("console-consumer-12345", 50) in range(50)
    assert partition_for("group", 50) == 98629247 % 50


@pytest.mark.parametrize("version", versions(FIND))
def test_the_first_search_makes_the_topic(version: int) -> None:
    broker = Broker()
    keys = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
    reply = broker.ask(FIND, version, **keys)
    entries = reply.coordinators if version >= 4 else [reply]
    assert [(e.error_code, e.node_id, e.host, e.port) for e in entries] == [(0, 1, "localhost", 9092)] * len(entries)
    assert broker.image.topic(OFFSETS_TOPIC) is not None


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("key_type", [2, 9])
def test_other_coordinators_are_refused_for_good(broker: Broker, version: int, key_type: int) -> None:
    keys = {"coordinator_keys": ["x"]} if version >= 4 else {"key": "x"}
    reply = broker.ask(FIND, version, key_type=key_type, **keys)
    entry = reply.coordinators[0] if version >= 4 else reply
    assert entry.error_code != 0
    assert not ErrorCode(entry.error_code).retriable
    assert (entry.node_id, entry.host, entry.port) == (-1, "", -1)
    assert broker.events == []


def test_a_topic_that_cannot_be_made_is_worth_another_try() -> None:
    broker = Broker()
    broker.refuse_creation = True
    assert broker.ask(FIND, 2, key="g").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.refuse_creation = False
    assert broker.ask(FIND, 2, key="g").error_code == 0


def test_without_the_topic_nobody_coordinates() -> None:
    broker = Broker()
    assert ErrorCode(broker.join().error_code).retriable
    assert broker.ask(LIST, 5).groups == []


def test_a_group_that_is_being_loaded_is_answered_so(broker: Broker) -> None:
    partition = broker.partition(OFFSETS_TOPIC, partition_for("late", 4))
    broker.groups = broker.coordinators()
    assert broker.join(group_id="late").error_code == ErrorCode.MEMBER_ID_REQUIRED, "an empty log is loaded at once"
    broker.groups = broker.coordinators()
    partition.log_end_offset = 1
    assert broker.join(group_id="late").error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    beat = broker.ask(HEARTBEAT, 4, group_id="late", generation_id=1, member_id="m")
    assert beat.error_code == 0, "nobody is sent away because of a load"
    synced = broker.ask(SYNC, 4, group_id="late", generation_id=1, member_id="m", assignments=[])
    assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS, "aiokafka and Java's consumer end at anything else"


def test_a_load_that_a_stop_ends_is_no_failure(broker: Broker) -> None:
    broker.commit()
    broker.groups.close()
    broker.groups.load_all()
    broker.groups.close()
    broker.clock.advance(1)
    assert broker.events == []


def test_a_partition_led_elsewhere_is_not_ours(broker: Broker) -> None:
    broker.groups.close()
    for partition in broker.store.partitions.values():
        partition.replication.is_leader = False
    assert broker.join().error_code == ErrorCode.NOT_COORDINATOR


# ---------------------------------------------------------------------- membership


@pytest.mark.parametrize("version", versions(JOIN))
def test_joining(broker: Broker, version: int) -> None:
    joined = broker.join(version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = broker.join(version, joined.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("client-")
    assert len(joined.member_id) == len("client-") + 36
    assert [member.metadata for member in joined.members] == [subscription("t")]
    if version >= 7:
        assert joined.protocol_type == "consumer"
    refused = broker.join(version, "ghost")
    assert (refused.error_code, refused.generation_id, refused.members) == (ErrorCode.UNKNOWN_MEMBER_ID, -1, [])


def test_the_first_version_has_no_rebalance_timeout(broker: Broker) -> None:
    broker.member(0)
    machine = broker.groups.of("g").machine
    (member,) = machine.groups["g"].members.values()
    assert (member.rebalance_timeout_ms, member.client_host, member.client_id) == (10_000, "/10.0.0.7", "client")


@pytest.mark.parametrize("version", versions(SYNC))
def test_syncing(broker: Broker, version: int) -> None:
    joined = broker.member()
    fields: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    if version >= 5:
        missing = broker.ask(SYNC, version, **fields)
        assert missing.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        fields.update(protocol_type="consumer", protocol_name="range")
    assignment = API[SYNC].request.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
    synced = broker.ask(SYNC, version, assignments=[assignment], **fields)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert broker.ask(SYNC, version, **{**fields, "generation_id": 2}).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_beating(broker: Broker, version: int) -> None:
    joined = broker.stable()
    fields = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    assert broker.ask(HEARTBEAT, version, **fields).error_code == 0
    assert broker.ask(HEARTBEAT, version, **{**fields, "group_id": "h"}).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(LEAVE))
def test_leaving(broker: Broker, version: int) -> None:
    joined = broker.stable()
    if version < 3:
        assert broker.ask(LEAVE, version, group_id="g", member_id="x").error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert broker.ask(LEAVE, version, group_id="g", member_id=joined.member_id).error_code == 0
        return
    identity = API[LEAVE].request.MemberIdentity
    reply = broker.ask(LEAVE, version, group_id="g", members=[identity(member_id=m) for m in ("x", joined.member_id)])
    assert reply.error_code == 0
    assert [(m.member_id, m.error_code) for m in reply.members] == [("x", 25), (joined.member_id, 0)]


# ---------------------------------------------------------------------- offsets


def fetched(broker: Broker, version: int, indexes: list[int] | None, topic_id: bytes = TOPIC_ID) -> Any:
    """(error, {(topic, partition): (offset, epoch, metadata, error)}) of group g in any version."""
    request = API[FETCH].request
    if version >= 8:
        topics = None
        if indexes is not None:
            topics = [request.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=indexes)]
        group = request.OffsetFetchRequestGroup(group_id="g", topics=topics)
        answer = broker.ask(FETCH, version, groups=[group]).groups[0]
    else:
        topics = None
        if indexes is not None:
            topics = [request.OffsetFetchRequestTopic(name="t", partition_indexes=indexes)]
        answer = broker.ask(FETCH, version, group_id="g", topics=topics)
    found = {
        (t.topic_id if version >= 10 else t.name, p.partition_index): (
            p.committed_offset,
            p.committed_leader_epoch if version >= 5 else None,
            p.metadata,
            p.error_code,
        )
        for t in answer.topics
        for p in t.partitions
    }
    return answer.error_code if version >= 2 else 0, found


@pytest.mark.parametrize("version", versions(COMMIT))
def test_committing(broker: Broker, version: int) -> None:
    assert broker.commit(version) == 0
    stored = 3 if version >= 6 else -1
    assert fetched(broker, 9, [0]) == (0, {("t", 0): (5, stored, "note", 0)})
    assert broker.commit(version, index=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.commit(version, index=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 10:
        assert broker.commit(version, topic_id=b"x" * 16) == ErrorCode.UNKNOWN_TOPIC_ID
    joined = broker.stable()
    assert broker.commit(version) == ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.commit(version, member_id=joined.member_id, generation_id_or_member_epoch=1) == 0
    assert broker.commit(version, member_id=joined.member_id, generation_id_or_member_epoch=2) == 22


@pytest.mark.parametrize("version", versions(COMMIT))
def test_a_member_of_a_group_that_is_gone_is_told_so_as_its_version_knows(broker: Broker, version: int) -> None:
    answer = broker.commit(version, group_id="gone", member_id="m", generation_id_or_member_epoch=3)
    assert answer == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION)


@pytest.mark.parametrize("version", range(2, 5))
def test_a_retention_of_the_clients_own(broker: Broker, version: int) -> None:
    assert broker.commit(version, retention_time_ms=1000) == 0
    machine = broker.groups.of("g").machine
    assert machine.offsets.of("g")[("t", 0)].expire_timestamp == broker.clock.wall_ms() + 1000


@pytest.mark.parametrize("version", versions(FETCH))
def test_fetching(broker: Broker, version: int) -> None:
    broker.commit()
    name: Any = TOPIC_ID if version >= 10 else "t"
    epoch = 3 if version >= 5 else None
    none = -1 if version >= 5 else None
    expected = {(name, 0): (5, epoch, "note", 0), (name, 2): (-1, none, "", 0)}
    assert fetched(broker, version, [0, 2]) == (0, expected)
    if version >= 2:
        assert fetched(broker, version, None) == (0, {(name, 0): (5, epoch, "note", 0)})
    if version >= 10:
        other = b"x" * 16
        assert fetched(broker, version, [0], other) == (0, {(other, 0): (-1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)})


@pytest.mark.parametrize("version", versions(FETCH))
def test_fetching_what_may_not_be_seen(broker: Broker, version: int) -> None:
    broker.commit()
    broker.secrets = {Resource.TOPIC: {"t"}}
    (found,) = fetched(broker, version, [0])[1].values()
    assert (found[0], found[3]) == (-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if version >= 2:
        assert fetched(broker, version, None) == (0, {})
    broker.secrets = {Resource.GROUP: {"g"}}
    error, found_all = fetched(broker, version, [0])
    if version >= 2:
        assert (error, found_all) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, {})
    else:
        assert [entry[3] for entry in found_all.values()] == [ErrorCode.GROUP_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("version", [9, 10])
def test_a_topic_that_came_back_under_its_name_has_no_offsets(broker: Broker, version: int) -> None:
    broker.commit()
    broker.image.remove_topic(broker.image.topics["t"])
    broker.add_topic("t", b"n" * 16, 3)
    assert list(fetched(broker, version, [0], b"n" * 16)[1].values()) == [(-1, -1, "", 0)]
    assert fetched(broker, version, None) == (0, {})
    for callback in broker.publisher.on_deleted:
        callback("t", TOPIC_ID)
    broker.clock.advance(0)
    assert list(broker.groups.committed_offsets()) == []


def test_offsets_of_deleted_topics_go_in_one_partition_after_the_other(broker: Broker) -> None:
    groups = [next(g for g in map(str, range(99)) if partition_for(g, 4) == number) for number in range(4)]
    for group in groups:
        broker.commit(group_id=group)
    left = list(broker.groups.committed_offsets())
    first = broker.partition(OFFSETS_TOPIC, partition_for(left[0][0], 4))
    first.commit_at_once = False
    for name in ("t", "u"):
        for callback in broker.publisher.on_deleted:
            callback(name, TOPIC_ID)
    broker.clock.advance(0)
    assert list(broker.groups.committed_offsets()) == left[1:], "the next ones wait for it"
    first.commit()
    broker.clock.advance(0)
    assert list(broker.groups.committed_offsets()) == []


def test_offsets_of_topics_gone_while_nobody_coordinated_are_dropped_at_load(broker: Broker) -> None:
    broker.commit()
    broker.groups.close()
    broker.image.remove_topic(broker.image.topics["t"])
    broker.add_topic("t", b"n" * 16, 3)
    broker.groups.load_all()
    broker.clock.advance(1)
    assert list(broker.groups.committed_offsets()) == []


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("version", [8, 10])
@pytest.mark.parametrize("step", [0, 2, 22, 23])
def test_what_was_meant_for_a_topic_that_is_gone_is_committed_for_no_other_one(
    broker: Broker, version: int, comes_back: bool, step: int
) -> None:
    """It was, if the topic came back between two steps of the commit; else it was kept for ever."""
    message = API[COMMIT].request
    wanted = [
        message.OffsetCommitRequestPartition(partition_index=number % 3, committed_offset=7) for number in range(2_200)
    ]
    gone = message.OffsetCommitRequestTopic(name="t", topic_id=TOPIC_ID, partitions=wanted)
    broker.add_topic("other", b"o" * 16, 1)
    last = message.OffsetCommitRequestTopic(name="other", topic_id=b"o" * 16, partitions=wanted[:1])
    replies = broker.begin(COMMIT, version, group_id="g", topics=[gone, last])
    for _ in range(step):
        broker.clock.step()
    assert not replies
    broker.image.remove_topic(broker.image.topics["t"])
    for callback in broker.publisher.on_deleted:
        callback("t", TOPIC_ID)
    if comes_back:
        broker.add_topic("t", b"n" * 16, 3)
    broker.clock.advance(0)
    answer = API[COMMIT].response.decode(replies[0], version)
    codes = [each.error_code for topic in answer.topics for each in topic.partitions]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    committed = codes.count(0) - 1
    assert committed in (0, 1_000, 2_000), "what was committed before the topic was deleted"
    assert codes == [0] * committed + [unknown] * (2_200 - committed) + [0]
    assert [(tp.topic, offset) for _, tp, offset in broker.groups.committed_offsets()] == [("other", 7)]


def test_deleting_offsets(broker: Broker) -> None:
    def delete(*indexes: int, topic: str = "t", group: str = "g") -> Any:
        request = API[OFFSET_DELETE].request
        partitions = [request.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        topics = [request.OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
        reply = broker.ask(OFFSET_DELETE, 0, group_id=group, topics=topics)
        return reply.error_code, [p.error_code for t in reply.topics for p in t.partitions]

    assert delete(0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    broker.commit(group_id="")
    assert delete(0, group="") == (ErrorCode.INVALID_GROUP_ID, [])
    broker.commit()
    assert delete(0, 9) == (0, [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    assert fetched(broker, 9, None) == (0, {})
    broker.stable()
    assert delete(0) == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    broker.secrets = {Resource.GROUP: {"g"}}
    assert delete(0) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])


# ---------------------------------------------------------------------- administration


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_describing(broker: Broker, version: int) -> None:
    joined = broker.stable()
    fields: dict[str, Any] = {"groups": ["g", "ghost"]}
    if version >= 3:
        fields["include_authorized_operations"] = True
    group, ghost = broker.ask(DESCRIBE, version, **fields).groups
    assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
        0, "Stable", "consumer", "range",
    )  # fmt: skip
    (member,) = group.members
    assert (member.member_id, member.client_host, member.member_assignment) == (joined.member_id, "/10.0.0.7", b"mine")
    assert member.member_metadata == subscription("t")
    assert (ghost.group_state, ghost.members) == ("Dead", [])
    assert ghost.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        operations = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
        assert group.authorized_operations == operations
        assert ghost.authorized_operations == (-(1 << 31) if version >= 6 else operations)
    broker.secrets = {Resource.GROUP: {"g"}}
    group, ghost = broker.ask(DESCRIBE, version, **fields).groups
    assert (group.error_code, group.members) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])


@pytest.mark.parametrize("version", versions(LIST))
def test_listing(broker: Broker, version: int) -> None:
    broker.stable()
    broker.commit(group_id="simple")
    reply = broker.ask(LIST, version)
    assert reply.error_code == 0
    assert {(group.group_id, group.protocol_type) for group in reply.groups} == {("g", "consumer"), ("simple", "")}
    if version >= 4:
        assert [g.group_id for g in broker.ask(LIST, version, states_filter=["stAble"]).groups] == ["g"]
    if version >= 5:
        assert broker.ask(LIST, version, types_filter=["share"]).groups == []
        assert {group.group_type for group in reply.groups} == {"classic"}
    broker.secrets = {Resource.CLUSTER: {"kafka-cluster"}, Resource.GROUP: {"g"}}
    assert [group.group_id for group in broker.ask(LIST, version).groups] == ["simple"]


@pytest.mark.parametrize("version", versions(DELETE))
def test_deleting_groups(broker: Broker, version: int) -> None:
    broker.stable()
    broker.commit(group_id="simple")
    broker.secrets = {Resource.GROUP: {"secret"}}
    reply = broker.ask(DELETE, version, groups_names=["g", "simple", "ghost", "secret"])
    assert [(result.group_id, result.error_code) for result in reply.results] == [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("simple", 0),
        ("ghost", ErrorCode.GROUP_ID_NOT_FOUND),
        ("secret", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ]


def test_requests_for_nothing_are_answered(broker: Broker) -> None:
    assert broker.ask(DESCRIBE, 5, groups=[]).groups == []
    assert broker.ask(DELETE, 2, groups_names=[]).results == []
    assert broker.ask(FETCH, 8, groups=[]).groups == []
    assert broker.ask(COMMIT, 8, group_id="g", topics=[]).topics == []


def test_a_failed_log_sends_members_to_look_for_another_coordinator(broker: Broker) -> None:
    joined = broker.stable()
    for partition in broker.store.partitions.values():
        partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    known = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
    assert broker.commit(**known) == ErrorCode.NOT_COORDINATOR
    for partition in broker.store.partitions.values():
        partition.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert broker.commit(**known) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_damaged_log_hides_no_groups_of_the_others_and_is_not_read_again_at_every_question(broker: Broker) -> None:
    """ListGroups would say "loading" for ever, which clients try again, and each of their tries was one more replay."""
    for group_id in ("g", "h"):
        broker.commit(group_id=group_id)
    log = broker.partition(OFFSETS_TOPIC, partition_for("g", 4))
    log.damage()
    broker.groups.close()
    broker.groups = broker.coordinators()
    broker.groups.load_all()
    broker.clock.advance(0)
    assert broker.events == ["coordinator-load-failed"]
    for _ in range(5):
        listed = broker.ask(LIST, 5)
        assert (listed.error_code, [group.group_id for group in listed.groups]) == (0, ["h"])
        assert broker.commit(group_id="g") == ErrorCode.NOT_COORDINATOR
        assert broker.ask(DESCRIBE, 5, groups=["g"]).groups[0].error_code == ErrorCode.NOT_COORDINATOR
        broker.clock.advance(1)
    assert broker.events == ["coordinator-load-failed"]
    log.damage()  # the same bit: it was the reading that went wrong
    broker.clock.advance(int(1000 * RELOAD_SECONDS))
    assert broker.ask(LIST, 5).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [group.group_id for group in broker.ask(LIST, 5).groups] == ["h", "g"]
    assert broker.commit(group_id="g") == 0


def test_settings_change_under_running_groups(broker: Broker) -> None:
    config = load_broker_config(None, {"offset.metadata.max.bytes": "3"})
    broker.commit()
    for callback in broker.publisher.on_reconfigured:
        callback(config)
    assert broker.commit() == ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_deleting_the_offsets_topic_ends_the_coordinators(broker: Broker) -> None:
    broker.stable()
    topic = broker.image.topics[OFFSETS_TOPIC]
    broker.image.remove_topic(topic)
    for callback in broker.publisher.on_deleted:
        callback(OFFSETS_TOPIC, topic.id)
    assert list(broker.groups.committed_offsets()) == []
    assert ErrorCode(broker.join().error_code).retriable
