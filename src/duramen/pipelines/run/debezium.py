"""Records as Debezium writes them: what became of a row of a database, as a row or a deletion.

A value is an envelope of `before`, `after`, `op`, `ts_ms` and `source`, with the schema that Kafka Connect's
JsonConverter puts around it (`{"schema": ..., "payload": ...}`) or without it. Keys are objects of the table's key
columns, in the same two forms, or single values. What is a date, a moment or a decimal comes as a number or as text, by
settings of the connector (time.precision.mode, decimal.handling.mode); the schema in the message tells which it is.

Source: debezium.io/documentation/reference/stable/connectors, "Data change events" and "Data type mappings".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from duramen.errors import ConfigError
from duramen.pipelines.run.parser import CORRUPT, fields_of, once, parsed, typed

_Of = Callable[[str], Column]
_OP, _OF_SOURCE = "__op", "__source_"
"""Columns of the envelope that a schema may ask for, by the names that Debezium's ExtractNewRecordState gives them."""
_UNITS: Final = {"_ms": 1000, "_us": 1_000_000, "_ns": 1_000_000_000}
"""How many of them a second has, by the end of such a column's name."""
_WRITTEN_AS = DateType | TimestampType | TimestampNTZType | DecimalType
"""Types of which a message has something else."""
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_DATES = f"{_CONNECT}Date", f"{_TIME}Date"
_MICROS: Final = {
    f"{_CONNECT}Timestamp": 1000,
    f"{_TIME}Timestamp": 1000,
    f"{_TIME}MicroTimestamp": 1,
    f"{_TIME}NanoTimestamp": None,
}
"""Microseconds in the number of such a schema; None: it has nanoseconds."""
_DECIMAL = f"{_CONNECT}Decimal"
_FIELDS = "array<struct<field: string, name: string, parameters: struct<scale: string>>>"
_WITH_SCHEMA = '{"schema":'
"""How what Kafka Connect puts around a key begins: JsonConverter writes it without blanks."""
NO_ENVELOPE = "the value is no Debezium envelope of the topic's schema"
NO_KEY = "the key does not fit the topic's schema"
TRUNCATED = 'the table was truncated (op "t"), which rows cannot follow'


