"""One member of a consumer group, run as a process of its own: `python -m demo.member ADDRESS TOPIC GROUP NAME FOLDER`.

It processes each record it is given (notes it in NAME.trace, adds its delay to the airline's), commits what it has
processed now and then, and always before it gives a partition up. It stops on SIGTERM: commits, leaves the group, and
writes NAME.json. It keeps no list of what it has seen: a record that arrives twice is processed twice, and shows.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from demo.trace import ENTRY

COMMIT_SECONDS = 1.0
FLUSH_SECONDS = 0.2
COMMIT_TRIES = 20
PROCESSED_LATER = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}


class Member:
    """A consumer, the positions it has processed to, and the delays per airline it has added up."""

    def __init__(self, address: str, topic: str, group: str, name: str, folder: Path) -> None:
        self.topic = topic
        self.folder = folder
        self.name = name
        self.running = True
        self.assigned = self.revoked = self.lost = 0
        self.positions: dict[int, int] = {}  # partition → next offset to process, of the partitions it holds
        self.delays: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])  # carrier → [flights, landed, minutes]
        self.file = (folder / f"{name}.trace").open("wb")
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "client.id": name,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # Not "cooperative-sticky": at a rebalance librdkafka 2.16 may go back a record, to where it last noted
                # that a partition was read, while it hands over the next. It does so beside Apache Kafka, too.
                "partition.assignment.strategy": "range",
                "heartbeat.interval.ms": 500,
                "session.timeout.ms": 30_000,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
                "error_cb": self.on_error,
            }
        )

    def on_error(self, error: KafkaError) -> None:
        """The node being away is part of the plan; librdkafka reconnects by itself."""
        if error.code() not in PROCESSED_LATER:
            sys.stderr.write(f"{self.name}: {error}\n")

    def on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The partitions it has from now on; those it had before were revoked."""
        self.assigned += len(partitions)
        (self.folder / f"{self.name}.assigned").touch()

    def on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit what was processed, then let go: the next owner starts exactly there."""
        self.revoked += len(partitions)
        self.commit([partition.partition for partition in partitions])

    def on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """The group gave these away without asking: too late to commit."""
        self.lost += len(partitions)
        for partition in partitions:
            self.positions.pop(partition.partition, None)

    def commit(self, partitions: list[int]) -> None:
        """Commit and forget the positions of these partitions, and wait for the answer."""
        offsets = [TopicPartition(self.topic, p, self.positions.pop(p)) for p in partitions if p in self.positions]
        for attempt in range(COMMIT_TRIES if offsets else 0):
            try:
                answer = self.consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as failed:
                if attempt == COMMIT_TRIES - 1:
                    sys.stderr.write(f"{self.name}: could not commit before giving up {partitions}: {failed}\n")
                time.sleep(0.2)
            else:
                if all(partition.error is None for partition in answer or []):
                    return

    def process(self, message: Message) -> None:
        """The work on one record."""
        value = message.value() or b""
        event = json.loads(value)
        partition, offset = message.partition() or 0, message.offset() or 0
        entry = (partition, offset, event["row"], message.key() or b"", zlib.crc32(value), len(value))
        self.file.write(ENTRY.pack(*entry))
        delays = self.delays[event["carrier"]]
        delays[0] += 1
        if event["arr_delay"] is not None:
            delays[1] += 1
            delays[2] += event["arr_delay"]
        self.positions[partition] = offset + 1

    def run(self) -> None:
        """Process until SIGTERM, then leave in good order."""
        self.consumer.subscribe([self.topic], on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost)
        committed = flushed = time.monotonic()
        while self.running:
            message = self.consumer.poll(FLUSH_SECONDS)
            if message is not None and message.error() is None:
                self.process(message)
            now = time.monotonic()
            if now - flushed >= FLUSH_SECONDS:
                self.file.flush()
                flushed = now
            if now - committed >= COMMIT_SECONDS and self.positions:
                offsets = [TopicPartition(self.topic, p, o) for p, o in self.positions.items()]
                self.consumer.commit(offsets=offsets, asynchronous=True)
                committed = now
        self.consumer.close()
        self.file.close()
        story = {"assigned": self.assigned, "revoked": self.revoked, "lost": self.lost, "delays": self.delays}
        (self.folder / f"{self.name}.json").write_text(json.dumps(story))


def main() -> None:
    """Run one member with the arguments of the command line."""
    address, topic, group, name, folder = sys.argv[1:]
    member = Member(address, topic, group, name, Path(folder))

    def stop(_signal: int, _frame: object) -> None:
        member.running = False

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the demo, which then stops its members
    member.run()


if __name__ == "__main__":
    main()
