"""Produce requests: finished record batches, one per partition and request."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code, only
from duramen.client.protocol.routes import ANY, TRANSACTION, CoordinatorKey, Route
from duramen.errors import KafkaError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition
from duramen.ports import Buffer
from duramen.wire.batch import parse_header
from duramen.wire.messages import API

PRODUCE: Final = 0
INIT_PRODUCER_ID: Final = 22
LAST_BY_NAME: Final = 12


class Produced(NamedTuple):
    """Where a batch went: offset of its first record, time of the append if the topic stamps it (ms, else -1)."""

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


NOT_ASKED: Final = Produced(-1, -1, -1)
"""With acks=0 nothing is answered."""


def request(tp: TopicPartition, batch: Buffer, acks: int, topic_id: TopicId, timeout_ms: int) -> tuple[Any, int | None]:
    """A Produce request with one batch, and the highest version it can be sent in."""
    message = API[PRODUCE].request
    data = message.PartitionProduceData(index=tp.partition, records=batch)
    topic = message.TopicProduceData(name=tp.topic, topic_id=topic_id, partition_data=[data])
    highest = LAST_BY_NAME if topic_id == NO_TOPIC_ID else None
    return message.new(acks=acks, timeout_ms=timeout_ms, topic_data=[topic]), highest


def parsed(response: Any, tp: TopicPartition) -> Produced:
    """Where the one batch went; KafkaError when it was refused."""
    answer = only(only(response.responses, str(tp)).partition_responses, str(tp))
    code = error_code(answer.error_code)
    if code:
        raise KafkaError(code, f"{tp}: {answer.error_message or code.name}")
    return Produced(answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)


def id_request(transactional_id: str | None, timeout_ms: int) -> tuple[Route, Any]:
    """InitProducerId, and where it goes. timeout_ms: of transactions."""
    route: Route = ANY if transactional_id is None else CoordinatorKey(transactional_id, TRANSACTION)
    message = API[INIT_PRODUCER_ID].request
    return route, message.new(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)


def id_code(response: Any) -> int:
    """The error code of an InitProducerId response."""
    return int(response.error_code)


def id_parsed(response: Any) -> tuple[int, int]:
    """(producer id, producer epoch); KafkaError when it was refused."""
    if response.error_code:
        raise KafkaError(error_code(response.error_code), "InitProducerId")
    return response.producer_id, response.producer_epoch


def may_resend(batch: Buffer) -> bool:
    """Whether the partition knows the batch again when it comes twice: it carries a producer id."""
    return parse_header(batch).producer_id >= 0
