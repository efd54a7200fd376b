"""`metadata.log.dir`: the metadata log alone lives there, it is found again, and it never begins anew elsewhere."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess
from tests.worlds.partition_world import Numbers

from duramen.errors import StorageError
from duramen.model import TopicPartition
from duramen.partition.metadata.controller import METADATA_PARTITION
from duramen.sim.world.disk import CrashDisk
from duramen.storage import mark_shared

TOPICS = [f"t{number}" for number in range(6)]


def stopped(server: InProcess) -> CrashDisk:
    server.broker.stop(lambda: None)
    server.run()
    return server.disk


def served(disk: CrashDisk | None = None, entropy: Numbers | None = None) -> InProcess:
    return InProcess(disk, entropy=entropy, log_dirs="/a,/b", metadata_log_dir="/m")


def test_topics_are_made_in_the_others() -> None:
    server = served()
    client = server.connect()
    for name in TOPICS:
        client.create_topic(name)
        client.produce(name, b"value")
    store = server.broker.store
    assert store.home(METADATA_PARTITION).path == "/m"
    assert {store.home(TopicPartition(name, 0)).path for name in TOPICS} == {"/a", "/b"}
    assert [log.tp for log in store.directories[-1].logs.values()] == [METADATA_PARTITION]
    ids = {directory.path: directory.directory_id for directory in store.directories}
    assert len(set(ids.values())) == 3
    listed = client.call(35, 1, topics=None)
    assert [each.log_dir for each in listed.results] == ["/a", "/b"]
    disk = stopped(server)
    entropy = Numbers()
    entropy.next = 1000
    again = served(disk, entropy)
    assert sorted(again.broker.image.topics) == TOPICS
    assert len(again.broker.image.brokers[again.broker.node_id].directories) == 2
    again.connect().create_topic("more")
    assert again.broker.store.home(TopicPartition("more", 0)).path != "/m"


def test_a_log_that_is_elsewhere_does_not_begin_anew() -> None:
    server = InProcess(log_dirs="/a,/b")
    server.connect().create_topic("t")
    disk = stopped(server)
    with pytest.raises(
        StorageError, match=r"metadata\.log\.dir=/m, and this node's metadata log is in /a: set metadata"
    ):
        served(disk)
    assert sorted(InProcess(stopped_again(disk), log_dirs="/a,/b").broker.image.topics) == ["t"]


def stopped_again(disk: CrashDisk) -> CrashDisk:
    disk.end_process()
    return disk


def test_one_of_log_dirs_may_be_named() -> None:
    server = InProcess(log_dirs="/a,/b", metadata_log_dir="/b/")
    assert server.broker.store.home(METADATA_PARTITION).path == "/b"
    assert [directory.only_metadata for directory in server.broker.store.directories] == [False, False]


def test_without_it_the_log_is_not_found_where_it_was() -> None:
    server = served()
    server.connect().create_topic("t")
    disk = stopped(server)
    with pytest.raises(StorageError, match=r"is in no directory of log\.dirs"):
        InProcess(disk, log_dirs="/a,/b")


def test_the_only_voter_of_a_cluster_knows_all_of_its_log_at_the_start() -> None:
    server = served()
    server.connect().create_topic("t")
    disk = stopped(server)
    mark_shared(disk, "/b")
    node = served(disk)
    quorum = node.broker.controller.quorum
    assert (quorum.is_leader, quorum.is_sole_voter, quorum.epoch) == (True, True, 2)
    assert node.broker.image.topic("t") is not None
    assert TopicPartition("t", 0) in node.broker.store.partitions
