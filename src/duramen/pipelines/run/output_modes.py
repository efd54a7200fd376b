"""Spark's output mode of a step, and what will be refused of its rows: found when it is planned, before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import EffectStep, Emits, Step, StreamStep, TableStep

_OUTER = {"LeftOuter", "RightOuter", "FullOuter"}


def mode_of(step: Step) -> Emits:
    """Whether its rows come once, or again whenever they change."""
    sums = isinstance(step, TableStep | StreamStep) and step.aggregate
    return "update" if sums else "append"


def check_mode(step: Step, rows: DataFrame) -> None:
    """ConfigError with what to do where Spark will refuse the rows in the step's mode, or the table what comes late.

    By Spark's own check, which its query makes when it starts. Nothing is checked in a session of Spark Connect, which
    does not give its plan.
    """
    try:
        plan: Any = rows._jdf.queryExecution().analyzed()
        jvm: Any = rows.sparkSession._jvm
    except AttributeError:
        return
    mode = mode_of(step)
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    try:
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
            plan, modes.Update() if mode == "update" else modes.Append()
        )
    except AnalysisException as error:
        told = (error.getMessage() or str(error)).splitlines()[0].strip().rstrip(".;")
        raise ConfigError(f"{step.name}: {told}{_advice(step, told)}") from error
    if isinstance(step, TableStep) and step.shape.guarded and (held := next(_holding(plan), None)):
        raise ConfigError(
            f'{step.name} gives rows long after their records, by {held}: declare it with emits="append", '
            "where each comes once"
        )


def _advice(step: Step, told: str) -> str:
    """What to do about an error of Spark's; nothing where its words say all."""
    if isinstance(step, EffectStep):
        return ""
    if "aggregations without watermark" in told:
        once = "" if isinstance(step, StreamStep) else ' with emits="append"'
        return (
            "; aggregate=True writes every change of a sum. To write each sum once, when its window is closed, group "
            f"by a time that has a watermark{once}"
        )
    if "Update output mode" in told or "output mode: update" in told:
        instead = "leave aggregate=True out" if isinstance(step, StreamStep) else 'emits="append" writes its rows once'
        return f"; {instead}"
    return ""


def _holding(plan: Any) -> Iterator[str]:
    """What in a plan holds rows back until a watermark has passed them."""
    children = plan.children()
    inputs = [children.apply(number) for number in range(children.size())]
    kind = plan.nodeName()
    if kind == "Aggregate" and plan.isStreaming():
        yield "groupBy and a watermark"
    if kind == "Join" and all(each.isStreaming() for each in inputs) and str(plan.joinType().toString()) in _OUTER:
        yield "an outer join"
    for each in inputs:
        yield from _holding(each)
