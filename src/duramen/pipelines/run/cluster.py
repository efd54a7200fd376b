"""What pipelines ask of a node beside Spark: ends of topics, a topic like another, one record."""

from __future__ import annotations

from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from duramen.client import Cluster
from duramen.errors import DuramenError, ErrorCode, NothingThereError
from duramen.errors import KafkaError as ClientError
from duramen.librdkafka import LibraryConsumer
from duramen.model import NO_TOPIC_ID, topic_id_text
from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.spark.options.first_contact import FIRST_CONTACT_S
from duramen.spark.sink.sink_calls import COMMITTED, DESCRIBE, SinkCalls

SECONDS_MAX = 15.0


class UnreachableError(DuramenError):
    """The node did not answer, or refused."""


class PipelineNode:
    """The node at an address. UnreachableError from every method but those that say otherwise when it is not there."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "error_cb": lambda _error: None,
        }

    def ends(self, topic: str) -> Offsets:
        """The end of every partition; nothing when there is no such topic."""
        return self._offsets(topic, cast(Any, OffsetSpec).latest())

    def topic_id(self, topic: str) -> str:
        """The topic's id as text; nothing where the cluster has none. Errors are those of `client.Cluster`."""
        with self._cluster() as cluster:
            found = cluster.metadata([topic]).topics[topic].topic_id
        return "" if found == NO_TOPIC_ID else topic_id_text(found)

    def starts(self, topic: str) -> Offsets:
        """The first offset that every partition still has."""
        return self._offsets(topic, cast(Any, OffsetSpec).earliest())

    def _offsets(self, topic: str, spec: OffsetSpec) -> Offsets:
        try:
            admin = self._admin()
            found = admin.list_topics(timeout=SECONDS_MAX).topics
            if topic not in found:
                return Offsets()
            asked = {TopicPartition(topic, number): spec for number in found[topic].partitions}
            answers = admin.list_offsets(asked, request_timeout=SECONDS_MAX)
            return Offsets({(topic, tp.partition): answer.result(SECONDS_MAX).offset for tp, answer in answers.items()})
        except KafkaException as error:
            raise self._unreachable(error) from None

    def unread(self, sink: str) -> int | None:
        """The last batch of a sink that is committed and on its way: not all of it is in its topic, and will be.

        None where there is no such batch, and where there is no such sink. Errors are those of `client.Cluster`.
        """
        told = self._described(sink)
        batches = told.batches if told is not None else ()
        return max((batch.batch_id for batch in batches if batch.state == COMMITTED), default=None)

    def written(self, sink: str) -> int | None:
        """The last batch of a sink; None where it has none, also where the cluster knows no sinks, which the sink tells
        of. Errors are those of `client.Cluster`."""
        with self._cluster() as cluster:
            if not cluster.api_versions().serves(DESCRIBE):
                return None
        told = self._described(sink)
        return None if told is None or told.last_batch_id < 0 else int(told.last_batch_id)

    def _described(self, sink: str) -> Any | None:
        """The DescribeSink response; None where there is no such sink."""
        with self._cluster() as cluster:
            try:
                return SinkCalls(cluster, sink, timeout_s=SECONDS_MAX, wait_s=SECONDS_MAX).describe()
            except ClientError as error:
                if error.code is ErrorCode.RESOURCE_NOT_FOUND:
                    return None
                raise

    def create_like(self, topic: str, model: str | None, *, settings: bool = False, compacted: bool = False) -> None:
        """Create a topic with as many partitions as `model` has, each with as many copies; nothing when it is there or
        the model is not.

        model: None for the partitions and copies that the cluster has for new topics. settings: with those that were
        given to the model itself, too. compacted: keeps the latest record of each key.
        """
        try:
            admin = self._admin()
            found = admin.list_topics(timeout=SECONDS_MAX).topics
            if topic in found or (model is not None and model not in found):
                return
            config = self._given(admin, model) if settings and model is not None else {}
            config |= {"cleanup.policy": "compact"} if compacted else {}
            partitions = copies = -1  # as the cluster has it
            if model is not None:
                places = found[model].partitions.values()
                partitions, copies = len(places), max(len(each.replicas) for each in places)
            wanted = NewTopic(topic, num_partitions=partitions, replication_factor=copies, config=config)
            for created in admin.create_topics([wanted], operation_timeout=SECONDS_MAX).values():
                created.result(SECONDS_MAX)
        except KafkaException as error:
            raise self._unreachable(error) from None

    def _given(self, admin: AdminClient, topic: str) -> dict[str, str]:
        (asked,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        ours = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: entry.value for name, entry in asked.result(SECONDS_MAX).items() if entry.source == ours}

    def record(self, cause: Cause) -> tuple[bytes | None, bytes | None] | None:
        """Key and value of a record; None when it is gone. UnreachableError, too, where the node does not say."""
        start = self.starts(cause.topic).end(cause.topic, cause.partition)
        if not start <= cause.offset < self.ends(cause.topic).end(cause.topic, cause.partition):
            return None
        reading = {
            "group.id": "duramen-trace",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",  # whatever the row was made of
        }
        consumer = LibraryConsumer({**self._settings, **reading})
        try:
            consumer.assign([TopicPartition(cause.topic, cause.partition, cause.offset)])
            message = consumer.poll(SECONDS_MAX)
            if message is None:
                raise UnreachableError(f"the node at {self.bootstrap} did not read {cause} in {SECONDS_MAX:.0f} s")
            if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            found = error is None and message.offset() == cause.offset
            return (message.key(), message.value()) if found else None
        except KafkaException as error:
            raise self._unreachable(error) from None
        finally:
            consumer.close()

    def _cluster(self) -> Cluster:
        return Cluster(self.bootstrap, timeout_s=SECONDS_MAX, first_contact_s=FIRST_CONTACT_S)

    def _admin(self) -> AdminClient:
        """Of librdkafka, which tries on for its whole time limit where nothing listens: so that is asked first."""
        try:
            with self._cluster() as cluster:
                cluster.api_versions()
        except NothingThereError as error:
            raise UnreachableError(str(error)) from None
        return AdminClient(self._settings)

    def _unreachable(self, error: KafkaException) -> UnreachableError:
        return UnreachableError(f"the node at {self.bootstrap} does not answer: {error.args[0].str()}")
