"""The disk with the metadata log is gone: `duramen log repair --metadata` on one that is left, and the node serves."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
from tests.worlds.broker_world import NOW, InProcess, Line
from tests.worlds.lost_metadata_world import producer_id, stopped
from tests.worlds.repair_world import cut_short

from duramen.cli.log import repair as repair_command
from duramen.cli.log.repair import CannotError
from duramen.errors import DuramenError
from duramen.model import OFFSETS_TOPIC, TopicPartition
from duramen.partition.metadata.controller import METADATA_PARTITION
from duramen.server.coordinators.partitioner import partition_for
from duramen.sim.world.disk import CrashDisk
from duramen.storage.files.entropy import SystemEntropy
from duramen.storage.repair.rebuild_metadata import rebuild_metadata_log
from duramen.storage.repair.verify import verify_directory
from duramen.wire.messages import API

TOPICS = [f"t{number}" for number in range(8)]
LEFT = "/b"


def lost_disk(*, clean: bool, topics: Sequence[str] = TOPICS) -> tuple[CrashDisk, set[str], int, int]:
    """A node's other disk is left; its topics' names, the latest leader epoch, and a producer id that was given out."""
    server = InProcess(log_dirs="/a,/b")
    for name in topics:
        server.connect().create_topic(name)
    for _ in range(2):
        disk = stopped(server)
        server = InProcess(disk, log_dirs="/a,/b")
        for name in topics:
            server.connect().produce(name, name.encode())
    store = server.broker.store
    assert store.home(METADATA_PARTITION).path == "/a"
    left = {name for name in topics if store.home(TopicPartition(name, 0)).path == LEFT}
    assert left
    assert left != set(topics)
    epoch = max(partition.leader_epoch for partition in store.partitions.values())
    given = producer_id(server.connect())
    if clean:
        stopped(server)
    else:
        disk.kill()
        disk.power_on()
    disk.remove("/a")
    disk.sync_directory("/")
    return disk, left, epoch, given


def repair(disk: CrashDisk, **options: bool) -> int:
    with patch.object(repair_command, "RealDisk", lambda: disk):
        wanted = {"without": False, "dry_run": False, "yes": True, "as_json": True, "anew": True, **options}
        return int(repair_command.command.callback(LEFT, None, None, **wanted))  # type: ignore[misc]


@pytest.mark.parametrize("log_dirs", ["/a,/b", "/b"])
@pytest.mark.parametrize("refused_first", [False, True])
@pytest.mark.parametrize("clean", [True, False])
def test_what_the_other_disks_have_is_served_again(log_dirs: str, refused_first: bool, clean: bool) -> None:
    disk, left, epoch, given = lost_disk(clean=clean)
    if refused_first:
        with pytest.raises(DuramenError, match=f"`duramen log repair {LEFT} --metadata`"):
            InProcess(disk, log_dirs=log_dirs)
        disk.end_process()
    assert repair(disk, dry_run=True) == 1
    assert not disk.exists(f"{LEFT}/{METADATA_PARTITION}")
    assert repair(disk) == 1
    for number in range(3):
        server = InProcess(disk, log_dirs=log_dirs)
        assert set(server.broker.image.names()) == left
        events = [event for event, _ in server.events]
        assert events.count("topic-regained") == (0 if number else len(left))
        assert not {"partition-offline", "log-of-unknown-topic", "topic-created", "damage"} & set(events)
        line = server.connect()
        for name in left:
            partition = server.broker.store.partitions[TopicPartition(name, 0)]
            assert partition.leader_epoch > max(epoch, 1 << 20)
            assert line.produce(name, b"more").base_offset == 2 + number
        assert producer_id(line) > given
        stopped(server)
        assert not list(verify_directory(disk, LEFT, lambda size: None).all_findings())


@pytest.mark.parametrize("clean", [True, False])
def test_it_may_end_in_any_call(clean: bool) -> None:
    disk, left, _, _ = lost_disk(clean=clean, topics=TOPICS[:3])
    ends = set()

    def whole(copy: CrashDisk) -> None:
        assert rebuild_metadata_log(copy, LEFT, NOW, SystemEntropy(), lambda recovers: None) is not None

    for cut in cut_short(disk, whole):
        ends.add(cut.exists(f"{LEFT}/{METADATA_PARTITION}"))
        if not cut.exists(f"{LEFT}/{METADATA_PARTITION}"):
            with pytest.raises(DuramenError, match="--metadata"):
                InProcess(cut, log_dirs=LEFT)
            cut.end_process()
            whole(cut)
        server = InProcess(cut, log_dirs=LEFT)
        assert set(server.broker.image.names()) == left
        assert server.broker.store.partitions[METADATA_PARTITION].log_end_offset > 1 << 20
    assert ends == {False, True}


def test_so_may_the_first_start_behind_it() -> None:
    disk, left, _, _ = lost_disk(clean=False, topics=TOPICS[:3])
    assert repair(disk) == 1
    for cut in cut_short(disk, lambda copy: InProcess(copy, log_dirs=LEFT)):
        server = InProcess(cut, log_dirs=LEFT)
        assert set(server.broker.image.names()) == left
        for name in left:
            partition = server.broker.store.partitions[TopicPartition(name, 0)]
            assert partition.leader_epoch > 1 << 20
            assert partition.log_end_offset == 2


def test_it_is_only_for_a_metadata_log_that_is_gone() -> None:
    server = InProcess()
    server.connect().create_topic("t")
    disk = stopped(server)
    disk.rename("/data", LEFT)
    with pytest.raises(CannotError, match="is there; `duramen log repair /b` without --metadata"):
        repair(disk)
    disk.remove(f"{LEFT}/{METADATA_PARTITION}")
    with pytest.raises(CannotError, match="is known to be missing: `duramen log repair /b` without --metadata"):
        repair(disk)


def test_an_unused_directory_is_not_the_one() -> None:
    server = InProcess(log_dirs="/a,/b")
    disk = stopped(server)
    disk.remove("/a")
    with pytest.raises(CannotError, match="has no partitions"):
        repair(disk)


def test_no_leader_epoch_is_begun_twice_where_it_happens_again() -> None:
    server = InProcess(log_dirs="/a,/b,/c")
    for name in TOPICS:
        server.connect().create_topic(name)
        server.connect().produce(name, b"1")
    disk = stopped(server)
    disk.remove("/a")
    rebuild_metadata_log(disk, "/b", NOW, SystemEntropy(), lambda recovers: None)
    for number in range(30):
        server = InProcess(disk, log_dirs="/b,/c")
        if number == 0:
            left = [tp.topic for tp in server.broker.store.partitions if server.broker.store.home(tp).path == "/c"]
            for name in left:
                server.connect().produce(name, b"2")
        epochs = {tp: partition.leader_epoch for tp, partition in server.broker.store.partitions.items()}
        stopped(server)
    disk.remove("/b")
    rebuild_metadata_log(disk, "/c", NOW + 3_600_000, SystemEntropy(), lambda recovers: None)
    server = InProcess(disk, log_dirs="/c")
    assert left
    for name in left:
        tp = TopicPartition(name, 0)
        assert server.broker.store.partitions[tp].leader_epoch > epochs[tp]


def test_groups_whose_partition_is_left_keep_what_they_committed() -> None:
    """The last partitions of __consumer_offsets were gone, and with fewer of them groups are looked for elsewhere."""
    count = 10
    server = InProcess(log_dirs="/a,/b", offsets_topic_num_partitions=str(count))
    line = server.connect()
    line.create_topic("t")
    line.create_topic("u")
    line.produce("t", *[b"v"] * 40)
    groups = [f"g{number}" for number in range(30)]
    line.call(10, 4, coordinator_keys=groups[:1], key_type=0)
    for number, group in enumerate(groups):
        assert commit(line, group, number) == 0
    homes = [server.broker.store.home(TopicPartition(OFFSETS_TOPIC, index)).path for index in range(count)]
    assert homes[-1] == "/a"
    disk = stopped(server)
    disk.remove("/a")
    assert repair(disk) == 1
    server = InProcess(disk, log_dirs=LEFT, offsets_topic_num_partitions=str(count))
    line = server.connect()
    for number, group in enumerate(groups):
        is_left = homes[partition_for(group, count)] == LEFT
        assert committed(line, group) == (0, number if is_left else -1)
        assert commit(line, group, number) == 0
    disk = stopped(server)
    server = InProcess(disk, log_dirs=LEFT, offsets_topic_num_partitions=str(2 * count))
    topic = server.broker.image.topic(OFFSETS_TOPIC)
    assert topic is not None
    assert len(topic.partitions) == count
    assert all(committed(server.connect(), group) == (0, number) for number, group in enumerate(groups))


def commit(line: Line, group: str, offset: int) -> int:
    request = API[8].request
    partition = request.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    topics = [request.OffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = line.call(8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)
    return int(answer.topics[0].partitions[0].error_code)


def committed(line: Line, group: str) -> tuple[int, int]:
    request = API[9].request
    topics = [request.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    answer = line.call(9, 7, group_id=group, topics=topics, require_stable=False)
    return int(answer.error_code), int(answer.topics[0].partitions[0].committed_offset) if answer.topics else -1
