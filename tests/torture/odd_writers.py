"""Writers of what librdkafka never sends: batches without timestamps, or with a header that denies them.

They write to topics that change while they do: one is compacted, in one the records go after two seconds.
"""

from __future__ import annotations

import random
import time
from collections import Counter

from tests.torture.ledger import Ledger, Sent, value_of

from duramen.client import Cluster
from duramen.model import NO_TIMESTAMP, TopicPartition
from duramen.wire.batch import NewRecord, build_batch, stamp_max_timestamp

PASSES_S = 2.0
CONFIGS: dict[str, dict[str, str]] = {
    "untimed": {"internal.segment.bytes": "30000"},
    "latest": {
        "internal.segment.bytes": "10000", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "300",
    },
    "latest-cached": {
        "internal.segment.bytes": "10000", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0", "duramen.ack.durability": "page-cache",
    },
    "passing": {"internal.segment.bytes": "5000", "segment.ms": "200", "retention.ms": str(int(PASSES_S * 1000))},
}  # fmt: skip
"""The topics, by the end of their names."""
OUTLIVE_POWER = ("untimed", "latest")
"""Those of which a directory as it was some moments ago has to hold what was acknowledged by then."""
KEYS = 12


class OddWriter:
    """One idempotent writer of one topic, a batch at a time, each sent again until it is answered."""

    def __init__(
        self, bootstrap: str, ledger: Ledger, topic: str, partitions: int, seed: int, patience_s: float
    ) -> None:
        kind = topic.partition("-")[2]
        self.random = random.Random(f"{topic} {seed}")
        passes_s = PASSES_S if kind == "passing" else None
        self.sent = ledger.sent.setdefault(topic, Sent(topic, True, kind.startswith("latest"), passes_s))
        self.ledger = ledger
        self.partitions = partitions
        self.cluster = Cluster(bootstrap, timeout_s=patience_s)
        self.producer: tuple[int, int] | None = None
        self.sequences: Counter[int] = Counter()

    def write(self) -> None:
        """One batch, to its answer."""
        if self.producer is None:
            self.producer = self.cluster.init_producer_id()
        sent, partition = self.sent, self.random.randrange(self.partitions)
        numbers = range(sent.sent, sent.sent + self.random.choice((1, 1, 3, 10)))
        batch = self._batch(numbers, self.sequences[partition])
        sent.sent = numbers.stop
        produced = self.cluster.produce(TopicPartition(sent.topic, partition), batch)
        self.sequences[partition] += len(numbers)
        with self.ledger.guard:
            for place, number in enumerate(numbers):
                sent.acknowledged[number] = (partition, produced.base_offset + place, time.monotonic())

    def _batch(self, numbers: range, sequence: int) -> bytes:
        assert self.producer is not None
        untimed = self.sent.passes_s is not None or self.random.random() < 0.5
        now = NO_TIMESTAMP if untimed else int(time.time() * 1000)
        rows: list[NewRecord] = []
        for number in numbers:
            key, value = b"%d" % self.random.randrange(KEYS), value_of(number)
            self.sent.made[number] = time.monotonic()
            if self.sent.compacted:
                self.sent.keys[number] = key
                if self.random.random() < 0.2:
                    self.sent.tombstones.add(number)
            rows.append((key, None if number in self.sent.tombstones else value, [(b"number", b"%d" % number)], now))
        batch = build_batch(rows, producer_id=self.producer[0], producer_epoch=self.producer[1], base_sequence=sequence)
        if self.random.random() < 0.5:
            stamp_max_timestamp(batch, NO_TIMESTAMP)
        return bytes(batch)
