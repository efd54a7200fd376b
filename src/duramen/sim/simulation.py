"""One simulation from one seed: a node running the production server, its clients, its faults, and the verdict."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from duramen.config import BrokerConfig, load_broker_config
from duramen.model import TopicPartition
from duramen.ports import World
from duramen.server.broker import Broker
from duramen.sim.churn import Hardener, Recreator, trim
from duramen.sim.client import Actor, Client, Script
from duramen.sim.disk import Call as DiskCall
from duramen.sim.disk import CrashDisk
from duramen.sim.faults import Faults
from duramen.sim.group import Member
from duramen.sim.history import History
from duramen.sim.invariants import InvariantViolated, Ledger
from duramen.sim.loop import Loop, Process, SimClock
from duramen.sim.network import SimNetwork, SimPort
from duramen.sim.node import WALL_START_MS, Node, Server
from duramen.sim.workload import Producer, Reader, Scene, create_topics, read_back

HOST, PORT = "127.0.0.1", 9092
PROGRESS_DEADLINE_S = 300.0
"""Virtual seconds after the last fault within which everything must be produced, read and committed."""

SETTINGS = {
    "node.id": "1",
    "log.dirs": "/data",
    "listeners": f"PLAINTEXT://{HOST}:{PORT}",
    "metrics.listener": "",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "1048576",
    "log.roll.ms": "300",
    "group.initial.rebalance.delay.ms": "20",
    "group.min.session.timeout.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "duramen.journal.max.bytes": str(1 << 20),
    "duramen.journal.part.bytes": str(1 << 16),
    "duramen.journal.bypass.bytes": "4096",
}

STABLE, PAGE_CACHE = "stable", "page-cache"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a simulation does besides its seed.

    records: how many each producer makes, one producer a partition. partitions: of the stable topic. calm: no faults
    are drawn from the seed. cut_at: power fails in this disk call of the first start.
    segment_bytes: of both topics; None draws it from the seed.
    """

    records: int = 40
    readers: int = 1
    partitions: int = 2
    members: int = 2
    page_cache: bool = True
    churn: bool = True
    torn: bool = True
    calm: bool = False
    cut_at: int | None = None
    segment_bytes: int | None = None


@dataclass(slots=True)
class Result:
    """What a simulation that kept every promise came to.

    facts: what clients learned and the invariants checked. deaths: kills and power cuts. lines: the history, if kept.
    """

    seed: int
    digest: str
    disk_calls: int
    events: int
    starts: int
    deaths: int
    virtual_s: float
    facts: int
    lines: list[str] = field(default_factory=list)


