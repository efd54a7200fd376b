"""What Spark's server calls with each batch of a step, in a session of Spark Connect.

It does so in a Python process of its own, with a pickled copy. Its query lives on when the run that started it was
killed, which has lost its lock by that: then the copy takes no batch.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from duramen.errors import ConfigError
from duramen.pipelines.model.folders import VersionFolder
from duramen.pipelines.run.query_report import QueryReport

Take = Callable[[DataFrame, int], None]
"""Called with the rows of a batch and its number."""


class ServerBatches:
    """For foreachBatch. run: the name of the run that starts the query."""

    def __init__(self, take: Take, version: VersionFolder, said: QueryReport, run: str) -> None:
        self._take = take
        self._version = version
        self._said = said
        self._run = run

    def __call__(self, rows: DataFrame, batch: int) -> None:
        with self._version.writing():
            if not self._version.is_run_by(self._run):
                raise ConfigError(
                    f"the run of {self._version.step} {self._version.name} that started this query has ended, or "
                    f"Spark's server does not see its folder {self._version.path}"
                )
            self._take(rows, batch)
            self._said.leave()
