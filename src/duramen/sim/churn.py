"""Scripts that change things under way: topics deleted and created again, records deleted, durability switched.

A new topic is empty, whatever its predecessor held. The log start never goes back. What a topic holds when it becomes
stable, and what it acknowledges from then on, stays, also when it goes back to page-cache later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.client import Call, Script, Steps, call
from duramen.sim.invariants import InvariantViolated
from duramen.sim.workload import RETRY_S, Scene, create_topic, decoded, delete_records, fetch, unexpected
from duramen.wire.batch import build_batch

FLEETING, HARDENING = "fleeting", "hardening"
DURABILITY = "duramen.ack.durability"
TOPIC_RESOURCE = 2


def produce(scene: Scene, topic: str, value: bytes) -> Call:
    """A Produce of one record without a producer id."""
    wanted = call("Produce", 9, transactional_id=None, acks=-1, timeout_ms=30000)
    kinds = wanted.api.request
    batch = bytes(build_batch([(None, value, [], scene.clock.wall_ms())]))
    data = kinds.PartitionProduceData(index=0, records=batch)
    wanted.request.topic_data.append(kinds.TopicProduceData(name=topic, partition_data=[data]))
    return wanted


def until_done(what: str, make: Callable[[], Call], *, fine: tuple[int, ...] = (ErrorCode.NONE,)) -> Steps[Any]:
    """Send the request until its one answer has a code in `fine`; the value is that answer."""
    while True:
        response = yield make()
        if response is not None:
            answer = response.responses[0]
            answer = answer.partition_responses[0] if hasattr(answer, "partition_responses") else answer
            if answer.error_code in fine:
                return answer
            if not ErrorCode(answer.error_code).retriable:
                raise unexpected(what, answer.error_code)
        yield RETRY_S


def read_all(tp: TopicPartition) -> Steps[list[bytes]]:
    """Every value from offset 0 to the high watermark."""
    found: list[bytes] = []
    while True:
        response = yield fetch(tp, len(found))
        answer = response.responses[0].partitions[0] if response is not None else None
        if answer is None or answer.error_code != ErrorCode.NONE:
            if answer is not None and not ErrorCode(answer.error_code).retriable:
                raise unexpected(f"fetch {tp} at {len(found)}", answer.error_code)
            yield RETRY_S
            continue
        found.extend(value for _, _, value in decoded(tp, answer.records, len(found)))
        if len(found) >= answer.high_watermark:
            return found


class Recreator:
    """Creates the topic `fleeting`, writes to it, reads it, deletes it, and begins again."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.generation = 0
        self.tp = TopicPartition(FLEETING, 0)

    def script(self) -> Script:
        """Go on while there are faults to come."""
        scene = self.scene
        while scene.faults_on:
            self.generation += 1
            if self.generation > 1:
                scene.coverage.hit("topic created again under its name")
            mine = f"g{self.generation}:".encode()
            yield from create_topic(scene, FLEETING, 1, {})
            stored: list[bytes] = []
            for number in range(scene.random.randint(1, 3)):
                stored.append(mine + str(number).encode())
                yield from until_done(f"produce to {FLEETING}", lambda: produce(scene, FLEETING, stored[-1]))  # noqa: B023
                yield scene.random.uniform(0.0, 0.1)
            found = yield from read_all(self.tp)
            if not set(stored) <= set(found):
                raise InvariantViolated("AcknowledgedNeverLost", f"{self.tp}: {stored} was stored, {found} is there")
            if not all(value.startswith(mine) for value in found):
                raise InvariantViolated("DeletedStaysDeleted", f"{self.tp} of generation {mine!r} holds {found}")
            gone = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            yield from until_done(f"delete {FLEETING}", self._delete, fine=gone)
            scene.note(f"{FLEETING} generation {self.generation} came and went")

    def _delete(self) -> Call:
        return call("DeleteTopics", 5, topic_names=[FLEETING], timeout_ms=5000)


class Hardener:
    """Writes to the topic `hardening`, switches it between page-cache and stable, and keeps book of what must stay."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.tp = TopicPartition(HARDENING, 0)
        self.made = 0
        self.promised: dict[int, bytes] = {}

    def script(self) -> Script:
        """Go on while there are faults to come, then look a last time."""
        scene = self.scene
        yield from create_topic(scene, HARDENING, 1, {DURABILITY: "page-cache", "internal.segment.bytes": "1000"})
        while scene.faults_on:
            yield from self._write(promises=False)
            yield from self._switch("stable")
            yield from self._write(promises=True)
            found = yield from read_all(self.tp)
            self._check(found)
            self.promised.update(enumerate(found))
            yield from self._switch("page-cache")
        self._check((yield from read_all(self.tp)))

    def _write(self, *, promises: bool) -> Script:
        scene = self.scene
        for _ in range(scene.random.randint(1, 4)):
            value = f"h:{self.made:06}".encode() + b"." * scene.random.choice((0, 300))
            self.made += 1
            answer = yield from until_done("produce", lambda value=value: produce(scene, HARDENING, value))  # type: ignore[misc]
            if promises:
                self.promised[answer.base_offset] = value
            yield scene.random.uniform(0.0, 0.04)

    def _switch(self, durability: str) -> Script:
        def alter() -> Call:
            wanted = call("IncrementalAlterConfigs", 1)
            kinds = wanted.api.request
            change = kinds.AlterableConfig(name=DURABILITY, config_operation=0, value=durability)
            resource = kinds.AlterConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=HARDENING, configs=[change]
            )
            wanted.request.resources.append(resource)
            return wanted

        yield from until_done(f"make {HARDENING} {durability}", alter)
        if durability == "stable":
            self.scene.coverage.hit("topic made stable while it was written to")
        self.scene.note(f"{HARDENING} is {durability}, {len(self.promised)} records are promised")

    def _check(self, found: list[bytes]) -> None:
        for offset, value in sorted(self.promised.items()):
            there = found[offset] if offset < len(found) else None
            if there != value:
                raise InvariantViolated(
                    "AcknowledgedNeverLost", f"{self.tp} offset {offset}: {value!r} became {there!r}"
                )


def trim(scene: Scene, safe: Callable[[TopicPartition], int]) -> Script:
    """Now and then delete the records that everybody is done with. safe: below this nobody needs a record."""
    while scene.faults_on:
        yield scene.random.uniform(0.1, 0.5)
        tp = scene.random.choice([tp for tp in scene.partitions() if tp.topic not in scene.ledger.retention])
        before = safe(tp)
        if scene.is_stable(tp) and before > 0 and tp.topic in scene.created:
            yield from delete_records(scene, tp, scene.random.randint(0, before))
