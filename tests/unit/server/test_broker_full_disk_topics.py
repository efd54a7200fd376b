"""Topics that are deleted, made and changed while a disk is full: the only one, or one of two."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.server.test_broker_full_disk import FULL, KAFKA_STORAGE_ERROR, create, fill, offsets
from tests.unit.server.test_broker_recreated_topics import delete_topic
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode, KafkaError
from duramen.model import SINK_STATE_TOPIC
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.journal.format import EntryKind
from duramen.storage.journal.journal import Journal
from duramen.storage.segment.segment import log_name
from duramen.wire.messages import API

LARGE = bytes(1_500_000)
"""More than a group takes into the journal: it only says that the segment has it."""


def two_directories(disk: CrashDisk) -> tuple[InProcess, LogDirectory, list[str]]:
    """A node, the directory without the metadata log, and two topics in that."""
    server = InProcess(disk, log_dirs="/a,/b")
    line = server.connect()
    for number in range(6):
        line.create_topic(f"t{number}", max_message_bytes="2000000")
    second = server.broker.store.directories[1]
    topics = sorted(log.tp.topic for log in second.logs.values() if log.tp.topic.startswith("t"))
    assert len(topics) >= 2
    assert not [log for log in second.logs.values() if log.tp.topic == "__cluster_metadata"]
    return server, second, topics[:2]


@pytest.mark.parametrize("may_delete", [True, False])
def test_a_topic_that_waits_for_room_takes_nothing_with_it_when_it_is_deleted(
    may_delete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = CrashDisk()
    server, full, (kept, gone) = two_directories(disk)
    line = server.connect()
    assert line.produce(kept, b"1").error_code == 0
    fill(disk, lambda call: call.operation == "pwritev" and call.path.startswith("/b/t") and call.path.endswith(".log"))
    assert line.produce(gone, LARGE).error_code == KAFKA_STORAGE_ERROR
    append = Journal.append

    def refuse(self: Journal, kind: int, *args: Any) -> int:
        if kind == EntryKind.DELETE:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no room for another journal part")
        return append(self, kind, *args)

    if not may_delete:
        monkeypatch.setattr(Journal, "append", refuse)
    delete_topic(line, gone)
    server.pass_ms(10_000)
    # What frees space does not wait for space.
    assert full.journal.has_pending is not may_delete
    assert (full.journal.no_room is None) is may_delete
    monkeypatch.undo()
    disk.fault = None
    server.pass_ms(3000)
    assert line.produce(kept, b"2").error_code == 0
    assert full.journal.durable_lsn == full.journal.last_lsn
    disk.power_cut()
    disk.power_on()
    server = InProcess(disk, log_dirs="/a,/b")
    assert offsets(server.connect().fetch(kept, 0)) == [0, 1]
    assert not [name for name in disk.list_directory("/b") if name == f"{gone}-0"]
    assert "damage" not in dict(server.events)


def test_nothing_is_acknowledged_to_a_new_topic_that_may_be_deleted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with more partitions than are made at once."""
    monkeypatch.setattr("duramen.partition.metadata.partition_creation.CREATED_AT_ONCE", 1)
    disk = CrashDisk()
    server = InProcess(disk)
    line, admin = server.connect(), server.connect()
    topic = API[19].request.CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    for room in (False, True):
        fill(disk, lambda call: call.operation == "make_directories" and call.path.endswith("/new-1"))
        disk.latency = lambda call: hold(server, call.path)
        admin.ask(19, 7, topics=[topic], timeout_ms=1000)
        server.run()
        disk.latency = None
        assert server.broker.partitions.find("new", 0) is not None
        assert line.produce("new", b"a").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if room:
            disk.fault = None
        server.lanes.held.clear()
        server.run()
        expected = 0 if room else KAFKA_STORAGE_ERROR
        assert admin.answer(19, 7).topics[0].error_code == expected
    assert line.produce("new", b"a").base_offset == 0


def hold(server: InProcess, path: str) -> float:
    """The next partition is not made before the lane is let go."""
    if path.endswith("/data/new-0/00000000000000000000.log"):
        server.lanes.held.add("checkpoint")
    return 0.0


