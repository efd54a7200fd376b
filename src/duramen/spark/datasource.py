"""What Spark knows by the name `duramen`: the data source, which only hands out readers and writers."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from duramen.spark import source_schema
from duramen.spark.options import any_query
from duramen.spark.sink import BatchSink, StreamSink, batch_writer, stream_writer
from duramen.spark.source_batch import DuramenReader
from duramen.spark.source_stream import DuramenStreamReader


class DuramenDataSource(DataSource):
    """`format("duramen")`. Spark makes one per query from its options, whose names it hands over in lower case."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "duramen"

    def schema(self) -> str:
        """The columns as DDL, for a query that brings no schema. Raises ConfigError for options that cannot be."""
        return source_schema.ddl(any_query(self.options))

    def reader(self, schema: StructType) -> DuramenReader:
        """Of `spark.read`."""
        return DuramenReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DuramenStreamReader:  # noqa: N802
        """Of `spark.readStream`."""
        return DuramenStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Of `df.write`."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Of `df.writeStream`; `overwrite` is output mode complete, in which every batch is appended as it is."""
        return stream_writer(self.options, schema)
