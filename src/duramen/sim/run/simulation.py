"""One simulation from one seed: nodes running the production server, their clients, their faults, and the verdict."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from duramen.client.loop.node_client import NodeClient
from duramen.config import BrokerConfig, load_broker_config
from duramen.model import INTERNAL_TOPICS, TopicPartition
from duramen.partition.store.settings import directory_settings
from duramen.ports import World
from duramen.server.broker import Broker
from duramen.server.coordinators.staging_relocation import RelocationRules
from duramen.sim.check.coverage import Coverage, probed
from duramen.sim.check.invariants import InvariantViolated, OnlyWhatWasProduced, Order
from duramen.sim.check.leaks import check_idle, check_stopped, removing
from duramen.sim.check.repeated_recovery import check_replay
from duramen.sim.faults.faults import DATA, SECOND, TRANSACTION_MOMENTS, DiskLiedError, Faults
from duramen.sim.workload.admin_workload import Configurer, Grower, Hardener, Recreator, trim
from duramen.sim.workload.compacted_workload import COMPACTED, Folder, KeyedProducer
from duramen.sim.workload.group_workload import SimMember
from duramen.sim.workload.scripts import Actor, Script
from duramen.sim.workload.shared_group import SharedGroup
from duramen.sim.workload.sink_workload import LATE, Driver, Latecomer, Sunk, check_event, read_sunk, watch_sink
from duramen.sim.workload.stream_stage import StreamStage
from duramen.sim.workload.stream_workload import StreamWorld
from duramen.sim.workload.time_lookups import check_times
from duramen.sim.workload.topics import EXPIRING, STABLE, draw_scene
from duramen.sim.workload.transaction_stage import TransactionStage
from duramen.sim.workload.transaction_workload import TransactionWorld
from duramen.sim.workload.workload import (
    EARLIEST,
    LATEST,
    Scene,
    SimProducer,
    SimReader,
    create_topic,
    create_topics,
    list_offset,
    read_back,
    survey,
)
from duramen.sim.world.background import background, few_entries, scrubbing_soon
from duramen.sim.world.cluster import CLIENTS, ClusterWorld
from duramen.sim.world.disk import CrashDisk
from duramen.sim.world.loop import SimLoop
from duramen.sim.world.node import Server, SimNode, node_address
from duramen.sim.world.plan import Plan

NODES = (1,)
"""Ids of the nodes of a world. Workload and verdict know what one node owes, so there is one."""
REST_S = 5.0
"""Virtual seconds after which an idle node has finished its housekeeping."""
REMOVAL_S = 60.0
"""Virtual seconds in which it has removed the files of a whole log, of which every batch may be a segment."""
PROGRESS_DEADLINE_S = 300.0
"""Virtual seconds after the last fault within which everything must be produced, read and committed."""

SETTINGS = {
    "log.dirs": DATA,
    "metrics.listener": "",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "duramen.sink.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "offsets.topic.segment.bytes": "1048576",
    "log.roll.ms": "300",
    "log.retention.check.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "20",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "10",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "200",
    "duramen.journal.max.bytes": str(1 << 20),
    "duramen.journal.part.bytes": str(1 << 16),
    "duramen.journal.bypass.bytes": "4096",
    "duramen.reserve.bytes": "8192",
}
SMALL_JOURNAL = {"duramen.journal.max.bytes": str(1 << 17)}
"""Two parts: its end is reached, and its beginning used again, within a short run."""
SMALL_MAP = {"log.cleaner.dedupe.buffer.size": "72"}
"""Room for a few keys: compaction needs several passes."""

SINKS = 0.4
"""Share of the worlds that have a sink."""
SINK_BATCHES = 8

GIVEN_UP = {
    "directory-failed": "",
    "partition-offline": "partition offline",
    "partition-not-deleted": "",
    "coordinator-load-failed": "coordinator failed to load",
}
"""Events of the broker's log after which it serves everything again only when it is started again, and their states."""


