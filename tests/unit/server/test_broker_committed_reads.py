"""What a client reads of topics, settings and groups is committed: no power cut takes it back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.errors import ErrorCode
from duramen.sim.world.disk import CrashDisk
from duramen.wire.messages import API

TOPIC, BROKER = 2, 4


def topics(line: Line) -> dict[str, int]:
    """Every topic with its number of partitions."""
    return {topic.name: len(topic.partitions) for topic in line.call(3, 12, topics=None).topics}


def settings(line: Line, kind: int, name: str) -> dict[str, str | None]:
    resource = API[32].request.DescribeConfigsResource(resource_type=kind, resource_name=name)
    (result,) = line.call(32, 4, resources=[resource]).results
    return {entry.name: entry.value for entry in result.configs}


def seen(line: Line) -> Any:
    """Everything the APIs that do not wait tell of the metadata."""
    return (
        topics(line),
        [topic.name for topic in line.call(75, 0, topics=[], response_partition_limit=100).topics],
        sorted(entry.resource_name for entry in line.call(74, 1, resource_types=[TOPIC]).config_resources),
        settings(line, TOPIC, "kept")["retention.ms"],
        settings(line, BROKER, "0")["message.max.bytes"],
    )


def commit_offset(line: Line, offset: int) -> None:
    request = API[8].request
    part = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = request.OffsetCommitRequestTopic(name="kept", partitions=[part])
    line.ask(8, 9, group_id="g", generation_id_or_member_epoch=-1, topics=[topic])


def ask_offset(line: Line) -> None:
    request = API[9].request
    topic = request.OffsetFetchRequestTopics(name="kept", partition_indexes=[0])
    line.ask(9, 8, groups=[request.OffsetFetchRequestGroup(group_id="g", topics=[topic])])


def change(line: Line) -> None:
    """One uncommitted change of every kind."""
    create = API[19].request.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    line.ask(19, 7, topics=[create], timeout_ms=60_000)
    line.ask(
        37, 3, topics=[API[37].request.CreatePartitionsTopic(name="kept", count=3, assignments=None)], timeout_ms=60_000
    )
    request = API[44].request
    resources = [
        request.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[request.AlterableConfig(name=key, config_operation=0, value="77777")],
        )
        for kind, name, key in [(TOPIC, "kept", "retention.ms"), (BROKER, "0", "message.max.bytes")]
    ]
    line.ask(44, 1, resources=resources)
    line.ask(20, 6, topics=[API[20].request.DeleteTopicState(name="doomed")], timeout_ms=60_000)


def prepared(disk: CrashDisk) -> tuple[InProcess, Line]:
    server = InProcess(disk, node_id="0")
    line = server.connect()
    line.create_topic("kept")
    line.create_topic("doomed")
    line.call(10, 4, key_type=0, coordinator_keys=["g"])
    server.run()
    commit_offset(line, 5)
    server.run()
    assert line.answer(8, 9).topics[0].partitions[0].error_code == 0
    return server, line


@pytest.mark.parametrize("end", ["power cut", "failed sync"])
def test_metadata_that_was_read_survives(end: str) -> None:
    disk = CrashDisk()
    server, line = prepared(disk)
    reader = server.connect()
    before = seen(reader)
    assert before[0] == {"__consumer_offsets": 50, "doomed": 1, "kept": 1}
    server.lanes.held.add("journal")
    change(line)
    server.run()
    assert seen(reader) == before, "applied, but not committed"
    if end == "failed sync":
        disk.fault = lambda call: OSError(5, "EIO") if call.operation in ("sync", "pwritev") else None
        server.lanes.held.clear()
        server.run()
        assert line.answer(19, 7).topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert seen(reader) == before, "a failed disk goes on being read"
        disk.fault = None
    disk.power_cut()
    disk.power_on()
    after = InProcess(disk, node_id="0").connect()
    assert seen(after) == before


def test_metadata_is_seen_once_it_is_committed() -> None:
    server, line = prepared(CrashDisk())
    reader = server.connect()
    change(line)
    server.run()
    assert topics(reader) == {"__consumer_offsets": 50, "kept": 3, "new": 1}
    assert settings(reader, TOPIC, "kept")["retention.ms"] == "77777"
    assert settings(reader, BROKER, "0")["message.max.bytes"] == "77777"


def test_a_groups_offset_is_told_once_it_is_committed() -> None:
    disk = CrashDisk()
    server, line = prepared(disk)
    reader = server.connect()
    server.lanes.held.add("journal")
    commit_offset(line, 9)
    server.run()
    ask_offset(reader)
    server.run()
    assert reader.answer(9, 8) is None, "what it saw is not committed"
    server.pass_ms(6000)
    (group,) = reader.answer(9, 8).groups
    assert ErrorCode(group.error_code) is ErrorCode.NOT_COORDINATOR
    disk.power_cut()
    disk.power_on()
    server = InProcess(disk, node_id="0")
    reader = server.connect()
    ask_offset(reader)
    server.run()
    (group,) = reader.answer(9, 8).groups
    assert group.topics[0].partitions[0].committed_offset == 5
