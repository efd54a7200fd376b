"""Produce: append record batches to partitions led here. Versions 3-13; 0-2 are advertised and refused.

Each partition of a request stands or falls alone. The reply leaves when every partition's acks are satisfied or the
request's timeout has passed; a timeout says that the outcome is unknown, not that nothing was stored.

v5 log start offset in the reply · v7 zstd (KIP-110) · v8 error text and per-record errors (KIP-467) · v9 flexible ·
v10 leader hints (KIP-951) · v11 TRANSACTION_ABORTABLE · v12 partitions join transactions (KIP-890) · v13 topic ids
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack, unpack_from
from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode, KafkaError
from duramen.model import INTERNAL_TOPICS
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.api.leader_hints import NOT_THE_LEADER, LeaderHints
from duramen.server.api.request import ApiRow, Request
from duramen.server.api.transactional_appends import TransactionalBatch
from duramen.server.handlers.produce_fast_path import (
    FIRST_VERSION_WITH_LEADER_HINTS,
    FIRST_VERSION_WITH_TOPIC_IDS,
    UNKNOWN_OUTCOME,
    Destination,
    ProduceRequest,
    fill_error,
)
from duramen.server.net.steps import STEP, Steps
from duramen.wire.batch import codec_of, transactional_producer
from duramen.wire.compression import ZSTD
from duramen.wire.messages.produce import ProduceResponse

if TYPE_CHECKING:
    from duramen.server.api.services import Services
    from duramen.server.net.connection import ClientConnection

FIRST_VERSION_WITH_ZSTD = 7
REFUSED_VERSIONS = (0, 1, 2)
_PartitionResponse = ProduceResponse.PartitionProduceResponse
_TopicResponse = ProduceResponse.TopicProduceResponse


class ProduceCall:
    """One Produce request until all its partitions have answered."""

    __slots__ = ("_hints", "acks", "deadline", "ends", "failed", "open", "request", "response")

    def __init__(self, request: Request, acks: int, deadline: float) -> None:
        self.request = request
        self.acks = acks
        self.deadline = deadline
        self.open: dict[int, Any] = {}
        self.failed: str | None = None
        self._hints: LeaderHints | None = None
        # Where the log ended when each batch came, by number; None where no receipts were asked for.
        self.ends: dict[int, int] | None = {} if request.body.receipts else None
        self.response = ProduceResponse.new(responses=[])

    def settle(self, number: int, result: Appended | KafkaError, partition: Partition | None = None) -> None:
        """One partition has its answer; late answers after a timeout change nothing."""
        entry = self.open.pop(number, None)
        if entry is None:
            return
        if isinstance(result, KafkaError):
            self.fail(entry, result, None if partition is None else partition.tp.topic, partition)
        else:
            entry.base_offset = result.base_offset
            entry.log_append_time_ms = result.append_time_ms
            entry.log_start_offset = result.log_start_offset
            if self.ends is not None and partition is not None and result.base_offset >= 0:
                entry.receipt = self._receipt(partition, result.base_offset, self.ends[number])
        if not self.open:
            self.finish()

    def _receipt(self, partition: Partition, base_offset: int, end: int) -> Any:
        """A batch below where the log ended had been stored before."""
        log = partition.log
        return ProduceResponse.ProduceReceipt(
            leader_epoch=log.epochs.epoch_at(base_offset),
            durability=int(log.stable),
            copies=1 if self.acks == 1 else len(partition.replication.isr),
            duplicate=base_offset < end,
        )

    def fail(self, entry: Any, error: KafkaError, topic: str | None, partition: Partition | None = None) -> None:
        """Answer for one partition that its batch was not appended, or that its outcome is not known."""
        self.failed = fill_error(entry, error, partition)
        if error.code in NOT_THE_LEADER and self.request.version >= FIRST_VERSION_WITH_LEADER_HINTS:
            if self._hints is None:
                self._hints = LeaderHints(self.request, ProduceResponse)
                self.response.node_endpoints = self._hints.endpoints
            self._hints.name(entry, topic, entry.index)
        if self.acks == 0:  # no reply tells it
            self.request.count_errors({int(error.code): 1})

    def finish(self) -> None:
        self.request.services.appends.outstanding.pop(self, None)
        if self.acks == 0:
            if self.failed is not None:
                # Nobody waits for a reply; hanging up is how the producer learns to look for the leader again.
                self.request.drop_connection(f"a produce with acks=0 failed: {self.failed}")
            self.request.reply_nothing()
        else:
            self.request.reply(self.response)

    def expire(self) -> None:
        """The request's timeout passed: what is still open is answered "unknown"."""
        for number in list(self.open):
            self.settle(number, KafkaError(ErrorCode.REQUEST_TIMED_OUT, UNKNOWN_OUTCOME))


