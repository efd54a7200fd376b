"""Runs a tool of Kafka's against a node and tells what it printed, table by table."""

from __future__ import annotations

from benchmarks.kafka_peer import tool
from tests.worlds.served_node import Served

SECONDS = 90.0


def run(classname: str, node: Served, *words: str, status: int = 0) -> str:
    """All that it said, with one blank between columns and none behind the last."""
    ran = tool(classname, "--bootstrap-server", node.bootstrap, *words, timeout=SECONDS, check=False)
    text = ran.stdout + ran.stderr
    assert ran.returncode == status, text
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("Picked up JAVA_TOOL_OPTIONS"))
