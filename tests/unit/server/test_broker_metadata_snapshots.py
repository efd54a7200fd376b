"""Snapshots of the metadata log: taken when due, believed only whole; the log is cut behind one, and no cut hurts."""

from __future__ import annotations

from contextlib import closing
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from tests.worlds.broker_world import InProcess

from duramen.cli.log import repair as repair_command
from duramen.errors import CorruptLogError, StorageError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import CommittedImage, MetadataImage
from duramen.machines.metadata.application import Application
from duramen.machines.metadata.codec import decode
from duramen.machines.metadata.snapshot import content
from duramen.model import METADATA_TOPIC_ID
from duramen.partition.metadata.snapshots import encode
from duramen.sim.world.disk import CrashDisk, PowerCut
from duramen.storage.checkpoint.metadata_snapshot import SnapshotId, parse_snapshot_name, read_snapshot
from duramen.storage.journal.format import ENTRY_START, HEADER_BLOCK, EntryKind, decode_entry, decode_part_header
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.verify import verify_partition
from duramen.wire.messages import API
from duramen.wire.records import cluster_metadata as schema
from duramen.wire.runtime import uvarint

HOME = "/data/__cluster_metadata-0"
OFTEN = {"metadata_log_max_record_bytes_between_snapshots": "1"}
SHORT = {**OFTEN, "metadata_max_retention_bytes": "0", "log_segment_delete_delay_ms": "0"}
STARTED = 400
"""Disk calls within which a broker has started on an empty disk, about."""


def snapshots(disk: CrashDisk) -> list[SnapshotId]:
    found = (parse_snapshot_name(path.removeprefix(HOME + "/")) for path in disk.contents())
    return sorted(snapshot for snapshot in found if snapshot is not None)


def topics(server: InProcess) -> dict[str, bytes]:
    return {topic.name: topic.topic_id for topic in server.connect().call(3, 12, topics=None).topics}


def metadata(server: InProcess) -> Any:
    """What the metadata says, without what each start changes in it."""
    image = server.broker.image
    return (
        {name: (topic.id, [p.replicas for p in topic.partitions]) for name, topic in image.topics.items()},
        image.configs,
        image.features,
        image.next_producer_id,
    )


def epochs(server: InProcess) -> dict[str, list[int]]:
    return {name: [p.leader_epoch for p in topic.partitions] for name, topic in server.broker.image.topics.items()}


def stopped(server: InProcess) -> None:
    done: list[bool] = []
    server.broker.stop(lambda: done.append(True))
    server.run()
    assert done


def restarted(disk: CrashDisk, **settings: str) -> InProcess:
    disk.power_on()
    server = InProcess(disk, **settings)
    server.broker.world.entropy.next = 1_000_000  # type: ignore[attr-defined]  # or topic ids would be given again
    return server


def filled(server: InProcess, count: int = 6) -> None:
    line = server.connect()
    for number in range(count):
        line.create_topic(f"t{number}", retention_ms=str(1000 + number))
        line.produce(f"t{number}", b"x")
    line.call(22, 4, transactional_id=None, transaction_timeout_ms=1000)


def test_a_start_reads_the_snapshot_and_only_the_log_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashDisk()
    server = InProcess(disk, **OFTEN)
    filled(server)
    before, old_epochs = metadata(server), epochs(server)
    stopped(server)
    newest = snapshots(disk)[-1]
    assert newest.offset > 10
    applied: list[int] = []
    original = CommittedImage.apply

    def counted(self: Any, record: LogRecord, offset: int, timestamp: int, *producer: Any) -> None:
        applied.append(offset)
        original(self, record, offset, timestamp, *producer)

    monkeypatch.setattr(CommittedImage, "apply", counted)
    server = restarted(disk)
    assert min(applied) >= newest.offset
    assert metadata(server) == before
    for name, started in epochs(server).items():
        assert [epoch + 1 for epoch in old_epochs[name]] == started, "a start begins a new epoch, once"


def test_a_snapshot_is_taken_by_time_when_little_changes() -> None:
    server = InProcess(metadata_log_max_snapshot_interval_ms="60000")
    server.connect().create_topic("t")
    assert snapshots(server.disk) == []
    server.pass_ms(61_000)
    assert len(snapshots(server.disk)) == 1
    server.pass_ms(600_000)
    assert len(snapshots(server.disk)) == 1, "nothing has changed since"
    off = InProcess(metadata_log_max_snapshot_interval_ms="0")
    off.connect().create_topic("t")
    off.pass_ms(10_000_000)
    assert snapshots(off.disk) == []


