"""What clients of a cluster's brokers do: topics made through any node, producers and readers that follow leaders."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.ports import Clock
from duramen.sim.check.invariants import InvariantViolated, Ledger
from duramen.sim.workload.cluster_client import ClusterClient
from duramen.sim.workload.group_workload import SimMember
from duramen.sim.workload.scripts import Actor, Script
from duramen.sim.workload.shared_group import SETTLES_S, SharedGroup
from duramen.sim.workload.stream_stage import StreamStage
from duramen.sim.workload.stream_workload import StreamWorld
from duramen.sim.workload.timestamp_faults import Stamps
from duramen.sim.workload.transaction_stage import HANGS_S, TransactionStage
from duramen.sim.workload.transaction_workload import TransactionWorld
from duramen.sim.workload.workload import (
    MORE_WHILE_FAULTS,
    RETRY_S,
    Scene,
    SimProducer,
    SimReader,
    create_topics,
    read_back,
    unexpected,
)
from duramen.wire.batch import NewRecord, build_batch

RECORDS: Final = 15
"""How many each producer makes at least."""
PLAIN: Final = 0.3
"""Share of the producers that are not idempotent."""
TRANSACTIONS: Final = 0.35
"""Share of the worlds that have transactions."""
SHARED_GROUPS: Final = 0.25
"""Share of the worlds with a group of both protocols."""
GROUPS: Final = 0.5
"""Share of the worlds in which a group shares a topic's partitions."""
PAGE_CACHE: Final = {"duramen.ack.durability": "page-cache"}

Contents = dict[TopicPartition, list[tuple[int, int, bytes]]]
"""(offset, epoch, value) of all records."""


class TopicKind(NamedTuple):
    """A topic that a world may have. chance: share of the worlds. copies: at most."""

    name: str
    chance: float
    copies: int
    is_stable: bool = True


GROUPED: Final = "copied"
KINDS: Final = (
    TopicKind(GROUPED, 1.0, 3),
    TopicKind("copied-cached", 0.6, 3, is_stable=False),
    TopicKind("twofold", 0.3, 2),
    TopicKind("single", 0.4, 1),
    TopicKind("cached", 0.2, 1, is_stable=False),
)


def draw_topics(random: Random, clock: Clock, note: Callable[[str], None], nodes: int, copies: int) -> Scene:
    """The topics of a cluster of so many nodes, of so many copies at most, and what is promised of each."""
    most = min(nodes, copies)
    topics: dict[str, int] = {}
    configs: dict[str, dict[str, str]] = {}
    factors: dict[str, int] = {}
    ledger = Ledger(set())
    size = {"internal.segment.bytes": str(random.choice((1000, 3000, 10000)))}
    for kind in KINDS:
        count, chance = min(kind.copies, most), random.random()
        if chance >= (kind.chance if most > 1 else 1.0) or count < min(kind.copies, 2):
            continue
        topics[kind.name] = random.choice((1, 2))
        configs[kind.name] = size | ({} if kind.is_stable else PAGE_CACHE)
        if kind.is_stable:
            ledger.stable.add(kind.name)
        if count > 1:
            factors[kind.name] = count
            ledger.behind.add(kind.name)
            configs[kind.name]["min.insync.replicas"] = str(random.randint(1, count))
    return Scene(random, clock, ledger, note, topics, configs, Stamps(random, odd=False), copies=factors)


