"""A producer that writes on while nodes stop and die, and what must be read back of it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

QUIET = {"log_level": 0}
READ_SECONDS = 60.0


class Load:
    """confluent-kafka, with its default retries, in a thread: numbered values of some keys each.

    acks: with "all" it is idempotent.
    """

    def __init__(self, bootstrap: str, topic: str, keys: int = 20, pause_s: float = 0.002, acks: str = "all") -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.failed: list[str] = []
        self.acknowledged: list[tuple[int, float]] = []
        """Number and when."""
        self._acks = acks
        self._keys = keys
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        settings = {"acks": self._acks, "enable.idempotence": self._acks == "all", "linger.ms": 1}
        producer = Producer({"bootstrap.servers": self.bootstrap, **settings, **QUIET})
        number = 0
        while not self._ended.is_set():
            producer.produce(self.topic, b"%d" % number, b"%d" % (number % self._keys), on_delivery=self._delivered)
            number += 1
            producer.poll(0)
            time.sleep(self._pause_s)
        left = producer.flush(60)
        if left:
            self.failed.append(f"{left} without an answer")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged.append((int(message.value()), time.monotonic()))

    def goes_on(self, seconds: float = 60.0) -> float:
        """Seconds until something more is acknowledged."""
        began = time.monotonic()
        while not self.acknowledged or self.acknowledged[-1][1] < began:
            assert time.monotonic() < began + seconds, f"nothing is acknowledged: {self.failed[-3:]}"
            time.sleep(0.005)
        return time.monotonic() - began

    def check(self, bootstrap: str, but_until: float = float("-inf")) -> None:
        """What kafka-python reads: all that was acknowledged, and but for acks=1 nothing twice, and each key in order.

        but_until: what was acknowledged up to then may be gone.
        """
        reader = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
        try:
            parts = [TopicPartition(self.topic, each) for each in reader.partitions_for_topic(self.topic)]
            reader.assign(parts)
            reader.seek_to_beginning()
            ends = reader.end_offsets(parts)
            found: dict[bytes, list[int]] = defaultdict(list)
            until = time.monotonic() + READ_SECONDS
            while any(reader.position(part) < end for part, end in ends.items()):
                assert time.monotonic() < until, f"{self.topic} was not read to its ends, {ends}"
                for records in reader.poll(500).values():
                    for record in records:
                        found[record.key].append(int(record.value))
        finally:
            reader.close()
        for key, numbers in found.items():
            ordered = numbers == sorted(set(numbers))
            assert ordered or self._acks == "1", f"{key!r} is doubled or out of order"
        everything = {number for numbers in found.values() for number in numbers}
        lost = {number for number, when in self.acknowledged if when > but_until} - everything
        assert not lost, f"{len(lost)} acknowledged records are lost, the first is {min(lost)}"
