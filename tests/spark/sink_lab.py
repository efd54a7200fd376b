"""What the tests of the sink share: a data source with faults at named points, and reading back what was written."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from duramen.client import EARLIEST, LATEST, Cluster
from duramen.errors import DuramenError
from duramen.model import TopicPartition
from duramen.spark.sink import batch_writer, stream_writer
from duramen.spark.sink_points import Points
from duramen.wire.batch import Record, batches, records

# Spark's workers cannot import this module: its classes travel whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SOURCE = "duramen_with_faults"


class InjectedError(DuramenError):
    """A failure that a test put in the sink's way."""


class FaultPoints(Points):
    """Does at a point what the file of that name in `folder` says, once, in whichever process gets there first.

    raise; kill (this process); kill PID; kill PID SECONDS (that much later, while the sink goes on).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def reach(self, point: str) -> None:
        place = os.path.join(self.folder, point)
        taken = f"{place}.taken-{os.getpid()}"
        try:
            os.rename(place, taken)
        except FileNotFoundError:
            return
        action, *numbers = Path(taken).read_text().split()
        Path(taken).rename(f"{place}.done")
        if action == "raise":
            raise InjectedError(f"injected at {point}")
        victim = int(numbers[0]) if numbers else os.getpid()
        if len(numbers) > 1:
            threading.Timer(float(numbers[1]), _kill, [victim]).start()
        else:
            _kill(victim)

    def set(self, point: str, action: str) -> None:
        """Arm a point; atomically, for it may be passed right now."""
        new = Path(self.folder, f"{point}.new")
        new.write_text(action)
        new.rename(Path(self.folder, point))

    def fired(self, point: str) -> bool:
        return Path(self.folder, f"{point}.done").exists()

    def clear(self, point: str) -> None:
        for ending in ("", ".done"):
            Path(self.folder, point + ending).unlink(missing_ok=True)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def register(spark: SparkSession, points: Points) -> None:
    """Make `format(SOURCE)` the sink with these points."""

    class Faulty(DataSource):
        @classmethod
        def name(cls) -> str:
            return SOURCE

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            return batch_writer(self.options, schema, overwrite, points)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            return stream_writer(self.options, schema, points)

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
