"""A bug in the logic is mended by replay: built beside, compared, swapped, rolled back; interrupted anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from files import FileTopics
from pyspark.sql import DataFrame, SparkSession

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.run.reprocess import NotReadyError, Reprocessing
from duramen.pipelines.run.runner import QueryFailedError, Runner

pytestmark = pytest.mark.timeout(600)

FLIGHTS = pipelines.Topic("flights", key="tail", schema="miles int")
POINTS = ("reprocessing noted", "batch computed", "batch applied", "caught up", "compared")


def with_bug(flights: DataFrame) -> DataFrame:
    return flights.selectExpr("tail", "miles * 2 AS km", "_cause")


def mended(flights: DataFrame) -> DataFrame:
    return flights.selectExpr("tail", "CASE WHEN tail = 'N2' THEN miles * 2 ELSE miles + 1 END AS km", "_cause")


def declared(folder: Path, logic: object) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("tour", folder=folder / "tables")
    logic.__name__ = "distance"  # type: ignore[attr-defined]
    pipeline.table(FLIGHTS, keys=["tail"], store="parquet")(logic)  # type: ignore[type-var]
    return pipeline


def rows(pipeline: pipelines.Pipeline, version: str | None = None) -> dict[str, int]:
    return {row["tail"]: row["km"] for row in pipelines.open_table(pipeline, "distance", version).rows().to_pylist()}


def quiet(_: object) -> None:
    """Nobody listens."""


def test_reprocess_swap_and_rollback_survive_interruption_at_every_point(spark: SparkSession, tmp_path: Path) -> None:
    topics = FileTopics(tmp_path / "topics")
    topics.append("flights", [("N1", {"miles": 10}), ("N2", {"miles": 20})])
    topics.append("flights", [("N1", {"miles": 30}), ("N3", {"miles": 40})])
    before = declared(tmp_path, with_bug)
    Runner(before, spark, topics).run(["distance"], quiet, quiet, available_now=True)
    old = {"N1": 60, "N2": 40, "N3": 80}
    assert rows(before) == old

    after = declared(tmp_path, mended)
    with pytest.raises(ConfigError, match=r"other logic than the code has now: .*; --accept-change"):
        Runner(after, spark, topics).run(["distance"], quiet, quiet, available_now=True)
    for point in POINTS:

        def cut(name: str, point: str = point) -> None:
            if name == point:
                raise RuntimeError(f"cut off at {point}")

        with pytest.raises((RuntimeError, QueryFailedError), match=f"cut off at {point}"):
            Reprocessing(after, "distance", cut).build(Runner(after, spark, topics, cut), "v2", quiet, quiet)
        assert rows(after) == old, "readers see the old version until the swap"
        with pytest.raises(NotReadyError, match="not built"):
            Reprocessing(after, "distance").swap("v2")
    report = Reprocessing(after, "distance").build(Runner(after, spark, topics), "v2", quiet, quiet)
    assert report.behind == 0
    assert report.difference is not None
    assert (report.difference.differing, report.difference.same) == (2, 1)
    new = {"N1": 31, "N2": 40, "N3": 41}

    for point, seen in (("about to switch", old), ("switched", new)):

        def fall(name: str, point: str = point) -> None:
            if name == point:
                raise RuntimeError("cut off")

        with pytest.raises(RuntimeError, match="cut off"):
            Reprocessing(after, "distance", fall).swap("v2")
        assert rows(after) == seen
    assert Reprocessing(after, "distance").swap("v2") <= 1.0
    version, seconds = Reprocessing(before, "distance").rollback()
    assert (version, rows(before)) == ("v1", old)
    assert seconds <= 1.0
    assert Reprocessing(after, "distance").swap("v2") <= 1.0

    topics.append("flights", [("N2", {"miles": 50})])
    Runner(after, spark, topics).run(["distance"], quiet, quiet, available_now=True)
    assert rows(after) == {**new, "N2": 100}
    assert rows(after, "v1") == old
    assert Reprocessing(after, "distance").behind("v1") == 1


def test_what_is_behind_is_not_swapped_and_effects_are_not_replayed(tmp_path: Path) -> None:
    pipeline = pipelines.Pipeline("tour", folder=tmp_path)

    @pipeline.effect(FLIGHTS)
    def mail(flights: DataFrame, batch: int) -> None:
        """Nobody wants the mails of last year again."""

    with pytest.raises(ConfigError, match="replayable=True"):
        Reprocessing(pipeline, "mail")._check("v2")
    with pytest.raises(NotReadyError, match="mail has never run here"):
        Reprocessing(pipeline, "mail").rollback()
    (tmp_path / "mail").mkdir()
    with pytest.raises(NotReadyError, match="no version before v1"):
        Reprocessing(pipeline, "mail").rollback()