class DebeziumRecords:
    """Envelopes whose rows have the columns of a schema. key: the column for keys that are single values."""

    def __init__(self, schema: str, key: str | None) -> None:
        """ConfigError where a column is of a type that cannot be read."""
        declared = fields_of(schema)
        self.key = key
        self._about = [field for field in declared if _is_about(field.name)]
        self._row = [field for field in declared if not _is_about(field.name)]
        for field in self._row:
            if not isinstance(field.dataType, _WRITTEN_AS) and _contains_written(field.dataType):
                raise ConfigError(
                    f"column {field.name} {field.dataType.simpleString()}: within others Debezium's dates, moments and "
                    "decimals cannot be told from numbers; declare those as bigint, int or string"
                )
        own = [field for field in self._row if field.name == key]
        self._kind = own[0].dataType if own else None
        # A key's own column need not be one of the row's. Of which columns an object is, without it, is not known.
        self._keyed = own or [StructField(key, StringType())] if key else self._row
        self._names = [field.name for field in declared]

    def parts(self) -> list[Column]:
        """See Form."""
        text = F.col("key").cast("string")
        return [self._envelope().alias("v"), text.alias("k"), self._keys(text).alias("t")]

    def columns(self, of: _Of) -> list[Column]:
        """See Form."""
        names = self._names if self.key is None else [self.key, *(name for name in self._names if name != self.key)]
        of_row, of_keys = ({field.name for field in fields} for fields in (self._row, self._keyed))

        def column(name: str) -> Column:
            in_key = [of("t")["row"][name]] if name in of_keys else []
            in_row = [of("v")["row"][name]] if name in of_row else []
            if name == self.key:
                return F.coalesce(of("t")["single"], *in_key, *in_row)
            return F.coalesce(*in_row, *in_key) if in_row else of("v")["about"][name]

        return [column(name).alias(name) for name in names]

    def reason(self, of: _Of) -> Column:
        """See Form."""
        return F.coalesce(
            F.when(of("value").isNotNull(), F.when(of("v").isNull(), F.lit(NO_ENVELOPE)).otherwise(of("v")["why"])),
            F.when(~of("t")["fits"], F.lit(NO_KEY)),
        )

    def text(self, of: _Of) -> Column:
        """See Form."""
        of_value = of("value").isNotNull() & (of("v").isNull() | of("v")["why"].isNotNull())
        return (
            F.when(of_value, F.make_valid_utf8(of("value").cast("string")))
            .when(~of("t")["fits"], F.make_valid_utf8(of("k")))
            .otherwise(F.lit(None))
        )

    def passed_over(self, of: _Of) -> Column | None:
        """See Form. Messages of PostgreSQL (pg_logical_emit_message) are of no table."""
        return F.coalesce(of("v")["op"] == "m", F.lit(False))

    def deletes(self, of: _Of) -> Column | None:
        """See Form."""
        return F.coalesce(of("v")["op"] == "d", F.lit(False))

    def _envelope(self) -> Column:
        """Of a value: `op`, `row` as it is after that, or was before a deletion, `about` and `why` it does not fit."""
        read_as = StructType(_read_as(self._row))
        of_source = [
            StructField(field.name.removeprefix(_OF_SOURCE), _stored(field.dataType))
            for field in self._about
            if field.name.startswith(_OF_SOURCE)
        ]
        inside = [
            StructField("before", read_as),
            StructField("after", read_as),
            StructField("op", StringType()),
            StructField("ts_ms", LongType()),
            *([StructField("source", StructType(of_source))] if of_source else []),
        ]
        said = StructType(fields_of(f"fields array<struct<field: string, fields: {_FIELDS}>>"))
        schemas = [StructField("schema", said)] if _any_written(self._row) else []
        whole = [StructField("payload", StructType(inside)), *inside, *schemas]
        value = parsed(F.col("value").cast("string"), whole)
        return once(value, lambda found: self._unwrapped(found, bool(schemas)))

    def _unwrapped(self, found: Column, schemas: bool) -> Column:
        def of(name: str) -> Column:
            return F.coalesce(found["payload"][name], found[name])

        op = of("op")
        state = F.when(op == "d", of("before")).otherwise(of("after"))
        of_after = (
            F.filter(found["schema"]["fields"], lambda each: each["field"] == "after") if schemas else F.lit(None)
        )
        said = F.get(of_after, F.lit(0))["fields"] if schemas else F.lit(None).cast(_FIELDS)
        about = [self._told(field, of).alias(field.name) for field in self._about]

        def row(parts: Column) -> Column:
            columns, fits = _row(parts["state"], self._row, parts["said"])
            why = (
                F.when(found[CORRUPT].isNotNull(), F.lit(NO_ENVELOPE))
                .when(op == "t", F.lit(TRUNCATED))
                .when(op.isin("c", "u", "r") & parts["state"].isNotNull() & fits, F.lit(None))
                .when(op.isin("d", "m") & fits, F.lit(None))
                .otherwise(F.lit(NO_ENVELOPE))
            )
            return F.struct(
                op.alias("op"),
                columns.alias("row"),
                why.alias("why"),
                *([F.struct(*about).alias("about")] if about else []),
            )

        made = once(F.struct(state.alias("state"), said.alias("said")), row)
        return F.when(found.isNotNull(), made)

    def _told(self, field: StructField, of: Callable[[str], Column]) -> Column:
        """A column of the envelope, of the type that the schema gives it."""
        if field.name.startswith(_OF_SOURCE):
            value = of("source")[field.name.removeprefix(_OF_SOURCE)]
        else:
            value = of(field.name.removeprefix("__"))
        if not isinstance(field.dataType, TimestampType | TimestampNTZType):
            return value.cast(field.dataType)
        per_second = _UNITS.get(field.name[-3:])
        if per_second is None:
            raise ConfigError(f"column {field.name}: moments are those whose names end with {', '.join(_UNITS)}")
        micros = _micros(value, 1_000_000 // per_second if per_second <= 1_000_000 else None)
        return _moment(micros, field.dataType)

    def _keys(self, text: Column) -> Column:
        """Of a key: `row` with the columns it has, or `single`, its only value; and whether that `fits`."""
        # Of text that is no UTF-8 characters would be made up.
        whole = F.when(F.is_valid_utf8(text), text)
        wrapped = whole.startswith(_WITH_SCHEMA)
        inner = F.coalesce(F.when(wrapped, F.get_json_object(whole, "$.payload")), whole)
        read = parsed(F.when(inner.startswith("{"), inner), _read_as(self._keyed))
        said = F.lit(None).cast(_FIELDS)
        if _any_written(self._keyed):
            schema = F.when(wrapped, F.get_json_object(whole, "$.schema"))
            said = F.from_json(schema, f"fields {_FIELDS}")["fields"]

        def keys(parts: Column) -> Column:
            columns, fits = _row(parts["read"], self._keyed, parts["said"])
            inner = parts["inner"]
            is_object = F.coalesce(inner.startswith("{"), F.lit(False))
            # As JSON, a text has quotes.
            plain = F.when(
                inner.startswith('"'), F.get_json_object(F.concat(F.lit('{"k":'), inner, F.lit("}")), "$.k")
            ).otherwise(inner)
            single = typed(plain, self._kind)
            fits_read = parts["read"].isNotNull() & parts["read"][CORRUPT].isNull() & fits
            sound = F.when(is_object, fits_read).otherwise(F.lit(self.key is None) | single.isNotNull())
            return F.struct(
                F.when(is_object, columns).alias("row"),
                F.when(~is_object, single).alias("single"),
                (parts["key"].isNull() | F.coalesce(sound, F.lit(False))).alias("fits"),
            )

        return once(
            F.struct(read.alias("read"), said.alias("said"), inner.alias("inner"), text.alias("key")),
            keys,
        )


def _is_about(name: str) -> bool:
    return name in (_OP, "__ts_ms") or name.startswith(_OF_SOURCE)


def _stored(kind: DataType) -> DataType:
    return LongType() if isinstance(kind, TimestampType | TimestampNTZType) else kind


def _contains_written(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_contains_written(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _contains_written(kind.elementType)
    if isinstance(kind, MapType):
        return _contains_written(kind.valueType)
    return isinstance(kind, _WRITTEN_AS)


def _any_written(fields: Sequence[StructField]) -> bool:
    return any(isinstance(field.dataType, _WRITTEN_AS) for field in fields)


def _read_as(fields: Sequence[StructField]) -> list[StructField]:
    """The fields with a variant for what a message may have a number or a text of: it keeps which, and all digits."""
    return [
        StructField(field.name, VariantType() if isinstance(field.dataType, _WRITTEN_AS) else field.dataType)
        for field in fields
    ]


def _row(state: Column, fields: Sequence[StructField], said: Column) -> tuple[Column, Column]:
    """The columns of a row, and whether each that has a value got one. said: what the message's schema says of them."""
    columns, fits = [], F.lit(True)
    for field in fields:
        value = state[field.name]
        if isinstance(field.dataType, _WRITTEN_AS):
            found = _value(value, field, said)
            fits = fits & (value.isNull() | F.is_variant_null(value) | found.isNotNull())
        else:
            found = value
        columns.append(found.alias(field.name))
    return F.struct(*columns), F.coalesce(fits, F.lit(False))


def _value(value: Column, field: StructField, said: Column) -> Column:
    """A variant as the type of its field; null where it is none."""
    kind = field.dataType
    known = F.get(F.filter(said, lambda each: each["field"] == field.name), F.lit(0))
    parts = F.struct(
        value.alias("value"),
        F.schema_of_variant(value).alias("written"),
        known["name"].alias("name"),
        known["parameters"]["scale"].alias("scale"),
    )
    if isinstance(kind, DecimalType):
        return once(parts, lambda given: _decimal(given, kind))
    return once(parts, lambda given: _day(given) if isinstance(kind, DateType) else _time(given, kind))


def _text(given: Column) -> Column:
    return F.when(given["written"] == "STRING", F.try_variant_get(given["value"], "$", "string"))


def _number(given: Column) -> Column:
    return F.when(given["written"] == "BIGINT", F.try_variant_get(given["value"], "$", "bigint"))


def _decimal(given: Column, kind: DecimalType) -> Column:
    """Of a number or its text; or of its digits, whose scale is in the schema or, where the column has none, beside."""
    scale = F.coalesce(given["scale"], F.lit("0")).try_cast("int")
    beside = F.try_variant_get(given["value"], "$.value", "string"), F.try_variant_get(given["value"], "$.scale", "int")
    return (
        F.when(given["name"] == _DECIMAL, F.when(given["written"] == "STRING", _unscaled(_text(given), scale, kind)))
        .when(given["written"].startswith("OBJECT"), _unscaled(*beside, kind))
        .when(given["written"] != "BOOLEAN", F.try_variant_get(given["value"], "$", kind.simpleString()))
    )


def _day(given: Column) -> Column:
    days = F.when(given["name"].isNull() | given["name"].isin(*_DATES), _number(given).try_cast("int"))
    return F.coalesce(F.date_from_unix_date(days), F.regexp_replace(_text(given), "Z$", "").try_cast("date"))


def _time(given: Column, kind: DataType) -> Column:
    number = _number(given)
    micros = F.coalesce(*(F.when(given["name"] == name, _micros(number, each)) for name, each in _MICROS.items()))
    return F.coalesce(_moment(micros, kind), _text(given).try_cast(kind))


def _micros(number: Column, factor: int | None) -> Column:
    """Microseconds of a number that has so many in each; None: it has nanoseconds."""
    if factor is None:
        return F.floor(number.cast("decimal(20,0)") / 1000).cast("bigint")
    return F.try_multiply(number, F.lit(factor).cast("bigint"))


def _moment(micros: Column, kind: DataType) -> Column:
    """The moment so many microseconds after 1970; where it has no zone, in UTC, as Debezium means it."""
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(micros)
    return F.timestamp_add("MICROSECOND", micros, F.expr("timestamp_ntz'1970-01-01 00:00:00'"))


def _unscaled(text: Column, scale: Column, kind: DecimalType) -> Column:
    """A decimal: base64 of its digits as a big-endian number in two's complement, and how many are behind the point."""
    digits = F.hex(F.try_to_binary(text, F.lit("base64")))
    sign = F.when(F.substring(digits, 1, 1) >= "8", F.lit("F")).otherwise(F.lit("0"))
    padded = F.when(F.length(digits).between(2, 32), F.lpad(digits, 32, sign))
    high = F.conv(F.substring(padded, 1, 16), 16, -10).cast("decimal(20,0)")
    low = F.conv(F.substring(padded, 17, 16), 16, 10).cast("decimal(20,0)")
    whole = F.try_add(F.try_multiply(high, F.lit("18446744073709551616").cast("decimal(20,0)")), low)
    return F.concat(whole.cast("string"), F.lit("E"), (-scale).cast("string")).try_cast(kind)
