"""Late rows are counted once a batch, over kills and restarts, and a count that was lost is said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from duramen.pipelines.model.folders import VersionFolder
from duramen.pipelines.model.late_rows import LateRows, count, counted, dropped_in, may_drop, watermark_of
from duramen.pipelines.model.progress import progress_of

WATERMARK = "2026-01-01T00:51:00.000Z"


def report(batch: int, dropped: list[int] | None, watermark: str | None = WATERMARK) -> dict[str, Any]:
    """Spark's report of a batch, by its names. dropped: of each operator that keeps state."""
    return {
        "batchId": batch,
        "durationMs": {"addBatch": 7, "triggerExecution": 9},
        "eventTime": {} if watermark is None else {"watermark": watermark},
        "stateOperators": [{"operatorName": "stateStoreSave", "numRowsDroppedByWatermark": n} for n in dropped or ()],
        "sources": [{"endOffset": '{"flights": {"0": 4}}', "latestOffset": '{"flights": {"0": 4}}', "numInputRows": 4}],
    }


@pytest.fixture
def version(tmp_path: Path) -> VersionFolder:
    return VersionFolder(tmp_path, "late", "v1")


def test_every_batch_counts_once_however_often_it_is_noted(version: VersionFolder) -> None:
    """Noted when it was computed, again when it is repeated after a kill, and again by Spark's report of it."""
    chance = random.Random(3)
    dropped = [chance.randrange(4) for _ in range(40)]
    for batch, rows in enumerate(dropped):
        for _ in range(chance.randrange(1, 4)):
            count(version, 0, batch, rows)
        if batch:
            count(version, 0, batch - 1, 99)  # Spark's report of the one before comes late
    assert counted(version) == LateRows(0, 39, dropped[39], sum(dropped[:39]), 0)
    after = count(version, 1, 0, 5)  # of the topic behind a cut
    assert (after.total, after.uncounted) == (sum(dropped) + 5, 0)


def test_batches_that_nobody_counted_are_said(version: VersionFolder) -> None:
    assert count(version, 0, 2, 3) == LateRows(0, 2, 3, 0, 2)
    found = count(version, 0, 5, 1)
    assert (found.total, found.uncounted) == (4, 4)
    assert count(version, 1, 1, 1).uncounted == 5


def test_what_a_report_says_of_late_rows() -> None:
    chained, plain = report(3, [0, 2, 1]), report(3, [], None)
    assert (dropped_in(chained), may_drop(chained), watermark_of(chained)) == (3, True, WATERMARK)
    assert (dropped_in(plain), may_drop(plain), watermark_of(plain)) == (None, False, None)
    assert (dropped_in(report(3, [])), may_drop(report(3, []))) == (0, False)
    assert watermark_of(report(0, [0], "1970-01-01T00:00:00.000Z")) is None


@pytest.mark.parametrize(
    ("late", "total", "uncounted", "said"),
    [
        (0, 0, 0, "  late 0  "),
        (2, 2, 0, "  late 2  "),
        (0, 1200, 0, "  late 0, 1,200 in all  "),
        (1, 12, 3, "  late 1, at least 12 in all  "),
    ],
)
def test_the_line_of_a_batch_tells_late_rows(late: int, total: int, uncounted: int, said: str) -> None:
    progress = progress_of("sums", "v1", report(3, [late]), {})._replace(late_total=total, late_uncounted=uncounted)
    assert f"lag 0{said}9 ms" in progress.line()
    assert (progress.to_json()["late"], progress.to_json()["watermark"]) == (late, WATERMARK)


def test_a_step_without_a_watermark_tells_nothing_of_it() -> None:
    progress = progress_of("sums", "v1", report(3, [], None), {})
    assert "late" not in progress.line()
    assert (progress.late, progress.late_total, progress.watermark) == (None, None, None)
