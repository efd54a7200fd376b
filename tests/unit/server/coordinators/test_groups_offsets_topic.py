"""The first group of a fresh node: nobody is sent to a coordinator whose partitions are still being made."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, after_power_cut

from duramen.errors import ErrorCode
from duramen.wire.messages import API

FIND, COMMIT = 10, 8


def commit_fields(offset: int = 5) -> dict[str, Any]:
    request = API[COMMIT].request
    partition = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return {"group_id": "g", "topics": [request.OffsetCommitRequestTopic(name="t", partitions=[partition])]}


def test_more_copies_than_brokers_are_worth_another_try_and_the_log_says_which_setting_asks_for_them() -> None:
    server = InProcess(offsets_topic_replication_factor="3")
    found = server.connect().call(FIND, 4, key_type=0, coordinator_keys=["g"]).coordinators[0]
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (why,) = [fields["error"] for event, fields in server.events if event == "offsets-topic-refused"]
    assert "only 1 broker(s) are registered" in why
    assert "offsets.topic.replication.factor" in why


def test_whoever_asks_while_the_offsets_topic_is_being_made_waits_for_it() -> None:
    server = InProcess()
    first, second = server.connect(), server.connect()
    first.create_topic("t")
    server.lanes.held.add("checkpoint")
    first.ask(FIND, 4, key_type=0, coordinator_keys=["g"])
    server.run()
    assert first.answer(FIND, 4) is None
    second.ask(FIND, 4, key_type=0, coordinator_keys=["h"])
    server.run()
    assert second.answer(FIND, 4) is None, "the topic is there, its partitions are not"
    second_commit = server.connect()
    second_commit.ask(COMMIT, 8, **commit_fields())
    server.run()
    server.lanes.held.clear()
    server.run()
    for line in (first, second):
        assert line.answer(FIND, 4).coordinators[0].error_code == 0
    reply = second_commit.answer(COMMIT, 8)
    assert reply.topics[0].partitions[0].error_code == ErrorCode.NONE


def test_no_commit_overtakes_one_of_its_group_that_waits_for_the_offsets_topic() -> None:
    """It waits until no topic is being made any more; one that came when the partition was there was before it in the
    log, and the group's position went back.
    """
    server = InProcess()
    line, first, other = server.connect(), server.connect(), server.connect()
    first.create_topic("t")
    server.lanes.held.add("checkpoint")
    first.ask(FIND, 4, key_type=0, coordinator_keys=["g"])
    server.run()
    wanted = API[19].request.CreatableTopic(name="other", num_partitions=1, replication_factor=1)
    other.ask(19, 7, topics=[wanted], timeout_ms=1000)
    line.ask(COMMIT, 8, **commit_fields(5))
    server.run()
    server.lanes.held.clear()
    assert server.lanes.step(), "the offsets topic's partitions are made, and the other topic's are not"
    server.lanes.held.add("checkpoint")
    server.run()
    assert server.broker.partitions.find("__consumer_offsets", 0) is not None
    assert server.broker.partitions.find("other", 0) is None
    line.ask(COMMIT, 8, **commit_fields(6))
    server.run()
    server.lanes.held.clear()
    server.run()
    for _ in range(2):
        assert line.answer(COMMIT, 8).topics[0].partitions[0].error_code == ErrorCode.NONE
    asked = API[9].request.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    position = line.call(9, 7, group_id="g", topics=[asked], require_stable=True).topics[0].partitions[0]
    assert position.committed_offset == 6


def test_whoever_waits_when_the_offsets_topic_is_deleted_is_told_to_look_for_its_coordinator() -> None:
    server = InProcess(offsets_topic_num_partitions="1")
    line, admin = server.connect(), server.connect()
    line.create_topic("t")
    line.call(FIND, 4, key_type=0, coordinator_keys=["g"])
    server.lanes.held.add("journal")
    doomed = API[20].request.DeleteTopicState(name="__consumer_offsets", topic_id=bytes(16))
    admin.ask(20, 6, topics=[doomed], timeout_ms=1000)
    server.run()
    line.ask(COMMIT, 8, **commit_fields())  # its batch comes in the group behind the deletion
    server.run()
    server.lanes.held.clear()
    server.run()
    reply = line.answer(COMMIT, 8)
    assert reply.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_partitions_that_a_start_finds_no_room_for_are_made_when_there_is(code: int) -> None:
    """A crash came before they were made; no group whose place they are could work until another restart."""
    server = InProcess(offsets_topic_num_partitions="1")
    line = server.connect()
    line.create_topic("t")
    server.lanes.held.add("checkpoint")
    line.ask(FIND, 4, key_type=0, coordinator_keys=["g"])
    server.run()
    disk = server.disk.copy(Random(0))
    disk.power_cut()
    disk.power_on()
    refused = OSError(code, "no more")
    disk.fault = lambda call: refused if "/__consumer_offsets-0/" in call.path and call.operation != "exists" else None
    server = InProcess(disk)
    assert [event for event, _ in server.events if event == "partition-offline"] == ["partition-offline"]
    assert server.connect().call(COMMIT, 8, **commit_fields()).topics[0].partitions[0].error_code
    server.pass_ms(5_000)
    disk.fault = None
    server.pass_ms(5_000)
    line = server.connect()
    assert line.call(FIND, 4, key_type=0, coordinator_keys=["g"]).coordinators[0].error_code == 0
    assert line.call(COMMIT, 8, **commit_fields()).topics[0].partitions[0].error_code == 0
    again = after_power_cut(server).connect()
    fetched = again.call(9, 7, group_id="g", topics=None, require_stable=True)
    assert [p.committed_offset for topic in fetched.topics for p in topic.partitions] == [5]


@pytest.mark.parametrize(
    "settings",
    [[("segment.bytes", "1048576")], [("cleanup.policy", "delete")], [("cleanup.policy", "compact,delete")]],
)
@pytest.mark.parametrize("replace", [False, True])
def test_no_setting_lets_committed_offsets_expire_with_their_segments(
    settings: list[tuple[str, str]], replace: bool
) -> None:
    """AlterConfigs replaces all settings, and whoever sends one of them does not mean the policy."""
    server = InProcess(offsets_topic_num_partitions="1")
    line = server.connect()
    line.call(FIND, 4, key_type=0, coordinator_keys=["g"])
    before = dict(server.broker.image.topic_config("__consumer_offsets"))
    assert before["cleanup.policy"] == "compact"
    key, version = (33, 2) if replace else (44, 1)
    request = API[key].request
    entry = request.AlterableConfig
    configs = [entry(name=name, value=value) for name, value in settings]
    resource = request.AlterConfigsResource(resource_type=2, resource_name="__consumer_offsets", configs=configs)
    answer = line.call(key, version, resources=[resource], validate_only=False).responses[0]
    if settings[0][0] == "segment.bytes" and not replace:
        assert answer.error_code == 0
        return
    assert (answer.error_code, "compact" in answer.error_message) == (ErrorCode.INVALID_CONFIG, True)
    assert server.broker.image.topic_config("__consumer_offsets") == before


def test_the_policy_of_the_offsets_topic_cannot_be_taken_away() -> None:
    server = InProcess(offsets_topic_num_partitions="1")
    line = server.connect()
    line.call(FIND, 4, key_type=0, coordinator_keys=["g"])
    request = API[44].request
    configs = [request.AlterableConfig(name="cleanup.policy", config_operation=1, value=None)]
    resource = request.AlterConfigsResource(resource_type=2, resource_name="__consumer_offsets", configs=configs)
    answer = line.call(44, 1, resources=[resource], validate_only=False).responses[0]
    assert answer.error_code == ErrorCode.INVALID_CONFIG
