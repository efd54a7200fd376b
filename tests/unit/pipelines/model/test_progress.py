"""A line of progress from Spark's report of a batch."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import DROPPED, QUARANTINED, progress_of


@pytest.mark.parametrize(("latest", "lag"), [(["7", "4"], 5), (["5", "1"], 0), (["7", None], 2), ([None, None], None)])
def test_lag_and_end_are_of_all_sources(latest: list[Any], lag: int | None) -> None:
    def source(topic: str, end: int, last: str | None) -> dict[str, Any]:
        told = None if last is None else f'{{"{topic}": {{"0": {last}}}}}'
        return {"endOffset": f'{{"{topic}": {{"0": {end}}}}}', "latestOffset": told, "numInputRows": 6}

    found = progress_of(
        "paid",
        "v1",
        {
            "batchId": 3,
            "numInputRows": None,  # over Spark Connect
            "durationMs": {"addBatch": 1, "triggerExecution": 9},
            "sources": [source("orders", 5, latest[0]), source("payments", 1, latest[1])],
        },
        {},
    )
    assert (found.rows, found.lag, found.ended) == (12, lag, True)
    assert found.end == Offsets({("orders", 0): 5, ("payments", 0): 1})


def test_rows_that_were_dropped_and_quarantined_are_told() -> None:
    source = {"endOffset": '{"orders": {"0": 5}}', "latestOffset": None, "numInputRows": 10}
    report = {
        "batchId": 3,
        "numInputRows": 10,
        "durationMs": {"addBatch": 1, "triggerExecution": 9},
        "sources": [source],
        "observedMetrics": {DROPPED: {"rows": 2}, QUARANTINED: {"rows": 0}},
    }
    found = progress_of("paid", "v1", report, {}, twice={"orders"})
    assert (found.rows, found.dropped, found.quarantined) == (5, 2, 0)
    assert "5 rows  dropped 2  quarantined 0  9 ms" in found.line()
    assert progress_of("paid", "v1", report, {}, twice={"payments"}).rows == 10


def test_what_a_query_counts_comes_in_two_forms() -> None:
    """As Spark's report has it, and as that of Spark Connect."""
    source = {"endOffset": None, "latestOffset": None, "numInputRows": 6}
    counts = {DROPPED: Row(rows=2), QUARANTINED: Row(values=[3], schema={"type": "struct"})}
    report = {"batchId": 3, "durationMs": {}, "sources": [source], "observedMetrics": counts}
    found = progress_of("paid", "v1", report, {})
    assert (found.dropped, found.quarantined) == (2, 3)
