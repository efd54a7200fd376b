"""A repair took batches out of the metadata log: the node starts, and gives nothing twice that somebody has."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tests.worlds.broker_world import InProcess
from tests.worlds.lost_metadata_world import (
    LOG_HOME,
    add_partitions,
    delete,
    gone,
    lose_snapshots,
    put,
    repaired,
    stopped,
    told,
    without,
)
from tests.worlds.partition_world import Numbers

from duramen.errors import DuramenError
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import LostTopic, RegainTopics
from duramen.machines.metadata.features import OFFERED
from duramen.machines.metadata.image import MetadataImage, TopicImage
from duramen.machines.metadata.topics import regain_topics
from duramen.model import TopicPartition, topic_id_text
from duramen.partition.metadata.metadata_repair import KEPT
from duramen.sim.world.disk import DiskCall
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.wire.batch import batches
from duramen.wire.messages import API


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
        assert all(directory.cleaner.suspended is not looked for directory in again.broker.store.directories)
        disk = stopped(again)


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
        directory.cleaner.suspended = False  # as behind the removal of the list
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


def test_a_snapshot_that_is_gone_is_told_and_repaired() -> None:
    """verify said that all is sound, repair had nothing to do, and the start refused."""
    server = InProcess(metadata_log_max_record_bytes_between_snapshots="1", metadata_max_retention_bytes="0")
    line = server.connect()
    for name in ("t", "u"):
        line.create_topic(name)
        line.produce(name, b"kept")
        server.pass_ms(60_000)
    assert server.broker.controller.partition.log.start_offset > 0
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


@pytest.mark.parametrize("unreadable", [False, True])
@pytest.mark.parametrize("which", ["older", "all"])
def test_a_damaged_snapshot_that_no_start_uses_is_put_aside(which: str, unreadable: bool) -> None:
    """verify told it as damage for good, and repair had nothing to do with it."""
    server = InProcess(metadata_log_max_record_bytes_between_snapshots="1", metadata_max_retention_bytes="2000")
    line = server.connect()
    for name in ("t", "u", "v"):
        line.create_topic(name)
        server.pass_ms(60_000)
    assert server.broker.controller.partition.log.start_offset > 0
    disk = stopped(server)
    files = sorted(name for name in disk.list_directory(LOG_HOME) if name.endswith(".checkpoint"))
    assert len(files) > 1
    harmed = files[:1] if which == "older" else files
    for name in harmed if not unreadable else ():
        disk.damage(f"{LOG_HOME}/{name}", 90)
    away = {f"{LOG_HOME}/{name}" for name in harmed if unreadable}
    disk.fault = lambda call: OSError(errno.EIO, "bad") if call.operation == "pread" and call.path in away else None
    assert told(disk) == ["damage"] * (len(harmed) + (which == "all"))
    assert repaired(disk) == (which == "all")
    assert told(disk) == []
    assert all(disk.exists(f"/data/duramen-lost/__cluster_metadata-0/{name}") for name in harmed)
    again = InProcess(disk)
    assert again.broker.image.names() == ["t", "u", "v"]
    assert not any(event == "damage" for event, _ in again.events)


def test_a_partition_in_a_directory_that_is_not_named_is_not_begun_anew() -> None:
    """Its records were hidden behind an empty log of the same offsets, and with both directories the start refused."""
    server = InProcess(log_dirs="/a,/b")
    line = server.connect()
    line.create_topic("t")
    add_partitions(line, "t", 4)
    for index in range(4):
        assert put(line, index, b"a", b"b") == (0, 0)
    home = server.broker.controller.partition.log.path[:2]
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

    def fault(call: DiskCall) -> OSError | None:
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


def test_an_older_loss_that_is_still_on_the_list_hides_no_missing_snapshot() -> None:
    """verify and repair said that all is sound, and the start gave a compacted topic other settings."""
    server = InProcess()
    line = server.connect()
    line.create_topic("gone")
    line.create_topic("t", cleanup_policy="compact")
    delete(line, "gone")
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "TopicRecord" and message.name == "gone") == 1
    numbers = Numbers()
    numbers.next = 5000
    often = {"metadata_log_max_record_bytes_between_snapshots": "1", "metadata_max_retention_bytes": "0"}
    server = InProcess(disk, entropy=numbers, **often)
    for name in ("u", "v"):
        server.connect().create_topic(name)
        server.pass_ms(60_000)
    assert server.broker.controller.partition.log.start_offset > 0
    disk = stopped(server)
    lose_snapshots(disk)
    assert told(disk) == ["damage"]
    with pytest.raises(DuramenError, match="no snapshot beside it"):
        InProcess(disk)
    disk.end_process()
    assert repaired(disk) == 1
    assert told(disk) == []
    InProcess(disk)


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_topic_that_was_deleted_while_its_directory_was_away_does_not_come_back(is_listed: bool) -> None:
    """The deletion is in the log, before the snapshot that the start begins with."""
    server = InProcess(log_dirs="/a,/b")
    line = server.connect()
    line.create_topic("gone")
    line.create_topic("t")
    add_partitions(line, "t", 4)
    delete(line, "gone")
    home = server.broker.controller.partition.log.path[:2]
    disk = stopped(server)
    if is_listed:
        assert without(disk, lambda kind, message: kind == "TopicRecord" and message.name == "gone", home) == 1
    alone = InProcess(disk, log_dirs=home)
    delete(alone.connect(), "t")
    alone.pass_ms(60_000)
    disk = stopped(alone)
    for _ in range(2):  # the first takes the snapshot
        disk = stopped(InProcess(disk, log_dirs=home, metadata_log_max_record_bytes_between_snapshots="1"))
    both = InProcess(disk, log_dirs="/a,/b")
    assert both.broker.image.names() == []
    assert "log-of-unknown-topic" in [event for event, _ in both.events]


def test_where_deletion_and_creation_are_lost_both_topics_stay_until_somebody_decides() -> None:
    """It was to remove the directory of the new one, which has the records."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"old")
    delete(line, "t")
    line.create_topic("t")
    line.produce("t", b"new", b"newer")
    wanted = server.broker.image.topic_id("t") or b""
    disk = stopped(server)

    def is_lost(kind: str, message: Any) -> bool:
        return kind == "RemoveTopicRecord" or (kind == "TopicRecord" and message.topic_id == wanted)

    assert without(disk, is_lost) == 2
    for _ in range(2):
        again = InProcess(disk)
        dead = again.broker.image.topic_id("t") or b""
        assert dead != wanted
        fields = next(fields for event, fields in again.events if event == "log-of-unknown-topic")
        assert fields["id"] == topic_id_text(wanted)
        assert topic_id_text(dead) in fields["remedy"]
        assert "topic delete t" in fields["remedy"]
        assert [topic_id_text(wanted) in str(fields["error"]) for event, fields in offline(again)] == [True]
        assert put(again.connect(), 0, b"x") == (56, -1)
        disk = stopped(again)
    again = InProcess(disk)
    delete(again.connect(), "t")
    disk = stopped(again)
    again = InProcess(disk)
    assert again.broker.image.topic_id("t") == wanted
    assert offline(again) == []
    assert put(again.connect(), 0, b"x") == (0, 2)