def test_the_metadata_log_is_bounded_and_nothing_is_forgotten() -> None:
    disk = CrashDisk()
    server = InProcess(disk, **SHORT, log_retention_check_interval_ms="1000")
    line = server.connect()
    for number in range(30):
        line.create_topic(f"t{number}")
        if number % 3:
            state = server.connect()
            assert state.call(20, 6, topics=[_named(f"t{number}")], timeout_ms=1000).responses[0].error_code == 0
        server.pass_ms(3000)
    log = server.broker.controller.partition.log
    assert log.start_offset > 50
    assert log.segments[0].base_offset > 50
    assert len(snapshots(disk)) == 1
    before = metadata(server)
    assert len(before[0]) == 10
    stopped(server)
    server = restarted(disk, **SHORT)
    assert metadata(server) == before
    assert server.broker.controller.partition.log.start_offset > 50
    assert [event for event, _ in server.events if event.startswith("log-of")] == []


def _named(name: str) -> Any:

    return API[20].request.DeleteTopicState(name=name)


@pytest.mark.parametrize("torn", [False, True])
def test_a_power_cut_in_any_disk_call_loses_no_topic(torn: bool) -> None:
    cuts = 0
    for cut in range(STARTED + torn, STARTED + 900, 29):
        disk = CrashDisk(Random(cut), torn=torn)
        acknowledged: list[str] = []
        try:
            server = InProcess(disk, **SHORT, log_retention_check_interval_ms="1000")
            line = server.connect()
            disk.cut_at = cut
            for number in range(40):
                line.create_topic(f"t{number}")
                acknowledged.append(f"t{number}")
                server.pass_ms(1100)
        except PowerCut:
            cuts += 1
        server = restarted(disk, **SHORT)
        found = topics(server)
        assert set(acknowledged) <= set(found), f"power cut at disk call {cut}"
        assert len(found) <= len(acknowledged) + 1
        assert not [name for name in disk.contents() if name.endswith(".checkpoint.part")]
        server.connect().create_topic("after")
    assert cuts > 25


def test_a_damaged_snapshot_is_passed_over_while_the_log_is_whole() -> None:
    disk = CrashDisk()
    server = InProcess(disk, **OFTEN)
    filled(server)
    before = metadata(server)
    stopped(server)
    for snapshot in snapshots(disk):
        disk.damage(f"{HOME}/{snapshot.name}", 100)
    server = restarted(disk)
    assert metadata(server) == before
    assert [fields["what"] for event, fields in server.events if event == "damage" and ".checkpoint" in fields["what"]]


def test_verify_reads_snapshots_through() -> None:
    disk = CrashDisk()
    server = InProcess(disk, **OFTEN)
    filled(server)
    stopped(server)
    assert verify_partition(disk, HOME, lambda count: None).findings == []
    newest = f"{HOME}/{snapshots(disk)[-1].name}"
    disk.damage(newest, 150)
    (finding,) = verify_partition(disk, HOME, lambda count: None).findings
    assert (finding.kind, finding.path) == ("damage", newest)


def test_an_older_snapshot_takes_the_place_of_a_damaged_one() -> None:
    disk = CrashDisk()
    server = InProcess(disk, **OFTEN)
    filled(server)
    before = metadata(server)
    stopped(server)
    older, newest = snapshots(disk)[-2:]
    server.broker.controller.partition.log.start_offset = older.offset
    disk.damage(f"{HOME}/{newest.name}", 70)
    server = restarted(disk)
    assert metadata(server) == before


def test_a_log_that_was_cut_needs_its_snapshot() -> None:
    disk = CrashDisk()
    server = InProcess(disk, **SHORT, log_retention_check_interval_ms="1000")
    line = server.connect()
    for number in range(5):
        line.create_topic(f"t{number}")
        server.pass_ms(3000)
    stopped(server)
    paths = [f"{HOME}/{snapshot.name}" for snapshot in snapshots(disk)]
    for path in paths:
        disk.damage(path, 90)
    with pytest.raises(CorruptLogError, match="checkpoint"):
        restarted(disk)
    disk.power_on()
    for path in paths:
        disk.damage(path, 90)
        disk.rename(path, path + ".away")
    with pytest.raises(StorageError, match="no snapshot beside it"):
        InProcess(disk)
    disk.power_on()
    for path in paths:
        disk.rename(path + ".away", path)
    assert len(topics(restarted(disk))) == 5


def test_one_that_was_being_written_while_the_leader_s_came_does_not_take_its_place() -> None:
    """Found by the simulator (three nodes, seed 52): the log began behind the leader's, which was removed as older."""
    disk = CrashDisk(Random(1))
    server = InProcess(disk, metadata_max_retention_bytes="0", log_segment_delete_delay_ms="0")
    filled(server)
    mine = server.broker.controller.quorum._snapshots
    mine._take()
    assert mine._writing
    written = server.broker.image.next_offset
    leaders = SnapshotId(written + 100, 1)
    with closing(disk.open(f"{HOME}/{leaders.name}", create=True, write=True)) as file:
        file.pwritev([b"as the leader has it"], 0)
    mine.adopt(leaders)
    server.run()
    assert mine.kept == [leaders]
    assert leaders in snapshots(disk)
    assert all(each == leaders or each.offset > leaders.offset for each in snapshots(disk))


