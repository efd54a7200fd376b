"""Batches of writers that name themselves: those of one partition that come together leave in one Produce request.

Each is a batch of its own with its own answer. What a leader says of one that was not stored just now (a gap, an older
epoch, a duplicate, another leader) needs more words than Produce has: the caller asks for it by ConditionalAppend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from duramen.client.aio import AsyncCluster
from duramen.client.protocol import produce as producing
from duramen.client.protocol.produce import PRODUCE, Produced
from duramen.errors import DuramenError, ErrorCode, KafkaError, OutcomeUnknownError
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.problem import SOON, ProblemError
from duramen.gateway.writes.write_queue import WriteQueue
from duramen.model import TopicId, TopicPartition
from duramen.wire.batch import parse_header
from duramen.wire.conditional_answer import ConditionalAnswer

_PARTITIONS_MAX: Final = 10_000
_LEAST_BYTES: Final = 2000
"""What a batch counts at least: a request has some hundreds."""


class _WriterBatch:
    """A batch of one writer, and who waits for its answer."""

    __slots__ = ("answer", "data")

    def __init__(self, data: bytearray, answer: asyncio.Future[ConditionalAnswer | None]) -> None:
        self.data = data
        self.answer = answer

    def settle(self, outcome: Produced | KafkaError) -> None:
        if not self.answer.done():
            self.answer.set_result(_stored(self.data, outcome))

    def fail(self, error: DuramenError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class WriterBatches:
    """Those of one gateway. timeout_s: how long a batch may take; timeout_ms: how long a leader may."""

    def __init__(self, cluster: AsyncCluster, timeout_s: float, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._timeout_ms = timeout_ms
        self._queues: dict[tuple[TopicId, TopicPartition], WriteQueue[_WriterBatch]] = {}

    async def write(self, tp: TopicPartition, topic_id: TopicId, batch: bytearray) -> ConditionalAnswer | None:
        """Append a batch that has a producer id and a sequence; None where it was not stored by this request, or the
        leader has more to say. DuramenError, Problem: it may be stored, and may be sent again.
        """
        key = (topic_id, tp)
        queue = self._queues.get(key)
        if queue is None:
            if len(self._queues) >= _PARTITIONS_MAX:
                self._queues = {each: known for each, known in self._queues.items() if not known.idle}
            queue = self._queues[key] = WriteQueue()
        loop = asyncio.get_running_loop()
        write = _WriterBatch(batch, loop.create_future())
        was_idle = queue.idle
        queue.put(write, max(_LEAST_BYTES, len(batch)))
        if was_idle:
            task = loop.create_task(self._run(key, queue))
            task.add_done_callback(_ended)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await write.answer
        except TimeoutError:
            if queue.withdraw(write):
                raise ProblemError(
                    503, "node-away", "it waited for writes before it; nothing of it is stored", SOON, retriable=True
                ) from None
            raise problem_of(OutcomeUnknownError("the time limit of the request is over")) from None

    async def _run(self, key: tuple[TopicId, TopicPartition], queue: WriteQueue[_WriterBatch]) -> None:
        while writes := queue.take():
            try:
                outcomes = await self._send(*key, [write.data for write in writes])
            except DuramenError as error:
                for write in writes:
                    write.fail(error)
            except BaseException:
                for write in writes:
                    write.fail(OutcomeUnknownError("the gateway ended meanwhile"))
                raise
            else:
                for write, outcome in zip(writes, outcomes, strict=True):
                    write.settle(outcome)
            finally:
                queue.settle()

    async def _send(
        self, topic_id: TopicId, tp: TopicPartition, batches: Sequence[bytearray]
    ) -> list[Produced | KafkaError]:
        """One request. It is sent again when a connection is lost: the leader knows each batch."""
        request, highest = producing.request(tp, batches, -1, topic_id, self._timeout_ms, receipts=True)
        response = await self._cluster.call(tp, PRODUCE, request, highest=highest, timeout_s=self._timeout_s)
        return producing.outcomes_of(response, tp, len(batches))


def _ended(task: asyncio.Task[None]) -> None:
    """What it failed with was told to those who wait."""
    if not task.cancelled():
        task.exception()


def _stored(batch: bytearray, outcome: Produced | KafkaError) -> ConditionalAnswer | None:
    if isinstance(outcome, KafkaError) or outcome.receipt is None or outcome.receipt.is_duplicate:
        return None
    receipt = outcome.receipt
    last = outcome.base_offset + parse_header(batch).last_offset_delta
    return ConditionalAnswer(
        ErrorCode.NONE,
        "",
        outcome.base_offset,
        last,
        last + 1,
        receipt.leader_epoch,
        False,
        -1,
        -1,
        False,
        receipt.is_stable,
        receipt.copies,
        log_append_time_ms=outcome.log_append_time_ms,
    )
