"""What librdkafka's clients raise is an exception, on every Python; on librdkafka's own mock cluster."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from duramen.librdkafka import LibraryConsumer, LibraryProducer, Raising

FATAL: Any = KafkaError(KafkaError._FENCED, "another one has its id")


def test_what_a_call_in_a_callback_raises_can_be_caught() -> None:
    """Before Python 3.12 a bare KafkaError came out of `consume`, past every `except BaseException`."""
    mock = LibraryProducer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = mock.list_topics("t", timeout=10).brokers.values()
    nowhere = LibraryConsumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})

    def assigned(_consumer: object, _given: list[TopicPartition]) -> None:
        nowhere.committed([TopicPartition("t", 0)], timeout=0.1)

    member = LibraryConsumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "log_level": 0})
    member.subscribe(["t"], on_assign=assigned)
    with pytest.raises(KafkaException) as caught:
        _consume(member, 20)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    member.close()


def _consume(member: LibraryConsumer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        member.consume(1, 0.2)


def test_an_error_that_is_no_exception_becomes_one() -> None:
    with pytest.raises(KafkaException) as caught, Raising():
        raise FATAL
    assert caught.value.args[0] is FATAL
    with pytest.raises(KeyError), Raising():
        raise KeyError
