"""The program that is killed: it copies every order to the bills, with its positions in the same transactions.

    python -m demo.biller ADDRESS JOURNAL LIFE

As one writes it with confluent-kafka: consume, begin, produce, the positions, commit. Its key is `transactional.id`:
who comes with it next ends what the last one left open. One transaction in ten it rolls back on purpose. What it does
it notes in JOURNAL, for the demo's charts and its proof: nothing that was rolled back may ever be read.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

ORDERS, BILLS = "orders", "bills"
GROUP = "billing"
HEADER = "transaction"
ROLLED_BACK = 0.1
BATCH = 250
ANSWER_SECONDS = 10.0
QUIET = {
    "log_level": 0, "error_cb": lambda _error: None, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
    "metadata.recovery.strategy": "none",  # or librdkafka forgets the coordinators of a node that is gone
}  # fmt: skip


class Biller:
    """One life of it."""

    def __init__(self, address: str, journal: str, life: str) -> None:
        self.life = life
        self.chance = random.Random(life)
        self.journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.consumer = Consumer(
            {
                "bootstrap.servers": address, "group.id": GROUP, "isolation.level": "read_committed",
                "auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.wait.max.ms": 50,
                "group.instance.id": "biller",  # so that the next life has its partitions at once
                **QUIET,
            }
        )  # fmt: skip
        self.producer = Producer(
            {"bootstrap.servers": address, "transactional.id": "biller", "transaction.timeout.ms": 10_000, **QUIET}
        )

    def run(self) -> None:
        again(lambda: self.producer.init_transactions(ANSWER_SECONDS))
        self.consumer.subscribe([ORDERS])
        number = 0
        while True:
            found = [each for each in self.consumer.consume(BATCH, 0.05) if each.error() is None]
            if found:
                number += 1
                self.bill(f"{self.life}.{number}", found)

    def bill(self, name: str, found: Sequence[Message]) -> None:
        """One transaction."""
        self.note(name, "begun", len(found))
        try:
            self.producer.begin_transaction()
            for each in found:
                key, value = each.key(), each.value()
                self.producer.produce(BILLS, value, key, each.partition() or 0, headers=[(HEADER, name.encode())])
            if self.chance.random() < ROLLED_BACK:
                self.producer.flush(ANSWER_SECONDS)
                self.roll_back(name)
                return
            behind: dict[int, TopicPartition] = {}
            for each in found:
                partition, offset = each.partition() or 0, each.offset() or 0
                behind[partition] = TopicPartition(ORDERS, partition, offset + 1)
            positions, member = list(behind.values()), self.consumer.consumer_group_metadata()
            again(lambda: self.producer.send_offsets_to_transaction(positions, member, ANSWER_SECONDS))
            again(lambda: self.producer.commit_transaction(ANSWER_SECONDS))
            self.note(name, "committed", len(found))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.roll_back(name)

    def roll_back(self, name: str) -> None:
        """Nothing of it has happened: the next orders are those where the group stands."""
        again(lambda: self.producer.abort_transaction(ANSWER_SECONDS))
        self.note(name, "rolled-back", 0)
        again(self.go_back)

    def go_back(self) -> None:
        for place in self.consumer.committed(self.consumer.assignment(), ANSWER_SECONDS):
            place.offset = max(place.offset, 0)
            self.consumer.seek(place)

    def note(self, name: str, what: str, count: int) -> None:
        os.write(self.journal, f"{time.monotonic():.3f} {name} {what} {count}\n".encode())


def again(step: Callable[[], object]) -> None:
    """A step that did not come to an answer is asked for again; the node may be away just now."""
    while True:
        try:
            step()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    Biller(*sys.argv[1:]).run()
