"""Streams and tables declared in Python, run by Spark over topics of the log (docs/spark.md).

What users write stands here; `duramen spark` runs it.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from duramen.version import INSTALL_SPARK as _INSTALL_SPARK
from duramen.version import SPARK_PACKAGES as _SPARK_PACKAGES

if TYPE_CHECKING:
    from duramen.pipelines.jvm.session import session
    from duramen.pipelines.model.declaration import Pipeline, Topic
    from duramen.pipelines.run.columns import joined_cause, latest_cause, where
    from duramen.pipelines.run.table_reader import changes, open_table

__all__ = ["Pipeline", "Topic", "changes", "joined_cause", "latest_cause", "open_table", "session", "where"]

_AT = {
    "Pipeline": "model.declaration",
    "Topic": "model.declaration",
    "changes": "run.table_reader",
    "joined_cause": "run.columns",
    "latest_cause": "run.columns",
    "open_table": "run.table_reader",
    "session": "jvm.session",
    "where": "run.columns",
}


def __getattr__(name: str) -> Any:
    """Imported when it is first asked for: help and `duramen spark doctor` work where there is no Spark."""
    if name not in _AT:
        raise AttributeError(f"module 'duramen.pipelines' has no attribute {name!r}")
    try:
        return getattr(_import_module(f"duramen.pipelines.{_AT[name]}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _SPARK_PACKAGES:
            raise
        raise ModuleNotFoundError(f"{package} is not installed; {_INSTALL_SPARK}", name=error.name) from None
