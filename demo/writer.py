"""Writes the flights with confluent-kafka's idempotent producer and remembers where each acknowledged row lies."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import Protocol

from confluent_kafka import KafkaError, Message, Producer

from demo.flights import ROWS

UNKNOWN_OFFSET = -1
FLUSH_SECONDS_MAX = 60


class Row(Protocol):
    """What is written: a flight, an order."""

    @property
    def row(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes: ...

    @property
    def checksum(self) -> int: ...


class Writer:
    """The producing side. Rows count from 1; index 0 of the per-row tables is unused."""

    def __init__(self, address: str, topic: str, rows: int = ROWS, **settings: str | int) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged = 0
        self.bytes_sent = 0
        self.seconds = 0.0
        self.failures: list[str] = []
        self.keys: list[bytes | None] = [None] * (rows + 1)
        self.checksums = array("L", bytes(array("L").itemsize * (rows + 1)))
        self.partitions = array("h", [-1]) * (rows + 1)
        self.offsets = array("q", [UNKNOWN_OFFSET]) * (rows + 1)
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "client.id": "flights",
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "queue.buffering.max.messages": 50_000,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                "error_cb": lambda _error: None,  # a node that went away; what matters arrives per record
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )

    @property
    def on_the_way(self) -> int:
        """Rows handed to the producer that nobody has acknowledged yet."""
        return self.sent - self.acknowledged - len(self.failures)

    def write(self, rows: Iterator[Row], until_row: int, progress: Callable[[int], None]) -> None:
        """Send rows up to and with `until_row`, without waiting for their acknowledgements."""
        began = time.monotonic()
        produce, poll = self._producer.produce, self._producer.poll
        for each in rows:
            self.keys[each.row] = each.key
            self.checksums[each.row] = each.checksum
            self.bytes_sent += len(each.value) + len(each.key or b"")
            while True:
                try:
                    produce(self.topic, each.value, each.key, on_delivery=self._acknowledge(each.row))
                    break
                except BufferError:  # the producer's queue is full: take acknowledgements in, then go on
                    poll(0.05)
                    progress(self.acknowledged)
            self.sent += 1
            if self.sent % 512 == 0:
                poll(0)
                progress(self.acknowledged)
            if each.row >= until_row:
                break
        self.seconds += time.monotonic() - began

    def serve(self, seconds: float) -> None:
        """Let the producer work for up to `seconds`: send, take acknowledgements in."""
        self._producer.poll(seconds)
        time.sleep(0.01)

    def finish(self, progress: Callable[[int], None]) -> None:
        """Wait until everything sent is acknowledged or has failed. SystemExit when that takes too long."""
        began = time.monotonic()
        while self._producer.flush(0.2) > 0:
            progress(self.acknowledged)
            if time.monotonic() - began > FLUSH_SECONDS_MAX:
                raise SystemExit(f"{self.on_the_way} rows were not acknowledged in {FLUSH_SECONDS_MAX} seconds")
        self.seconds += time.monotonic() - began
        progress(self.acknowledged)

    def _acknowledge(self, row: int) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(f"row {row}: {error}")
                return
            self.acknowledged += 1
            offset = message.offset()
            self.partitions[row] = message.partition() or 0
            self.offsets[row] = UNKNOWN_OFFSET if offset is None or offset < 0 else offset

        return on_delivery
