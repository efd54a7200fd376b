"""A repair took batches out of the metadata log: the node starts, and gives nothing twice that somebody has."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.unit.server import broker_world
from tests.unit.server.broker_world import NOW, InProcess, Line

from duramen.cli import repair as repair_command
from duramen.cli.inspection import verify_directory
from duramen.cli.repair import apply, survey_directory
from duramen.errors import DuramenError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import LostTopic, RegainTopics
from duramen.machines.metadata.image import MetadataImage, TopicImage
from duramen.machines.metadata.topics import regain_topics
from duramen.model import FIRST_SINK_PRODUCER_ID, TopicPartition
from duramen.partition.lost_metadata import KEPT, least_producer_id
from duramen.sim.disk import Call, CrashDisk
from duramen.storage.repairing import DROPPED
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

PATH = "/data/__cluster_metadata-0/00000000000000000000.log"


def stopped(server: InProcess) -> CrashDisk:
    done: list[bool] = []
    server.broker.stop(lambda: done.append(True))
    while not done:
        server.run()
        server.pass_ms(100)
    return server.disk


def without(disk: CrashDisk, is_lost: Callable[[str, Any], bool]) -> int:
    """Damage each batch of the metadata log with such a record, and repair; how many there were."""
    data = disk.contents()[PATH]
    found = 0
    for position, header in batches(memoryview(data)):
        if header.is_control:
            continue
        view = memoryview(data)[position : position + header.size]
        if any(is_lost(*codec.decode(LogRecord(r.key, r.value))) for r in records(view, header, max_bytes=1 << 20)):
            found += 1
            for at in range(position + 20, position + header.size):
                disk.damage(PATH, at, 0x5A)
    repair = survey_directory(disk, "/data")
    assert [action.kind for action in repair.actions if action.kind == DROPPED]
    apply(disk, repair)
    return found


def delete(line: Line, name: str) -> None:
    request = API[20].request
    assert line.call(20, 6, topics=[request.DeleteTopicState(name=name)], timeout_ms=1000).responses[0].error_code == 0


def producer_id(line: Line) -> int:
    answer = line.call(22, 4, transactional_id=None, transaction_timeout_ms=1000)
    assert answer.error_code == 0
    return int(answer.producer_id)


def append(server: InProcess, producer: int, value: bytes) -> tuple[int, int]:
    """(error code, offset) of a producer's first record."""
    batch = build_batch([(b"k", value, (), NOW)], producer_id=producer, producer_epoch=0, base_sequence=0)
    return put_batch(server.connect(), 0, batch)


def put(line: Line, partition: int, *values: bytes) -> tuple[int, int]:
    """(error code, offset) of records of topic t."""
    return put_batch(line, partition, build_batch([(b"k", value, (), NOW) for value in values]))


def put_batch(line: Line, partition: int, batch: bytearray) -> tuple[int, int]:
    request = API[0].request
    data = [request.PartitionProduceData(index=partition, records=bytes(batch))]
    topic = request.TopicProduceData(name="t", partition_data=data)
    answer = line.call(0, 9, acks=-1, timeout_ms=1000, topic_data=[topic])
    found = answer.responses[0].partition_responses[0]
    return found.error_code, found.base_offset


def add_partitions(line: Line, name: str, count: int) -> None:
    request = API[37].request
    more = request.CreatePartitionsTopic(name=name, count=count, assignments=None)
    assert line.call(37, 3, topics=[more], timeout_ms=1000, validate_only=False).results[0].error_code == 0


def test_a_topic_whose_creation_is_lost_may_have_been_deleted() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("gone")
    line.create_topic("t")
    line.produce("t", b"kept")
    delete(line, "gone")
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "TopicRecord" and message.name == "gone") == 1
    again = InProcess(disk)
    assert again.broker.image.names() == ["t"]
    assert again.broker.store.partitions[TopicPartition("t", 0)].log_end_offset == 1


def test_a_topic_whose_deletion_is_lost_is_replaced_by_the_next_of_its_name() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"old")
    delete(line, "t")
    line.create_topic("t")
    line.produce("t", b"new", b"newer")
    wanted = server.broker.image.topic_id("t")
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "RemoveTopicRecord") == 1
    again = InProcess(disk)
    assert again.broker.image.topic_id("t") == wanted
    assert again.broker.store.partitions[TopicPartition("t", 0)].log_end_offset == 2


