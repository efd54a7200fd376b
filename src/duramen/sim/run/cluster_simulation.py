"""A cluster from one seed: nodes that were formatted together, what goes wrong among them, and the verdict."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from duramen.config import BrokerConfig
from duramen.machines.transaction import SECOND_GENERATION, WriteMarkers
from duramen.partition.metadata import image_reader
from duramen.partition.metadata.formation import Founding, InitialController, format_node, new_id
from duramen.ports import World
from duramen.server.broker import Broker
from duramen.server.coordinators.transaction_markers import MarkerSender, MarkingCoordinator
from duramen.sim.check.coverage import SHARED_GROUP_STATES, STREAM_STATES, TRANSACTION_STATES
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.leaks import check_idle, check_stopped, removing
from duramen.sim.check.quorum_watch import ClusterWatch, quiet
from duramen.sim.check.replica_watch import ReplicaWatch
from duramen.sim.faults.cluster_faults import ENDING_KINDS, KINDS, ClusterFaults, Ending
from duramen.sim.faults.faults import DATA
from duramen.sim.run.simulation import SimulationResult, configuration
from duramen.sim.workload.cluster_client import ClusterClient
from duramen.sim.workload.cluster_workload import SHARED_GROUPS, TRANSACTIONS, ClusterWorkload, Contents, draw_topics
from duramen.sim.workload.scripts import Actor, Script
from duramen.sim.workload.settings_workload import (
    KEYS,
    ControllerClients,
    SettingsChanger,
    check_changes,
    observe,
)
from duramen.sim.workload.transaction_stage import HANGS_S
from duramen.sim.world.cluster import CLUSTER, ClusterWorld, cluster_hosts, draw_rate
from duramen.sim.world.entropy import SimEntropy
from duramen.sim.world.node import WALL_START_MS, Server, SimNode
from duramen.sim.world.plan import ClusterPlan

BROKER_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
BROKERS: Final = 0.75
"""Share of the worlds whose nodes are brokers, too."""
PEER_CONNECTIONS: Final = 4, 8
"""From each other node at most: of controllers, of brokers."""
PROGRESS_S: Final = 40.0
"""Virtual seconds after all is well within which there is a leader who decides, and everybody has everything."""
WORK_S: Final = 400.0
"""Virtual seconds in which the faults are over, and every change is answered."""
REST_S: Final = 5.0
STOP_S: Final = 60.0
SHARES: Final = ((1, 0.05), (2, 0.1), (3, 0.85))
"""Numbers of nodes, and the share of the worlds that have so many."""

GIVEN_UP: Final = (
    "directory-failed",
    "metadata-unreadable",
    "partition-offline",
    "partition-not-deleted",
    "coordinator-load-failed",
)
"""Events of a node's log after which it does its part only when it is started again."""
COUNTED: Final = (
    "snapshot-loading",
    "snapshot-loaded",
    "snapshot-not-loaded",
    "snapshot-written",
    "metadata-not-followed",
    "metadata-not-truncated",
    "quorum-epoch-not-opened",
    "directory-failed",
    "directory-full",
    "broker-died",
    "broker-fenced",
    "broker-unfenced",
    "lease-renewed",
    "broker-not-handed-over",
    "partition-offline",
    "replica-cut",
    "replica-begun-anew",
    "in-sync-refused",
)
"""Events that are states worth reaching."""
CLUSTER_STATES: Final = (
    *COUNTED,
    "elected",
    "log cut",
    "halted",
    "partition led",
    "ISR changed",
    "page-cache topic lost a tail",
    *TRANSACTION_STATES,
    *SHARED_GROUP_STATES,
    *STREAM_STATES,
)
"""All that a cluster's watch and the log lines of its nodes tell."""


class WatchedBroker(Broker):
    """The production server; somebody is told when its log is open and it takes part in the quorum."""

    on_opened: Callable[[], None]

    def start(self, on_ready: Callable[[], None]) -> None:
        """See Broker."""
        super().start(on_ready)
        self.on_opened()


