"""Rows that do not hold what is expected, and records that do not fit, on their way to the topic of dead letters.

A query's rows have the column `_dead_letter` then: null in a row, and elsewhere the record as it goes to the topic. So
both leave Spark together, in the batch that they are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)
from pyspark.sql.types import StructType

from duramen.errors import ConfigError
from duramen.pipelines.model import dead_letter
from duramen.pipelines.model.declaration import Step, Topic
from duramen.pipelines.model.progress import DROPPED, QUARANTINED
from duramen.pipelines.run import failures
from duramen.pipelines.run.columns import CAUSE, LETTER, cause_of_record, check_cause, form_of, record_of
from duramen.pipelines.tables.changelog import TRACE

_FAILED = "_failed"


class Addressee(NamedTuple):
    """Whose dead letters they are. group: `<pipeline>.<step>`."""

    group: str
    version: str


def judged(rows: DataFrame, step: Step, to: Addressee) -> DataFrame:
    """The function's rows without those that do not hold, or with `_dead_letter`, as the step has it. ConfigError where
    a row cannot be traced to its record, and for a condition that Spark cannot read."""
    conditions, on_violation = step.expectations
    if not conditions:
        return rows
    check_cause(rows, step.name)
    for name, condition in conditions:
        try:
            rows.select(~F.coalesce(F.expr(condition), F.lit(False)))
        except AnalysisException as error:  # a ParseException is one, too
            raise ConfigError(f"{step.name} expects {name!r}, {condition!r}: {failures.reason(error)}") from None
    failed = rows.withColumn(_FAILED, _failed(conditions))
    if on_violation == "drop":
        counted = failed.observe(DROPPED, F.count(_FAILED).alias("rows"))
        return counted.where(F.col(_FAILED).isNull()).drop(_FAILED)
    if on_violation == "fail":
        # Nothing passes a generator: what is asked of rows that a filter leaves away, no row is refused for.
        found = F.filter(F.array(F.struct("*")), _refuse)
        return failed.select(F.explode(found).alias("r")).select("r.*").drop(_FAILED)
    kind = rows.schema[CAUSE].dataType
    if not isinstance(kind, StructType) or "record" not in kind.names:
        raise ConfigError(f"{step.name} makes a {CAUSE} of its own: to quarantine a row, hand it on as it came")
    names = F.col(_FAILED)
    message = F.concat(F.lit("the row does not hold what is expected: "), names)
    letter = _letter(F.col(CAUSE), names, message, to, joins="also" in kind.names)
    return failed.withColumn(LETTER, F.when(names.isNotNull(), letter)).drop(_FAILED)


def _failed(conditions: Sequence[tuple[str, str]]) -> Column:
    """The names of the conditions that do not hold for a row; null where all do, and for deletions."""
    each = (F.when(~F.coalesce(F.expr(condition), F.lit(False)), F.lit(name)) for name, condition in conditions)
    names = F.concat_ws(", ", *each)
    return F.when(~F.coalesce(F.col("_cause.deleted"), F.lit(False)) & (names != ""), names)


def _refuse(row: Column) -> Column:
    """True, or the query's end by an error that names the record."""
    cause = row[CAUSE]
    where = F.concat_ws("", cause["topic"], F.lit("-"), cause["partition"], F.lit("@"), cause["offset"])
    told = F.concat(where, F.lit(": the row does not hold what is expected: "), row[_FAILED])
    return F.when(row[_FAILED].isNotNull(), F.raise_error(told).cast("boolean")).otherwise(F.lit(True))


