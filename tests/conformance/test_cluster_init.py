"""`duramen cluster init` beside `kafka-storage format`: Kafka's tools read ours, and a broker of its starts on it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.kafka_peer import DUMP_LOG, STORAGE, KafkaPeer, cluster_id, tool

pytestmark = [pytest.mark.usefixtures("kafka_jars"), pytest.mark.timeout(300)]
INIT = [sys.executable, "-m", "duramen", "cluster", "init"]
VOTERS = "1@127.0.0.1:9093:J8aAPcfLQt2bqs1JT_rMgQ,2@127.0.0.1:9094:MvDxzVmcRsaTz33bUuRU6A"
SNAPSHOT = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


def properties(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "server.properties"
    path.write_text(
        "process.roles=broker,controller\n"
        "node.id=1\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:9093\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={folder}/data\n"
    )
    return path


def dumped(path: Path) -> str:
    """What kafka-dump-log says of it, without its place and times."""
    text = tool(DUMP_LOG, "--cluster-metadata-decoder", "--files", str(path)).stdout
    assert "isvalid: true" in text
    text = re.sub(r'CreateTime: \d+|crc: \d+|"lastContainedLogTimestamp":\d+', "", text)
    return text.replace(str(path), "")


def test_it_writes_the_same_voters_and_kafkas_tools_read_them(tmp_path: Path) -> None:
    ours, theirs, cluster = properties(tmp_path / "ours"), properties(tmp_path / "theirs"), cluster_id()
    told = [*INIT, "-c", str(ours), "--cluster-id", cluster, "--initial-controllers", VOTERS]
    subprocess.run(told, check=True, capture_output=True, timeout=60)
    tool(STORAGE, "format", "-c", str(theirs), "-t", cluster, "--initial-controllers", VOTERS)
    assert dumped(ours.parent / "data" / SNAPSHOT) == dumped(theirs.parent / "data" / SNAPSHOT)
    assert '"name":"metadata.version","featureLevel":30' in dumped(ours.parent / "data" / "bootstrap.checkpoint")
    info = tool(STORAGE, "info", "-c", str(ours), check=False).stdout
    assert cluster in info
    assert "J8aAPcfLQt2bqs1JT_rMgQ" in info
    again = tool(STORAGE, "format", "-c", str(ours), "-t", cluster, "--initial-controllers", VOTERS, check=False)
    assert "is already formatted" in again.stdout + again.stderr


def test_a_broker_of_kafkas_starts_on_it(tmp_path: Path) -> None:
    kafka = KafkaPeer(tmp_path / "kafka")
    kafka.configure()
    path = kafka.directory / "server.properties"
    text = path.read_text()
    path.write_text(re.sub(r"controller\.quorum\.voters=1@", "controller.quorum.bootstrap.servers=", text))
    subprocess.run([*INIT, "--standalone", "-c", str(path)], check=True, capture_output=True, timeout=60)
    kafka.start()
    try:
        listed = tool("org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", kafka.bootstrap,
                      "describe", "--status").stdout  # fmt: skip
    finally:
        kafka.stop()
    found = re.search(r"directory\.id=(\S+)", (kafka.directory / "data" / "meta.properties").read_text())
    assert found is not None
    assert f'"id": 1, "directoryId": "{found[1]}"' in listed
