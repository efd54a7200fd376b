"""A whole broker whose disk is slow, cold, full or failing: what its clients are told, and that it goes on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode, KafkaError
from duramen.model import METADATA_TOPIC
from duramen.sim.world.disk import CrashDisk, CrashFile
from duramen.storage.read.tail_cache import TailCache
from duramen.storage.segment.corruption import remedy_of
from duramen.wire.batch import batches
from duramen.wire.messages import API

KAFKA_STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def offsets(entry: Any) -> list[int]:
    return [header.base_offset for _, header in batches(memoryview(entry.records or b""))]


def test_a_failed_sync_of_the_data_directory_is_forgotten_by_nobody() -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    assert line.produce("t", b"a").error_code == 0
    disk.fault = lambda call: OSError(5, "lost") if (call.operation, call.path) == ("sync_directory", "/data") else None
    with pytest.raises(OSError, match="lost"):
        # As when the journal grows, where a failure is none: it goes on with the parts it has.
        server.broker.store.directories[0].journal.maker.make(1 << 16)
    disk.fault = None
    assert line.produce("t", b"b").error_code == 0
    server.pass_ms(70_000)  # a checkpoint, which relies on names in the same directory
    assert "directory-failed" in dict(server.events)
    assert line.produce("t", b"c").error_code == KAFKA_STORAGE_ERROR
    assert offsets(line.fetch("t", 0)) == [0, 1]


def test_a_metadata_log_that_cannot_be_read_for_a_while_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TailCache, "add", lambda *batches: None)  # then it is read from the file
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    disk.fault = lambda call: OSError(5, "lost") if call.operation == "pread" and METADATA_TOPIC in call.path else None
    topic = API[19].request.CreatableTopic(name="later", num_partitions=1, replication_factor=1)
    creator = server.connect()
    creator.ask(19, 7, topics=[topic], timeout_ms=60_000)
    server.pass_ms(30_000)
    assert creator.answer(19, 7) is None
    assert [event for event, _ in server.events if event.startswith("metadata-")] == ["metadata-not-applied"]
    assert line.produce("t", b"a").error_code == 0
    disk.fault = None
    server.pass_ms(1000)
    assert creator.answer(19, 7).topics[0].error_code == 0
    assert line.produce("later", b"a").error_code == 0


def test_nothing_is_acknowledged_or_shown_before_it_is_synced() -> None:
    server = InProcess()
    producer, consumer = server.connect(), server.connect()
    producer.create_topic("t")
    server.lanes.held.add("journal")
    producer.ask_produce("t", b"a", timeout_ms=30_000)
    consumer.ask_fetch("t", 0, wait=30_000)
    server.pass_ms(1000)
    assert producer.produced() is None
    assert consumer.fetched() is None
    server.lanes.held.clear()
    server.run()
    assert producer.produced().base_offset == 0
    assert offsets(consumer.fetched()) == [0]


def test_a_produce_that_takes_too_long_is_told_that_the_outcome_is_unknown() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    server.lanes.held.add("journal")
    line.ask_produce("t", b"a", timeout_ms=1500)
    server.pass_ms(1300)
    assert line.produced() is None
    server.pass_ms(400)
    assert line.produced().error_code == ErrorCode.REQUEST_TIMED_OUT
    server.lanes.held.clear()
    server.run()
    assert line.produced() is None, "one request, one reply"
    assert offsets(line.fetch("t", 0)) == [0], "the outcome was that it was stored"


@pytest.mark.parametrize(("operation", "errno"), [("sync", 5), ("sync", 28), ("pwritev", 5)])
def test_a_disk_that_fails_refuses_writes_and_serves_reads(operation: str, errno: int) -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line, waiting = server.connect(), server.connect()
    line.create_topic("t")
    assert line.produce("t", b"kept").error_code == 0
    waiting.ask_fetch("t", 1, wait=60_000)
    disk.fault = lambda call: OSError(errno, "the disk is gone") if call.operation == operation else None
    line.ask_produce("t", b"first")
    line.ask_produce("t", b"second")
    server.run()
    assert [line.produced().error_code for _ in range(2)] == [KAFKA_STORAGE_ERROR] * 2
    assert line.produce("t", b"refused").error_code == KAFKA_STORAGE_ERROR
    entry = line.fetch("t", 0)
    assert (entry.error_code, offsets(entry)) == (0, [0])
    assert waiting.fetched() is None, "a reader of what does not come goes on waiting"
    reply = line.call(3, 12, topics=None)
    assert [topic.name for topic in reply.topics] == ["t"]
    described = line.call(35, 4, topics=None).results[0]
    assert (described.error_code, described.topics) == (KAFKA_STORAGE_ERROR, [])
    assert (described.total_bytes, described.usable_bytes) == (-1, -1)
    told = [fields["remedy"] for event, fields in server.events if event == "directory-failed"]
    assert ["free space" in remedy for remedy in told] == [errno == 28] * len(told)
    assert told
    without_acks = server.connect()
    without_acks.ask_produce("t", b"refused", acks=0)
    assert without_acks.closed
    # Nothing that was acknowledged is lost, and the next process goes on.
    disk.fault = None
    stopped: list[bool] = []
    server.broker.stop(lambda: stopped.append(True))
    server.run()
    assert stopped
    assert server.broker.unclean
    disk.power_cut()
    disk.power_on()
    line = InProcess(disk).connect()
    entry = line.fetch("t", 0)
    assert (entry.error_code, offsets(entry)[0]) == (0, 0)
    assert line.produce("t", b"again").error_code == 0


@pytest.mark.parametrize("number", [5, 28])
def test_a_full_volume_is_told_as_one_though_the_error_of_the_disk_is_the_cause_of_ours(number: int) -> None:
    failure = KafkaError(KAFKA_STORAGE_ERROR, "the journal cannot be written")
    failure.__cause__ = OSError(number, "")
    assert ("free space" in remedy_of(failure)) == (number == 28)


def test_admin_requests_on_a_failed_disk_are_answered() -> None:
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"x")
    disk.fault = lambda call: OSError(5, "EIO") if call.operation == "sync" else None
    line.produce("t", b"lost")
    request = API[19].request.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    line.ask(19, 7, topics=[request], timeout_ms=1000)
    server.pass_ms(60_000)
    reply = line.answer(19, 7)
    assert reply is not None
    assert reply.topics[0].error_code not in (0, ErrorCode.UNKNOWN_SERVER_ERROR)
    state = API[20].request.DeleteTopicState(name="t")
    line.ask(20, 6, topics=[state], timeout_ms=1000)
    server.pass_ms(60_000)
    assert line.answer(20, 6).responses[0].error_code not in (0, ErrorCode.UNKNOWN_SERVER_ERROR)
    cut = API[21].request.DeleteRecordsPartition(partition_index=0, offset=1)
    topic = API[21].request.DeleteRecordsTopic(name="t", partitions=[cut])
    reply = line.call(21, 2, topics=[topic], timeout_ms=1000)
    assert reply.topics[0].partitions[0].error_code == KAFKA_STORAGE_ERROR
    assert offsets(line.fetch("t", 0)) == [0]
    line.ask(22, 4, transactional_id=None, transaction_timeout_ms=1000)
    server.pass_ms(60_000)
    assert line.answer(22, 4) is not None


def test_cold_bytes_are_read_elsewhere_and_replies_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashDisk()
    line = InProcess(disk).connect()
    line.create_topic("t")
    for _ in range(5):
        line.produce("t", b"x" * 1000)
    disk.kill()
    disk.power_on()
    monkeypatch.setattr(CrashFile, "pread_nowait", lambda self, buffer, offset: -1)
    server = InProcess(disk)
    line = server.connect()
    lanes = [f"cold-{number}" for number in range(4)]
    server.lanes.held.update(lanes)
    line.ask_fetch("t", 2)
    line.ask(3, 12, topics=[])
    server.run()
    assert line.fetched() is None
    other = server.connect()
    assert other.call(3, 12, topics=[]).topics == []
    server.lanes.held.clear()
    server.run()
    assert offsets(line.fetched()) == [2, 3, 4]
    assert line.answer(3, 12).topics == []
    assert offsets(line.fetch("t", 4)) == [4]


def test_one_reply_brings_only_so_many_cold_bytes_and_the_next_one_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashDisk()
    line = InProcess(disk).connect()
    names = [f"t{number}" for number in range(7)]
    for name in names:
        line.create_topic(name)
        line.produce(name, b"x" * 1_000_000)
    disk.kill()
    disk.power_on()
    monkeypatch.setattr(CrashFile, "resident", lambda self, offset, length: False)
    server = InProcess(disk)
    line = server.connect()
    request = API[1].request
    missing = names
    replies = 0
    while missing:
        part = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [request.FetchTopic(topic=name, partitions=[part]) for name in missing]
        line.ask(1, 12, max_wait_ms=0, min_bytes=1, max_bytes=50 << 20, topics=topics)
        server.run()
        got = []
        for topic in line.answer(1, 12).responses:
            assert topic.partitions[0].error_code == 0
            assert topic.partitions[0].high_watermark == 1
            if topic.partitions[0].records:
                assert offsets(topic.partitions[0]) == [0]
                got.append(topic.topic)
        assert got == missing[:4]
        missing = missing[4:]
        replies += 1
    assert replies == 2


def test_a_connection_that_ends_during_a_cold_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashDisk()
    line = InProcess(disk).connect()
    line.create_topic("t")
    line.produce("t", b"x" * 1000)
    disk.kill()
    disk.power_on()
    monkeypatch.setattr(CrashFile, "pread_nowait", lambda self, buffer, offset: -1)
    server = InProcess(disk)
    line = server.connect()
    server.lanes.held.update(f"cold-{number}" for number in range(4))
    line.ask_fetch("t", 0)
    server.run()
    for connection in list(server.broker.acceptor.connections):
        connection.close("test")
    server.lanes.held.clear()
    server.run()
    assert offsets(server.connect().fetch("t", 0)) == [0]


@pytest.mark.parametrize("version", [4, 12])
def test_damage_is_told_with_its_place_in_the_log_and_never_silent(version: int) -> None:
    disk = CrashDisk()
    line = InProcess(disk).connect()
    line.create_topic("t", internal_segment_bytes="5000")
    for _ in range(20):
        line.produce("t", b"x" * 1000)
    server = InProcess(_stopped(disk))
    log = next(log for log in server.broker.store.directories[0].logs.values() if log.tp.topic == "t")
    damaged = log.segments[1]
    file = disk.open(damaged.path, write=True)
    file.pwritev([b"\xff"], 500)
    file.close()
    line = server.connect()
    request = API[1].request
    part = request.FetchPartition(partition=0, fetch_offset=damaged.base_offset, partition_max_bytes=1 << 20)
    topic = request.FetchTopic(topic="t", partitions=[part])
    reply = line.call(1, version, max_wait_ms=0, min_bytes=1, topics=[topic])
    entry = reply.responses[0].partitions[0]
    assert (entry.error_code, entry.records or b"") == (ErrorCode.CORRUPT_MESSAGE, b"")
    told = [str(fields["error"]) for event, fields in server.events if event == "read-failed"]
    assert told
    assert damaged.path in told[0]
    assert f"first offset affected: {damaged.base_offset}" in told[0]
    assert offsets(line.fetch("t", 0)) == list(range(damaged.base_offset)), "what lies before is served"
    assert offsets(line.fetch("t", log.segments[2].base_offset))[0] == log.segments[2].base_offset


def _stopped(disk: CrashDisk) -> CrashDisk:
    disk.kill()
    disk.power_on()
    return disk
