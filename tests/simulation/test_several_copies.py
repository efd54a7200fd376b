"""Partitions of several copies as clients meet them: made from any node, led by one, told of by all the same way."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.server.test_broker_full_disk import fill
from tests.worlds.quorum_world import QuorumWorld

from duramen.errors import ErrorCode
from duramen.machines.metadata.commands import NewTopic, TopicCreated
from duramen.wire.messages import API

THREE = {"default_replication_factor": "3", "offsets_topic_replication_factor": "3", "min_insync_replicas": "2"}


@pytest.fixture
def cluster() -> QuorumWorld:
    cluster = QuorumWorld(**THREE, offsets_topic_num_partitions="3")
    for node_id in cluster.hosts:
        cluster.join(node_id)
    return cluster


def create(cluster: QuorumWorld, name: str, *, at: int = 1, **options: Any) -> TopicCreated:
    """A topic; its creator's answer."""
    client, answers = cluster.brokers[at].controller_client, []
    wanted = {"partitions": 3, **options}
    client.create([client.new_topic(name)._replace(**wanted)], answers.append)
    assert cluster.until(lambda: bool(answers))
    return answers[0][0]


def known(cluster: QuorumWorld, name: str, *, at: int) -> Any:
    """The topic in the image of that node, as soon as it is there."""
    image = cluster.brokers[at].image
    assert cluster.until(lambda: name in image.topics)
    return image.topics[name]


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_topics_have_as_many_copies_as_the_settings_say(cluster: QuorumWorld, node_id: int) -> None:
    created = create(cluster, "t", at=node_id)
    assert (created.result.error, created.replication_factor) == (ErrorCode.NONE, 3)
    for each in cluster.hosts:
        topic = known(cluster, "t", at=each)
        assert {partition.leader for partition in topic.partitions} == {1, 2, 3}
        assert all(set(partition.replicas) == set(partition.isr) == {1, 2, 3} for partition in topic.partitions)
    two = create(cluster, "two", at=node_id, replication_factor=2, partitions=1)
    assert two.replication_factor == 2
    placed = create(cluster, "placed", at=node_id, partitions=-1, assignments=((0, (3, 1)), (1, (2, 3))))
    assert (placed.result.error, placed.replication_factor) == (ErrorCode.NONE, 2)
    four = create(cluster, "four", at=node_id, replication_factor=4)
    assert four.result.error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_how_many_copies_count_is_the_clusters_answer_on_all_nodes(cluster: QuorumWorld) -> None:
    create(cluster, "t")
    create(cluster, "one", replication_factor=1)
    create(cluster, "own", configs=(("min.insync.replicas", "3"),))
    for node_id, broker in cluster.brokers.items():
        fewest = {}
        for name in ("t", "one", "own"):
            assert cluster.until(lambda name=name, at=node_id: name in cluster.brokers[at].image.topics)
            config = broker.publisher.topic_config(name)
            fewest[name] = config.fewest_in_sync(broker.image.topics[name].replication_factor)
        assert fewest == {"t": 2, "one": 1, "own": 3}


def test_whoever_does_not_lead_says_so(cluster: QuorumWorld) -> None:
    """Not that the topic is unknown, whether the node has a copy or none: clients look for the leader at once."""
    create(cluster, "t", partitions=1, replication_factor=2)
    (partition,) = known(cluster, "t", at=1).partitions
    for node_id in cluster.hosts:
        known(cluster, "t", at=node_id)
        assert cluster.until(lambda at=node_id: cluster.brokers[at].publisher.is_settled)
        expected = ErrorCode.NONE if node_id == partition.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert errors(cluster, node_id) == dict.fromkeys(errors(cluster, node_id), expected)


