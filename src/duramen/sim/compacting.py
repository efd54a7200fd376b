"""A compacted topic in a simulation: an idempotent producer of few keys, and readings whose fold must not change.

Whatever compaction has removed by then, the last record of every key that was acknowledged before a reading began
must be in it, or a younger one; a tombstone may be gone, but then nothing older of its key may be left.
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.client import Script, Steps
from duramen.sim.invariants import InvariantViolated, KeyedRecord
from duramen.sim.workload import LATEST, MAX_INFLATED_BYTES, RETRY_S, Producer, Scene, fetch, list_offset, unexpected
from duramen.wire.batch import NewRecord, batches, check_crc, records

COMPACTED = "compacted"
KEYS = 8


class KeyedProducer(Producer):
    """A Producer whose records have one of a few keys; some are tombstones. A value here is the record's own number."""

    def __init__(self, scene: Scene, name: str, tp: TopicPartition, total: int) -> None:
        super().__init__(scene, name, tp, total)
        self._content: dict[bytes, tuple[bytes, bytes | None]] = {}

    def _rows(self, values: Sequence[bytes], now: int) -> list[NewRecord]:
        random = self.scene.random
        for value in values:
            if value not in self._content:
                key = b"key %d" % random.randrange(KEYS)
                padding = b"." * random.choice((200, 900, 1800))
                self._content[value] = (key, None if random.random() < 0.2 else value + padding)
        return [(*self._content[value], [], now) for value in values]

    def _tell_produced(self, values: Sequence[bytes], now: int, size: int) -> None:
        for value in values:
            self.scene.ledger.keyed_produced(self.tp, *self._content[value])

    def _tell_acknowledged(self, offset: int, value: bytes) -> None:
        self.scene.ledger.keyed_acknowledged(self.tp, offset, *self._content[value])


def read_keyed(scene: Scene, tp: TopicPartition) -> Steps[list[KeyedRecord]]:
    """Every record from offset 0 to what was the high watermark at the beginning."""
    end = yield from list_offset(scene, tp, LATEST)
    found: list[KeyedRecord] = []
    offset = 0
    while offset < end:
        response = yield fetch(tp, offset)
        answer = response.responses[0].partitions[0] if response is not None else None
        if answer is None or answer.error_code != ErrorCode.NONE:
            if answer is not None and not ErrorCode(answer.error_code).retriable:
                raise unexpected(f"fetch {tp} at {offset}", answer.error_code)
            yield RETRY_S
            continue
        view = memoryview(answer.records or b"")
        for position, header in batches(view):
            batch = view[position : position + header.size]
            if not check_crc(batch, header):
                raise InvariantViolated("Immutability", f"{tp}: the batch at {header.base_offset} fails its CRC")
            for record in records(batch, header, max_bytes=MAX_INFLATED_BYTES):
                if record.offset >= offset:
                    value = None if record.value is None else bytes(record.value)
                    found.append(KeyedRecord(record.offset, bytes(record.key or b""), value))
            offset = max(offset, header.next_offset)
    return found


def watch_compaction(scene: Scene, tp: TopicPartition) -> Script:
    """Read the topic again and again while the scene lasts."""
    while tp.topic not in scene.created:
        yield RETRY_S
    while scene.reading_on:
        yield from check_fold(scene, tp)
        yield scene.random.uniform(0.05, 0.4)


def check_fold(scene: Scene, tp: TopicPartition) -> Script:
    """Read everything once and ask for the verdict."""
    asked = scene.ledger.facts
    found = yield from read_keyed(scene, tp)
    scene.note(f"{tp} holds {len(found)} records")
    scene.ledger.folded(tp, found, asked)
