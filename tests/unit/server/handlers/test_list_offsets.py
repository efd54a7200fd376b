"""ListOffsets: special timestamps at once, times looked up off the loop, each partition failing alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import NOW, InProcess, Line

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.storage.log.durability import complete_sync, take_sync
from duramen.wire.messages import API

KEY = 2
REQUEST = API[KEY].request


def wanted(timestamp: int, partition: int = 0) -> Any:
    return REQUEST.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)


def ask(line: Line, version: int, *partitions: Any, **fields: Any) -> list[Any]:
    topics = [REQUEST.ListOffsetsTopic(name="t", partitions=list(partitions))]
    return list(line.call(KEY, version, topics=topics, **fields).topics[0].partitions)


@pytest.fixture
def server() -> InProcess:
    made = InProcess()
    line = made.connect()
    line.create_topic("t")
    for value in (b"a", b"b", b"c"):
        line.produce("t", value)
    return made


@pytest.mark.parametrize("version", range(1, 12))
def test_special_timestamps_by_version(server: InProcess, version: int) -> None:
    line = server.connect()
    first = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99}
    offsets = {-1: 3, -2: 0, -3: 0, -4: 0, -5: -1, -6: -1}
    for timestamp, since in first.items():
        (entry,) = ask(line, version, wanted(timestamp))
        if version < since:
            assert (entry.error_code, entry.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
        else:
            assert (entry.error_code, entry.offset) == (0, offsets[timestamp])


@pytest.mark.parametrize("version", [1, 4, 11])
def test_times_are_looked_up_off_the_loop(server: InProcess, version: int) -> None:
    line, other = server.connect(), server.connect()
    server.lanes.held.add("lookups")
    topics = [REQUEST.ListOffsetsTopic(name="t", partitions=[wanted(NOW), wanted(-1, 7)])]
    line.ask(KEY, version, topics=topics)
    server.run()
    assert line.answer(KEY, version) is None
    assert ask(other, version, wanted(-1))[0].offset == 3
    server.lanes.held.clear()
    server.run()
    found, nowhere = line.answer(KEY, version).topics[0].partitions
    assert (found.error_code, found.offset, found.timestamp) == (0, 0, NOW)
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (none,) = ask(line, version, wanted(NOW + 1))
    assert (none.error_code, none.offset, none.timestamp) == (0, -1, -1)


@pytest.mark.parametrize("version", [4, 5, 11])
def test_a_new_leader_that_may_be_behind_says_so(server: InProcess, version: int) -> None:
    line = server.connect()
    partition = server.broker.store.partitions[TopicPartition("t", 0)]
    epoch = partition.leader_epoch + 1
    partition.replication.high_watermark = 2  # what its leader had told it as a follower
    partition.lead(epoch, (1, 2, 3), (1, 2), 9)
    behind = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE

    def codes() -> list[int]:
        asked = (-1, -2, -3, NOW, NOW + 1) if version >= 7 else (-1, -2, NOW, NOW + 1)
        return [ask(line, version, wanted(timestamp))[0].error_code for timestamp in asked]

    assert codes() == ([behind, 0, behind, 0, behind] if version >= 7 else [behind, 0, 0, behind])
    assert partition.fetched_by(2, 7, 3, 1.0)
    assert not any(codes())
    partition.lead(epoch + 1, (1, 2, 3), (1, 2), 10)
    assert not any(codes()), "it knew all that there is"


def test_a_partition_named_twice_is_refused(server: InProcess) -> None:
    codes = [entry.error_code for entry in ask(server.connect(), 7, wanted(-1), wanted(-2), wanted(-1, 3))]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_disk_that_fails_during_a_look_up_is_told(server: InProcess) -> None:
    line = server.connect()
    server.disk.fault = lambda call: OSError(5, "EIO") if call.operation == "pread" else None
    (entry,) = ask(line, 7, wanted(NOW))
    assert (entry.error_code, entry.offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_a_request_for_many_partitions_has_few_files_open_at_a_time(server: InProcess) -> None:
    line = server.connect()
    names = [f"many-{number}" for number in range(100)]
    for name in names:
        line.create_topic(name)
        line.produce(name, b"v")
    for partition in server.broker.store.partitions.values():
        sync = take_sync(partition.log)
        if sync is not None:
            sync.run()
            complete_sync(partition.log, sync)
        partition.log.active.release_files()
    server.lanes.held.add("lookups")
    before = server.disk.open_files
    topics = [REQUEST.ListOffsetsTopic(name=name, partitions=[wanted(NOW)]) for name in names]
    line.ask(KEY, 7, topics=topics)
    server.run()
    assert server.disk.open_files <= before + 40
    server.lanes.held.clear()
    server.run()
    answers = [(topic.name, topic.partitions[0].offset) for topic in line.answer(KEY, 7).topics]
    assert answers == [(name, 0) for name in names]
