"""The metadata machine: what it refuses, what it records, and that a replay builds the same image."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.metadata_cluster import Cluster, change, registration, summary, topic_id

from duramen.config import BrokerConfig, load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    AllocateProducerIds,
    AlterOperation,
    Barrier,
    BeginCluster,
    CommittedImage,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    MetadataImage,
    MetadataMachine,
    MorePartitions,
    NewTopic,
    ProducerIds,
    RaiseEpochs,
    SetConfigs,
    SkipProducerIds,
    TopicRef,
    codec,
    name_problem,
)
from duramen.model import FIRST_SINK_PRODUCER_ID, OFFSETS_TOPIC, TopicPartition
from duramen.partition.host.host import Host


@pytest.fixture(scope="module")
def config() -> BrokerConfig:
    return load_broker_config(None)


@pytest.fixture
def cluster(config: BrokerConfig) -> Cluster:
    return Cluster(config)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a/b", "a b", "é", "a\n", "../x", "a\0", "a*", "_x\t"])
def test_names_that_are_no_topic_names(cluster: Cluster, name: str) -> None:
    assert name_problem(name) is not None
    assert cluster.create(name).result.error == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "a" * 249, "a.b_c-D9", "...", "__consumer_offsets"])
def test_names_that_are(cluster: Cluster, name: str) -> None:
    created = cluster.create(name)
    assert (created.result.error, created.partitions, created.replication_factor) == (ErrorCode.NONE, 1, 1)
    assert cluster.image.topic(name).id == created.topic_id


def test_names_may_not_collide_in_dots_and_underscores(cluster: Cluster) -> None:
    cluster.create("a.b_c")
    refused = cluster.create("a_b.c", 2)
    assert refused.result.error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "a.b_c" in refused.result.message
    both = cluster.ask(CreateTopics((NewTopic("x.y", topic_id(3)), NewTopic("x_y", topic_id(4)))))
    assert [answer.result.error for answer in both] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]
    cluster.ask(DeleteTopics((TopicRef("a.b_c"),)))
    assert cluster.create("a_b.c", 5).result.error == ErrorCode.NONE


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignments": ((0, (1,)),), "partitions": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignments": ((0, (1,)),), "replication_factor": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignments": ((1, (1,)),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, ()),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (2,)),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (1, 1)),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (1,)), (0, (1,)))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"configs": (("no.such", "1"),)}, ErrorCode.INVALID_CONFIG),
        ({"configs": (("retention.ms", "soon"),)}, ErrorCode.INVALID_CONFIG),
        ({"configs": (("retention.ms", None),)}, ErrorCode.INVALID_CONFIG),
        ({"configs": (("retention.ms", "1" * 40_000),)}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_creations_that_are_refused(cluster: Cluster, options: dict[str, Any], error: ErrorCode) -> None:
    before = cluster.partition.log_end_offset
    assert cluster.create("t", **options).result.error == error
    assert cluster.partition.log_end_offset == before
    assert cluster.image.topic("t") is None


def test_a_topic_is_created_once(cluster: Cluster) -> None:
    cluster.create("t")
    assert cluster.create("t", 2).result.error == ErrorCode.TOPIC_ALREADY_EXISTS
    twice = cluster.ask(CreateTopics((NewTopic("u", topic_id(3)), NewTopic("u", topic_id(4)))))
    assert {answer.result.error for answer in twice} == {ErrorCode.INVALID_REQUEST}
    assert cluster.create("__cluster_metadata", 5).result.error == ErrorCode.INVALID_REQUEST


def test_defaults_come_with_the_command(cluster: Cluster) -> None:
    answer = cluster.ask(CreateTopics((NewTopic("t", topic_id(1)),), default_partitions=6))[0]
    assert answer.partitions == 6
    partition = cluster.image.partition(TopicPartition("t", 5))
    assert (partition.leader, partition.leader_epoch, partition.replicas, partition.isr) == (1, 0, (1,), (1,))
    assert cluster.image.partition(TopicPartition("t", 6)) is None
    assert cluster.image.partition(TopicPartition("t", -1)) is None


def test_validate_only_answers_alike_and_writes_nothing(cluster: Cluster) -> None:
    before = cluster.partition.log_end_offset
    command = CreateTopics((NewTopic("t", topic_id(1), partitions=3),), validate_only=True)
    assert cluster.ask(command)[0].partitions == 3
    cluster.create("u", 2)
    grow = CreatePartitions((MorePartitions("u", 4),), validate_only=True)
    assert cluster.ask(grow)[0][1].error == ErrorCode.NONE
    change = ConfigChange(TOPIC_RESOURCE, "u", (ConfigOperation("retention.ms", AlterOperation.SET, "5"),))
    assert cluster.ask(SetConfigs((change,), validate_only=True))[0].error == ErrorCode.NONE
    assert cluster.image.topic("t") is None
    assert len(cluster.image.topic("u").partitions) == 1
    assert cluster.image.topic_config("u") == {}
    assert cluster.partition.log_end_offset == before + 2


def test_one_request_may_not_ask_for_the_world(cluster: Cluster) -> None:
    answer = cluster.ask(CreateTopics((NewTopic("t", topic_id(1), partitions=2**31 - 1),)))
    assert isinstance(answer, KafkaError)
    assert answer.code == ErrorCode.POLICY_VIOLATION
    cluster.create("u")
    grow = cluster.ask(CreatePartitions((MorePartitions("u", 2**31 - 1),)))
    assert grow[0][1].error == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize(
    ("total", "assignments", "error"),
    [
        (3, None, ErrorCode.NONE),
        (3, ((1,),), ErrorCode.NONE),
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (-1, None, ErrorCode.INVALID_PARTITIONS),
        (4, ((1,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((9,),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, ((),), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growing_a_topic(cluster: Cluster, total: int, assignments: Any, error: ErrorCode) -> None:
    cluster.create("t", partitions=2)
    assert cluster.ask(CreatePartitions((MorePartitions("t", total, assignments),)))[0][1].error == error
    expected = total if error == ErrorCode.NONE else 2
    assert len(cluster.image.topic("t").partitions) == expected
    assert cluster.image.partition_count == expected


def test_growing_what_is_not_there_or_named_twice(cluster: Cluster) -> None:
    answers = cluster.ask(CreatePartitions((MorePartitions("t", 2),)))
    assert answers[0][1].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.create("t")
    answers = cluster.ask(CreatePartitions((MorePartitions("t", 2), MorePartitions("t", 3))))
    assert [answer[1].error for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2


def test_deleting_by_name_and_by_id_drops_settings_too(cluster: Cluster) -> None:
    for number, name in enumerate(["a", "b", "c"], 1):
        cluster.create(name, number, configs=(("retention.ms", "5"),))
    answers = cluster.ask(
        DeleteTopics(
            (
                TopicRef("a"),
                TopicRef(None, topic_id(2)),
                TopicRef("nope"),
                TopicRef(None, topic_id(99)),
                TopicRef("c", topic_id(3)),
                TopicRef(None),
            )
        )
    )
    assert [answer.result.error for answer in answers] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert answers[1].name == "b"
    assert cluster.image.names() == ["c"]
    assert cluster.image.topic_config("a") == {}
    again = cluster.create("a", 8)
    assert again.result.error == ErrorCode.NONE
    assert cluster.image.topic_config("a") == {}
    both = cluster.ask(DeleteTopics((TopicRef("c"), TopicRef(None, topic_id(3)))))
    assert [answer.result.error for answer in both] == [ErrorCode.INVALID_REQUEST] * 2
    assert cluster.image.topic_name(topic_id(3)) == "c"


def test_the_offsets_topic_does_not_grow(cluster: Cluster) -> None:
    """A group's place depends on the number of partitions: its commits would be looked for in another one."""
    cluster.create(OFFSETS_TOPIC, partitions=50)
    refused = cluster.ask(CreatePartitions((MorePartitions(OFFSETS_TOPIC, 60),)))[0][1]
    assert refused.error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert len(cluster.image.topic(OFFSETS_TOPIC).partitions) == 50


