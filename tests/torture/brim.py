"""A disk that is full again and again under load, retention making room: no record twice, none out of its order.

    python -m tests.torture.brim --rounds 10

One idempotent producer has batches for many partitions under way when the disk becomes full, and when there is room
again. Needs a small file system of its own, as `tests.torture.full_disk`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.torture.full_disk import SECONDS, on_small_volume
from tests.worlds.served_node import Served

VOLUME_BYTES = 96 << 20
PARTITIONS = 60
SETTINGS = {
    "duramen.journal.max.bytes": str(4 << 20),
    "duramen.journal.part.bytes": str(1 << 20),
    "duramen.reserve.bytes": str(4 << 20),
    "log.retention.check.interval.ms": "1000",
}
KEPT_BYTES = 256 << 10
TOPIC = "flood"
CONFIG = {"retention.bytes": str(KEPT_BYTES), "internal.segment.bytes": str(KEPT_BYTES), "file.delete.delay.ms": "0"}
MOST_QUEUED = 30_000
"""Records that the producer holds: what it is left with when it stops has to find room, too."""


PATIENCE_SECONDS = 30.0
LOOK_EVERY = 1000
"""Records."""


class Brim:
    """One node on such a volume, and what its one producer was told."""

    def __init__(self, folder: Path, volume: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = Served(folder, SETTINGS | {"log.dirs": str(volume / "data")})
        self.clients = {"bootstrap.servers": self.node.bootstrap, "log_level": 0}
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.sent = 0
        self.broken: list[str] = []

    def run(self, rounds: int, seconds: float = 4.0) -> None:
        self.node.start()
        try:
            admin = AdminClient(self.clients)
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, config=CONFIG)])[TOPIC].result()
            producer = Producer(
                self.clients | {"enable.idempotence": True, "linger.ms": 5, "queue.buffering.max.messages": MOST_QUEUED}
            )
            for _ in range(rounds):
                self._flood(producer, seconds * self.random.uniform(0.5, 1.5))
                if left := producer.flush(SECONDS):
                    self.broken.append(f"{left} records have no outcome after {SECONDS} s")
                self._audit()
                if self.broken:
                    return
        finally:
            self.node.kill()

    def times_full(self) -> int:
        """How often the node said that its disk is."""
        return (self.node.folder / "server.log").read_text(errors="replace").count("directory-full")

    def line(self) -> str:
        return (
            f"a disk that was full {self.times_full()} times, {len(self.acknowledged):,} records acknowledged, "
            f"{len(self.broken)} promises broken"
        )

    def _flood(self, producer: Producer, seconds: float) -> None:
        """For so long; on a busy machine until the disk is full, or has not become so for PATIENCE_SECONDS."""
        end = time.monotonic() + seconds
        patience = end + (0 if self.times_full() else PATIENCE_SECONDS)
        while (now := time.monotonic()) < end or now < patience:
            if now >= end and self.sent % LOOK_EVERY == 0 and self.times_full():
                return
            value = b"%010d" % self.sent + bytes(self.random.randrange(200, 1400))
            partition = self.random.randrange(PARTITIONS)
            try:
                producer.produce(TOPIC, value, partition=partition, on_delivery=self._told(self.sent))
            except BufferError:
                producer.poll(0.01)
            else:
                self.sent += 1
                producer.poll(0)

    def _told(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged[number] = message.partition(), message.offset()
            else:
                self.broken.append(f"record {number}: {error}")

        return told

    def _audit(self) -> None:
        """All that retention has left, of every partition: nothing twice, in order, where it was acknowledged."""
        consumer = Consumer(
            self.clients | {"group.id": "audit", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        )
        found: dict[int, tuple[int, int]] = {}
        last = [-1] * PARTITIONS
        ended = 0
        try:
            consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
            while ended < PARTITIONS:
                message = consumer.poll(SECONDS)
                if message is None:
                    self.broken.append(f"nothing to read for {SECONDS} s")
                    return
                if message.error() is not None:
                    ended += 1
                    continue
                number, place = int(message.value()[:10]), (message.partition(), message.offset())
                if number in found:
                    self.broken.append(f"record {number} is at {found[number]} and at {place}")
                if number <= last[place[0]]:
                    self.broken.append(f"record {number} at {place} comes behind {last[place[0]]}")
                if self.acknowledged.get(number, place) != place:
                    self.broken.append(f"record {number} was acknowledged at {self.acknowledged[number]}, not {place}")
                found[number], last[place[0]] = place, number
        finally:
            consumer.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torture.brim", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    def torture(folder: Path, volume: Path) -> list[str]:
        brim = Brim(folder, volume, options.seed)
        brim.run(options.rounds)
        print(brim.line())
        return brim.broken

    return on_small_volume(torture, VOLUME_BYTES)


if __name__ == "__main__":
    sys.exit(main())
