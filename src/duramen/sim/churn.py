"""Scripts that take things away: a topic that is deleted and created again under the same name, and records deleted.

What comes back after either would be a promise broken: the log start never goes back, and a new topic is empty.
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

FLEETING = "fleeting"


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
            yield from create_topic(scene, FLEETING, 1, {})
            stored: list[bytes] = []
            for number in range(scene.random.randint(1, 3)):
                value = f"g{self.generation}:{number:06} ".encode()
                yield from self._until_done("produce to", lambda value=value: self._produce(value))  # type: ignore[misc]
                stored.append(value)
                yield scene.random.uniform(0.0, 0.1)
            yield from self._check(stored)
            yield from self._until_done("delete", self._delete)
            scene.note(f"{FLEETING} generation {self.generation} came and went")

    def _until_done(self, what: str, make: Callable[[], Call]) -> Script:
        while True:
            response = yield make()
            code = None if response is None else self._code(response)
            if code == ErrorCode.NONE or (what == "delete" and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                return
            if code is not None and not ErrorCode(code).retriable:
                raise unexpected(f"{what} {FLEETING}", code)
            yield RETRY_S

    def _code(self, response: Any) -> int:
        answer = response.responses[0]
        return int(
            answer.partition_responses[0].error_code if hasattr(answer, "partition_responses") else answer.error_code
        )

    def _produce(self, value: bytes) -> Call:
        wanted = call("Produce", 9, transactional_id=None, acks=-1, timeout_ms=30000)
        kinds = wanted.api.request
        batch = bytes(build_batch([(None, value, [], self.scene.clock.wall_ms())]))
        data = kinds.PartitionProduceData(index=0, records=batch)
        wanted.request.topic_data.append(kinds.TopicProduceData(name=FLEETING, partition_data=[data]))
        return wanted

    def _delete(self) -> Call:
        return call("DeleteTopics", 5, topic_names=[FLEETING], timeout_ms=5000)

    def _check(self, stored: list[bytes]) -> Steps[None]:
        """The topic holds what was written since its creation, and nothing of its predecessors."""
        found: list[bytes] = []
        while not set(stored) <= set(found):
            response = yield fetch(self.tp, len(found))
            answer = response.responses[0].partitions[0] if response is not None else None
            if answer is None or answer.error_code != ErrorCode.NONE:
                if answer is not None and not ErrorCode(answer.error_code).retriable:
                    raise unexpected(f"fetch {FLEETING}", answer.error_code)
                yield RETRY_S
                continue
            records = list(decoded(self.tp, answer.records, len(found)))
            if not records and len(found) >= answer.high_watermark:
                raise InvariantViolated("AcknowledgedNeverLost", f"{self.tp}: {stored} was stored, {found} is there")
            found.extend(value for _, _, value in records)
        mine = f"g{self.generation}:".encode()
        if not all(value.startswith(mine) for value in found):
            raise InvariantViolated("DeletedStaysDeleted", f"{self.tp} in generation {self.generation} holds {found}")


def trim(scene: Scene, safe: Callable[[TopicPartition], int]) -> Script:
    """Now and then delete the records that everybody is done with. safe: below this nobody needs a record."""
    while scene.faults_on:
        yield scene.random.uniform(0.1, 0.5)
        tp = scene.random.choice(scene.partitions())
        before = safe(tp)
        if scene.is_stable(tp) and before > 0 and tp.topic in scene.created:
            yield from delete_records(scene, tp, scene.random.randint(0, before))