def test_a_producer_id_that_logs_know_is_given_to_nobody_else() -> None:
    """His first batch would be taken for the other one's, acknowledged and not stored."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    first = producer_id(line)
    assert append(server, first, b"his") == (0, 0)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "ProducerIdsRecord") == 1
    again = InProcess(disk)
    second = producer_id(again.connect())
    assert second > first
    assert append(again, second, b"hers") == (0, 1)


def test_a_producer_id_that_nobody_has_written_with_is_given_to_nobody_else() -> None:
    """Its owner's first batch was taken for the other one's, acknowledged and not stored; so it was where the records
    had expired, or their partition was offline."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    first, idle = producer_id(line), producer_id(line)
    assert append(server, first, b"first") == (0, 0)
    disk = stopped(server)
    gone(disk, "directory")
    repaired(disk)
    again = InProcess(disk)
    fresh = producer_id(again.connect())
    assert append(again, fresh, b"of the fresh one") == (0, 1)
    assert append(again, idle, b"of the idle one") == (0, 2)


def test_producer_ids_of_a_partition_that_is_offline_are_given_to_nobody_else() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    first = producer_id(line)
    assert append(server, first, b"his") == (0, 0)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "ProducerIdsRecord") == 1
    segment = "/data/t-0/00000000000000000000.log"
    disk.rename(segment, "/data/t-0/away")
    disk.sync_directory("/data/t-0")
    again = InProcess(disk)
    assert "partition-offline" in [event for event, _ in again.events]
    second = producer_id(again.connect())
    disk = stopped(again)
    disk.rename("/data/t-0/away", segment)
    disk.sync_directory("/data/t-0")
    assert append(InProcess(disk), second, b"hers") == (0, 1)


@pytest.mark.parametrize("later_ms", [-60_000, 0, 1, 60_000])
def test_each_loss_leaves_the_ids_behind_that_were_given_out_since_the_last_one(later_ms: int) -> None:
    """Also where nobody wrote with them, and whatever the clock says."""
    server = InProcess()
    server.connect().create_topic("t")
    disk = server.disk
    given: list[int] = []
    for number in range(4):
        line = server.connect()
        given += [producer_id(line) for _ in range(1001)]
        disk = stopped(server)
        gone(disk, "directory")
        repaired(disk)
        with patch.object(broker_world, "NOW", NOW + (number + 1) * later_ms):
            server = InProcess(disk)
    assert len(set(given)) == len(given)
    assert max(given) < FIRST_SINK_PRODUCER_ID


def test_the_next_producer_id_is_durable_before_anybody_asks_for_one() -> None:
    """The list is removed behind the first start, in which nobody did: the second one knows of no loss."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    idle = producer_id(line)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "ProducerIdsRecord") == 1
    disk = stopped(InProcess(disk))
    disk.remove("/data/duramen-lost/losses")
    assert producer_id(InProcess(disk).connect()) > idle


def test_where_producer_ids_begin_behind_a_loss() -> None:
    now, highest = NOW << 19, FIRST_SINK_PRODUCER_ID >> 1
    assert least_producer_id(NOW, 0, (), 0) == now
    assert least_producer_id(NOW, 0, (), 7) == now + 7000
    assert least_producer_id(NOW, now, (), 0) == now + (1 << 32)
    assert least_producer_id(NOW, 0, (5, now, 7), 0) == now + 1 + (1 << 32)
    assert least_producer_id(NOW, 0, (now, FIRST_SINK_PRODUCER_ID, highest), 0) == now + 1 + (1 << 32)
    assert least_producer_id((1 << 42) - 1, 0, (), 1 << 40) < FIRST_SINK_PRODUCER_ID


@pytest.mark.parametrize("lost", [1, 3])
def test_the_leader_epoch_of_a_partition_does_not_fall_behind_that_of_its_records(lost: int) -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"v")
    disk = stopped(server)
    for _ in range(4):
        server = InProcess(disk)
        server.connect().produce("t", b"v")
        before = server.broker.store.partitions[TopicPartition("t", 0)].leader_epoch
        disk = stopped(server)
    seen: list[str] = []

    def is_lost(kind: str, message: Any) -> bool:
        if kind == "RegisterBrokerRecord":
            seen.append(kind)
        return kind == "RegisterBrokerRecord" and 1 < len(seen) <= 1 + lost

    assert without(disk, is_lost) == lost
    again = InProcess(disk)
    partition = again.broker.store.partitions[TopicPartition("t", 0)]
    assert partition.leader_epoch > before
    again.connect().produce("t", b"v")
    assert [epoch for epoch, _ in partition.log.epochs.entries] == [*range(before + 1), partition.leader_epoch]


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("knows", [True, False])
def test_so_it_is_of_a_partition_that_was_offline_at_the_first_start(knows: bool, is_listed: bool) -> None:
    """Its new records were in an epoch that older ones had; the log forgot the epochs behind."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"v")
    disk = stopped(server)
    for _ in range(6):
        server = InProcess(disk)
        server.connect().produce("t", b"v")
        disk = stopped(server)
    seen: list[str] = []

    def is_lost(kind: str, message: Any) -> bool:
        if kind == "RegisterBrokerRecord":
            seen.append(kind)
        return kind == "RegisterBrokerRecord" and 1 < len(seen) <= 6

    assert without(disk, is_lost) == 5
    names = ["00000000000000000000.log"] if knows else ["00000000000000000000.log", "leader-epoch-checkpoint"]
    for name in names:
        disk.rename(f"/data/t-0/{name}", f"/data/t-0/away-{name}")
    disk.sync_directory("/data/t-0")
    again = InProcess(disk)
    assert "partition-offline" in [event for event, _ in again.events]
    disk = stopped(again)
    for name in names:
        disk.rename(f"/data/t-0/away-{name}", f"/data/t-0/{name}")
    disk.sync_directory("/data/t-0")
    if not is_listed:
        disk.remove("/data/duramen-lost/losses")
    again = InProcess(disk)
    partition = again.broker.store.partitions[TopicPartition("t", 0)]
    assert partition.leader_epoch > 6
    assert again.connect().produce("t", b"v").base_offset == 7
    assert [epoch for epoch, _ in partition.log.epochs.entries] == [*range(7), partition.leader_epoch]


