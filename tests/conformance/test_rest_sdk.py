"""Confluent's own Go client for its REST API, against a gateway.

    make conformance-rest       clones the client first (git, Go)

Skipped where the client or Go is not at hand.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served
from tests.worlds.topic_contents import create

SDK = Path(__file__).resolve().parents[2] / ".cache" / "kafka-rest-sdk-go" / "kafkarestv3"
MODULE = "github.com/confluentinc/kafka-rest-sdk-go/kafkarestv3"
GO = shutil.which("go")


@pytest.mark.skipif(GO is None or not SDK.is_dir(), reason="there is no Go, or no client: make conformance-rest")
def test_calls_of_the_go_client(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.mkdir()
    shutil.copy(Path(__file__).with_name("rest_sdk.go"), program / "main.go")
    (program / "go.mod").write_text(f"module calls\ngo 1.21\nrequire {MODULE} v0.0.0\nreplace {MODULE} => {SDK}\n")
    for command in (["mod", "tidy"], ["build", "-o", "calls", "."]):
        subprocess.run([str(GO), *command], cwd=program, check=True, capture_output=True)
    node = Served(tmp_path)
    node.start()
    gateway = ServedGateway(tmp_path, node.bootstrap)
    gateway.start()
    try:
        create(node.bootstrap, "read", 1)
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("read", 0, 0)], asynchronous=False)
        consumer.close()
        ran = subprocess.run([program / "calls", gateway.url, "readers"], capture_output=True, check=True, timeout=60)
    finally:
        gateway.kill()
        node.kill()
    found: dict[str, Any] = {line["call"]: line for line in map(json.loads, ran.stdout.splitlines())}
    refused = {call: line["body"]["error_code"] for call, line in found.items() if "error" in line}
    assert refused == {"create again": 40002, "produce AVRO": 422, "gone": 40403}
    assert {"read", "sdk"} <= {each["topic_name"] for each in found["topics"]["answer"]["data"]}
    assert len(found["partitions"]["answer"]["data"]) == 2
    report = found["produce JSON"]["answer"]
    assert (report["partition_id"], report["offset"], report["timestamp"]) == (1, 0, "2026-01-31T11:00:00.25Z")
    assert (report["key"]["size"], report["value"]["size"]) == (1, 8)
    assert found["setting"]["answer"]["value"] == "86400000"
    assert found["settings"]["answer"]["data"]
    assert found["cluster settings"]["answer"]["kind"] == "KafkaClusterConfigList"
    assert [each["consumer_group_id"] for each in found["groups"]["answer"]["data"]] == ["readers"]
    assert [each["lag"] for each in found["lags"]["answer"]["data"]] == [0]
    assert found["lag summary"]["answer"]["max_lag_topic_name"] == "read"
