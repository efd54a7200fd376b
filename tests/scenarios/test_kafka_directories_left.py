"""Open and decided transactions, and groups of both protocols, in directories that change hands with Apache Kafka.

Each test is a JVM or two and waits for a time-out: `make conformance-kafka-tools` runs them.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from benchmarks.kafka_peer import KafkaPeer
from tests.worlds.left_behind import STATE_PARTITIONS, Opened, all_transactions, check_transactions, groups
from tests.worlds.served_node import Served

pytestmark = [
    pytest.mark.skipif(os.environ.get("DURAMEN_ALL_TOOLS") != "1", reason="DURAMEN_ALL_TOOLS=1 runs every tool"),
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(300),
]

SETTINGS = {
    "log.retention.ms": "-1",  # the records are of an older day
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
NO_MARKERS = """
import sys
from duramen.server.coordinators.transaction_markers import MarkerSender
MarkerSender.start = lambda self, coordinator, effect: None
from duramen.cli.main import main
sys.exit(main())
"""


class WithoutMarkers(Served):
    """A node that decides transactions and gets no further, as one that is stopped in time."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", NO_MARKERS, *super().command()[1:]]


def kafka_in(folder: Path) -> KafkaPeer:
    kafka = KafkaPeer(folder)
    kafka.configure()
    properties = folder / "server.properties"
    given = properties.read_text() + "".join(f"{key}={value}\n" for key, value in SETTINGS.items())
    properties.write_text(given)
    return kafka


def test_what_kafka_left_goes_on_here(tmp_path: Path) -> None:
    kafka = kafka_in(tmp_path / "kafka")
    kafka.format()
    kafka.start()
    try:
        with Opened(kafka.port) as broker:
            in_groups = groups(broker)
            left = all_transactions(broker)
            for each in left:
                if each.decision is not None:
                    each.prepare_by_record(broker)
    finally:
        kafka.stop()
    node = Served(tmp_path, {"node.id": "1", **SETTINGS})
    shutil.copytree(kafka.directory / "data", node.data)
    node.start()
    try:
        with Opened(node.port) as opened:
            check_transactions(opened, left)
            for group in in_groups:
                group.goes_on(opened)
    finally:
        print(node.log())
        assert node.stop() == 0


def test_what_was_left_here_goes_on_in_kafka(tmp_path: Path) -> None:
    node = WithoutMarkers(tmp_path, {"node.id": "1", **SETTINGS})
    node.start()
    try:
        with Opened(node.port) as broker:
            in_groups = groups(broker)
            left = all_transactions(broker)
            for each in left:
                if each.decision is not None:
                    each.prepare_by_request(broker)
    finally:
        print(node.log())
        assert node.stop() == 0
    kafka = kafka_in(tmp_path / "kafka")
    shutil.copytree(node.data, kafka.directory / "data")
    kafka.start()
    try:
        with Opened(kafka.port) as opened:
            check_transactions(opened, left)
            for group in in_groups:
                group.goes_on(opened)
    finally:
        kafka.stop()