class PlainProducer:
    """One that is not idempotent: a batch at a time, again until it is acknowledged, so that some may be there twice.

    acks: -1 (all) or 1.
    """

    def __init__(self, scene: Scene, name: str, tp: TopicPartition, total: int, acks: int, pause_s: float) -> None:
        self.scene = scene
        self.name = name
        self.tp = tp
        self.total = total
        self.acks = acks
        self.pause_s = pause_s
        self.made = 0
        self.acknowledged_to = -1
        scene.ledger.plain.add(name.encode())

    def script(self) -> Script:
        """Produce, then end."""
        scene, random = self.scene, self.scene.random
        while self.tp.topic not in scene.created:
            yield RETRY_S
        while self.made < self.total or (scene.faults_on and self.made < MORE_WHILE_FAULTS * self.total):
            values = []
            for _ in range(random.choice((1, 1, 2, 5))):
                values.append(f"{self.name}:{self.made:06} ".encode() + b"." * random.choice((0, 10, 700)))
                self.made += 1
            now = scene.clock.wall_ms()
            rows: list[NewRecord] = [(self.name.encode(), value, [], now) for value in values]
            batch = bytes(build_batch(rows))
            scene.ledger.produced(self.tp, values, now, len(batch))
            while not (yield from self._send(values, batch)):
                yield RETRY_S * random.uniform(0.5, 1.5)
            yield random.uniform(0.0, self.pause_s if scene.faults_on else 0.06)

    def _send(self, values: list[bytes], batch: bytes) -> Any:
        """Once; whether it is acknowledged."""
        scene = self.scene
        wanted = call("Produce", 9, transactional_id=None, acks=self.acks, timeout_ms=30000)
        kinds = wanted.api.request
        data = kinds.PartitionProduceData(index=self.tp.partition, records=batch)
        wanted.request.topic_data.append(kinds.TopicProduceData(name=self.tp.topic, partition_data=[data]))
        asked = scene.ledger.facts
        answer = yield wanted
        if answer is None:
            scene.note(f"{self.name} lost a reply")
            return False
        told = answer.responses[0].partition_responses[0]
        scene.note(f"{self.name}+{len(values)}: {told.error_code} at {told.base_offset}")
        if told.error_code != ErrorCode.NONE:
            if not ErrorCode(told.error_code).retriable:
                raise unexpected(f"{self.name} produce", told.error_code)
            return False
        if self.acks == 1 and self.tp.topic in scene.copies:
            return True  # the leader's disk has it, whoever leads next
        if told.base_offset < self.acknowledged_to and scene.ledger.lasts(self.tp):
            detail = f"{self.tp}: {self.name} is at {told.base_offset}, and was at {self.acknowledged_to}"
            raise InvariantViolated("Order", detail)
        for delta, value in enumerate(values):
            scene.ledger.acknowledged(self.tp, told.base_offset + delta, value, asked)
        self.acknowledged_to = told.base_offset + len(values)
        scene.stored[self.tp] = max(self.acknowledged_to, scene.stored.get(self.tp, 0))
        return True