def test_a_consumer_that_lives_on_meets_no_older_leader_epoch() -> None:
    """Of a partition whose log has nothing of the last ones it would wait for an epoch that it knows already."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"v")
    disk = stopped(server)
    for _ in range(4):
        server = InProcess(disk)
        before = server.broker.store.partitions[TopicPartition("t", 0)].leader_epoch
        disk = stopped(server)
    gone(disk, "directory")
    repaired(disk)
    for _ in range(3):
        again = InProcess(disk)
        epoch = again.broker.store.partitions[TopicPartition("t", 0)].leader_epoch
        assert epoch > before
        before = epoch
        disk = stopped(again)


def test_nothing_expires_until_somebody_has_looked_at_the_settings() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t", segment_bytes="1048576")
    request = API[44].request
    change = request.AlterableConfig(name="retention.ms", config_operation=0, value="-1")
    resource = request.AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
    assert line.call(44, 1, resources=[resource], validate_only=False).responses[0].error_code == 0
    line.produce("t", b"to be kept for ever")
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "ConfigRecord" and message.name == "retention.ms") == 1
    month = 30 * 24 * 3_600_000
    for looked in (False, True):
        if looked:
            disk.remove("/data/duramen-lost/losses")
        again = InProcess(disk)
        assert any(event == "metadata-incomplete" for event, _ in again.events) is not looked
        again.clock.now_ms += month
        again.pass_ms(600_000)
        partition = again.broker.store.partitions[TopicPartition("t", 0)]
        assert (partition.log_start_offset == partition.log_end_offset) is looked
        assert partition.log_end_offset == 1
        assert all(directory.cleaner.holds is not looked for directory in again.broker.store.directories)
        disk = stopped(again)


LOG_HOME = "/data/__cluster_metadata-0"


def gone(disk: CrashDisk, what: str, directory: str = "/data") -> None:
    """The metadata log's segments, all its files, or its directory."""
    home = f"{directory}/__cluster_metadata-0"
    for name in disk.list_directory(home):
        if what != "segments" or name.endswith(".log"):
            disk.remove(f"{home}/{name}")
    disk.sync_directory(home)
    if what == "directory":
        disk.remove(home)
        disk.sync_directory(directory)


def repaired(disk: CrashDisk, directory: str = "/data") -> int:
    with patch.object(repair_command, "RealDisk", lambda: disk):
        return int(repair_command.command.callback(directory, None, None, False, False, True, True))  # type: ignore[misc]


def told(disk: CrashDisk) -> list[str]:
    """Kinds of what `duramen log verify` says."""
    return [finding.kind for finding in verify_directory(disk, "/data", lambda size: None).all_findings()]


