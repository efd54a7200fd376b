"""confluent-kafka (librdkafka), unmodified: producing, consuming, groups and administration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)
from tests.worlds.served_node import Served, only_duramen

Names = Callable[[str], str]
SECONDS = 60


@cache  # a future dies with the client that made it
def admin_of(node: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})


def create(node: Served, topic: str, partitions: int = 1, **config: str) -> None:
    config = {key.replace("_", "."): value for key, value in config.items()}
    futures = admin_of(node).create_topics([NewTopic(topic, partitions, 1, config=config)])
    futures[topic].result(SECONDS)


def producer_of(node: Served, **config: object) -> Producer:
    return Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 1, "log_level": 0, **config})


@contextmanager
def consumer_of(node: Served, group: str, **config: object) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            **config,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def take(consumer: Consumer, count: int, seconds: float = SECONDS) -> list[Message]:
    """The next `count` records; fails when they do not come."""
    got: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} records came in {seconds} s"
        for message in consumer.consume(count - len(got), 0.2):
            assert message.error() is None, message.error()
            got.append(message)
    return got


def test_everything_about_a_record_comes_back(node: Served, name: Names) -> None:
    topic = name("whole")
    create(node, topic)
    producer = producer_of(node)
    told: list[Message] = []
    headers = [("trace", b"\x00\xff"), ("empty", b""), ("null", None), ("trace", b"again")]
    producer.produce(
        topic, b"value", b"key", headers=headers, timestamp=1_700_000_000_123, on_delivery=lambda e, m: told.append(m)
    )
    producer.produce(topic, None, b"tombstone")
    producer.produce(topic, b"", None)
    assert producer.flush(SECONDS) == 0
    assert (told[0].partition(), told[0].offset(), told[0].error()) == (0, 0, None)
    with consumer_of(node, name("g")) as consumer:
        consumer.subscribe([topic])
        whole, tombstone, empty = take(consumer, 3)
    assert (whole.key(), whole.value(), whole.offset()) == (b"key", b"value", 0)
    assert whole.headers() == headers
    assert whole.timestamp() == (TIMESTAMP_CREATE_TIME, 1_700_000_000_123)
    assert (tombstone.key(), tombstone.value()) == (b"tombstone", None)
    assert (empty.key(), empty.value()) == (None, b"")
    assert whole.leader_epoch() is not None
    assert whole.leader_epoch() >= 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_codecs(node: Served, name: Names, codec: str, idempotent: bool) -> None:
    topic = name(codec)
    create(node, topic)
    producer = producer_of(node, **{"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 20})
    values = [b"%06d" % i * 50 for i in range(500)]
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0
    with consumer_of(node, name("g"), **{"check.crcs": True}) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        got = take(consumer, len(values))
    assert [m.value() for m in got] == values
    assert [m.offset() for m in got] == list(range(len(values)))


def test_a_consumer_may_start_in_the_middle_of_a_compressed_batch(node: Served, name: Names) -> None:
    topic = name("middle")
    create(node, topic)
    producer = producer_of(node, **{"compression.type": "zstd", "linger.ms": 200})
    for i in range(100):
        producer.produce(topic, b"%d" % i)
    producer.flush(SECONDS)
    with consumer_of(node, name("g")) as consumer:
        consumer.assign([TopicPartition(topic, 0, 57)])
        assert [m.offset() for m in take(consumer, 43)] == list(range(57, 100))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(node: Served, name: Names, acks: str) -> None:
    topic = name("acks")
    create(node, topic)
    producer = producer_of(node, acks=acks)
    for i in range(50):
        producer.produce(topic, b"%d" % i)
    assert producer.flush(SECONDS) == 0
    with consumer_of(node, name("g")) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert [m.value() for m in take(consumer, 50)] == [b"%d" % i for i in range(50)]


def test_keys_choose_partitions_and_keep_order(node: Served, name: Names) -> None:
    topic = name("keyed")
    create(node, topic, 4)
    producer = producer_of(node, **{"enable.idempotence": True, "partitioner": "murmur2_random"})
    for i in range(400):
        producer.produce(topic, b"%d" % i, b"key-%d" % (i % 13))
    assert producer.flush(SECONDS) == 0
    with consumer_of(node, name("g")) as consumer:
        consumer.subscribe([topic])
        got = take(consumer, 400)
    by_key: dict[bytes, list[Message]] = {}
    for message in got:
        by_key.setdefault(message.key(), []).append(message)
    assert len(by_key) == 13
    for messages in by_key.values():
        assert len({m.partition() for m in messages}) == 1
        rows = [int(m.value()) for m in sorted(messages, key=lambda m: m.offset())]
        assert rows == sorted(rows)


def test_topics_come_into_being_when_they_are_written(node: Served, name: Names) -> None:
    topic = name("auto")
    producer = producer_of(node)
    producer.produce(topic, b"first")
    assert producer.flush(SECONDS) == 0
    assert topic in admin_of(node).list_topics(timeout=SECONDS).topics


def test_log_append_time(node: Served, name: Names) -> None:
    topic = name("append-time")
    create(node, topic, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    producer = producer_of(node)
    producer.produce(topic, b"v", timestamp=1)
    assert producer.flush(SECONDS) == 0
    with consumer_of(node, name("g")) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        kind, stamp = take(consumer, 1)[0].timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before <= stamp <= int(time.time() * 1000)


def test_offsets_by_time_and_watermarks(node: Served, name: Names) -> None:
    topic = name("times")
    create(node, topic)
    producer = producer_of(node)
    for i in range(10):
        producer.produce(topic, b"%d" % i, timestamp=1_000_000 + i * 1000)
        producer.flush(SECONDS)  # one batch each
    with consumer_of(node, name("g")) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS) == (0, 10)
        wanted = [TopicPartition(topic, 0, stamp) for stamp in (0, 1_003_000, 1_003_001, 1_009_000)]
        found = [consumer.offsets_for_times([one], SECONDS)[0].offset for one in wanted]
        assert found == [0, 3, 4, 9]
        beyond = consumer.offsets_for_times([TopicPartition(topic, 0, 9_000_000)], SECONDS)
        assert beyond[0].offset == -1  # librdkafka's OFFSET_END


def test_a_message_too_large_is_refused_alone(node: Served, name: Names) -> None:
    topic = name("large")
    create(node, topic, max_message_bytes="2000")
    errors: list[KafkaError | None] = []
    producer = producer_of(node, **{"message.max.bytes": 100_000, "compression.type": "none"})
    producer.produce(topic, b"x" * 5000, on_delivery=lambda e, m: errors.append(e))
    producer.flush(SECONDS)
    producer.produce(topic, b"small", on_delivery=lambda e, m: errors.append(e))
    producer.flush(SECONDS)
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert errors[1] is None


def test_a_compacted_topic_refuses_records_without_a_key(node: Served, name: Names) -> None:
    topic = name("compacted")
    create(node, topic, cleanup_policy="compact")
    errors: list[KafkaError | None] = []
    producer = producer_of(node)
    producer.produce(topic, b"no key", on_delivery=lambda e, m: errors.append(e))
    producer.flush(SECONDS)
    producer.produce(topic, b"value", b"key", on_delivery=lambda e, m: errors.append(e))
    producer.flush(SECONDS)
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.INVALID_RECORD
    assert errors[1] is None
    with consumer_of(node, name("g")) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS) == (0, 1)


def test_a_group_shares_hands_over_and_resumes(node: Served, name: Names) -> None:
    topic, group = name("shared"), name("g")
    create(node, topic, 4)
    producer = producer_of(node)
    for i in range(200):
        producer.produce(topic, b"%d" % i, partition=i % 4)
    producer.flush(SECONDS)
    with consumer_of(node, group) as first:
        first.subscribe([topic])
        got = take(first, 200)
        first.commit(asynchronous=False)
        assert len(first.assignment()) == 4
        with consumer_of(node, group) as second:
            second.subscribe([topic])
            deadline = time.monotonic() + SECONDS
            while len(first.assignment()) != 2 or len(second.assignment()) != 2:
                assert time.monotonic() < deadline, (first.assignment(), second.assignment())
                assert first.poll(0.1) is None
                assert second.poll(0.1) is None  # nothing again: it starts at what was committed
    assert len({(m.partition(), m.offset()) for m in got}) == 200
    with consumer_of(node, group) as third:
        committed = third.committed([TopicPartition(topic, p) for p in range(4)], SECONDS)
        assert [p.offset for p in committed] == [50] * 4


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_assignment_strategies(node: Served, name: Names, strategy: str) -> None:
    topic, group = name("strategy"), name("g")
    create(node, topic, 3)
    config = {"partition.assignment.strategy": strategy}
    with consumer_of(node, group, **config) as one, consumer_of(node, group, **config) as two:
        one.subscribe([topic])
        two.subscribe([topic])
        deadline = time.monotonic() + SECONDS
        while sorted([len(one.assignment()), len(two.assignment())]) != [1, 2]:
            assert time.monotonic() < deadline, (one.assignment(), two.assignment())
            one.poll(0.1)
            two.poll(0.1)


def test_a_static_member_returns_to_its_partitions(node: Served, name: Names) -> None:
    topic, group = name("static"), name("g")
    create(node, topic, 2)
    config = {"group.instance.id": "one", "session.timeout.ms": 10_000}
    seen = []
    for _ in range(2):
        with consumer_of(node, group, **config) as consumer:
            consumer.subscribe([topic])
            deadline = time.monotonic() + SECONDS
            while not consumer.assignment():
                assert time.monotonic() < deadline
                consumer.poll(0.1)
        described = admin_of(node).describe_consumer_groups([group])[group].result(SECONDS)
        seen.append([(m.group_instance_id, len(m.assignment.topic_partitions)) for m in described.members])
    assert seen == [[("one", 2)], [("one", 2)]]


def test_groups_are_listed_described_reset_and_deleted(node: Served, name: Names) -> None:
    topic, group = name("admin"), name("g")
    create(node, topic)
    admin = admin_of(node)
    with consumer_of(node, group) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 7, "a note")], asynchronous=False)
    listed = {g.group_id for g in admin.list_consumer_groups().result(SECONDS).valid}
    assert group in listed
    assert admin.describe_consumer_groups([group])[group].result(SECONDS).state.name == "EMPTY"
    ask = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
    answer = admin.list_consumer_group_offsets(ask)[group].result(SECONDS).topic_partitions[0]
    assert (answer.offset, answer.metadata) == (7, "a note")
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])])[
        group
    ].result(SECONDS)
    assert admin.list_consumer_group_offsets(ask)[group].result(SECONDS).topic_partitions[0].offset == 3
    admin.delete_consumer_groups([group])[group].result(SECONDS)
    assert group not in {g.group_id for g in admin.list_consumer_groups().result(SECONDS).valid}


def test_topics_are_described_grown_configured_and_deleted(node: Served, name: Names) -> None:
    topic = name("life")
    create(node, topic, 2, retention_ms="3600000")
    admin = admin_of(node)
    with pytest.raises(KafkaException) as again:
        create(node, topic)
    assert again.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(SECONDS)
    assert len(admin.list_topics(topic, SECONDS).topics[topic].partitions) == 5
    resource = ConfigResource(ResourceType.TOPIC, topic)
    before = admin.describe_configs([resource])[resource].result(SECONDS)
    assert before["retention.ms"].value == "3600000"
    assert before["segment.bytes"].is_default
    change = ConfigEntry("segment.bytes", "2097152", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    after = admin.describe_configs([resource])[resource].result(SECONDS)
    assert (after["segment.bytes"].value, after["retention.ms"].value) == ("2097152", "3600000")
    admin.delete_topics([topic])[topic].result(SECONDS)
    deadline = time.monotonic() + SECONDS
    while topic in admin.list_topics(timeout=SECONDS).topics:
        assert time.monotonic() < deadline
    with pytest.raises(KafkaException) as gone:
        admin.delete_topics([topic])[topic].result(SECONDS)
    assert gone.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize("bad", ["..", "a/b", "../../etc", "x" * 250, "spa ce", ""])
def test_names_that_are_none_are_refused(node: Served, bad: str) -> None:
    with pytest.raises(KafkaException) as refused:
        create(node, bad)
    assert refused.value.args[0].code() in {KafkaError.TOPIC_EXCEPTION, KafkaError._INVALID_ARG}


def test_records_are_deleted_before_an_offset(node: Served, name: Names) -> None:
    topic = name("truncated")
    create(node, topic)
    producer = producer_of(node)
    for i in range(10):
        producer.produce(topic, b"%d" % i)
    producer.flush(SECONDS)
    admin = admin_of(node)
    done = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert next(iter(done.values())).result(SECONDS).low_watermark == 4
    partition = TopicPartition(topic, 0)
    found = admin.list_offsets({partition: OffsetSpec.earliest()})[partition].result(SECONDS)
    assert found.offset == 4
    with consumer_of(node, name("g")) as consumer:
        consumer.subscribe([topic])
        assert [m.offset() for m in take(consumer, 6)] == list(range(4, 10))


def test_the_cluster_describes_itself(node: Served) -> None:
    described = admin_of(node).describe_cluster().result(SECONDS)
    assert described.cluster_id
    assert len(described.nodes) == 1
    assert f"{described.nodes[0].host}:{described.nodes[0].port}" == node.bootstrap


def test_every_other_admin_call_is_answered(node: Served, name: Names) -> None:
    topic = name("admin")
    create(node, topic, 2)
    admin = admin_of(node)
    asked = TopicCollection([topic])
    described = admin.describe_topics(asked, include_authorized_operations=True)[topic].result(SECONDS)
    assert [partition.leader.id for partition in described.partitions] == [1, 1]
    assert AclOperation.WRITE in (described.authorized_operations or [])
    with pytest.raises(KafkaException) as absent:
        admin.describe_topics(TopicCollection(["absent"]))["absent"].result(SECONDS)
    assert absent.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    cluster = admin.describe_cluster(include_authorized_operations=True).result(SECONDS)
    assert AclOperation.ALTER in (cluster.authorized_operations or [])
    partition = TopicPartition(topic, 0)
    elected = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(SECONDS)
    assert [error.code() for error in elected.values()] == [KafkaError.ELECTION_NOT_NEEDED]
    assert admin.elect_leaders(ElectionType.UNCLEAN, None).result(SECONDS) == {}
    for futures in (
        admin.create_topics([NewTopic(name("unmade"), 2, 1)], validate_only=True),
        admin.create_partitions([NewPartitions(topic, 4)], validate_only=True),
        admin.create_partitions([NewPartitions(topic, 3, replica_assignment=[[1]])]),
    ):
        next(iter(futures.values())).result(SECONDS)
    assert len(admin.list_topics(topic, SECONDS).topics[topic].partitions) == 3
    newest = admin.list_offsets({partition: OffsetSpec.max_timestamp()})[partition].result(SECONDS)
    assert newest.offset == -1
    broker = ConfigResource(ResourceType.BROKER, "1")
    assert len(admin.describe_configs([broker])[broker].result(SECONDS)) > 300
    with pytest.raises(KafkaException) as gone:
        admin.delete_consumer_groups(["nobody"])["nobody"].result(SECONDS)
    assert gone.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_without_an_authorizer_there_are_no_access_control_lists(node: Served) -> None:
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert admin_of(node).describe_acls(anything).result(SECONDS) == [], "librdkafka tells SECURITY_DISABLED so"


def test_no_user_has_credentials(node: Served) -> None:
    assert admin_of(node).describe_user_scram_credentials().result(SECONDS) == {}
    (told,) = admin_of(node).describe_user_scram_credentials(["nobody"]).values()
    with pytest.raises(KafkaException) as unknown:
        told.result(SECONDS)
    assert unknown.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND


@only_duramen
def test_what_is_not_served_is_refused_at_once(node: Served) -> None:
    began = time.monotonic()
    gone = UserScramCredentialDeletion("nobody", ScramMechanism.SCRAM_SHA_256)
    (told,) = admin_of(node).alter_user_scram_credentials([gone]).values()
    with pytest.raises(KafkaException) as refused:
        told.result(SECONDS)
    assert refused.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
    assert time.monotonic() - began < SECONDS / 2


def test_read_committed_reads_what_is_committed(node: Served, name: Names) -> None:
    topic = name("committed")
    create(node, topic)
    producer = producer_of(node)
    producer.produce(topic, b"v")
    producer.flush(SECONDS)
    with consumer_of(node, name("g"), **{"isolation.level": "read_committed"}) as consumer:
        consumer.subscribe([topic])
        assert take(consumer, 1)[0].value() == b"v"


def test_a_login_where_there_is_none_is_refused_with_words_about_sasl(node: Served) -> None:
    """The connection was closed without a word."""
    told: list[KafkaError] = []
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}
    client = AdminClient(
        {"bootstrap.servers": node.bootstrap, "log_level": 0, **login, "sasl.password": "p", "error_cb": told.append}
    )
    until = time.monotonic() + SECONDS
    while not told and time.monotonic() < until:
        client.poll(0.1)
    assert told[0].code() == KafkaError._AUTHENTICATION
    assert "Request not valid in current SASL state" in told[0].str()
