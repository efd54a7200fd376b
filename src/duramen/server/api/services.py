"""What a handler may ask of its node: one frozen value of parts with small interfaces.

`Broker` builds it when the node has started. Handlers, metrics and the request decoder know this value and never the
broker; what stands above this package in the order of imports (coordinators, metrics) is named here by a Protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from duramen.config import BrokerConfig
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.commands import NewTopic
from duramen.machines.metadata.image import Endpoint, MetadataImage
from duramen.model import TopicPartition
from duramen.partition.store.store import Store
from duramen.ports import Clock, World
from duramen.server.api.authorizer import AccessControl
from duramen.server.api.outstanding_appends import OutstandingAppends
from duramen.server.api.served_partitions import ServedPartitions
from duramen.server.api.sliced_work import SlicedWork
from duramen.server.api.transactional_appends import TransactionalAppends
from duramen.server.net.listener_type import ListenerType
from duramen.server.reads.cold_read_scheduler import ColdReads
from duramen.server.reads.fetch_sessions import FetchSessions
from duramen.server.reads.parked_fetches import ParkedFetches
from duramen.server.reads.segment_leases import SegmentAccess

if TYPE_CHECKING:
    from duramen.machines.contract import ProducerEpoch
    from duramen.machines.sink import SinkMachine
    from duramen.machines.sink.pieces import StagedRange
    from duramen.machines.sink.state import SinkCommit
    from duramen.partition.host.host import Host
    from duramen.partition.metadata.quorum import Quorum
    from duramen.partition.replica.partition import Partition
    from duramen.partition.sinks.commit_applier import CommitApplier
    from duramen.server.net.connection import ClientConnection

Reply = Callable[[Any], None]


class LiveSettings:
    """The node's settings as they are now; dynamic ones change while it runs."""

    __slots__ = ("auto_create_topics", "config", "fetch_max_bytes")

    def __init__(self, config: BrokerConfig) -> None:
        self.auto_create_topics = config.boolean("auto.create.topics.enable")
        self.adopt(config)

    def adopt(self, config: BrokerConfig) -> None:
        """Go on with these."""
        self.config = config
        self.fetch_max_bytes = config.integer("fetch.max.bytes")


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who this node is, and what it serves. apis: (key, lowest, highest version) by the type of the listener; features:
    (name, lowest, highest), those whose levels are records of the metadata log."""

    id: int
    cluster_id: str
    directory_uuid: bytes
    endpoints: Sequence[Endpoint]
    """Of the broker."""
    controller_endpoints: Sequence[Endpoint]
    features: Sequence[tuple[str, int, int]]
    apis: Mapping[ListenerType, Sequence[tuple[int, int, int]]]


class ControllerService(Protocol):
    """This node's metadata log, and changes of it where the node is the active controller."""

    quorum: Quorum

    @property
    def partition(self) -> Partition:
        """The metadata log."""

    def decide(self, command: Any, done: Reply, *, makes_room: bool = False) -> None:
        """Have the metadata machine decide; `done(answer)` once that is committed, and in the image here."""

    def heartbeat(self, command: Any, done: Reply) -> None:
        """Decide about a broker's heartbeat; `done(answer)` once this node has shown that it still decides."""

    def submit(self, command: Any, done: Reply) -> None:
        """Have the metadata machine decide; `done(answer)` once that is committed and its partitions are there."""

    def new_topic(self, name: str) -> NewTopic: ...

    def new_uuid(self) -> bytes: ...

    @property
    def is_active(self) -> bool:
        """Whether this node decides: else every command is answered with NOT_CONTROLLER."""


class ActiveController(Protocol):
    """The active controller, wherever it is."""

    def create(self, topics: list[NewTopic], done: Reply) -> None:
        """Create topics with the cluster's defaults where they leave something open; `done` when they can be used."""

    def new_topic(self, name: str) -> NewTopic: ...

    def forward(self, request: Any, handle: Callable[[Any], None], *, makes_partitions: bool = False) -> None:
        """Have the handler answer at the active controller; the client is told when the image here has the result."""


class Publisher(Protocol):
    """The committed metadata."""

    @property
    def image(self) -> MetadataImage: ...


class Asker(Protocol):
    """What of a request `in_turns` uses."""

    connection: ClientConnection

    def drop_connection(self, reason: str) -> None: ...


