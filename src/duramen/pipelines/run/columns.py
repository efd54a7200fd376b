"""Between the records of a topic and the columns that a pipeline's functions see and give.

A function gets, beside its own columns, `_cause`: the record a row comes from. It has to hand it on; for an aggregate
`latest_cause()` takes the latest of a group, for a join `joined_cause()` all that a row comes from.

`_cause` is a struct of timestamp, topic, partition, offset and deleted. In a step of several sources it has `also`, the
other records of a row: texts whose order is that of the records, for a table orders rows of one record by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import Topic
from duramen.pipelines.model.offsets import OFFSET_DIGITS, PARTITION_DIGITS
from duramen.pipelines.model.table_shape import ALSO, TIMESTAMP
from duramen.spark.sink.sink_rows import COLUMNS

CAUSE = "_cause"
CORRUPT = "_corrupt"
_NESTED = StructType | ArrayType | MapType
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


def decode(records: DataFrame, topic: Topic, *, joins: bool = False) -> DataFrame:
    """Kafka's columns (key, value, topic, partition, offset, timestamp) as the columns that the topic declares.

    joins: the rows may be joined with those of other topics, so their `_cause` has a place for further records.
    """
    cause = F.struct(
        F.col("timestamp").alias("timestamp"),
        F.col("topic").cast("string").alias("topic"),
        F.col("partition").cast("int").alias("partition"),
        F.col("offset").cast("bigint").alias("offset"),
        F.col("value").isNull().alias("deleted"),
        *([F.lit(None).cast("array<string>").alias("also")] if joins else []),
    ).alias(CAUSE)
    beside = [name for name in carried(topic) if name in records.columns]
    if topic.schema is None:
        return records.select("key", "value", *beside, cause)
    kinds = {field.name: field.dataType for field in _fields(topic.schema)}
    kind = kinds.get(topic.key or "")
    text = F.col("key").cast("string")
    keys = text.alias("k"), _key(text, kind).alias("t")
    record = F.struct(_parsed(topic.schema).alias("v"), *keys, cause, "value", *beside)
    found = F.array(record) if topic.corrupt == "keep" else F.filter(F.array(record), lambda each: _fits(each, kind))
    # Nothing passes a generator. Filters of the function, which see no value that does not fit, would be put before the
    # check of a plain column, and parse every value once more.
    plain = records.select(F.explode(found).alias("r")).select("r.*")
    columns = [F.col("v")[name].alias(name) for name in kinds if name != topic.key]
    if topic.key:
        field = F.col("v")[topic.key] if kind is not None else None
        inside = [] if field is None else [_text(field, kind) if isinstance(kind, _NESTED) else field]
        columns.insert(0, F.coalesce(F.col("t"), *inside).alias(topic.key))
    if topic.corrupt == "keep":
        of_key = F.when(_is_no_key(F.col("k"), F.col("t")), F.make_valid_utf8("k"))
        columns.append(F.coalesce(_corrupt(F.col("v"), F.col("value")), of_key).alias(CORRUPT))
    return plain.select(*columns, *beside, CAUSE)


def carried(topic: Topic) -> tuple[str, ...]:
    """What comes in beside the columns of such a topic, and goes out with a stream's records instead of within their
    values: with `includeHeaders` the headers and the time, unless the schema has fields of these names."""
    options = {name.lower(): str(value).lower() for name, value in topic.options.items()}
    if options.get("includeheaders") != "true":
        return ()
    declared = {topic.key, *(field.name for field in _fields(topic.schema or ""))}
    return tuple(name for name in ("headers", "timestamp") if name not in declared)


def _key(text: Column, kind: DataType | None) -> Column:
    """A record's key as the type that the schema gives its column, null where it is none; text where it gives none, and
    for what is no single value."""
    if kind is None or isinstance(kind, StringType | CharType | VarcharType | _NESTED):
        return text
    if isinstance(kind, BinaryType):
        return text.cast("binary")
    found = text.try_cast(kind)
    if isinstance(kind, DecimalType):  # not rounded: two keys would become one
        return F.when(found == text.try_cast(DecimalType(38, max(kind.scale, 18))), found)
    return F.when(found.cast("string") == text, found) if isinstance(kind, DateType) else found


def _is_no_key(text: Column, typed: Column) -> Column:
    return text.isNotNull() & typed.isNull()


def _corrupt(parsed: Column, value: Column) -> Column:
    """The text of a value that does not fit; null where it does, and of a deletion."""
    # Of an empty value Spark makes nothing at all, and of no text we give it none.
    return F.when(parsed.isNull(), F.make_valid_utf8(value.cast("string"))).otherwise(parsed[CORRUPT])


def _fits(record: Column, key: DataType | None) -> Column:
    """True, or the query's end by an error that names the record. key: the type of its key."""
    corrupt, cause = _corrupt(record["v"], record["value"]), record[CAUSE]
    where = F.concat_ws("", cause["topic"], F.lit("-"), cause["partition"], F.lit("@"), cause["offset"])
    told = F.concat(where, F.lit(": the value does not fit the topic's schema: "), F.substring(corrupt, 1, 200))
    kind = "" if key is None else key.simpleString()
    of_key = F.concat(
        where, F.lit(f": the key does not fit {kind}: "), F.substring(F.make_valid_utf8(record["k"]), 1, 200)
    )
    return (
        F.when(corrupt.isNotNull(), F.raise_error(told).cast("boolean"))
        .when(_is_no_key(record["k"], record["t"]), F.raise_error(of_key).cast("boolean"))
        .otherwise(F.lit(True))
    )


