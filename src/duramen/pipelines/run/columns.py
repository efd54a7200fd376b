"""Between the records of a topic and the columns that a pipeline's functions see and give.

A function gets, beside its own columns, `_cause`: the record a row comes from. It has to hand it on; for an aggregate
`latest_cause()` takes the latest of a group, for a join `joined_cause()` all that a row comes from.

`_cause` is a struct of timestamp, topic, partition, offset and deleted. In a step of several sources it has `also`, the
other records of a row: texts whose order is that of the records, for a table orders rows of one record by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Protocol, cast

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import TableStep, Topic
from duramen.pipelines.model.offsets import OFFSET_DIGITS, PARTITION_DIGITS
from duramen.pipelines.model.table_shape import ALSO, TIMESTAMP
from duramen.pipelines.run.debezium import DebeziumRecords
from duramen.pipelines.run.parser import CORRUPT, NESTED, corrupt_text, fields_of, parsed, typed
from duramen.spark.sink.sink_rows import COLUMNS

CAUSE = "_cause"
LETTER = "_dead_letter"
"""The record that a row becomes in the topic of dead letters; null where it is a row."""
_JSON = {
    "ignoreNullFields": "false",
    # In other zones moments before there was a standard time would be moved: those were off by seconds, and the offset
    # that is written has none.
    "timeZone": "UTC",
    # Spark's own end at the millisecond.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
TWO_CAUSES = (
    f'{{step}} joins, and leaves a {CAUSE} of each side: take all in one, as in .select("id", '
    "pipelines.joined_cause(left, right))"
)
_LOST = (
    f'{{step}} loses {CAUSE}, the record each row comes from: add "{CAUSE}" to its select, or '
    "pipelines.latest_cause() to its agg"
)


_Of = Callable[[str], Column]
"""A record's parts by name: `value`, and what a form made of it."""


class Form(Protocol):
    """How records become rows, as expressions."""

    def parts(self) -> list[Column]:
        """What is made of a record's `key` and `value`, once."""

    def columns(self, of: _Of) -> list[Column]:
        """The columns of the row, of those parts."""

    def reason(self, of: _Of) -> Column:
        """Why the record is no such row; null where it is."""

    def text(self, of: _Of) -> Column:
        """The value, or the key, that does not fit; null where both do."""

    def passed_over(self, of: _Of) -> Column | None:
        """Whether the record is no row, and no fault; None where that cannot be."""

    def deletes(self, of: _Of) -> Column | None:
        """Whether a record that has a value deletes; None where that cannot be."""


def decode(records: DataFrame, topic: Topic, *, joins: bool = False, whole: bool = False) -> DataFrame:
    """Kafka's columns (key, value, topic, partition, offset, timestamp) as the columns that the topic declares.

    joins: the rows may be joined with those of other topics, so their `_cause` has a place for further records.
    whole: rows may become dead letters, so `_cause` has the record itself, too.
    """
    cause = cause_of_record(joins, record_of(records) if whole else None)
    beside = [name for name in carried(topic) if name in records.columns]
    if topic.schema is None:
        return records.select("key", "value", *beside, cause)
    form = form_of(topic.schema, topic)
    record = F.struct(*form.parts(), cause, "value", *beside)
    # Nothing passes a generator. Filters of the function, which see no value that does not fit, would be put before the
    # check of a plain column, and parse every value once more. The check is a second one: Spark compiles it, but no
    # lambda of `filter`.
    plain = records.select(F.explode(F.array(record)).alias("r"))
    if (wanted := _wanted(form, topic)) is not None:
        plain = plain.select(F.explode(F.when(wanted, F.array("r"))).alias("r"))
    plain = plain.select("r.*")
    columns = form.columns(F.col)
    if topic.corrupt == "keep":
        columns.append(form.text(F.col).alias(CORRUPT))
    if (deletes := form.deletes(F.col)) is not None:
        cause = F.col(CAUSE).withField("deleted", F.col("_cause.deleted") | deletes).alias(CAUSE)
        return plain.select(*columns, *beside, cause)
    return plain.select(*columns, *beside, CAUSE)


def form_of(schema: str, topic: Topic) -> Form:
    """How the records of a topic with this schema become rows."""
    return (PlainRecords if topic.envelope is None else DebeziumRecords)(schema, topic.key)