class Simulation:
    """Everything that exists in one simulated world."""

    def __init__(self, seed: int, plan: Plan, *, keep_lines: bool = False) -> None:
        random = Random(seed)
        self.seed = seed
        self.plan = plan
        self.loop = Loop(Random(random.getrandbits(64)))
        self.history = History(lambda: self.loop.now, keep=keep_lines)
        self.network = SimNetwork(self.loop, Random(random.getrandbits(64)))
        self.disk = CrashDisk(Random(random.getrandbits(64)), torn=plan.torn)
        self.disk.latency = Latency(Random(random.getrandbits(64)))
        self.config = configuration()
        note = self.history.note
        self.node = Node("n1", self.loop, self.network, random, self.disk, self._boot, note)
        self.node.on_error = self._server_failed
        self.people = Process("clients")
        self.clock = SimClock(self.loop, self.people, WALL_START_MS)
        self.port = SimPort(self.network, self.people)
        self.ledger = Ledger({STABLE})
        topics = {STABLE: plan.partitions} | ({PAGE_CACHE: 1} if plan.page_cache else {})
        size = str(plan.segment_bytes or random.choice((1000, 3000, 10000)))
        configs = {
            STABLE: {"internal.segment.bytes": size},
            PAGE_CACHE: {"internal.segment.bytes": size, "duramen.ack.durability": "page-cache"},
        }
        self.scene = Scene(Random(random.getrandbits(64)), self.clock, self.ledger, note, topics, configs)
        self.clients: list[Client] = []
        self.random = random

    def _boot(self, world: World) -> Server:
        return Broker(world, self.config)

    def _server_failed(self, error: Exception) -> None:
        lines = traceback.format_exception(error)
        raise InvariantViolated("NoUnhandledError", "".join(lines)) from error

    def client(self, name: str) -> Client:
        """A new client of the node."""
        client = Client(self.port, self.clock, HOST, PORT, name)
        self.clients.append(client)
        return client

    def act(self, name: str, script: Script) -> Actor:
        """Run a script on a client of its own."""
        return Actor(self.client(name), self.clock, script)

    def run(self) -> Result:
        """From the first start to the last verdict; InvariantViolated where a promise is broken."""
        scene, plan = self.scene, self.plan
        faults = Faults(Random(self.random.getrandbits(64)), self.node, self.clients, self.history.note, self._now)
        self.disk.cut_at = plan.cut_at
        count = 0 if plan.calm else self.random.randint(1, 4)
        actors = [self.act("faults", self._faults(faults, count))]
        actors.append(self.act("admin", create_topics(scene)))
        for tp in scene.partitions():
            producer = Producer(scene, f"p-{tp}", tp, plan.records)
            actors.append(self.act(producer.name, producer.script()))
        readers = [Reader(scene, f"r{number}-{tp}", tp) for tp in scene.partitions() for number in range(plan.readers)]
        stable = [tp for tp in scene.partitions() if scene.is_stable(tp)]
        members = [Member(scene, "group", f"m{number}", stable) for number in range(plan.members)]
        watchers = [self.act(reader.name, reader.script()) for reader in readers]
        watchers += [self.act(member.name, member.script()) for member in members]
        if plan.churn:
            actors.append(self.act("recreator", Recreator(scene).script()))
            actors.append(self.act("hardener", Hardener(scene).script()))
            actors.append(self.act("trimmer", trim(scene, lambda tp: self._needed_from(tp, readers, members))))
        self._until("everything is produced", lambda: all(actor.finished for actor in actors), faults)
        self._until("everything is read", lambda: self._all_read(readers, members, stable), faults)
        scene.reading_on = False
        self._until("readers end", lambda: all(actor.finished for actor in watchers), faults)
        self._verdict(faults)
        self.history.note(f"end after {self.disk.calls} disk calls, {self.loop.events_run} events")
        return Result(
            self.seed,
            self.history.digest(),
            self.disk.calls,
            self.loop.events_run,
            self.node.starts,
            self.node.deaths,
            self.loop.now,
            self.ledger.facts,
            self.history.lines,
        )

    def _faults(self, faults: Faults, count: int) -> Script:
        yield from faults.script(count)
        self.scene.faults_on = False

    def _now(self) -> float:
        return self.loop.now

    def _needed_from(self, tp: TopicPartition, readers: list[Reader], members: list[Member]) -> int:
        """The first offset of the partition that some reader or the group has not had yet."""
        positions = [reader.offset for reader in readers if reader.tp == tp]
        if members:
            positions.append(max(member.committed.get(tp, 0) for member in members))
        return min(positions, default=0)

    def _all_read(self, readers: list[Reader], members: list[Member], stable: list[TopicPartition]) -> bool:
        stored = self.scene.stored
        if any(reader.offset < stored.get(reader.tp, 0) for reader in readers if reader.tp in stable):
            return False
        return not members or all(
            max(member.committed.get(tp, -1) for member in members) >= stored.get(tp, 0) for tp in stable
        )

    def _until(self, what: str, condition: Callable[[], bool], faults: Faults) -> None:
        """Run until the condition holds. A node that is down after its last fault is started again."""
        if not self.loop.run(lambda: condition() or self._needs_start(faults), self.loop.now + PROGRESS_DEADLINE_S):
            raise InvariantViolated("Progress", f"not within {PROGRESS_DEADLINE_S} s: {what}")
        if not condition():
            repair = self.act("repair", faults.started(0.0))
            self.loop.run(lambda: repair.finished, self.loop.now + PROGRESS_DEADLINE_S)
            self._until(what, condition, faults)

    def _needs_start(self, faults: Faults) -> bool:
        return faults.finished and not self.node.running

    def _verdict(self, faults: Faults) -> None:
        """Read everything, stop cleanly, start, and read everything again: it must be the same."""
        found: list[dict[TopicPartition, list[tuple[int, int, bytes]]]] = [{}, {}]
        for run in (0, 1):
            reading = self.act(f"verdict{run}", read_back(self.scene, self.scene.partitions(), found[run]))
            self._until("reading back", lambda reading=reading: reading.finished, faults)  # type: ignore[misc]
            if run == 0:
                restart = self.act("restart", _stop_and_start(faults))
                self._until("a clean restart", lambda restart=restart: restart.finished, faults)  # type: ignore[misc]
        for tp, before in found[0].items():
            if found[1][tp] != before:
                raise InvariantViolated("CleanRestartChangesNothing", f"{tp}: {len(before)} records before")


class Latency:
    """Seconds that disk calls take: quick when they only touch the cache, seeded and sometimes long for a sync."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def __call__(self, call: DiskCall) -> float:
        if call.operation in ("sync", "sync_directory", "preallocate"):
            wait = self._random.expovariate(1000.0)
            return wait * 50 if self._random.random() < 0.02 else wait
        return 0.000005 + call.length * 1e-9


def _stop_and_start(faults: Faults) -> Script:
    faults.finished = False
    if faults.node.ready:
        yield from faults.stopped()
    yield from faults.started(0.0)
    faults.finished = True


def configuration() -> BrokerConfig:
    """The node's settings: small journal parts and segments, so that a short run meets every edge."""
    return load_broker_config(None, SETTINGS)


def simulate(seed: int, plan: Plan | None = None, *, keep_lines: bool = False) -> Result:
    """Run one simulation. InvariantViolated where a promise breaks; its `lines` are the history, if asked for."""
    simulation = Simulation(seed, plan or Plan(), keep_lines=keep_lines)
    try:
        return simulation.run()
    except InvariantViolated as violated:
        violated.lines = simulation.history.lines
        raise
