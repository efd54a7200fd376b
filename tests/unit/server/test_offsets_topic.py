"""The first group of a fresh node: nobody is sent to a coordinator whose partitions are still being made."""

from __future__ import annotations

from typing import Any

from tests.unit.server.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.wire.messages import API

FIND, COMMIT = 10, 8


def commit_fields() -> dict[str, Any]:
    request = API[COMMIT].request
    partition = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    return {"group_id": "g", "topics": [request.OffsetCommitRequestTopic(name="t", partitions=[partition])]}


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
