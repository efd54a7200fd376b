"""The columns of the source: those of Spark's Kafka source, and the value as typed fields with `_corrupt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from duramen.errors import ConfigError

_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
CORRUPT: Final = "_corrupt"
_FROM_JSON: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_timestamp,
)
"""What a scalar of a JSON value may become; dates and maps are not among them."""


def columns(options: Mapping[str, Any]) -> dict[str, str]:
    """Every column that these options offer, with its type as DDL, in order."""
    found = dict(_TYPES)
    if not options["includeHeaders"]:
        del found["headers"]
    if options["valueFormat"] != "binary":
        found["value"] = "string" if options["valueFormat"] == "string" else f"struct<{_fields(options)}>"
        found[CORRUPT] = "string"
    elif options["valueSchema"] is not None:
        raise ConfigError("valueSchema needs valueFormat=json")
    return found


def _fields(options: Mapping[str, Any]) -> str:
    if not options["valueSchema"]:
        raise ConfigError("valueFormat=json needs valueSchema: the fields, as DDL (`id bigint, name string`)")
    return str(options["valueSchema"])


def ddl(options: Mapping[str, Any]) -> str:
    """The schema without one of the user's: all columns, or those of the option `columns` in its order."""
    offered = columns(options)
    wanted = options["columns"] or list(offered)
    if unknown := [name for name in wanted if name not in offered]:
        hint = "; headers need includeHeaders" if unknown[0] == "headers" else ""
        raise ConfigError(f"columns: there is no column {unknown[0]}, there are {', '.join(offered)}{hint}")
    return ", ".join(f"`{name}` {offered[name]}" for name in wanted)


def arrow_schema(schema: StructType, options: Mapping[str, Any]) -> pa.Schema:
    """The schema in Arrow as Spark expects it. Raises ConfigError for a column that the source does not offer so."""
    offered = columns(options)
    for field in schema.fields:
        if field.name not in offered:
            hint = "; headers need includeHeaders" if field.name == "headers" else ""
            raise ConfigError(f"there is no column {field.name}, there are {', '.join(offered)}{hint}")
        actual = field.dataType.simpleString()
        if not (field.name == "value" and options["valueFormat"] == "json") and actual != offered[field.name]:
            raise ConfigError(f"column {field.name} is {offered[field.name]}, not {actual}")
    try:
        made = to_arrow_schema(schema, timezone="UTC")
    except PySparkTypeError as error:  # of a field in valueSchema: the other columns have types of their own
        raise ConfigError(f"valueSchema has a field that JSON is not read as; make it a string: {error}") from None
    if options["valueFormat"] == "json" and "value" in made.names:
        _check_json(made.field("value").type, "value")
    elif options["valueFormat"] == "json" and CORRUPT in made.names:
        raise ConfigError(f"column {CORRUPT} needs column value: whether a row decodes is known by its fields")
    return made


def _check_json(kind: pa.DataType, path: str) -> None:
    """That Arrow's JSON reader can make this type. Raises ConfigError naming the field."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        for field in kind:
            place = f"{path}.{field.name}"
            if names.count(field.name) > 1:
                raise ConfigError(f"valueSchema: there are two fields {place}")
            if not field.nullable:
                raise ConfigError(
                    f"valueSchema: {place} is NOT NULL, which a row that lacks it cannot be; leave that away"
                )
            _check_json(field.type, place)
    elif pa.types.is_list(kind):
        _check_json(kind.value_type, f"{path}[]")
    elif not any(fits(kind) for fits in _FROM_JSON):
        raise ConfigError(f"valueSchema: {path} is {kind}, which JSON is not read as; make it a string and cast it")
