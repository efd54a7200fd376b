"""Produce answers receipts to who asks for them, and nobody else gets another byte."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.server.handlers.test_produce_fast_path import BATCHES, PRODUCE, Side
from tests.worlds.broker_world import NOW, Line

from duramen.model import named_producer_id
from duramen.server.handlers.produce_fast_path import KnownProduces
from duramen.wire.batch import build_batch
from duramen.wire.frame import encode_request


def batch(name: str, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    rows = [(None, value, (), NOW) for value in values]
    return bytes(build_batch(rows, producer_id=named_producer_id(name), producer_epoch=epoch, base_sequence=sequence))


def body(side: Side, *batches: bytes, version: int = 13, acks: int = -1, receipts: bool = True) -> Any:
    message = PRODUCE.request
    shares = [message.PartitionProduceData(index=0, records=each) for each in batches]
    topic = message.TopicProduceData(name="a", topic_id=side.topic_id("a"), partition_data=shares)
    return message.new(acks=acks, timeout_ms=1000, topic_data=[topic], receipts=receipts)


def produce(side: Side, *batches: bytes, **given: Any) -> list[Any]:
    """The answers, one a batch."""
    version = given.get("version", 13)
    side.send(frame(side, *batches, **given))
    side.server.run()
    response = Line.answer(side.line, 0, version)
    return list(response.responses[0].partition_responses)


def frame(side: Side, *batches: bytes, version: int = 13, acks: int = -1, receipts: bool = True) -> bytes:
    asked = body(side, *batches, version=version, acks=acks, receipts=receipts)
    return b"".join(encode_request(PRODUCE, version, 7, "c", asked))  # type: ignore[arg-type]


def told(answer: Any) -> tuple[int, int, int, bool]:
    receipt = answer.receipt
    return receipt.leader_epoch, receipt.durability, receipt.copies, receipt.duplicate


@pytest.mark.parametrize("version", [9, 12, 13])
@pytest.mark.parametrize("acks", [-1, 1])
def test_who_asks_gets_one(version: int, acks: int) -> None:
    side = Side(KnownProduces())
    for expected in (0, 1):
        (answer,) = produce(side, BATCHES[0], version=version, acks=acks)
        assert (answer.base_offset, told(answer)) == (expected, (0, 1, 1, False))
    (plain,) = produce(side, BATCHES[0], version=version, acks=acks, receipts=False)
    assert (plain.base_offset, told(plain)) == (2, (-1, 0, 0, False))


def test_batches_of_different_writers_in_one_request() -> None:
    side = Side(KnownProduces())
    first = [batch("a", 0, b"1"), batch("b", 0, b"2", b"3"), batch("c", 1, b"-"), batch("a", 1, b"4")]
    answers = produce(side, *first)
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, 0), (0, 1), (45, -1), (0, 3)]
    assert [told(each) for each in answers] == [(0, 1, 1, False)] * 2 + [(-1, 0, 0, False), (0, 1, 1, False)]
    twice = produce(side, batch("d", 0, b"6"), batch("d", 0, b"6"))
    assert [(each.base_offset, told(each)[3]) for each in twice] == [(4, False), (4, True)]
    again = produce(side, first[1], batch("c", 0, b"5"), first[0])
    assert [(each.base_offset, told(each)[3]) for each in again] == [(1, True), (5, False), (0, True)]


def test_nobody_else_gets_another_byte() -> None:
    replies = []
    for asked in (False, True):
        side = Side(KnownProduces())
        kept = []
        for receipts in (False, asked, False, asked, False):
            side.line._received.clear()
            side.send(frame(side, BATCHES[0], receipts=receipts))
            side.server.run()
            kept.append((receipts, bytes(side.line._received)))
        replies.append(kept)
    for (_, without), (receipts, with_some) in zip(*replies, strict=True):
        assert (len(with_some) - len(without), without == with_some) == ((12, False) if receipts else (0, True))