def corrupt(records: DataFrame, topic: Topic, to: Addressee) -> DataFrame:
    """Of Kafka's columns the records that do not fit the topic, as `_dead_letter`, with their places as a table's."""
    assert topic.schema is not None
    form = form_of(topic.schema, topic)
    record = F.struct(*form.parts(), cause_of_record(False, record_of(records)), "value")

    def unfit(each: Column) -> Column:
        passed_over = form.passed_over(each.__getitem__)
        found = form.reason(each.__getitem__).isNotNull()
        return found if passed_over is None else found & ~passed_over

    found = records.select(F.explode(F.filter(F.array(record), unfit)).alias("r")).select("r.*")
    letter = _letter(F.col(CAUSE), F.lit(dead_letter.CORRUPT), form.reason(F.col), to, joins=False)
    places = [F.col(f"_cause.{name.removeprefix('_')}").alias(name) for name in TRACE.names]
    return found.select(letter.alias(LETTER), *places)


def _letter(cause: Column, reason: Column, message: Column, to: Addressee, *, joins: bool) -> Column:
    """Key, value and headers of a record's dead letter."""
    record = cause["record"]
    own = F.filter(F.coalesce(record["headers"], F.array().cast("array<struct<key: string, value: binary>>")), _is_own)
    said = {
        dead_letter.TOPIC: cause["topic"],
        dead_letter.PARTITION: cause["partition"].cast("string"),
        dead_letter.OFFSET: cause["offset"].cast("string"),
        dead_letter.GROUP: F.lit(to.group),
        dead_letter.MESSAGE: message,
        dead_letter.REASON: reason,
        dead_letter.VERSION: F.lit(to.version),
        dead_letter.TIMESTAMP: F.unix_millis(cause["timestamp"]).cast("string"),
        **({dead_letter.OTHERS: F.array_join(cause["also"], " ")} if joins else {}),
    }
    headers = [F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in said.items()]
    # A field that is never null cannot be converted to Arrow where the whole letter is null.
    given = F.when(cause["offset"].isNotNull(), F.concat(own, F.array(*headers)))
    return F.struct(record["key"].alias("key"), record["value"].alias("value"), given.alias("headers"))


def _is_own(header: Column) -> Column:
    """Whether a header is no other dead letter's: a topic of those may be read, too."""
    first, second = dead_letter.PREFIXES
    return ~(header["key"].startswith(first) | header["key"].startswith(second))


def together_with(rows: DataFrame, letters: Sequence[DataFrame]) -> DataFrame:
    """The rows of a step, with the dead letters of its sources, counted."""
    for each in letters:
        given = each.select(*(name for name in each.columns if name == LETTER or name in rows.columns))
        rows = rows.unionByName(given, allowMissingColumns=True)
    return rows.observe(QUARANTINED, F.count(LETTER).alias("rows"))


def addressed(rows: DataFrame, to: str, dead_letters: str) -> DataFrame:
    """Records of a stream and dead letters, each with its `topic`."""
    kinds = {"key": "binary", "value": "binary", "headers": "array<struct<key: string, value: binary>>"}
    is_row, letter = F.col(LETTER).isNull(), F.col(LETTER)
    columns = [F.when(is_row, F.lit(to)).otherwise(F.lit(dead_letters)).alias("topic")]
    for name, kind in kinds.items():
        own = F.col(name).cast(kind) if name in rows.columns else F.lit(None).cast(kind)
        columns.append(F.when(is_row, own).otherwise(letter[name]).alias(name))
    others = [F.when(is_row, F.col(name)).alias(name) for name in ("partition", "timestamp") if name in rows.columns]
    return rows.select(*columns, *others)


def apart(found: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """A batch's rows, and its dead letters with their places; None of a step that has none."""
    if LETTER not in found.column_names:
        return found, None
    is_row = pc.is_null(found[LETTER])
    letters = found.filter(pc.invert(is_row)).select([LETTER, *TRACE.names])
    return found.filter(is_row).drop_columns([LETTER]), letters


def as_records(letters: pa.Table) -> pa.Table:
    """Dead letters as the columns of the sink."""
    column = letters[LETTER].combine_chunks()
    return pa.table({name: pc.struct_field(column, name) for name in ("key", "value", "headers")})
