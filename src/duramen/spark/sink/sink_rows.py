"""A table on its way into topics: which columns it may have, and its rows grouped by topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from duramen.errors import ConfigError, ErrorCode, KafkaError
from duramen.spark.codec.encode.records import Rows

Ints = np.ndarray[Any, Any]

COLUMNS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")
"""What is read of a table; further columns are left alone, as Spark's Kafka sink does."""


def check_schema(schema: StructType, topic: str | None) -> None:
    """ConfigError unless the table can be written: Spark's Kafka sink's rules, and a `timestamp` beside them."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if topic is None and "topic" not in kinds:
        raise ConfigError("the option topic is required when the table has no column topic")
    if "value" not in kinds:
        raise ConfigError("the table has no column value")
    for name, wanted, allowed in (
        ("topic", "string", (StringType,)),
        ("key", "string or binary", (StringType, BinaryType)),
        ("value", "string or binary", (StringType, BinaryType)),
        ("partition", "int", (IntegerType,)),
        ("timestamp", "timestamp", (TimestampType,)),
    ):
        if name in kinds and not isinstance(kinds[name], allowed):
            raise ConfigError(f"column {name} must be {wanted}, it is {kinds[name].simpleString()}")
    if "headers" in kinds and not _are_headers(kinds["headers"]):
        shape = "array<struct<key:string,value:binary>>"
        raise ConfigError(f"column headers must be {shape}, it is {kinds['headers'].simpleString()}")


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    return [(field.name, type(field.dataType)) for field in kind.elementType.fields] == [
        ("key", StringType),
        ("value", BinaryType),
    ]


class TopicRows:
    """Rows of one topic: what goes into their records, and the partition where the table names one."""

    def __init__(self, topic: str, rows: Rows, partitions: pa.Array | None, numbers: Ints) -> None:
        self.topic = topic
        self.rows = rows
        self.partitions = partitions
        self.numbers = numbers
        """int64[n]: which row of the task each one is."""


def by_topic(table: pa.Table, topic: str | None, first_number: int) -> Iterator[TopicRows]:
    """The rows of a table by topic, in their order; `topic` outranks the column.

    first_number: how many rows the task had before. Raises KafkaError for a row without a topic or with a time before
    1970.
    """
    numbers = first_number + np.arange(len(table), dtype=np.int64)
    if topic is not None:
        yield _rows(topic, table, numbers)
        return
    names = _one_chunk(table, "topic")
    if names.null_count:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "a row's topic is null; the option topic sets one for all rows"
        )
    coded = pc.dictionary_encode(names)
    codes = np.asarray(coded.indices)
    for code, name in enumerate(coded.dictionary.to_pylist()):
        chosen = np.flatnonzero(codes == code)
        whole = len(chosen) == len(table)
        yield _rows(name, table if whole else table.take(pa.array(chosen)), numbers[chosen])


def _rows(topic: str, table: pa.Table, numbers: Ints) -> TopicRows:
    names = set(table.column_names)
    rows = Rows(
        _one_chunk(table, "key") if "key" in names else None,
        _one_chunk(table, "value"),
        _one_chunk(table, "headers") if "headers" in names else None,
        _times(table),
    )
    return TopicRows(topic, rows, _one_chunk(table, "partition") if "partition" in names else None, numbers)


def _one_chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _times(table: pa.Table) -> Ints:
    """int64[n] in ms; now, where a row has none."""
    now = int(time.time() * 1000)
    if "timestamp" not in table.column_names:
        return np.full(len(table), now, np.int64)
    column = _one_chunk(table, "timestamp").cast(pa.timestamp("us")).cast(pa.int64())
    times = np.asarray(column.fill_null(now * 1000)) // 1000
    if len(times) and times.min() < 0:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a row's timestamp lies before 1970, which a record cannot say")
    return times
