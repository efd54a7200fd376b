"""A disk that is really full, and the ways to get room on it through the log: deletions, retention, DeleteRecords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.server.test_broker_full_disk import KAFKA_STORAGE_ERROR, all_offsets, create, events
from tests.unit.server.test_broker_recreated_topics import delete_topic
from tests.worlds.broker_world import InProcess, Line

from duramen.errors import ErrorCode
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.files.ballast import BALLAST
from duramen.wire.messages import API

SIZE = 1 << 18
SETTINGS = {
    "duramen_journal_max_bytes": str(1 << 20),
    "duramen_journal_part_bytes": str(1 << 17),
    "duramen_journal_bypass_bytes": str(1 << 15),
    "duramen_reserve_bytes": str(SIZE),
}
BIG = 20
"""Records of the topic that makes room."""


def test_the_reserve_is_there_before_anybody_can_fill_the_disk() -> None:
    """A fast producer fills a small volume within the first second, behind which nothing could make room."""
    disk = CrashDisk()
    server = InProcess(disk, **SETTINGS)
    server.connect().create_topic("t")
    assert disk.exists(f"/data/{BALLAST}")


class FullWorld:
    """A node with a topic of some size and another one; from `fill` on nothing fits any more."""

    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.server = InProcess(self.disk, **SETTINGS)
        self.line = self.server.connect()
        self.line.create_topic("big", internal_segment_bytes="100000", retention_ms="900000")
        self.line.create_topic("small", retention_ms="-1")
        for number in range(BIG):
            assert self.line.produce("big", bytes([number]) * 40_000).error_code == 0
        assert self.line.produce("small", b"0").error_code == 0
        self.server.pass_ms(70_000)
        assert self.disk.exists(f"/data/{BALLAST}")

    def fill(self) -> None:
        """What somebody else writes takes the last of it; the next write finds no room."""
        self.disk.capacity = self.disk.used
        refused = self.line.produce("small", b"1")
        assert refused.error_code == KAFKA_STORAGE_ERROR
        assert "directory-full" in events(self.server)

    def start_of_big(self) -> int:
        partition = self.server.broker.partitions.find("big", 0)
        assert partition is not None
        return partition.log.start_offset

    def assert_takes_writes(self, offset: int) -> None:
        """Again, and keeps what it takes, and its reserve is back."""
        answer = self.line.produce("small", b"more")
        assert (answer.error_code, answer.base_offset) == (0, offset)
        assert "directory-failed" not in events(self.server)
        assert self.server.broker.store.directories[0].journal.no_room is None
        assert self.disk.exists(f"/data/{BALLAST}")
        for crash in (self.disk.kill, self.disk.power_cut):
            crash()
            self.disk.power_on()
            server = InProcess(self.disk, **SETTINGS)
            assert all_offsets(server.connect(), "small") == list(range(offset + 1))
            assert not {"damage", "partition-offline"} & set(events(server))


def configure(line: Line, topic: str, validate_only: bool = False, **settings: str) -> int:
    message = API[44].request
    configs = [
        message.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = message.AlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
    return int(line.call(44, 1, resources=[resource], validate_only=validate_only).responses[0].error_code)


def delete_records(line: Line, topic: str, offset: int) -> Any:
    request = API[21].request
    wanted = request.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [request.DeleteRecordsTopic(name=topic, partitions=[wanted])]
    return line.call(21, 2, topics=topics, timeout_ms=1000).topics[0].partitions[0]


def test_a_topic_that_is_deleted_on_a_full_disk_makes_room() -> None:
    world = FullWorld()
    world.fill()
    assert create(world.line, "new") == KAFKA_STORAGE_ERROR
    delete_topic(world.line, "big")
    assert world.line.produce("small", b"refused").error_code == KAFKA_STORAGE_ERROR
    world.server.pass_ms(70_000)
    world.assert_takes_writes(2)


def test_a_shorter_retention_that_is_set_on_a_full_disk_makes_room() -> None:
    world = FullWorld()
    world.fill()
    assert configure(world.line, "big", retention_bytes="100000") == 0
    world.server.pass_ms(400_000)
    assert 0 < world.start_of_big() < BIG
    world.assert_takes_writes(2)


@pytest.mark.parametrize("producers", [False, True])
def test_what_gets_too_old_makes_room_on_a_full_disk(producers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = FullWorld()
    if producers:
        monkeypatch.setattr("duramen.storage.segment.producer_state.ProducerStates.__len__", lambda self: 1)
    world.fill()
    world.server.pass_ms(1_000_000)
    assert world.start_of_big() == BIG
    world.line = world.server.connect()
    world.assert_takes_writes(2)


def test_a_node_that_starts_on_a_full_disk_serves_reads_and_keeps_its_last_room_for_deletions() -> None:
    world = FullWorld()
    for room in (1 << 30, 150_000):
        world.disk.kill()
        world.disk.power_on()
        world.disk.remove(f"/data/{BALLAST}")  # given up before
        world.disk.capacity = world.disk.used + room
        world.server = InProcess(world.disk, **(SETTINGS | {"duramen_reserve_bytes": str(2 * SIZE)}))
    world.line = world.server.connect()
    assert world.line.produce("small", b"refused").error_code == KAFKA_STORAGE_ERROR
    assert all_offsets(world.line, "small") == [0]
    assert not world.disk.exists(f"/data/{BALLAST}")
    delete_topic(world.line, "big")
    world.server.pass_ms(70_000)
    world.assert_takes_writes(1)


@pytest.mark.parametrize("room", [-1, 0, 300, 1000])
def test_a_stop_on_a_full_disk_is_a_clean_one(room: int) -> None:
    """-1: it was known to be full; else what is left is enough for some of what a stop writes."""
    world = FullWorld()
    if room < 0:
        world.fill()
    else:
        world.disk.capacity = world.disk.used + room
    stopped: list[bool] = []
    world.server.broker.stop(lambda: stopped.append(True))
    world.server.pass_ms(10_000)
    assert stopped
    assert "stop-failed" not in events(world.server)
    world.disk.power_cut()
    world.disk.power_on()
    server = InProcess(world.disk, **SETTINGS)
    assert server.broker.store.directories[0].clean_start
    assert all_offsets(server.connect(), "small") == ([0, 1] if room < 0 else [0])


def test_records_that_are_deleted_on_a_full_disk_make_room() -> None:
    world = FullWorld()
    world.fill()
    answer = delete_records(world.line, "big", BIG - 1)
    assert (answer.error_code, answer.low_watermark) == (0, BIG - 1)
    world.server.pass_ms(400_000)
    world.assert_takes_writes(2)


WAYS: dict[str, Callable[[FullWorld], Any]] = {
    "a topic is deleted": lambda world: delete_topic(world.line, "big"),
    "retention is made shorter": lambda world: configure(world.line, "big", retention_bytes="100000"),
    "records are deleted": lambda world: delete_records(world.line, "big", BIG - 1),
    "records get too old": lambda world: world.server.pass_ms(1_000_000),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("producers", [False, True])
def test_what_makes_room_may_be_the_first_that_finds_none(
    way: str, producers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FullWorld()
    if producers:
        monkeypatch.setattr("duramen.storage.segment.producer_state.ProducerStates.__len__", lambda self: 1)
    world.disk.capacity = world.disk.used
    WAYS[way](world)
    world.server.pass_ms(400_000)
    world.line = world.server.connect()
    world.assert_takes_writes(1)


def test_what_makes_room_finds_some_for_the_journal() -> None:
    """Its last part is full, and the disk has no room for another, which nobody else was told of."""
    world = FullWorld()
    world.disk.capacity = world.disk.used
    journal = world.server.broker.store.directories[0].journal
    while journal._free:  # as where it could not grow
        part = journal._free.pop()
        part.file.close()
    journal._current.position = journal._current.limit
    world.disk.capacity = world.disk.used + 10_000
    assert world.line.produce("small", b"refused").error_code == KAFKA_STORAGE_ERROR
    delete_topic(world.line, "big")
    world.server.pass_ms(70_000)
    world.assert_takes_writes(1)


def test_what_makes_room_may_need_another_segment_of_the_metadata() -> None:
    world = FullWorld()
    world.disk.capacity = world.disk.used
    world.server.broker.controller.partition.log._roll_after_ms = -1
    delete_topic(world.line, "big")
    world.server.pass_ms(70_000)
    world.assert_takes_writes(1)


def test_the_reserve_stays_where_nothing_is_changed() -> None:
    world = FullWorld()
    world.fill()
    assert configure(world.line, "big", validate_only=True, retention_bytes="1") == 0
    assert configure(world.line, "big", retention_bytes="many") == ErrorCode.INVALID_CONFIG
    assert configure(world.line, "none", retention_bytes="1") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(AssertionError):
        delete_topic(world.line, "none")
    assert delete_records(world.line, "big", BIG + 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    topic = API[19].request.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    answer = world.line.call(19, 7, topics=[topic], timeout_ms=1000, validate_only=True)
    assert answer.topics[0].error_code == 0
    more = API[37].request.CreatePartitionsTopic(name="big", count=3, assignments=None)
    answer = world.line.call(37, 3, topics=[more], timeout_ms=1000, validate_only=True)
    assert answer.results[0].error_code == 0
    assert world.disk.exists(f"/data/{BALLAST}")
    assert not world.server.broker.store.directories[0].ballast.lacking


def topics(line: Line) -> list[str]:
    return [topic.name for topic in line.call(3, 12, topics=None).topics]


def answered_deletion(world: FullWorld) -> bool:
    try:
        world.line.ask(20, 6, topics=[API[20].request.DeleteTopicState(name="big")], timeout_ms=1000)
        world.server.run()
        world.server.pass_ms(70_000)
    except NodeDied:
        pass
    answer = world.line.answer(20, 6)
    return answer is not None and answer.responses[0].error_code == 0


@pytest.mark.parametrize(("how", "first"), [("kill", 1), ("cut", 3)])
def test_a_crash_in_a_deletion_on_a_full_disk_loses_nothing_and_leaves_a_way_to_room(how: str, first: int) -> None:
    """At any disk call from the request until its files are gone; here at every fifth of them."""
    answers = set()
    for number in range(first, 1000, 5):
        world = FullWorld()
        world.disk.torn = number % 2 == 0
        if number % 3:
            world.fill()
        else:
            world.disk.capacity = world.disk.used
        setattr(world.disk, f"{how}_at", world.disk.calls + number)
        answered = answered_deletion(world)
        if world.disk.powered:
            break
        answers.add(answered)
        world.disk.power_on()
        world.server = InProcess(world.disk, **SETTINGS)
        world.line = world.server.connect()
        if "big" in topics(world.line):
            assert not answered
            delete_topic(world.line, "big")
        world.server.pass_ms(70_000)
        world.line = world.server.connect()
        assert not [path for path in world.disk.contents() if "/big-0" in path]
        found = all_offsets(world.line, "small")
        assert found in ([0], [0, 1])
        world.assert_takes_writes(len(found))
    assert answers == {True, False}


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_what_comes_at_once_when_the_disk_gets_full_leaves_enough_of_the_reserve(durability: str) -> None:
    """Retention is journaled behind it: more than the reserve would have waited for room for ever."""
    world = FullWorld()
    lines = [world.server.connect() for _ in range(12)]
    for number in range(12):
        world.line.create_topic(f"t{number}", **{"duramen.ack.durability": durability})
    world.server.pass_ms(2_000)
    world.disk.capacity = world.disk.used + 100_000
    for number, line in enumerate(lines):
        line.ask_produce(f"t{number}", bytes(40_000))
    world.server.pass_ms(500)
    answers = [line.produced().error_code for line in lines]
    assert KAFKA_STORAGE_ERROR in answers
    assert world.server.broker.store.directories[0]._queue.unwritten <= SIZE // 2
    world.server.pass_ms(1_000_000)
    assert world.start_of_big() == BIG
    world.line = world.server.connect()
    world.assert_takes_writes(1)


def test_a_batch_that_the_reserve_could_not_hold_is_refused_before_it_is_queued() -> None:
    world = FullWorld()
    world.disk.capacity = world.disk.used + SIZE
    assert world.line.produce("small", bytes(SIZE // 2 - 100)).error_code == 0
    assert world.line.produce("small", bytes(SIZE // 2 + 100)).error_code == KAFKA_STORAGE_ERROR
    assert world.line.produce("small", b"fits").error_code == 0
    assert world.disk.exists(f"/data/{BALLAST}")
    assert "directory-full" not in events(world.server)
    world.disk.capacity = world.disk.used + 3 * SIZE
    assert world.line.produce("small", bytes(SIZE // 2 + 100)).error_code == 0
