"""Commands of `duramen spark` that start no Spark: what they say when something is not there."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from py4j import java_gateway

from duramen import pipelines
from duramen.cli.main import main
from duramen.cli.spark import progress, run
from duramen.cli.spark.pipeline import load
from duramen.cli.spark.run import tell_if_away
from duramen.errors import DeadlineError
from duramen.pipelines.jvm import session
from duramen.pipelines.model.declaration import TableStep
from duramen.pipelines.model.folders import Current, StepFolder
from duramen.pipelines.model.function_fingerprint import noted
from duramen.pipelines.model.late_rows import count
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.dry_runner import DryRunner
from duramen.swaps import CutOver

PIPELINE = """
from duramen import pipelines

pipeline = pipelines.Pipeline("typo")


@pipeline.table(pipelines.Topic("flihgts", key="tail", schema="carrier string"), keys=["tail"])
def aircraft(flights):
    return flights
"""


class Empty:
    """A node without topics."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def ends(self, _topic: str) -> Offsets:
        return Offsets()

    starts = ends


def test_the_lag_behind_a_topic_that_is_not_there_is_no_empty_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr(progress, "PipelineNode", Empty)
    monkeypatch.setattr(DuramenConnector, "cuts", lambda *_: ())
    file = tmp_path / "typo.py"
    file.write_text(PIPELINE)
    assert main(["spark", "lag", str(file), "--folder", str(tmp_path)]) == 1
    assert "aircraft: there is no topic flihgts at" in capsys.readouterr().err


def test_who_asks_in_another_folder_is_told_and_leaves_nothing_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr(progress, "PipelineNode", Grown)
    monkeypatch.setattr(DuramenConnector, "cuts", lambda *_: ())
    file, folder = tmp_path / "typo.py", tmp_path / "elsewhere"
    file.write_text(PIPELINE)
    for command, code in (("status", 0), ("lag", 0), ("swap aircraft v2", 1), ("rollback aircraft", 1)):
        name, *words = command.split()
        assert main(["spark", name, str(file), *words, "--folder", str(folder)]) == code
        assert f"there is no {folder}" in capsys.readouterr().err
        assert not folder.exists()


