"""`duramen cluster`: a plan that fits what formats, JSON that stays, and refusals in one line; also as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from duramen.cli.main import main

PLAN = "1@127.0.0.1:9093,2@127.0.0.1:9094,3@127.0.0.1:9095"
RUN = [sys.executable, "-m", "duramen.cli.main"]


def settings(folder: Path, node: int = 1) -> list[str]:
    listeners = f"PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:{9092 + node}"
    given = {
        "node.id": node,
        "log.dirs": folder / "data",
        "metadata.log.dir": folder / "metadata",
        "listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    }
    return [word for key, value in given.items() for word in ("--set", f"{key}={value}")]


def test_a_plan_is_what_every_node_is_formatted_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "init", "--plan", PLAN, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in plan["controllers"]] == [1, 2, 3]
    assert list(plan) == ["cluster_id", "initial_controllers", "controllers"]
    voters = ["--cluster-id", plan["cluster_id"], "--initial-controllers", plan["initial_controllers"]]
    for node in (1, 2, 3):
        folder = tmp_path / str(node)
        assert main(["cluster", "init", *settings(folder, node), *voters, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert list(told) == ["cluster_id", "node_id", "directories", "controllers"]
        assert told["cluster_id"] == plan["cluster_id"]
        assert told["node_id"] == node
        assert told["controllers"] == plan["controllers"]
        data, metadata = told["directories"]
        assert (data["path"], data["metadata"]) == (str(folder / "data"), False)
        own = plan["controllers"][node - 1]["directory_id"]
        assert metadata == {"path": str(folder / "metadata"), "directory_id": own, "metadata": True}


def test_a_plan_for_people_is_a_line_to_copy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "init", "--plan", PLAN, "--cluster-id", "4L6g3nShT-eMCtK--X86sw"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    begins = "duramen cluster init --config FILE --cluster-id 4L6g3nShT-eMCtK--X86sw --initial-controllers 1@127.0.0.1:"
    assert line.startswith(begins)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "who are the first voters? Give --standalone"),
        (
            ["--standalone", "--no-initial-controllers"],
            2,
            "--standalone and --no-initial-controllers exclude each other",
        ),
        (["--plan", "1@a"], 2, "is not host:port"),
        (["--plan", "nobody"], 2, "'nobody' is not ID@HOST:PORT"),
        (["--standalone", "--cluster-id", "mine"], 2, "--cluster-id: 'mine' is no id; `duramen cluster random-uuid`"),
        (["--initial-controllers", "1@a:9093:J8aAPcfLQt2bqs1JT_rMgQ"], 2, "needs --cluster-id"),
        (["--no-initial-controllers"], 2, "needs --cluster-id"),
        (["--set", "process.roles=broker"], 2, "a broker needs --cluster-id"),
    ],
)
def test_what_is_asked_for_wrongly_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    base = settings(tmp_path)
    if "process.roles=broker" in arguments:
        base += ["--set", "listeners=PLAINTEXT://127.0.0.1:9092"]
    assert main(["cluster", "init", *base, *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert told in line
    assert not (tmp_path / "data").exists()


def test_two_ids_are_different(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "random-uuid"]) == 0
    assert main(["cluster", "random-uuid"]) == 0
    one, two = capsys.readouterr().out.split()
    assert one != two
    assert len(one) == len(two) == 22


def test_a_node_alone_is_formatted_once_and_a_voter_of_several_is_not_served_yet(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*RUN, *arguments], capture_output=True, text=True, timeout=60, check=False)

    alone = settings(tmp_path / "alone")
    done = run("cluster", "init", "--standalone", *alone)
    assert (done.returncode, done.stderr) == (0, "")
    cluster, data, metadata = done.stdout.splitlines()
    assert cluster.startswith("cluster ")
    assert cluster.endswith(", node 1")
    assert data.startswith(f"formatted {tmp_path}/alone/data: directory ")
    assert metadata.endswith(", with the metadata log")
    again = run("cluster", "init", "--standalone", *alone)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == (
        f"duramen: {tmp_path}/alone/data is formatted already, for node 1 of cluster "
        f"{cluster.split()[1].rstrip(',')}: start the node, or name another directory\n"
    )
    plan = json.loads(run("cluster", "init", "--plan", PLAN, "--json").stdout)
    one = settings(tmp_path / "one")
    voters = ["--cluster-id", plan["cluster_id"], "--initial-controllers", plan["initial_controllers"]]
    assert run("cluster", "init", *one, *voters).returncode == 0