def offline(server: InProcess) -> list[tuple[str, dict[str, Any]]]:
    return [(event, fields) for event, fields in server.events if event == "partition-offline"]


def test_the_other_way_out_is_to_move_the_new_ones_directories_away() -> None:
    """Told as a remedy; the checkpoint still knew of them, and the topic was refused at each start all the same."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"old")
    delete(line, "t")
    line.create_topic("t")
    line.produce("t", b"new", b"newer")
    wanted = server.broker.image.topic_id("t") or b""
    disk = stopped(server)

    def is_lost(kind: str, message: Any) -> bool:
        return kind == "RemoveTopicRecord" or (kind == "TopicRecord" and message.topic_id == wanted)

    assert without(disk, is_lost) == 2
    disk = stopped(InProcess(disk))
    disk.rename("/data/t-0", "/elsewhere")
    disk.sync_directory("/data")
    for offset in range(2):
        server = InProcess(disk)
        assert server.broker.image.topic_id("t") != wanted
        assert [fields["topic"] for event, fields in server.events if event == "log-of-unknown-topic"] == []
        assert put(server.connect(), 0, b"x") == (0, offset)
        disk = stopped(server)


def test_a_topic_whose_directory_is_gone_too_is_not_made_anew() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    line.produce("t", b"a", b"b", b"c")
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "TopicRecord" and message.name == "t") == 1
    for name in disk.list_directory("/data/t-0"):
        disk.remove(f"/data/t-0/{name}")
    disk.remove("/data/t-0")
    disk.sync_directory("/data")
    server = InProcess(disk)
    assert "topic-regained" in [event for event, _ in server.events]
    assert [fields["topic"] for _, fields in offline(server)] == ["t"]
    assert put(server.connect(), 0, b"x") == (56, -1)


@pytest.mark.parametrize("flipped", [True, False])
@pytest.mark.parametrize("of", ["t", "gone"])
def test_a_loss_that_only_a_snapshot_stood_for_is_a_loss_again_when_that_is_lost(of: str, flipped: bool) -> None:
    """The list was removed, as it says; behind one flipped bit no start came to its end, and nothing was to repair."""
    server = InProcess()
    line = server.connect()
    line.create_topic("gone")
    line.create_topic("t", retention_ms="-1")
    _, offset = put(line, 0, b"a")
    delete(line, "gone")
    add_partitions(line, "t", 2)
    disk = stopped(server)
    assert without(disk, lambda kind, message: kind == "TopicRecord" and message.name == of) == 1
    disk = stopped(InProcess(disk))
    disk.remove("/data/duramen-lost/losses")
    disk.sync_directory("/data/duramen-lost")
    server = InProcess(disk)
    assert [event for event, _ in server.events if event in ("records-lost", "metadata-incomplete")] == []
    disk = stopped(server)
    if flipped:
        for name in disk.list_directory("/data/__cluster_metadata-0"):
            if name.endswith(".checkpoint"):
                disk.damage(f"/data/__cluster_metadata-0/{name}", 100)
    else:
        lose_snapshots(disk)
    features = len(OFFERED)  # a record each, before all others
    first = (features + 6, features + 7) if of == "gone" else (features + 8, features + 10)
    for _ in range(2):
        server = InProcess(disk)
        lost = [(each["first_offset"], each["last_offset"]) for event, each in server.events if event == "records-lost"]
        assert lost == [first]
        assert [event for event, _ in server.events if event == "metadata-incomplete"] == ["metadata-incomplete"]
        assert server.broker.image.names() == ["t"]
        assert len(server.broker.image.topics["t"].partitions) == 2
        disk = stopped(server)
    server = InProcess(disk)
    assert put(server.connect(), 0, b"b") == (0, offset + 1)


def test_each_of_the_losses_that_a_snapshot_stood_for_is_on_the_list_again() -> None:
    server = InProcess()
    line = server.connect()
    for name in ("a", "t", "b"):
        line.create_topic(name)
    put(line, 0, b"x")
    disk = stopped(server)
    for lost in ("a", "b"):
        assert without(disk, lambda kind, message, lost=lost: kind == "TopicRecord" and message.name == lost) == 1
    listed = [(loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")]
    assert len(listed) == 2
    disk = stopped(InProcess(disk))
    disk.remove("/data/duramen-lost/losses")
    disk.sync_directory("/data/duramen-lost")
    lose_snapshots(disk)
    for _ in range(2):
        disk = stopped(InProcess(disk))
        assert [(loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")] == listed