@pytest.mark.parametrize("refused_first", [False, True])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("what", ["segments", "files", "directory"])
def test_topics_are_known_again_by_their_partitions_where_the_log_is_gone(
    what: str, clean: bool, refused_first: bool
) -> None:
    """Repair said that it was done, and the start refused; their records were there and nobody got at them."""
    server = InProcess()
    line = server.connect()
    for name in ("gone", "t", "u"):
        line.create_topic(name)
    line.produce("t", b"kept", b"and this")
    delete(line, "gone")
    disk = stopped(server)
    server = InProcess(disk)
    server.connect().produce("u", b"one")
    wanted = {name: server.broker.image.topic_id(name) for name in ("t", "u")}
    epoch = server.broker.store.partitions[TopicPartition("t", 0)].log.epochs.latest  # others had no records
    if clean:
        stopped(server)
    else:
        server.pass_ms(120_000)  # a checkpoint: the journal has nothing of what is to go
        disk.kill()
        disk.power_on()
    gone(disk, what)
    assert "damage" in told(disk)
    if refused_first:
        with pytest.raises(DuramenError):
            InProcess(disk)
        disk.end_process()
        assert "damage" in told(disk)
    assert repaired(disk) == 1
    assert "damage" not in told(disk)
    for number in range(3):
        again = InProcess(disk)
        assert {name: again.broker.image.topic_id(name) for name in again.broker.image.names()} == wanted
        events = [event for event, _ in again.events]
        assert events.count("topic-regained") == (0 if number else 2)
        assert "metadata-incomplete" in events
        assert not {"log-of-unknown-topic", "partition-offline", "topic-created"} & set(events)
        partition = again.broker.store.partitions[TopicPartition("t", 0)]
        assert partition.leader_epoch > epoch
        assert again.connect().produce("t", b"more").base_offset == 2 + number
        assert again.broker.image.topic_config("t") == dict(KEPT)
        disk = stopped(again)
    again = InProcess(disk)
    delete(again.connect(), "t")
    disk = stopped(again)
    assert InProcess(disk).broker.image.names() == ["u"]


def test_a_topic_that_is_known_again_is_not_compacted_because_others_are() -> None:
    settings = {"log_cleanup_policy": "compact", "log_cleaner_backoff_ms": "1000"}
    settings["log_cleaner_min_cleanable_ratio"] = "0.0"
    server = InProcess(**settings)
    line = server.connect()
    line.create_topic("t", cleanup_policy="delete", retention_ms="-1", segment_bytes=str(1 << 20))
    for number in range(8):
        line.produce("t", b"%d" % number * 300_000)
    server.pass_ms(300_000)
    disk = stopped(server)
    gone(disk, "directory")
    repaired(disk)
    again = InProcess(disk, **settings)
    hour = 3_600_000
    for directory in again.broker.store.directories:
        directory.cleaner.holds = False  # as behind the removal of the list
    again.pass_ms(hour)
    kept = [
        header.count
        for name, data in disk.contents().items()
        if "/t-0/" in name and name.endswith(".log")
        for _, header in batches(memoryview(data))
    ]
    assert sum(kept) == 8
    assert [directory.cleaner.statistics.passes for directory in again.broker.store.directories] == [0]


def test_a_partition_that_was_added_is_known_again() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    add_partitions(line, "t", 3)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "PartitionRecord" and message.partition_id == 2) == 1
    again = InProcess(disk)
    assert sorted(map(str, again.broker.store.partitions)) == ["__cluster_metadata-0", "t-0", "t-1", "t-2"]
    assert again.broker.image.topic_config("t") == {}
    assert "partition-offline" not in [event for event, _ in again.events]


def test_a_name_that_another_topic_has_is_not_taken() -> None:
    image = MetadataImage()
    image.add_topic(TopicImage("t", b"\x01" * 16))
    ids = [bytes([number]) * 16 for number in range(2, 6)]
    lost = [LostTopic(name, topic_id, (0,)) for name, topic_id in zip(["t", "u", "u", "v"], ids, strict=True)]
    records, known = regain_topics(image, RegainTopics(1, tuple(lost)))
    assert known == (ids[3],)
    assert [codec.decode(record)[0] for record in records] == ["TopicRecord", "PartitionRecord"]


def lose_snapshots(disk: CrashDisk) -> None:
    for name in disk.list_directory(LOG_HOME):
        if name.endswith(".checkpoint"):
            disk.remove(f"{LOG_HOME}/{name}")
    disk.sync_directory(LOG_HOME)


def test_a_snapshot_that_is_gone_is_told_and_repaired() -> None:
    """verify said that all is sound, repair had nothing to do, and the start refused."""
    server = InProcess(metadata_log_max_record_bytes_between_snapshots="1", metadata_max_retention_bytes="0")
    line = server.connect()
    for name in ("t", "u"):
        line.create_topic(name)
        line.produce(name, b"kept")
        server.pass_ms(60_000)
    assert server.broker.catalog.partition.log.start_offset > 0
    disk = stopped(server)
    lose_snapshots(disk)
    assert told(disk) == ["damage"]
    with pytest.raises(DuramenError, match="no snapshot beside it"):
        InProcess(disk)
    disk.end_process()
    assert repaired(disk) == 1
    assert told(disk) == []
    again = InProcess(disk)
    assert again.broker.image.names() == ["t", "u"]
    assert again.connect().produce("t", b"more").base_offset == 1
    assert InProcess(stopped(again)).broker.image.names() == ["t", "u"]