def test_settings_are_set_appended_subtracted_and_deleted(cluster: Cluster) -> None:
    cluster.create("t")
    image = cluster.image

    def ask(*operations: tuple[str, int, str | None], **more: Any) -> Any:
        return cluster.ask(change("t", *operations, **more))[0].error

    assert (
        ask(("retention.ms", AlterOperation.SET, "5"), ("segment.bytes", AlterOperation.SET, "2000000"))
        == ErrorCode.NONE
    )
    assert image.topic_config("t") == {"retention.ms": "5", "segment.bytes": "2000000"}
    assert ask(("cleanup.policy", AlterOperation.APPEND, "compact")) == ErrorCode.NONE
    assert image.topic_config("t")["cleanup.policy"] == "delete,compact"
    assert ask(("cleanup.policy", AlterOperation.SUBTRACT, "delete")) == ErrorCode.NONE
    assert image.topic_config("t")["cleanup.policy"] == "compact"
    assert ask(("retention.ms", AlterOperation.DELETE, None)) == ErrorCode.NONE
    assert "retention.ms" not in image.topic_config("t")
    assert ask(("retention.ms", AlterOperation.SET, "6"), replace=True) == ErrorCode.NONE
    assert image.topic_config("t") == {"retention.ms": "6"}
    before = cluster.partition.log_end_offset
    assert ask(("retention.ms", AlterOperation.SET, "6")) == ErrorCode.NONE
    assert cluster.partition.log_end_offset == before, "what does not change is not recorded"
    assert ask(("retention.ms", AlterOperation.APPEND, "6")) == ErrorCode.INVALID_CONFIG
    assert ask(("retention.ms", AlterOperation.SET, None)) == ErrorCode.INVALID_REQUEST
    assert ask(("retention.ms", 9, "1")) == ErrorCode.INVALID_REQUEST
    assert ask(("nope", AlterOperation.SET, "1")) == ErrorCode.INVALID_CONFIG
    assert ask(("nope", AlterOperation.DELETE, None)) == ErrorCode.NONE, "there is nothing to delete, as in Kafka"
    assert ask(("nope", AlterOperation.APPEND, "1")) == ErrorCode.INVALID_CONFIG
    assert (
        ask(("retention.ms", AlterOperation.SET, "1"), ("retention.ms", AlterOperation.SET, "2"))
        == ErrorCode.INVALID_REQUEST
    )
    assert (
        ask(("segment.bytes", AlterOperation.SET, "2000000"), ("flush.ms", AlterOperation.SET, "x")) != ErrorCode.NONE
    )
    assert image.topic_config("t") == {"retention.ms": "6"}, "a change is taken as a whole or not at all"


