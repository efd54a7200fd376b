"""Every command-line tool of Kafka's that one node can answer, from its jars: each is told what Kafka 4.3.1 says.

Every call is a JVM, so the usual run has a few of them; DURAMEN_ALL_TOOLS=1 (`make conformance-kafka-tools`) has all.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from benchmarks.kafka_peer import (
    CONFIGS,
    CONSUMER_GROUPS,
    CONSUMER_PERFORMANCE,
    END_TO_END_LATENCY,
    GET_OFFSETS,
    PRODUCER_PERFORMANCE,
    TOPICS,
    tool,
)
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.worlds.served_node import Served

TOOLS = "org.apache.kafka.tools."
CLUSTER = TOOLS + "ClusterTool"
CONSOLE_CONSUMER = TOOLS + "consumer.ConsoleConsumer"
CONSOLE_PRODUCER = TOOLS + "ConsoleProducer"
FEATURES = TOOLS + "FeatureCommand"
ELECTION = TOOLS + "LeaderElectionCommand"
QUORUM = TOOLS + "MetadataQuorumCommand"
REASSIGN = TOOLS + "reassign.ReassignPartitionsCommand"
TRANSACTIONS = TOOLS + "TransactionsCommand"
TOPIC = "every-tool"
GROUP = "every-tool-group"
ALL = os.environ.get("DURAMEN_ALL_TOOLS") == "1"
pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300)]

RESET = ("--reset-offsets", "--group", GROUP, "--topic", f"{TOPIC}:0")
NODE = ("--entity-type", "brokers", "--entity-name", "1")
OF_GROUP = ("--entity-type", "groups", "--entity-name", GROUP)
SHORT = {"features", "log-dirs", "delete-records", "producers"}
CASES: dict[str, tuple[str, tuple[str, ...], int, str]] = {
    "features": (FEATURES, ("describe",), 0, r"metadata\.version .*3\.3-IV3.*4\.3-IV0.*4\.3-IV0"),
    "features up": (FEATURES, ("upgrade", "--feature", "metadata.version=30"), 0, r"was upgraded to 30"),
    "features down": (FEATURES, ("downgrade", "--feature", "metadata.version=29"), 1, r"Refusing to perform"),
    "features unsafe": (
        FEATURES,
        ("downgrade", "--feature", "metadata.version=29", "--unsafe"),
        1,
        r"is not supported in",
    ),
    "features unknown": (FEATURES, ("upgrade", "--feature", "no.such.version=1"), 1, r"does not support this feature"),
    "features off": (FEATURES, ("disable", "--feature", "share.version"), 0, r"share\.version was disabled"),
    "features asked": (
        FEATURES,
        ("upgrade", "--feature", "metadata.version=30", "--dry-run"),
        0,
        r"can be upgraded to 30",
    ),
    "log-dirs": (TOOLS + "LogDirsCommand", ("--describe", "--topic-list", TOPIC), 0, rf'"{TOPIC}-0","size":[1-9]'),
    "delete-records": (TOOLS + "DeleteRecordsCommand", ("--offset-json-file", "OFFSETS"), 0, r"low_watermark: 3"),
    "producers": (TRANSACTIONS, ("describe-producers", "--topic", TOPIC, "--partition", "0"), 0, r"\n\d+\s+0\s+-1\s+"),
    "quorum status": (QUORUM, ("describe", "--status"), 0, r"LeaderId: +1\n(.*\n)*CurrentVoters: +\[\{\"id\": 1"),
    "quorum replication": (QUORUM, ("describe", "--replication"), 0, r"\n1\s.*Leader"),
    "cluster id": (CLUSTER, ("cluster-id",), 0, r"Cluster ID: \S{22}"),
    "endpoints": (CLUSTER, ("list-endpoints",), 0, r"\n1 .*unfenced +broker"),
    "preferred": (ELECTION, ("--election-type", "preferred", "--all-topic-partitions"), 0, r""),
    "unclean": (ELECTION, ("--election-type", "unclean", "--topic", TOPIC, "--partition", "0"), 0, r"already elected"),
    "reassignments": (REASSIGN, ("--list",), 0, r"No partition reassignments found"),
    "verified moves": (REASSIGN, ("--verify", "--reassignment-json-file", "MOVE"), 0, rf"{TOPIC}-0 is completed"),
    "throttled moves": (
        REASSIGN,
        ("--execute", "--reassignment-json-file", "MOVE", "--throttle", "1000000"),
        0,
        r"throttle limit was set(.*\n)*Successfully started",
    ),
    "cancelled moves": (REASSIGN, ("--cancel", "--reassignment-json-file", "MOVE"), 0, r"None of the specified"),
    "more groups": (
        TOPICS,
        ("--alter", "--topic", "__consumer_offsets", "--partitions", "60"),
        1,
        r"InvalidTopicException.*place depends",
    ),
    "moves": (REASSIGN, ("--generate", "--topics-to-move-json-file", "MOVES", "--broker-list", "1"), 0, r"Proposed"),
    "client metrics": (TOOLS + "ClientMetricsCommand", ("--list",), 0, r""),
    "share groups": (TOOLS + "consumer.group.ShareGroupCommand", ("--list",), 0, r""),
    "groups": (TOOLS + "GroupsCommand", ("--list",), 0, rf"{GROUP} +Classic"),
    "group state": (CONSUMER_GROUPS, ("--describe", "--group", GROUP, "--state"), 0, r"Empty +0"),
    "no such group": (CONSUMER_GROUPS, ("--describe", "--group", "nobody"), 0, r"Group nobody not found"),
    "reset dry": (CONSUMER_GROUPS, (*RESET, "--shift-by", "-2", "--dry-run"), 0, rf"{TOPIC} +0 +5"),
    "reset by time": (
        CONSUMER_GROUPS,
        (*RESET, "--to-datetime", "2020-01-01T00:00:00.000", "--execute"),
        0,
        rf"{TOPIC} +0",
    ),
    "export": (CONSUMER_GROUPS, (*RESET, "--to-current", "--dry-run", "--export"), 0, rf"{TOPIC},0,7"),
    "delete offsets": (CONSUMER_GROUPS, ("--delete-offsets", "--group", GROUP, "--topic", TOPIC), 0, r"Successful"),
    "delete group": (CONSUMER_GROUPS, ("--delete", "--group", "nobody"), 0, r"The group id does not exist"),
    "tiered offsets": (GET_OFFSETS, ("--topic", TOPIC, "--time", "latest-tiered"), 0, r""),
    "too many copies": (
        TOPICS,
        ("--create", "--topic", "three", "--replication-factor", "3"),
        1,
        r"only 1 broker\(s\)",
    ),
    "there already": (TOPICS, ("--create", "--topic", TOPIC), 1, r"already exists"),
    "fewer partitions": (TOPICS, ("--alter", "--topic", TOPIC, "--partitions", "1"), 1, r"would not be an increase"),
    "under-replicated": (TOPICS, ("--describe", "--under-replicated-partitions"), 0, r""),
    "unknown setting": (
        CONFIGS,
        ("--alter", *NODE, "--add-config", "log.dirs=/x"),
        1,
        r"InvalidRequestException.*log\.dirs",
    ),
    "group settings": (
        CONFIGS,
        ("--alter", *OF_GROUP, "--add-config", "consumer.session.timeout.ms=50000"),
        0,
        r"Completed updating config for group every-tool-group",
    ),
    "group settings told": (
        CONFIGS,
        ("--describe", *OF_GROUP),
        0,
        (
            r"consumer\.session\.timeout\.ms=50000 sensitive=false synonyms="
            r"\{DYNAMIC_GROUP_CONFIG:consumer\.session\.timeout\.ms=50000, "
            r"DEFAULT_CONFIG:group\.consumer\.session\.timeout\.ms=45000\}"
        ),
    ),
    "group settings out of bounds": (
        CONFIGS,
        ("--alter", *OF_GROUP, "--add-config", "consumer.session.timeout.ms=1"),
        1,
        r"InvalidConfigurationException.*must be greater than or equal to group\.consumer\.min\.session\.timeout\.ms",
    ),
    "group settings unknown": (
        CONFIGS,
        ("--alter", *OF_GROUP, "--add-config", "no.such=1"),
        1,
        r"InvalidConfigurationException.*Unknown group config name: no\.such",
    ),
    "group settings gone": (
        CONFIGS,
        ("--alter", *OF_GROUP, "--delete-config", "consumer.session.timeout.ms"),
        0,
        r"Completed updating config for group every-tool-group",
    ),
    "groups that have settings": (
        CONFIGS,
        ("--describe", "--entity-type", "groups"),
        0,
        r"Dynamic configs for group every",
    ),
    "logger": (CONFIGS, ("--describe", "--entity-type", "broker-loggers", "--entity-name", "1"), 0, r""),
    "users": (CONFIGS, ("--describe", "--entity-type", "users"), 0, r""),
    "nobody": (CONFIGS, ("--describe", "--entity-type", "users", "--entity-name", "nobody"), 0, r""),
    "clients": (CONFIGS, ("--describe", "--entity-type", "clients"), 0, r""),
    "addresses": (CONFIGS, ("--describe", "--entity-type", "ips"), 0, r""),
    "lists": (TOOLS + "AclCommand", ("--list",), 1, r"SecurityDisabledException: No Authorizer is configured"),
    "beyond the end": (
        TOOLS + "DeleteRecordsCommand",
        ("--offset-json-file", "BEYOND"),
        0,
        r"OffsetOutOfRangeException",
    ),
    "versions": (TOOLS + "BrokerApiVersionsCommand", (), 0, r"Fetch\(1\): 4 to 18"),
}


@pytest.fixture(scope="module")
def filled(node: Served) -> None:
    """Two partitions, and ten records of an idempotent producer in the first."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
    tool(TOPICS, "--bootstrap-server", node.bootstrap, "--create", "--topic", TOPIC, "--partitions", "2", timeout=90)
    for number in range(10):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(20) == 0


