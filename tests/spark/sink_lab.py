"""What the tests of the sink share: a data source with faults at named points, and reading back what was written."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import fault_points
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from duramen.client import EARLIEST, LATEST, Cluster
from duramen.model import TopicPartition
from duramen.pipelines.jvm.session import make_active
from duramen.spark.datasource import DuramenDataSource
from duramen.spark.sink.sink import batch_writer, stream_writer
from duramen.spark.sink.sink_points import Points
from duramen.spark.source.stream_reader import DuramenStreamReader
from duramen.wire.batch import Record, batches, records

# Spark's workers cannot import these modules: their classes travel whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(fault_points)

SOURCE = "duramen_with_faults"
BEFORE_PLAN = "before-plan-"
"""Driver, with the topic's name: all that came before is in the checkpoint, and nothing of the next batch."""


def register(spark: SparkSession, points: Points) -> None:
    """Make `format(SOURCE)` the source of streams and the sink with these points."""

    class PlannedAtPoints(DuramenStreamReader):
        point = ""

        def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802
            points.reach(self.point)
            return super().latestOffset(start, limit)

    class Faulty(DataSource):
        @classmethod
        def name(cls) -> str:
            return SOURCE

        def schema(self) -> str:
            return DuramenDataSource(self.options).schema()

        def streamReader(self, schema: StructType) -> Any:  # noqa: N802
            reader = PlannedAtPoints(self.options, schema)
            reader.point = BEFORE_PLAN + self.options["subscribe"]
            return reader

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            return batch_writer(self.options, schema, overwrite, points)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            return stream_writer(self.options, schema, points)

    make_active(spark)  # where Spark looks for it, whatever other tests have left there
    spark.dataSource.register(Faulty)


def create_topic(bootstrap: str, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, config=dict(configs or {}))])[topic].result(30)


def read_all(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    """Every record of the topic that a reader sees, by partition."""
    found: dict[int, list[Record]] = {}
    with Cluster(bootstrap) as cluster:
        for number in cluster.partitions(topic):
            tp = TopicPartition(topic, number)
            position = cluster.list_offsets({tp: EARLIEST})[tp].offset
            end = cluster.list_offsets({tp: LATEST}, 1)[tp].offset
            found[number] = []
            while position < end:
                data = cluster.fetch(tp, position, 8 << 20, 1).data
                for at, header in batches(data):
                    if not header.is_control:
                        found[number] += records(data[at : at + header.size], header, max_bytes=1 << 24)
                    position = header.next_offset
    return found


def values(bootstrap: str, topic: str) -> Counter[bytes | None]:
    return Counter(record.value for rows in read_all(bootstrap, topic).values() for record in rows)