@pytest.mark.parametrize("name", ["_tour", "\u00e9t\u00e9", "1st", "class", "json", "pyspark", "a-b", ""])
def test_a_first_pipeline_has_a_name_that_it_can_be_run_under(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of these were written, and refused by the next command; others hid a module of Python's."""
    monkeypatch.chdir(tmp_path)
    assert main(["spark", "init", name]) == 2
    assert repr(name) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "given"),
    [
        *(("--master", each) for each in ("local[x]", "local[0]", "local[2", "locale", "host:7077", "")),
        *(("--trigger", each) for each in ("soon", "500 ms", "10", "-1 seconds", "1 month", "")),
    ],
)
def test_a_master_or_a_trigger_that_spark_does_not_know_is_told_before_it_starts(
    option: str, given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of them ended with a page of Java's, and all with 1."""
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr(session, "borrowed", None)
    file = tmp_path / "typo.py"
    file.write_text(PIPELINE)
    assert main(["spark", "run", str(file), option, given]) == 2
    told = capsys.readouterr().err
    assert repr(given) in told
    assert option in told


def test_masters_and_triggers_of_spark_are_taken() -> None:
    for master in ("local", "local[*]", "local[4]", "local[2, 3]", "local-cluster[2,1,1024]", "spark://a:7077,b:7077"):
        assert run.taken_master(master), master
    for master in ("yarn", "k8s://https://host:443"):
        assert run.taken_master(master), master
    for trigger in (
        "1 second",
        "10 seconds",
        "1 minute 30 seconds",
        "interval 5 minutes",
        "0 seconds",
        "500 MILLISECONDS",
    ):
        assert run.taken_trigger(trigger), trigger


class Grown(Empty):
    """A node whose topics have seven records in each of two partitions."""

    def ends(self, topic: str) -> Offsets:
        return Offsets({(topic, partition): 7 for partition in range(2)})

    def starts(self, topic: str) -> Offsets:
        return Offsets({(topic, partition): 1 for partition in range(2)})


def test_the_lag_is_counted_up_to_a_cut_and_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = [CutOver("flihgts", {0: 5, 1: 4}, "flihgts.v2", {0: 2, 1: 6})]
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr(progress, "PipelineNode", Grown)
    monkeypatch.setattr(DuramenConnector, "cuts", lambda *_: chain)
    file, version = tmp_path / "typo.py", StepFolder(tmp_path, "aircraft").version("v1")
    file.write_text(PIPELINE)

    def lag() -> list[tuple[str, int, int, int, int]]:
        assert main(["spark", "lag", str(file), "--folder", str(tmp_path), "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        return [(row["topic"], row["partition"], row["at"], row["end"], row["lag"]) for row in rows]

    assert lag() == [("flihgts.v2", 0, 1, 7, 6), ("flihgts.v2", 1, 1, 7, 6)], "who begins now reads the last topic"
    version.describe({"generation": 0, "first_generation": 0})
    for kind in ("offsets", "commits"):
        (version.checkpoint(0) / kind).mkdir(parents=True)
        (version.checkpoint(0) / kind / "0").write_text('v1\n{}\n{"flihgts":{"0":3,"1":4}}')
    behind = [("flihgts.v2", 0, 2, 7, 5), ("flihgts.v2", 1, 6, 7, 1)]
    assert lag() == [("flihgts", 0, 3, 5, 2), ("flihgts", 1, 4, 4, 0), *behind]
    version.describe({"generation": 1, "first_generation": 0})
    assert lag() == behind


def test_a_swap_that_was_killed_behind_its_point_is_no_version_that_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    file, folder = tmp_path / "typo.py", StepFolder(tmp_path, "aircraft")
    file.write_text(PIPELINE)
    for version in ("v1", "v2"):
        folder.version(version).describe({"fingerprint": "other"})
    folder.note_reprocessing({"version": "v2", "phase": "built"})
    for current, state in (("v1", "v2 built"), ("v2", "code changed")):
        folder.point(Current(current))
        assert main(["spark", "status", str(file), "--folder", str(tmp_path), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["current"], row["state"]) == (current, state)


def test_a_version_that_run_would_refuse_is_not_called_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the function is the same, and what it reads, or how its table is kept, is not."""
    monkeypatch.setattr("sys.path", sys.path.copy())
    file, version = tmp_path / "typo.py", StepFolder(tmp_path, "aircraft").version("v1")
    file.write_text(PIPELINE)
    step = load(file).step("aircraft")
    assert isinstance(step, TableStep)
    made = {**noted(step), "table": step.form}
    was = made["source"]
    for about, state in (
        (made, "ready"),
        ({"fingerprint": step.fingerprint}, "ready"),  # an older release noted no more
        ({**made, "fingerprint": "other"}, "code changed"),
        ({}, "code changed"),
        ({**made, "source": {**was, "topic": "flights"}}, "source changed"),
        ({**made, "source": {**was, "key": "id"}}, "source changed"),
        ({**made, "source": {**was, "schema": "carrier int"}}, "schema changed"),
        ({**made, "table": {**step.form, "store": "parquet"}}, "table changed"),
    ):
        version.describe(about)
        assert main(["spark", "status", str(file), "--folder", str(tmp_path), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["state"] == state, about


def test_late_rows_are_shown_where_a_step_has_a_watermark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    file, version = tmp_path / "typo.py", StepFolder(tmp_path, "aircraft").version("v1")
    file.write_text(PIPELINE)
    status = ["spark", "status", str(file), "--folder", str(tmp_path)]
    version.describe({})
    version.note_progress({"batch": 4, "rows": 7})  # an older release
    assert main(status) == 0
    assert "watermark" not in capsys.readouterr().out
    version.note_progress({"batch": 4, "rows": 7, "late_total": 0, "watermark": None})
    assert main(status) == 0
    assert capsys.readouterr().out.endswith("\naircraft: late 0, watermark none yet\n")
    version.note_progress({"batch": 4, "rows": 7, "late_total": 2, "watermark": "2026-01-01T00:51:00.000Z"})
    count(version, 0, 4, 2)
    count(version, 0, 6, 1)  # and batch 5 was not counted
    assert main(status) == 0
    assert capsys.readouterr().out.endswith("\naircraft: late at least 3, watermark 2026-01-01 00:51:00\n")
    assert main([*status, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["late_total"], row["late_uncounted"], row["watermark"]) == (3, 5, "2026-01-01T00:51:00.000Z")


def test_a_command_names_the_environment_that_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typo.py").write_text(PIPELINE)
    assert main(["spark", "status", "typo.py", "--env", "dev"]) == 0
    said = capsys.readouterr()
    assert said.out.endswith("\nenvironment dev: typo-tables/env-dev\n")
    assert f"there is no {tmp_path}/typo-tables/env-dev" in said.err
    assert main(["spark", "status", "typo.py", "--folder", "x", "--env", "dev", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)[0]["env"] == "dev"
    assert f"there is no {tmp_path}/x/env-dev" in said.err
    assert main(["spark", "status", "typo.py", "--env", "Dev"]) == 2
    assert "'Dev': an environment's name" in capsys.readouterr().err


def test_a_dry_run_plans_without_the_node_what_was_read_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Sequence[CutOver]:
        raise DeadlineError("no node answered")

    pipeline = pipelines.Pipeline("tour", folder=tmp_path)
    pipeline.effect(pipelines.Topic("late"))(away)
    step, version = pipeline.step("away"), StepFolder(tmp_path, "away").version("v1")
    runner = DryRunner(pipeline, None, DuramenConnector("node:1"))  # type: ignore[arg-type]
    monkeypatch.setattr(DuramenConnector, "cuts", away)
    assert runner.readings(step, version)[0].topic == "late"
    version.describe({"generation": 1, "first_generation": 0, "reads": "late.v2"})
    assert runner.readings(step, version)[0].topic == "late.v2"
    monkeypatch.setattr(DuramenConnector, "cuts", lambda *_: [CutOver("late", {0: 1}, "late.v2", {0: 1})])
    (found,) = runner.readings(step, version)
    assert (found.topic, found.start) == ("late.v2", Offsets()), "its partitions are not asked for"


def test_a_run_says_at_once_that_nothing_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        tell_if_away(f"nonsense,{address}")
        assert capsys.readouterr().err == ""
    tell_if_away(f"nonsense,{address}")
    assert f"nothing listens at nonsense,{address} now" in capsys.readouterr().err


def test_ctrl_c_in_a_call_of_sparks_is_not_logged_with_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Py4J uses the root logger for it, from its own files."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "filters", [])
    where = str(Path(java_gateway.__file__))
    ours, py4js = (root.makeRecord("root", logging.ERROR, path, 1, "x", (), None) for path in (__file__, where))
    assert root.filter(py4js)
    assert main(["spark", "status", "/does/not/exist"]) == 2
    assert root.filter(ours)
    assert not root.filter(py4js)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_port_that_is_taken_ends_a_run_before_java_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    monkeypatch.setattr(run, "tell_if_away", lambda _: None)
    file = tmp_path / "typo.py"
    file.write_text(PIPELINE)
    command = ["spark", "run", str(file), "--folder", str(tmp_path)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main([*command, "--metrics-port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port} is in use" in said
    assert said.count("\n") == 1
    assert main([*command, "--metrics-port", "0", "--metrics-host", "no such host"]) == 2
    assert "metrics cannot be served at no such host:0" in capsys.readouterr().err
    assert main([*command, "--metrics-host", "127.0.0.1"]) == 2
    assert "--metrics-host needs --metrics-port" in capsys.readouterr().err


def test_a_pipeline_that_a_file_imports_is_not_the_files_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But one that another file makes for it is."""
    monkeypatch.setattr("sys.path", sys.path.copy())
    (tmp_path / "typo_tables.py").write_text(PIPELINE)
    files = {
        "typo_reader": PIPELINE.replace(
            "import pipelines", "import pipelines\nfrom typo_tables import pipeline as other"
        ),
        "typo_again": "from typo_tables import pipeline",
    }
    for name, text in files.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(text.replace('"typo"', f'"{name}"'))
    assert [load(tmp_path / f"{name}.py").name for name in files] == ["typo_reader", "typo"]
