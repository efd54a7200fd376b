"""Writes of a gateway to partitions: small ones leave together, and what is sent again is stored once, in order.

For each partition a gateway holds a producer id of its own and has one batch under way. So a leader knows a batch that
comes twice, whatever broke in between. When a batch has no answer within its time limit, the id is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from duramen.client.aio import AsyncCluster
from duramen.client.protocol import conditional_append as conditional
from duramen.client.protocol.conditional_append import CONDITIONAL_APPEND, ConditionalAnswer
from duramen.dlsn import ANYWHERE
from duramen.errors import DuramenError, ErrorCode, KafkaError, OutcomeUnknownError
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import SOON, ProblemError
from duramen.gateway.writes.write_queue import WriteQueue
from duramen.model import TopicId, TopicPartition
from duramen.wire.batch import NewRecord, build_batch

LAST_TXID: Final = "stream-last-txid"
"""Of a refusal: the id that the next one may not be below."""

RECORD_BYTES: Final = 40
"""What a record takes beside its key, value and headers, at most."""

_SEQUENCES: Final = 1 << 31
_WRITERS_MAX: Final = 10_000
_PAUSE_S: Final = 0.05

_FORGOTTEN: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)
"""The partition does not know the producer id any more: with a new one the batch is taken."""

_OF_CONTENT: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
    ErrorCode.TXID_OUT_OF_ORDER,
)
"""Refusals for what one record holds, or for the size of all: other writes of the batch may be taken."""


class WrittenShare(NamedTuple):
    """Where a write went. batch: the answer for the batch that it left in; first, last: offsets of its own records."""

    batch: ConditionalAnswer
    first: int
    last: int


class _PartitionWrite:
    """records: with timestamps; size: bytes in a batch, at most."""

    def __init__(self, records: Sequence[NewRecord], answer: asyncio.Future[WrittenShare]) -> None:
        self.records = records
        self.size = sum(map(record_size, records))
        self.answer = answer

    def succeed(self, written: WrittenShare) -> None:
        if not self.answer.done():
            self.answer.set_result(written)

    def fail(self, problem: ProblemError) -> None:
        if not self.answer.done():
            self.answer.set_exception(problem)


class PartitionWrites:
    """The writes of one gateway. timeout_s: how long a write may take, whatever happens."""

    def __init__(self, cluster: AsyncCluster, metrics: GatewayMetrics, timeout_s: float) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._writers: dict[tuple[TopicId, TopicPartition], PartitionWriter] = {}

    async def write(self, tp: TopicPartition, topic_id: TopicId, records: Sequence[NewRecord]) -> WrittenShare:
        """Append the records, all or none, next to each other. Problem, of which 504 alone leaves it open."""
        key = (topic_id, tp)
        writer = self._writers.get(key)
        if writer is None:
            if len(self._writers) >= _WRITERS_MAX:
                self._writers = {each: known for each, known in self._writers.items() if not known.idle}
            send = BatchSender(self._cluster, tp, topic_id, self._timeout_s)
            writer = self._writers[key] = PartitionWriter(send.append, self._metrics, self._timeout_s)
        return await writer.write(records)


class BatchSender:
    """Sends the batches of one partition, one at a time, under a producer id of their own."""

    def __init__(self, cluster: AsyncCluster, tp: TopicPartition, topic_id: TopicId, timeout_s: float) -> None:
        self._cluster = cluster
        self._tp = tp
        self._topic_id = topic_id
        self._timeout_s = timeout_s
        self._producer: tuple[int, int] | None = None
        self._sequence = 0

    async def append(self, records: Sequence[NewRecord]) -> ConditionalAnswer:
        """One batch of the records; what the leader says for good. OutcomeUnknownError: it may be stored.

        Another DuramenError: it is not.
        """
        try:
            answer = await self._identified(records)
            if answer.code in _FORGOTTEN:
                self._producer = None
                answer = await self._identified(records)
        except (OutcomeUnknownError, asyncio.CancelledError):
            self._producer = None
            raise
        if not answer.code:
            self._sequence = (self._sequence + len(records)) % _SEQUENCES
        return answer

    async def _identified(self, records: Sequence[NewRecord]) -> ConditionalAnswer:
        if self._producer is None:
            self._producer = await self._cluster.init_producer_id()
            self._sequence = 0
        producer_id, epoch = self._producer
        batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=self._sequence)
        timeout_ms = int(self._timeout_s * 500)
        request = conditional.request(self._tp, self._topic_id, batch, ANYWHERE, close=False, timeout_ms=timeout_ms)
        now = asyncio.get_running_loop().time
        end = now() + self._timeout_s
        maybe_stored = False
        while True:
            try:
                response = await self._cluster.call(
                    self._tp,
                    CONDITIONAL_APPEND,
                    request,
                    code_of=lambda response: int(response.error_code),
                    resend=False,
                    timeout_s=end - now(),
                )
            except OutcomeUnknownError:
                maybe_stored = True
                if now() + _PAUSE_S >= end:
                    raise
                await asyncio.sleep(_PAUSE_S)
                continue
            except DuramenError as error:
                if maybe_stored:
                    raise OutcomeUnknownError(str(error)) from error
                raise
            answer = conditional.parsed(response)
            if maybe_stored and answer.code in _FORGOTTEN:
                raise OutcomeUnknownError(answer.message or answer.code.name)
            return answer


class PartitionWriter:
    """The writes of one partition: what waits while a batch is under way leaves together."""

    def __init__(
        self,
        send: Callable[[Sequence[NewRecord]], Awaitable[ConditionalAnswer]],
        metrics: GatewayMetrics,
        timeout_s: float,
    ) -> None:
        self._send = send
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._queue: WriteQueue[_PartitionWrite] = WriteQueue()
        self._sending: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return self._queue.idle

    async def write(self, records: Sequence[NewRecord]) -> WrittenShare:
        """As of `PartitionWrites.write`."""
        write = _PartitionWrite(records, asyncio.get_running_loop().create_future())
        self._queue.put(write, write.size)
        if self._sending is None:
            self._sending = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(self._timeout_s):
                return await write.answer
        except TimeoutError:
            if self._queue.withdraw(write):
                raise ProblemError(
                    503, "node-away", "it waited for writes before it; nothing of it is stored", SOON, retriable=True
                ) from None
            raise problem_of(OutcomeUnknownError("the time limit of the request is over")) from None

    async def _run(self) -> None:
        while batch := self._queue.take():
            try:
                await self._append(batch)
            except BaseException:
                for write in batch:
                    write.fail(problem_of(OutcomeUnknownError("the gateway ended meanwhile")))
                self._queue.settle()
                self._sending = None
                raise
        self._sending = None

    async def _append(self, batch: list[_PartitionWrite]) -> None:
        try:
            answer = await self._send([record for write in batch for record in write.records])
            if len(batch) > 1 and answer.code in _OF_CONTENT:
                self._queue.part([(write, write.size) for write in batch])
                return
            check_stored(answer)
        except (DuramenError, ProblemError) as error:
            problem = problem_of(error) if isinstance(error, DuramenError) else error
            for write in batch:
                write.fail(problem)
        else:
            self._metrics.batches_written.inc()
            answer = answer._replace(duplicate=False)
            first = answer.base_offset
            for write in batch:
                write.succeed(WrittenShare(answer, first, first + len(write.records) - 1))
                first += len(write.records)
        self._queue.settle()


def check_stored(answer: ConditionalAnswer) -> None:
    """Nothing, if the answer says that it is stored. Problem 409 where the stream is closed, or its last transaction
    id is above those that were sent; KafkaError."""
    if answer.code == ErrorCode.STREAM_CLOSED:
        raise ProblemError(409, "closed", "it is closed: nothing is appended after it", {"stream-closed": "true"})
    if answer.code == ErrorCode.TXID_OUT_OF_ORDER:
        raise ProblemError(
            409,
            "txid-out-of-order",
            f"transaction ids never step back, and the last one is {answer.last_txid}: {answer.message}",
            {LAST_TXID: str(answer.last_txid)},
            kafka_error=answer.code.name,
        )
    if answer.code:
        raise KafkaError(answer.code, answer.message or answer.code.name)


def record_size(record: NewRecord) -> int:
    """Bytes that a record takes in a batch, at most."""
    key, value, headers, _ = record
    size = RECORD_BYTES + len(key or b"") + len(value or b"")
    return size + sum(len(name) + len(content or b"") + 10 for name, content in headers)
