"""What `duramen produce` hands to the client library, and what it says became of it."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from duramen.cli import produce
from duramen.cli.produce import Delivery
from duramen.cli.records import Outgoing

TOPIC = "late"


class Reported(bytes):
    """A message as a delivery report has it; its length is that of its value."""

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0


class SlowProducer:
    """librdkafka's queue: one record is acknowledged with each poll."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, Reported]] = []
        self.most_bytes = 0

    def produce(self, _topic: str, value: bytes, key: bytes | None, on_delivery: Any, **_more: Any) -> None:
        self.waiting.append((on_delivery, Reported(value or b"")))
        self.most_bytes = max(self.most_bytes, sum(len(message) for _, message in self.waiting))

    def poll(self, seconds: float) -> None:
        if seconds and self.waiting:
            report, message = self.waiting.pop(0)
            report(None, message)


def test_few_bytes_wait_for_a_slow_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out of a record runs while others are sent before it: a node that was slower than a gigabyte in that
    time failed the command, however steadily it acknowledged."""
    monkeypatch.setattr(produce, "WAITING_BYTES_MAX", 1000)
    producer: Any = SlowProducer()
    delivery = Delivery()
    for value in (b"x" * 5000, *[b"x" * 100] * 50, None):
        produce._produce(producer, delivery, TOPIC, None, Outgoing(None, value, []))
    assert producer.most_bytes == 5000, "a record of any size is handed over, when little waits"
    while producer.waiting:
        producer.poll(1)
    assert (delivery.records, delivery.bytes, delivery.waiting_bytes) == (52, 10_000, 0)


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, "1 record written, 2 not"),
        (KafkaError._MSG_TIMED_OUT, "1 record written, 2 may or may not be"),
        (KafkaError.REQUEST_TIMED_OUT, "1 record written, 2 may or may not be"),
    ],
)
def test_what_is_not_known_is_not_said(first: int, told: str) -> None:
    delivery = Delivery()
    message: Any = Reported(b"x")
    delivery.report(None, message)
    delivery.report(KafkaError(first), message)
    delivery.report(KafkaError(KafkaError._PURGE_QUEUE), message)
    assert delivery.told == told
    delivery.stopped = True
    assert delivery.told == told + "; what follows in the input was not sent"