class LargeProduceCall(ProduceCall):
    """The same for one whose batches are taken in steps, and whose reply is encoded beside the loop."""

    __slots__ = ("_all_taken",)

    def __init__(self, request: Request, acks: int, deadline: float) -> None:
        super().__init__(request, acks, deadline)
        self._all_taken = False

    def settle_last(self) -> None:
        """All batches have been taken."""
        self._all_taken = True
        if not self.open:
            self.finish()

    def finish(self) -> None:
        if not self._all_taken:
            return
        if self.acks == 0:
            super().finish()
        else:
            self.request.services.appends.outstanding.pop(self, None)
            if not self.request.connection.closed:
                self.request.reply_in_steps(_made(self.response), begun=True)


def _made(response: Any) -> Steps:
    yield
    return response


class _Done:
    """The callback of one partition's append."""

    __slots__ = ("_call", "_number", "_partition")

    def __init__(self, call: ProduceCall, number: int, partition: Partition) -> None:
        self._call = call
        self._number = number
        self._partition = partition

    def __call__(self, result: Appended | KafkaError) -> None:
        self._call.settle(self._number, result, self._partition)


def handle(request: Request) -> None:
    """Append every partition's batch, then reply when all are settled."""
    assert isinstance(request, ProduceRequest)
    topics = request.body.topic_data
    request.to = None
    if len(topics) == 1 and len(topics[0].partition_data) == 1 and not request.body.receipts:
        _handle_one(request, topics[0], topics[0].partition_data[0])
    else:
        _handle_many(request)


def _handle_one(request: ProduceRequest, topic: Any, data: Any) -> None:
    body = request.body
    services = request.services
    by_id = request.version >= FIRST_VERSION_WITH_TOPIC_IDS
    name = services.image.topic_name(topic.topic_id) if by_id else topic.name
    found = _refusal(request, (topic,)) or _locate(request, name, by_id, data)
    if isinstance(found, KafkaError):
        request.refuse(topic.name, topic.topic_id, data.index, body.acks, found, name)
    else:
        to = Destination(request, topic, data.index, body.acks, body.timeout_ms, found)
        request.append(to, data.records)


def _handle_many(request: ProduceRequest) -> None:
    body = request.body
    call = ProduceCall(request, body.acks, request.started + max(body.timeout_ms, 0) / 1000)
    work = _take(call, body.topic_data, 0)
    if not call.open:
        call.finish()
        return
    request.services.appends.wait_for(call)
    _append(call, work)


Work = list[tuple[int, Partition, memoryview]]
"""(number in the call, partition, its batch) of what is to be appended."""


def _take(call: ProduceCall, topics: list[Any], number: int) -> Work:
    """Make the entries of the reply for these topics, whose first batch has the number."""
    request = call.request
    services = request.services
    refusal = _refusal(request, topics)
    by_id = request.version >= FIRST_VERSION_WITH_TOPIC_IDS
    work: Work = []
    responses = call.response.responses
    for topic in topics:
        name = services.image.topic_name(topic.topic_id) if by_id else topic.name
        entries: list[Any] = []
        responses.append(_TopicResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=entries))
        for data in topic.partition_data:
            entry = _PartitionResponse(index=data.index)
            entries.append(entry)
            call.open[number] = entry
            found = refusal or _locate(request, name, by_id, data)
            if isinstance(found, KafkaError):
                call.fail(entry, found, name)
                del call.open[number]
            else:
                work.append((number, found, data.records))
            number += 1
    return work


def _append(call: ProduceCall, work: Work) -> None:
    services = call.request.services
    now = services.clock.wall_ms()
    services.cold_reads.busy_at = call.request.started
    transactional_id = call.request.body.transactional_id
    ends = call.ends
    if transactional_id is not None:
        batches = [
            TransactionalBatch(partition, view, _Done(call, place, partition)) for place, partition, view in work
        ]
        if ends is not None:
            ends.update((place, partition.log_end_offset) for place, partition, _ in work)
        services.transactional_appends.append(transactional_id, call.request.version, call.acks, batches)
        return
    for place, partition, view in work:
        if ends is not None:
            ends[place] = partition.log_end_offset
        partition.append(view, call.acks, now, _Done(call, place, partition))


