"""docs/operations.md prints one file a node of a cluster of three: it begins with exactly those, and survives a kill.

Only what a test cannot have is another one: names of machines, ports, folders.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worlds.served_node import DURAMEN, free_port, only_duramen

pytestmark = [pytest.mark.timeout(180), only_duramen]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## Forming a cluster") : PAGE.index("## As a service")]
NODES = (1, 2, 3)
WAIT_SECONDS = 60.0


class PrintedCluster:
    """The three nodes, with what the page says and places of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places = {
            f"node{node}:{port}": f"127.0.0.1:{free_port()}" for node in NODES for port in ("9092", "9093", "6092")
        }
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(self.places[f"node{node}:9092"] for node in NODES)

    def here(self, text: str, node: int = 0) -> str:
        """The text with places of this machine."""
        for printed, place in self.places.items():
            text = text.replace(printed, place)
        return text.replace("/var/lib/duramen", str(self.folder / f"node{node}"))

    def file(self, node: int) -> Path:
        return self.folder / f"node{node}.properties"

    def write(self) -> None:
        blocks = re.findall(r"^```properties\n# \S+ on node(\d)\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
        assert [int(node) for node, _ in blocks] == list(NODES)
        for node, text in blocks:
            self.file(int(node)).write_text(self.here(text, int(node)))
            assert not re.search(r"node\d:", self.file(int(node)).read_text())

    def init(self) -> None:
        """By the line that the plan prints, on each node."""
        (plan,) = re.findall(r"`(duramen cluster init --plan \S+)`", SECTION)
        line = run(*shlex.split(self.here(plan))[1:])
        for node in NODES:
            words = shlex.split(line.replace("FILE", str(self.file(node))))
            assert words[:3] == ["duramen", "cluster", "init"]
            run(*words[1:])

    def serve(self, node: int) -> None:
        with (self.folder / f"node{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [DURAMEN, "serve", "--config", str(self.file(node))], stdout=log, stderr=log
            )

    def ready(self, node: int) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while "is ready" not in (said := (self.folder / f"node{node}.log").read_text()):
            assert time.monotonic() < until, said
            time.sleep(0.1)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def run(*words: str, said: str = "") -> str:
    done = subprocess.run([DURAMEN, *words], input=said, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PrintedCluster]:
    cluster = PrintedCluster(tmp_path)
    cluster.write()
    try:
        yield cluster
    finally:
        cluster.end()


def test_the_printed_files_make_a_cluster_that_outlives_one_node(cluster: PrintedCluster) -> None:
    cluster.init()
    for node in NODES:
        cluster.serve(node)
    for node in NODES:
        cluster.ready(node)
    at = ("--bootstrap", cluster.bootstrap)
    run("topic", "create", "printed", "--partitions", "3", *at)
    run("produce", "printed", *at, said="1\n2\n3\n")
    (told,) = json.loads(run("topic", "describe", "printed", "--json", *at))
    assert told["settings"]["min.insync.replicas"] == "2"
    assert [sorted(part["replicas"]) for part in told["partitions"]] == [list(NODES)] * 3
    leader = told["partitions"][0]["leader"]
    cluster.processes[leader].kill()
    cluster.processes[leader].wait()
    run("produce", "printed", *at, said="4\n")
    status = json.loads(run("status", "--json", *at))
    assert [node["id"] for node in status["nodes"] if node["trouble"] is not None] == [leader]
    read = run("consume", "printed", "--from", "earliest", "--count", "4", *at).split()
    assert sorted(read) == ["1", "2", "3", "4"]
