"""A transactional producer that goes on through failures, and knows what readers of committed records may see."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

SECONDS = 60.0
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def values_of(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    """All values up to the end of the log as the consumer sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{random.random()}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        left, got, deadline = set(partitions), [], time.monotonic() + SECONDS
        while left:
            assert time.monotonic() < deadline
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    got.append(message.value())
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    left.discard(message.partition())
        return got
    finally:
        consumer.close()


class Transactions:
    """Commits and aborts by turns until told to stop; a transaction has its number in every one of `topics`.

    committed, aborted: numbers whose end was acknowledged; unknown: those that a lost connection left open to doubt.
    """

    def __init__(self, bootstrap: str, topics: list[str], transactional_id: str, seed: int) -> None:
        self.bootstrap = bootstrap
        self.topics = topics
        self.id = transactional_id
        self.random = random.Random(seed)
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.unknown: set[int] = set()
        self.stopping = False
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            number = 0
            while not self.stopping:
                producer = Producer(
                    {
                        "bootstrap.servers": self.bootstrap,
                        "transactional.id": self.id,
                        "linger.ms": 0,
                        "log_level": 0,
                        "reconnect.backoff.max.ms": 200,
                        "transaction.timeout.ms": 30_000,
                        "metadata.recovery.strategy": "none",  # else it keeps dead coordinators (librdkafka 2.16)
                        "error_cb": lambda error: None,
                    }
                )
                with contextlib.suppress(KafkaException):
                    producer.init_transactions(SECONDS)
                    while not self.stopping:
                        number += 1
                        self._one(producer, number)
        except BaseException as error:
            self.failure = error
            raise

    def _one(self, producer: Producer, number: int) -> None:
        """KafkaException: this producer is of no more use."""
        commit = self.random.random() < 0.7
        self.unknown.add(number)
        producer.begin_transaction()
        for topic in self.topics:
            for partition in range(2):
                producer.produce(topic, b"%d" % number, partition=partition)
        while True:
            try:
                if commit:
                    producer.commit_transaction(SECONDS)
                else:
                    producer.abort_transaction(SECONDS)
                break
            except KafkaException as error:
                told = error.args[0]
                if told.txn_requires_abort():
                    commit = False
                elif not told.retriable():
                    raise
        self.unknown.discard(number)
        (self.committed if commit else self.aborted).add(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping = True
        self.thread.join()
        assert self.failure is None, self.failure

    def goes_on(self, count: int = 20) -> None:
        """So many more are committed."""
        wanted = len(self.committed) + count
        deadline = time.monotonic() + SECONDS
        while len(self.committed) < wanted:
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, f"{len(self.committed)} of {wanted} transactions are committed"
            time.sleep(0.01)

    def check(self, found: dict[str, list[bytes]]) -> None:
        """found: by topic, what a reader of committed records sees."""
        counts = {topic: Counter(map(int, values)) for topic, values in found.items()}
        for number in sorted(self.committed | self.aborted | self.unknown):
            seen = {topic: count[number] for topic, count in counts.items()}
            expected = [2] if number in self.committed else [0] if number in self.aborted else [0, 2]
            assert all(times == seen[self.topics[0]] for times in seen.values()), (number, seen)
            assert seen[self.topics[0]] in expected, (number, seen, expected)