@pytest.fixture
def group(node: Served, filled: None) -> None:
    """It has read seven records, whatever the case before made of it."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("case", CASES if ALL else [name for name in CASES if name in SHORT])
def test_tool(node: Served, group: None, tmp_path: Path, case: str) -> None:
    classname, words, status, told = CASES[case]
    files = {
        "OFFSETS": {"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "offset": 3}]},
        "BEYOND": {"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "offset": 100_000}]},
        "MOVES": {"version": 1, "topics": [{"topic": TOPIC}]},
        "MOVE": {"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "replicas": [1], "log_dirs": ["any"]}]},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    words = tuple(str(tmp_path / word) if word in files else word for word in words)
    address = ("--bootstrap-server", node.bootstrap)
    subcommand = words[:1] if classname == CLUSTER else ()
    ran = tool(classname, *subcommand, *address, *words[len(subcommand) :], timeout=90, check=False)
    text = ran.stdout + ran.stderr
    assert ran.returncode == status, text
    assert re.search(told, text), text
    assert "UnsupportedVersionException" not in text
    assert "Unexpected" not in text


def test_console_producer_and_consumer(node: Served) -> None:
    address = ("--bootstrap-server", node.bootstrap)
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    lines = [f"key{number % 3}:value{number}" for number in range(20)]
    tool(CONSOLE_PRODUCER, *address, "--topic", "console", *keyed, stdin="\n".join(lines) + "\n", timeout=90)
    read = ("--topic", "console", "--from-beginning", "--max-messages", "20", "--formatter-property", "print.key=true")
    ran = tool(CONSOLE_CONSUMER, *address, *read, "--timeout-ms", "60000", timeout=90)
    assert ran.stdout.split("\n")[:20] == [line.replace(":", "\t") for line in lines]


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs every tool")
def test_performance_tools(node: Served) -> None:
    address = ("--bootstrap-server", node.bootstrap)
    tool(TOPICS, *address, "--create", "--topic", "performance", "--partitions", "2", timeout=90)
    load = ("--topic", "performance", "--num-records", "2000", "--record-size", "200", "--throughput", "-1")
    sent = tool(PRODUCER_PERFORMANCE, *address, *load, "--command-property", "acks=all", timeout=90)
    assert "2000 records sent" in sent.stdout
    many = ("--topic", "performance", "--num-records", "2000", "--timeout", "60000")
    earliest = ("--command-property", "auto.offset.reset=earliest")
    got = tool(CONSUMER_PERFORMANCE, *address, *many, *earliest, timeout=90).stdout
    assert got.splitlines()[-1].split(", ")[4] == "2000"
    words = ("--topic", "performance", "--num-records", "20", "--producer-acks", "all", "--record-size", "100")
    assert "Avg latency" in tool(END_TO_END_LATENCY, *address, *words, timeout=90).stdout


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs every tool")
def test_an_application_of_kafka_streams_is_reset(node: Served, filled: None) -> None:
    """Its group goes back to the beginning of what it reads, and its internal topics are deleted."""
    address = ("--bootstrap-server", node.bootstrap)
    for name in ("resetted-counts-changelog", "resetted-words-repartition", "resetted-result"):
        tool(TOPICS, *address, "--create", "--topic", name, timeout=90)
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "resetted"})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
    tool(TOOLS + "StreamsResetter", *address, "--application-id", "resetted", "--input-topics", TOPIC, timeout=90)
    (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
    assert committed.offset == consumer.get_watermark_offsets(committed, timeout=30)[0]
    assert {name for name in consumer.list_topics(timeout=30).topics if name.startswith("resetted")} == {
        "resetted-result"
    }
    consumer.close()


@pytest.mark.skipif(not ALL, reason="DURAMEN_ALL_TOOLS=1 runs every tool")
def test_verifiable_producer_and_consumer(node: Served) -> None:
    address = ("--bootstrap-server", node.bootstrap, "--topic", "verifiable", "--max-messages", "200")
    sent = tool(TOOLS + "VerifiableProducer", *address, "--acks", "-1", timeout=90).stdout
    assert '"sent":200,"acked":200' in sent
    got = tool(
        TOOLS + "VerifiableConsumer", *address, "--group-id", "v", "--reset-policy", "earliest", timeout=90
    ).stdout
    assert sum(int(count) for count in re.findall(r'"name":"records_consumed","count":(\d+)', got)) == 200
