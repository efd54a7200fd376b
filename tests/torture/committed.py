"""What lies in a partition: read to its end, committed data or everything, by librdkafka."""

from __future__ import annotations

import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.torture.ledger import SECONDS


class Stored(NamedTuple):
    """A record."""

    offset: int
    key: bytes | None
    value: bytes


class Content(NamedTuple):
    """The records from the start on, and where the reading ended: the last stable offset, or the end of the log."""

    records: list[Stored]
    end: int


def content(bootstrap: str, topic: str, partition: int, *, committed: bool = True, start: int = 0) -> Content:
    """All of it as it is now. AssertionError when it does not come to an end in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reading", "enable.auto.commit": False, "log_level": 0,
            "isolation.level": "read_committed" if committed else "read_uncommitted", "check.crcs": True,
            "fetch.wait.max.ms": 50, "enable.partition.eof": True, "auto.offset.reset": "error",
            "error_cb": lambda error: None,
        }
    )  # fmt: skip
    records: list[Stored] = []
    until = time.monotonic() + SECONDS
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        while time.monotonic() < until:
            first = consumer.poll(0.5)
            for message in [first, *consumer.consume(2000, 0)] if first is not None else ():
                error = message.error()
                if error is None:
                    records.append(Stored(message.offset(), message.key(), message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return Content(records, message.offset())
                elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                    raise KafkaException(error)
    finally:
        consumer.close()
    raise AssertionError(f"{topic}-{partition} did not come to its end in {SECONDS} s, {len(records)} records so far")
