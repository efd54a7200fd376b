"""A run's numbers for Prometheus: per step and version, since the run began."""

from __future__ import annotations

import errno
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from duramen.errors import ConfigError
from duramen.pipelines.model.progress import BatchProgress

SECONDS_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_LABELS: Final = ("pipeline", "env", "step", "version")


class StepNumbers:
    """What the batches of one version of a step come to. lag and watermark: of the last batch."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.written_rows = 0
        self.written_bytes = 0
        self.late_rows = 0
        self.dropped_rows = 0
        self.quarantined = 0
        self.failures = 0
        self.lag: int | None = None
        self.watermark: float | None = None
        self.last_batch: float | None = None
        self.seconds = 0.0
        self.in_buckets = [0] * (len(SECONDS_BUCKETS) + 1)

    def add(self, progress: BatchProgress, now: float) -> None:
        self.batches += 1
        self.rows += progress.rows
        self.written_rows += progress.written or 0
        self.written_bytes += progress.size or 0
        self.late_rows += progress.late or 0
        self.dropped_rows += progress.dropped or 0
        self.quarantined += progress.quarantined or 0
        self.lag = progress.lag
        if progress.watermark is not None:
            self.watermark = datetime.fromisoformat(progress.watermark).timestamp()
        self.last_batch = now
        seconds = progress.latency_ms / 1000
        self.seconds += seconds
        self.in_buckets[bisect_left(SECONDS_BUCKETS, seconds)] += 1


class _Shown(NamedTuple):
    """A number as a metric. A value of None is not shown."""

    kind: type[CounterMetricFamily | GaugeMetricFamily]
    name: str
    text: str
    value: Callable[[StepNumbers], float | None]


_SHOWN: Final = (
    _Shown(CounterMetricFamily, "batches", "Batches that ended.", lambda step: step.batches),
    _Shown(CounterMetricFamily, "rows", "Records that batches read.", lambda step: step.rows),
    _Shown(CounterMetricFamily, "written_rows", "Rows that they gave to a table.", lambda step: step.written_rows),
    _Shown(CounterMetricFamily, "written_bytes", "Bytes of these, in Arrow's form.", lambda step: step.written_bytes),
    _Shown(CounterMetricFamily, "late_rows", "Rows that a watermark dropped.", lambda step: step.late_rows),
    _Shown(CounterMetricFamily, "dropped_rows", "Rows that an expectation dropped.", lambda step: step.dropped_rows),
    _Shown(CounterMetricFamily, "quarantined_records", "Records that became dead letters.", lambda s: s.quarantined),
    _Shown(CounterMetricFamily, "failures", "Attempts that failed, of a query or its start.", lambda s: s.failures),
    _Shown(GaugeMetricFamily, "lag_records", "What the source had more when the last batch began.", lambda s: s.lag),
    _Shown(GaugeMetricFamily, "watermark_time_seconds", "Of the last batch, since 1970.", lambda step: step.watermark),
    _Shown(GaugeMetricFamily, "last_batch_time_seconds", "When it ended, since 1970.", lambda step: step.last_batch),
)


class PipelineMetrics(Collector):
    """The numbers of a run; `batch` and `failed` are called by it, `collect` by whoever scrapes, in any thread."""

    def __init__(self, pipeline: str, env: str | None = None, now: Callable[[], float] = time.time) -> None:
        """now: seconds since 1970."""
        self._of = [pipeline, env or ""]
        self._now = now
        self._steps: dict[tuple[str, str], StepNumbers] = {}

    def begin(self, step: str, version: str) -> StepNumbers:
        """The numbers of a version, which are there from now on: counters begin at 0."""
        return self._steps.setdefault((step, version), StepNumbers())

    def batch(self, progress: BatchProgress) -> None:
        """A batch has ended. Of versions that the step has left, what they are at is not shown any more."""
        for (step, version), numbers in self._steps.items():
            if step == progress.step and version != progress.version:
                numbers.lag = numbers.watermark = numbers.last_batch = None
        self.begin(progress.step, progress.version).add(progress, self._now())

    def failed(self, step: str, version: str) -> None:
        """An attempt to run the step has failed."""
        self.begin(step, version).failures += 1

    def collect(self) -> Iterator[Metric]:
        steps = sorted(self._steps.items())
        for kind, name, text, value in _SHOWN:
            family = kind(f"duramen_pipeline_{name}", text, labels=_LABELS)
            for (step, version), numbers in steps:
                if (found := value(numbers)) is not None:
                    family.add_metric([*self._of, step, version], found)
            yield family
        seconds = HistogramMetricFamily(
            "duramen_pipeline_batch_seconds", "Of a batch, planned and written.", labels=_LABELS
        )
        for (step, version), numbers in steps:
            running, buckets = 0, []
            for bound, count in zip((*map(str, SECONDS_BUCKETS), "+Inf"), list(numbers.in_buckets), strict=True):
                running += count
                buckets.append((bound, running))
            seconds.add_metric([*self._of, step, version], buckets=buckets, sum_value=numbers.seconds)
        yield seconds


@contextmanager
def served(metrics: PipelineMetrics, host: str, port: int) -> Iterator[int]:
    """Serves the numbers over HTTP until this is left, and gives the port; port 0 takes a free one.

    ConfigError where the address cannot be used.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{address} is in use: choose another --metrics-port, or 0 for a free one") from None
        raise ConfigError(f"metrics cannot be served at {address} ({error.strerror or error})") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
