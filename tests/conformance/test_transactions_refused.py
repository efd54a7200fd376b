"""A transactional producer is told at once and clearly that transactions are not served yet, and nothing is stored."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.worlds.served_node import Served, only_duramen

pytestmark = only_duramen


def test_init_transactions_fails_with_a_defined_error(node: Served, name: Callable[[str], str]) -> None:
    topic = name("tx")
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": name("id")})
    began = time.monotonic()
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(60)
    error = refused.value.args[0]
    assert time.monotonic() - began < 50, "refused, not timed out"
    assert error.code() not in {KafkaError._TIMED_OUT, KafkaError.UNKNOWN}
    assert not error.retriable()
    plain = Producer({"bootstrap.servers": node.bootstrap})
    plain.produce(topic, b"still served")
    assert plain.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": name("g")})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 60) == (0, 1)
    consumer.close()
