"""One broker: it wires store, metadata, coordinators and door together, starts them in order and stops them cleanly.

Start: lock and recover the log directories → replay the metadata log → open partitions → take the listeners' ports →
register (which raises the leader epoch of everything led here, durably) → serve.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.config import BrokerConfig
from duramen.errors import DuramenError, ErrorCode, KafkaError, StorageError
from duramen.machines.metadata.commands import BrokerStopping, RegisterBroker, Registered
from duramen.machines.metadata.image import Endpoint, MetadataImage, PartitionImage
from duramen.model import UNREADABLE_TOPICS, TopicId, TopicPartition, topic_id_from_text
from duramen.partition.host.load_turns import LoadTurns
from duramen.partition.metadata.controller import METADATA_PARTITION, Controller
from duramen.partition.metadata.directory_checks import check_apart
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.replica.partition import Partition
from duramen.partition.store.settings import cleaner_settings, directory_settings
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.server.api.acceptor import Door
from duramen.server.api.authorizer import AllowAll, Authorizer, Operation, Resource
from duramen.server.api.sliced_work import SlicedWork
from duramen.server.coordinators.groups import GroupCoordinators
from duramen.server.coordinators.producer_ids import ProducerIdSource
from duramen.server.coordinators.sinks import SinkCoordinators
from duramen.server.coordinators.staging_relocation import RelocationRules
from duramen.server.dispatch import advertised
from duramen.server.handlers.produce_reply import ProduceReplies
from duramen.server.metrics.metrics import Metrics
from duramen.server.reads.cold_read_scheduler import ColdReads
from duramen.server.reads.fetch_sessions import FetchSessions
from duramen.server.reads.segment_leases import SegmentAccess
from duramen.storage import (
    Damage,
    Log,
    LogDirectory,
    NoRoomError,
    disk_advice,
    known_cluster,
    read_losses,
    remedy_of,
)

if TYPE_CHECKING:
    from duramen.server.api.request import Request
    from duramen.server.handlers.fetch import FetchCall
    from duramen.server.handlers.produce import ProduceCall, ProduceRequest

METADATA_FEATURE = ("metadata.version", 7, 30)
"""Record formats that are read here: from 3.3-IV3 on, the first that Kafka 4 reads, to 4.3-IV0, which is written."""

WAKES_PER_TURN = 64
"""Parked readers served before the loop turns to sockets again (17 µs each)."""

SWEEP_SECONDS = 0.1

MOST_LOSSES_TOLD = 20
"""What repairs took out is told at each start, so many ranges at most."""

Report = Callable[[str, str, "dict[str, Any]"], None]
"""(level, event, fields): where the broker's log lines go."""


def _silent(level: str, event: str, fields: dict[str, Any]) -> None:
    """The default log: nowhere."""


_ERRORS = frozenset(
    {
        "damage",
        "read-failed",
        "partition-offline",
        "uncleanable",
        "partition-not-deleted",
        "coordinator-load-failed",
        "stop-failed",
        "sink-records-missing",
    }
)