class ClusterSimulation:
    """Everything that exists in one simulated cluster."""

    def __init__(self, seed: int, plan: ClusterPlan, *, keep_lines: bool = False) -> None:
        random = Random(f"cluster {seed}")
        self.seed = seed
        self.plan = plan
        self.random = random
        count = plan.nodes or random.choices([n for n, _ in SHARES], [share for _, share in SHARES])[0]
        self.hosts = cluster_hosts(count)
        self.world = ClusterWorld(random, self.hosts, conditions=replace(CLUSTER), keep_lines=keep_lines)
        self.loop = self.world.loop
        self.history = self.world.history
        self.states: Counter[str] = Counter()
        self.watch = ClusterWatch(self.history.note, self.states)
        # Drawn apart, so that worlds of controllers alone are what they were before there were others.
        drawn = Random(f"brokers of {seed}")
        self.has_brokers = drawn.random() < BROKERS if plan.brokers is None else plan.brokers
        self.replicas = ReplicaWatch(self.history.note, self.states)
        self.slice_records = random.choice((1, 3, image_reader.SLICE_RECORDS))
        self.settings = self._draw_settings()
        self.configs = {node_id: self._config(node_id) for node_id in self.hosts}
        self.people, self.clock, self.port = self.world.clients("clients")
        self._format()
        for node_id in self.hosts:
            self._add_node(node_id, draw_rate(random))
        self.faults = ClusterFaults(
            Random(random.getrandbits(64)),
            self.world,
            self._spawn,
            lambda: self.leader_id,
            self._format_anew,
            self._may_wipe,
        )
        if plan.kinds:
            self.faults.kinds = {kind: (KINDS | ENDING_KINDS)[kind] for kind in plan.kinds}
        self.clients: list[ControllerClients] = []
        self.workload: ClusterWorkload | None = None
        if self.has_brokers:
            scene = draw_topics(drawn, self.clock, self.history.note, count, plan.copies)
            scene.coverage.counts = self.states
            self.workload = ClusterWorkload(scene, self._broker_client, lambda: not self.faults.finished)
        for node_id, disk in self.world.disks.items():
            disk.on_power_cut = partial(self._power_failed, node_id)
        self._changers: list[SettingsChanger] = []

    # ---- the nodes

    def _draw_settings(self) -> dict[str, str]:
        random = self.random
        settings = {"log.dirs": DATA}
        small = self.plan.small_snapshots
        if random.random() < 0.75 if small is None else small:
            settings["metadata.log.max.record.bytes.between.snapshots"] = random.choice(("150", "400", "1000"))
            settings["metadata.max.retention.bytes"] = random.choice(("300", "1000"))
            settings["metadata.log.max.snapshot.interval.ms"] = random.choice(("300", "2000", "3600000"))
        settings["controller.quorum.fetch.max.bytes"] = random.choice(("100", "400", "1048576"))
        settings["controller.quorum.fetch.snapshot.max.bytes"] = random.choice(("40", "200", "1048576"))
        if self.has_brokers:  # who starts has to catch up with those who change things all the time
            settings["controller.quorum.fetch.snapshot.max.bytes"] = random.choice(("1000", "1048576"))
            settings["metadata.max.retention.bytes"] = random.choice(("1000", "3000"))
            settings["replica.lag.time.max.ms"] = random.choice(("500", "2000", "30000"))
            settings["replica.fetch.max.bytes"] = random.choice(("1", "2000", "1048576"))
            settings["replica.fetch.response.max.bytes"] = random.choice(("1", "3000", "10485760"))
            settings["offsets.topic.replication.factor"] = str(min(self.plan.copies, len(self.hosts)))
            settings["offsets.topic.num.partitions"] = random.choice(("1", "3"))
            settings["transaction.state.log.replication.factor"] = settings["offsets.topic.replication.factor"]
            settings["leader.imbalance.check.interval.seconds"] = random.choice(("1", "3", "300"))
        return settings

    def _config(self, node_id: int) -> BrokerConfig:
        host = self.hosts[node_id]
        listeners = [f"CONTROLLER://{host}:{CONTROLLER_PORT}"]
        if self.has_brokers:
            listeners.append(f"PLAINTEXT://{host}:{BROKER_PORT}")
        own = {
            "process.roles": "broker,controller" if self.has_brokers else "controller",
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(
                f"{each}:{CONTROLLER_PORT}" for each in self.hosts.values()
            ),
        }
        return configuration(self.settings | own, node_id)

    def _format(self) -> None:
        """What `duramen cluster init` does on each node."""
        entropy = self._formatter = SimEntropy(Random(self.random.getrandbits(64)))
        cluster_id = self._cluster_id = new_id(entropy)
        voters = [
            InitialController(node_id, host, CONTROLLER_PORT, new_id(entropy)) for node_id, host in self.hosts.items()
        ]
        for node_id, disk in self.world.disks.items():
            format_node(disk, entropy, self.configs[node_id], cluster_id, Founding(voters), WALL_START_MS)
            disk.end_process()
            disk.take_delay()

    def _format_anew(self, node: SimNode) -> None:
        """An empty disk in place of the node's: it has another directory id, and is no voter any more."""
        disk, config = node.disk, self.configs[node.node_id]
        disk.wipe()
        with quiet(disk):
            format_node(disk, self._formatter, config, self._cluster_id, Founding(), WALL_START_MS)
        disk.end_process()

    def _may_wipe(self, node: SimNode) -> bool:
        """Whether others have what is on its disk. A topic that is made meanwhile might be placed there."""
        if self.workload is None:
            return True
        have = self.replicas.has_others if node.running else self.replicas.is_out_of_sync
        return self.workload.is_made and have(node.node_id)

    def _add_node(self, node_id: int, rate: float) -> None:
        def boot(world: World) -> Server:
            return self._boot(node, world)

        node = self.world.add(node_id, boot, rate)
        node.on_error = partial(self._server_failed, node)

    def _boot(self, node: SimNode, world: World) -> Server:
        broker = WatchedBroker(world, self.configs[node.node_id], partial(self._reported, node))
        broker.on_opened = lambda: self._opened(node, broker)
        return broker

    def _opened(self, node: SimNode, broker: Broker) -> None:
        self.watch.attach(node, broker)
        self.replicas.attach(node, broker)

    def _power_failed(self, node_id: int) -> None:
        self.replicas.power_failed(node_id)
        if self.workload is not None:
            self.workload.power_failed()

    def _reported(self, node: SimNode, level: str, event: str, fields: dict[str, Any]) -> None:
        bug = fields.get("traceback")
        if isinstance(bug, InvariantViolated):
            raise bug
        if isinstance(bug, BaseException):
            raise InvariantViolated("NoUnhandledError", f"{event}: {''.join(traceback.format_exception(bug))}")
        if event in COUNTED:
            self.states[event] += 1
            self.history.note(f"{node.name} {event}")
        if event == "broker-died":
            self.replicas.said_dead(fields["node"], fields["epoch"])
        node.given_up |= event in GIVEN_UP

    def _server_failed(self, node: SimNode, error: Exception) -> None:
        if isinstance(error, InvariantViolated):
            raise error
        lines = "".join(traceback.format_exception(error))
        raise InvariantViolated("NoUnhandledError", f"{node.name}: {lines}") from error

    @property
    def leader_id(self) -> int:
        """Who leads the latest epoch that anybody led, if its process still does; -1: nobody."""
        for view in self.watch.views.values():
            if self._is_running(view.node) and view.broker.controller.quorum.is_leader:
                return view.node.node_id
        return -1

    def _is_running(self, node: SimNode) -> bool:
        view = self.watch.views.get(node.node_id)
        return view is not None and node.server is view.broker

    # ---- life

    def run(self) -> SimulationResult:
        """From the first start to the last verdict; InvariantViolated where a promise is broken."""
        with small_slices(self.slice_records), endings_seen(self._ending):
            self._live()
            self._verdict()
        calls = sum(disk.calls for disk in self.world.disks.values())
        self.history.note(f"end after {calls} disk calls, {self.loop.events_run} events")
        return SimulationResult(
            self.seed,
            self.history.digest(),
            calls,
            self.loop.events_run,
            sum(node.starts for node in self.world.nodes.values()),
            sum(node.deaths for node in self.world.nodes.values()),
            self.loop.now,
            self.watch.facts + self.replicas.facts + (0 if self.workload is None else self.workload.scene.ledger.facts),
            self.faults.counts,
            self.states,
            self.history.lines,
        )

    def _spawn(self, name: str, script: Script) -> Actor:
        return Actor(self._client(name), self.clock, script)

    def _client(self, name: str) -> ControllerClients:
        addresses = {node_id: (host, CONTROLLER_PORT) for node_id, host in self.hosts.items()}
        return ControllerClients(self.port, self.clock, addresses, name)

    def _broker_client(self, name: str) -> ClusterClient:
        nodes = {node_id: (host, BROKER_PORT) for node_id, host in self.hosts.items()}
        random = Random(self.random.getrandbits(64))
        bootstrap = random.sample(list(nodes.values()), random.randint(1, len(nodes)))
        return ClusterClient(self.port, self.clock, random, bootstrap, nodes, name)

    def _ending(self, sender: MarkerSender, effect: WriteMarkers) -> None:
        """Tell the adversary of a decision whose markers are about to go out."""
        image, node_id, workload = sender._image(), sender._node_id, self.workload
        led = {tp: image.leader(known) for tp in effect.partitions if (known := image.partition(tp)) is not None}

        def is_open(leader: int) -> bool:
            view = self.watch.views[leader]
            stored = [view.broker.store.partitions.get(tp) for tp, led_by in led.items() if led_by == leader]
            return any(each is not None and each.log.producers.has_transaction(*effect.producer) for each in stored)

        is_unheard = workload is not None and workload.is_unheard(effect.transactional_id)
        others = tuple(sorted({*led.values()} & self.world.nodes.keys() - {node_id}))
        late = effect.transaction_version < SECOND_GENERATION and not effect.cause
        self.faults.ending(Ending(node_id, is_unheard, others, late, is_open))

    def _live(self) -> None:
        """Changes while things go wrong, until both are over."""
        plan, random = self.plan, self.random
        count = random.randint(3, 10) if plan.faults is None else plan.faults
        actors = [self._spawn("faults", self.faults.script(count))]
        going_on = lambda: not self.faults.finished  # noqa: E731
        ids = sorted(self.hosts)
        for key in KEYS[: random.randint(1, len(KEYS))]:
            name = f"changer of {key}"
            client = self._client(name)
            self.clients.append(client)
            changer = SettingsChanger(Random(random.getrandbits(64)), client, ids, key, name)
            self._changers.append(changer)
            pause_s = random.choice((0.05, 0.5)) if not self.has_brokers else 1.0
            script = changer.script(plan.changes, going_on, pause_s)
            actors.append(Actor(client, self.clock, script))
        observer = self._client("observer")
        self.clients.append(observer)
        looking = observe(Random(random.getrandbits(64)), observer, ids, self.watch, going_on)
        actors.append(Actor(observer, self.clock, looking))
        workload = self.workload
        if workload is not None:
            all_known = lambda: all(  # noqa: E731
                node.starts and (node.ready or node.deaths) for node in self.world.nodes.values()
            )
            workload.begin(all_known)
            drawn = Random(f"transactions in {self.seed}")
            chance = drawn.random() < TRANSACTIONS
            if chance if plan.transactions is None else plan.transactions:
                workload.begin_transactions(all_known, min(plan.copies, len(self.hosts)))
                if not plan.kinds:
                    self.faults.kinds |= ENDING_KINDS
            chance = drawn.random() < SHARED_GROUPS
            if chance if plan.shared_group is None else plan.shared_group:
                workload.begin_shared_group(all_known, min(plan.copies, len(self.hosts)))
            if plan.streams:
                drawn = Random(f"streams of {self.seed}")
                workload.begin_streams(all_known, drawn, min(plan.copies, len(self.hosts)))
        self._until("faults are over, and changes answered", lambda: all(each.finished for each in actors), WORK_S)
        if workload is not None:
            self._until("everything is produced", lambda: workload.is_produced, workload.ends_in_s(PROGRESS_S))
            self._until("everything is read", lambda: workload.is_read, PROGRESS_S)

    def _until(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        watch = self.watch

        def reached() -> bool:
            watch.look_behind(self.loop.ran)
            if self.has_brokers:
                self.replicas.look_behind(self.loop.ran)
            return condition()

        if not self.world.until(reached, seconds):
            raise InvariantViolated("Progress", f"not within {seconds} s: {what}; {self._described()}")

    def _described(self) -> str:
        found = []
        for node_id, view in self.watch.views.items():
            quorum, log = view.broker.controller.quorum, view.broker.controller.partition.log
            state = "ready" if view.node.ready else "running" if view.node.running else "down"
            found.append(
                f"{node_id}: {state}, {quorum.raft.role.value} of {quorum.epoch}, leader {quorum.leader_id}, "
                f"log {log.start_offset}..{log.durable_end}..{log.end_offset}, committed {view.high_watermark}, "
                f"applied {view.position}{', halted' if quorum.halted else ''}"
            )
        if self.has_brokers and self.replicas.views:
            found.append(self.replicas.unsettled() or "partitions are settled")
        return "; ".join(found)

    # ---- the verdict

    def _verdict(self) -> None:
        self._settled()
        before = self._read_back()
        for client in self.clients:
            client.close()
        if self.workload is not None:
            self.workload.close()
        self._rest()
        self._check_leaks()
        how = self.random.choice(("clean stop", "kill", "power cut"))
        self.history.note(f"at last: {how} of all")
        for node in self.world.nodes.values():
            if how == "clean stop":
                node.stop()
            elif how == "kill":
                node.kill()
            else:
                node.power_cut()
        self._until("all stop", lambda: not any(node.running for node in self.world.nodes.values()), STOP_S)
        if how == "clean stop":
            for disk in self.world.disks.values():
                check_stopped(disk)
        for node in self.world.nodes.values():
            node.start()
        self._settled()
        after = self._read_back()
        for tp, records in before.items():
            if records != after[tp] and (how != "power cut" or "cached" not in tp.topic):
                raise InvariantViolated("RestartChangesNothing", f"{tp}: {len(records)} records before")

    def _read_back(self) -> Contents:
        """Everything that the brokers have."""
        found: Contents = {}
        if self.workload is not None:
            actor = self.workload.read_back(found)
            self._until("reading back", lambda: actor.finished, PROGRESS_S)
            streams = self.workload.judge_streams()
            if streams is not None:
                self._until("streams are whole", lambda: streams.finished, PROGRESS_S)
            verdict = self.workload.judge()
            if verdict is not None:
                self._until("transactions are whole", lambda: verdict.finished, HANGS_S + PROGRESS_S)
        return found

    def _settled(self) -> None:
        """One more change is answered, and everybody has it, in the bound."""
        changer = self._changers[0]
        actor = Actor(changer.client, self.clock, self._one_more(changer))
        self._until("a change behind the faults is answered", lambda: actor.finished, PROGRESS_S)
        self._until("everybody has everything", self._is_settled, PROGRESS_S)
        self.watch.check_whole_logs()
        self.replicas.check_whole_logs()
        self.watch.facts += check_changes(self._changers, self.watch)
        images = {view.position: view.broker.image for view in self.watch.views.values()}
        if len(images) != 1:
            raise InvariantViolated("ImagesEqual", f"images at {sorted(images)}")
        (image,) = images.values()
        last = {each.name: each.value for each in self.watch.settings if each.resource == ""}
        if dict(image.broker_config(None)) != last:
            raise InvariantViolated("CommittedNeverLost", f"{image.broker_config(None)} is set, {last} in the log")

    def _one_more(self, changer: SettingsChanger) -> Script:
        while not (yield from changer.change()):
            yield 0.1

    def _is_settled(self) -> bool:
        nodes, watch = self.world.nodes.values(), self.watch
        if not all(node.ready and self._is_running(node) for node in nodes):
            return False
        return (
            all(view.position == view.high_watermark == view.end == watch.end for view in watch.views.values())
            and self.leader_id > 0
            and not (self.has_brokers and self.replicas.unsettled())
        )

    def _rest(self) -> None:
        """Time for housekeeping, and for connections that nobody uses."""
        disks = self.world.disks.values()
        end = self.loop.now + REST_S
        self._until("rest", lambda: self.loop.now >= end - 0.001, REST_S + 1)
        self._until("files are removed", lambda: not any(map(removing, disks)), STOP_S)

    def _check_leaks(self) -> None:
        """What is still going on at that moment, a snapshot by the clock or a compaction, has some time to end."""
        end = self.loop.now + PROGRESS_S
        while True:
            try:
                for node in self.world.nodes.values():
                    self._check_idle(node)
                return
            except InvariantViolated:
                if self.loop.now >= end:
                    raise
            pause = self.loop.now + 0.2
            self._until("rest", lambda: self.loop.now >= pause - 0.001, 1.0)  # noqa: B023 - called within the turn

    def _check_idle(self, node: SimNode) -> None:
        broker = self.watch.views[node.node_id].broker
        assert node.process is not None
        journal = self.configs[node.node_id].integer("duramen.journal.max.bytes")
        planned, peers = self.loop.planned(node.process), PEER_CONNECTIONS[self.has_brokers] * (len(self.hosts) - 1)
        check_idle(broker, node.disk, [DATA], journal, planned, peers=peers)


@contextlib.contextmanager
def small_slices(count: int) -> Iterator[None]:
    """Apply so many records of the log at a time in this block."""
    before = image_reader.SLICE_RECORDS
    image_reader.SLICE_RECORDS = count  # type: ignore[misc]
    try:
        yield
    finally:
        image_reader.SLICE_RECORDS = before  # type: ignore[misc]


@contextlib.contextmanager
def endings_seen(seen: Callable[[MarkerSender, WriteMarkers], None]) -> Iterator[None]:
    """Tell of each node that is about to send markers, in this block."""
    before = MarkerSender.start

    def start(sender: MarkerSender, coordinator: MarkingCoordinator, effect: WriteMarkers) -> None:
        seen(sender, effect)
        before(sender, coordinator, effect)

    MarkerSender.start = start  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        MarkerSender.start = before  # type: ignore[method-assign]


def simulate_cluster(seed: int, plan: ClusterPlan | None = None, *, keep_lines: bool = False) -> SimulationResult:
    """Run one cluster. InvariantViolated where a promise breaks; its `lines` are the history, if asked for."""
    simulation = ClusterSimulation(seed, plan or ClusterPlan(), keep_lines=keep_lines)
    try:
        return simulation.run()
    except InvariantViolated as violated:
        violated.lines = simulation.history.lines
        raise