def record_of(records: DataFrame) -> Column:
    """A record as it is in its topic, as `_cause.record`."""
    none = F.lit(None).cast("array<struct<key: string, value: binary>>")
    headers = F.col("headers") if "headers" in records.columns else none
    return F.struct("key", "value", headers.alias("headers")).alias("record")


def cause_of_record(joins: bool, record: Column | None) -> Column:
    """The `_cause` of rows of Kafka's columns."""
    return F.struct(
        F.col("timestamp").alias("timestamp"),
        F.col("topic").cast("string").alias("topic"),
        F.col("partition").cast("int").alias("partition"),
        F.col("offset").cast("bigint").alias("offset"),
        F.col("value").isNull().alias("deleted"),
        *([F.lit(None).cast("array<string>").alias("also")] if joins else []),
        *([record] if record is not None else []),
    ).alias(CAUSE)


def _wanted(form: Form, topic: Topic) -> Column | None:
    """Whether the record `r` is a row; None where each is."""
    if topic.corrupt == "keep" and form.passed_over(F.col) is None:
        return None
    record, fits = F.col("r"), F.lit(True)
    if topic.corrupt == "fail":
        fits = _fits(record, form)
    elif topic.corrupt == "quarantine":
        fits = form.reason(record.__getitem__).isNull()
    passed_over = form.passed_over(record.__getitem__)
    return fits if passed_over is None else F.when(passed_over, F.lit(False)).otherwise(fits)


def _fits(record: Column, form: Form) -> Column:
    """True, or the query's end by an error that names the record."""
    reason, cause = form.reason(record.__getitem__), record[CAUSE]
    where = F.concat_ws("", cause["topic"], F.lit("-"), cause["partition"], F.lit("@"), cause["offset"])
    text = F.substring(form.text(record.__getitem__), 1, 200)
    told = F.concat(where, F.lit(": "), reason, F.lit(": "), text)
    return F.when(reason.isNotNull(), F.raise_error(told).cast("boolean")).otherwise(F.lit(True))


class PlainRecords:
    """Values that are JSON objects of the schema, and keys that are single values. key: the column for those."""

    def __init__(self, schema: str, key: str | None) -> None:
        self._fields = fields_of(schema)
        self._key = key
        self._kinds = {field.name: field.dataType for field in self._fields}
        self._kind = self._kinds.get(key or "")

    def parts(self) -> list[Column]:
        """See Form."""
        text = F.col("key").cast("string")
        value = parsed(F.col("value").cast("string"), self._fields)
        return [value.alias("v"), text.alias("k"), typed(text, self._kind).alias("t")]

    def columns(self, of: _Of) -> list[Column]:
        """See Form."""
        found = [of("v")[name].alias(name) for name in self._kinds if name != self._key]
        if self._key:
            inside = []
            if self._kind is not None:
                field = of("v")[self._key]
                inside.append(_text(field, self._kind) if isinstance(self._kind, NESTED) else field)
            found.insert(0, F.coalesce(of("t"), *inside).alias(self._key))
        return found

    def reason(self, of: _Of) -> Column:
        """See Form."""
        kind = "" if self._kind is None else self._kind.simpleString()
        of_value = corrupt_text(of("v"), of("value")).isNotNull()
        found = F.when(of_value, F.lit("the value does not fit the topic's schema"))
        return found.when(self._is_no_key(of), F.lit(f"the key does not fit {kind}"))

    def text(self, of: _Of) -> Column:
        """See Form."""
        of_key = F.when(self._is_no_key(of), F.make_valid_utf8(of("k")))
        return F.coalesce(corrupt_text(of("v"), of("value")), of_key)

    def passed_over(self, of: _Of) -> Column | None:
        """See Form."""
        return None

    def deletes(self, of: _Of) -> Column | None:
        """See Form."""
        return None

    def _is_no_key(self, of: _Of) -> Column:
        return of("k").isNotNull() & of("t").isNull()


