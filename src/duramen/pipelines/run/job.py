"""A run of a pipeline: what `duramen spark run` does in a terminal and `Pipeline.run` in a program."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duramen.pipelines.jvm.session import await_executors, borrowed
from duramen.pipelines.model.declaration import Pipeline
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.model.run_summary import StepSummary
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.failures import QueryFailedError, Say, nowhere, reason
from duramen.pipelines.run.runner import Runner, Watch

_log = logging.getLogger("duramen.pipelines")


def work(
    pipeline: Pipeline,
    names: Sequence[str],
    spark: SparkSession,
    tell: Callable[[BatchProgress], None],
    say: Say,
    *,
    once: bool,
    trigger: str,
    accept: bool,
    until: Callable[[], bool],
    reload: Callable[[], Pipeline] | None = None,
    doing: Callable[[str], None] = nowhere,
    watch: Watch | None = None,
) -> None:
    """Run steps on a session, with topics of the pipeline's node; see Runner.run."""
    await_executors(spark, say)
    Runner(pipeline, spark, DuramenConnector(pipeline.bootstrap), doing=doing).run(
        names,
        tell,
        say,
        available_now=once,
        trigger=trigger,
        accept=accept,
        until=until,
        reload=reload,
        watch=watch,
    )


def run(
    pipeline: Pipeline,
    steps: Sequence[str] | None,
    *,
    once: bool,
    spark: SparkSession | None,
    trigger: str,
    timeout: float | None,
    accept_change: bool,
    on_batch: Callable[[BatchProgress], None] | None,
) -> dict[str, StepSummary]:
    """See Pipeline.run."""
    names = pipeline.chosen(steps)
    found = {name: StepSummary(name, StepFolder(pipeline.folder, name).current().version) for name in names}
    end = None if timeout is None else time.monotonic() + timeout
    pipeline.stopping = False
    _take_by_value(pipeline)

    def tell(batch: BatchProgress) -> None:
        found[batch.step] = found[batch.step].with_batch(batch)
        if on_batch is not None:
            on_batch(batch)

    def until() -> bool:
        return pipeline.stopping or (end is not None and time.monotonic() >= end)

    try:
        with nullcontext(spark) if spark is not None else borrowed(pipeline.name) as session:
            work(
                pipeline,
                names,
                session,
                tell,
                _log.warning,
                once=once,
                trigger=trigger,
                accept=accept_change,
                until=until,
            )
    except (PySparkException, Py4JError) as failure:
        raise QueryFailedError(reason(failure)) from failure
    return found


def _take_by_value(pipeline: Pipeline) -> None:
    """Workers get the loaded code of the steps, and need not find its file."""
    for name in {step.function.__module__ for step in pipeline.steps.values()} - {"__main__"}:
        if name in sys.modules:
            register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