@dataclass(slots=True)
class SimulationResult:
    """What a simulation that kept every promise came to.

    facts: what clients learned and the invariants checked. deaths: kills and power cuts. faults: what was inflicted, by
    kind; states: interesting states reached, by name. lines: the history, if kept.
    """

    seed: int
    digest: str
    disk_calls: int
    events: int
    starts: int
    deaths: int
    virtual_s: float
    facts: int
    faults: Counter[str]
    states: Counter[str]
    lines: list[str] = field(default_factory=list)


class Simulation:
    """Everything that exists in one simulated world."""

    def __init__(self, seed: int, plan: Plan, *, keep_lines: bool = False) -> None:
        random = Random(seed)
        self.seed = seed
        self.plan = plan
        self.random = random
        hosts = {node_id: node_address(node_id)[0] for node_id in (CLIENTS, *NODES)}
        self.world = ClusterWorld(random, hosts, torn=plan.torn, keep_lines=keep_lines)
        self.loop = self.world.loop
        self.history = self.world.history
        self.compacts = plan.has("compacted", random)
        # Drawn apart, so that worlds without a sink are what they were before there were sinks.
        drawn = Random(f"a sink in {seed}")
        has_sink = "sink" in plan.features or (plan.churn and drawn.random() < SINKS)
        self.sunk = Sunk(stable=drawn.random() < 0.7) if has_sink else None
        self.late = Sunk(stable=True, topic=LATE)
        settings: dict[str, str] = SMALL_MAP if self.compacts and random.random() < 0.3 else {}
        # Compaction goes as far as checkpoints do, which a small journal makes often.
        settings = settings | background(seed, plan)
        self.directories = (DATA, SECOND) if plan.has("two directories", Random(f"directories of {seed}")) else (DATA,)
        settings["log.dirs"] = ",".join(self.directories)
        settings |= SMALL_JOURNAL if plan.has("small journal", random) else {}
        self.configs = {node_id: configuration(settings, node_id) for node_id in NODES}
        note = self.history.note
        self.nodes = self.world.nodes
        for node_id in NODES:
            self._add_node(node_id)
        self.people, self.clock, self.port = self.world.clients("clients")
        self.clients: list[NodeClient] = []
        self.scene = draw_scene(plan, random, seed, self.clock, note)
        self.folder = Folder(self.scene, TopicPartition(COMPACTED, 0))
        self.ledger = self.scene.ledger
        self.ledger.broker_wall_ms = lambda: max(self.node.latest_wall_ms, self.node.wall_ms())
        self.ledger.passed_ms = self.node.passed_ms
        # Drawn apart, too.
        has_transactions = plan.has("transactions", Random(f"transactions of {seed}"))
        self.transactions = TransactionWorld(TransactionStage(self.scene, self._run)) if has_transactions else None
        shares = plan.has("shared group", Random(f"a shared group in {seed}"))
        self.shared_group = SharedGroup(self.scene, self._run) if shares else None
        drawn = Random(f"streams of {seed}")
        has_streams = plan.has("streams", drawn)
        self.streams = StreamWorld(StreamStage(self.scene, drawn, self._run)) if has_streams else None
        for node in self.nodes.values():
            node.disk.on_power_cut = self._power_failed
            node.on_state = self.coverage.hit
        self.faults = Faults(
            Random(random.getrandbits(64)),
            self.node,
            self.clients,
            note,
            lambda: self.loop.now,
            self.world.latencies[self.node.node_id],
        )
        # A file's time is the wall clock's at its last write: where that jumps back, records without a time go early.
        never = "clock jump" if self.scene.stamps.some_lack(EXPIRING) else ""
        self.faults.kinds = {
            kind: weight
            for kind, weight in self.faults.kinds.items()
            if (kind in plan.faults or not plan.faults) and kind != never
        }
        self.scene.starts = lambda: self.node.starts
        self.faults.moments = self.coverage.moments
        if self.transactions is not None:
            self.faults.worth = {
                moment: calls
                for moment, calls in TRANSACTION_MOMENTS.items()
                if moment in plan.moments or not plan.moments
            }
        self.faults.look = lambda: survey(self.scene, judge=False)
        self.faults.suspicious = lambda: self.node.given_up
        self.faults.before_start = self._check_replay
        self.faults.directories = self.directories
        if self.streams is not None:
            self.faults.on_damage = self.streams.stage.damaged

    def _add_node(self, node_id: int) -> None:
        """A node with settings of its own."""

        def boot(world: World) -> Server:
            return self._boot(node, world)

        node = self.world.add(node_id, boot)
        node.on_error = self._server_failed

    @property
    def node(self) -> SimNode:
        """The only node: what faults and the verdict are about."""
        (node,) = self.nodes.values()
        return node

    @property
    def disk(self) -> CrashDisk:
        """The only node's."""
        return self.node.disk

    def _check_replay(self) -> None:
        """Before some starts: recover copies of the disk, and compare."""
        node = self.node
        if self.random.random() < self.plan.replayed and node.starts and not node.excused:
            settings, now_ms = directory_settings(self.configs[node.node_id], None), node.wall_ms()
            for path in filter(node.disk.names.has, self.directories):
                check_replay(node.disk, self.random, path, settings, now_ms, self._is_stable, self.coverage.hit)

    def _is_stable(self, tp: TopicPartition) -> bool:
        return tp.topic in self.ledger.stable or tp.topic in INTERNAL_TOPICS

    @property
    def coverage(self) -> Coverage:
        """The states reached so far."""
        return self.scene.coverage

    def _boot(self, node: SimNode, world: World) -> Server:
        node.given_up = False
        broker = Broker(world, self.configs[node.node_id], partial(self._reported, node))
        # As much as is worth it in a world that is this small.
        broker.relocation_rules = RelocationRules(idle_bytes=1000, settled_ms=500, retry_ms=500)
        return broker

    def _reported(self, node: SimNode, level: str, event: str, fields: dict[str, Any]) -> None:
        """A line of a broker's log: what it gave up, and bugs that it survived."""
        bug = fields.get("traceback")
        if isinstance(bug, InvariantViolated):
            raise bug
        if isinstance(bug, BaseException):
            lines = "".join(traceback.format_exception(bug))
            raise InvariantViolated("NoUnhandledError", f"{event}: {lines}")
        check_event(event, fields, excused=node.excused)
        if event in GIVEN_UP:
            node.given_up = True
            if GIVEN_UP[event]:
                self.coverage.hit(GIVEN_UP[event])
            self.history.note(f"{event} {fields}")

    def _server_failed(self, error: Exception) -> None:
        if isinstance(error, InvariantViolated):
            raise error
        lines = traceback.format_exception(error)
        raise InvariantViolated("NoUnhandledError", "".join(lines)) from error

    def client(self, name: str) -> NodeClient:
        """A new client of the node."""
        client = NodeClient(self.port, self.clock, *node_address(self.node.node_id), name)
        self.clients.append(client)
        return client

    def _run(self, name: str, script: Script) -> None:
        self.act(name, script)

    def _power_failed(self) -> None:
        self.ledger.power_failed()
        if self.transactions is not None:
            self.transactions.stage.book.power_failed()
        if self.streams is not None:
            self.streams.stage.power_failed()

    def act(self, name: str, script: Script) -> Actor:
        """Run a script on a client of its own."""
        return Actor(self.client(name), self.clock, script)

    def run(self) -> SimulationResult:
        """From the first start to the last verdict; InvariantViolated where a promise is broken."""
        with probed(self.coverage.hit), scrubbing_soon(), few_entries(self.seed, self.plan):
            try:
                self._live()
                self._verdict()
            except DiskLiedError:
                self._after_the_lie()
        self.history.note(f"end after {self.disk.calls} disk calls, {self.loop.events_run} events")
        return SimulationResult(
            self.seed,
            self.history.digest(),
            self.disk.calls,
            self.loop.events_run,
            sum(node.starts for node in self.nodes.values()),
            sum(node.deaths for node in self.nodes.values()),
            self.loop.now,
            self.ledger.facts,
            self.faults.counts,
            self.coverage.counts,
            self.history.lines,
        )

    def _live(self) -> None:
        """Everybody at work while things go wrong, until all is produced, read and committed."""
        scene, plan, random = self.scene, self.plan, self.random
        self.disk.cut_at = plan.cut_at
        actors = [self.act("faults", self._faults(0 if plan.calm else random.randint(1, 4)))]
        actors.append(self.act("admin", create_topics(scene)))
        tps = scene.partitions()
        names = [(f"p-{tp}", tp) for tp in tps]
        if plan.has("second producer", random):
            names.append((f"q-{tps[-1]}", tps[-1]))
        for name, tp in names:
            actors.append(self.act(name, SimProducer(scene, name, tp, plan.records).script()))
        readers = [SimReader(scene, f"r{number}-{tp}", tp) for tp in tps for number in range(plan.readers)]
        stable = [tp for tp in tps if tp.topic == STABLE]
        static = plan.has("static members", Random(f"members of {self.seed}"))
        members = [SimMember(scene, "group", f"m{number}", stable, static=static) for number in range(plan.members)]
        if plan.has("second group", random):
            members.append(SimMember(scene, "other", "o0", stable[:1]))
        watchers = [self.act(reader.name, reader.script()) for reader in readers]
        watchers += [self.act(member.name, member.script()) for member in members]
        if self.compacts:
            compacted = self.folder.tp
            actors.append(self.act("keyed", self._keyed(KeyedProducer(scene, "k", compacted, plan.records))))
            watchers.append(self.act("folder", self.folder.script()))
        if self.sunk is not None:
            actors.append(self.act("driver", Driver(scene, self.sunk, SINK_BATCHES).script()))
            actors.append(self.act("late driver", Latecomer(scene, self.late, self.sunk, SINK_BATCHES - 1).script()))
            watchers += [self.act(sunk.topic, watch_sink(scene, sunk)) for sunk in (self.sunk, self.late)]
        actors += self._churn(readers, members)
        transactions = self.transactions
        if transactions is not None:
            transactions.begin()
        group = self.shared_group
        if group is not None:
            group.begin()
        streams = self.streams
        if streams is not None:
            streams.begin()
        self._until("everything is produced", lambda: all(actor.finished for actor in actors))
        if transactions is not None:
            self._until("every transaction is over", lambda: transactions.is_over)
        if group is not None:
            self._until("the shared group settles", lambda: not group.running)
        if streams is not None:
            self._until("writers of streams end", lambda: streams.is_over)
        self._until("everything is read", lambda: all_read(self.scene, readers, members))
        scene.reading_on = False
        self._until("readers end", lambda: all(actor.finished for actor in watchers))
        if transactions is not None:
            self._until("readers of committed data end", lambda: transactions.is_read)

    def _churn(self, readers: list[SimReader], members: list[SimMember]) -> list[Actor]:
        """Those who change things under way: the seed leaves some of them out."""
        scene = self.scene
        scripts = [
            ("recreator", Recreator(scene).script()),
            ("hardener", Hardener(scene).script()),
            ("grower", Grower(scene).script()),
            ("configurer", Configurer(scene, sorted({*scene.topics, COMPACTED} - {EXPIRING})).script()),
            ("trimmer", trim(scene, lambda tp: needed_from(tp, readers, members))),
        ]
        return [self.act(name, script) for name, script in scripts if self.plan.has(name, self.random)]

    def _keyed(self, producer: KeyedProducer) -> Script:
        configs = {
            "cleanup.policy": "compact",
            "internal.segment.bytes": self.random.choice(("2000", "6000")),
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": self.random.choice(("0", "300", "100000")),
        }
        self.ledger.tombstones_stay_ms[COMPACTED] = int(configs["delete.retention.ms"])
        if COMPACTED not in self.ledger.stable:
            configs["duramen.ack.durability"] = "page-cache"
        yield from create_topic(self.scene, COMPACTED, 1, configs)
        self.scene.created.add(COMPACTED)
        yield from producer.script()

    def _faults(self, count: int) -> Script:
        yield from self.faults.script(count)
        self.scene.faults_on = False

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        """Run until the condition holds. A node that is down after its last fault is started again."""
        if not self.loop.run(lambda: condition() or self._needs_start(), self.loop.now + PROGRESS_DEADLINE_S):
            raise InvariantViolated("Progress", f"not within {PROGRESS_DEADLINE_S} s: {what}")
        if not condition():
            repair = self.act("repair", self._repair())
            self.loop.run(lambda: repair.finished, self.loop.now + PROGRESS_DEADLINE_S)
            self._until(what, condition)

    def _needs_start(self) -> bool:
        """Whether the node is down, or learned of its last fault when that was over and has given something up."""
        return self.faults.finished and (not self.node.running or (self.node.given_up and self.node.ready))

    def _repair(self) -> Script:
        if self.node.running:
            yield from self.faults.stopped()
        yield from self.faults.started(0.0)

    def _finish(self, what: str, script: Script) -> None:
        """Run one script to its end."""
        actor = self.act(what, script)
        self._until(what, lambda: actor.finished)

    # -- the end

    def _verdict(self) -> None:
        """Read everything, stop cleanly, start, and read everything again: it must be the same."""
        found: list[dict[TopicPartition, list[tuple[int, int, bytes]]]] = [{}, {}]
        tps = self.scene.partitions()
        self._finish("reading back", read_back(self.scene, tps, found[0]))
        if self.transactions is not None:
            self._finish("transactions are whole", self.transactions.judge())
        if self.streams is not None:
            self._finish("streams are whole", self.streams.judge())
        self._finish("a clean restart", self._stop_and_start())
        self._finish("reading again", read_back(self.scene, tps, found[1]))
        for tp, before in found[0].items():
            kept = before
            if tp.topic in self.ledger.retention:
                first = found[1][tp][0][0] if found[1][tp] else before[-1][0] + 1 if before else 0
                kept = [record for record in before if record[0] >= first]
            if found[1][tp] != kept:
                raise InvariantViolated("CleanRestartChangesNothing", f"{tp}: {len(before)} records before")
        if self.transactions is not None:
            self._finish("transactions are whole behind a restart", self.transactions.judge())
        if self.streams is not None:
            self._finish("streams are whole after a restart", self.streams.judge())
        if self.sunk is not None:
            for sunk in (self.sunk, self.late):
                self._finish("what is committed is there", read_sunk(self.scene, sunk, final=True))
        for tp in tps:
            if tp.topic not in self.ledger.retention:
                self._finish("looking by time", check_times(self.scene, tp, self.random))
            elif self.ledger.retention[tp.topic].ms >= 0:
                self._finish("old records go", expired(self.scene, tp))
        if self.compacts:
            for wait_s in (0.0, 65.0, 5.0):  # a checkpoint comes after a minute at the latest, and compaction after it
                self._finish("compaction", self.folder.after(wait_s))
        self._check_leaks()

    def _check_leaks(self) -> None:
        """Everybody hangs up; after a while the node must hold nothing, and no file once it has stopped."""
        for client in self.clients:
            client.drop()
        self._finish("rest", rest(self.node, self.loop))
        broker, process = self.node.server, self.node.process
        if isinstance(broker, Broker) and process is not None:
            bound = self.configs[self.node.node_id].integer("duramen.journal.max.bytes")
            check_idle(broker, self.disk, self.directories, bound, self.loop.planned(process))
        broker = None
        self.faults.finished = False
        self._finish("a last stop", self.faults.stopped())
        check_stopped(self.disk)

    def _stop_and_start(self) -> Script:
        """Stop cleanly, sometimes lose power after that, and start."""
        faults = self.faults
        faults.finished = False
        if faults.node.ready:
            yield from faults.stopped()
            if not self.plan.calm and self.random.random() < 0.5:
                self.coverage.hit("power cut after a clean stop")
                self.disk.power_cut()
        yield from faults.started(0.0)
        faults.finished = True

    def _after_the_lie(self) -> None:
        """Synced bytes are gone: whatever is still served must be intact, in order and not invented."""
        self.coverage.hit("the disk lied and power failed")
        self.history.note("the disk lied")
        self.loop.forget(self.people)
        self.port.die(0.0, deliver=False)
        self.people, self.clock, self.port = self.world.clients("inspectors")
        self.ledger.keep_only(OnlyWhatWasProduced, Order)
        disk = self.disk
        disk.lying = False
        disk.fault = disk.short_reads = disk.cut_at = disk.kill_at = None
        self.node.excused = True
        self.node.start()
        self.loop.run(lambda: self.node.ready or not self.node.running, self.loop.now + PROGRESS_DEADLINE_S)
        if not self.node.running:
            self.coverage.hit("a lie was noticed at the start")
            return
        actor = self.act("survey", survey(self.scene, judge=True))
        if not self.loop.run(lambda: actor.finished, self.loop.now + PROGRESS_DEADLINE_S):
            raise InvariantViolated("Progress", "what a lying disk left is neither served nor refused")


