"""Directories handed over between us and Apache Kafka, run from its jars; skipped where there is no Java or Maven."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.kafka_peer import DUMP_LOG, STORAGE, KafkaPeer, cluster_id, tool
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.kafka_classes import with_all_tools
from tests.worlds.served_node import Served

TOPIC = "handed-over"
RECORDS = 400
AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
"""A group's first member waits for no others, as in `KafkaPeer`."""
pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300)]  # a JVM takes seconds to start


def fill(bootstrap: str) -> None:
    """Two segments of records in one partition, and a group that has read some of them."""
    configs = {"segment.bytes": "1048576", "retention.ms": "-1"}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.size": 65536})
    for number in range(RECORDS):
        producer.produce(TOPIC, (b"%d:" % number).ljust(4000, b"x"), partition=0)
        if number % 20 == 19:
            producer.flush(30)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    assert len(consumer.consume(100, timeout=60)) == 100
    consumer.commit(asynchronous=False)
    consumer.close()


def numbers(bootstrap: str) -> list[int]:
    """The records' numbers as a consumer gets them, CRCs checked."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "all",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.subscribe([TOPIC])
    found: list[int] = []
    while len(found) < RECORDS:
        messages = consumer.consume(RECORDS - len(found), timeout=30)
        assert messages, f"only {len(found)} records came"
        assert all(message.error() is None for message in messages)
        found += [int((message.value() or b"").partition(b":")[0]) for message in messages]
    consumer.close()
    return found


def committed(bootstrap: str) -> int:
    """How far the group that `fill` left has come."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
    consumer.close()
    return int(found.offset)


def test_every_file_of_ours_is_what_kafkas_own_tool_reads(tmp_path: Path) -> None:
    node = Served(tmp_path, AT_ONCE)
    node.start()
    try:
        fill(node.bootstrap)
    finally:
        assert node.stop() == 0
    files: dict[str, list[str]] = {"": [], "--cluster-metadata-decoder": [], "--offsets-decoder": []}
    for path in sorted(node.data.rglob("0*")):
        decoder = {"__cluster_metadata-0": "--cluster-metadata-decoder"}.get(path.parent.name, "")
        if path.parent.name.startswith("__consumer_offsets"):
            if path.suffix != ".log" or path.stat().st_size == 0:
                continue
            decoder = "--offsets-decoder"
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex"):
            files[decoder].append(str(path))
    assert len([path for path in files[""] if path.endswith(".log")]) >= 2
    for decoder, paths in files.items():
        assert paths, decoder
        words = ["--files", ",".join(paths), *([decoder] if decoder else [])]
        ran = tool(DUMP_LOG, *words, "--deep-iteration", timeout=120, check=False)
        text = ran.stdout + ran.stderr
        assert ran.returncode == 0, text[-2000:]
        for sign in ("isvalid: false", "Found timestamp mismatch", "Mismatches in", "Exception", "Could not"):
            assert sign not in text, text[-3000:]


def test_kafkas_directory_after_its_clean_stop_is_ours_with_all_records(tmp_path: Path) -> None:
    kafka = KafkaPeer(tmp_path / "kafka")
    kafka.prepare()
    kafka.start()
    try:
        fill(kafka.bootstrap)
    finally:
        kafka.stop()
    assert (kafka.directory / "data" / ".kafka_cleanshutdown").exists()
    node = Served(tmp_path, {"node.id": "1", **AT_ONCE})
    shutil.copytree(kafka.directory / "data", node.data)
    node.start()
    try:
        assert numbers(node.bootstrap) == list(range(RECORDS))
        assert committed(node.bootstrap) == 100
    finally:
        assert node.stop() == 0


