"""The process's own pulse: how late the loop runs and how long garbage collections stop it."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duramen.partition.store.services import CommitStatistics
    from duramen.ports import Clock, Timer
    from duramen.server.metrics.metrics import Metrics

INTERVAL_SECONDS = 0.5


class ProcessSampler:
    """Feeds `loop_lag`, `gc_pause` and the checkpoints' times of the metrics while the process runs."""

    def __init__(self, clock: Clock, metrics: Metrics, statistics: CommitStatistics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._statistics = statistics
        self._timer: Timer | None = None
        self._due = 0.0
        self._gc_started = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._on_gc)
        self._statistics.checkpointed = self._metrics.checkpointed
        self._arm()

    def _arm(self) -> None:
        self._due = self._clock.monotonic() + INTERVAL_SECONDS
        self._timer = self._clock.call_later(INTERVAL_SECONDS, self._beat)

    def _beat(self) -> None:
        metrics, late = self._metrics, max(0.0, self._clock.monotonic() - self._due)
        metrics.loop_lag.observe(late)
        metrics.loop_lag_max = max(metrics.loop_lag_max, late)
        self._arm()

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_started = time.perf_counter()
        else:
            self._metrics.gc_pause.observe(time.perf_counter() - self._gc_started)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
