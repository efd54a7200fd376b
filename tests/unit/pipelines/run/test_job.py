"""`Pipeline.run`: what a program gets of it; no Spark needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.model.run_summary import StepSummary
from duramen.pipelines.run import job
from duramen.pipelines.run.runner import QueryFailedError


def progress(step: str, number: int, late: int | None = None) -> BatchProgress:
    return BatchProgress(step, "v1", number, 10, 4, 64, 7, 250, True, Offsets(), late=late, quarantined=3)


class Runs:
    """In place of a Runner: gives batches until it is told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[str, Any] = {}
        self.failure: Exception | None = None
        monkeypatch.setattr(job, "Runner", lambda *_args, **_options: self)
        monkeypatch.setattr(job, "await_executors", lambda *_: 1)

    def run(
        self,
        names: Sequence[str],
        tell: Callable[[BatchProgress], None],
        say: Callable[[str], None],
        *,
        until: Callable[[], bool],
        available_now: bool,
        **asked: Any,
    ) -> None:
        self.asked = {"names": names, **asked}
        if self.failure is not None:
            raise self.failure
        batch = 0
        while not until() and not (available_now and batch == 2):
            tell(progress(names[0], batch, late=batch))
            batch += 1
        say("a word")


@pytest.fixture
def pipeline(tmp_path: Path) -> pipelines.Pipeline:
    found = pipelines.Pipeline("tour", folder=tmp_path)
    for name in ("aircraft", "delays"):

        def step(flights: Any) -> Any:
            return flights

        step.__name__ = name
        found.history(pipelines.Topic("flights"))(step)
    return found


def test_a_run_gives_what_each_step_did(
    pipeline: pipelines.Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs, session, told = Runs(monkeypatch), object(), []
    with caplog.at_level(logging.WARNING, "duramen.pipelines"):
        found = pipeline.run(spark=session, trigger="5 seconds", on_batch=told.append)  # type: ignore[arg-type]
    assert found == {
        "aircraft": StepSummary("aircraft", "v1", 2, 20, 8, 128, 1, None, 6, 7, 0.5),
        "delays": StepSummary("delays", "v1"),
    }
    assert (runs.asked["names"], runs.asked["trigger"]) == (["aircraft", "delays"], "5 seconds")
    assert [each.batch for each in told] == [0, 1]
    assert caplog.messages == ["a word"]
    assert list(pipeline.run(["delays"], spark=session)) == ["delays"]  # type: ignore[arg-type]
    assert list(pipeline.run("delays", spark=session)) == ["delays"]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no step dealys"):
        pipeline.run(["dealys"], spark=session)  # type: ignore[arg-type]


def test_a_run_without_an_end_is_stopped_and_can_be_begun_again(
    pipeline: pipelines.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    Runs(monkeypatch)

    def third(batch: BatchProgress) -> None:
        if batch.batch == 2:
            pipeline.stop()

    for _ in range(2):
        found = pipeline.run(once=False, spark=object(), on_batch=third)  # type: ignore[arg-type]
        assert found["aircraft"].batches == 3
    moments = iter([0.0, *(each / 10 for each in range(1000))])
    monkeypatch.setattr(job.time, "monotonic", lambda: next(moments))
    assert pipeline.run(once=False, spark=object(), timeout=1.0)["aircraft"].batches == 10  # type: ignore[arg-type]


def test_what_spark_says_becomes_an_error_of_ours(
    pipeline: pipelines.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch)
    runs.failure = PySparkException("no such column\nand its frames")
    with pytest.raises(QueryFailedError, match=r"^no such column$"):
        pipeline.run(spark=object())  # type: ignore[arg-type]
