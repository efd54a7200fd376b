"""kafka-transactions.sh and the log's decoder against a node: what they say is what Apache Kafka 4.3.1 lets them say.

Every call is a JVM, so the usual run has one of them; DURAMEN_ALL_TOOLS=1 (`make conformance-kafka-tools`) has all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest
from benchmarks.kafka_peer import DUMP_LOG, PRODUCER_PERFORMANCE, tool
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.kafka_tables import SECONDS, run
from tests.worlds.served_node import Served, only_duramen

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPIC = "of-transactions"
ALL = os.environ.get("DURAMEN_ALL_TOOLS") == "1"
heavy = pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs every tool")
pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300)]

LISTED = r"TransactionalId Coordinator ProducerId TransactionState"
DESCRIBED = (
    r"CoordinatorId TransactionalId ProducerId ProducerEpoch TransactionState TransactionTimeoutMs "
    r"CurrentTransactionStartTimeMs TransactionDurationMs TopicPartitions\n1 "
)
PRODUCERS = (
    r"ProducerId ProducerEpoch LatestCoordinatorEpoch LastSequence LastTimestamp CurrentTransactionStartOffset\n"
)
HANGING = r"Topic Partition ProducerId ProducerEpoch CoordinatorEpoch StartOffset LastTimestamp Duration\(min\)\n?"
SHORT = "list"
FIRST = ("--topic", TOPIC, "--partition", "0")
CASES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "list": (("list",), 0, rf"^{LISTED}(?s:.*\n)the-open 1 \d+ Ongoing"),
    "list by age": (("list", "--duration-filter", "3600000"), 0, rf"^{LISTED}\nthe-empty 1 \d+ Empty\n$"),
    "list by name": (
        ("list", "--transactional-id-pattern", "the-d.*"),
        0,
        rf"^{LISTED}\nthe-done .*CompleteCommit\n?$",
    ),
    "open": (
        ("describe", "--transactional-id", "the-open"),
        0,
        (DESCRIBED + rf"the-open \d+ 0 Ongoing 600000 \d+ \d+ {TOPIC}-[01],{TOPIC}-[01]"),
    ),
    "done": (
        ("describe", "--transactional-id", "the-done"),
        0,
        (DESCRIBED + r"the-done \d+ 0 CompleteCommit 60000 \d+ \d+\n"),
    ),
    "gone": (
        ("describe", "--transactional-id", "the-gone"),
        0,
        (DESCRIBED + r"the-gone \d+ 0 CompleteAbort 60000 \d+ \d+\n"),
    ),
    "empty": (
        ("describe", "--transactional-id", "the-empty"),
        0,
        (DESCRIBED + r"the-empty \d+ 0 Empty 60000 None None\n"),
    ),
    "nobody": (
        ("describe", "--transactional-id", "nobody"),
        1,
        r"`nobody` failed because the ID could not be found",
    ),
    "producers": (
        ("describe-producers", *FIRST),
        0,
        (PRODUCERS + r"\d+ 0 0 0 \d{13} None\n\d+ 0 0 0 \d{13} None\n\d+ 0 -1 0 \d{13} 4\n"),
    ),
    "of a broker": (("describe-producers", *FIRST, "--broker-id", "1"), 0, PRODUCERS + r"\d+ 0 0 0"),
    "none hanging": (("find-hanging", "--broker-id", "1"), 0, rf"^{HANGING}$"),
    "none hangs long": (
        ("find-hanging", "--topic", TOPIC, "--max-transaction-timeout", "0"),
        0,
        rf"^{HANGING}$",
    ),
    "no such start": (
        ("abort", *FIRST, "--start-offset", "12345"),
        1,
        rf"starting at offset 12345 on partition {TOPIC}-0",
    ),
}


def transactional(node: Served, name: str, **settings: object) -> Producer:
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": name, "log_level": 0, **settings})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    return producer


def produce(producer: Producer, topic: str, *partitions: int) -> None:
    for partition in partitions:
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(SECONDS) == 0


def create(node: Served, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(SECONDS)


@pytest.fixture(scope="module")
def filled(node: Served) -> Iterator[None]:
    """One transaction of every state that stays."""
    create(node, TOPIC)
    done = transactional(node, "the-done")
    produce(done, TOPIC, 0)
    done.commit_transaction(SECONDS)
    gone = transactional(node, "the-gone")
    produce(gone, TOPIC, 0)
    gone.abort_transaction(SECONDS)
    still = transactional(node, "the-open", **{"transaction.timeout.ms": 600_000})
    produce(still, TOPIC, 0, 1)
    empty = transactional(node, "the-empty")
    yield
    still.abort_transaction(SECONDS)
    del empty


@pytest.mark.parametrize("case", CASES if ALL else [SHORT])
def test_transactions(node: Served, filled: None, case: str) -> None:
    words, status, told = CASES[case]
    text = run(TRANSACTIONS, node, *words, status=status)
    assert re.search(told, text), text


@heavy
def test_a_partition_is_freed_of_a_transaction(node: Served, name: Callable[[str], str]) -> None:
    """Its records are aborted there; the coordinator knows nothing of that, as in Kafka."""
    topic, who = name("freed"), name("freed-of")
    create(node, topic)
    producer = transactional(node, who)
    produce(producer, topic, 0)
    where = ("--topic", topic, "--partition", "0")
    run(TRANSACTIONS, node, "abort", *where, "--start-offset", "0")
    text = run(TRANSACTIONS, node, "describe-producers", *where)
    assert re.search(PRODUCERS + r"\d+ 0 0 0 \d{13} None\n", text), text
    assert " Ongoing " in run(TRANSACTIONS, node, "describe", "--transactional-id", who)
    producer.abort_transaction(SECONDS)


@heavy
def test_a_transaction_is_ended_by_force(node: Served, name: Callable[[str], str]) -> None:
    topic, who = name("forced"), name("forced-of")
    create(node, topic)
    producer = transactional(node, who)
    produce(producer, topic, 0)
    assert run(TRANSACTIONS, node, "forceTerminateTransaction", "--transactionalId", who) == ""
    text = run(TRANSACTIONS, node, "describe-producers", "--topic", topic, "--partition", "0")
    assert re.search(PRODUCERS + r"\d+ 1 0 -1 \d{13} None\n", text), text
    text = run(TRANSACTIONS, node, "describe", "--transactional-id", who)
    assert re.search(DESCRIBED + who + r" \d+ 2 Empty ", text), text
    with pytest.raises(Exception, match=r"FENCED|INVALID_PRODUCER_EPOCH"):
        producer.commit_transaction(SECONDS)


@heavy
@only_duramen
def test_kafka_reads_our_log_of_transactions(serve: Callable[..., Served]) -> None:
    """Of both generations: librdkafka's producer keeps its epoch, Java's has a new one in every transaction."""
    node = serve(**{"transaction.state.log.num.partitions": "1"})
    create(node, TOPIC)
    first = transactional(node, "first")
    produce(first, TOPIC, 0)
    first.commit_transaction(SECONDS)
    first.begin_transaction()
    produce(first, TOPIC, 1)
    first.abort_transaction(SECONDS)
    load = ("--topic", TOPIC, "--num-records", "40", "--record-size", "10", "--throughput", "100")
    which = ("--transactional-id", "second", "--transaction-duration-ms", "100")
    tool(PRODUCER_PERFORMANCE, "--bootstrap-server", node.bootstrap, *load, *which, timeout=SECONDS)
    words = ("--bootstrap-server", node.bootstrap, "--topic", "__transaction_state", "--from-beginning")
    formatter = ("--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter")
    ran = tool(CONSOLE_CONSUMER, *words, *formatter, "--timeout-ms", "10000", timeout=SECONDS, check=False)
    shown = ran.stdout.replace(" ", "")
    assert '"transactionalId":"first"' in shown, ran.stdout + ran.stderr
    assert '"transactionalId":"second"' in shown
    node.stop()
    (path,) = (path for path in node.data.glob("__transaction_state-*/*.log") if path.stat().st_size)
    dumped = tool(DUMP_LOG, "--files", str(path), "--transaction-log-decoder", timeout=SECONDS).stdout
    assert not re.search("mismatch|corrupt|invalid: |exception|Could not decode", dumped, re.IGNORECASE), dumped
    shown = dumped.replace(" ", "")
    states = re.findall(r'"transactionalId":"first".*"transactionStatus":(\d+)', shown)
    assert states == ["0", "1", "2", "4", "1", "3", "5"], "begun, committed; begun, aborted"
    epochs = [int(each) for each in re.findall(r'"transactionalId":"second".*"producerEpoch":(\d+)', shown)]
    assert epochs == sorted(epochs)
    assert epochs[-1] >= 2, "the second generation"
    folders = [path for path in node.data.glob(f"{TOPIC}-*/*.log") if path.stat().st_size]
    dumped = "".join(tool(DUMP_LOG, "--files", str(path), timeout=SECONDS).stdout for path in folders)
    assert "isTransactional: true" in dumped
    assert "isvalid: false" not in dumped
