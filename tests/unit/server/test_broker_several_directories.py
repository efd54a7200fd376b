"""A node with several log directories of which one is not there: no partition begins anew in another one's place."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode, StorageError
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

TOPICS = ("one", "two", "three")


def stopped(server: InProcess) -> CrashDisk:
    server.broker.stop(lambda: None)
    server.run()
    return server.disk


def filled() -> CrashDisk:
    """Two directories, three topics with two records each."""
    server = InProcess(log_dirs="/a,/b")
    line = server.connect()
    for topic in TOPICS:
        line.create_topic(topic)
        assert line.produce(topic, b"1", b"2").error_code == 0
    homes = {topic: server.broker.publisher.image.topics[topic].id for topic in TOPICS}
    assert [found for found in homes.values() if (found, 0) in server.broker.store.directories[1].logs]
    return stopped(server)


def absent(server: InProcess) -> set[str]:
    return {fields["topic"] for event, fields in server.events if event == "partition-offline"}


def test_partitions_of_a_directory_that_is_not_open_are_offline_until_it_is_back() -> None:
    disk = filled()
    for _ in range(2):  # the second start has to know of the directory, too
        server = InProcess(disk, log_dirs="/a")
        line = server.connect()
        offline = absent(server)
        assert offline
        assert offline < set(TOPICS)
        for topic in TOPICS:
            expected = ErrorCode.KAFKA_STORAGE_ERROR if topic in offline else ErrorCode.NONE
            assert line.fetch(topic, 0).error_code == expected
            assert (line.produce(topic, b"3").error_code == 0) == (topic not in offline)
        stopped(server)
    server = InProcess(disk, log_dirs="/a,/b")
    line = server.connect()
    assert not absent(server)
    for topic in TOPICS:
        assert line.produce(topic, b"4").base_offset == (2 if topic in offline else 4)


def of_topic(server: InProcess, topic: str) -> list[int]:
    """How many partitions of it each directory has."""
    own = server.broker.publisher.image.topics[topic].id
    return [sum(key[0] == own for key in each.logs) for each in server.broker.store.directories]


def create(server: InProcess, topic: str, partitions: int) -> int:
    request = API[19].request.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    code: int = server.connect().call(19, 7, topics=[request], timeout_ms=1000).topics[0].error_code
    return code


def test_a_topic_is_spread_over_the_directories() -> None:
    """As Kafka's is; all of it came into the one that had the fewest, and had no more than that disk's speed."""
    server = InProcess(log_dirs="/a,/b,/c")
    before = [len(each.logs) for each in server.broker.store.directories]
    assert create(server, "wide", 8) == 0
    assert sum(of_topic(server, "wide")) == 8
    after = [len(each.logs) for each in server.broker.store.directories]
    assert max(after) - min(after) <= 1, f"{before} → {after}"
    more = API[37].request.CreatePartitionsTopic(name="wide", count=11, assignments=None)
    told = server.connect().call(37, 3, topics=[more], timeout_ms=1000, validate_only=False)
    assert told.results[0].error_code == 0
    assert max(of_topic(server, "wide")) <= 4
    for partition in range(11):
        assert server.broker.partitions.find("wide", partition) is not None


def test_what_one_directory_refuses_is_not_lost_in_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    server = InProcess(log_dirs="/a,/b,/c")
    directory = server.broker.store.directories[1]

    def refuse(new: Any, being_deleted: Any) -> Any:
        raise StorageError("not here")

    monkeypatch.setattr(directory, "take_creation", refuse)
    assert create(server, "wide", 9) == ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    assert absent(server) == {"wide"}
    again = InProcess(stopped(server), log_dirs="/a,/b,/c")
    assert not absent(again), "what could not be made then is made by the next start"
    assert sum(of_topic(again, "wide")) == 9
    for _ in range(100):
        again.broker.controller.new_uuid()  # each server of this world counts its ids from the first
    assert create(again, "other", 9) == 0
    after = [len(each.logs) for each in again.broker.store.directories]
    assert max(after) - min(after) <= 1


def test_a_directory_that_is_lost_is_forgotten_with_the_last_topic_that_was_in_it() -> None:
    server = InProcess(filled(), log_dirs="/a")
    for _ in range(100):
        server.broker.controller.new_uuid()  # each server of this world counts its ids from the first
    line = server.connect()
    request = API[20].request
    for topic in absent(server):
        doomed = request.DeleteTopicState(name=topic, topic_id=bytes(16))
        assert line.call(20, 6, topics=[doomed], timeout_ms=1000).responses[0].error_code == 0
        line.create_topic(topic)
        assert line.produce(topic, b"anew").base_offset == 0
    server = InProcess(stopped(server), log_dirs="/a")
    assert not absent(server)
    own = server.broker.publisher.image.brokers[1].directories
    assert len(own) == 1


def test_a_partition_that_is_in_two_directories_is_not_served_from_either() -> None:
    disk = filled()
    name = next(name for name in disk.list_directory("/b") if name.endswith("-0"))
    disk.make_directories(f"/a/{name}")
    for file, content in disk.contents().items():
        if file.startswith(f"/b/{name}/"):
            copy = disk.open(file.replace("/b/", "/a/", 1), create=True, write=True)
            copy.pwritev([content], 0)
            copy.sync()
    disk.sync_directory(f"/a/{name}")
    disk.sync_directory("/a")
    with pytest.raises(StorageError, match="is in /a and in /b"):
        InProcess(disk, log_dirs="/a,/b")


def move(disk: CrashDisk, source: str, target: str) -> None:
    """A directory under another name, as where something else is mounted."""
    disk.rename(source, target)
    disk.sync_directory("/")


@pytest.mark.parametrize("log_dirs", ["/b", "/b,/a", "/a,/b"])
def test_without_the_directory_of_the_metadata_log_nothing_begins_anew(log_dirs: str) -> None:
    """No topic would be known, and the next of an old name would begin at offset 0."""
    disk = filled()
    move(disk, "/a", "/elsewhere")
    for _ in range(2):
        with pytest.raises(
            StorageError, match=r"metadata log, .*, is in no directory of log.dirs, and /b has partition"
        ) as refused:
            InProcess(disk, log_dirs=log_dirs)
        assert ("/a is empty: is its disk mounted?" in str(refused.value)) is ("/a" in log_dirs)
        disk.end_process()
    if disk.exists("/a"):
        move(disk, "/a", "/new")
    move(disk, "/elsewhere", "/a")
    line = InProcess(disk, log_dirs="/a,/b").connect()
    for topic in TOPICS:
        assert line.produce(topic, b"3").base_offset == 2


def test_a_new_directory_may_be_named_first() -> None:
    """It was given a cluster id of its own, and the node refused the other one."""
    disk = filled()
    line = InProcess(disk, log_dirs="/new,/a,/b").connect()
    for topic in TOPICS:
        assert line.produce(topic, b"3").base_offset == 2


def no_part(directory: str) -> Callable[[DiskCall], OSError | None]:
    """The disk of the directory has less room left than a part of the journal takes."""

    def fault(call: DiskCall) -> OSError | None:
        lacks = call.operation == "preallocate" and call.path.startswith(directory)
        return OSError(errno.ENOSPC, "no space", call.path) if lacks else None

    return fault


def test_a_deletion_for_which_one_directory_has_no_room_is_made_when_it_has() -> None:
    """It was told of and never tried again: the files stayed, the name could not be used, and behind the next snapshot
    of the metadata not even a start knew that the topic was gone.
    """
    settings = {
        "log_dirs": "/a,/b",
        "duramen_journal_part_bytes": str(1 << 16),
        "duramen_journal_max_bytes": str(1 << 17),
        "duramen_journal_bypass_bytes": "8192",
        "duramen_reserve_bytes": "0",
        "metadata_log_max_record_bytes_between_snapshots": "1",
    }
    server = InProcess(None, **settings)
    server.disk.fault = no_part("/b")
    line = server.connect()
    assert create(server, "doomed", 4) == 0
    here, full = server.broker.store.directories
    topic_id = server.broker.publisher.image.topics["doomed"].id
    index = next(key[1] for key in full.logs if key[0] == topic_id)
    request = API[0].request
    code = sent = 0
    while code == 0:
        sent += 1
        assert sent < 1000
        batch = build_batch([(b"k", b"v" * 40, (), 1_760_000_000_000)])
        data = request.TopicProduceData(
            name="doomed", partition_data=[request.PartitionProduceData(index=index, records=batch)]
        )
        line.ask(0, 9, acks=-1, timeout_ms=1000, topic_data=[data])
        server.run()
        code = line.produced().error_code
    names = [API[20].request.DeleteTopicState(name="doomed", topic_id=bytes(16))]
    assert line.call(20, 6, topics=names, timeout_ms=1000).responses[0].error_code == 0
    assert [key for key in full.logs if key[0] == topic_id], "it has no room for that"
    assert not [key for key in here.logs if key[0] == topic_id]
    told = [event for event, _ in server.events].count("partition-not-deleted")
    server.pass_ms(5000)
    assert [event for event, _ in server.events].count("partition-not-deleted") == told, "once"
    snapshots = [event for event, _ in server.events].count("snapshot-written")
    line.create_topic("other")
    server.pass_ms(5000)
    assert [event for event, _ in server.events].count("snapshot-written") == snapshots, "it would forget the deletion"
    server.disk.fault = None
    server.pass_ms(120_000)
    assert not [key for key in full.logs if key[0] == topic_id]
    assert create(server, "doomed", 4) == 0
    again = InProcess(stopped(server), **settings)
    assert not [event for event, _ in again.events if event in ("log-of-unknown-topic", "log-of-deleted-topic")]


def test_what_was_deleted_while_its_directory_was_away_stays_as_long_as_is_set() -> None:
    """At a start there is no topic any more that could say it; the files stayed a minute, whatever was set."""
    disk = filled()
    server = InProcess(disk, log_dirs="/a")
    names = [API[20].request.DeleteTopicState(name=topic, topic_id=bytes(16)) for topic in absent(server)]
    server.connect().call(20, 6, topics=names, timeout_ms=1000)
    stopped(server)
    back = InProcess(disk, log_dirs="/a,/b", log_segment_delete_delay_ms="3000")
    gone = [path for path in disk.contents() if "-delete/" in path]
    assert gone
    back.pass_ms(2000)
    assert set(gone) <= set(disk.contents())
    back.pass_ms(2000)
    assert not [path for path in disk.contents() if "-delete/" in path]