def test_settings_of_what_is_not_there(cluster: Cluster) -> None:
    operation = ("retention.ms", int(AlterOperation.SET), "5")
    assert cluster.ask(change("t", operation))[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for name in ("bad name", "..", "x" * 250):
        assert cluster.ask(change(name, operation))[0].error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert cluster.ask(change("", operation))[0].error == ErrorCode.INVALID_REQUEST, "topics have no defaults to set"
    assert cluster.ask(change("2", operation, kind=BROKER_RESOURCE))[0].error == ErrorCode.INVALID_REQUEST
    assert cluster.ask(change("x", operation, kind=BROKER_RESOURCE))[0].error == ErrorCode.INVALID_REQUEST
    assert cluster.ask(change("t", operation, kind=77))[0].error == ErrorCode.INVALID_REQUEST
    one = ConfigChange(TOPIC_RESOURCE, "t", ())
    assert [a.error for a in cluster.ask(SetConfigs((one, one)))] == [ErrorCode.INVALID_REQUEST] * 2


def test_broker_settings_per_node_and_for_all(cluster: Cluster) -> None:
    operation = ("message.max.bytes", int(AlterOperation.SET), "2000000")
    assert cluster.ask(change("", operation, kind=BROKER_RESOURCE))[0].error == ErrorCode.NONE
    assert cluster.ask(change("1", operation, kind=BROKER_RESOURCE))[0].error == ErrorCode.NONE
    assert cluster.image.broker_config(None) == {"message.max.bytes": "2000000", "min.insync.replicas": "1"}
    assert cluster.image.broker_config(1) == {"message.max.bytes": "2000000"}


@pytest.mark.parametrize("node", ["", "1"])
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("log.dirs", "/tmp", ErrorCode.INVALID_REQUEST),
        ("message.max.bytes", "-5", ErrorCode.INVALID_REQUEST),
        ("message.max.bytes", "x", ErrorCode.INVALID_REQUEST),
        ("log.cleanup.policy", "shrink", ErrorCode.INVALID_REQUEST),
        ("log.retention.ms", "0", ErrorCode.INVALID_REQUEST),
        ("num.io.threads", "9", ErrorCode.INVALID_CONFIG),
        ("no.such.setting", "9", ErrorCode.INVALID_CONFIG),
    ],
)
def test_broker_settings_that_are_refused(cluster: Cluster, node: str, name: str, value: str, code: ErrorCode) -> None:
    """With Apache Kafka's codes; but what has no meaning here, and what nobody knows, it takes."""
    assert cluster.ask(change(node, (name, int(AlterOperation.SET), value), kind=BROKER_RESOURCE))[0].error == code


