"""How far a producer is in one partition, and for whom that is open (DescribeProducers)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code, only
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.wire.conditional_answer import ConditionalAnswer
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


def request(tp: TopicPartition) -> Any:
    """The request, for the partition's leader."""
    message = API[DESCRIBE_PRODUCERS].request
    return message.new(topics=[message.TopicRequest(name=tp.topic, partition_indexes=[tp.partition])])


def code_of(response: Any) -> int:
    """The partition's error code."""
    return int(_partition(response).error_code)


def progress_in(answer: ConditionalAnswer) -> ProducerProgress:
    """How far the producer is that a ConditionalAppend asked about, by what is committed. KafkaError."""
    if answer.code:
        raise KafkaError(answer.code, answer.message or answer.code.name)
    if answer.expected_sequence < 0:
        why = "the node is of an earlier release, which does not say how far a writer is"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, why)
    return ProducerProgress(answer.writer_epoch, answer.expected_sequence)


def opened_for(response: Any) -> OpenedFor | None:
    """For whom the partition is open; None where it is for nobody. KafkaError."""
    found = _partition(response)
    if found.error_code:
        raise KafkaError(error_code(found.error_code), found.error_message or "DescribeProducers")
    return None if found.writer_offset < 0 else OpenedFor(found.writer_name, found.writer_offset)


def _partition(response: Any) -> Any:
    return only(only(response.topics, "DescribeProducers").partitions, "DescribeProducers")
