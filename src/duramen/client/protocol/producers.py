"""DescribeProducers for one producer of one partition: the epoch it writes in, and what has to come next from it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code, only
from duramen.errors import KafkaError
from duramen.model import NO_PRODUCER_EPOCH, TopicPartition
from duramen.wire.batch import MAX_SEQUENCE
from duramen.wire.messages import API

DESCRIBE_PRODUCERS: Final = 61


class ProducerProgress(NamedTuple):
    """epoch: -1 where the partition does not know the producer; next_sequence: what has to come next in that epoch."""

    epoch: int
    next_sequence: int


class OpenedFor(NamedTuple):
    """For whom an exclusive partition is open. offset: of the record that says so."""

    name: str
    offset: int


UNKNOWN: Final = ProducerProgress(NO_PRODUCER_EPOCH, 0)


def request(tp: TopicPartition) -> Any:
    """The request, for the partition's leader."""
    message = API[DESCRIBE_PRODUCERS].request
    return message.new(topics=[message.TopicRequest(name=tp.topic, partition_indexes=[tp.partition])])


def code_of(response: Any) -> int:
    """The partition's error code."""
    return int(_partition(response).error_code)


def parsed(response: Any, producer_id: int) -> ProducerProgress:
    """How far a producer is. KafkaError."""
    found = _partition(response)
    if found.error_code:
        raise KafkaError(error_code(found.error_code), found.error_message or "DescribeProducers")
    for producer in found.active_producers:
        if producer.producer_id == producer_id:
            return ProducerProgress(producer.producer_epoch, (producer.last_sequence + 1) & MAX_SEQUENCE)
    return UNKNOWN


def opened_for(response: Any) -> OpenedFor | None:
    """For whom the partition is open; None where it is for nobody. KafkaError."""
    found = _partition(response)
    if found.error_code:
        raise KafkaError(error_code(found.error_code), found.error_message or "DescribeProducers")
    return None if found.writer_offset < 0 else OpenedFor(found.writer_name, found.writer_offset)


def _partition(response: Any) -> Any:
    return only(only(response.topics, "DescribeProducers").partitions, "DescribeProducers")
