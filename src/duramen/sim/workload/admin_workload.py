"""Scripts that change things under way: topics deleted and created again, records deleted, durability switched.

A new topic is empty, whatever its predecessor held. The log start never goes back. What a topic holds when it becomes
stable, and what it acknowledges from then on, stays, also when it goes back to page-cache later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duramen.client.loop.node_client import NodeRequest, call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.workload import RETRY_S, Scene, create_topic, delete_records, read_records, unexpected
from duramen.wire.batch import build_batch

FLEETING, HARDENING, GROWING = "fleeting", "hardening", "growing"
MOST_PARTITIONS = 4
DURABILITY = "duramen.ack.durability"
TOPIC_RESOURCE = 2
CHANGED = {
    "internal.segment.bytes": ("700", "3000", "20000"),
    "index.interval.bytes": ("0", "200", "4096"),
    "segment.index.bytes": ("12", "60", "10485760"),
    "segment.ms": ("100", "1000", "604800000"),
    "compression.type": ("producer", "gzip", "lz4", "uncompressed"),
    "flush.messages": ("1", "5", "9223372036854775807"),
}
"""Settings that change how a topic is stored and not what it holds, with values for each."""


def produce(scene: Scene, topic: str, value: bytes, partition: int = 0) -> NodeRequest:
    """A Produce of one record without a producer id."""
    wanted = call("Produce", 9, transactional_id=None, acks=-1, timeout_ms=30000)
    kinds = wanted.api.request
    batch = bytes(build_batch([(None, value, [], scene.clock.wall_ms())]))
    data = kinds.PartitionProduceData(index=partition, records=batch)
    wanted.request.topic_data.append(kinds.TopicProduceData(name=topic, partition_data=[data]))
    return wanted


def until_done(what: str, make: Callable[[], NodeRequest], *, fine: tuple[int, ...] = (ErrorCode.NONE,)) -> Steps[Any]:
    """Send the request until its one answer has a code in `fine`; the value is that answer."""
    while True:
        response = yield make()
        if response is not None:
            answer = (response.results if hasattr(response, "results") else response.responses)[0]
            answer = answer.partition_responses[0] if hasattr(answer, "partition_responses") else answer
            if answer.error_code in fine:
                return answer
            if not ErrorCode(answer.error_code).retriable:
                raise unexpected(what, answer.error_code)
        yield RETRY_S


def read_all(tp: TopicPartition) -> Steps[list[bytes]]:
    """Every value from offset 0 to the high watermark."""
    found = yield from read_records(tp)
    return [bytes(record.value or b"") for _, record in found]


def set_config(topic: str, name: str, value: str) -> NodeRequest:
    """Ask for one setting of a topic to be changed."""
    wanted = call("IncrementalAlterConfigs", 1)
    kinds = wanted.api.request
    change = kinds.AlterableConfig(name=name, config_operation=0, value=value)
    wanted.request.resources.append(
        kinds.AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[change])
    )
    return wanted


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

    def _delete(self) -> NodeRequest:
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
        yield from until_done(f"make {HARDENING} {durability}", lambda: set_config(HARDENING, DURABILITY, durability))
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


class Grower:
    """Adds partitions to the topic `growing`, writes to each of them, and keeps book of what must stay."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.promised: list[list[bytes]] = [[]]

    def script(self) -> Script:
        """Go on while there are faults to come, then look a last time."""
        scene = self.scene
        yield from create_topic(scene, GROWING, 1, {})
        while scene.faults_on:
            if len(self.promised) < MOST_PARTITIONS:
                # That there are as many already may be the work of a lost reply's request.
                fine = (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS)
                yield from until_done(f"grow {GROWING}", self._add, fine=fine)
                self.promised.append([])
                scene.coverage.hit("partition added to a topic in use")
            for partition, kept in enumerate(self.promised):
                kept.append(b"%d:%d" % (partition, len(kept)))
                yield from until_done(
                    f"produce to {GROWING}",
                    lambda: produce(scene, GROWING, kept[-1], partition),  # noqa: B023
                )
            yield scene.random.uniform(0.0, 0.3)
        for partition, kept in enumerate(self.promised):
            found = yield from read_all(TopicPartition(GROWING, partition))
            if list(dict.fromkeys(found)) != kept:
                raise InvariantViolated("AcknowledgedNeverLost", f"{GROWING}-{partition} holds {found} and not {kept}")

    def _add(self) -> NodeRequest:
        wanted = call("CreatePartitions", 3, timeout_ms=5000)
        kinds = wanted.api.request
        count = len(self.promised) + 1
        wanted.request.topics.append(kinds.CreatePartitionsTopic(name=GROWING, count=count, assignments=None))
        return wanted


class Configurer:
    """Changes settings of topics that others use; what was acknowledged last is what the node says afterwards."""

    def __init__(self, scene: Scene, topics: Sequence[str]) -> None:
        self.scene = scene
        self.topics = topics
        self.told: dict[str, dict[str, str]] = {topic: {} for topic in topics}

    def script(self) -> Script:
        """Go on while there are faults to come."""
        scene = self.scene
        while scene.faults_on:
            yield scene.random.uniform(0.0, 0.3)
            topic = scene.random.choice(self.topics)
            if topic not in scene.created:
                continue
            name = scene.random.choice(list(CHANGED))
            value = scene.random.choice(CHANGED[name])
            yield from until_done(f"{topic} {name}={value}", lambda: set_config(topic, name, value))  # noqa: B023
            scene.note(f"{topic} {name}={value}")
            scene.coverage.hit("setting changed under producers")
            self.told[topic][name] = value
            answer = yield from until_done(f"describe {topic}", lambda: self._describe(topic))  # noqa: B023
            found = {config.name: config.value for config in answer.configs}
            if found != self.told[topic]:
                raise InvariantViolated("AcknowledgedNeverLost", f"{topic} was given {self.told[topic]}, has {found}")

    def _describe(self, topic: str) -> NodeRequest:
        wanted = call("DescribeConfigs", 4)
        wanted.request.resources.append(
            wanted.api.request.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=list(self.told[topic])
            )
        )
        return wanted


def trim(scene: Scene, safe: Callable[[TopicPartition], int]) -> Script:
    """Now and then delete the records that everybody is done with. safe: below this nobody needs a record."""
    while scene.faults_on:
        yield scene.random.uniform(0.1, 0.5)
        tp = scene.random.choice([tp for tp in scene.partitions() if tp.topic not in scene.ledger.retention])
        before = safe(tp)
        if scene.is_stable(tp) and before > 0 and tp.topic in scene.created:
            yield from delete_records(scene, tp, scene.random.randint(0, before))
