"""Members of consumer groups through the wire: every version, what is refused, and where the protocol is off."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line
from tests.worlds.consumer_requests import DESCRIBE, HEARTBEAT, JOINING, LIST, UPDATE_FEATURES, create, prepared

from duramen.errors import ErrorCode
from duramen.wire.messages import API


@pytest.fixture
def client() -> Line:
    return prepared(InProcess())


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_gets_its_partitions(client: Line, version: int) -> None:
    reply = client.call(HEARTBEAT, version, **JOINING)
    assert (reply.error_code, reply.error_message, reply.member_id) == (0, None, "m")
    assert (reply.member_epoch, reply.heartbeat_interval_ms) == (2, 5000)
    (topic,) = reply.assignment.topic_partitions
    assert sorted(topic.partitions) == [0, 1, 2]
    again = client.call(HEARTBEAT, version, group_id="g", member_id="m", member_epoch=2)
    assert (again.error_code, again.assignment) == (0, None)
    left = client.call(HEARTBEAT, version, group_id="g", member_id="m", member_epoch=-1)
    assert (left.error_code, left.member_id, left.member_epoch) == (0, "m", -1)


def test_only_the_first_version_makes_ids(client: Line) -> None:
    reply = client.call(HEARTBEAT, 0, **{**JOINING, "member_id": ""})
    assert len(reply.member_id) == 36
    assert client.call(HEARTBEAT, 1, **{**JOINING, "member_id": ""}).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_id": "m" * 5000}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ["x" * 30_000] * 40}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_refused(client: Line, changed: dict[str, Any], code: ErrorCode) -> None:
    reply = client.call(HEARTBEAT, 1, **{**JOINING, **changed})
    assert reply.error_code == code
    assert reply.error_message
    assert (reply.member_id, reply.member_epoch, reply.assignment) == (None, 0, None)
    assert client.call(LIST, 5).groups == []


def test_an_expression_is_resolved_and_the_member_told_at_its_next_heartbeats() -> None:
    node = InProcess()
    client = prepared(node)
    fields = {**JOINING, "subscribed_topic_names": None, "subscribed_topic_regex": "t|u"}
    first = client.call(HEARTBEAT, 1, **fields)
    assert (first.error_code, first.assignment.topic_partitions) == (0, [])
    node.pass_ms(5_000)
    second = client.call(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=first.member_epoch)
    assert sorted(second.assignment.topic_partitions[0].partitions) == [0, 1, 2]
    create(client, "u", 1)
    node.pass_ms(20_000)
    client.call(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=second.member_epoch)
    third = client.call(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=second.member_epoch)
    assert len(third.assignment.topic_partitions) == 2


def test_new_partitions_reach_a_member_at_its_next_heartbeat() -> None:
    node = InProcess()
    client = prepared(node)
    epoch = client.call(HEARTBEAT, 1, **JOINING).member_epoch
    topic = API[37].request.CreatePartitionsTopic(name="t", count=5, assignments=None)
    assert client.call(37, 3, topics=[topic], timeout_ms=1000).results[0].error_code == 0
    node.pass_ms(5_000)
    reply = client.call(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=epoch)
    assert len(reply.assignment.topic_partitions[0].partitions) == 5


def test_where_the_level_is_0_members_are_told_to_use_the_classic_protocol(client: Line) -> None:
    update = API[UPDATE_FEATURES].request.FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=2)
    assert client.call(UPDATE_FEATURES, 1, feature_updates=[update], timeout_ms=1000).error_code == 0
    refused_everywhere(client)


def test_where_the_settings_do_not_list_it_the_same() -> None:
    refused_everywhere(prepared(InProcess(group_coordinator_rebalance_protocols="classic")))


def refused_everywhere(client: Line) -> None:
    reply = client.call(HEARTBEAT, 1, **JOINING)
    assert reply.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.protocol=classic" in reply.error_message
    (group,) = client.call(DESCRIBE, 1, group_ids=["g"]).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_node_that_starts_again_goes_on_with_its_groups() -> None:
    node = InProcess()
    client = prepared(node)
    before = client.call(HEARTBEAT, 1, **JOINING)
    node.disk.power_cut()
    node.disk.power_on()
    again = InProcess(node.disk).connect()
    reply = again.call(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=before.member_epoch)
    assert (reply.error_code, reply.member_epoch) == (0, before.member_epoch)


def test_the_log_says_who_joined_was_fenced_and_left() -> None:
    node = InProcess()
    client = prepared(node)
    client.call(HEARTBEAT, 1, **JOINING)
    fenced = client.call(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=9)
    assert fenced.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    client.call(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=-1)
    said = [(event, fields) for event, fields in node.events if event.startswith("group-member-")]
    assert [event for event, _ in said] == ["group-member-joined", "group-member-fenced", "group-member-left"]
    assert all((fields["group"], fields["member"]) == ("g", "m") for _, fields in said)
    assert "not 9" in str(said[1][1]["error"])
