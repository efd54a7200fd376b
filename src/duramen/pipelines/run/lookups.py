"""Tables of ours as a batch sees them: a data source that reads the version noted for the batch that runs.

Spark plans a static side of a streaming query once, and reads it again in each batch. So the version is chosen where it
is read: by the task, which knows the number of its batch. The first task of a batch notes the version beside Spark's
checkpoint before it reads a row, and every further attempt of that batch finds the note.

<checkpoint>/lookups/<batch>-<pipeline>.<table>.json    the step's version, and the version of its table
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from duramen.errors import ConfigError
from duramen.pipelines.jvm.session import make_active
from duramen.pipelines.model.atomic_files import first_json, make_folder
from duramen.pipelines.model.declaration import Lookup, TableStep
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.table_shape import ALSO, TIMESTAMP
from duramen.pipelines.run.stores import open_as
from duramen.pipelines.tables.changelog import TRACE
from duramen.pipelines.tables.store import TableStore

BATCH = "streaming.sql.batchId"
"""Spark's local property of a task; none outside of a streaming query."""
BATCHES_KEPT = 10
"""Notes. Only the last batch is ever repeated."""
BROADCAST_BYTES_MAX = 8 << 20
"""Of files. Spark knows no size of a data source in Python, and would sort both sides of each join."""
_ROWS = 10_000
"""Of an Arrow batch."""


def columns(lookup: Lookup) -> StructType | None:
    """The table's own columns; None where it holds nothing yet."""
    store = _opened(StepFolder(lookup.pipeline.folder, lookup.table), _form(lookup), None)
    return None if store is None else from_arrow_schema(own(type(store).stored_schema(store.folder)))


def own(schema: pa.Schema) -> pa.Schema:
    """Those columns of a table that are no trace of records."""
    return pa.schema([field for field in schema if field.name not in (*TRACE.names, TIMESTAMP, ALSO)])


def frame(spark: SparkSession, lookup: Lookup, schema: StructType, checkpoint: Path) -> DataFrame:
    """The table as it is at each batch of the query of this checkpoint, with these of its columns."""
    make_active(spark)
    spark.dataSource.register(LookupSource)
    folder, form = StepFolder(lookup.pipeline.folder, lookup.table), _form(lookup)
    options = {
        "folder": str(lookup.pipeline.folder),
        "table": lookup.table,
        "form": json.dumps(form),
        "name": lookup.name,
        "notes": str(checkpoint / "lookups"),
    }
    found = spark.read.format(LookupSource.name()).schema(schema).options(**options).load()
    store = _opened(folder, form, None)
    size = sum(map(_size, store.files())) if store is not None else 0
    return F.broadcast(found) if size <= BROADCAST_BYTES_MAX else found


def _size(file: str) -> int:
    """In bytes; none of one that the writer has just replaced."""
    try:
        return Path(file).stat().st_size
    except FileNotFoundError:
        return 0


class LookupSource(DataSource):
    """For `frame` alone."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "duramen-lookup"

    def reader(self, schema: StructType) -> DataSourceReader:
        """See DataSource."""
        return _LookupReader(dict(self.options), schema)


class _LookupReader(DataSourceReader):
    """One task reads the table. options: as `frame` gives them."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Spark asks once for all batches, so the one that there is says nothing of them."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of the table, in the version of the batch that the task is of."""
        told = self.options
        context = TaskContext.get()
        batch = context.getLocalProperty(BATCH) if context is not None else None
        if batch is None:
            raise ConfigError(f"{told['name']} is looked up outside of a batch: nothing notes which version it is")
        folder, form = StepFolder(Path(told["folder"]), told["table"]), json.loads(told["form"])
        notes = Notes(Path(told["notes"]), told["name"])
        found = rows(folder, form, notes.of(int(batch)), told["name"])
        yield from fitting(found, self.schema, told["name"]).to_batches(max_chunksize=_ROWS)


class Notes:
    """Which version of a table the batches of a query read; in a folder beside the query's checkpoint."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def of(self, batch: int) -> Path:
        """The note of a batch, there or not; the oldest one that was kept goes. ConfigError where the checkpoint is not
        seen."""
        if not self._folder.parent.is_dir():
            raise _unseen(self._folder.parent)
        make_folder(self._folder)
        self._note(batch - BATCHES_KEPT).unlink(missing_ok=True)
        return self._note(batch)

    def _note(self, batch: int) -> Path:
        return self._folder / f"{batch}-{self._name}.json"


def rows(folder: StepFolder, form: Mapping[str, Any], note: Path, name: str) -> pa.Table | None:
    """The rows of the version that the note names, which is written with the current one where it is not there.

    form: how the table is kept, where its folder does not tell; name: as errors have it. None where the table holds
    nothing yet. ConfigError where the rows of that version are gone.
    """
    told = first_json(note, lambda: _current(folder, form))
    if told["commit"] is None:
        return None
    store = _opened(folder, form, told["version"])
    if store is None:
        raise _gone(f"{name} {told['version']} was removed", note)
    try:
        return store.rows(told["commit"])
    except ConfigError as error:  # they have expired, or the table was put back from a copy
        raise _gone(f"{name} {told['version']}: {error}", note) from None


def _current(folder: StepFolder, form: Mapping[str, Any]) -> dict[str, Any]:
    """The step's version that readers see, and the last version of its table; null before the first. ConfigError where
    there is no table, for there was one when the run began."""
    version = folder.current().version
    store = _opened(folder, form, version)
    if store is None:
        raise _unseen(folder.version(version).table)
    last = store.last()
    return {"version": version, "commit": None if last is None else last.version}


def _unseen(folder: Path) -> ConfigError:
    return ConfigError(
        f"the worker of Spark that looks a table up does not see {folder}: on a cluster it is a shared folder"
    )


def _gone(what: str, note: Path) -> ConfigError:
    return ConfigError(
        f"{what}, and batch {note.name.partition('-')[0]} that was interrupted has read them: without {note} it reads "
        "the table as it is now, though what it has written already may be of before; `duramen spark reprocess` builds "
        "all of one piece"
    )


def fitting(found: pa.Table | None, schema: StructType, name: str) -> pa.Table:
    """The rows with the columns that the query was planned with. ConfigError where the table has others by now."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    if found is None:
        return wanted.empty_table()
    kinds = {field.name: field.dataType for field in from_arrow_schema(own(found.schema))}
    for field in schema:
        if kinds.get(field.name) != field.dataType:
            there = f"as {kinds[field.name].simpleString()}" if field.name in kinds else "not"
            raise ConfigError(
                f"{name} has the column {field.name} {there} now, and had it as {field.dataType.simpleString()} when "
                "this run began: run again"
            )
    return found.select(wanted.names).cast(wanted)


def _form(lookup: Lookup) -> dict[str, Any]:
    step = lookup.pipeline.step(lookup.table)
    assert isinstance(step, TableStep)
    return step.form


def _opened(folder: StepFolder, form: Mapping[str, Any], version: str | None) -> TableStore | None:
    """A version's table, or the current one's; None where nothing has been written."""
    place = folder.version(version or folder.current().version)
    return open_as(place.table, place.about() or {}, form) if place.table.is_dir() else None
