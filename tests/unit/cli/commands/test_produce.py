"""What `duramen produce` hands to the client library, and what it says became of it."""

from __future__ import annotations

from typing import Any

import click
import pytest
from confluent_kafka import KafkaError

from duramen.cli.commands import produce
from duramen.cli.commands.produce import DeliveryCount
from duramen.cli.shared.records import Outgoing

TOPIC = "late"


class Reported(bytes):
    """A message as a delivery report has it; its length is that of its value."""

    def partition(self) -> int:
        return 0

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return bytes(self)

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
    delivery = DeliveryCount()
    for value in (b"x" * 5000, *[b"x" * 100] * 50, None):
        produce._produce(producer, delivery, TOPIC, None, Outgoing(None, value, []))
    assert producer.most_bytes == 5000, "a record of any size is handed over, when little waits"
    while producer.waiting:
        producer.poll(1)
    assert (delivery.records, delivery.bytes, delivery.waiting_bytes) == (52, 10_000, 0)


def test_what_is_under_way_when_another_is_refused_is_waited_for() -> None:
    """It was given up, called not written, and stored."""

    class BusyProducer:
        """Two records are on their way to the node, which stores them; two more wait for their turn."""

        sent, queued = 2, 2

        def __len__(self) -> int:
            return self.sent + self.queued

        def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
            for _ in range(self.queued if in_queue else 0):
                delivery.report(KafkaError(KafkaError._PURGE_QUEUE), message)
            for _ in range(self.sent if in_flight else 0):
                delivery.report(KafkaError(KafkaError._PURGE_INFLIGHT), message)
            self.queued, self.sent = 0 if in_queue else self.queued, 0 if in_flight else self.sent

        def flush(self, _seconds: float) -> int:
            if self.sent:
                self.sent -= 1
                delivery.report(None, message)
            return len(self)

    producer: Any = BusyProducer()
    message: Any = Reported(b"x")
    delivery = DeliveryCount()
    delivery.report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), message)
    produce._flush(producer, delivery, produce.Interrupt())
    assert delivery.told == "2 records written, 3 not"


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, "1 record written, 2 not"),
        (KafkaError._MSG_TIMED_OUT, "1 record written, 2 may or may not be"),
        (KafkaError.REQUEST_TIMED_OUT, "1 record written, 2 may or may not be"),
    ],
)
def test_what_is_not_known_is_not_said(first: int, told: str) -> None:
    delivery = DeliveryCount()
    message: Any = Reported(b"x")
    delivery.report(None, message)
    delivery.report(KafkaError(first), message)
    delivery.report(KafkaError(KafkaError._PURGE_QUEUE), message)
    assert delivery.told == told
    delivery.stopped = True
    assert delivery.told == told + "; what follows in the input was not sent"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KafkaError.POLICY_VIOLATION, r"^late: the stream is closed; .* 0 records written, 1 not\.$"),
        (
            KafkaError.PRODUCER_FENCED,
            r"^late: .*`duramen stream append --exclusive` does\. 0 records written, 1 not\.$",
        ),
    ],
)
def test_what_a_stream_refuses_is_said_in_words_of_streams(code: int, said: str) -> None:
    delivery = DeliveryCount()
    message: Any = Reported(b"x")
    delivery.report(KafkaError(code), message)
    with pytest.raises(click.ClickException, match=said):
        produce._summarise(delivery, TOPIC, None, 0.1, False)


def test_who_interrupts_learns_of_all_records_what_became_of_them() -> None:
    """Those whose delivery had failed meanwhile were left out."""
    delivery = DeliveryCount()
    delivery.records, delivery.refused, delivery.unknown = 5, 1, 2
    assert produce.interrupted_line(delivery, 0) == "interrupted: 5 records written, 1 not, 2 may or may not be"
    assert produce.interrupted_line(delivery, 3).endswith("2 may or may not be; 3 more may or may not be")
