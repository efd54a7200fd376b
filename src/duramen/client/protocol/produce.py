"""Produce requests: finished record batches, one per partition and request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code, only
from duramen.client.protocol.routes import ANY, TRANSACTION, CoordinatorKey, Route
from duramen.errors import ErrorCode, KafkaError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition
from duramen.ports import Buffer
from duramen.wire.batch import parse_header
from duramen.wire.messages import API

PRODUCE: Final = 0
INIT_PRODUCER_ID: Final = 22
LAST_BY_NAME: Final = 12


class ProduceReceipt(NamedTuple):
    """How safe a batch is: the leader epoch in which it was stored, stable storage or page cache, and how many in-sync
    replicas have it; is_duplicate: it was there already."""

    leader_epoch: int
    is_stable: bool
    copies: int
    is_duplicate: bool


class Produced(NamedTuple):
    """Where a batch went: offset of its first record, time of the append if the topic stamps it (ms, else -1).

    receipt: where it was asked for, and a node of Duramen's answered.
    """

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    receipt: ProduceReceipt | None = None


NOT_ASKED: Final = Produced(-1, -1, -1)
"""With acks=0 nothing is answered."""


def request(
    tp: TopicPartition,
    batches: Sequence[Buffer],
    acks: int,
    topic_id: TopicId,
    timeout_ms: int,
    *,
    receipts: bool = False,
) -> tuple[Any, int | None]:
    """A Produce request with one batch (or several of different producers, to a node of Duramen's), and the highest
    version it can be sent in."""
    message = API[PRODUCE].request
    shares = [message.PartitionProduceData(index=tp.partition, records=batch) for batch in batches]
    topic = message.TopicProduceData(name=tp.topic, topic_id=topic_id, partition_data=shares)
    highest = LAST_BY_NAME if topic_id == NO_TOPIC_ID else None
    return message.new(acks=acks, timeout_ms=timeout_ms, topic_data=[topic], receipts=receipts), highest


def parsed(response: Any, tp: TopicPartition) -> Produced:
    """Where the one batch went; KafkaError when it was refused."""
    (answer,) = outcomes_of(response, tp, 1)
    if isinstance(answer, KafkaError):
        raise answer
    return answer


def outcomes_of(response: Any, tp: TopicPartition, count: int) -> list[Produced | KafkaError]:
    """Where each of so many batches for one partition went, or what refused it. KafkaError for another answer."""
    answers = only(response.responses, str(tp)).partition_responses
    if len(answers) != count:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{tp}: {len(answers)} answers to {count} batches")
    return [_outcome(answer, tp) for answer in answers]


def _outcome(answer: Any, tp: TopicPartition) -> Produced | KafkaError:
    code = error_code(answer.error_code)
    if code:
        return KafkaError(code, f"{tp}: {answer.error_message or code.name}")
    given = answer.receipt
    receipt = None
    if given.leader_epoch >= 0:
        receipt = ProduceReceipt(given.leader_epoch, bool(given.durability), given.copies, given.duplicate)
    return Produced(answer.base_offset, answer.log_append_time_ms, answer.log_start_offset, receipt)


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
