"""Batches of named writers that leave together: who gets which answer, and what is asked for apart."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.conditional_append import ConditionalAnswer
from duramen.errors import DeadlineError, ErrorCode
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.writes.writer_batches import WriterBatches
from duramen.model import TopicId, TopicPartition, named_producer_id
from duramen.wire.batch import build_batch, parse_header
from duramen.wire.messages.produce import ProduceResponse

TP = TopicPartition("t", 0)
ID = TopicId(bytes(15) + b"\1")


class FakeLeader:
    """Stores batches of a producer in the order of their sequences; `seen`: producers of each request."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.next: dict[int, int] = {}
        self.end = 0
        self.error: BaseException | None = None
        self.receipts = True
        self.let = asyncio.Event()
        self.let.set()

    async def call(self, tp: TopicPartition, key: int, request: Any, **_: Any) -> Any:
        assert (tp, key, request.acks, request.receipts) == (TP, 0, -1, True)
        (topic,) = request.topic_data
        headers = [parse_header(each.records) for each in topic.partition_data]
        self.seen.append([each.producer_id for each in headers])
        await self.let.wait()
        if self.error is not None:
            raise self.error
        answers = [self._append(each) for each in headers]
        entry = ProduceResponse.TopicProduceResponse(name="", topic_id=topic.topic_id, partition_responses=answers)
        return ProduceResponse.new(responses=[entry])

    def _append(self, header: Any) -> Any:
        answer = ProduceResponse.PartitionProduceResponse(index=0)
        wanted = self.next.get(header.producer_id, 0)
        if header.base_sequence > wanted:
            answer.error_code = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            return answer
        is_duplicate = header.base_sequence < wanted
        if not is_duplicate:
            self.next[header.producer_id] = wanted + 1
            answer.base_offset, self.end = self.end, self.end + header.count
        if self.receipts:
            answer.receipt = ProduceResponse.ProduceReceipt(
                leader_epoch=4, durability=1, copies=3, duplicate=is_duplicate
            )
        return answer


def batch(name: str, sequence: int = 0, count: int = 1) -> bytearray:
    rows = [(None, b"v", (), 1)] * count
    return build_batch(rows, producer_id=named_producer_id(name), producer_epoch=0, base_sequence=sequence)


def batches_of(leader: FakeLeader, timeout_s: float = 5) -> WriterBatches:
    return WriterBatches(cast(AsyncCluster, leader), timeout_s, 1000)


def stored(base: int, last: int) -> ConditionalAnswer:
    return ConditionalAnswer(ErrorCode.NONE, "", base, last, last + 1, 4, False, -1, -1, False, True, 3)


def test_those_that_wait_leave_together() -> None:
    async def course() -> None:
        leader = FakeLeader()
        writer = batches_of(leader)
        leader.let.clear()
        first = asyncio.ensure_future(writer.write(TP, ID, batch("a", count=2)))
        await asyncio.sleep(0.01)
        names = [("a", 1), ("b", 0), ("a", 0), ("c", 7), ("a", 2)]
        others = [asyncio.ensure_future(writer.write(TP, ID, batch(name, number))) for name, number in names]
        await asyncio.sleep(0.01)
        leader.let.set()
        assert await first == stored(0, 1)
        assert await asyncio.gather(*others) == [stored(2, 2), stored(3, 3), None, None, stored(4, 4)]
        assert leader.seen == [
            [named_producer_id("a")],
            [named_producer_id(name) for name, _ in names],
        ]

    asyncio.run(course())


def test_a_node_without_receipts_is_asked_in_another_way() -> None:
    async def course() -> None:
        leader = FakeLeader()
        leader.receipts = False
        assert await batches_of(leader).write(TP, ID, batch("a")) is None

    asyncio.run(course())


def test_what_failed_fails_for_those_that_were_in_it_alone() -> None:
    async def course() -> None:
        leader = FakeLeader()
        writer = batches_of(leader)
        leader.error = DeadlineError("too late")
        failed = await asyncio.gather(*(writer.write(TP, ID, batch(name)) for name in "ab"), return_exceptions=True)
        assert [type(each) for each in failed] == [DeadlineError, DeadlineError]
        leader.error = None
        assert await writer.write(TP, ID, batch("a")) == stored(0, 0)

    asyncio.run(course())


def test_when_the_time_of_a_batch_is_up() -> None:
    async def course() -> None:
        leader = FakeLeader()
        writer = batches_of(leader, 0.02)
        leader.let.clear()
        sent = asyncio.ensure_future(writer.write(TP, ID, batch("a")))
        await asyncio.sleep(0.005)
        for write, status in ((writer.write(TP, ID, batch("b")), 503), (sent, 504)):
            with pytest.raises(ProblemError) as refused:
                await write
            assert refused.value.status == status
        leader.let.set()
        await asyncio.sleep(0.005)
        assert await writer.write(TP, ID, batch("b")) == stored(1, 1)
        assert [len(each) for each in leader.seen] == [1, 1]

    asyncio.run(course())
