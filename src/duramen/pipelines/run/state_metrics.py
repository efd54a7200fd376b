"""What Spark's stateful operators say of a batch that is computed and not committed yet.

Spark's report of a batch comes after its commit: a run that is killed in between never sees it. The plan that was
executed has the same numbers before, while Spark still waits for foreachBatch.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

_DROPPED = "numRowsDroppedByWatermark"


def dropped_now(spark: SparkSession, query_id: str) -> int | None:
    """How many rows the batch under way has dropped by its watermark, asked inside of foreachBatch when its rows were
    computed; None where its plan has no stateful operator, or this session does not tell (Spark Connect)."""
    try:
        query: Any = spark.streams.get(query_id)
        execution = query._jsq.streamingQuery().lastExecution()
        found = _dropped_by(execution.executedPlan())
    except (Py4JError, AttributeError):
        return None
    return sum(found) if found else None


def _dropped_by(plan: Any) -> list[int]:
    """Of each operator of a plan that counts it."""
    metric = plan.metrics().get(_DROPPED)
    own = [int(metric.get().value())] if metric.isDefined() else []
    children = plan.children()
    return own + [each for at in range(children.size()) for each in _dropped_by(children.apply(at))]