def rest(node: SimNode, loop: SimLoop) -> Script:
    """Time to finish what was begun, counted anew when the node dies in it, and until no job of its own is on."""
    starts = -1
    while starts != node.starts or not node.ready:
        starts = node.starts
        yield REST_S
    end = loop.now + REST_S
    while isinstance(node.server, Broker) and node.server.store._jobs and loop.now < end:
        yield 0.01  # the scrubber's, say, which goes round for ever
    end = loop.now + REMOVAL_S
    while removing(node.disk) and loop.now < end:
        yield REST_S


def expired(scene: Scene, tp: TopicPartition) -> Script:
    """Wait until everything in the partition is too old."""
    while True:
        start = yield from list_offset(scene, tp, EARLIEST)
        end = yield from list_offset(scene, tp, LATEST)
        if start == end:
            break
        yield 1.0
    if scene.stamps.lacking(tp.topic):
        scene.coverage.hit("topic without timestamps expires")
    if scene.stamps.aging == tp.topic:
        scene.coverage.hit("compacted topic expires")


def needed_from(tp: TopicPartition, readers: list[SimReader], members: list[SimMember]) -> int:
    """The first offset of the partition that some reader or group has not had yet."""
    positions = [reader.offset for reader in readers if reader.tp == tp]
    for group in sorted({member.group for member in members if tp in member.tps}):
        positions.append(max(member.committed.get(tp, 0) for member in members if member.group == group))
    return min(positions, default=0)


