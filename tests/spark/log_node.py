"""A served node for the tests of Spark, and a way to put records and whole batches into it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.worlds.served_node import Served

from duramen.client import Cluster
from duramen.model import TopicPartition
from duramen.wire.batch import NewRecord, build_batch


class LogNode(Served):
    """One process; `append` writes batches as they are."""

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """A topic, by its name; dots in the names of settings are underscores here."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(20)
        return topic

    def delete(self, topic: str) -> None:
        """The topic goes, and its records with it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([topic], operation_timeout=20)[topic].result(20)

    def grow(self, topic: str, partitions: int) -> None:
        """Give it so many partitions."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)

    def append(self, topic: str, partition: int, records: Sequence[NewRecord], codec: int = 0) -> int:
        """One batch; the offset of its first record."""
        with Cluster(self.bootstrap) as cluster:
            return cluster.produce(
                TopicPartition(topic, partition), build_batch(records, compression=codec)
            ).base_offset

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Move the log's start."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_records([Place(topic, partition, offset)]).values():
            future.result(20)


@contextmanager
def log_node(folder: Path, **settings: str) -> Iterator[LogNode]:
    """A node that is killed at the end; dots in the names of settings are underscores here."""
    node = LogNode(folder, {name.replace("_", "."): value for name, value in settings.items()})
    node.start()
    try:
        yield node
    finally:
        node.kill()
