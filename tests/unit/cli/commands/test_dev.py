"""`duramen dev`: three nodes come up, each end of a process is told, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.worlds.served_node import DURAMEN

from duramen.cli.commands.dev_cluster import DevCluster
from duramen.cli.commands.dev_run import STOP_SECONDS
from duramen.cli.main import main
from duramen.errors import ConfigError
from duramen.server.controller.broker_lifecycle import NO_CONTROLLER_SECONDS

WAIT_SECONDS = 60.0
PROMISED_SECONDS = 5.0
"""For a stop. Nodes take less than one second of them, where six others want the two cores."""
WITH_OTHER_NODES = """
import sys
from duramen.cli.main import main
sys.executable = sys.argv.pop(1)
sys.exit(main(sys.argv[1:]))
"""
DEAF = "trap '' TERM INT; echo up; exec sleep 600"
WAITS_FOR_BOTH = """
trap 'first=1' TERM; trap 'second=1' INT; echo up
until [ "$first$second" = 11 ]; do sleep 0.05; done
echo told twice
"""


class Dev:
    """A `duramen dev`, and what it has said so far. nodes: what to run as its nodes."""

    def __init__(self, folder: Path, *arguments: str, nodes: str = "") -> None:
        self.folder = folder
        environment = {**os.environ, "TMPDIR": str(folder)}
        program = [DURAMEN]
        if nodes:
            program = [sys.executable, "-c", WITH_OTHER_NODES, nodes]
        command = [*program, "dev", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def told(self, pattern: str) -> re.Match[str]:
        """The first line that has this in it, waited for."""
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in:\n" + "\n".join(self.lines))

    def pids(self, nodes: int) -> dict[int, int]:
        return {node: int(self.told(rf"dev    \| node {node}: pid (\d+)")[1]) for node in range(1, nodes + 1)}

    def stop(self, number: signal.Signals) -> float:
        """Seconds until it has ended, which is to be with 0."""
        began = time.monotonic()
        self.process.send_signal(number)
        assert self.process.wait(WAIT_SECONDS) == 0, self.lines
        took = time.monotonic() - began
        self._thread.join()
        return took

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(WAIT_SECONDS)
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def places() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="test-dev-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pids: dict[int, int]) -> bool:
    until = time.monotonic() + WAIT_SECONDS
    while any(map(is_alive, pids.values())) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(is_alive, pids.values()))


def run(clients: str, *words: str, said: str = "") -> str:
    """What a command of this cluster prints."""
    command = [DURAMEN, *words, "--bootstrap", clients]
    done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout or done.stderr


def settled(ask: Callable[[], str], is_there: Callable[[str], object]) -> str:
    """The answer in which it is there. A loaded machine may be late: a node with its answer, a leader with its word."""
    until = time.monotonic() + WAIT_SECONDS
    while not is_there(answer := ask()):
        assert time.monotonic() < until, answer
    return answer


def tells_of_the_dead(answer: str, gone: int) -> bool:
    """What `duramen status` is to say when this node is dead, and the two others hold what it held."""
    told = json.loads(answer)
    troubles = {node["id"]: node["trouble"] for node in told["nodes"] if node["trouble"]}
    if troubles != {gone: "Connection refused"} or told["quorum"] is None:  # null: while they elect
        return False
    assert told["controller"] == told["quorum"]["leader_id"] != gone
    (topic,) = told["topics"]
    held = topic["under_replicated"], topic["under_min_isr"], topic["offline"], topic["records"]
    return held == (3, 0, 0, 1)


def check_status(clients: str, gone: int) -> None:
    """`duramen status` and `topic describe` work while a node is dead, and say so."""
    run(clients, "topic", "create", "t", "--partitions", "3")  # also then it gets three copies
    run(clients, "produce", "t", said="1\n")
    settled(lambda: run(clients, "status", "--json"), lambda answer: tells_of_the_dead(answer, gone))
    row = rf"^ +{gone}  no answer  voter  +\d+  +0  +3  +0  127\.0\.0\.1:\d+$"
    text = settled(lambda: run(clients, "status", "--once"), lambda answer: re.search(row, answer, re.M))
    assert re.search(rf"^node {gone} \(127\.0\.0\.1:\d+\) does not answer: Connection refused$", text, re.M)
    assert max(len(line) for line in text.splitlines() if not re.match(r"node \d, /", line)) <= 80
    assert "3 of 3 partitions under-replicated: not in sync: node " in run(clients, "topic", "describe", "t")


def by_themselves(dev: Dev) -> bool:
    """Whether all nodes that were left at the stop ended well, and none waited for others to lead."""
    after = dev.lines[dev.lines.index("dev    | stopping; once more kills") :]
    waited = [float(found[1]) for line in after if (found := re.search(r"broker-not-handed-over seconds=(\S+)", line))]
    ill = [line for line in after if re.match(r"dev    \| node \d (was ended|ended with)", line)]
    return not ill and max(waited, default=0.0) < NO_CONTROLLER_SECONDS


def test_three_nodes_one_is_killed_one_is_paused_and_nothing_is_left(places: Path) -> None:
    dev = Dev(places)
    try:
        pids = dev.pids(3)
        first = int(dev.told(r"dev    \| node (\d) leads the quorum of 3, epoch 1, after")[1])
        dev.told(r"dev    \| controllers: --bootstrap-controller (127\.0\.0\.1:\d+,?){3}$")
        dev.told(r"node 2 \| .*duramen .* is ready")
        os.kill(pids[first], signal.SIGKILL)
        dev.told(rf"dev    \| node {first} was ended by SIGKILL and is not started again")
        settings = dev.told(r"dev    \|     duramen serve --config (\S+)")[1]
        assert Path(settings).exists()
        second = int(dev.told(r"dev    \| node (\d) leads the quorum of 3, epoch ([2-9]|\d\d)")[1])
        assert second != first
        check_status(dev.told(r"clients: --bootstrap (\S+)$")[1], first)
        os.kill(pids[second], signal.SIGSTOP)
        took = dev.stop(signal.SIGINT)
    finally:
        dev.close()
    assert dev.lines[-1] == "dev    | stopped"
    assert by_themselves(dev), dev.lines
    assert took < PROMISED_SECONDS
    assert gone(pids)
    assert not list(places.iterdir())


def test_a_kept_cluster_goes_on_with_its_records(places: Path) -> None:
    keep = places / "kept"
    dev = Dev(places, "--nodes", "3", "--keep", str(keep))
    try:
        clients = dev.told(r"dev    \|     export DURAMEN_BOOTSTRAP=((?:127\.0\.0\.1:\d+,?){3})$")[1]
        dev.told(r"dev    \|     kill -9 \d+   # node \d; the others go on")
        pids = dev.pids(3)
        assert run(clients, "topic", "create", "numbers", "--partitions", "2") == "created numbers\n"
        run(clients, "produce", "numbers", said="".join(f"{number}\n" for number in range(100)))
        assert dev.stop(signal.SIGINT) < PROMISED_SECONDS
    finally:
        dev.close()
    assert by_themselves(dev), dev.lines
    assert gone(pids)
    dev = Dev(places, "--keep", str(keep))
    try:
        assert dev.told(r"clients: --bootstrap ((?:127\.0\.0\.1:\d+,?){3})$")[1] == clients
        pids = dev.pids(3)
        read = run(clients, "consume", "numbers", "--from", "earliest", "--count", "100")
        assert sorted(map(int, read.split())) == [*range(100)]
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        assert dev.stop(signal.SIGINT) < PROMISED_SECONDS
    finally:
        dev.close()
    assert by_themselves(dev), dev.lines
    assert gone(pids)
    told = [line for line in dev.lines if line]
    assert all(re.match(r"(dev   |node \d) \| \S", line) or line.startswith("dev    |     ") for line in told)


def stand_in(folder: Path, script: str) -> str:
    """A program to run as each node."""
    path = folder / "node"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("times", [1, 2])
def test_nodes_that_do_not_stop_are_killed_and_at_once_by_a_second_ctrl_c(places: Path, times: int) -> None:
    dev = Dev(places, "--nodes", "2", nodes=stand_in(places, DEAF))
    try:
        pids = dev.pids(2)
        for node in pids:
            dev.told(rf"node {node} \| up$")
        if times == 2:
            dev.process.send_signal(signal.SIGINT)
            dev.told(r"dev    \| stopping; once more kills$")
        took = dev.stop(signal.SIGINT)
    finally:
        dev.close()
    assert {f"dev    | node {node} was ended by SIGKILL" for node in pids} <= set(dev.lines)
    assert took < (PROMISED_SECONDS if times == 1 else STOP_SECONDS / 2)
    assert gone(pids)


def test_a_stop_tells_each_node_twice_also_one_that_is_paused(places: Path) -> None:
    """Signals of one kind that come together are one: what a paused node finds must be two."""
    dev = Dev(places, "--nodes", "2", nodes=stand_in(places, WAITS_FOR_BOTH))
    try:
        pids = dev.pids(2)
        for node in pids:
            dev.told(rf"node {node} \| up$")
        os.kill(pids[1], signal.SIGSTOP)
        dev.stop(signal.SIGINT)
    finally:
        dev.close()
    assert {f"node {node} | told twice" for node in pids} <= set(dev.lines)
    assert by_themselves(dev)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent is gone")
def test_a_kept_node_alone_goes_on_and_ends_with_whoever_started_it(places: Path) -> None:
    keep = places / "kept"
    dev = Dev(places, "--nodes", "1", "--keep", str(keep))
    try:
        dev.told(r"node 1 leads the quorum, epoch 1")
        dev.told(r"clients: --bootstrap 127\.0\.0\.1:\d+$")
        pids = dev.pids(1)
        dev.process.kill()
        dev.process.wait()
    finally:
        dev.close()
    assert gone(pids), "a node outlives its `duramen dev` that was killed"
    dev = Dev(places, "--keep", str(keep))
    try:
        dev.told(r"starting a node alone")
        dev.told(r"node 1 leads the quorum, epoch 2")
        pids = dev.pids(1)
        dev.stop(signal.SIGHUP)
    finally:
        dev.close()
    assert gone(pids)
    assert (keep / "node-1" / "data").is_dir()


def test_a_node_that_cannot_start_is_told_with_its_status(places: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        dev = Dev(places, "--nodes", "1", "--port", str(port))
        try:
            assert dev.process.wait(WAIT_SECONDS) == 1
        finally:
            dev.close()
    dev.told(r"node 1 \| duramen: .*in use")
    dev.told(r"dev    \| node 1 ended with exit status 1 and is not started again")
    assert dev.lines[-1] == "dev    | all nodes have ended"
    assert not list(places.iterdir())


@pytest.mark.parametrize(("nodes", "copies", "fewest"), [(1, "", ""), (2, "2", ""), (3, "3", "2"), (5, "3", "2")])
def test_partitions_have_as_many_copies_as_nodes_but_three_at_most(
    tmp_path: Path, nodes: int, copies: str, fewest: str
) -> None:
    cluster = DevCluster(str(tmp_path / "cluster"), nodes, None, {})
    for node in cluster.nodes:
        told = cluster.settings_of(node)
        assert told.get("default.replication.factor", "") == copies
        assert told.get("offsets.topic.replication.factor", "") == copies
        assert told.get("min.insync.replicas", "") == fewest
    one = DevCluster(str(tmp_path / "other"), nodes, None, {"default.replication.factor": "1"})
    assert one.settings_of(one.nodes[0])["default.replication.factor"] == "1"


def test_what_is_formed_is_not_formatted_again(tmp_path: Path) -> None:
    folder = tmp_path / "three"
    asked: list[int] = []

    def after_one() -> bool:
        asked.append(1)
        return len(asked) > 1

    cluster = DevCluster(str(folder), 3, None, {})
    cluster.form(after_one)
    identity = folder / "node-1" / "metadata" / "meta.properties"
    formatted = identity.read_bytes()
    assert not (folder / "node-2" / "metadata").exists()
    cluster = DevCluster(str(folder), None, None, {})  # which goes on with what was interrupted
    assert not cluster.is_formed
    cluster.form(lambda: False)
    assert identity.read_bytes() == formatted
    shutil.rmtree(folder / "node-3" / "metadata")
    cluster = DevCluster(str(folder), 3, None, {"log.retention.hours": "1"})
    assert cluster.is_formed
    cluster.form(lambda: False)
    assert not (folder / "node-3" / "metadata").exists(), "a wiped voter would vote"
    assert "log.retention.hours=1\n" in (folder / "node-3" / "server.properties").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--nodes", "2"], r"--nodes 2: the cluster in \S+ has 3; name another folder"),
        (["--port", "22"], r"--port 22: the cluster in \S+ has its ports, from \d+ on, in its log"),
        (["--set", "node.id=3"], r"--set node.id: `duramen dev` sets it itself"),
    ],
)
def test_another_cluster_than_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    folder = str(tmp_path / "three")
    DevCluster(folder, 3, None, {}).form(lambda: False)
    assert main(["dev", "--keep", folder, *arguments]) == 2
    assert re.search(told, capsys.readouterr().err)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(ConfigError, match="is not empty, and holds no cluster"):
        DevCluster(str(tmp_path), None, None, {})
    with pytest.raises(ConfigError, match="need ports up to 65551"):
        DevCluster(str(tmp_path / "new"), 3, 65_530, {})


def test_each_node_may_run_a_gateway(tmp_path: Path) -> None:
    cluster = DevCluster(str(tmp_path / "c"), 3, None, {"gateway.listener": "http://127.0.0.1:8082"})
    cluster.form(lambda: False)
    listeners = [cluster.settings_of(node)["gateway.listener"] for node in cluster.nodes]
    assert listeners == [f"http://127.0.0.1:{port}" for port in (8082, 8083, 8084)]