class Broker:
    """A broker on the five ports. All methods run on the loop thread."""

    def __init__(self, world: World, config: BrokerConfig, report: Report = _silent) -> None:
        self.world = world
        self.clock = world.clock
        self.config = config
        self.node_id = config.integer("node.id")
        self.metrics = Metrics()
        self.authorizer: Authorizer = AllowAll()
        self.features = [METADATA_FEATURE]
        self.advertised = advertised()
        self.outstanding: dict[ProduceCall | ProduceRequest, None] = {}
        """Appends that have no answer yet; put in by `wait_for`, taken out by whoever answers."""
        self.sweeping = False
        self.produce_replies = ProduceReplies()
        self.relocation_rules = RelocationRules()
        self._report = report
        self.parked_partitions = 0
        """Of all fetches that wait for records."""
        self._woken: deque[FetchCall] = deque()
        self._wake_scheduled = False
        self.store = Store(world, self.node_id)
        self.store.compaction.configure(cleaner_settings(config))
        self.store.statistics.observers.append(self.metrics.sync.observe)
        self.store.on_failure = self._directory_failed
        self.store.disk_full.on_change = self._directory_full
        self.fetch_sessions = FetchSessions(config.integer("max.incremental.fetch.session.cache.slots"), world.entropy)
        self.segments = SegmentAccess(world, config)
        self.large_work = SlicedWork(self.clock, world.executor)
        self.fetch_max_bytes = config.integer("fetch.max.bytes")
        self.auto_create_topics = config.boolean("auto.create.topics.enable")
        self.publisher = MetadataPublisher(world, self.store, config, self.node_id, self.report)
        self.controller = Controller(world, self.store, self.publisher, self.node_id, self.report)
        self.publisher.on_reconfigured.append(self._reconfigured)
        self.door = Door(self)
        self.door.receiver.congested = lambda: self.store.congested
        self.cold_reads = ColdReads(
            world,
            lambda: self.door.receiver.bytes_in,
            self.door.receiver.unread,
            config.integer("duramen.cold.read.bytes.per.second"),
        )
        self.store.on_relief = self.door.receiver.feed_starved
        self.cluster_id = ""
        self.directory_uuid = bytes(16)
        self.broker_epoch = -1
        self.advertised_addresses: list[Endpoint] = []
        self.ready = False
        self.stopping = False
        self.unclean: list[BaseException] = []
        """Why the stop was not a clean one, when that is over."""

    # ---- start -----------------------------------------------------------------------------------------------

    def start(self, on_ready: Callable[[], None]) -> None:
        """Recover and serve; `on_ready` once clients are served. Raises DuramenError or OSError when it cannot."""
        paths = self.config.strings("log.dirs")
        self.cluster_id = known_cluster(self.world.disk, paths) or ""  # taken over by new ones, also in front of it
        for path in paths:
            directory = self.store.open_directory(path, directory_settings(self.config, self.cluster_id or None))
            self.cluster_id = directory.cluster_id
            directory.findings.on_found = self._found_damage
            directory.scrubber.on_round = partial(self._scrubbed, directory)
            directory.cleaner.on_uncleanable = self._uncleanable
            recovery = directory.recovery
            self.report(
                "recovered",
                directory=path,
                clean=recovery.clean,
                entries=recovery.entries_replayed,
                bytes_cut=recovery.bytes_cut,
            )
            for loss in read_losses(self.world.disk, path)[:MOST_LOSSES_TOLD]:
                self.report("records-lost", **loss)  # until somebody removes the list
            for damage in recovery.damage:
                self.report("damage", directory=path, what=str(damage))
        check_apart(self.store.directories)
        self.directory_uuid = topic_id_from_text(self.store.directories[0].directory_id)
        self.door.bind()
        self.controller.start()
        self.metadata = self.controller.host
        self.loads = LoadTurns(self.clock)
        """Of all coordinators: one slice a turn."""
        self.coordinators = GroupCoordinators(self)
        self.sinks = SinkCoordinators(self)
        self.metadata.submit(self._registration(), lambda answer: self._registered(answer, on_ready))

    def _registration(self) -> RegisterBroker:
        endpoints = []
        for (address, listener), told in zip(self.door.listeners, self.config.advertised_listeners, strict=True):
            port = listener.port if told.port == 0 or told.port == address.port else told.port
            endpoints.append(Endpoint(address.name, told.host or "127.0.0.1", port, 0))
        self.advertised_addresses = endpoints
        return RegisterBroker(
            self.node_id,
            self.controller.new_uuid(),
            tuple(endpoints),
            self.config.string("broker.rack") or None,
            self.publisher.closed_directories.registered_ids(),
        )

    def _registered(self, answer: Any, on_ready: Callable[[], None]) -> None:
        if self.stopping:
            return  # told to stop while starting
        if not isinstance(answer, Registered):
            raise answer if isinstance(answer, DuramenError) else StorageError(f"registration failed: {answer}")
        self.broker_epoch = answer.broker_epoch
        self.producer_ids = ProducerIdSource(self.metadata, self.node_id, self.broker_epoch)
        self.coordinators.load_all()
        self.sinks.load_all()
        self.store.maintenance.start()
        self.door.open()
        self.ready = True
        on_ready()

    # ---- stop ------------------------------------------------------------------------------------------------

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Stop cleanly: say so in the metadata log, drain the journal, close every file."""
        if self.stopping:
            return
        self.stopping = True
        self.ready = False

        def finish(_: Any) -> None:
            self.door.close()
            self.cold_reads.close()
            self.coordinators.close()
            self.sinks.close()
            self.metadata.close()
            self.store.stop(close)

        def close() -> None:
            for _ in self.store.directories:
                try:
                    self.store.close(clean=True)
                    break
                except (OSError, StorageError) as error:
                    # One directory; what it acknowledged is in its journal, from which the next start recovers it.
                    self.report("stop-failed", error=error)
                    self.unclean.append(error)
            if not self.unclean:  # of a directory that failed before
                self.unclean += [each.journal.failed for each in self.store.directories if each.journal.failed]
            self.report("stopped")
            on_stopped()

        if self.broker_epoch < 0:
            finish(None)
        else:
            self.metadata.submit(BrokerStopping(self.node_id, self.broker_epoch), finish)

    # ---- what handlers ask -----------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self.publisher.image

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition if this broker has it; some logs are not for clients, whatever they know of them."""
        return None if topic in UNREADABLE_TOPICS else self.store.partitions.get(TopicPartition(topic, index))

    def partition_by_id(self, topic_id: TopicId, index: int) -> Partition | None:
        """The same by topic id."""
        partition = self.store.partition_by_id(topic_id, index)
        return None if partition is None or partition.tp.topic in UNREADABLE_TOPICS else partition

    def partition_at(self, topic: str, index: int, leader_epoch: int) -> Partition:
        """The partition, if the client's leader epoch (-1: it names none) is the current one; KafkaError (KIP-320)."""
        partition = self.partition(topic, index)
        if partition is None:
            raise KafkaError(self.absent(topic, index))
        stale = partition.replication.epoch_error(leader_epoch)
        if stale is not None:
            raise KafkaError(stale)
        return partition

    def absent(self, topic: str, index: int) -> ErrorCode:
        """Why `partition` has nothing: KAFKA_STORAGE_ERROR when it is too damaged to be served."""
        known = self.image.topic(topic)
        if known is None or not self.store.hosted.is_offline((known.id, index)):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.KAFKA_STORAGE_ERROR

    def _reconfigured(self, config: BrokerConfig) -> None:
        self.config = config
        self.fetch_max_bytes = config.integer("fetch.max.bytes")
        self.cold_reads.bytes_per_second = config.integer("duramen.cold.read.bytes.per.second")
        self.store.compaction.configure(cleaner_settings(config))

    def endpoints(self, listener: str) -> Iterable[tuple[int, str, int, str | None]]:
        """(node id, host, port, rack) of every active broker on the listener the client came through."""
        for broker in self.image.active_brokers():
            endpoint = broker.endpoint(listener)
            if endpoint is not None:
                yield broker.id, endpoint.host, endpoint.port, broker.rack

    def offline_replicas(self, topic: str, index: int, partition: PartitionImage) -> list[int]:
        """Replicas that cannot be read or written: here, those on a failed directory."""
        here = self.store.partitions.get(TopicPartition(topic, index))
        if self.node_id in partition.replicas and here is None:
            return [self.node_id]
        return []

    def denies(
        self, request: Request, operation: Operation, resource: Resource, names: Iterable[str]
    ) -> frozenset[str]:
        """Those of `names` the request's principal may not touch with `operation`."""
        connection = request.connection
        return self.authorizer.denied(connection.principal, connection.transport.peer, operation, resource, names)

    def deny_topics(self, request: Request, names: Iterable[str]) -> frozenset[str]:
        """Topics among `names` that the request's own operation may not touch."""
        return self.denies(request, request.row.operation, Resource.TOPIC, names)

    # ---- parked requests -------------------------------------------------------------------------------------

    def wake_soon(self, call: FetchCall) -> None:
        """Give a parked reader its turn; many are served in slices, so that sockets are not kept waiting."""
        self._woken.append(call)
        if not self._wake_scheduled:
            self._wake_scheduled = True
            self.clock.call_last(self._wake)

    def _wake(self) -> None:
        woken = self._woken
        for _ in range(min(WAKES_PER_TURN, len(woken))):
            woken.popleft().retry()
        self._wake_scheduled = bool(woken)
        if woken:
            self.clock.call_soon(self._wake)

    def wait_for(self, call: ProduceCall | ProduceRequest) -> None:
        """Watch the time-out of an append that begins. `ProduceRequest.append` has this code inline."""
        self.outstanding[call] = None
        if not self.sweeping:
            self.sweep_later()

    def sweep_later(self) -> None:
        """There is an append whose time-out is to be watched."""
        self.sweeping = True
        self.clock.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Answer produce requests whose time-out has passed; go on while there are any."""
        self.sweeping = bool(self.outstanding) and not self.stopping
        if not self.sweeping:
            return
        self.sweep_later()
        now = self.clock.monotonic()
        for call in [call for call in self.outstanding if call.deadline <= now]:
            call.expire()

    # ---- telling ---------------------------------------------------------------------------------------------

    def report(self, event: str, **fields: Any) -> None:
        """One line of the broker's log: an error where stored data or a partition is not to be had."""
        self._report("error" if event in _ERRORS else "info", event, fields)

    def report_bug(self, event: str, error: BaseException, **fields: Any) -> None:
        """Something that should be impossible; the log keeps the traceback."""
        self._report("error", event, {**fields, "error": repr(error), "traceback": error})

    def _uncleanable(self, log: Log, error: BaseException) -> None:
        self.report("uncleanable", partition=str(log.tp), error=str(error))

    def _found_damage(self, damage: Damage) -> None:
        self.report("damage", **damage.fields())

    def _scrubbed(self, directory: LogDirectory) -> None:
        scrubber = directory.scrubber
        took_ms = (scrubber.ended_ms or 0) - (scrubber.started_ms or 0)
        damaged = len(directory.known_damage())
        self.report("scrubbed", directory=directory.path, bytes=scrubber.round_bytes, ms=took_ms, damaged=damaged)

    def _directory_full(self, directory: LogDirectory, error: NoRoomError | None) -> None:
        if error is None:
            self.report("directory-has-room", directory=directory.path)
        else:
            told = {"directory": directory.path, "error": error, "remedy": disk_advice(error)}
            self._report("error", "directory-full", told)

    def _directory_failed(self, directory: Any, error: BaseException) -> None:
        told = {"directory": directory.path, "error": error, "remedy": remedy_of(error)}
        self._report("error", "directory-failed", told)
        failure = StorageError(f"{directory.path}: {error}")
        self.coordinators.directory_failed(failure)
        self.sinks.directory_failed(failure)
        if directory is self.store.home(METADATA_PARTITION):
            self.metadata.fail(failure)
