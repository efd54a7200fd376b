"""Batches of a partition: who gets which place, what is sent again, and what is known when the time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.conditional_append import ConditionalAnswer
from duramen.errors import DeadlineError, DuramenError, ErrorCode, OutcomeUnknownError
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.writes.partition_writes import BatchSender, PartitionWriter, WrittenShare
from duramen.model import TopicPartition
from duramen.wire.batch import NewRecord, parse_header

TP = TopicPartition("t", 0)


def answer(base: int, count: int = 1, code: ErrorCode = ErrorCode.NONE) -> ConditionalAnswer:
    return ConditionalAnswer(code, "", base, base + count - 1, base + count, 0, False, -1, -1, False, True, 1)


def some(*values: bytes) -> list[NewRecord]:
    return [(None, value, (), 1) for value in values]


class FakeLeader:
    """Takes batches one after the other; those with the value `bad` are refused."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.end = 0

    async def append(self, new: Sequence[NewRecord]) -> ConditionalAnswer:
        values = [value or b"" for _, value, _, _ in new]
        self.batches.append(values)
        await asyncio.sleep(0)
        if b"bad" in values:
            return answer(-1, 0, ErrorCode.INVALID_RECORD)
        self.end += len(values)
        return answer(self.end - len(values), len(values))


def test_what_waits_leaves_together_and_a_bad_write_alone_fails() -> None:
    leader = FakeLeader()

    async def course() -> list[Any]:
        writer = PartitionWriter(leader.append, GatewayMetrics(), 5)
        writes = [writer.write(some(*values)) for values in ([b"a"], [b"b", b"c"], [b"bad"], [b"d"])]
        return await asyncio.gather(*writes, return_exceptions=True)

    first, second, refused, last = asyncio.run(course())
    assert leader.batches == [[b"a", b"b", b"c", b"bad", b"d"], [b"a"], [b"b", b"c"], [b"bad"], [b"d"]]
    assert [(each.first, each.last) for each in (first, second, last)] == [(0, 0), (1, 2), (3, 3)]
    assert isinstance(refused, ProblemError)


def test_when_the_time_is_up() -> None:
    async def never(_new: Sequence[NewRecord]) -> ConditionalAnswer:
        await asyncio.sleep(60)
        raise AssertionError

    async def course() -> tuple[WrittenShare | BaseException, WrittenShare | BaseException]:
        writer = PartitionWriter(never, GatewayMetrics(), 0.02)
        sent = asyncio.create_task(writer.write(some(b"sent")))
        await asyncio.sleep(0.01)
        return await asyncio.gather(sent, writer.write(some(b"waits")), return_exceptions=True)

    sent, waited = asyncio.run(course())
    assert isinstance(sent, ProblemError)
    assert isinstance(waited, ProblemError)
    assert (sent.status, sent.code) == (504, "outcome-unknown")
    assert (waited.status, waited.retriable) == (503, True)


class FakeCluster:
    """Answers calls from a list: what is an error is raised."""

    def __init__(self, *answers: DuramenError | ErrorCode) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[int, int]] = []
        self.ids = 0

    async def init_producer_id(self) -> tuple[int, int]:
        self.ids += 1
        return self.ids, 0

    async def call(self, _route: Any, _key: int, request: Any, **_options: Any) -> Any:
        header = parse_header(request.records)
        self.sent.append((header.producer_id, header.base_sequence))
        outcome = self.answers.pop(0)
        if isinstance(outcome, DuramenError):
            raise outcome
        values = answer(0, 1, outcome)._asdict() | {"error_code": outcome, "error_message": ""}
        return SimpleNamespace(**values, durability=1)


def sender(cluster: FakeCluster, timeout_s: float = 5) -> BatchSender:
    return BatchSender(cast("AsyncCluster", cluster), TP, bytes(16), timeout_s)


def test_a_lost_batch_is_sent_again_as_it_was() -> None:
    cluster = FakeCluster(ErrorCode.NONE, OutcomeUnknownError("lost"), ErrorCode.NONE, ErrorCode.NONE)

    async def course() -> None:
        batches = sender(cluster)
        for values in ([b"a", b"b"], [b"c"], [b"d"]):
            assert not (await batches.append(some(*values))).code

    asyncio.run(course())
    assert cluster.sent == [(1, 0), (1, 2), (1, 2), (1, 3)]


def test_without_an_answer_the_id_is_given_up() -> None:
    lost = OutcomeUnknownError("lost")
    cluster = FakeCluster(ErrorCode.NONE, lost, DeadlineError("over", None), ErrorCode.NONE)

    async def course() -> None:
        batches = sender(cluster)
        await batches.append(some(b"a"))
        with pytest.raises(OutcomeUnknownError):
            await batches.append(some(b"b"))
        await batches.append(some(b"c"))

    asyncio.run(course())
    assert cluster.sent == [(1, 0), (1, 1), (1, 1), (2, 0)]


def test_what_was_never_taken_leaves_no_gap() -> None:
    cluster = FakeCluster(DeadlineError("over", None), ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE)

    async def course() -> None:
        batches = sender(cluster)
        with pytest.raises(DeadlineError):
            await batches.append(some(b"a"))
        assert (await batches.append(some(b"b"))).code == ErrorCode.MESSAGE_TOO_LARGE
        await batches.append(some(b"c"))

    asyncio.run(course())
    assert cluster.sent == [(1, 0), (1, 0), (1, 0)]


def test_a_forgotten_id_is_replaced() -> None:
    cluster = FakeCluster(ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.NONE)

    async def course() -> None:
        batches = sender(cluster)
        await batches.append(some(b"a"))
        assert not (await batches.append(some(b"b"))).code

    asyncio.run(course())
    assert cluster.sent == [(1, 0), (1, 1), (2, 0)]
