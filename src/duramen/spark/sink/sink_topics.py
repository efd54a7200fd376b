"""What a task has to know of a topic before it writes there: how many partitions, and how large a batch may be."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple, Protocol

from duramen.client.protocol.routes import ANY, Route
from duramen.errors import ErrorCode, KafkaError
from duramen.wire.batch import HEADER_SIZE
from duramen.wire.messages import API

DESCRIBE_CONFIGS: Final = 32
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_log = logging.getLogger(__name__)
_TOPIC: Final = 2  # among the kinds of resources that have configurations


class Asked(Protocol):
    """What of `client.Cluster` is used here."""

    def partitions(self, topic: str, *, create: bool = False) -> list[int]: ...

    def call(self, route: Route, key: int, request: Any) -> Any: ...


class TopicLimits(NamedTuple):
    """partitions: their number; batch_bytes: of a batch's records before compression."""

    partitions: int
    batch_bytes: int


def partitions_to_write(cluster: Asked, topic: str) -> int:
    """How many partitions the topic has, asked now. One that is not there is made as for any producer, where the
    cluster makes topics by itself; else KafkaError UNKNOWN_TOPIC_OR_PARTITION with the line to type.
    """
    try:
        return len(cluster.partitions(topic))
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    try:
        count = len(cluster.partitions(topic, create=True))
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise KafkaError(
            error.code,
            f"topic {topic} does not exist, and the cluster makes none by itself (auto.create.topics.enable): "
            f"duramen topic create {topic} --partitions 3",
        ) from None
    _log.warning("topic %s did not exist: the cluster has made it, with %d partitions", topic, count)
    return count


def topic_limits(cluster: Asked, topic: str, batch_bytes: int) -> TopicLimits:
    """The topic's limits, asked now; batches never larger than `batch_bytes`.

    A cluster that does not let its settings be read is taken to have Kafka's defaults: what is too large it refuses.
    Errors are those of `partitions_to_write`.
    """
    partitions = partitions_to_write(cluster, topic)
    message = API[DESCRIBE_CONFIGS].request
    wanted = message.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=[MAX_MESSAGE_BYTES]
    )
    for result in cluster.call(ANY, DESCRIBE_CONFIGS, message.new(resources=[wanted])).results:
        for entry in result.configs if result.error_code == ErrorCode.NONE else []:
            if entry.name == MAX_MESSAGE_BYTES and entry.value:
                return TopicLimits(partitions, max(1, min(batch_bytes, _room(int(entry.value)))))
    return TopicLimits(partitions, batch_bytes)


def _room(max_message_bytes: int) -> int:
    """Records that fit even if they cannot be compressed, which makes them a little larger."""
    return max_message_bytes - HEADER_SIZE - max_message_bytes // 64
