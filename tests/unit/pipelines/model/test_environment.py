"""An environment keeps apart what a pipeline makes, and nothing that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import StreamStep
from duramen.pipelines.model.environment import commanded
from duramen.pipelines.model.folders import StepFolder


def declared(folder: Path | None = None, env: str | None = None) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("tour", folder=folder, env=env)

    @pipeline.stream(pipelines.Topic("flights"), to="late")
    def late(flights: object) -> object:
        return flights

    @pipeline.history(pipeline.output("late"))
    def seen(late: object) -> object:
        return late

    return pipeline


def names(pipeline: pipelines.Pipeline) -> tuple[str, str, str, str]:
    """What is read from outside, written, read of that, and the sink."""
    late, seen = pipeline.step("late"), pipeline.step("seen")
    assert isinstance(late, StreamStep)
    version = StepFolder(pipeline.folder, "late").version("v1")
    return late.sources[0].name, late.to, seen.sources[0].name, pipeline.in_env(version.sink(pipeline.name, 0))


def test_topics_sinks_and_folders_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DURAMEN_ENV", raising=False)
    plain, dev = declared(), declared(env="dev")
    assert names(plain) == ("flights", "late", "late", "tour.late.v1.0")
    assert names(dev) == ("flights", "late.dev", "late.dev", "tour.late.v1.0.dev")
    assert (plain.folder, dev.folder) == (tmp_path / "tour-tables", tmp_path / "tour-tables" / "env-dev")
    assert declared(tmp_path / "x", "dev").folder == tmp_path / "x" / "env-dev"
    assert (plain.env, dev.env) == (None, "dev")


def test_the_command_comes_before_the_code_and_that_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURAMEN_ENV", "stage")
    assert (declared().env, declared(env="dev").env, declared(env="").env) == ("stage", "dev", None)
    with commanded("test"):
        assert (declared().env, declared(env="dev").env) == ("test", "test")
    with commanded(""):
        assert declared(env="dev").env is None
    with commanded(None):
        assert declared().env == "stage"
    assert declared().env == "stage"


@pytest.mark.parametrize("name", ["Dev", "1st", "a.b", "a/b", "..", " ", "v2", "x" * 33, "dév", "-a", "a\n"])
def test_other_names_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A v2 would be the second version of an output topic."""
    with pytest.raises(ConfigError, match="an environment's name is made of"):
        declared(env=name)
    monkeypatch.setenv("DURAMEN_ENV", name)
    with pytest.raises(ConfigError, match="an environment's name is made of"):
        declared()
