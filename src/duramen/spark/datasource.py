"""What Spark knows by the name `duramen`: the data source, which only hands out readers and writers.

Spark starts a process to ask for the schema and one to plan, for every query: each imports what it uses, when it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from duramen.spark.options.table_entries import without_table_entries

if TYPE_CHECKING:
    from duramen.spark.sink.sink import BatchSink, StreamSink
    from duramen.spark.source.batch_reader import DuramenReader
    from duramen.spark.source.stream_reader import DuramenStreamReader


class DuramenDataSource(DataSource):
    """`format("duramen")`. Spark makes one per query from its options, whose names it hands over in lower case."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(dict(without_table_entries(options)))

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "duramen"

    def schema(self) -> str:
        """The columns as DDL, for a query that brings no schema. Raises ConfigError for options that cannot be."""
        from duramen.spark.codec.schema import ddl
        from duramen.spark.options.options import any_query

        return ddl(any_query(self.options))

    def reader(self, schema: StructType) -> DuramenReader:
        """Of `spark.read`."""
        from duramen.spark.source.batch_reader import DuramenReader

        return DuramenReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DuramenStreamReader:  # noqa: N802
        """Of `spark.readStream`."""
        from duramen.spark.source.stream_reader import DuramenStreamReader

        return DuramenStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Of `df.write`."""
        from duramen.spark.sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Of `df.writeStream`; `overwrite` is output mode complete, in which every batch is appended as it is."""
        from duramen.spark.sink.sink import stream_writer

        return stream_writer(self.options, schema)
