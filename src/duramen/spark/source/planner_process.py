"""The process in which Spark asks a stream's source for its offsets: it ends quietly when the driver hangs up.

It is one process for each query, and Spark closes its connection when the query ends, also while it is asked something.
What it has to answer then goes nowhere, which PySpark tells by three tracebacks, one inside the other, on stderr. Why
the query ended is told by who ended it.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that this process was started with."""


def end_quietly_when_hung_up() -> None:
    """In that process, and nowhere else, say nothing of a connection that is gone."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == RUNNER:
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
