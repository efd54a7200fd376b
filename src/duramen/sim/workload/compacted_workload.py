"""A compacted topic in a simulation: an idempotent producer of few keys, and readings whose fold must not change.

Whatever compaction has removed by then, the last record of every key that was acknowledged before a reading began
must be in it, or a younger one; a tombstone may be gone when its time is over, but then nothing older of its key may
be left.
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.client.loop.node_client import call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated, Keyed, KeyedRecord
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.workload import (
    LATEST,
    MAX_INFLATED_BYTES,
    RETRY_S,
    Scene,
    SimProducer,
    fetch,
    list_offset,
    unexpected,
)
from duramen.wire.batch import NewRecord, batches, check_crc, records

COMPACTED = "compacted"
KEYS = 8
QUIET, QUIET_FROM = 3, 20
"""So many of the keys get no record behind the first so many: what comes later does not replace their tombstones."""
LAST_REPLY_S = 1.0
"""Virtual seconds after which nobody hears any more from a node that died."""


class KeyedProducer(SimProducer):
    """A Producer whose records have one of a few keys; some are tombstones. A value here is the record's own number."""

    def __init__(self, scene: Scene, name: str, tp: TopicPartition, total: int) -> None:
        super().__init__(scene, name, tp, total)
        self._content: dict[bytes, Keyed] = {}

    def _rows(self, values: Sequence[bytes], now: int) -> list[NewRecord]:
        random = self.scene.random
        for value in values:
            if value not in self._content:
                number = random.randrange(KEYS)
                quiet = number < QUIET
                if quiet and len(self._content) >= QUIET_FROM:
                    number, quiet = number + QUIET, False
                key = b"key %d" % number
                padding = b"." * random.choice((200, 900, 1800))
                # Where a power cut may have taken a tombstone, nobody could tell whether a key has to be there.
                tombstone = random.random() < (0.5 if quiet else 0.2) and self.scene.is_stable(self.tp)
                self._content[value] = Keyed(value, key, None if tombstone else value + padding)
        return [(self._content[value].key, self._content[value].value, [], now) for value in values]

    def _tell_produced(self, values: Sequence[bytes], now: int, size: int) -> None:
        for value in values:
            self.scene.ledger.keyed_produced(self.tp, self._content[value])

    def _tell_acknowledged(self, offset: int, value: bytes, asked: int) -> None:
        self.scene.ledger.keyed_acknowledged(self.tp, offset, self._content[value])


def read_keyed(scene: Scene, tp: TopicPartition) -> Steps[list[KeyedRecord]]:
    """Every record from offset 0 to what was the high watermark at the beginning, or to the end where that fell."""
    end = yield from list_offset(scene, tp, LATEST)
    found: list[KeyedRecord] = []
    offset = 0
    while offset < end:
        response = yield fetch(tp, offset)
        answer = response.responses[0].partitions[0] if response is not None else None
        if answer is None or answer.error_code != ErrorCode.NONE:
            if answer is not None and answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not scene.is_stable(tp):
                return found
            if answer is not None and not ErrorCode(answer.error_code).retriable:
                raise unexpected(f"fetch {tp} at {offset}", answer.error_code)
            yield RETRY_S
            continue
        if not scene.is_stable(tp):
            end = min(end, answer.high_watermark)
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


class Folder:
    """Reads a compacted topic again and again, and asks for the verdict over what is there.

    A power cut may take the end of a page-cache topic, but nothing before: what was known from there on is forgotten,
    once the leader epochs say where that was.
    """

    def __init__(self, scene: Scene, tp: TopicPartition) -> None:
        self.scene = scene
        self.tp = tp
        self.starts = 0
        self.epoch = 0

    def script(self) -> Script:
        """Go on while the scene lasts."""
        while self.tp.topic not in self.scene.created:
            yield RETRY_S
        while self.scene.reading_on:
            yield from self.check()
            yield self.scene.random.uniform(0.05, 0.4)

    def after(self, seconds: float) -> Script:
        """Wait, and check."""
        yield seconds
        yield from self.check()

    def check(self) -> Script:
        """Read everything once and ask for the verdict."""
        scene, tp = self.scene, self.tp
        starts = -1
        while starts != scene.starts():
            starts = scene.starts()
            if not scene.is_stable(tp) and starts != self.starts:
                yield from self._learn_what_was_lost(starts)
            asked = scene.ledger.facts
            found = yield from read_keyed(scene, tp)
            if scene.is_stable(tp):
                break
        scene.note(f"{tp} holds {len(found)} records")
        scene.ledger.folded(tp, found, asked)

    def _learn_what_was_lost(self, starts: int) -> Script:
        yield LAST_REPLY_S
        current = yield from self._leader_epoch()
        for epoch in range(self.epoch, current):
            end = yield from self._end_of(epoch)
            self.scene.note(f"{self.tp} epoch {epoch} ends at {end}")
            if end >= 0:
                self.scene.ledger.truncated(self.tp, end)
        if self.scene.starts() == starts:  # else what is said late may be of a node that died meanwhile
            self.epoch, self.starts = current, starts

    def _leader_epoch(self) -> Steps[int]:
        while True:
            wanted = call("Metadata", 9)
            wanted.request.topics = [wanted.api.request.MetadataRequestTopic(name=self.tp.topic)]
            response = yield wanted
            for partition in response.topics[0].partitions if response is not None else ():
                if partition.error_code == ErrorCode.NONE:
                    return int(partition.leader_epoch)
            yield RETRY_S

    def _end_of(self, epoch: int) -> Steps[int]:
        """Where the log of this leader epoch ends, -1 where nobody knows one."""
        while True:
            wanted = call("OffsetForLeaderEpoch", 4, replica_id=-1)
            kinds = wanted.api.request
            partition = kinds.OffsetForLeaderPartition(partition=self.tp.partition, leader_epoch=epoch)
            wanted.request.topics.append(kinds.OffsetForLeaderTopic(topic=self.tp.topic, partitions=[partition]))
            response = yield wanted
            answer = response.topics[0].partitions[0] if response is not None else None
            if answer is not None and answer.error_code == ErrorCode.NONE:
                return int(answer.end_offset)
            if answer is not None and not ErrorCode(answer.error_code).retriable:
                raise unexpected(f"the end of epoch {epoch} of {self.tp}", answer.error_code)
            yield RETRY_S
