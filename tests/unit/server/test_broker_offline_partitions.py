"""A broker with a partition that is too damaged to be served, or that could not be made: its clients are told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import NOW, InProcess, after_power_cut

from duramen.errors import CorruptLogError, ErrorCode, KafkaError, StorageError
from duramen.model import TopicPartition
from duramen.partition.metadata import controller, partition_creation
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.journal.format import EntryKind
from duramen.wire.messages import API

KAFKA_STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
LOG = "/data/torn-0/00000000000000000000.log"


def damaged(disk: CrashDisk) -> InProcess:
    """A node that was killed, one of whose partitions lost what a checkpoint had called synced."""
    server = InProcess(disk)
    line = server.connect()
    for topic in ("torn", "whole"):
        line.create_topic(topic)
        for _ in range(3):
            assert line.produce(topic, b"x" * 500).error_code == 0
    server.pass_ms(70_000)  # a checkpoint
    assert line.produce("torn", b"later").error_code == 0
    disk.kill()
    disk.power_on()
    file = disk.open(LOG, write=True)
    file.truncate(100)
    file.sync()
    return InProcess(disk)


def metadata(line: Any, topic: str) -> Any:
    request = API[3].request
    reply = line.call(3, 9, topics=[request.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return reply.topics[0].partitions[0]


def test_one_damaged_partition_is_offline_and_the_others_serve() -> None:
    disk = CrashDisk()
    server = damaged(disk)
    line = server.connect()
    offline = [fields for event, fields in server.events if event == "partition-offline"]
    assert [(each["topic"], each["partition"]) for each in offline] == [("torn", 0)]
    assert isinstance(offline[0]["error"], CorruptLogError)
    assert LOG in str(offline[0]["error"])
    assert line.produce("whole", b"on").error_code == 0
    assert line.fetch("whole", 0).error_code == 0
    assert line.produce("torn", b"no").error_code == KAFKA_STORAGE_ERROR
    assert line.fetch("torn", 0).error_code == KAFKA_STORAGE_ERROR
    assert line.call(
        2, 5, replica_id=-1, topics=[_list_offsets("torn")], isolation_level=0
    ).topics[0].partitions[0].error_code == KAFKA_STORAGE_ERROR  # fmt: skip
    assert _others(line, "torn") == [KAFKA_STORAGE_ERROR] * 3
    assert _others(line, "whole") == [0] * 3
    assert _others(line, "nowhere") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    told = metadata(line, "torn")
    assert (told.error_code, told.offline_replicas) == (KAFKA_STORAGE_ERROR, [1])
    assert metadata(line, "whole").error_code == 0


def _list_offsets(topic: str) -> Any:
    request = API[2].request
    partition = request.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=-1)
    return request.ListOffsetsTopic(name=topic, partitions=[partition])


def _others(line: Any, topic: str) -> list[int]:
    """What OffsetForLeaderEpoch, DescribeProducers and DeleteRecords say of its first partition."""
    epochs = API[23].request
    wanted = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=1)
    asked = epochs.OffsetForLeaderTopic(topic=topic, partitions=[wanted])
    found = [line.call(23, 4, replica_id=-1, topics=[asked]).topics[0].partitions[0].error_code]
    producers = API[61].request.TopicRequest(name=topic, partition_indexes=[0])
    found.append(line.call(61, 0, topics=[producers]).topics[0].partitions[0].error_code)
    records = API[21].request
    cut = records.DeleteRecordsTopic(
        name=topic, partitions=[records.DeleteRecordsPartition(partition_index=0, offset=0)]
    )
    found.append(line.call(21, 2, topics=[cut], timeout_ms=1000).topics[0].partitions[0].error_code)
    return found


def test_a_damaged_partition_goes_with_its_topic() -> None:
    disk = CrashDisk()
    server = damaged(disk)
    line = server.connect()
    assert line.call(20, 1, topic_names=["torn"], timeout_ms=1000).responses[0].error_code == 0
    server.pass_ms(2000)
    server.broker.world.entropy.next += 10_000  # type: ignore[attr-defined]  # ids are never drawn twice
    line.create_topic("torn")
    assert line.produce("torn", b"new").base_offset == 0
    disk.kill()
    disk.power_on()
    again = InProcess(disk).connect()
    assert again.fetch("torn", 0).error_code == 0


def test_a_topic_whose_partitions_cannot_be_made_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("before")
    journal = server.broker.store.directories[0].journal
    plain = journal.append

    def refused(kind: int, *rest: Any) -> int:
        if kind == EntryKind.CREATE and rest[0].tp.partition == 2:
            raise KafkaError(KAFKA_STORAGE_ERROR, "no room for another journal part")
        return plain(kind, *rest)

    monkeypatch.setattr(journal, "append", refused)
    request = API[19].request
    topic = request.CreatableTopic(name="half", num_partitions=4, replication_factor=1)
    answer = line.call(19, 7, topics=[topic], timeout_ms=1000).topics[0]
    assert answer.error_code == KAFKA_STORAGE_ERROR
    assert "half-2" in answer.error_message
    monkeypatch.undo()
    assert line.produce("before", b"a").error_code == 0
    assert not [name for name in server.disk.list_directory("/data") if name.startswith("half") and name[-1].isdigit()]
    assert [topic.name for topic in line.call(3, 12, topics=None).topics] == ["before"]
    assert server.clock.now_ms >= NOW
    line.create_topic("half")
    assert line.produce("half", b"a").error_code == 0
    server.disk.kill()
    server.disk.power_on()
    again = InProcess(server.disk)
    assert [index for index in range(4) if again.broker.partitions.find("half", index) is not None] == [0]


def test_a_directory_in_the_way_of_one_partition_refuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_creation, "CREATED_AT_ONCE", 2)
    server = InProcess()
    server.disk.make_directories("/data/x-0")
    line = server.connect()
    request = API[19].request
    wanted = [request.CreatableTopic(name=name, num_partitions=3, replication_factor=1) for name in "wxy"]
    answers = {topic.name: topic for topic in line.call(19, 7, topics=wanted, timeout_ms=1000).topics}
    assert {name: answer.error_code for name, answer in answers.items()} == {"w": 0, "x": KAFKA_STORAGE_ERROR, "y": 0}
    assert "/data/x-0 exists already" in answers["x"].error_message
    for tp in [TopicPartition(name, index) for name in "wxy" for index in range(3)]:
        partition = server.broker.partitions.find(*tp)
        assert (partition is not None and partition.replication.is_leader) is (tp != TopicPartition("x", 0))


def test_a_partition_that_could_not_be_made_is_not_made_elsewhere_before_a_restart() -> None:
    disk = CrashDisk()
    server = InProcess(disk, log_dirs="/data,/more")
    line = server.connect()
    where = []

    def fault(call: DiskCall) -> OSError | None:
        home = next((path for path in ("/data", "/more") if call.path.startswith(f"{path}/t-0")), None)
        if home is None or call.operation != "sync" or home not in (where or [home]):
            return None
        where.append(home)
        return OSError(5, "the disk is gone")

    disk.fault = fault
    request = API[19].request
    topic = request.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    assert line.call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == KAFKA_STORAGE_ERROR
    disk.fault = lambda call: None
    (other,) = {"/data", "/more"} - set(where)
    line.create_topic("next")  # a look at everything that lacks
    more = API[37].request.CreatePartitionsTopic(name="t", count=2, assignments=None)
    line.call(37, 3, topics=[more], timeout_ms=1000)
    assert server.broker.partitions.find("next", 0) is not None
    assert server.broker.partitions.find("t", 1) is not None
    assert server.broker.partitions.find("t", 0) is None, "half of it may be in the directory that failed"
    assert not disk.exists(f"{other}/t-0")
    assert line.produce("t", b"a").error_code == KAFKA_STORAGE_ERROR
    again = after_power_cut(server, log_dirs="/data,/more")
    assert again.connect().produce("t", b"a").error_code == 0


def test_however_many_partitions_a_failed_disk_refuses_the_node_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_creation, "CREATED_AT_ONCE", 1)
    disk = CrashDisk()
    server = InProcess(disk, log_dirs="/data,/more")
    line = server.connect()
    metadata_home = server.broker.store.home(controller.METADATA_PARTITION).path
    (other,) = {"/data", "/more"} - {metadata_home}
    disk.fault = lambda call: OSError(5, "lost") if call.operation == "sync" and call.path.startswith(other) else None
    (directory,) = [each for each in server.broker.store.directories if each.path == metadata_home]
    monkeypatch.setattr(directory, "take_creation", _refuse)
    request = API[19].request
    topic = request.CreatableTopic(name="many", num_partitions=1500, replication_factor=1)
    assert line.call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == KAFKA_STORAGE_ERROR
    assert metadata(line, "many").error_code == KAFKA_STORAGE_ERROR


def _refuse(new: Any, being_deleted: Any) -> Any:
    raise StorageError("not here")