def test_throttles_of_replication_can_be_set_and_cleared(cluster: Cluster) -> None:
    """kafka-reassign-partitions sets them with --throttle, and --verify and --cancel clear them, set or not."""
    rates = (
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
    removed = [(name, int(AlterOperation.DELETE), None) for name in rates]
    assert cluster.ask(change("1", *removed, kind=BROKER_RESOURCE))[0].error == ErrorCode.NONE
    for name in rates:
        operation = (name, int(AlterOperation.SET), "1000000")
        for node in ("1", ""):  # as Kafka takes them, for one node and for all
            assert cluster.ask(change(node, operation, kind=BROKER_RESOURCE))[0].error == ErrorCode.NONE
        below = (name, int(AlterOperation.SET), "-1")
        assert cluster.ask(change("1", below, kind=BROKER_RESOURCE))[0].error == ErrorCode.INVALID_REQUEST
    assert cluster.image.broker_config(1) == dict.fromkeys(rates, "1000000")
    assert cluster.ask(change("1", *removed, kind=BROKER_RESOURCE))[0].error == ErrorCode.NONE
    assert cluster.image.broker_config(1) == {}


def test_each_start_begins_new_leader_epochs_with_one_record(cluster: Cluster) -> None:
    cluster.create("t", partitions=50)
    epochs = [partition.leader_epoch for partition in cluster.image.topic("t").partitions]
    assert epochs == [0] * 50
    before = cluster.partition.log_end_offset
    first = cluster.start(incarnation=8)
    assert cluster.partition.log_end_offset == before + 2, "the registration, and that it is not fenced any more"
    assert [partition.leader_epoch for partition in cluster.image.topic("t").partitions] == [1] * 50
    assert [partition.partition_epoch for partition in cluster.image.topic("t").partitions] == [1] * 50
    second = cluster.start(incarnation=9)
    assert second.broker_epoch > first.broker_epoch
    assert cluster.image.brokers[1].epoch == second.broker_epoch
    assert cluster.replayed().image.topic("t").partitions == cluster.image.topic("t").partitions
    assert cluster.image.topic("t").partitions[0].leader_epoch == 2


def test_the_first_start_makes_the_files_min_insync_replicas_the_clusters() -> None:
    """As Kafka 4.1 and later (KIP-966): its clients' own tests look for it among the settings that are not defaults."""
    cluster = Cluster(load_broker_config(None, {"min.insync.replicas": "2"}))
    assert cluster.image.broker_config(None) == {"min.insync.replicas": "2"}
    cluster.machine.config = load_broker_config(None, {"min.insync.replicas": "3"})
    cluster.ask(registration(incarnation=8))
    assert cluster.image.broker_config(None) == {"min.insync.replicas": "2"}, "the file counts once"
    assert summary(cluster.replayed()) == summary(cluster.machine)


def test_a_log_that_says_nothing_of_min_insync_replicas_gets_those_of_the_file() -> None:
    """One of an older Kafka, whose nodes went by their files."""
    cluster = Cluster(load_broker_config(None), register=False)
    cluster.write(codec.config(BROKER_RESOURCE, "", "min.insync.replicas", None))
    end = cluster.partition.log_end_offset
    cluster.begin(load_broker_config(None, {"min.insync.replicas": "2"}))
    for _ in range(2):
        cluster.ask(BeginCluster())
        assert cluster.image.broker_config(None) == {"min.insync.replicas": "2"}
        assert cluster.partition.log_end_offset == end + 1


@pytest.mark.parametrize("node", ["", "1"])
def test_min_insync_replicas_are_the_clusters_and_not_one_nodes(cluster: Cluster, node: str) -> None:
    """Nodes that differ in how many copies count would differ in what is acknowledged; so it is in Kafka (KIP-966)."""
    key = "min.insync.replicas"
    set_it = change(node, (key, int(AlterOperation.SET), "2"), kind=BROKER_RESOURCE)
    clear = change(node, (key, int(AlterOperation.DELETE), None), kind=BROKER_RESOURCE)
    replace = change(node, ("message.max.bytes", int(AlterOperation.SET), "70000"), kind=BROKER_RESOURCE, replace=True)
    refused, taken = ErrorCode.INVALID_CONFIG, ErrorCode.NONE
    assert cluster.ask(set_it)[0].error == (refused if node else taken)
    assert cluster.ask(clear)[0].error == (taken if node else refused)
    assert cluster.ask(replace)[0].error == (taken if node else refused)
    assert cluster.image.broker_config(None)[key] == ("1" if node else "2")
    assert key not in cluster.image.broker_config(1)


def test_one_nodes_min_insync_replicas_of_an_older_release_can_be_taken_out(cluster: Cluster) -> None:
    key = "min.insync.replicas"
    cluster.write(codec.config(BROKER_RESOURCE, "1", key, "2"))
    other = change("1", ("message.max.bytes", int(AlterOperation.SET), "70000"), kind=BROKER_RESOURCE)
    clear = change("1", (key, int(AlterOperation.DELETE), None), kind=BROKER_RESOURCE)
    assert [cluster.ask(each)[0].error for each in (other, clear)] == [ErrorCode.NONE] * 2
    assert cluster.image.broker_config(1) == {"message.max.bytes": "70000"}


def test_producer_ids_come_in_blocks_that_never_repeat(cluster: Cluster) -> None:
    epoch = cluster.image.brokers[1].epoch
    assert cluster.ask(AllocateProducerIds(1, epoch)) == ProducerIds(0, 1000)
    assert cluster.ask(AllocateProducerIds(1, epoch)) == ProducerIds(1000, 1000)
    assert cluster.ask(AllocateProducerIds(1, epoch + 5)).code == ErrorCode.STALE_BROKER_EPOCH
    assert cluster.replayed().image.next_producer_id == 2000
    cluster.ask(registration(incarnation=8))
    assert cluster.ask(AllocateProducerIds(1, cluster.image.brokers[1].epoch)) == ProducerIds(2000, 1000)


def test_producer_ids_that_are_skipped_are_in_no_block(cluster: Cluster) -> None:
    def block() -> Any:
        return cluster.ask(AllocateProducerIds(1, cluster.image.brokers[1].epoch))

    assert cluster.ask(SkipProducerIds(1, 1 << 60)) is None
    assert cluster.replayed().image.next_producer_id == 1 << 60
    assert block() == ProducerIds(1 << 60, 1000)
    assert cluster.ask(SkipProducerIds(1, 1 << 60)) is None
    assert block() == ProducerIds((1 << 60) + 1000, 1000)
    assert cluster.ask(SkipProducerIds(1, FIRST_SINK_PRODUCER_ID - 999)) is None
    assert block().code == ErrorCode.UNKNOWN_SERVER_ERROR  # whoever wrote with the last one would be refused


def test_leader_epochs_are_raised_where_they_are_behind(cluster: Cluster) -> None:
    topic_id = cluster.create("t", partitions=2).topic_id
    raised = RaiseEpochs(1, ((topic_id, 0, 7), (topic_id, 1, -1), (topic_id, 2, 9), (bytes(16), 0, 9)))
    for _ in range(2):
        assert cluster.ask(raised) is None
        partitions = cluster.replayed().image.topics["t"].partitions
        assert [(each.leader_epoch, each.partition_epoch) for each in partitions] == [(7, 1), (0, 0)]
    assert cluster.ask(RaiseEpochs(2, ((topic_id, 0, 9),))) is None
    assert cluster.image.topics["t"].partitions[0].leader_epoch == 7


def test_elections(cluster: Cluster) -> None:
    cluster.create("t", partitions=2)
    for kind in (0, 1):
        answers = cluster.ask(ElectLeaders(kind, (("t", 0), ("t", 7), ("u", 0))))
        assert [answer[2].error for answer in answers] == [
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert cluster.ask(ElectLeaders(kind, None)) == []
    assert cluster.ask(ElectLeaders(5, None)).code == ErrorCode.INVALID_REQUEST


def test_a_barrier_answers_once_what_is_applied_is_committed(cluster: Cluster) -> None:
    cluster.partition.commit_at_once = False
    answers: list[Any] = []
    cluster.host.submit(CreateTopics((NewTopic("t", topic_id(1)),)), lambda _: None)
    cluster.host.submit(Barrier(), answers.append)
    assert cluster.image.topic("t") is not None
    assert answers == []
    cluster.partition.commit()
    assert answers == [True]


def test_changes_tell_what_committed_records_did(cluster: Cluster) -> None:
    seen: list[Any] = []
    follower = follow(cluster)
    cluster.host.observers.append(lambda records, end: seen.append(follower.take_changes()))
    cluster.create("t", configs=(("retention.ms", "5"),))
    assert (seen[-1].created, seen[-1].partitions, seen[-1].topic_configs) == ([topic_id(1)], [topic_id(1)], ["t"])
    cluster.ask(CreatePartitions((MorePartitions("t", 3),)))
    assert (seen[-1].created, seen[-1].partitions) == ([], [topic_id(1)])
    cluster.ask(registration(incarnation=8))
    assert (seen[-1].partitions, seen[-1].brokers) == ([topic_id(1)], [1])
    cluster.ask(change("", ("message.max.bytes", 0, "2000000"), kind=BROKER_RESOURCE))
    assert seen[-1].broker_configs == [""]
    cluster.ask(DeleteTopics((TopicRef("t"),)))
    assert seen[-1].removed == [("t", topic_id(1))]
    assert follower.image.version == cluster.image.version
    assert everything(follower.image) == everything(cluster.image)


def follow(cluster: Cluster) -> CommittedImage:
    """The committed image of the cluster, from now on."""
    follower = CommittedImage()
    follower.restore(cluster.image.copy())

    def committed(records: list[Any], end: int) -> None:
        for offset, record in enumerate(records, end - len(records)):
            follower.apply(record, offset, 0)

    cluster.host.observers.append(committed)
    return follower


def everything(image: MetadataImage) -> dict[str, Any]:
    """An image's content in a form that compares."""
    topics = {name: (topic.id, topic.partitions) for name, topic in image.topics.items()}
    return {**vars(image), "topics": topics, "topics_by_id": sorted(image.topics_by_id)}


def test_what_is_committed_stands_still_while_the_machine_is_ahead(cluster: Cluster) -> None:
    cluster.create("kept", partitions=2)
    follower = follow(cluster)
    before = everything(follower.image.copy())
    cluster.partition.commit_at_once = False
    answers: list[Any] = []
    for command in (
        CreateTopics((NewTopic("dotted.name", topic_id(2)),)),
        CreatePartitions((MorePartitions("kept", 3),)),
        change("kept", ("retention.ms", 0, "5")),
        registration(incarnation=8),
        DeleteTopics((TopicRef("kept"),)),
    ):
        cluster.host.submit(command, answers.append)
    assert everything(follower.image) == before
    assert everything(cluster.image) != before
    assert answers == []
    cluster.partition.commit()
    assert len(answers) == 5
    assert everything(follower.image) == everything(cluster.image)
    assert list(follower.image.topics) == ["dotted.name"]


def test_a_large_creation_spans_batches_and_is_all_or_nothing(config: BrokerConfig) -> None:
    cluster = Cluster(config)
    cluster.host.close()
    machine = MetadataMachine(config)
    cluster.machine, cluster.host = machine, Host(cluster.partition, machine, cluster.clock, max_batch_bytes=1000)
    cluster.host.load()
    assert cluster.create("t", partitions=100).result.error == ErrorCode.NONE
    assert len(cluster.image.topic("t").partitions) == 100
    assert summary(cluster.replayed()) == summary(machine)
    cluster.partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.partition.accept_before_refusal = 3
    cluster.host.submit(CreateTopics((NewTopic("u", topic_id(2), partitions=100),)), lambda _: None)
    cluster.partition.refuse = None
    assert machine.image.topic("u") is None
    assert cluster.host.failed is None
    assert cluster.create("v", 3, partitions=2).result.error == ErrorCode.NONE
    assert machine.image.names() == ["t", "v"]
    assert summary(cluster.replayed()) == summary(machine)
    cluster.partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.partition.accept_before_refusal = 3
    cluster.host.submit(CreateTopics((NewTopic("w", topic_id(4), partitions=100),)), lambda _: None)
    cluster.partition.refuse = None
    assert cluster.replayed().image.names() == ["t", "v"]


def test_a_replay_builds_the_same_image(cluster: Cluster) -> None:
    for number in range(1, 20):
        cluster.create(f"t.{number}", number, partitions=number, configs=(("retention.ms", str(number)),))
    cluster.ask(DeleteTopics(tuple(TopicRef(f"t.{number}") for number in range(3, 9))))
    cluster.ask(change("t.1", ("retention.ms", 1, None)))
    cluster.ask(CreatePartitions((MorePartitions("t.2", 9),)))
    cluster.ask(registration(incarnation=4))
    cluster.ask(registration(2))
    assert summary(cluster.replayed()) == summary(cluster.machine)


def test_records_are_kafkas_and_damage_is_named(cluster: Cluster) -> None:
    first = cluster.partition.read(0, 1, 0)
    assert b"metadata.version" in first.parts[0]
    machine = MetadataMachine(cluster.config)
    with pytest.raises(KafkaError) as caught:
        machine.apply(LogRecord(None, None), 0, 0)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(KafkaError) as caught:
        machine.apply(LogRecord(None, b"\x01\x02\x63"), 0, 0)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
    machine.apply(LogRecord(None, b"\x01\x63\x00"), 0, 0)
    assert machine.image.next_offset == 1, "record types of other protocols are skipped"


def test_what_is_no_command_is_our_own_bug(cluster: Cluster) -> None:
    with pytest.raises(TypeError):
        cluster.machine.decide(object(), 1, 0)
