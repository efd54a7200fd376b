"""Reading a pipeline's tables from anywhere: the current version, its rows, its changelog. Needs no Spark to run."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import Pipeline, TableStep
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.run.stores import open_version
from duramen.pipelines.tables.store import TableStore


def open_table(pipeline: Pipeline, table: str, version: str | None = None) -> TableStore:
    """The table's current version, or the one named. ConfigError when nothing has been written yet."""
    step = pipeline.step(table)
    if not isinstance(step, TableStep):
        raise ConfigError(f"{table} is a {step.kind}, not a table")
    folder = StepFolder(pipeline.folder, table)
    place = folder.version(version or folder.current().version)
    if not place.table.is_dir():
        raise ConfigError(f"{table} {place.name} holds nothing yet: `duramen spark run` fills it")
    return open_version(step, place.table, place.about() or {})


def changes(pipeline: Pipeline, table: str, after: int = -1, version: str | None = None) -> Iterator[pa.Table]:
    """The changelog of a table: upserts and deletes (`_deleted`) of each version after `after`, as Arrow tables.

    version: the version of the step that has to be current, whose `_version` `after` is; the next one counts anew.
    ConfigError where another one is, or where the table has no version `after`.
    """
    current = StepFolder(pipeline.folder, table).current().version
    anew = "take its changes from the first on, in place of what came of others"
    if version not in (None, current):
        raise ConfigError(f"{table} is {current} now, not {version}, and counts its versions anew: {anew}")
    store = open_table(pipeline, table, current)
    last = store.last()
    if after > (last.version if last else -1):
        raise ConfigError(f"{table} {current} has no version {after}: it is of a table that was here before; {anew}")
    return store.changes(after)


def frame(store: TableStore, spark: SparkSession) -> DataFrame:
    """The table as it is now, for batch queries of Spark; needs no jar."""
    files = store.files()
    if not files:
        raise ConfigError(f"{store.folder} has no rows yet")
    # Files that are older than a column lack it.
    columns = from_arrow_schema(type(store).stored_schema(store.folder))
    rows = spark.read.schema(columns).parquet(*files)
    return rows.where("NOT _deleted").drop("_deleted") if store.shape.keys else rows
