"""A broker that the group handlers take for theirs: real machines and codecs, one topic, a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from tests.worlds.group_harness import subscription
from tests.worlds.machine_fakes import FakeClock, FakePartition

from duramen.config import load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata import MetadataImage, NewTopic, Result, TopicCreated, TopicImage
from duramen.machines.metadata.image import BrokerImage, PartitionImage
from duramen.model import TopicPartition
from duramen.partition.host.load_turns import LoadTurns
from duramen.server.api.authorizer import Resource
from duramen.server.api.request import Request
from duramen.server.api.sliced_work import SlicedWork
from duramen.server.coordinators.context import CoordinatorContext
from duramen.server.coordinators.groups import GroupCoordinators
from duramen.server.coordinators.staging_relocation import RelocationRules
from duramen.server.dispatch import TABLE
from duramen.wire.messages import API

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, OFFSET_DELETE = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47,
)  # fmt: skip
TOPIC_ID = b"t" * 16


def versions(key: int) -> range:
    return range(TABLE[key].lowest, TABLE[key].highest + 1)


class Asked(Request):
    """A request whose replies pass through their codec."""

    replies: list[bytes]

    def reply(self, response: Any) -> None:
        self.replies.append(self.row.api.response.encode(response, self.version))


class Inline:
    """The Executor port; what it is given is done at once."""

    def submit(self, lane: str, work: Any, done: Any) -> None:
        done(work(), None)

    def together(self, work: Any) -> list[Any]:
        return [each() for each in work]


class FakeConnection(SimpleNamespace):
    """A connection, by identity."""

    __hash__ = object.__hash__


class Broker:
    """What the handlers and the coordinators need of a broker: one topic `t`, group partitions made when asked for."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.config = load_broker_config(None, {"group.initial.rebalance.delay.ms": "0"})
        self.image = MetadataImage()
        self.image.brokers[1] = BrokerImage(1, 0, bytes(16), ())
        self.add_topic("t", TOPIC_ID, 3)
        self.settings = SimpleNamespace(config=self.config)
        self.store = SimpleNamespace(
            partitions={}, home=lambda tp: SimpleNamespace(journal=SimpleNamespace(failed=None))
        )
        self.controller = SimpleNamespace(
            create=self.create,
            new_topic=lambda name: NewTopic(name, b"o" * 16, 4),
            new_uuid=lambda: b"u" * 16,
        )
        self.publisher = SimpleNamespace(
            image=self.image,
            on_deleted=[],
            on_leaders=[],
            on_brokers=[],
            on_reconfigured=[],
            on_topics=[],
            when_published=lambda callback: callback(),
        )
        self.partitions = SimpleNamespace(find=self.partition)
        self.world = SimpleNamespace(entropy=SimpleNamespace(random_bytes=self.random_bytes))
        self.node_id = 1
        self.made = 0
        self.refuse_creation = False
        self.secrets: dict[Resource, set[str]] = {}
        self.events: list[str] = []
        self.access = SimpleNamespace(authorizer=self)
        self.sliced_work = SlicedWork(self.clock, Inline())
        self.services = self
        self.groups = self.coordinators()

    def coordinators(self) -> GroupCoordinators:
        """As after a start."""
        node: Any = self
        return GroupCoordinators(
            CoordinatorContext(
                clock=self.clock,
                executor=Inline(),
                access=node.access,
                entropy=node.world.entropy,
                settings=node.settings,
                store=node.store,
                controller=node.controller,
                publisher=node.publisher,
                load_turns=LoadTurns(self.clock),
                report=self.report,
                relocation_rules=RelocationRules(),
            )
        )

    def random_bytes(self, length: int) -> bytes:
        self.made += 1
        return self.made.to_bytes(length, "big")

    def report(self, event: str, **fields: Any) -> None:
        self.events.append(event)

    def add_topic(self, name: str, topic_id: bytes, count: int) -> None:
        partitions = [PartitionImage(1, 1, 1, (1,), (1,)) for _ in range(count)]
        self.image.add_topic(TopicImage(name, topic_id, partitions))

    def create(self, topics: list[NewTopic], done: Any) -> None:
        topic = topics[0]
        if self.refuse_creation:
            done(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            return
        self.add_topic(topic.name, topic.topic_id, topic.partitions)
        for index in range(topic.partitions):
            partition: Any = FakePartition()
            partition.tp = TopicPartition(topic.name, index)
            partition.commit_at_once = True
            partition.closed = False
            partition.replication = SimpleNamespace(is_leader=True)
            self.store.partitions[partition.tp] = partition
        done([TopicCreated(topic.name, Result(), topic.topic_id, topic.partitions, 1)])

    def partition(self, topic: str, index: int) -> Any:
        return self.store.partitions.get(TopicPartition(topic, index))

    def endpoints(self, listener: str) -> Iterable[tuple[int, str, int, str | None]]:
        return [(1, "localhost", 9092, None)]

    def denied(
        self, principal: str, host: str, operation: Any, resource: Resource, names: Iterable[str]
    ) -> frozenset[str]:
        return frozenset(names) & frozenset(self.secrets.get(resource, ()))

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """Send one request through its codec; the reply comes back through its codec, None while it is parked."""
        replies = self.begin(key, version, **fields)
        self.clock.advance(0)
        assert len(replies) <= 1
        return API[key].response.decode(replies[0], version) if replies else None

    def begin(self, key: int, version: int, /, **fields: Any) -> list[bytes]:
        """Send one request, of which no more is done than its first step; where its reply will be."""
        api = API[key]
        row = TABLE[key]
        body = api.request.decode(api.request.encode(api.request.new(**fields), version), version)
        denied = frozenset(row.names(body)) & frozenset(self.secrets.get(row.resource, ()))
        transport = SimpleNamespace(peer="10.0.0.7:5555")
        replies: list[bytes] = []
        connection: Any = FakeConnection(
            listener="PLAINTEXT",
            principal="User:x",
            transport=transport,
            client_id="client",
            last_active=0.0,
            closed=False,
            mute=lambda reason: None,
            unmute=lambda reason: None,
        )
        request = Asked(self, connection, row, version, 1)  # type: ignore[arg-type]
        request.body, request.denied = body, denied
        request.replies = replies
        row.handle(request)
        return replies

    def join(self, version: int = 9, member_id: str = "", **fields: Any) -> Any:
        protocol = API[JOIN].request.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))
        options: dict[str, Any] = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000 if version else -1,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [protocol],
            **fields,
        }
        return self.ask(JOIN, version, **options)

    def member(self, version: int = 9) -> Any:
        """A member whose generation has begun."""
        joined = self.join(version)
        if joined is not None and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = self.join(version, joined.member_id)
        assert joined.error_code == 0
        return joined

    def stable(self) -> Any:
        joined = self.member()
        assignment = API[SYNC].request.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
        synced = self.ask(
            SYNC, 5, group_id="g", generation_id=1, member_id=joined.member_id, protocol_type="consumer",
            protocol_name="range", assignments=[assignment],
        )  # fmt: skip
        assert (synced.error_code, synced.assignment) == (0, b"mine")
        return joined

    def commit(self, version: int = 10, index: int = 0, topic_id: bytes = TOPIC_ID, **fields: Any) -> int:
        request = API[COMMIT].request
        partition = request.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=5, committed_leader_epoch=3, committed_metadata="note"
        )
        topic = request.OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[partition])
        reply = self.ask(COMMIT, version, **{"group_id": "g", "topics": [topic], **fields})
        code = reply.topics[0].partitions[0].error_code
        assert isinstance(code, int)
        return code
