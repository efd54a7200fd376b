"""What clients ask of a broker with several log directories, in steps, and a ledger of what they were told."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from tests.crash.node_run import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    FIND_COORDINATOR,
    OFFSET_COMMIT,
    PRODUCE,
    REFUSALS,
)
from tests.crash.promises import require
from tests.worlds.broker_world import NOW, InProcess, Line

from duramen.errors import ErrorCode
from duramen.model import TopicId
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

ALTER_CONFIGS = 44
ASKED: Mapping[int, tuple[int, Callable[[Any], int]]] = {
    PRODUCE: (9, lambda reply: reply.responses[0].partition_responses[0].error_code),
    OFFSET_COMMIT: (8, lambda reply: reply.topics[0].partitions[0].error_code),
    FIND_COORDINATOR: (4, lambda reply: reply.coordinators[0].error_code),
    CREATE_TOPICS: (7, lambda reply: reply.topics[0].error_code),
    DELETE_TOPICS: (6, lambda reply: reply.responses[0].error_code),
    DELETE_RECORDS: (2, lambda reply: reply.topics[0].partitions[0].error_code),
    ALTER_CONFIGS: (1, lambda reply: reply.responses[0].error_code),
}
"""In which version, and where a reply has its error."""
SETTING = "max.message.bytes"
"""What is changed of topics."""
TOPICS, CONNECTIONS, IN_FLIGHT = 5, 3, 3
GROUPS = ("readers", "writers", "others")
SIZES = (20, 20, 200, 2000, 9000)
"""Of values. The largest go to the segments at once (duramen.journal.bypass.bytes)."""


@dataclass(slots=True, eq=False)
class Producer:
    """An idempotent one. sent: its values by sequence. told: where it knows them to be. next: what it sends next."""

    id: int
    sent: list[bytes] = field(default_factory=list)
    told: dict[int, int] = field(default_factory=dict)
    next: int = 0
    in_flight: int = 0
    goes_back: bool = False

    def answered(self, *, stored: bool) -> None:
        """Once nothing is in flight, what is not known to be stored is sent again."""
        self.in_flight -= 1
        self.goes_back |= not stored
        if self.goes_back and not self.in_flight:
            self.goes_back = False
            self.next = min(each for each in range(len(self.sent) + 1) if each not in self.told)


@dataclass(slots=True, eq=False)
class PartitionPromise:
    """Of one partition. stored: what was acknowledged, by offset. start: the acknowledged one."""

    producers: tuple[Producer, Producer]
    stored: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    start_asked: int = 0


@dataclass(slots=True, eq=False)
class TopicPromise:
    """One topic, from its creation to its deletion; the next of its name is another. id: once it is known.

    configs, positions: what was asked for,
    behind the last that was acknowledged.
    """

    name: str
    parts: list[PartitionPromise]
    made: bool = False
    id: TopicId | None = None
    delete_asked: bool = False
    deleted: bool = False
    configs: list[str | None] = field(default_factory=lambda: [None])
    positions: dict[str, list[int]] = field(default_factory=lambda: {group: [-1] for group in GROUPS})


def acknowledged(asked: list[Any], value: Any) -> None:
    """What was asked for before it is no longer to be found."""
    if value in asked:
        del asked[: asked.index(value)]


class Clients:
    """The clients of one life, and what they do. topics: the ledger. met: how often something was met, by name."""

    server: InProcess
    steps: ClassVar[Mapping[str, int]] = {
        "create": 3,
        "delete": 2,
        "produce": 16,
        "commit": 2,
        "delete_records": 1,
        "configure": 1,
    }
    """How often each is drawn, by the name of its method."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed * 7919 + 3)
        self.met: Counter[str] = Counter()
        self.topics: list[TopicPromise] = []
        self._connections: list[tuple[Line, deque[tuple[int, Callable[[Any], None]]]]] = []
        self._count = 1000

    # ---- connections

    def connect(self) -> None:
        """To the server as it is now."""
        self._connections = [(self.server.connect(), deque()) for _ in range(CONNECTIONS)]

    def listen(self) -> None:
        """Take the replies that have come."""
        for line, waiting in self._connections:
            while waiting and (reply := line.answer(waiting[0][0], ASKED[waiting[0][0]][0])) is not None:
                waiting.popleft()[1](reply)

    def disconnect(self) -> None:
        """The server is gone: what was not answered never will be."""
        self.listen()
        for _, waiting in self._connections:
            while waiting:
                waiting.popleft()[1](None)
        self._connections = []

    def _ask(
        self,
        api: int,
        done: Callable[[Any], object],
        *,
        failed: Callable[[int], bool | None] = lambda code: None,
        sender: int | None = None,
        **fields: Any,
    ) -> None:
        """done: takes a reply without an error. failed: takes the code, -1 without a reply; True: it may be so.

        sender: whose requests keep their order.
        """
        name, (version, code_of) = API[api].name, ASKED[api]

        def told(reply: Any) -> None:
            code = -1 if reply is None else code_of(reply)
            if code == 0:
                done(reply)
            elif not failed(code):
                require(code == -1 or code in REFUSALS, f"{name}: {ErrorCode(code).name}")
            self.met[f"{name}: {ErrorCode(code).name if reply is not None else 'no reply'}"] += 1

        at = self.dice.randrange(CONNECTIONS) if sender is None else sender % CONNECTIONS
        line, waiting = self._connections[at]
        waiting.append((api, told))
        line.ask(api, version, **fields)

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _some(self) -> TopicPromise | None:
        """A topic that is there and that nobody wants to delete."""
        there = [topic for topic in self.topics if topic.made and not topic.delete_asked]
        return self.dice.choice(there) if there else None

    # ---- topics

    def create(self) -> None:
        """A topic, often under the name of one that was deleted or is about to be."""
        last = {topic.name: topic for topic in self.topics}
        free = [name for name, topic in last.items() if topic.delete_asked]
        if len(last) - len(free) >= TOPICS:
            return
        again = bool(free) and self.dice.random() < 0.7
        name = self.dice.choice(free) if again else f"topic{self._number()}"
        parts = [
            PartitionPromise((Producer(self._number()), Producer(self._number())))
            for _ in range(self.dice.randrange(1, 5))
        ]
        topic = TopicPromise(name, parts)
        self.topics.append(topic)

        def done(reply: Any) -> None:
            topic.id, topic.made = bytes(reply.topics[0].topic_id), True
            self.met["topics made under an old name"] += again

        def failed(code: int) -> bool:
            """It never was, where the one before is still there."""
            is_there = code == ErrorCode.TOPIC_ALREADY_EXISTS
            topic.delete_asked = topic.deleted = is_there
            return is_there and any(each.name == topic.name and not each.deleted for each in self.topics)

        wanted = API[CREATE_TOPICS].request.CreatableTopic(
            name=topic.name, num_partitions=len(topic.parts), replication_factor=1
        )
        self._ask(CREATE_TOPICS, done, failed=failed, topics=[wanted], timeout_ms=1000)

    def delete(self) -> None:
        """A topic."""
        topic = self._some()
        if topic is not None:
            topic.delete_asked = True
            state = API[DELETE_TOPICS].request.DeleteTopicState(name=topic.name, topic_id=bytes(16))
            self._ask(DELETE_TOPICS, lambda reply: setattr(topic, "deleted", True), topics=[state], timeout_ms=1000)

    def configure(self) -> None:
        """Change a setting of a topic."""
        topic = self._some()
        if topic is None:
            return
        value = str(100_000 + self._number())
        topic.configs.append(value)
        request = API[ALTER_CONFIGS].request
        wanted = [request.AlterableConfig(name=SETTING, config_operation=0, value=value)]
        resource = request.AlterConfigsResource(resource_type=2, resource_name=topic.name, configs=wanted)
        fields: dict[str, Any] = {"resources": [resource], "validate_only": False}
        self._ask(ALTER_CONFIGS, lambda reply: acknowledged(topic.configs, value), sender=0, **fields)

    # ---- records and positions

    def produce(self) -> None:
        """A record of one of the two producers of a partition."""
        topic = self._some()
        if topic is not None:
            self._send(topic, self.dice.randrange(len(topic.parts)), self.dice.randrange(2), self.dice.choice(SIZES))

    def fill_journal(self) -> None:
        """Of one directory: one producer sends until it is refused, and the other what is small enough to fit still."""
        topic = self._some()
        if topic is None:
            return
        index = self.dice.randrange(len(topic.parts))
        self.server.lanes.held = set()
        for number, size, most in ((0, 2000, 50), (1, 20, 100)):
            producer = topic.parts[index].producers[number]
            for _ in range(most):
                self._send(topic, index, number, size)
                self.server.run()
                self.listen()
                if producer.next < len(producer.sent):
                    self.met["journals filled"] += number
                    break

    def _send(self, topic: TopicPromise, index: int, number: int, size: int) -> None:
        """The producer's next record, or one again whose outcome is not known."""
        promise = topic.parts[index]
        producer = promise.producers[number]
        if producer.goes_back or producer.in_flight >= IN_FLIGHT:
            return
        sequence = producer.next
        if sequence == len(producer.sent):
            producer.sent.append(b"%d %d " % (producer.id, sequence) + bytes(size))
        value = producer.sent[sequence]
        producer.next += 1
        producer.in_flight += 1

        def done(reply: Any) -> None:
            offset = reply.responses[0].partition_responses[0].base_offset
            first = producer.told.setdefault(sequence, offset)
            require(first == offset, f"{topic.name}-{index}: a record is said to be at {first}, and at {offset}")
            promise.stored[offset] = value
            producer.answered(stored=True)

        request = API[PRODUCE].request
        batch = build_batch([(b"k", value, (), NOW)], producer_id=producer.id, producer_epoch=0, base_sequence=sequence)
        data = [request.PartitionProduceData(index=index, records=batch)]
        self._ask(
            PRODUCE,
            done,
            failed=lambda code: producer.answered(stored=False),
            sender=producer.id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[request.TopicProduceData(name=topic.name, partition_data=data)],
        )

    def delete_records(self) -> None:
        """All below an offset of a partition."""
        topic = self._some()
        stored = [index for index, promise in enumerate(topic.parts) if promise.stored] if topic is not None else []
        if topic is None or not stored:
            return
        index = self.dice.choice(stored)
        promise = topic.parts[index]
        offset = self.dice.choice(list(promise.stored)) + 1
        promise.start_asked = max(promise.start_asked, offset)
        request = API[DELETE_RECORDS].request
        wanted = [request.DeleteRecordsPartition(partition_index=index, offset=offset)]
        topics = [request.DeleteRecordsTopic(name=topic.name, partitions=wanted)]

        def done(reply: Any) -> None:
            promise.start = max(promise.start, offset)

        self._ask(DELETE_RECORDS, done, topics=topics, timeout_ms=1000)

    def commit(self) -> None:
        """A group's position in a topic; the first question for a coordinator makes the topic of positions."""
        topic, group = self._some(), self.dice.randrange(len(GROUPS))
        if topic is None:
            return
        if self.dice.random() < 0.2:
            self._ask(FIND_COORDINATOR, lambda reply: None, key_type=0, coordinator_keys=[GROUPS[group]])
        asked, position = topic.positions[GROUPS[group]], self._number()
        asked.append(position)
        request = API[OFFSET_COMMIT].request
        wanted = request.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=position, committed_metadata=""
        )
        topics = [request.OffsetCommitRequestTopic(name=topic.name, partitions=[wanted])]
        fields = {"group_id": GROUPS[group], "member_id": "", "generation_id_or_member_epoch": -1, "topics": topics}
        self._ask(OFFSET_COMMIT, lambda reply: acknowledged(asked, position), sender=group, **fields)
