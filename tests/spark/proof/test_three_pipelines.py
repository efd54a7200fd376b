"""Three pipelines are cut off at every arrow, and come to what the plain computation of their input says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from proof.comparison import MADE, check, check_counts, checkpoint_of, fill
from proof.three_pipelines import PIPELINES
from pyspark.sql import SparkSession
from tests.spark.log_node import LogNode, log_node

from duramen.pipelines import Pipeline
from duramen.pipelines.model.folders import batches, unfinished
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.runner import QueryFailedError, Runner

pytestmark = pytest.mark.timeout(600)

SEED, COUNT, ROWS = 43, 120, 25
PLANNED, COMPUTED, APPLIED = "batch planned", "batch computed", "batch applied"
ARROWS = {
    "latest": (PLANNED, "dead letters written"),
    "customers": (COMPUTED,),
    "every_customer": (APPLIED,),
    "sent": (),  # those of the sink have tests of their own
    "visits": (PLANNED, COMPUTED, APPLIED),
    "closed": (PLANNED, COMPUTED, APPLIED),
    "pages": (PLANNED, APPLIED),
    "paid": (PLANNED, APPLIED),
    "outcome": (PLANNED, COMPUTED, APPLIED),
}
"""Of each step. Where Spark keeps nothing, one table is as good as another."""
COUNTED: dict[str, Callable[[BatchProgress], int | None]] = {
    "latest": lambda progress: progress.quarantined,
    "visits": lambda progress: progress.late,
    "closed": lambda progress: progress.late,
    "outcome": lambda progress: progress.late,
}
"""What a run says of each batch."""
BRIEF = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""What Spark's generated code saves in a long query, it costs many times over in these."""
AT_A_TIME = 3
"""Steps: two cores have less than one's batches to do."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogNode]:
    with log_node(tmp_path_factory.mktemp("log"), log_retention_ms="-1", offsets_topic_num_partitions="2") as served:
        yield served


@pytest.fixture(scope="module")
def brief(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, for queries that do not live long."""
    for name, value in BRIEF.items():
        spark.conf.set(name, value)
    yield spark
    for name in BRIEF:
        spark.conf.unset(name)


def quiet(_: object) -> None:
    """Nobody listens."""


def cut_off_at(arrow: str) -> Callable[[str], None]:
    """A mark that fails when a second batch gets there."""
    passed = []

    def mark(name: str) -> None:
        passed.append(name)
        if name == arrow and passed.count(arrow) == 2:
            raise RuntimeError(f"cut off at {arrow}")

    return mark


class Ended(NamedTuple):
    """A step that was run to the end. restarts: the batches with which it began again; told: what its last run said."""

    restarts: list[int]
    told: list[BatchProgress]


def run_under_cuts(pipeline: Pipeline, spark: SparkSession, step: str) -> Ended:
    """Run the step to the end, cut off at every arrow before."""
    connector, restarts = DuramenConnector(pipeline.bootstrap), []
    for arrow in ARROWS[step]:
        with pytest.raises(QueryFailedError, match="cut off at"):
            Runner(pipeline, spark, connector, cut_off_at(arrow)).run([step], quiet, quiet, available_now=True)
        checkpoint = checkpoint_of(pipeline, step)
        restarts.append(batches(checkpoint) - unfinished(checkpoint))
    told: list[BatchProgress] = []
    Runner(pipeline, spark, connector).run([step], told.append, quiet, available_now=True)
    return Ended(restarts, told)


@pytest.mark.parametrize("name", PIPELINES)
def test_what_was_cut_off_at_every_arrow_is_what_the_input_comes_to(
    name: str, brief: SparkSession, node: LogNode, tmp_path: Path
) -> None:
    records = MADE[name](SEED, COUNT)
    fill(node.bootstrap, records)
    pipeline = PIPELINES[name](tmp_path, node.bootstrap, ROWS)
    steps = list(pipeline.steps)
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        ended = dict(zip(steps, threads.map(lambda step: run_under_cuts(pipeline, brief, step), steps), strict=True))
    check(pipeline, records, {step: each.restarts for step, each in ended.items()})
    for step, counted in COUNTED.items():
        if step in steps:
            check_counts(pipeline, records, step, {each.batch: counted(each) for each in ended[step].told})
