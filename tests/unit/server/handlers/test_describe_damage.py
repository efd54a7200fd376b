"""What the scrubber of a running node finds is told: by DescribeDamage, in the metrics, in the log."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from tests.worlds.broker_world import NOW, InProcess

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.server.metrics.exposition import BrokerCollector
from duramen.sim.world.disk import CrashDisk
from duramen.wire.batch import batches
from duramen.wire.messages import API
from duramen.wire.seal import BLOCK_BYTES

LIST_OFFSETS, DESCRIBE_DAMAGE, DESCRIBE_LOG_DIRS = 2, 10020, 35


def node(disk: CrashDisk) -> InProcess:
    """With a topic of several segments."""
    return InProcess(disk, duramen_scrub_interval_ms="600000")


def metrics(server: InProcess) -> str:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(server.broker))
    return generate_latest(registry).decode()


def test_a_flipped_bit_in_a_finished_segment_reaches_the_operator() -> None:
    disk = CrashDisk()
    server = node(disk)
    line = server.connect()
    line.create_topic("kept", segment_bytes=str(1 << 20))
    for _ in range(12):
        assert line.produce("kept", b"v" * 400_000).error_code == 0
    server.pass_ms(70_000)  # a checkpoint, then seals
    log = next(log for log in server.broker.store.directories[0].logs.values() if log.tp.topic == "kept")
    sealed = [segment for segment in log.segments if segment.sealed]
    assert len(sealed) >= 2

    server.pass_ms(100_000)
    (directory,) = line.call(DESCRIBE_DAMAGE, 0).directories
    assert (directory.error_code, directory.damage, directory.damage_found) == (0, [], 0)
    assert directory.scrub_started_ms >= NOW
    assert directory.scrub_rounds == 1
    assert not directory.scrub_under_way
    assert directory.sealed_bytes >= sum(segment.size for segment in sealed)
    scrubbed = [fields for event, fields in server.events if event == "scrubbed"]
    assert [each["damaged"] for each in scrubbed] == [0]

    disk.damage(sealed[1].path, 5000)
    server.pass_ms(700_000)
    line = server.connect()  # the other one has been idle for too long
    (directory,) = line.call(DESCRIBE_DAMAGE, 0).directories
    (damage,) = directory.damage
    assert (damage.topic, damage.partition_index, damage.path) == ("kept", 0, sealed[1].path)
    assert damage.start <= 5000 < damage.end
    assert sealed[1].base_offset <= damage.first_offset <= damage.last_offset < sealed[1].next_offset
    assert (directory.damage_found, directory.scrub_rounds) == (1, 2)
    assert [fields["path"] for event, fields in server.events if event == "damage"] == [sealed[1].path]
    assert [fields["damaged"] for event, fields in server.events if event == "scrubbed"] == [0, 1]
    told = metrics(server)
    assert 'duramen_damaged_ranges{partition="0",topic="kept"} 1.0' in told
    assert 'duramen_damage_found_total{directory="/data"} 1.0' in told
    (sealed_bytes,) = (line for line in told.splitlines() if line.startswith('duramen_sealed_bytes{directory="/data"}'))
    assert float(sealed_bytes.split()[1]) == directory.sealed_bytes
    (result,) = line.call(DESCRIBE_LOG_DIRS, 4, topics=None).results
    assert result.error_code == 0, "the directory takes writes and serves what is sound"

    disk.kill()
    disk.power_on()
    again = node(disk)
    again.clock.now_ms = server.clock.now_ms
    again.pass_ms(70_000)
    (directory,) = again.connect().call(DESCRIBE_DAMAGE, 0).directories
    assert [each.path for each in directory.damage] == [sealed[1].path], "known again long before the next round"
    assert directory.scrub_rounds == 0


def test_what_a_look_up_by_time_meets_is_told_like_what_a_read_meets() -> None:
    disk = CrashDisk()
    server = node(disk)
    line = server.connect()
    line.create_topic("t", segment_bytes=str(1 << 20))
    for _ in range(4):
        assert line.produce("t", b"v" * 400_000).error_code == 0
    server.pass_ms(70_000)  # a checkpoint, then seals
    path = server.broker.store.partitions[TopicPartition("t", 0)].log.segments[0].path
    disk.kill()
    disk.power_on()
    disk.damage(path, 5000)
    again = node(disk)
    line = again.connect()
    request = API[LIST_OFFSETS].request
    partition = request.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=0)
    asked = [request.ListOffsetsTopic(name="t", partitions=[partition])]
    (answer,) = line.call(LIST_OFFSETS, 9, replica_id=-1, isolation_level=0, topics=asked).topics
    assert answer.partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
    (directory,) = line.call(DESCRIBE_DAMAGE, 0).directories
    (damage,) = directory.damage
    assert (damage.topic, damage.path, damage.first_offset, damage.last_offset) == ("t", path, 0, 0)
    assert [fields["path"] for event, fields in again.events if event == "damage"] == [path]


def test_what_a_reader_meets_behind_sound_records_is_told_with_its_own_offsets() -> None:
    disk = CrashDisk()
    server = node(disk)
    line = server.connect()
    line.create_topic("sound")
    line.create_topic("t", segment_bytes=str(1 << 20))
    for _ in range(20):
        assert line.produce("t", b"v" * 80_000).error_code == 0
    assert line.produce("sound", b"v").error_code == 0
    server.pass_ms(70_000)  # a checkpoint, then seals
    path = server.broker.store.partitions[TopicPartition("t", 0)].log.segments[0].path
    disk.kill()
    disk.power_on()
    disk.damage(path, 10 * BLOCK_BYTES + 5000)
    again = node(disk)
    line = again.connect()
    entry = line.fetch("t", 2)
    assert entry.error_code == 0
    offsets = [header.base_offset for _, header in batches(memoryview(entry.records))]
    assert offsets == list(range(2, offsets[-1] + 1))
    again.pass_ms(5_000)
    (directory,) = line.call(DESCRIBE_DAMAGE, 0).directories
    (damage,) = directory.damage
    place = damage.path, damage.start, damage.end, damage.first_offset, damage.last_offset
    assert place == (path, 10 * BLOCK_BYTES, 11 * BLOCK_BYTES, offsets[-1] + 1, offsets[-1] + 2)
    assert not [event for event, _ in again.events if event == "read-failed"]
    assert line.fetch("t", offsets[-1] + 2).error_code == ErrorCode.CORRUPT_MESSAGE
    assert line.fetch("t", offsets[-1] + 3).error_code == 0
    assert line.fetch("sound", 0).error_code == 0
    (directory,) = line.call(DESCRIBE_DAMAGE, 0).directories
    assert (directory.damage, directory.damage_found) == ([damage], 1)
    told = [fields for event, fields in again.events if event == "damage"]
    assert [(fields["first_offset"], fields["last_offset"]) for fields in told] == [place[3:]]
    assert 'duramen_damaged_ranges{partition="0",topic="t"} 1.0' in metrics(again)


def test_a_failed_directory_is_told_with_its_reason() -> None:
    disk = CrashDisk()
    server = node(disk)
    line = server.connect()
    directory = server.broker.store.directories[0]
    directory.journal.fail(None, OSError(5, "the disk is gone"))
    (told,) = line.call(DESCRIBE_DAMAGE, 0).directories
    assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "the disk is gone" in told.error_message
    (result,) = line.call(DESCRIBE_LOG_DIRS, 4, topics=None).results
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