def _parsed(schema: str) -> Column:
    text = F.col("value").cast("string")
    declared = StructType([*_fields(schema), StructField(CORRUPT, StringType())])
    fields, read_as = (cast(StructType, _with(byte, declared)) for byte in (ByteType(), ShortType()))
    found = F.from_json(
        # Spark puts U+FFFD for each byte that is no text, and says nothing: two keys may become one by that.
        F.when(F.is_valid_utf8(text), text),
        read_as,
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT},
    )
    if read_as == fields:
        return found
    # A lambda, so that it is parsed once.
    return F.transform(F.array(found), lambda each: F.when(_in_bytes(each, fields), each))[0].cast(fields)


def _with(byte: DataType, kind: DataType) -> DataType:
    """The type with another one for each tinyint: of 128 to 255 Spark makes negative ones, so it reads smallints."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _with(byte, field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_with(byte, kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _with(byte, kind.valueType))
    return byte if isinstance(kind, ByteType) else kind


def _in_bytes(value: Column, kind: DataType) -> Column:
    """Whether all that is to be tinyints fits."""
    if _with(ByteType(), kind) == _with(ShortType(), kind):
        return F.lit(True)
    if isinstance(kind, StructType):
        fits = (_in_bytes(value[field.name], field.dataType) for field in kind.fields)
        return reduce(lambda one, other: one & other, fits)
    if isinstance(kind, ArrayType):
        inside, element = value, kind.elementType
    elif isinstance(kind, MapType):
        inside, element = F.map_values(value), kind.valueType
    else:
        return F.coalesce(value.between(-128, 127), F.lit(True))
    return F.coalesce(F.forall(inside, lambda each: _in_bytes(each, element)), F.lit(True))


def _fields(schema: str) -> list[StructField]:
    return cast(StructType, StructType.fromDDL(schema)).fields


def _column(name: str) -> Column:
    """The column of just this name; a dot in it is part of it."""
    return F.col(f"`{name.replace('`', '``')}`")


def _check_cause(rows: DataFrame, step: str) -> None:
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


def traced(rows: DataFrame, step: str) -> DataFrame:
    """A function's rows as a table stores them: `_cause` taken apart. ConfigError when it is missing, or there are two.

    Where it has a place for further records, the table has `_timestamp` and `_also`, too.
    """
    _check_cause(rows, step)
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
    fields = [name for name in rows.columns if name != CAUSE]
    if "value" in fields and set(fields) <= set(COLUMNS) and key in (None, "key"):
        if CAUSE not in rows.columns:
            return rows.select(fields)
        kept = [_unless_deleted(F.col(name)).alias(name) if name == "value" else F.col(name) for name in fields]
        return rows.select(*kept, *([] if "timestamp" in fields else [_time()]))
    if key is not None and key not in rows.columns:
        raise ConfigError(f"{step} gives no column {key} for the record's key")
    _check_cause(rows, step)
    own = [name for name in fields if name in beside]
    value = _unless_deleted(F.to_json(F.struct(*(_column(name) for name in fields if name not in own)), _JSON))
    columns = [value.cast("binary").alias("value"), *map(F.col, own), *([] if "timestamp" in own else [_time()])]
    if key is not None:
        columns.insert(0, _text(_column(key), rows.schema[key].dataType).cast("binary").alias("key"))
    return rows.select(*columns)


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
    found = F.struct(
        latest["timestamp"].alias("timestamp"),
        latest["topic"].alias("topic"),
        latest["partition"].alias("partition"),
        latest["offset"].alias("offset"),
        deleted.alias("deleted"),
        also.alias("also"),
    )
    return F.when(latest.isNotNull(), found).alias(CAUSE)


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