def carried(topic: Topic) -> tuple[str, ...]:
    """What comes in beside the columns of such a topic, and goes out with a stream's records instead of within their
    values: with `includeHeaders` the headers and the time, unless the schema has fields of these names."""
    options = {name.lower(): str(value).lower() for name, value in topic.options.items()}
    if options.get("includeheaders") != "true":
        return ()
    declared = {topic.key, *(field.name for field in fields_of(topic.schema or ""))}
    return tuple(name for name in ("headers", "timestamp") if name not in declared)


def _column(name: str) -> Column:
    """The column of just this name; a dot in it is part of it."""
    return F.col(f"`{name.replace('`', '``')}`")


def check_cause(rows: DataFrame, step: str) -> None:
    """ConfigError unless the rows have one `_cause`."""
    if CAUSE not in rows.columns:
        raise ConfigError(_LOST.format(step=step))
    if rows.columns.count(CAUSE) > 1:
        raise ConfigError(TWO_CAUSES.format(step=step))


def together(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of several sources as one stream, each in a column of its source; of one source as they are."""
    if len(frames) == 1:
        return frames[0]
    marked = [rows.select(F.struct("*").alias(f"source{number}")) for number, rows in enumerate(frames)]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), marked)


def apart(rows: DataFrame, count: int) -> list[DataFrame]:
    """The rows of each of so many sources, out of a batch of `together`."""
    if count == 1:
        return [rows]
    names = [f"source{number}" for number in range(count)]
    return [rows.where(F.col(name).isNotNull()).select(f"{name}.*") for name in names]


def is_of_two_causes(error: AnalysisException) -> bool:
    """Whether Spark's error is of a function that names `_cause` where a join has left two."""
    return error.getCondition() == "AMBIGUOUS_REFERENCE" and f"`{CAUSE}`" in str(error)


def lacks_others(error: AnalysisException) -> bool:
    """Whether Spark's error is of `joined_cause` on a `_cause` that has no place for the records of other sides."""
    return error.getCondition() == "FIELD_NOT_FOUND" and "`also`" in str(error)


def check_order(step: TableStep, rows: DataFrame) -> None:
    """ConfigError where nothing that lasts says which of two joined rows of a key is later."""
    if ALSO in rows.columns and step.shape.keys and step.shape.version is None and not step.aggregate:
        raise ConfigError(
            f'{step.name} joins its source with itself: version="{TIMESTAMP}" orders the rows of a key, by the time of '
            "their latest record"
        )


def traced(rows: DataFrame, step: str) -> DataFrame:
    """A function's rows as a table stores them: `_cause` taken apart. ConfigError when it is missing, or there are two.

    Where it has a place for further records, the table has `_timestamp` and `_also`, too.
    """
    check_cause(rows, step)
    kept = [_column(name) for name in rows.columns if name != CAUSE]
    joined = []
    if _joins(rows):
        if taken := {TIMESTAMP, ALSO} & set(rows.columns):
            raise ConfigError(f"the column {min(taken)} of {step} begins with _: such names are the store's own")
        others = F.coalesce(F.array_join("_cause.also", " "), F.lit(""))
        joined = [F.col("_cause.timestamp").alias(TIMESTAMP), others.alias(ALSO)]
    return rows.select(
        *kept,
        *joined,
        F.col("_cause.topic").alias("_topic"),
        F.col("_cause.partition").alias("_partition"),
        F.col("_cause.offset").alias("_offset"),
        F.col("_cause.deleted").alias("_deleted"),
    )


def encode(rows: DataFrame, step: str, key: str | None, beside: Sequence[str] = ()) -> DataFrame:
    """A function's rows as records: `key`, `value` and `timestamp`. A deletion has a null value.

    beside: columns that are no part of the value, see `carried`. The time is that of the record a row comes from,
    unless the rows have one of their own.

    Rows that are records already, with a `value` and nothing that a sink would leave out, are written as they are, but
    for deletions where they hand on `_cause`.
    """
    fields = [name for name in rows.columns if name not in (CAUSE, LETTER)]
    letter = [LETTER] if LETTER in rows.columns else []
    if "value" in fields and set(fields) <= set(COLUMNS) and key in (None, "key"):
        if CAUSE not in rows.columns:
            return rows.select(fields)
        kept = [_unless_deleted(F.col(name)).alias(name) if name == "value" else F.col(name) for name in fields]
        return rows.select(*kept, *([] if "timestamp" in fields else [_time()]), *letter)
    if key is not None and key not in rows.columns:
        raise ConfigError(f"{step} gives no column {key} for the record's key")
    check_cause(rows, step)
    own = [name for name in fields if name in beside]
    value = _unless_deleted(F.to_json(F.struct(*(_column(name) for name in fields if name not in own)), _JSON))
    columns = [value.cast("binary").alias("value"), *map(F.col, own), *([] if "timestamp" in own else [_time()])]
    if key is not None:
        columns.insert(0, _text(_column(key), rows.schema[key].dataType).cast("binary").alias("key"))
    return rows.select(*columns, *letter)


def _time() -> Column:
    """The time of the record that a row comes from; null, for now, where it has none."""
    told = F.col("_cause.timestamp")
    return F.when(told >= F.timestamp_seconds(F.lit(0)), told).alias("timestamp")


def _unless_deleted(value: Column) -> Column:
    return F.when(F.col("_cause.deleted"), None).otherwise(value)


def _text(column: Column, kind: DataType) -> Column:
    """The column as a key: text that is another one for every other value.

    Spark's own is not: of moments it leaves the zone away, so that two of them in the night of the change of clocks are
    one text, and of parts of a struct or an array where one ends.
    """
    if isinstance(kind, TimestampType):
        return F.get_json_object(F.to_json(F.struct(column.alias("at")), _JSON), "$.at")
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(column, _JSON)
    return column.cast("string")


def latest_cause() -> Column:
    """For `agg`: the latest record of the group, by time. An aggregate is never deleted by one of its records."""
    return F.max(CAUSE).withField("deleted", F.lit(False)).alias(CAUSE)


def joined_cause(*sides: DataFrame | Column | str) -> Column:
    """For the rows of a join: all records that a row comes from, as its `_cause`.

    sides: the joined DataFrames, or their `_cause` columns, as `"o._cause"` of one with an alias. The latest record, by
    time, is the row's own, which `_cause.topic` and the like name; the others go along. A side of an outer join may be
    missing. A row deletes where one of its records does.
    """
    if len(sides) < 2:
        raise ConfigError("joined_cause takes the sides of a join, two or more")
    causes = [_cause_of(side) for side in sides]
    latest = F.greatest(*causes)
    records = F.flatten(F.array(*(_records(cause) for cause in causes)))
    also = F.array_sort(F.array_except(records, F.array(_place(latest))))
    deleted = reduce(lambda one, other: one | other, (F.coalesce(each["deleted"], F.lit(False)) for each in causes))
    return latest.withField("deleted", deleted).withField("also", also).alias(CAUSE)


def _cause_of(side: DataFrame | Column | str) -> Column:
    """The `_cause` of a side, with a place for further records."""
    if isinstance(side, str):
        return F.col(side)
    if isinstance(side, Column):
        return side
    cause = side[CAUSE]
    return cause if _joins(side) else cause.withField("also", F.lit(None).cast("array<string>"))


def _joins(rows: DataFrame) -> bool:
    """Whether the `_cause` of the rows has a place for further records."""
    return "also" in cast(StructType, rows.schema[CAUSE].dataType).names


def _records(cause: Column) -> Column:
    """The records of a side of a join, none where the side is missing."""
    others = F.coalesce(cause["also"], F.array().cast("array<string>"))
    return F.when(cause.isNull(), F.array().cast("array<string>")).otherwise(F.concat(F.array(_place(cause)), others))


def _place(cause: Column) -> Column:
    """A record as text. Of one partition, the text of a later record is greater."""
    partition = F.lpad(cause["partition"].cast("string"), PARTITION_DIGITS, "0")
    offset = F.lpad(cause["offset"].cast("string"), OFFSET_DIGITS, "0")
    return F.concat(cause["topic"], F.lit("-"), partition, F.lit("@"), offset)


def where(rows: DataFrame, condition: Column | str) -> DataFrame:
    """Keep the rows for which the condition holds, and delete the keys of the others.

    A plain filter forgets: a row that was kept once stays in the table when a later record of its key is filtered out.
    """
    holds = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
    deleted = F.col("_cause.deleted") | ~holds
    return rows.withColumn(CAUSE, F.col(CAUSE).withField("deleted", deleted))