class Groups(Protocol):
    """The group coordinators of this node."""

    def ensure_topics(self, done: Callable[[ErrorCode], None]) -> None:
        """`done(NONE)` once `__consumer_offsets` exists; it is created if need be."""

    def place(self, name: str) -> int:
        """The node that has the group's coordinator; -1 when there is none."""

    def in_turns(self, request: Asker, group_ids: list[str], ask: Callable[[list[str]], None]) -> None:
        """`ask` about the request's groups, so many at a time, with the loop free in between."""

    def sharing(self, group_ids: Iterable[str]) -> list[list[str]]:
        """The groups, those of one machine together."""

    def submit(self, group_id: str, command: Any, on_reply: Reply) -> None:
        """Have the group's machine decide; errors reach `on_reply` as DuramenError."""

    def submit_everywhere(self, command: Any, on_replies: Callable[[list[Any]], None]) -> None:
        """Ask every machine here; `on_replies` gets all their answers, in the order of their partitions."""

    def partition_of(self, group_id: str) -> TopicPartition | None:
        """The partition of `__consumer_offsets` that has the group; None while there is no such topic."""

    def end_transaction(
        self,
        index: int,
        producer: ProducerEpoch,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """End a producer's transaction in a partition of `__consumer_offsets`; `done(None)` once that is committed."""

    def summary(self) -> Any:
        """How many groups and members there are."""

    def committed_offsets(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """(group, partition, committed offset) of every loaded group."""


class TransactionSummary(NamedTuple):
    """What metrics tell of the transactions that are coordinated here."""

    ids: int
    open: int
    oldest_open_seconds: float
    ending: int
    oldest_ending_seconds: float
    markers: int
    fenced: int


class Transactions(Protocol):
    """The transaction coordinators of this node, and the way to those of others."""

    def ensure_topics(self, done: Callable[[ErrorCode], None]) -> None:
        """`done(NONE)` once `__transaction_state` exists; it is created if need be."""

    def place(self, name: str) -> int:
        """The node that has the transactional id's coordinator; -1 when there is none."""

    def in_turns(self, request: Asker, ids: list[str], ask: Callable[[list[str]], None]) -> None:
        """`ask` about the request's transactional ids, so many at a time, with the loop free in between."""

    def sharing(self, ids: Iterable[str]) -> list[list[str]]:
        """The transactional ids, those of one machine together."""

    def submit(self, name: str, command: Any, on_reply: Reply) -> None:
        """Have the transactional id's machine here decide; errors reach `on_reply` as DuramenError."""

    def submit_everywhere(self, command: Any, on_replies: Callable[[list[Any]], None]) -> None:
        """Ask every machine here; `on_replies` gets all their answers, in the order of their partitions."""

    def verify(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: tuple[TopicPartition, ...],
        verify_only: bool,
        done: Callable[[dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        """Ask the coordinator, wherever it is, whether the transaction has the partitions, or add them to it.

        `done` gets what was refused: with {} all are part of it, durably.
        """

    def summary(self) -> TransactionSummary:
        """What metrics tell."""


class SinkHost(Protocol):
    """One partition's worth of sinks: host, machine, and the staging log beside them."""

    host: Host
    machine: SinkMachine
    staging: Partition

    def store(
        self,
        pieces: Sequence[Sequence[memoryview]],
        now_ms: int,
        done: Callable[[list[StagedRange] | KafkaError], None],
    ) -> Callable[[], None]:
        """Append pieces to the staging log; `done` when they are committed. Call what is returned once recorded."""


class Sinks(Protocol):
    """The sink coordinators of this node."""

    @property
    def materialiser(self) -> CommitApplier: ...

    def ensure_topics(self, done: Callable[[ErrorCode], None]) -> None:
        """`done(NONE)` once both topics exist; they are created if need be."""

    def place(self, name: str) -> int:
        """The node that has the sink's coordinator; -1 when there is none."""

    def find(self, sink_id: str, done: Callable[[SinkHost | KafkaError], None]) -> None:
        """The sink's coordinator, or why there is none now."""

    def submit(self, sink_id: str, command: Any, on_reply: Reply) -> None:
        """Have the sink's machine decide; errors reach `on_reply` as DuramenError."""

    def running(self) -> Iterator[SinkHost]:
        """Those that run here and have loaded."""

    def commit(self, sink_id: str, batch_id: int) -> SinkCommit | None:
        """A batch that is committed and remembered."""

    def oldest_seconds(self) -> float:
        """Since when the oldest batch that is committed and not finished waits; 0 without one."""

    def new_producer_id(self) -> int:
        """A producer id for a sink."""


class ProducerIdSupply(Protocol):
    """Ids for idempotent producers."""

    def next(self, answer: Callable[[int | KafkaError], None]) -> None: ...


class RequestCounts(Protocol):
    """What is counted of requests."""

    def request(self, api_key: int, seconds: float) -> None: ...

    def error(self, api_key: int) -> None: ...

    def error_codes(self, api_key: int, codes: Mapping[int, int]) -> None: ...


class EventReport(Protocol):
    """Lines of the node's log."""

    def __call__(self, event: str, **fields: Any) -> None: ...


class ReportBug(Protocol):
    """The same for what should be impossible; the log keeps the traceback."""

    def __call__(self, event: str, error: BaseException, **fields: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """See the module."""

    clock: Clock
    world: World
    node: NodeIdentity
    settings: LiveSettings
    access: AccessControl
    controller: ControllerService
    controller_client: ActiveController
    publisher: Publisher
    store: Store
    partitions: ServedPartitions
    groups: Groups
    transactions: Transactions
    sinks: Sinks
    producer_ids: ProducerIdSupply
    transactional_appends: TransactionalAppends
    appends: OutstandingAppends
    parked: ParkedFetches
    cold_reads: ColdReads
    fetch_sessions: FetchSessions
    segments: SegmentAccess
    sliced_work: SlicedWork
    metrics: RequestCounts
    broker_heard: Callable[[int, int, ClientConnection], None]
    """Called with id and epoch when this node, as the active controller, has heard a broker by a connection."""
    report: EventReport
    report_bug: ReportBug

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        return self.publisher.image

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now."""
        return self.settings.config

    def endpoints(self, listener: str) -> Iterable[tuple[int, str, int, str | None]]:
        """(node id, host, port, rack) of every broker that serves, on the listener the client came through."""
        for broker in self.image.serving_brokers():
            endpoint = broker.endpoint(listener)
            if endpoint is not None:
                yield broker.id, endpoint.host, endpoint.port, broker.rack

    @property
    def active_controller(self) -> int:
        """The node that decides about metadata: the quorum's leader; -1 when none is known."""
        return self.controller.quorum.leader_id

    @property
    def kraft_version(self) -> int:
        """Whether the voters stand in the log (1, KIP-853)."""
        return 0 if self.controller.quorum.recorded_voters is None else 1

    def controllers(self, listener: str) -> Iterable[tuple[int, str, int]]:
        """(node id, host, port) of every controller on the controller's listener that somebody came through."""
        for voter in self.controller.quorum.voters:
            for endpoint in voter.endpoints:
                if endpoint.name == listener:
                    yield voter.id, endpoint.host, endpoint.port
