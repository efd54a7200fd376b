"""Kafka's own tools, from its jars, against our node and our files; skipped where Java or Maven is not at hand.

The usual run has those that no other file has; DURAMEN_ALL_TOOLS=1 (`make conformance-kafka-tools`) has all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.kafka_peer import (
    CONFIGS,
    CONSUMER_GROUPS,
    DUMP_LOG,
    GET_OFFSETS,
    TOPICS,
    tool,
)
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.worlds.kafka_classes import with_all_tools
from tests.worlds.served_node import Served

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PAUSE = 90.0
STAMP = int(time.time() * 1000) - 600_000  # milliseconds; young enough to be retained
pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300)]  # a JVM for every command


def run(classname: str, node: Served, *words: str) -> str:
    ran = tool(classname, "--bootstrap-server", node.bootstrap, *words, timeout=PAUSE, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def filled(node: Served) -> str:
    """A topic of two partitions, with ten records in the first and a group that has read seven of them."""
    topic = "tools-filled"
    run(TOPICS, node, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=7200000")
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for i in range(10):
        producer.produce(topic, b"%d" % i, partition=0, timestamp=STAMP + i)
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "tools-group"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    consumer.close()
    return topic


@with_all_tools
def test_topics(node: Served, filled: str) -> None:
    assert filled in run(TOPICS, node, "--list").split()
    described = run(TOPICS, node, "--describe", "--topic", filled)
    assert "PartitionCount: 2" in described
    assert "retention.ms=7200000" in described
    run(TOPICS, node, "--alter", "--topic", filled, "--partitions", "3")
    assert "PartitionCount: 3" in run(TOPICS, node, "--describe", "--topic", filled)
    run(TOPICS, node, "--create", "--topic", "tools-gone")
    run(TOPICS, node, "--delete", "--topic", "tools-gone")
    assert "tools-gone" not in run(TOPICS, node, "--list").split()


def test_get_offsets(node: Served, filled: str) -> None:
    latest = run(GET_OFFSETS, node, "--topic", filled, "--partitions", "0,1").split()
    assert latest == [f"{filled}:0:10", f"{filled}:1:0"]
    assert run(GET_OFFSETS, node, "--topic", filled, "--partitions", "0", "--time", "earliest").split() == [
        f"{filled}:0:0"
    ]
    by_time = run(GET_OFFSETS, node, "--topic", filled, "--partitions", "0", "--time", str(STAMP + 4))
    assert by_time.split() == [f"{filled}:0:4"]
    greatest = run(GET_OFFSETS, node, "--topic", filled, "--partitions", "0", "--time", "max-timestamp")
    assert greatest.split() == [f"{filled}:0:9"]


@with_all_tools
def test_consumer_groups(node: Served, filled: str) -> None:
    assert "tools-group" in run(CONSUMER_GROUPS, node, "--list").split()
    described = run(CONSUMER_GROUPS, node, "--describe", "--group", "tools-group")
    row = next(line.split() for line in described.splitlines() if line.startswith("tools-group"))
    assert row[1:6] == [filled, "0", "7", "10", "3"], "topic, partition, current offset, end, lag"
    reset = ["--group", "tools-group", "--topic", f"{filled}:0", "--reset-offsets", "--to-earliest", "--execute"]
    run(CONSUMER_GROUPS, node, *reset)
    described = run(CONSUMER_GROUPS, node, "--describe", "--group", "tools-group")
    row = next(line.split() for line in described.splitlines() if line.startswith("tools-group"))
    assert row[3] == "0"
    run(
        CONSUMER_GROUPS,
        node,
        "--group",
        "tools-group",
        "--topic",
        f"{filled}:0",
        "--reset-offsets",
        "--to-offset",
        "7",
        "--execute",
    )


@with_all_tools
def test_configs(node: Served, filled: str) -> None:
    topic = ["--entity-type", "topics", "--entity-name", filled]
    run(CONFIGS, node, "--alter", *topic, "--add-config", "segment.bytes=3145728")
    described = run(CONFIGS, node, "--describe", *topic)
    assert "segment.bytes=3145728" in described
    run(CONFIGS, node, "--alter", *topic, "--delete-config", "segment.bytes")
    assert "segment.bytes=" not in run(CONFIGS, node, "--describe", *topic)
    everything = run(CONFIGS, node, "--describe", "--all", *topic)
    for key in ("cleanup.policy", "min.insync.replicas", "max.message.bytes", "compression.type"):
        assert f"{key}=" in everything
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    (number,) = admin.list_topics(timeout=20).brokers
    brokers = run(CONFIGS, node, "--describe", "--all", "--entity-type", "brokers", "--entity-name", str(number))
    assert "log.retention.hours=168" in brokers


def offsets_in(dumped: str) -> list[int]:
    return [int(offset) for offset in re.findall(r"^\| offset: (\d+)", dumped, flags=re.MULTILINE)]


def test_dump_log_segments_reads_our_files(serve: Callable[..., Served]) -> None:
    """Segments and both offset and time index, rolled several times, every codec, after a kill and a clean stop."""
    node = serve()
    run(TOPICS, node, "--create", "--topic", "dumped", "--partitions", "1", "--config", "segment.bytes=1048576")
    value = bytes(range(256)) * 40
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": node.bootstrap, "compression.type": codec, "enable.idempotence": True}
        )
        for _ in range(60):
            producer.produce("dumped", value, b"key", headers=[("codec", codec.encode())])
        assert producer.flush(20) == 0
        if codec == "snappy":
            node.kill()
            node.start()
    node.stop()
    folder = node.data / "dumped-0"
    segments = sorted(folder.glob("*.log"))
    assert segments
    listed = ",".join(map(str, segments))
    ran = tool(DUMP_LOG, "--files", listed, "--print-data-log", "--deep-iteration", timeout=PAUSE)
    assert "isvalid: false" not in ran.stdout
    assert offsets_in(ran.stdout) == list(range(300))
    assert {f"compresscodec: {codec}" for codec in ("gzip", "snappy", "lz4", "zstd")} <= set(
        re.findall(r"compresscodec: \w+", ran.stdout)
    )
    for kind in ("*.index", "*.timeindex"):
        files = ",".join(str(path) for path in sorted(folder.glob(kind)))
        checked = tool(DUMP_LOG, "--files", files, "--index-sanity-check", timeout=PAUSE)
        complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if COMPLAINT.search(line)]
        assert complaints == []
        walked = tool(DUMP_LOG, "--files", files, "--verify-index-only", timeout=PAUSE)
        complaints = [line for line in (walked.stdout + walked.stderr).splitlines() if COMPLAINT.search(line)]
        assert complaints == []


COMPLAINT = re.compile(r"mismatch|corrupt|invalid|exception|out of order|Found timestamp", re.IGNORECASE)


def test_dump_log_segments_reads_our_group_and_metadata_records(serve: Callable[..., Served]) -> None:
    node = serve()
    run(TOPICS, node, "--create", "--topic", "seen", "--partitions", "1")
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "committed-by"})
    consumer.commit(offsets=[TopicPartition("seen", 0, 42)], asynchronous=False)
    consumer.close()
    node.stop()
    offsets = [path for path in node.data.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    assert offsets
    dumped = "".join(tool(DUMP_LOG, "--files", str(p), "--offsets-decoder", timeout=PAUSE).stdout for p in offsets)
    assert "committed-by" in dumped
    assert '"offset":42' in dumped.replace(" ", "")
    metadata = sorted((metadata_folder(node)).glob("*.log"))
    dumped = "".join(
        tool(DUMP_LOG, "--files", str(p), "--cluster-metadata-decoder", timeout=PAUSE).stdout for p in metadata
    )
    assert '"name":"seen"' in dumped.replace(" ", "")
    assert "TOPIC_RECORD" in dumped
    assert "Could not decode" not in dumped


def test_kafka_reads_offsets_of_transactions_from_our_log(serve: Callable[..., Served]) -> None:
    """The decoder sees the batches of producers and their markers; the formatter sees what was committed."""
    node = serve(**{"offsets.topic.num.partitions": "1"})
    run(TOPICS, node, "--create", "--topic", "seen", "--partitions", "1")
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "copied-by"})
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "copier"})
    producer.init_transactions(PAUSE)
    for offset, is_committed in ((41, True), (4242, False), (43, True)):
        producer.begin_transaction()
        place = TopicPartition("seen", 0, offset)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), PAUSE)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(PAUSE)
    consumer.close()
    formatter = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
    words = ("--bootstrap-server", node.bootstrap, "--topic", "__consumer_offsets", "--from-beginning")
    read = ("--isolation-level", "read_committed", "--formatter", formatter, "--timeout-ms", "10000")
    shown = tool(CONSOLE_CONSUMER, *words, *read, timeout=PAUSE, check=False).stdout.replace(" ", "")
    assert re.findall(r'"offset":(\d+)', shown) == ["41", "43"]
    assert '"group":"copied-by"' in shown
    node.stop()
    (path,) = [path for path in node.data.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    dumped = tool(DUMP_LOG, "--files", str(path), "--offsets-decoder", timeout=PAUSE).stdout
    assert re.findall(r'"offset":(\d+)', dumped.replace(" ", "")) == ["41", "4242", "43"]
    assert re.findall(r"endTxnMarker: (\w+)", dumped) == ["COMMIT", "ABORT", "COMMIT"]
    assert dumped.count("isTransactional: true") == 6
    assert not re.search(COMPLAINT, dumped)


def metadata_folder(node: Served) -> Path:
    return node.data / "__cluster_metadata-0"
