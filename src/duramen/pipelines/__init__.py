"""Streams and tables declared in Python, run by Spark over topics of the log (docs/spark.md).

What users write stands here; `duramen spark` runs it.
"""

from duramen.pipelines.jvm.session import session
from duramen.pipelines.model.declaration import Pipeline, Topic
from duramen.pipelines.run.columns import latest_cause, where
from duramen.pipelines.run.table_reader import changes, open_table

__all__ = ["Pipeline", "Topic", "changes", "latest_cause", "open_table", "session", "where"]
