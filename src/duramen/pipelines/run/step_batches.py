"""What Spark calls with each batch of a step: one writer at a time, and none whose run has ended.

In a session of Spark Connect it is Spark's server that calls, in a Python process of its own, with a pickled copy. That
query lives on when the run that started it was killed, and its lock with it.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from duramen.errors import ConfigError
from duramen.pipelines.model.folders import VersionFolder
from duramen.pipelines.run.query_report import QueryReport

Take = Callable[[DataFrame, int], None]
"""Called with the rows of a batch and its number."""


class StepBatches:
    """For Spark's foreachBatch. run: the name of the run, where another process than its own calls this."""

    def __init__(self, take: Take, version: VersionFolder, said: QueryReport, run: str | None) -> None:
        self._take = take
        self._version = version
        self._said = said
        self._run = run

    def __call__(self, rows: DataFrame, batch: int) -> None:
        with self._version.writing():
            if self._run is not None and not self._version.is_run_by(self._run):
                raise ConfigError(
                    f"the run of {self._version.step} {self._version.name} that started this query has ended, or "
                    f"Spark's server does not see its folder {self._version.path}"
                )
            self._take(rows, batch)
            self._said.leave()
