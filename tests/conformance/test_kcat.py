"""kcat, unmodified, where it is installed: an old librdkafka, as Debian ships it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest
from tests.worlds.served_node import Served

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")
Names = Callable[[str], str]


def kcat(node: Served, *words: str, given: str = "") -> str:
    command = [KCAT or "kcat", "-b", node.bootstrap, "-q", *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_goes_in_comes_out(node: Served, name: Names, codec: str) -> None:
    topic = name("kcat")
    lines = [f"key-{i}:value {i}" for i in range(100)]
    kcat(node, "-P", "-t", topic, "-p", "0", "-K:", "-z", codec, given="\n".join(lines) + "\n")
    assert kcat(node, "-C", "-t", topic, "-e", "-K:").splitlines() == lines


def test_metadata(node: Served, name: Names) -> None:
    topic = name("kcat")
    kcat(node, "-P", "-t", topic, given="one\n")
    listed = json.loads(kcat(node, "-L", "-J"))
    assert topic in {entry["topic"] for entry in listed["topics"]}
    assert [broker["name"] for broker in listed["brokers"]] == [node.bootstrap]


def test_a_balanced_group(node: Served, name: Names) -> None:
    topic, group = name("kcat"), name("g")
    kcat(node, "-P", "-t", topic, given="a\nb\nc\n")
    words = ["-G", group, "-e", "-X", "auto.offset.reset=earliest", topic]
    assert sorted(kcat(node, *words).split()) == ["a", "b", "c"]
    assert kcat(node, *words).split() == []