class ClusterWorkload:
    """Those who produce to and read from the brokers of one cluster. client: makes one more."""

    def __init__(self, scene: Scene, client: Callable[[str], ClusterClient], going_on: Callable[[], bool]) -> None:
        self.scene = scene
        self.clients: list[ClusterClient] = []
        self.producers: list[SimProducer | PlainProducer] = []
        self.readers: list[SimReader] = []
        self.members: list[SimMember] = []
        self.transactions: TransactionWorld | None = None
        self.shared_group: SharedGroup | None = None
        self.streams: StreamWorld | None = None
        self._client = client
        self._going_on = going_on
        self._makers: list[Actor] = []
        self._watchers: list[Actor] = []

    def begin(self, clock_of_all: Callable[[], bool]) -> None:
        """Let everybody begin; topics are made once `clock_of_all` says that every node is known."""
        scene, random = self.scene, self.scene.random

        def creator() -> Script:
            while not clock_of_all():
                yield RETRY_S
            yield from create_topics(scene)

        self._makers.append(self.act("creator", creator()))
        for tp in scene.partitions():
            pause_s = random.choice((0.06, 0.5, 1.5))
            if random.random() < PLAIN:
                acks = random.choice((1, -1))
                plain = PlainProducer(scene, f"plain{acks}-{tp}", tp, RECORDS, acks, pause_s)
                self._add(plain)
            else:
                producer = SimProducer(scene, f"p-{tp}", tp, RECORDS)
                producer.pause_s = pause_s
                self._add(producer)
            reader = SimReader(scene, f"r-{tp}", tp)
            self.readers.append(reader)
            self._watchers.append(self.act(reader.name, reader.script()))
        shared = [tp for tp in scene.partitions() if tp.topic == GROUPED]
        if shared and random.random() < GROUPS:
            self.members = [SimMember(scene, "group", f"m{number}", shared) for number in range(2)]
            self._watchers += [self.act(member.name, member.script()) for member in self.members]

    def begin_transactions(self, clock_of_all: Callable[[], bool], copies: int) -> None:
        """Let there be transactions, in topics of so many copies at most, once every node is known."""
        stage = TransactionStage(self.scene, self._run, copies)
        stage.may_begin = clock_of_all
        self.transactions = TransactionWorld(stage)
        self.transactions.begin()

    def begin_streams(self, clock_of_all: Callable[[], bool], random: Random, copies: int) -> None:
        """Let there be writers of streams."""
        stage = StreamStage(self.scene, random, self._run, copies)
        stage.may_begin = clock_of_all
        self.streams = StreamWorld(stage)
        self.streams.begin()

    def ends_in_s(self, least_s: float) -> float:
        """Seconds behind the last fault in which everybody but the readers has ended; least_s: where nothing waits."""
        if self.transactions is not None:
            least_s += HANGS_S
        return least_s if self.shared_group is None else least_s + 2 * SETTLES_S

    def begin_shared_group(self, clock_of_all: Callable[[], bool], copies: int) -> None:
        """Let there be a group of both protocols."""
        self.shared_group = SharedGroup(self.scene, self._run, copies)
        self.shared_group.may_begin = clock_of_all
        self.shared_group.begin()

    def _run(self, name: str, script: Script) -> None:
        self.act(name, script)

    def power_failed(self) -> None:
        """Of some node: what page-cache topics hold may be gone."""
        self.scene.ledger.power_failed()
        if self.transactions is not None:
            self.transactions.stage.book.power_failed()
        if self.streams is not None:
            self.streams.stage.power_failed()

    @property
    def is_made(self) -> bool:
        """Whether all topics are there."""
        if self.transactions is not None and not self.transactions.stage.is_made:
            return False
        if self.shared_group is not None and not self.shared_group.is_made:
            return False
        if self.streams is not None and not self.streams.stage.is_made:
            return False
        return self.scene.created == self.scene.topics.keys()

    def _add(self, producer: SimProducer | PlainProducer) -> None:
        self.producers.append(producer)
        self._makers.append(self.act(producer.name, producer.script()))

    def act(self, name: str, script: Script) -> Actor:
        """Run a script on a client of its own."""
        client = self._client(name)
        self.clients.append(client)
        return Actor(client, self.scene.clock, script)

    def is_unheard(self, transactional_id: str) -> bool:
        """Whether its last client has died asking for the end of a transaction."""
        return self.transactions is not None and transactional_id in self.transactions.stage.unheard

    @property
    def is_produced(self) -> bool:
        """Whether all that was to be produced is acknowledged."""
        self.scene.faults_on = self._going_on()
        is_over = self.transactions is None or self.transactions.is_over
        is_over = is_over and (self.shared_group is None or not self.shared_group.running)
        is_over = is_over and (self.streams is None or self.streams.is_over)
        return is_over and all(actor.finished for actor in self._makers)

    @property
    def is_read(self) -> bool:
        """Whether every reader has come to the end of what was acknowledged, and has ended."""
        stored = self.scene.stored
        is_read = all(
            reader.offset >= stored.get(reader.tp, 0) for reader in self.readers if self.scene.is_stable(reader.tp)
        )
        if is_read and all(self._is_committed(tp) for member in self.members for tp in member.tps):
            self.scene.reading_on = False
        ends = self.transactions is None or self.transactions.is_read
        return not self.scene.reading_on and ends and all(actor.finished for actor in self._watchers)

    def _is_committed(self, tp: TopicPartition) -> bool:
        """Whether the group has come to the end of what was acknowledged."""
        return any(member.committed.get(tp, -1) >= self.scene.stored.get(tp, 0) for member in self.members)

    def read_back(self, found: Contents) -> Actor:
        """Read everything into `found`, and ask the invariants for their verdict."""
        return self.act("reading back", read_back(self.scene, self.scene.partitions(), found))

    def judge(self) -> Actor | None:
        """Hold the logs against what transactional clients know; None: there are none."""
        return None if self.transactions is None else self.act("the verdict", self.transactions.judge())

    def judge_streams(self) -> Actor | None:
        """Hold the logs against what writers of streams know; None: there are none."""
        return None if self.streams is None else self.act("the verdict on streams", self.streams.judge())

    def close(self) -> None:
        """Everybody hangs up."""
        for client in self.clients:
            client.close()