def errors(cluster: QuorumWorld, node_id: int) -> dict[str, int]:
    """What this broker answers of partition 0 of topic t."""
    answers = {}
    topic = known(cluster, "t", at=node_id)
    listing = API[2].request
    wanted = listing.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-2)
    topics = [listing.ListOffsetsTopic(name="t", partitions=[wanted])]
    found = cluster.ask_broker(node_id, "ListOffsets", 7, replica_id=-1, isolation_level=0, topics=topics)
    answers["ListOffsets"] = found.topics[0].partitions[0].error_code
    epochs = API[23].request
    asked = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    topics = [epochs.OffsetForLeaderTopic(topic="t", partitions=[asked])]
    found = cluster.ask_broker(node_id, "OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics)
    answers["OffsetForLeaderEpoch"] = found.topics[0].partitions[0].error_code
    fetch = API[1].request
    part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    for version, fields in ((12, {"topic": "t"}), (17, {"topic_id": topic.id})):
        topics = [fetch.FetchTopic(partitions=[part], **fields)]
        found = cluster.ask_broker(node_id, "Fetch", version, max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=topics)
        answers[f"Fetch {version}"] = found.responses[0].partitions[0].error_code
    return answers


def test_a_dead_broker_s_replicas_are_offline_and_out_of_sync(cluster: QuorumWorld) -> None:
    create(cluster, "t")
    dead = next(each for each in cluster.hosts if each != cluster.active())
    cluster.world.nodes[dead].kill()
    rest = [each for each in cluster.hosts if each != dead]
    for node_id in rest:
        topic = known(cluster, "t", at=node_id)
        assert cluster.until(lambda topic=topic: all(dead not in each.isr for each in topic.partitions))
        told = cluster.ask_broker(node_id, "Metadata", 12, topics=[API[3].request.MetadataRequestTopic(name="t")])
        described = cluster.ask_broker(
            node_id, "DescribeTopicPartitions", 0, topics=[API[75].request.TopicRequest(name="t")]
        )
        for partitions in (told.topics[0].partitions, described.topics[0].partitions):
            for partition in partitions:
                assert partition.error_code == 0
                assert partition.leader_id in rest
                assert sorted(partition.replica_nodes) == [1, 2, 3]
                assert sorted(partition.isr_nodes) == rest
                assert list(partition.offline_replicas) == [dead]
    # One dead node does not keep a topic of three copies from being made, nor the first group from beginning.
    assert create(cluster, "new", at=rest[0]).result.error is ErrorCode.NONE
    assert all(set(each.isr) == set(rest) for each in known(cluster, "new", at=rest[1]).partitions)


def test_fewer_brokers_than_copies_are_registered() -> None:
    alone = QuorumWorld(seed=2, count=1, offsets_topic_replication_factor="3")
    alone.join(1)
    answers = [alone.ask_broker(1, "FindCoordinator", 4, key_type=0, coordinator_keys=["g"]) for _ in range(2)]
    assert [answer.coordinators[0].error_code for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    why = [str(fields["error"]) for _, event, fields in alone.events if event == "offsets-topic-refused"]
    assert why
    assert all("offsets.topic.replication.factor" in each for each in why)


def test_a_copy_that_lacks_room_waits_and_has_nothing_deleted(cluster: QuorumWorld) -> None:
    refused = next(each for each in cluster.hosts if each != cluster.active())
    disk = cluster.world.disks[refused]
    fill(disk, lambda call: call.operation == "make_directories" and "/full-" in call.path)
    client, answers = cluster.brokers[refused].controller_client, []
    client.create([NewTopic("full", client.new_topic("x").topic_id, 1, 3)], answers.append)
    assert cluster.until(lambda: bool(answers))
    cluster.run(3.0)
    for node_id in cluster.hosts:
        assert "full" in cluster.brokers[node_id].image.topics, "it is not one replica's to delete"
    assert cluster.brokers[refused].partitions.find("full", 0) is None
    disk.fault = None
    assert cluster.until(lambda: cluster.brokers[refused].partitions.find("full", 0) is not None)


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_copy_of_a_page_cache_topic_is_in_doubt_behind_an_unclean_stop(
    cluster: QuorumWorld, clean: bool
) -> None:
    last, other = cluster.others()
    create(
        cluster,
        "t",
        partitions=-1,
        assignments=((0, (last, other)),),
        configs=(("duramen.ack.durability", "page-cache"),),
    )
    (partition,) = known(cluster, "t", at=other).partitions
    assert partition.isr == (last, other)
    cluster.world.nodes[other].kill()
    topic = known(cluster, "t", at=last)
    assert cluster.until(lambda: topic.partitions[0].isr == (last,))
    if clean:
        cluster.world.nodes[last].stop()
        assert cluster.until(lambda: not cluster.world.nodes[last].running)
    else:
        cluster.world.nodes[last].kill()
    cluster.events.clear()
    cluster.start(last)
    cluster.join(last)
    told = [(node, fields) for node, event, fields in cluster.events if event == "last-copy-in-doubt"]
    assert [(node, str(fields["first"]), fields["partitions"]) for node, fields in told] == (
        [] if clean else [(last, "t-0", 1)]
    )
