"""ConsumerGroupDescribe: what is told of a group and its members, and of what is none."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess, Line
from tests.worlds.consumer_requests import DESCRIBE, HEARTBEAT, JOINING, LIST, UPDATE_FEATURES, prepared

from duramen.errors import ErrorCode
from duramen.wire.messages import API


@pytest.fixture
def client() -> Line:
    return prepared(InProcess())


@pytest.mark.parametrize("version", [0, 1])
def test_a_group_and_its_members(client: Line, version: int) -> None:
    client.call(HEARTBEAT, 1, **JOINING, instance_id="i", rack_id="r")
    fields = {"group_ids": ["g"], "include_authorized_operations": True}
    (group,) = client.call(DESCRIBE, version, **fields).groups
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
    assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (2, 2, "uniform")
    assert group.authorized_operations > 0
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 2)
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], "")
    assert member.member_type == (-1 if version == 0 else 1)
    for assignment in (member.assignment, member.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("t", [0, 1, 2])


def test_a_group_is_there_when_the_protocol_is_turned_off(client: Line) -> None:
    client.call(HEARTBEAT, 1, **JOINING)
    update = API[UPDATE_FEATURES].request.FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=2)
    assert client.call(UPDATE_FEATURES, 1, feature_updates=[update], timeout_ms=1000).error_code == 0
    (group,) = client.call(DESCRIBE, 1, group_ids=["g"]).groups
    assert (group.error_code, group.group_state, len(group.members)) == (0, "Stable", 1)
    (listed,) = client.call(LIST, 5).groups
    assert (listed.group_id, listed.group_type, listed.group_state) == ("g", "consumer", "Stable")


def test_what_is_no_consumer_group(client: Line) -> None:
    codes = {
        group.group_id: group.error_code for group in client.call(DESCRIBE, 1, group_ids=["none", "", "none"]).groups
    }
    assert codes == {"none": ErrorCode.GROUP_ID_NOT_FOUND, "": ErrorCode.INVALID_GROUP_ID}
    assert client.call(DESCRIBE, 1, group_ids=[]).groups == []


def test_a_member_answers_for_what_it_gives_up() -> None:
    node = InProcess()
    client = prepared(node)
    client.call(HEARTBEAT, 1, **JOINING)
    node.pass_ms(5_000)
    client.call(HEARTBEAT, 1, **{**JOINING, "member_id": "n"})
    client.call(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=2)
    (group,) = client.call(DESCRIBE, 1, group_ids=["g"]).groups
    assert group.group_state == "Reconciling"
    first = next(member for member in group.members if member.member_id == "m")
    assert sum(len(topic.partitions) for topic in first.assignment.topic_partitions) == 3
    assert sum(len(topic.partitions) for topic in first.target_assignment.topic_partitions) == 2
