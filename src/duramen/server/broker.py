"""One broker: wires store, metadata, coordinators, acceptor, starts them in order and stops them cleanly.

Start: lock and recover the log directories → replay the metadata log → open partitions → take the listeners' ports →
register (which raises the leader epoch of everything led here, durably) → serve.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from duramen.config import BrokerConfig, ListenerAddress
from duramen.config.listeners import parse_host_port
from duramen.errors import DuramenError, StorageError
from duramen.machines.metadata.commands import RegisterBroker
from duramen.machines.metadata.features import OFFERED, behind
from duramen.machines.metadata.image import Endpoint, MetadataImage
from duramen.machines.raft.voters import VoterEndpoint
from duramen.model import topic_id_from_text
from duramen.partition.host.load_turns import LoadTurns
from duramen.partition.metadata.controller import METADATA_PARTITION, Controller
from duramen.partition.metadata.directory_checks import assign_metadata_home, check_apart, check_formation
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.metadata.quorum import Quorum, QuorumNetwork
from duramen.partition.metadata.unclean_stop import UNCLEAN, in_doubt, previous_epoch
from duramen.partition.store.settings import cleaner_settings, directory_settings
from duramen.partition.store.store import Store
from duramen.ports import Listener, World
from duramen.server.api.acceptor import Acceptor
from duramen.server.api.authorizer import AccessControl
from duramen.server.api.outstanding_appends import OutstandingAppends
from duramen.server.api.request_decoder import RequestDecoder
from duramen.server.api.served_partitions import ServedPartitions
from duramen.server.api.services import LiveSettings, NodeIdentity, Services
from duramen.server.api.sliced_work import SlicedWork
from duramen.server.api.transactional_appends import TransactionalAppends
from duramen.server.controller.broker_lifecycle import BrokerLifecycle
from duramen.server.controller.command_messages import SESSION_MS
from duramen.server.controller.controller_client import ControllerClient
from duramen.server.coordinators.context import CoordinatorContext
from duramen.server.coordinators.groups import GroupCoordinators
from duramen.server.coordinators.producer_ids import ProducerIdSource
from duramen.server.coordinators.sinks import SinkCoordinators
from duramen.server.coordinators.staging_relocation import RelocationRules
from duramen.server.coordinators.transactions import TransactionCoordinators
from duramen.server.dispatch import MAX_ELEMENTS, TABLES, advertised
from duramen.server.metrics.metrics import Metrics
from duramen.server.net.listener_type import ListenerType
from duramen.server.reads.cold_read_scheduler import ColdReads
from duramen.server.reads.fetch_sessions import FetchSessions
from duramen.server.reads.parked_fetches import ParkedFetches
from duramen.server.reads.segment_leases import SegmentAccess
from duramen.server.replication.followed_topics import FollowedTopics
from duramen.storage import (
    Damage,
    Log,
    LogDirectory,
    NoRoomError,
    disk_advice,
    known_cluster,
    lacks_files,
    read_losses,
    remedy_of,
    spread_sign,
)

if TYPE_CHECKING:
    from duramen.server.controller.broker_lease import BrokerLease
    from duramen.server.controller.broker_watch import BrokerWatch
    from duramen.server.replication.in_sync_changes import InSyncChanges

MOST_LOSSES_TOLD = 20
RAISE_FEATURES = "when every node has this release: duramen features upgrade"
"""What repairs took out is told at each start, so many ranges at most."""

Report = Callable[[str, str, "dict[str, Any]"], None]
"""(level, event, fields): where the broker's log lines go."""


def _silent(level: str, event: str, fields: dict[str, Any]) -> None:
    """The default log: nowhere."""


_ERRORS = frozenset(
    {
        "quorum-halted",
        "quorum-not-a-voter",
        "quorum-of-another-cluster",
        "metadata-not-applied",
        "metadata-unreadable",
        "damage",
        "read-failed",
        "partition-offline",
        "replica-offline",
        "replica-not-fetched",
        "uncleanable",
        "partition-not-deleted",
        "coordinator-load-failed",
        "stop-failed",
        "sink-records-missing",
        "transaction-markers-waiting",
    }
)


