"""Changes of a table as a stream of Spark's: a data source whose offsets are the versions of the table.

A batch reads the changes of the versions from where the one before ended. The table keeps them for good, so a batch
that is repeated reads the same rows. To Spark and to all that counts records the versions are those of one partition:
{"<pipeline>.<table>@<step version>": {"0": <the next version>}}.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from duramen.errors import ConfigError
from duramen.model import TopicId, TopicPartition
from duramen.pipelines.jvm.session import make_active
from duramen.pipelines.model.declaration import TableChanges, TableStep
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import Reading, of_changes
from duramen.pipelines.run.lookups import fitting
from duramen.pipelines.run.stores import open_as
from duramen.pipelines.tables.store import TableCommit, TableStore
from duramen.spark.options.positions import first_from_json, from_json, ids_from_json, to_json

CHANGE = "_change"
ROWS_MAX = 500_000
"""Of a batch, whose rows the driver may take together; one version at least, however many it has."""
_TIME, _NAME, _VERSION = "_time", "_name", "_version"
_TRACE = [
    StructField(CHANGE, StringType()),
    StructField(_TIME, TimestampType()),
    StructField(_NAME, StringType()),
    StructField(_VERSION, LongType()),
]
_ROWS = 10_000
"""Of an Arrow batch."""


def reading(step: str, source: TableChanges, about: Mapping[str, Any]) -> Reading:
    """What a version of a step reads of the changes. about: what its folder tells. ConfigError where the table was
    swapped since."""
    return of_changes(step, source.name, source.prefix, _folder(source).current().version, about)


def end(source: TableChanges) -> Offsets:
    """Where the changes of the table end now; nothing where it was never written."""
    folder = _folder(source)
    version = folder.current().version
    place = folder.version(version)
    if not place.table.is_dir():
        return Offsets()
    return Offsets({(source.prefix + version, 0): _next(open_as(place.table, place.about() or {}, _form(source)))})


def frame(
    spark: SparkSession, source: TableChanges, schema: StructType, of: Reading, until: Offsets | None
) -> DataFrame:
    """The changes with these columns of the table, up to `until`, and what `decoded` takes."""
    make_active(spark)
    spark.dataSource.register(ChangesSource)
    options = {
        "folder": str(source.pipeline.folder),
        "table": source.table,
        "version": of.topic.removeprefix(source.prefix),
        "form": json.dumps(_form(source)),
        "name": of.topic,
        **({} if until is None else {"until": str(until.end(of.topic, 0))}),
    }
    with_trace = StructType([*schema.fields, *_TRACE])
    return spark.readStream.format(ChangesSource.name()).schema(with_trace).options(**options).load()


def decoded(rows: DataFrame, *, joins: bool) -> DataFrame:
    """The rows as functions get them. joins: their `_cause` has a place for the records of other sides."""
    own = [f"`{name.replace('`', '``')}`" for name in rows.columns if name not in (_TIME, _NAME, _VERSION)]
    cause = F.struct(
        F.col(_TIME).alias("timestamp"),
        F.col(_NAME).alias("topic"),
        F.lit(0).alias("partition"),
        F.col(_VERSION).alias("offset"),
        (F.col(CHANGE) == "delete").alias("deleted"),
        *([F.lit(None).cast("array<string>").alias("also")] if joins else []),
    )
    return rows.select(*own, cause.alias("_cause"))


class ChangesSource(DataSource):
    """For `frame` alone."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "duramen-changes"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """See DataSource."""
        return ChangesReader(dict(self.options), schema)


@dataclass
class Versions(InputPartition):
    """The versions that a batch reads: from `first` up to `end`, which is left out."""

    first: int
    end: int


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's. options: as `frame` gives them."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._folder = StepFolder(Path(options["folder"]), options["table"])
        self._version, self._name = options["version"], options["name"]
        self._form = json.loads(options["form"])
        self._schema = schema
        self._until = int(options["until"]) if "until" in options else None
        self._target: int | None = None
        self._latest: int | None = None

    # ---- offsets -------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, dict[str, Any]]:  # noqa: N802
        """The first version."""
        return self._offset(0, {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """See ROWS_MAX."""
        return ReadMaxRows(ROWS_MAX)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, Any]]:  # noqa: N802
        """Where the next batch ends; `start` where there is nothing new. ConfigError where the table was swapped, or is
        another one than was read until now."""
        if (current := self._folder.current().version) != self._version:
            raise ConfigError(
                f"{self._folder.step} is {current} now, not {self._version}, whose changes are read: `duramen spark "
                "reprocess` builds what reads them again from there"
            )
        store = self._store()
        begin, ids = from_json(start)[self._place], ids_from_json(start)
        commits = store.commits() if (there := _next(store)) > begin or not ids else []
        known = {**self._ids(commits), **ids}
        if there < begin or (commits and ids and self._ids(commits) != ids):
            raise ConfigError(
                f"the table {store.folder} was put back or made again: of its changes {begin} versions were read, and "
                "they are others. Put back the one that was read, or build what reads them with `duramen spark "
                "reprocess`"
            )
        self._latest = there
        bounds = [each for each in (self._target, self._until) if each is not None]
        end = max(begin, min([there, *bounds]))
        if end == begin:
            return start
        if not isinstance(limit, ReadAllAvailable):
            end = cut([each for each in commits if begin <= each.version < end], ROWS_MAX, end)
        return self._offset(end, known, begin if start == self.initialOffset() else None)

    def reportLatestOffset(self) -> dict[str, dict[str, Any]] | None:  # noqa: N802
        """The table's end as it was last seen, for the lag."""
        return None if self._latest is None else self._offset(self._latest, {})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on nothing beyond the present end is read."""
        self._target = _next(self._store())

    @property
    def _place(self) -> TopicPartition:
        return TopicPartition(self._name, 0)

    def _offset(self, end: int, ids: Mapping[str, TopicId], first: int | None = None) -> dict[str, dict[str, Any]]:
        return to_json({self._place: end}, ids, None if first is None else {self._place: first})

    def _ids(self, commits: list[TableCommit]) -> dict[str, TopicId]:
        """What the table is known by when another one stands in its folder: its first batch."""
        if not commits:
            return {}
        begun = f"{commits[0].sink} {commits[0].time_ms}"
        return {self._name: hashlib.sha256(begun.encode()).digest()[:16]}

    # ---- one batch -----------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One task reads all, for the order of the versions is that of the rows."""
        first = (first_from_json(end) or from_json(start))[self._place]
        until = from_json(end)[self._place]
        return [Versions(first, until)] if until > first else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of the versions, in their order."""
        wanted = cast(Versions, partition)
        own = StructType(self._schema.fields[: -len(_TRACE)])
        for commit, found in self._store().changes_between(wanted.first, wanted.end):
            rows = fitting(found, own, self._name)
            kinds = pa.array(["delete" if gone else "upsert" for gone in found["_deleted"].to_pylist()], pa.string())
            time = pa.scalar(commit.time_ms * 1000, pa.timestamp("us", tz="UTC"))
            values = (kinds, *(pa.repeat(each, rows.num_rows) for each in (time, self._name, commit.version)))
            for field, column in zip(_TRACE, values, strict=True):
                rows = rows.append_column(field.name, column)
            yield from rows.cast(to_arrow_schema(self._schema, timezone="UTC")).to_batches(max_chunksize=_ROWS)

    def _store(self) -> TableStore:
        place = self._folder.version(self._version)
        if not place.table.is_dir():
            raise ConfigError(f"Spark does not see {place.table}, whose changes it reads: on a cluster it is shared")
        return open_as(place.table, place.about() or {}, self._form)


def cut(commits: list[TableCommit], rows_max: int, end: int) -> int:
    """Where a batch ends that has at most so many rows, but one version at least. end: where it ends at the latest."""
    rows = 0
    for number, commit in enumerate(commits):
        rows += commit.upserts + commit.deletes
        if number and rows > rows_max:
            return commit.version
    return end


def _next(store: TableStore) -> int:
    """The version that comes next."""
    last = store.last()
    return 0 if last is None else last.version + 1


def _folder(source: TableChanges) -> StepFolder:
    return StepFolder(source.pipeline.folder, source.table)


def _form(source: TableChanges) -> dict[str, Any]:
    step = source.pipeline.step(source.table)
    assert isinstance(step, TableStep)
    return step.form