def test_a_full_disk_costs_a_snapshot_and_nothing_else() -> None:
    disk = CrashDisk()
    server = InProcess(disk, **OFTEN)
    line = server.connect()
    first = snapshots(disk)
    disk.fault = lambda call: OSError(28, "ENOSPC") if ".checkpoint" in call.path else None
    line.create_topic("t")
    server.run()
    assert snapshots(disk) == first
    assert "snapshot-failed" in [event for event, _ in server.events]
    assert line.produce("t", b"x").error_code == 0
    disk.fault = None
    line.create_topic("u")
    server.run()
    assert len(snapshots(disk)) == len(first) + 1


def written(image: MetadataImage, epoch: int = 3) -> tuple[CrashDisk, SnapshotId]:
    disk = CrashDisk()
    disk.make_directories("/s")
    snapshot = SnapshotId(77, epoch)
    file = disk.open(f"/s/{snapshot.name}", create=True, write=True)
    position = 0
    for batch in encode(image, epoch, 1_760_000_000_000):
        position += file.pwritev([batch], position)
    file.close()
    return disk, snapshot


def rich_image() -> MetadataImage:
    """Some of everything, records that mean nothing here included."""
    image = MetadataImage()
    application = Application(image)
    application.apply("FeatureLevelRecord", schema.FeatureLevelRecord.new(name="metadata.version", feature_level=30))
    application.apply("FeatureLevelRecord", schema.FeatureLevelRecord.new(name="a.version", feature_level=1))
    endpoint = schema.RegisterBrokerRecord.BrokerEndpoint(name="P", host="h", port=9, security_protocol=0)
    registration = schema.RegisterBrokerRecord.new(broker_id=1, broker_epoch=5, end_points=[endpoint], fenced=False)
    application.apply("RegisterBrokerRecord", registration)
    for number in range(3000):
        topic_id = number.to_bytes(16, "big")
        application.apply("TopicRecord", schema.TopicRecord.new(name=f"t{number}", topic_id=topic_id))
        fields: dict[str, Any] = {"topic_id": topic_id, "replicas": [1], "isr": [1], "leader": 1, "leader_epoch": 4}
        application.apply("PartitionRecord", schema.PartitionRecord.new(partition_id=0, partition_epoch=9, **fields))
    application.apply(
        "ConfigRecord", schema.ConfigRecord.new(resource_type=2, resource_name="t1", name="retention.ms", value="5")
    )
    application.apply("ProducerIdsRecord", schema.ProducerIdsRecord.new(broker_id=1, next_producer_id=9000))
    for data in (b"an acl", b"a quota"):
        application.apply(*decode(LogRecord(None, uvarint(1) + uvarint(18) + uvarint(0) + data)))
    return image


def test_a_snapshot_holds_everything_of_the_image() -> None:
    image = rich_image()
    disk, snapshot = written(image)
    again = MetadataImage()
    application = Application(again)
    kinds = []
    for is_control, record in read_snapshot(disk, "/s", snapshot):
        kinds.append(is_control)
        if not is_control:
            application.apply(*decode(LogRecord(record.key, record.value)))
    assert (kinds[0], kinds[-1], sum(kinds)) == (True, True, 2)
    assert list(content(again)) == list(content(image))
    assert (again.brokers, again.configs, again.carried) == (image.brokers, image.configs, image.carried)
    assert len(again.carried) == 2
    assert next(iter(content(again))) == next(iter(content(image)))


def test_every_damaged_byte_of_a_snapshot_is_noticed() -> None:
    image = MetadataImage()
    Application(image).apply("TopicRecord", schema.TopicRecord.new(name="t", topic_id=bytes(16)))
    disk, snapshot = written(image)
    path = f"/s/{snapshot.name}"
    whole = repr(list(read_snapshot(disk, "/s", snapshot)))
    size = len(disk.contents()[path])
    for position in range(size):
        disk.damage(path, position, 1 + position % 255)
        with pytest.raises(CorruptLogError):
            list(read_snapshot(disk, "/s", snapshot))
        disk.damage(path, position, 1 + position % 255)
    assert repr(list(read_snapshot(disk, "/s", snapshot))) == whole
    for length in range(size):
        file = disk.open(path, write=True)
        file.truncate(size - 1 - length)
        file.close()
        with pytest.raises(CorruptLogError):
            list(read_snapshot(disk, "/s", snapshot))