def test_a_partition_in_a_directory_that_is_not_named_is_not_begun_anew() -> None:
    """Its records were hidden behind an empty log of the same offsets, and with both directories the start refused."""
    server = InProcess(log_dirs="/a,/b")
    line = server.connect()
    line.create_topic("t")
    add_partitions(line, "t", 4)
    for index in range(4):
        assert put(line, index, b"a", b"b") == (0, 0)
    home = server.broker.catalog.partition.log.path[:2]
    partitions = [partition for tp, partition in server.broker.store.partitions.items() if tp.topic == "t"]
    away = sorted(each.tp.partition for each in partitions if not each.log.path.startswith(home))
    assert 0 < len(away) < 4
    disk = stopped(server)
    gone(disk, "files", home)
    repaired(disk, home)
    for number in range(3):
        if number == 2:
            disk.remove(f"{home}/duramen-lost/losses")
        alone = InProcess(disk, log_dirs=home)
        assert [fields["partition"] for event, fields in alone.events if event == "partition-offline"] == away
        line = alone.connect()
        for index in range(4):
            assert put(line, index, b"c") == ((56, -1) if index in away else (0, 2 + number))
        disk = stopped(alone)
    both = InProcess(disk, log_dirs="/a,/b")
    assert "partition-offline" not in [event for event, _ in both.events]
    line = both.connect()
    for index in range(4):
        assert put(line, index, b"d") == (0, 2 if index in away else 5)


@pytest.mark.parametrize("is_named", [True, False])
def test_so_is_a_partition_whose_record_is_lost_and_not_the_next_ones(is_named: bool) -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    for count in (2, 3):
        add_partitions(line, "t", count)
    assert put(line, 1, b"a") == (0, 0)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "PartitionRecord" and message.partition_id == 1) == 1
    if not is_named:
        for name in ("duramen-checkpoint", "duramen-directory"):  # nothing else knows that there was one
            disk.remove(f"/data/{name}")
        disk.rename("/data/t-1", "/elsewhere")
        disk.sync_directory("/data")
    again = InProcess(disk)
    assert put(again.connect(), 1, b"b") == ((0, 1) if is_named else (56, -1))


@pytest.mark.parametrize("what", ["snapshots", "directory", "topic"])
def test_the_list_of_losses_may_be_removed_behind_the_first_start(what: str) -> None:
    """As it says; the next start refused, for no snapshot held what the log had lost."""
    often = {"metadata_log_max_record_bytes_between_snapshots": "1", "metadata_max_retention_bytes": "0"}
    server = InProcess(**(often if what == "snapshots" else {}))
    line = server.connect()
    for name in ("gone", "t", "u"):
        line.create_topic(name)
        line.produce(name, b"kept")
        server.pass_ms(60_000)
    delete(line, "gone")
    disk = stopped(server)
    if what == "snapshots":
        lose_snapshots(disk)
    elif what == "directory":
        gone(disk, "directory")
    if what == "topic":
        assert without(disk, lambda kind, message: kind == "TopicRecord" and message.name == "gone") == 1
    else:
        repaired(disk)
    disk = stopped(InProcess(disk))
    disk.remove("/data/duramen-lost/losses")
    disk.sync_directory("/data/duramen-lost")
    assert told(disk) == []
    for _ in range(2):
        again = InProcess(disk)
        assert again.broker.image.names() == ["t", "u"]
        assert not {"metadata-incomplete", "log-of-unknown-topic"} & {event for event, _ in again.events}
        disk = stopped(again)


def test_a_snapshot_that_is_due_behind_a_loss_is_tried_until_it_is_written() -> None:
    server = InProcess()
    server.connect().create_topic("t")
    disk = stopped(server)
    gone(disk, "directory")
    repaired(disk)
    refused: list[str] = []

    def fault(call: Call) -> OSError | None:
        if call.operation == "pwritev" and ".checkpoint" in call.path and len(refused) < 3:
            refused.append(call.path)
            return OSError(errno.ENOSPC, "no room", call.path)
        return None

    disk.fault = fault
    again = InProcess(disk)
    again.pass_ms(10_000)
    assert len(refused) == 3
    assert [event for event, _ in again.events if event.startswith("snapshot")] == ["snapshot-failed"] * 3 + [
        "snapshot-written"
    ]