def test_a_topic_of_the_sinks_that_finds_no_room_is_made_later() -> None:
    """It cannot be deleted again."""
    disk = CrashDisk()
    server = InProcess(disk)
    fill(disk, lambda call: call.operation == "make_directories" and SINK_STATE_TOPIC in call.path)
    controller = server.broker.controller
    answers: list[Any] = []
    controller.create([controller.new_topic(SINK_STATE_TOPIC)], answers.append)
    server.pass_ms(5000)
    assert [each.result.error for each in answers[0]] == [KAFKA_STORAGE_ERROR]
    disk.fault = None
    server.pass_ms(2000)
    partition = server.broker.partitions.find(SINK_STATE_TOPIC, 0)
    assert partition is not None
    assert partition.replication.is_leader


def test_new_topics_go_where_there_is_room() -> None:
    disk = CrashDisk()
    server, full, (waiting, _) = two_directories(disk)
    line = server.connect()
    fill(disk, lambda call: call.operation in ("pwritev", "make_directories") and call.path.startswith("/b/"))
    assert line.produce(waiting, b"1").error_code == KAFKA_STORAGE_ERROR
    for number in range(3):
        assert create(line, f"new{number}") == 0
        assert line.produce(f"new{number}", b"1").error_code == 0
    assert full.journal.no_room is not None


@pytest.mark.parametrize("what", [".log", ".index"])
def test_a_topic_that_is_to_become_stable_waits_for_room(what: str) -> None:
    disk = CrashDisk()
    server, full, (topic, _) = two_directories(disk)
    line = server.connect()

    def configure(durability: str) -> None:
        wanted = API[44].request.AlterableConfig(name="duramen.ack.durability", config_operation=0, value=durability)
        resource = API[44].request.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[wanted])
        assert line.call(44, 1, resources=[resource], validate_only=False).responses[0].error_code == 0

    configure("page-cache")
    assert line.produce(topic, bytes(10_000)).error_code == 0
    assert line.produce(topic, bytes(10_000)).error_code == 0
    fill(disk, lambda call: call.operation == "pwritev" and call.path.startswith("/b/t") and call.path.endswith(what))
    answer = line.produce(topic, b"waits")
    configure("stable")
    server.pass_ms(5000)
    partition = server.broker.partitions.find(topic, 0)
    assert partition is not None
    assert full.journal.failed is None
    assert not partition.is_stable
    disk.fault = None
    server.pass_ms(5000)
    assert partition.is_stable
    assert line.produce(topic, b"last").base_offset == 3
    assert answer.error_code == (KAFKA_STORAGE_ERROR if what == ".log" else 0)
    disk.power_cut()
    disk.power_on()
    assert offsets(InProcess(disk, log_dirs="/a,/b").connect().fetch(topic, 0)) == [0, 1, 2, 3]


def test_segments_that_find_no_room_for_another_name_go_later() -> None:
    """A directory may have to grow for it, and what retention removes is what makes room."""
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t", internal_segment_bytes="5000", retention_bytes="1", file_delete_delay_ms="1000")
    for number in range(12):
        assert line.produce("t", bytes([number]) * 2000).base_offset == number
    fill(disk, lambda call: call.operation == "rename" and call.path.endswith(".deleted"))
    server.pass_ms(700_000)
    (directory,) = server.broker.store.directories
    assert directory.journal.failed is None
    assert disk.exists("/data/t-0/" + log_name(0))
    disk.fault = None
    server.pass_ms(5000)
    left = [name for name in disk.list_directory("/data/t-0") if name.endswith((".log", ".deleted"))]
    assert left == [log_name(10)]


def test_a_full_directory_is_not_tried_at_every_commit_of_another() -> None:
    """Each try writes all that waits, as far as there is room."""
    disk = CrashDisk()
    server, _, (waiting, _) = two_directories(disk)
    line = server.connect()
    tries: list[DiskCall] = []

    def fault(call: DiskCall) -> OSError | None:
        if call.operation != "pwritev" or not call.path.startswith("/b/t"):
            return None
        tries.append(call)
        return FULL

    disk.fault = fault
    assert line.produce(waiting, LARGE).error_code == KAFKA_STORAGE_ERROR
    assert create(line, "other") == 0
    for _ in range(50):
        assert line.produce("other", b"1").error_code == 0
    assert len(tries) < 5
    disk.fault = None
    server.pass_ms(3000)
    assert line.produce(waiting, b"1").base_offset == 1