@pytest.mark.parametrize("failing", ["size", "open", "pread"])
def test_an_old_snapshot_that_cannot_be_looked_at_stays_until_the_next_is_written(failing: str) -> None:
    """Found by simulation: the disk's error left the loop when a snapshot's size or age was asked for."""
    disk = CrashDisk()
    server = InProcess(disk, **OFTEN)
    filled(server, 2)
    stopped(server)
    oldest = snapshots(disk)[0]
    failed: list[str] = []

    def fault(call: Any) -> OSError | None:
        if call.operation != failing or not call.path.endswith(oldest.name):
            return None
        failed.append(call.operation)
        return OSError(5, "EIO")

    disk.fault = fault
    limits = {"metadata_max_retention_bytes": "-1", "metadata_max_retention_ms": "1"} if failing == "pread" else SHORT
    server = restarted(disk, **{**SHORT, **limits})
    server.pass_ms(10)
    server.connect().create_topic("one")
    assert failed
    assert oldest in snapshots(disk)
    disk.fault = None
    server.pass_ms(10)
    server.connect().create_topic("two")
    server.pass_ms(3000)
    assert oldest not in snapshots(disk)
    assert {"one", "two"} <= set(topics(server))


def test_a_topic_deleted_while_its_partitions_are_made_is_named_until_they_are_gone() -> None:
    """A kill between the job and its end left directories of a topic that the snapshot had forgotten."""
    server = InProcess(**OFTEN)
    server.lanes.held.add("checkpoint")
    request = API[19].request
    topic = request.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
    server.connect().ask(19, 7, topics=[topic], timeout_ms=1000)
    server.run()
    doomed = API[20].request.DeleteTopicState(name="t", topic_id=bytes(16))
    server.connect().ask(20, 6, topics=[doomed], timeout_ms=1000)
    server.run()
    (entry,) = [entry for entry in server.lanes.waiting if entry[0] == "checkpoint"]
    entry[1]()
    server.run()
    killed = server.disk.copy(Random(1))
    killed.kill()
    again = restarted(killed, **OFTEN)
    assert "log-of-unknown-topic" not in [event for event, _ in again.events]
    line = again.connect()
    line.create_topic("t")
    assert line.produce("t", b"anew").base_offset == 0


def test_a_node_starts_whose_metadata_log_was_repaired_at_its_end() -> None:
    """What the repair dropped leaves a gap between the last record and the end."""
    server = InProcess()
    line = server.connect()
    line.create_topic("kept")
    assert line.produce("kept", b"value").error_code == 0
    stopped(server)
    disk = server.disk
    disk.power_on()
    path = "/data/__cluster_metadata-0/00000000000000000000.log"
    file = disk.open(path, write=True)
    file.truncate(file.size() - 10)
    file.sync()
    file.close()
    apply_repair(disk, survey_directory(disk, "/data"))
    server = restarted(disk)
    line = server.connect()
    assert line.produce("kept", b"more").error_code == 0
    line.create_topic("another")
    assert line.produce("another", b"value").error_code == 0


def damage_newest_entry(disk: CrashDisk) -> None:
    """A bit of what the journal has of the metadata log's last record."""
    found = []
    for path, data in disk.contents().items():
        header = decode_part_header(data[:HEADER_BLOCK]) if path.endswith(".part") else None
        at = data.find(ENTRY_START, HEADER_BLOCK) if header is not None else -1
        while at >= 0 and header is not None:
            entry = decode_entry(memoryview(data), at, header.seed)
            if entry is not None and entry.kind == EntryKind.BATCH and entry.topic_id == METADATA_TOPIC_ID:
                found.append((entry.lsn, path, at))
            at = data.find(ENTRY_START, at + 1)
    _, path, at = max(found)
    disk.damage(path, at + 100, 0x04)


def test_where_the_journal_is_forgone_the_log_ends_where_its_snapshot_does() -> None:
    """Power is cut between a snapshot and the next checkpoint: the log ended before it, and no start went on."""
    server = InProcess(metadata_log_max_record_bytes_between_snapshots="200")
    server.connect().create_topic("early")
    server.pass_ms(90_000)
    for name in ("one", "two", "three"):
        server.connect().create_topic(name)
    server.pass_ms(1000)
    disk, ids = server.disk, topics(server)
    newest = snapshots(disk)[-1].offset
    disk.power_cut()
    disk.power_on()
    damage_newest_entry(disk)
    with patch.object(repair_command, "RealDisk", lambda: disk):
        assert repair_command.command.callback("/data", None, None, True, False, True, True) == 1  # type: ignore[misc]
    server = restarted(disk)
    assert server.broker.controller.partition.log.end_offset >= newest
    assert topics(server) == ids