def create_and_delete(bootstrap: str, enough: Callable[[], bool]) -> None:
    """Metadata records, at least two rounds, until snapshots were taken and the log was rolled or cut."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + 90
    number = 0
    while number < 2 or not enough():
        assert time.monotonic() < deadline, "no snapshot, or a log that stays whole"
        name = f"short-lived-{number}"
        admin.create_topics([NewTopic(name, 20, 1)])[name].result(30)
        admin.delete_topics([name])[name].result(30)
        number += 1
        time.sleep(0.3)


def can_be_cut(data: Path) -> bool:
    """Whether the newest snapshot covers whole segments of the metadata log, the first of which is at 0."""
    home = data / "__cluster_metadata-0"
    newest = max((path.name[:20] for path in home.glob("*.checkpoint")), default="")
    return any(int(path.stem) > 0 and path.stem <= newest for path in home.glob("*.log"))


def cut_metadata(data: Path) -> tuple[int, int]:
    """(first offset in the metadata log's files, number of snapshots beside it)."""
    home = data / "__cluster_metadata-0"
    return min(int(path.stem) for path in home.glob("*.log")), len(list(home.glob("*.checkpoint")))


def cut_at_newest_snapshot(data: Path) -> None:
    """What Kafka's own cleaning does, which it looks into once a minute: segments below the newest snapshot go."""
    home = data / "__cluster_metadata-0"
    newest = max(home.glob("*.checkpoint"))
    bases = sorted(path.stem for path in home.glob("*.log"))
    for base, following in itertools.pairwise(bases):
        if following <= newest.name[:20]:
            for path in home.glob(f"{base}.*"):
                path.unlink()
    for path in home.glob("*.checkpoint"):
        if path != newest:
            path.unlink()


def with_a_dynamic_quorum(kafka: KafkaPeer) -> None:
    """Format it as Kafka's quick start does: the voters stand in a snapshot at offset 0. Snapshots come often."""
    kafka.configure()
    properties = kafka.directory / "server.properties"
    lines = properties.read_text().splitlines()
    voters = next(line for line in lines if line.startswith("controller.quorum.voters="))
    lines[lines.index(voters)] = f"controller.quorum.bootstrap.servers={voters.partition('@')[2]}"
    lines += ["metadata.log.max.snapshot.interval.ms=1000", "metadata.log.segment.ms=1000"]
    properties.write_text("\n".join(lines) + "\n")
    tool(STORAGE, "format", "--standalone", "-t", cluster_id(), "-c", str(properties), timeout=60)


@with_all_tools
def test_directories_whose_metadata_log_was_cut_change_hands_both_ways(tmp_path: Path) -> None:
    kafka = KafkaPeer(tmp_path / "kafka")
    with_a_dynamic_quorum(kafka)
    kafka.start()
    try:
        fill(kafka.bootstrap)
        create_and_delete(kafka.bootstrap, lambda: can_be_cut(kafka.directory / "data"))
    finally:
        kafka.stop()
    often = {
        "metadata.log.max.record.bytes.between.snapshots": "1",
        "metadata.max.retention.bytes": "0",
        "log.retention.check.interval.ms": "500",
        "log.flush.offset.checkpoint.interval.ms": "500",  # segments go behind a checkpoint
        "log.segment.delete.delay.ms": "0",
    }
    node = Served(tmp_path, {"node.id": "1", **AT_ONCE, **often})
    shutil.copytree(kafka.directory / "data", node.data)
    cut_at_newest_snapshot(node.data)
    kafkas, count = cut_metadata(node.data)
    assert (kafkas > 0, count) == (True, 1)
    node.start()
    try:
        assert numbers(node.bootstrap) == list(range(RECORDS))
        assert committed(node.bootstrap) == 100
        topics = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0}).list_topics(timeout=10).topics
        assert set(topics) == {TOPIC, "__consumer_offsets"}
        create_and_delete(node.bootstrap, lambda: cut_metadata(node.data)[0] > kafkas)
    finally:
        assert node.stop() == 0
    ours, count = cut_metadata(node.data)
    assert ours > kafkas
    assert count > 0
    newest = max((node.data / "__cluster_metadata-0").glob("*.checkpoint"))
    ran = tool(DUMP_LOG, "--files", str(newest), "--cluster-metadata-decoder", timeout=120, check=False)
    for sign in ("SnapshotHeader", "KRaftVoters", "SnapshotFooter", f'"data":{{"name":"{TOPIC}"'):
        assert sign in ran.stdout, ran.stdout[-3000:] + ran.stderr
    for sign in ("isvalid: false", "Exception"):
        assert sign not in ran.stdout + ran.stderr
    shutil.rmtree(kafka.directory / "data")
    shutil.copytree(node.data, kafka.directory / "data")
    kafka.start()
    try:
        assert numbers(kafka.bootstrap) == list(range(RECORDS))
        assert committed(kafka.bootstrap) == 100
    finally:
        kafka.stop()


def test_kafka_opens_our_directory_after_our_clean_stop(tmp_path: Path) -> None:
    node = Served(tmp_path, {"node.id": "1", **AT_ONCE})
    node.start()
    try:
        fill(node.bootstrap)
    finally:
        assert node.stop() == 0
    kafka = KafkaPeer(tmp_path / "kafka")
    kafka.configure()
    shutil.copytree(node.data, kafka.directory / "data")
    kafka.start()
    try:
        assert numbers(kafka.bootstrap) == list(range(RECORDS))
        assert committed(kafka.bootstrap) == 100
    finally:
        kafka.stop()
