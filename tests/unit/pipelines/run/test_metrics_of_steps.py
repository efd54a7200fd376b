"""The numbers of a run, as Prometheus takes them."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duramen.errors import ConfigError
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.run.metrics import PipelineMetrics, served

Samples = dict[tuple[str, str, str], float]


def batch(
    number: int, *, version: str = "v1", late: int | None = None, ms: int = 400, watermark: str | None = None
) -> BatchProgress:
    return BatchProgress(
        "sums", version, number, 10, 4, 64, 7, ms, True, Offsets(), watermark, late, dropped=2, quarantined=1
    )


def scraped(metrics: PipelineMetrics) -> Samples:
    """By name, version and bucket, over HTTP."""
    with served(metrics, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        with pytest.raises(ConfigError, match=rf"^127.0.0.1:{port} is in use: choose another --metrics-port, or 0"):
            served(metrics, "127.0.0.1", port).__enter__()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    assert {(each.labels["pipeline"], each.labels["step"]) for each in samples} == {("tour", "sums")}
    assert len({each.labels["env"] for each in samples} & {"", "dev"}) == 1
    assert "_created" not in text
    return {
        (each.name.removeprefix("duramen_pipeline_"), each.labels["version"], each.labels.get("le", "")): each.value
        for each in samples
    }


def test_a_step_is_there_before_its_first_batch() -> None:
    metrics = PipelineMetrics("tour")
    metrics.begin("sums", "v1")
    found = scraped(metrics)
    assert (found["batches_total", "v1", ""], found["failures_total", "v1", ""]) == (0, 0)
    assert ("lag_records", "v1", "") not in found


def test_batches_come_to_rows_bytes_late_rows_and_seconds() -> None:
    metrics = PipelineMetrics("tour", "dev", lambda: 99.5)
    metrics.batch(batch(0, late=0))
    metrics.batch(batch(1, late=3, ms=2500, watermark="1970-01-01T00:01:00.000Z"))
    metrics.failed("sums", "v1")
    found = scraped(metrics)
    totals = (
        "batches",
        "rows",
        "written_rows",
        "written_bytes",
        "late_rows",
        "dropped_rows",
        "quarantined_records",
        "failures",
    )
    assert [found[f"{name}_total", "v1", ""] for name in totals] == [2, 20, 8, 128, 3, 4, 2, 1]
    gauges = ("lag_records", "watermark_time_seconds", "last_batch_time_seconds")
    assert [found[name, "v1", ""] for name in gauges] == [7, 60, 99.5]
    assert found["batch_seconds_sum", "v1", ""] == 2.9
    assert [found["batch_seconds_bucket", "v1", le] for le in ("0.25", "0.5", "1.0", "2.5", "+Inf")] == [0, 1, 1, 2, 2]


def test_a_version_that_was_left_keeps_its_counters_and_loses_its_place() -> None:
    metrics = PipelineMetrics("tour")
    metrics.batch(batch(0))
    metrics.batch(batch(0, version="v2"))
    found = scraped(metrics)
    assert {version: found["rows_total", version, ""] for version in ("v1", "v2")} == {"v1": 10, "v2": 10}
    assert ("lag_records", "v1", "") not in found
    assert ("lag_records", "v2", "") in found
