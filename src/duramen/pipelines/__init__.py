"""Streams and tables declared in Python, run by Spark over topics of the log (docs/spark.md).

What users write stands here; `duramen spark` runs it.
"""

from duramen.pipelines.columns import latest_cause, where
from duramen.pipelines.declaration import Pipeline, Topic
from duramen.pipelines.reading import changes, open_table
from duramen.pipelines.session import session

__all__ = ["Pipeline", "Topic", "changes", "latest_cause", "open_table", "session", "where"]
