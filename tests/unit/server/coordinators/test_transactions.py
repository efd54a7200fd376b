"""Transaction coordinators in a whole broker: what clients of each version are told, and what outlives a power cut."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess, after_power_cut
from tests.worlds.transaction_client import NOBODY, TransactionClient, find

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch

FEW = {"transaction_state_log_num_partitions": "4", "offsets_topic_num_partitions": "4"}


@pytest.fixture
def server() -> InProcess:
    server = InProcess(**FEW)
    assert find(server, "id") == [(0, 1)]
    server.connect().create_topic("t")
    return server


def test_the_first_search_makes_the_topic_with_its_settings() -> None:
    server = InProcess(transaction_state_log_min_isr="1")
    assert find(server, "a", "b") == [(0, 1), (0, 1)]
    topic = server.broker.image.topic("__transaction_state")
    assert topic is not None
    assert len(topic.partitions) == 50
    assert server.broker.image.topic_config("__transaction_state") == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
    }


def test_more_copies_than_brokers_are_worth_another_try_and_the_log_names_the_setting() -> None:
    server = InProcess(transaction_state_log_replication_factor="3")
    assert find(server, "id") == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)]
    (why,) = [fields["error"] for event, fields in server.events if event == "transactions-topic-refused"]
    assert "transaction.state.log.replication.factor" in why


@pytest.mark.parametrize("version", range(6))
def test_a_new_id_gets_a_producer_and_the_next_life_the_next_epoch(server: InProcess, version: int) -> None:
    client = TransactionClient(server)
    assert client.init(version).error_code == 0
    first = client.producer
    assert first.epoch == 0
    assert client.init(version).error_code == 0
    assert client.producer == ProducerEpoch(first.id, 1)


@pytest.mark.parametrize(("version", "code"), [(3, "INVALID_PRODUCER_EPOCH"), (4, "PRODUCER_FENCED")])
def test_a_producer_of_an_older_life_is_told_so_by_the_name_that_it_knows(
    server: InProcess, version: int, code: str
) -> None:
    client = TransactionClient(server)
    client.init()
    old = client.producer
    client.init()
    client.init()
    assert client.init(version, producer=old).error_code == ErrorCode[code]


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_time_outs_are_bounded(server: InProcess, timeout_ms: int) -> None:
    client = TransactionClient(server, timeout_ms=timeout_ms)
    answer = client.init()
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


def test_an_empty_id_and_half_a_producer_are_refused(server: InProcess) -> None:
    assert TransactionClient(server, "").init().error_code == ErrorCode.INVALID_REQUEST
    assert TransactionClient(server).init(producer=ProducerEpoch(5, -1)).error_code == ErrorCode.INVALID_REQUEST
    unnamed = TransactionClient(server, "")
    assert unnamed.add(("t", 0)) == [ErrorCode.INVALID_REQUEST]
    assert unnamed.end(commit=True) == ErrorCode.INVALID_REQUEST
    assert unnamed.add_offsets("g") == ErrorCode.INVALID_REQUEST


def test_a_time_out_and_another_id_are_settings_that_change_while_it_runs(server: InProcess) -> None:
    client = TransactionClient(server)
    client.init()
    assert client.add(("t", 0)) == [0]
    assert client.describe().transaction_timeout_ms == 60_000


@pytest.mark.parametrize("version", range(4))
def test_partitions_join_all_or_none(server: InProcess, version: int) -> None:
    client = TransactionClient(server)
    client.init()
    unknown, untried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert client.add(("t", 0), ("t", 1), ("absent", 0), version=version) == [untried, unknown, unknown]
    assert client.add(("t", 0), ("__transaction_state", 0), version=version) == [untried, forbidden]
    assert client.describe().transaction_state == "Empty"
    assert client.add(("t", 0), version=version) == [0]
    assert client.describe().transaction_state == "Ongoing"
    assert [(each.topic, each.partitions) for each in client.describe().topics] == [("t", [0])]


@pytest.mark.parametrize(("version", "code"), [(1, "INVALID_PRODUCER_EPOCH"), (2, "PRODUCER_FENCED")])
def test_who_adds_or_ends_with_an_older_epoch_is_fenced(server: InProcess, version: int, code: str) -> None:
    client = TransactionClient(server)
    client.init()
    old = client.producer
    client.init()
    assert client.add(("t", 0), version=version, producer=old) == [ErrorCode[code]]
    assert client.end(commit=True, version=version, producer=old) == ErrorCode[code]
    client.producer = old
    assert client.add_offsets("g", version=version) == ErrorCode[code]


def test_an_unknown_id_has_no_producer(server: InProcess) -> None:
    client = TransactionClient(server)
    client.producer = ProducerEpoch(7, 0)
    assert client.add(("t", 0)) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert client.end(commit=False) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    told = client.describe()
    assert told.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (told.transactional_id, told.transaction_state, told.topics) == ("id", "", [])
    assert (told.producer_id, told.producer_epoch, told.transaction_start_time_ms) == (0, 0, 0), "as in Kafka"


@pytest.mark.parametrize("version", [4, 5])
def test_leaders_verify_and_add(server: InProcess, version: int) -> None:
    client = TransactionClient(server)
    client.init()
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert client.add_by_broker(("t", 0), verify_only=True, version=version) == [abortable]
    assert client.add_by_broker(("t", 0), verify_only=False, version=version) == [0]
    assert client.add_by_broker(("t", 0), verify_only=True, version=version) == [0]
    absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.add_by_broker(("t", 9), verify_only=False, version=version) == [absent]


def test_a_groups_offsets_join(server: InProcess) -> None:
    client = TransactionClient(server)
    client.init()
    assert client.add_offsets("g") == 0
    (topic,) = client.describe().topics
    assert topic.topic == "__consumer_offsets"
    assert topic.partitions == [server.broker.groups.partition_of("g").partition]


def test_nothing_of_an_answer_is_lost_in_a_power_cut(server: InProcess) -> None:
    client = TransactionClient(server)
    client.init()
    client.add(("t", 0))
    again = after_power_cut(server, **FEW)
    other = TransactionClient(again)
    other.producer = client.producer
    assert other.describe().transaction_state == "Ongoing"
    assert other.add(("t", 0)) == [0]
    fresh = TransactionClient(again, "another")
    fresh.init()
    assert fresh.producer.id != client.producer.id, "no producer id is given out twice"


def test_producers_are_listed_by_state_id_and_pattern(server: InProcess) -> None:
    clients = {name: TransactionClient(server, name) for name in ("orders-1", "orders-2", "audit")}
    for client in clients.values():
        client.init()
    clients["audit"].add(("t", 0))
    asker = clients["audit"]
    assert asker.list() == {"orders-1": "Empty", "orders-2": "Empty", "audit": "Ongoing"}
    assert asker.list(0, state_filters=["Ongoing"]) == {"audit": "Ongoing"}
    assert asker.list(0, producer_id_filters=[clients["orders-2"].producer.id]) == {"orders-2": "Empty"}
    assert asker.list(2, transactional_id_pattern="orders-.*") == {"orders-1": "Empty", "orders-2": "Empty"}
    assert asker.list(2, transactional_id_pattern="orders") == {}, "whole ids match"
    assert asker.list(1, duration_filter=1_000, state_filters=["Ongoing"]) == {}
    server.pass_ms(2_000)
    assert asker.list(1, duration_filter=1_000, state_filters=["Ongoing"]) == {"audit": "Ongoing"}


def test_an_unknown_state_is_named_and_a_bad_pattern_refused(server: InProcess) -> None:
    line = server.connect()
    assert line.call(66, 0, state_filters=["Ongoing", "Gone"]).unknown_state_filters == ["Gone"]
    refused = line.call(66, 2, transactional_id_pattern="(")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.transaction_states == []


def test_many_ids_are_described_once_each(server: InProcess) -> None:
    client = TransactionClient(server, "a")
    client.init()
    states = client.line.call(65, 0, transactional_ids=["b", "a", "b", ""]).transaction_states
    assert [(each.transactional_id, each.error_code) for each in states][:2] == [
        ("b", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ("a", 0),
    ]
    assert len(states) == 3
    assert client.line.call(65, 0, transactional_ids=[]).transaction_states == []


def test_idempotent_producers_ask_nobody(server: InProcess) -> None:
    client = TransactionClient(server)
    client.id = None  # type: ignore[assignment]
    assert client.init().error_code == 0
    assert client.producer.epoch == 0
    assert client.producer != NOBODY
    assert client.list() == {}
