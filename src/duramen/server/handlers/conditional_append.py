"""ConditionalAppend (key 10031, ours): append to one partition led here under conditions, close it, or ask.

Versions 0-1.

An error answer tells what the caller needs in order to go on: where the log ends, which sequence and which epoch of its
producer are known, whether the stream is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.model import INTERNAL_TOPICS, NO_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TOPIC_ID
from duramen.partition.replica.conditional_append import (
    ConditionalBatch,
    ConditionalResult,
    append_conditionally,
    end_of,
    own_code,
    producer_state,
)
from duramen.server.handlers.produce_fast_path import UNKNOWN_OUTCOME
from duramen.wire.batch import parse_header
from duramen.wire.messages.conditional_append import ConditionalAppendResponse

if TYPE_CHECKING:
    from duramen.partition.replica.partition import Partition
    from duramen.server.api.request import Request

NO_PRODUCER = ProducerEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
_OF_THE_PRODUCER = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
)


def find_stream(request: Request, topic_name: str, topic_id: bytes, index: int) -> Partition:
    """The partition that a request names by its topic's id or name. KafkaError where it may not be written or is not
    served here.
    """
    services = request.services
    name = topic_name if topic_id == NO_TOPIC_ID else services.image.topic_name(topic_id)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    if request.deny_topics((name,)):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not allowed to write to {name}")
    if name in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by its coordinator only")
    partition = services.partitions.find(name, index)
    if partition is None:
        raise KafkaError(services.partitions.absence(name, index), f"{name}-{index} is not served here")
    return partition


def handle(request: Request) -> None:
    """Append, close or look; reply when that is committed, or when the time is over."""
    call = ConditionalAppendCall(request)
    request.services.appends.wait_for(call)
    call.start()


class ConditionalAppendCall:
    """One request until it is answered."""

    __slots__ = ("_partition", "_producer", "_request", "deadline")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._partition: Partition | None = None
        self._producer = NO_PRODUCER
        self.deadline = request.started + max(request.body.timeout_ms, 0) / 1000

    def start(self) -> None:
        """See `handle`."""
        body, services = self._request.body, self._request.services
        try:
            if body.acks != -1:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, not {body.acks}")
            if body.expected_epoch != NO_EPOCH and body.expected_offset < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "expected_epoch goes with an expected_offset")
            self._partition = find_stream(self._request, body.topic_name, body.topic_id, body.partition)
        except KafkaError as error:
            self._settle(error)
            return
        services.cold_reads.busy_at = self._request.started
        self._producer = _producer_of(body.records)
        wanted = ConditionalBatch(body.records, body.expected_offset, body.close, body.producer_id, body.expected_epoch)
        append_conditionally(self._partition, wanted, services.clock.wall_ms(), self._settle)

    def expire(self) -> None:
        """The request's timeout passed."""
        self._settle(KafkaError(ErrorCode.REQUEST_TIMED_OUT, UNKNOWN_OUTCOME))

    def _settle(self, result: ConditionalResult | KafkaError) -> None:
        """The answer; one that comes after the timeout changes nothing."""
        self._request.services.appends.outstanding.pop(self, None)
        response = ConditionalAppendResponse.new()
        if self._partition is not None:
            _describe(response, self._partition)
        if isinstance(result, KafkaError):
            response.error_code = int(own_code(result))
            response.error_message = result.message
            if self._partition is not None:
                response.end_offset, response.end_epoch = end_of(self._partition, result)
            if self._partition is not None and result.code in _OF_THE_PRODUCER:
                _describe_producer(response, self._partition, self._producer)
        else:
            response.base_offset, response.last_offset = result.base_offset, result.last_offset
            response.log_append_time_ms = result.append_time_ms
            response.log_start_offset = result.log_start_offset
            response.end_offset, response.end_epoch = result.end_offset, result.end_epoch
            response.leader_epoch = result.leader_epoch
            response.duplicate = result.is_duplicate
            if result.writer is not None:
                response.expected_sequence, response.writer_epoch = result.writer
            if result.is_duplicate and self._partition is not None and self._producer != NO_PRODUCER:
                _describe_producer(response, self._partition, self._producer)
        self._request.reply(response)


def _describe(response: Any, partition: Partition) -> None:
    """How the log stands."""
    log = partition.log
    response.log_start_offset, response.leader_epoch = log.start_offset, partition.leader_epoch
    response.durability = int(log.stable)
    response.copies = len(partition.replication.isr)
    response.last_txid = -1 if partition.last_txid is None else partition.last_txid
    response.closed = partition.is_ended


def _producer_of(batch: memoryview | None) -> ProducerEpoch:
    try:
        header = None if batch is None else parse_header(batch)
    except KafkaError:
        header = None
    return NO_PRODUCER if header is None else ProducerEpoch(header.producer_id, header.producer_epoch)


def _describe_producer(response: Any, partition: Partition, wrote: ProducerEpoch) -> None:
    """Which epoch of the batch's producer is known, and which sequence has to come next in the batch's own epoch."""
    response.expected_sequence, response.writer_epoch = producer_state(partition, wrote.id, wrote.epoch)