def handle_large(request: Request) -> None:
    """The same for a request of so many batches that it was decoded beside the loop: in steps."""
    assert isinstance(request, ProduceRequest)
    request.to = None
    call = LargeProduceCall(request, request.body.acks, request.started + max(request.body.timeout_ms, 0) / 1000)
    request.services.appends.wait_for(call)
    request.in_steps(_append_in_steps(call), lambda _: None)


def _append_in_steps(call: LargeProduceCall) -> Steps:
    """In the end, also where that is the connection's, all of them have been taken."""
    responses = call.response.responses
    number = done = 0
    try:
        for topic in call.request.body.topic_data:
            batches = topic.partition_data
            for start in range(0, len(batches) or 1, STEP):
                topic.partition_data = batches[start : start + STEP]
                _append(call, _take(call, [topic], number))
                if start:
                    more = responses.pop()
                    responses[-1].partition_responses += more.partition_responses
                number += len(topic.partition_data)
                done += 1 + len(topic.partition_data)
                if done >= STEP:
                    done = 0
                    yield
    finally:
        call.settle_last()


def _refusal(request: Request, topics: Iterable[Any]) -> KafkaError | None:
    """What refuses the request as a whole."""
    body = request.body
    if body.transactional_id is not None and request.denies(
        Operation.WRITE, Resource.TRANSACTIONAL_ID, (body.transactional_id,)
    ):
        batches = (data.records for topic in topics for data in topic.partition_data if data.records is not None)
        if any(transactional_producer(batch) is not None for batch in batches):
            reason = f"not allowed to write with transactional id {body.transactional_id}"
            return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
    if body.acks not in (-1, 0, 1):
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {body.acks}")
    return None


def _locate(request: Request, name: str | None, by_id: bool, data: Any) -> Partition | KafkaError:
    if name is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    if name in (request.deny_topics((name,)) if by_id else request.denied):
        return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not allowed to write to {name}")
    if name in INTERNAL_TOPICS:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by its coordinator only")
    partition = request.services.partitions.find(name, data.index)
    if partition is None:
        return _not_served(request, name, data)
    if data.records is None or len(data.records) == 0:
        return KafkaError(ErrorCode.INVALID_RECORD, f"{name}-{data.index}: the request carries no record batch")
    if request.version < FIRST_VERSION_WITH_ZSTD and codec_of(data.records) == ZSTD:
        return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {FIRST_VERSION_WITH_ZSTD}")
    return partition


def _not_served(request: Request, name: str, data: Any) -> KafkaError:
    services = request.services
    error = KafkaError(services.partitions.absence(name, data.index), f"{name}-{data.index} is not served here")
    topic = services.image.topic(name)
    if topic is not None and 0 <= data.index < len(topic.partitions) and data.records is not None:
        services.store.hosted.retry_gates.remember(topic.id, data.index, data.records, error)
    return error


def refuse_version(
    services: Services, connection: ClientConnection, row: ApiRow, view: memoryview, version: int, correlation_id: int
) -> bool:
    """Produce 0-2 is advertised (KAFKA-18659) and answered UNSUPPORTED_VERSION, in its own layout (decision 0007).

    Its body is v3's without the leading transactional id, so v3's decoder reads it behind a null one.
    """
    if version not in REFUSED_VERSIONS:
        return False
    (length,) = unpack_from(">h", view, 8)
    body = b"\xff\xff" + bytes(view[10 + max(length, 0) :])
    request = Request(services, connection, row, version, correlation_id)
    connection.expect(request)
    decoded, _ = row.request.decode_bounded(body, 3, 0, row.decoded_at_once)
    if decoded.acks == 0:
        request.drop_connection(f"Produce v{version} with acks=0 cannot be told that it is not supported")
        return True
    refused = sum(len(topic.partition_data) for topic in decoded.topic_data)
    request.count_errors({int(ErrorCode.UNSUPPORTED_VERSION): refused})
    out = [pack(">i", len(decoded.topic_data))]
    for topic in decoded.topic_data:
        name = topic.name.encode()
        out.append(pack(f">h{len(name)}si", len(name), name, len(topic.partition_data)))
        for data in topic.partition_data:
            out.append(pack(">ihq", data.index, int(ErrorCode.UNSUPPORTED_VERSION), -1))
            if version >= 2:
                out.append(pack(">q", -1))
    if version >= 1:
        out.append(pack(">i", 0))
    payload = b"".join(out)
    request.complete([pack(">ii", 4 + len(payload), correlation_id), payload])
    return True
