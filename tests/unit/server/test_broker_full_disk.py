"""A whole broker whose disk is full for a while: what is refused, what goes on, and that it needs no restart."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.broker_world import NOW, InProcess

from duramen.errors import ErrorCode
from duramen.server.metrics.exposition import BrokerCollector
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.wire.batch import batches, build_batch
from duramen.wire.messages import API

KAFKA_STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
FULL = OSError(errno.ENOSPC, "No space left on device")

Which = Callable[[DiskCall], bool]


def fill(disk: CrashDisk, which: Which, failure: OSError = FULL) -> None:
    """From now on these calls find no room."""
    disk.fault = lambda call: failure if which(call) else None


def offsets(entry: Any) -> list[int]:
    assert entry.error_code == 0
    return [header.base_offset for _, header in batches(memoryview(entry.records or b""))]


def all_offsets(line: Any, topic: str) -> list[int]:
    found: list[int] = []
    while more := offsets(line.fetch(topic, found[-1] + 1 if found else 0)):
        found += more
    return found


def events(server: InProcess) -> list[str]:
    return [event for event, _ in server.events]


def create(line: Any, name: str, partitions: int = 1) -> int:
    topic = API[19].request.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return line.call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code


def in_topic(name: str, *operations: str) -> Which:
    return lambda call: call.operation in operations and f"/{name}-" in call.path


def offline(server: InProcess) -> dict[str, float]:
    """duramen_offline_partitions by directory."""
    (family,) = [each for each in BrokerCollector(server.broker).collect() if each.name == "duramen_offline_partitions"]
    return {sample.labels["directory"]: sample.value for sample in family.samples}


MAKING = [
    ("make_directories", ""),
    ("open", "partition.metadata"),
    ("pwritev", "partition.metadata"),
    ("sync", "partition.metadata"),
    ("rename", "leader-epoch-checkpoint"),
    ("open", ".log"),
    ("sync", ".log"),
    ("sync_directory", ""),
]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(("operation", "name"), MAKING)
def test_a_topic_that_finds_no_room_is_not_there_and_the_node_goes_on(operation: str, name: str, number: int) -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    made = in_topic("new", operation)
    fill(disk, lambda call: made(call) and name in call.path, OSError(number, "no room"))
    assert create(line, "new", 3) == KAFKA_STORAGE_ERROR
    server.run()
    assert "directory-failed" not in events(server)
    assert [topic.name for topic in line.call(3, 12, topics=None).topics] == ["t"]
    assert not [path for path in disk.list_directory("/data") if path.startswith("new")]
    assert line.produce("t", b"a").error_code == 0
    disk.fault = None
    assert create(line, "new", 3) == 0
    assert line.produce("new", b"b").error_code == 0
    # Neither a leftover nor a deletion meets the topic that has the name now.
    disk.kill()
    disk.power_on()
    assert offsets(InProcess(disk).connect().fetch("new", 0)) == [0]


def test_after_a_failed_sync_of_the_data_directory_nobody_knows_what_is_in_it() -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    fill(disk, lambda call: (call.operation, call.path) == ("sync_directory", "/data"))
    assert create(line, "new") == KAFKA_STORAGE_ERROR
    assert "directory-failed" in events(server)
    assert line.produce("t", b"a").error_code == KAFKA_STORAGE_ERROR


def test_partitions_that_a_topic_was_to_get_are_made_when_there_is_room() -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    assert line.produce("t", b"kept").error_code == 0
    fill(disk, in_topic("t", "make_directories"))
    more = API[37].request.CreatePartitionsTopic(name="t", count=3, assignments=None)
    answer = line.call(37, 3, topics=[more], timeout_ms=1000, validate_only=False)
    assert answer.results[0].error_code == KAFKA_STORAGE_ERROR
    server.pass_ms(5000)
    assert [fields["partition"] for event, fields in server.events if event == "partition-offline"] == [1, 2]
    assert line.produce("t", b"also").error_code == 0
    assert offline(server) == {"": 2, "/data": 0}
    disk.fault = None
    server.pass_ms(2000)
    assert offline(server) == {"": 0, "/data": 0}
    partitions = line.call(3, 12, topics=None).topics[0].partitions
    assert [(each.partition_index, each.error_code) for each in partitions] == [(0, 0), (1, 0), (2, 0)]
    assert offsets(line.fetch("t", 0)) == [0, 1]


def test_the_size_of_the_volume_is_told_and_what_is_left_of_it() -> None:
    disk = CrashDisk(capacity=1 << 30)
    disk.open("/of somebody else", create=True, write=True).pwritev([bytes(1 << 20)], 0)
    line = InProcess(disk).connect()
    told = line.call(35, 4, topics=None).results[0]
    assert (told.total_bytes, told.usable_bytes) == (1 << 30, (1 << 30) - disk.used)


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_writes_that_find_no_room_are_refused_until_there_is_some(durability: str) -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line, waiting = server.connect(), server.connect()
    line.create_topic("t", **{"duramen.ack.durability": durability})
    line.create_topic("other")
    assert line.produce("t", b"kept").error_code == 0
    waiting.ask_fetch("t", 1, wait=600_000)
    fill(disk, lambda call: call.operation == "pwritev" and call.path.endswith(".log"))
    line.ask_produce("t", b"unknown")
    server.run()
    answer = line.produced()
    assert (answer.error_code, answer.error_message.count("unknown")) == (KAFKA_STORAGE_ERROR, 1)
    for _ in range(3):
        refused = line.produce("other", b"refused")
        assert (refused.error_code, refused.error_message.count("unknown")) == (KAFKA_STORAGE_ERROR, 0)
        assert create(line, "new") == KAFKA_STORAGE_ERROR
        assert offsets(line.fetch("t", 0)) == [0]
        server.pass_ms(70_000)
    assert waiting.fetched() is None
    assert line.call(35, 4, topics=None).results[0].error_code == 0
    (told,) = line.call(10020, 0).directories
    assert (told.error_code, "No space left" in told.error_message) == (0, True)
    assert events(server).count("directory-full") == 1
    disk.fault = None
    server.pass_ms(3000)
    assert offsets(waiting.fetched()) == [1], "its outcome was that it was stored"
    assert line.produce("other", b"first").base_offset == 0
    assert line.produce("t", b"more").base_offset == 2
    assert create(line, "new") == 0
    assert "directory-has-room" not in events(server), "the next write might be a larger one"
    server.pass_ms(10_000)
    assert events(server).count("directory-has-room") == 1
    assert "directory-failed" not in events(server)
    disk.kill()
    disk.power_on()
    line = InProcess(disk).connect()
    assert offsets(line.fetch("t", 0)) == [0, 1, 2]
    assert offsets(line.fetch("other", 0)) == [0]


SIDE_FILES = [
    ".index",
    ".timeindex",
    ".sealing.tmp",
    "leader-epoch-checkpoint.tmp",
    "duramen-checkpoint.tmp",
    ".seal.tmp",
]


@pytest.mark.parametrize("name", SIDE_FILES)
def test_a_checkpoint_without_room_for_a_side_file_is_tried_again(name: str) -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="5000")
    fill(disk, lambda call: call.operation in ("pwritev", "open") and call.path.endswith(name))
    for number in range(12):
        line.produce("t", bytes([number]) * 1000)
        server.pass_ms(10_000)
    assert "directory-failed" not in events(server)
    disk.fault = None
    server.pass_ms(130_000)
    directory = server.broker.store.directories[0]
    assert directory.journal.no_room is None
    stored = line.produce("t", b"last").base_offset
    server.pass_ms(70_000)
    log = next(log for log in directory.logs.values() if log.tp.topic == "t")
    assert log.recovery_point == log.end_offset == stored + 1
    assert all(segment.sealed for segment in log.segments[:-1])
    kept = all_offsets(line, "t")
    disk.power_cut()
    disk.power_on()
    server = InProcess(disk)
    assert all_offsets(server.connect(), "t") == kept
    assert not [fields for event, fields in server.events if event in ("damage", "partition-offline")]


def test_a_sync_that_finds_no_room_fails_the_directory() -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    assert line.produce("t", b"a").error_code == 0
    fill(disk, lambda call: call.operation == "sync" and call.path.endswith("/t-0/" + f"{0:020}.log"))
    server.pass_ms(70_000)  # a checkpoint
    disk.fault = None
    server.pass_ms(70_000)
    assert "directory-failed" in events(server)
    assert line.produce("t", b"b").error_code == KAFKA_STORAGE_ERROR
    assert offsets(line.fetch("t", 0)) == [0]


def test_a_stop_waits_for_no_room_and_loses_nothing_that_was_acknowledged() -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    assert line.produce("t", b"kept").error_code == 0
    fill(disk, lambda call: call.operation == "pwritev" and call.path.endswith(".log"))
    assert line.produce("t", b"unknown").error_code == KAFKA_STORAGE_ERROR
    stopped: list[bool] = []
    server.broker.stop(lambda: stopped.append(True))
    server.pass_ms(60_000)
    assert stopped
    disk.fault = None
    disk.kill()
    disk.power_on()
    assert offsets(InProcess(disk).connect().fetch("t", 0)) == [0]


def ask_produce_to_each(line: Any, topic: str, partitions: int) -> None:
    """One batch for each partition."""
    request = API[0].request
    records = build_batch([(b"k", b"v", (), NOW)])
    data = [request.PartitionProduceData(index=index, records=records) for index in range(partitions)]
    topic_data = [request.TopicProduceData(name=topic, partition_data=data)]
    line.ask(0, 9, acks=-1, timeout_ms=30_000, topic_data=topic_data)


def answers(line: Any) -> set[int]:
    """Their error codes."""
    return {answer.error_code for answer in line.answer(0, 9).responses[0].partition_responses}


def produce_to_each(server: InProcess, line: Any, topic: str, partitions: int) -> set[int]:
    """The error codes of one batch for each partition."""
    ask_produce_to_each(line, topic, partitions)
    server.run()
    return answers(line)


@pytest.mark.parametrize("failure", [FULL, OSError(errno.EMFILE, "Too many open files")], ids=["room", "files"])
def test_many_partitions_make_the_end_of_a_full_disk_no_later(failure: OSError) -> None:
    """A round that is spread over twenty seconds would refuse everything as long, with room or not."""
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    assert create(line, "t", 100) == 0
    assert produce_to_each(server, line, "t", 100) == {0}
    fill(disk, in_topic("t", "pwritev"), failure)
    ask_produce_to_each(line, "t", 100)
    server.run()
    if failure is FULL:
        assert answers(line) == {KAFKA_STORAGE_ERROR}
    assert produce_to_each(server, server.connect(), "t", 100) == {KAFKA_STORAGE_ERROR}
    disk.fault = None
    server.pass_ms(3000)
    if failure is not FULL:
        assert answers(line) == {0}, "they waited for files, and not for long"
    assert produce_to_each(server, line, "t", 100) == {0}