def all_read(scene: Scene, readers: list[SimReader], members: list[SimMember]) -> bool:
    """Whether readers and groups have come to the end of what is stored."""
    stored = scene.stored
    if any(reader.offset < stored.get(reader.tp, 0) for reader in readers if scene.is_stable(reader.tp)):
        return False
    highest: dict[tuple[str, TopicPartition], int] = {}
    for member in members:
        for tp in member.tps:
            key = (member.group, tp)
            highest[key] = max(highest.get(key, -1), member.committed.get(tp, -1))
    return all(position >= stored.get(tp, 0) for (_, tp), position in highest.items())


def configuration(settings: dict[str, str] | None = None, node_id: int = 1) -> BrokerConfig:
    """A node's settings: small journal parts and segments, so that a short run meets every edge."""
    host, port = node_address(node_id)
    own = {"node.id": str(node_id), "listeners": f"PLAINTEXT://{host}:{port}"}
    return load_broker_config(None, SETTINGS | own | (settings or {}))


def simulate(seed: int, plan: Plan | None = None, *, keep_lines: bool = False) -> SimulationResult:
    """Run one simulation. InvariantViolated where a promise breaks; its `lines` are the history, if asked for."""
    simulation = Simulation(seed, plan or Plan(), keep_lines=keep_lines)
    try:
        return simulation.run()
    except InvariantViolated as violated:
        violated.lines = simulation.history.lines
        raise