class Broker:
    """A broker on the five ports. All methods run on the loop thread."""

    def __init__(self, world: World, config: BrokerConfig, report: Report = _silent) -> None:
        self.world = world
        self.clock = world.clock
        self.settings = LiveSettings(config)
        self.node_id = config.integer("node.id")
        self.metrics = Metrics()
        self.access = AccessControl()
        self.appends = OutstandingAppends(world.clock)
        self.parked = ParkedFetches(world.clock)
        self.relocation_rules = RelocationRules()
        self._report = report
        self.store = Store(world, self.node_id)
        self.store.compaction.configure(cleaner_settings(config))
        self.store.statistics.observers.append(self.metrics.sync.observe)
        self.store.on_failure = self._directory_failed
        self.store.disk_full.on_change = self._directory_full
        self.fetch_sessions = FetchSessions(config.integer("max.incremental.fetch.session.cache.slots"), world.entropy)
        self.segments = SegmentAccess(world, config)
        self.sliced_work = SlicedWork(self.clock, world.executor)
        self.publisher = MetadataPublisher(world, self.store, config, self.node_id, self.report)
        self.controller = Controller(world, self.store, self.publisher, self.node_id, self.report)
        self.on_halt: Callable[[str], None] = lambda reason: None
        """The node has to end: it must not go on in its quorum."""
        self.controller.on_active = self._became_active
        self._broker_watch: BrokerWatch | None = None
        self.controller.on_halt = lambda reason: self.clock.call_soon(partial(self._halt, reason))
        self.publisher.on_reconfigured.append(self._reconfigured)
        self.followed = FollowedTopics(world, self.store, self.publisher, config, self.report)
        self.partitions = ServedPartitions(self.store, self.publisher, self.node_id)
        self.acceptor = Acceptor(world, self.settings, self.metrics, self.report)
        receiver = self.acceptor.receiver
        receiver.congested = lambda: self.store.congested
        self.cold_reads = ColdReads(
            world,
            lambda: receiver.bytes_in,
            receiver.unread,
            config.integer("duramen.cold.read.bytes.per.second"),
        )
        self.acceptor.on_gone = self.cold_reads.forget
        self.acceptor.has_followers = lambda: len(self.publisher.image.brokers) > 1
        self.store.on_relief = receiver.feed_starved
        self.machine_name = "127.0.0.1"
        """What clients are told of a listener without a host, where advertised.listeners is not set."""
        self.cluster_id = ""
        self.in_sync_changes: InSyncChanges | None = None
        """Where this node has led a partition with several replicas."""
        self.lifecycle: BrokerLifecycle | None = None
        """Where the node is a broker."""
        self.broker_epoch = -1
        self.advertised_addresses: list[Endpoint] = []
        self.decoders: dict[ListenerType, RequestDecoder] = {}
        self.services: Services
        """From `start` on."""
        self.ready = False
        self.stopping = False
        self.unclean: list[BaseException] = []
        """Why the stop was not a clean one, when that is over."""

    # ---- start -----------------------------------------------------------------------------------------------

    def start(self, on_ready: Callable[[], None]) -> None:
        """Recover and serve; `on_ready` once clients are served. Raises DuramenError or OSError when it cannot.

        What refuses a start before anything is served leaves the directories as clean as they were found.
        """
        try:
            self._open_directories()
            self.acceptor.bind(max(self.store.directories[0].hot.files.limit, 0))
        except (OSError, DuramenError):
            with contextlib.suppress(OSError, DuramenError):  # the first is what is to be told
                self.store.close(clean=True)
            raise
        controllers = self._endpoints(self.acceptor.controller_listeners, self.config.advertised_controller_listeners)
        self.advertised_addresses = self._endpoints(self.acceptor.listeners, self.config.advertised_listeners)
        self.controller.start(
            self._connect_quorum, tuple(VoterEndpoint(each.name, each.host, each.port) for each in controllers)
        )
        self.controller_client = ControllerClient(
            self.world, self.controller, self.publisher, self.cluster_id, self.node_id
        )
        context = CoordinatorContext(
            clock=self.clock,
            executor=self.world.executor,
            entropy=self.world.entropy,
            access=self.access,
            settings=self.settings,
            store=self.store,
            controller=self.controller_client,
            publisher=self.publisher,
            load_turns=LoadTurns(self.clock),
            report=self.report,
            relocation_rules=self.relocation_rules,
        )
        self.groups = GroupCoordinators(context)
        self.sinks = SinkCoordinators(context)
        self.producer_ids = ProducerIdSource(self.controller_client, self.node_id)
        self.transactions = TransactionCoordinators(context, self.world, self.node_id, self.producer_ids, self.groups)
        self.services = self._build_services(controllers)
        for listener, table in TABLES.items():
            self.decoders[listener] = RequestDecoder(self.services, table, MAX_ELEMENTS)
        self.acceptor.open(ListenerType.CONTROLLER, self.decoders[ListenerType.CONTROLLER].on_frame)
        if not self.controller.quorum.is_sole_voter:  # it may be long until others answer
            self.store.maintenance.start()
        if "broker" not in self.config.strings("process.roles"):
            self._is_ready(on_ready)
            return
        incarnation = self.publisher.incarnation = self.controller.new_uuid()
        self.lifecycle = BrokerLifecycle(
            self.clock,
            self.controller_client,
            self.controller,
            lambda: self._registration(incarnation),
            self.config.integer("broker.heartbeat.interval.ms") / 1000,
            self.report,
            self._registered,
            partial(self._serve_clients, on_ready),
            lambda: self.controller.quorum.is_sole_voter,
        )
        self.lifecycle.on_heartbeat = self.metrics.heartbeat.observe
        if not self.controller.quorum.is_sole_voter:
            self.publisher.lease = self.lifecycle.lease = self._make_lease()
        self.publisher.on_brokers.append(self.lifecycle.changed)
        self.publisher.on_leaders.append(self._leaders_changed)
        self.controller.when_begun(self.lifecycle.start)

    def _connect_quorum(self, quorum: Quorum) -> QuorumNetwork:
        servers = [parse_host_port("", text) for text in self.config.strings("controller.quorum.bootstrap.servers")]
        # Loaded on demand: a node alone, as most are, starts without it.
        peers = import_module("duramen.server.quorum.network").QuorumPeers(
            quorum, self.world, self.cluster_id, self.node_id, servers
        )
        peers.on_died = lambda node_id, address: self.broker_watch.peer_died(node_id, address)
        peers.on_another_cluster = lambda address: self.report(
            "quorum-of-another-cluster", address=address, own=self.cluster_id
        )
        network: QuorumNetwork = peers
        return network

    @property
    def broker_watch(self) -> BrokerWatch:
        """Of other nodes' processes, where this one may decide about them."""
        if self._broker_watch is None:
            module = import_module("duramen.server.controller.broker_watch")
            self._broker_watch = module.BrokerWatch(self.world, self.controller, self.node_id, self.report)
        watch: BrokerWatch = self._broker_watch
        return watch

    def _became_active(self) -> None:
        if self.controller.image.brokers.keys() - {self.node_id}:
            self.broker_watch.became_active()

    def _open_directories(self) -> None:
        check_formation(self.world.disk, self.config)
        paths = self.config.directories
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
        spread_sign(self.world.disk, paths)
        check_apart(self.store.directories)
        assign_metadata_home(self.store, self.config)

    def _build_services(self, controllers: list[Endpoint]) -> Services:
        node = NodeIdentity(
            self.node_id,
            self.cluster_id,
            topic_id_from_text(self.store.home(METADATA_PARTITION).directory_id),
            self.advertised_addresses,
            controllers,
            OFFERED,
            {listener: advertised(listener) for listener in ListenerType},
        )
        return Services(
            clock=self.clock,
            world=self.world,
            node=node,
            settings=self.settings,
            access=self.access,
            controller=self.controller,
            controller_client=self.controller_client,
            publisher=self.publisher,
            store=self.store,
            partitions=self.partitions,
            groups=self.groups,
            transactions=self.transactions,
            sinks=self.sinks,
            producer_ids=self.producer_ids,
            transactional_appends=TransactionalAppends(self.clock, lambda: self.settings.config, self.transactions),
            appends=self.appends,
            parked=self.parked,
            cold_reads=self.cold_reads,
            fetch_sessions=self.fetch_sessions,
            segments=self.segments,
            sliced_work=self.sliced_work,
            metrics=self.metrics,
            broker_heard=lambda node_id, epoch, via: self.broker_watch.heard(node_id, epoch, via),
            report=self.report,
            report_bug=self.report_bug,
        )

    def _registration(self, incarnation: bytes) -> RegisterBroker:
        closed = self.publisher.closed_directories
        return RegisterBroker(
            self.node_id,
            incarnation,
            tuple(self.advertised_addresses),
            self.config.string("broker.rack") or None,
            # Among others a disk that is not here counts as lost: one of them may have what was on it.
            closed.registered_ids() if self.controller.is_alone else closed.open_ids(),
            OFFERED,
            # One that registers anew without having ended has all that it had.
            previous_epoch(self.store.directories) if self.broker_epoch < 0 else self.broker_epoch,
        )

    def _endpoints(
        self, opened: Sequence[tuple[ListenerAddress, Listener]], advertised: Sequence[ListenerAddress]
    ) -> list[Endpoint]:
        """What is told of listeners that are open: with the ports that they have, and a host."""
        endpoints = []
        for (address, listener), told in zip(opened, advertised, strict=True):
            port = listener.port if told.port == 0 or told.port == address.port else told.port
            endpoints.append(Endpoint(address.name, told.host or self.machine_name, port, 0))
        return endpoints

    def _registered(self, epoch: int) -> None:
        if self.broker_epoch < 0 and previous_epoch(self.store.directories) == UNCLEAN:
            self.controller.when_applied(epoch + 1, self._tell_doubt)
        self.broker_epoch = self.producer_ids.broker_epoch = epoch
        for directory in self.store.directories:
            directory.broker_epoch = epoch
        # Not by older metadata than what this node may have known when it stopped.
        self.controller.when_applied(epoch + 1, partial(self.followed.registered, epoch))

    def _tell_doubt(self) -> None:
        doubtful = in_doubt(self.publisher, self.node_id)
        if doubtful:
            self.report("last-copy-in-doubt", partitions=len(doubtful), first=doubtful[0])

    def _leaders_changed(self, name: str) -> None:
        """Partitions of the topic may be led here: of those with several replicas it is to be seen who is in sync."""
        topic, node_id = self.image.topic(name), self.node_id
        if topic is None:
            return
        if self.in_sync_changes is None:
            if not any(each.leader == node_id and len(each.replicas) > 1 for each in topic.partitions):
                return
            # Loaded on demand: a node alone, as most are, does without it.
            self.in_sync_changes = import_module("duramen.server.replication.in_sync_changes").InSyncChanges(
                self.clock,
                self.controller_client,
                self.publisher,
                self.store,
                node_id,
                lambda: self.broker_epoch,
                self.config.integer("replica.lag.time.max.ms") / 1000,
                self.report,
            )
            self.publisher.on_brokers.append(self.in_sync_changes.brokers_changed)
        self.in_sync_changes.follow(name)

    def _make_lease(self) -> BrokerLease:
        # Loaded on demand: a node alone, as most are, does without it.
        module, session_ms = import_module("duramen.server.controller.broker_lease"), self.config.integer(SESSION_MS)
        renewed = partial(self.clock.call_soon, self._lease_renewed)
        lease: BrokerLease = module.BrokerLease(self.clock, session_ms / 1000, self.report, renewed)

        def told(controller_ms: int) -> None:
            lease.limit(controller_ms / 1000)

        def leader_changed(leader_id: int, epoch: int) -> None:
            if leader_id >= 0:
                self.controller_client.ask_session(session_ms, told)

        self.controller.on_leader.append(leader_changed)
        return lease

    def _lease_renewed(self) -> None:
        for partition in tuple(self.store.partitions.values()):
            partition.lease_renewed()

    def _serve_clients(self, on_ready: Callable[[], None]) -> None:
        """The broker is unfenced, and knows it."""
        self.groups.load_all()
        self.transactions.load_all()
        self.sinks.load_all()
        self.acceptor.open(ListenerType.BROKER, self.decoders[ListenerType.BROKER].on_frame)
        for name, level, highest in behind(self.image.features):
            self.report("feature-behind", feature=name, level=level, highest=highest, remedy=RAISE_FEATURES)
        self._is_ready(on_ready)

    def _is_ready(self, on_ready: Callable[[], None]) -> None:
        if not self.store.is_maintained:
            self.store.maintenance.start()
        if not self.stopping:  # told to while starting
            self.ready = True
            on_ready()

    # ---- stop ------------------------------------------------------------------------------------------------

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Stop cleanly: say so in the metadata log, drain the journal, close every file."""
        if self.stopping:
            return
        self.stopping = True
        self.ready = False
        self.appends.close()

        def finish() -> None:
            self.followed.close()
            self.acceptor.close()
            self.cold_reads.close()
            self.transactions.close()
            self.groups.close()
            self.sinks.close()
            if self.in_sync_changes is not None:
                self.in_sync_changes.close()
            self.controller_client.close()
            if self._broker_watch is not None:
                self._broker_watch.close()
            self.controller.close()
            self.store.stop(close)

        def close() -> None:
            self.controller.quorum.network.close()
            for _ in self.store.directories:
                try:
                    self.store.close(clean=True)
                    break
                except (OSError, StorageError, MemoryError) as error:
                    # One directory; what it acknowledged is in its journal, from which the next start recovers it.
                    self.report("stop-failed", error=str(error) or repr(error))
                    self.unclean.append(error)
            if not self.unclean:  # of a directory that failed before
                self.unclean += [each.journal.failed for each in self.store.directories if each.journal.failed]
            self.report("stopped")
            on_stopped()

        if self.lifecycle is None:
            finish()
        else:
            self.lifecycle.stop(finish, hands_over=self.config.boolean("controlled.shutdown.enable"))

    def stop_waiting(self) -> None:
        """A stop that waits for other brokers to lead goes on without them."""
        if self.lifecycle is not None:
            self.lifecycle.stop_waiting()

    # ---- following -------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        return self.publisher.image

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now."""
        return self.settings.config

    def _reconfigured(self, config: BrokerConfig) -> None:
        self.settings.adopt(config)
        self.cold_reads.bytes_per_second = config.integer("duramen.cold.read.bytes.per.second")
        self.store.compaction.configure(cleaner_settings(config))

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

    def _directory_full(self, directory: LogDirectory, error: NoRoomError, lacking: bool) -> None:
        files = lacks_files(error)
        if lacking:
            told = {"directory": directory.path, "error": error, "remedy": disk_advice(error)}
            self._report("error", "files-cannot-be-opened" if files else "directory-full", told)
        else:
            self.report("files-can-be-opened" if files else "directory-has-room", directory=directory.path)

    def _directory_failed(self, directory: Any, error: BaseException) -> None:
        told = {"directory": directory.path, "error": error, "remedy": remedy_of(error)}
        self._report("error", "directory-failed", told)
        failure = StorageError(f"{directory.path}: {error}")
        self.groups.directory_failed(failure)
        self.transactions.directory_failed(failure)
        self.sinks.directory_failed(failure)
        if directory is self.store.home(METADATA_PARTITION):
            self.controller.fail(failure)
        self.clock.call_soon(partial(self._end_among_others, failure))

    def _end_among_others(self, failure: StorageError) -> None:
        """A leader that cannot write would stay one: others lead instead. A node alone lets its records be read."""
        if self.controller.has_others:
            self._halt(f"{failure}; the node ends, for others can lead what it led")

    def _halt(self, reason: str) -> None:
        """It ends, and may not read any more who leads what it led: its word alone counts for nothing."""
        if self.lifecycle is not None and self.lifecycle.lease is not None:
            self.lifecycle.lease.end()
        self.on_halt(reason)
