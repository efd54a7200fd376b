"""A node whose files are at rest in memory: filled once, then started again and again on copies with one bit flipped.

The node is the production server on the simulator's ports. Nothing in its page cache is left from the run that wrote
the files. The client that questions it checks no checksum: it compares bytes and numbers with what the node answered
before anything was flipped.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from duramen.client.loop.node_client import NodeClient, NodeRequest, call
from duramen.config import load_broker_config
from duramen.errors import ErrorCode
from duramen.ports import World
from duramen.server.broker import Broker
from duramen.sim.world.disk import CrashDisk
from duramen.sim.world.entropy import SimEntropy
from duramen.sim.world.executor import SimExecutor
from duramen.sim.world.inode import PAGE, Inode
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import Conditions, SimNetwork, SimPort
from duramen.wire.batch import batches, build_batch

HOST, PORT = "127.0.0.1", 9092
WALL_MS = 1_767_225_600_000
PARTITIONS = (("events", 0), ("events", 1), ("loose", 0))
GROUP = "readers"
SETTINGS = {
    "node.id": "1",
    "log.dirs": "/data",
    "listeners": f"PLAINTEXT://{HOST}:{PORT}",
    "metrics.listener": "",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "20",
    "duramen.journal.max.bytes": str(1 << 20),
    "duramen.journal.part.bytes": str(1 << 16),
}
CONFIGS = {
    "events": {"internal.segment.bytes": "3000", "index.interval.bytes": "300"},
    "loose": {"internal.segment.bytes": "5000", "index.interval.bytes": "300", "duramen.ack.durability": "page-cache"},
}
RETRIED = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.LEADER_NOT_AVAILABLE,
}
Image = dict[str, bytes]
"""Every file of the machine by its path."""
Event = tuple[str, str, dict[str, Any]]


class NoStartError(Exception):
    """The node refused to start, or failed while it ran; `cause` says with what."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(repr(cause))
        self.cause = cause


class Machine:
    """One run of the server on a disk. All time is virtual."""

    def __init__(self, disk: CrashDisk, seed: int = 1, *, later_s: float = 0.0) -> None:
        random = Random(seed)
        self.disk = disk
        self.loop = SimLoop(Random(random.random()))
        self.loop.now = later_s
        self.network = SimNetwork(
            self.loop, Random(random.random()), Conditions((0.0001, 0.0002), (1 << 20, 1 << 20), 0.0)
        )
        self.failure: Exception | None = None
        self.events: list[Event] = []
        self.ready = False
        disk.power_on()
        self.process = Process("node", None, None, self._failed)
        self.executor = SimExecutor(self.loop, self.process, Random(2), (0.00001, 0.0001))
        clock = SimClock(self.loop, self.process, WALL_MS)
        world = World(disk, clock, SimPort(self.network, self.process), self.executor, SimEntropy(Random(seed)))
        self.broker = Broker(world, load_broker_config(None, SETTINGS), self._report)
        people = Process("people")
        self.client = NodeClient(
            SimPort(self.network, people), SimClock(self.loop, people, WALL_MS), HOST, PORT, "reader"
        )
        self.loop.soon(self.process, lambda: self.broker.start(self._is_ready))
        self.until(lambda: self.ready)

    def _failed(self, error: Exception) -> None:
        self.failure = self.failure or error

    def _report(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.events.append((level, event, fields))

    def _is_ready(self) -> None:
        self.ready = True

    def until(self, done: Callable[[], bool], seconds: float = 60.0) -> None:
        """Let time pass until something is so; NoStartError when the server failed, TimeoutError when time is up."""
        held = self.loop.run(lambda: done() or self.failure is not None, self.loop.now + seconds)
        if self.failure is not None:
            raise NoStartError(self.failure)
        if not held:
            raise TimeoutError("the node does not answer")

    def wait(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.loop.now + seconds
        self.until(lambda: self.loop.now >= end, seconds + 1)

    def ask(self, wanted: NodeRequest, failed: Callable[[Any], int] = lambda answer: 0) -> Any:
        """The answer to a request, asked again while its error says so."""
        for _ in range(20):
            got: list[Any] = []
            self.client.send(wanted, got.append)
            self.until(lambda: bool(got))  # noqa: B023 - called before the next round
            if got[0] is not None and failed(got[0]) not in RETRIED:
                return got[0]
            self.wait(0.2)
        if got[0] is None:
            raise TimeoutError(f"no answer to {wanted.api.name}")
        return got[0]

    def stop(self) -> None:
        """Stop cleanly."""
        stopped: list[bool] = []
        self.loop.soon(self.process, lambda: self.broker.stop(lambda: stopped.append(True)))
        self.until(lambda: bool(stopped))
        self.disk.end_process()

    def kill(self) -> None:
        """End the process; what it wrote stays."""
        self.disk.kill()
        self.loop.forget(self.process)
        self.executor.die()


# ---- requests


def fetch(topic: str, index: int, offset: int) -> NodeRequest:
    """A Fetch of one partition from an offset."""
    wanted = call("Fetch", 12, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0)
    kinds = wanted.api.request
    partition = kinds.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
    wanted.request.topics.append(kinds.FetchTopic(topic=topic, partitions=[partition]))
    return wanted


def list_offsets(timestamp: int) -> NodeRequest:
    """ListOffsets of every partition for one timestamp."""
    wanted = call("ListOffsets", 7, replica_id=-1, isolation_level=0)
    kinds = wanted.api.request
    for topic in ("events", "loose"):
        parts = [
            kinds.ListOffsetsPartition(partition_index=n, timestamp=timestamp) for t, n in PARTITIONS if t == topic
        ]
        wanted.request.topics.append(kinds.ListOffsetsTopic(name=topic, partitions=parts))
    return wanted


def epoch_end(epoch: int) -> NodeRequest:
    """OffsetForLeaderEpoch of every partition for one epoch."""
    wanted = call("OffsetForLeaderEpoch", 4, replica_id=-1)
    kinds = wanted.api.request
    for topic in ("events", "loose"):
        parts = [kinds.OffsetForLeaderPartition(partition=n, leader_epoch=epoch) for t, n in PARTITIONS if t == topic]
        wanted.request.topics.append(kinds.OffsetForLeaderTopic(topic=topic, partitions=parts))
    return wanted


def producers() -> NodeRequest:
    """DescribeProducers of every partition."""
    wanted = call("DescribeProducers", 0)
    kinds = wanted.api.request
    for topic in ("events", "loose"):
        indexes = [n for t, n in PARTITIONS if t == topic]
        wanted.request.topics.append(kinds.TopicRequest(name=topic, partition_indexes=indexes))
    return wanted


def positions() -> NodeRequest:
    """OffsetFetch of the group."""
    wanted = call("OffsetFetch", 8, require_stable=True)
    kinds = wanted.api.request
    wanted.request.groups.append(kinds.OffsetFetchRequestGroup(group_id=GROUP, topics=None))
    return wanted


def produce(topic: str, index: int, batch: bytes) -> NodeRequest:
    """Produce of one batch."""
    wanted = call("Produce", 9, transactional_id=None, acks=-1, timeout_ms=30000)
    kinds = wanted.api.request
    data = kinds.PartitionProduceData(index=index, records=batch)
    wanted.request.topic_data.append(kinds.TopicProduceData(name=topic, partition_data=[data]))
    return wanted


def metadata() -> NodeRequest:
    """Metadata of everything."""
    return call("Metadata", 12, topics=None, allow_auto_topic_creation=False)


def configs() -> NodeRequest:
    """DescribeConfigs of the topics."""
    wanted = call("DescribeConfigs", 4)
    kinds = wanted.api.request
    for topic in ("events", "loose"):
        wanted.request.resources.append(
            kinds.DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
        )
    return wanted


# ---- a life worth keeping


def _batch(random: Random, number: int, now_ms: int, producer_id: int, epoch: int, sequence: int) -> tuple[bytes, int]:
    count = random.choice((1, 1, 2, 5))
    rows = []
    for n in range(count):
        stamp = now_ms + random.randint(-500, 500)
        rows.append((b"k%d" % (n % 3), b"%d.%d " % (number, n) + b"." * random.choice((0, 30, 200)), [], stamp))
    compression = random.choice((0, 0, 0, 1))
    data = build_batch(
        rows, compression=compression, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    return bytes(data), count


class Life:
    """What fills the files: two topics, several leader epochs, idempotent producers, deleted records, a group."""

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.disk = CrashDisk(Random(seed))
        self.last: dict[tuple[str, int], bytes] = {}
        """The newest batch of each partition's idempotent producer."""
        self._sequences: dict[tuple[str, int], int] = {}
        self._ids: dict[tuple[str, int], tuple[int, int]] = {}
        self._number = 0

    def run(self, *, clean: bool) -> Image:
        """Live, end cleanly or by a kill, and give the files."""
        machine = Machine(self.disk)
        self._create(machine)
        self._work(machine, 25)
        machine.wait(70)
        machine.kill()
        machine = Machine(self.disk, 2, later_s=100)
        self._work(machine, 15)
        self._trim(machine)
        machine.wait(70)
        machine.stop()
        machine = Machine(self.disk, 3, later_s=200)
        self._work(machine, 10)
        machine.wait(70)
        # From here on only the stable topic: what a page-cache topic has not synced is not at rest yet.
        self._work(machine, 6, [place for place in PARTITIONS if clean or place[0] == "events"])
        if clean:
            machine.stop()
        else:
            machine.wait(3)
            machine.kill()
        return self.disk.contents()

    def _create(self, machine: Machine) -> None:
        wanted = call("CreateTopics", 7, timeout_ms=5000)
        kinds = wanted.api.request
        for name, told in CONFIGS.items():
            wanted.request.topics.append(
                kinds.CreatableTopic(
                    name=name,
                    num_partitions=sum(t == name for t, _ in PARTITIONS),
                    replication_factor=1,
                    configs=[kinds.CreatableTopicConfig(name=key, value=value) for key, value in told.items()],
                )
            )
        answer = machine.ask(wanted)
        assert all(topic.error_code == 0 for topic in answer.topics), answer
        for place in PARTITIONS:
            begun = machine.ask(call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=60000))
            self._ids[place] = (begun.producer_id, begun.producer_epoch)
        machine.ask(
            call("FindCoordinator", 4, key_type=0, coordinator_keys=[GROUP]),
            lambda answer: answer.coordinators[0].error_code,
        )

    def _work(self, machine: Machine, count: int, places: Sequence[tuple[str, int]] = PARTITIONS) -> None:
        for _ in range(count):
            for place in places:
                self._produce(machine, place)
            machine.wait(self.random.choice((0.0, 0.01, 0.3)))
        commit = call("OffsetCommit", 8, group_id=GROUP)
        kinds = commit.api.request
        for topic, index in PARTITIONS:
            partition = kinds.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=self._number % 17 + index, committed_metadata="here"
            )
            commit.request.topics.append(kinds.OffsetCommitRequestTopic(name=topic, partitions=[partition]))
        machine.ask(commit, lambda answer: answer.topics[0].partitions[0].error_code)

    def _produce(self, machine: Machine, place: tuple[str, int]) -> None:
        self._number += 1
        now = machine.broker.clock.wall_ms()
        known = place[1] == 0 and self.random.random() < 0.6
        if known:
            sequence = self._sequences.get(place, 0)
            batch, count = _batch(self.random, self._number, now, *self._ids[place], sequence)
            self._sequences[place] = sequence + count
            self.last[place] = batch
        else:
            batch, _ = _batch(self.random, self._number, now, -1, -1, -1)
        answer = machine.ask(produce(*place, batch)).responses[0].partition_responses[0]
        assert answer.error_code == 0, answer

    def _trim(self, machine: Machine) -> None:
        wanted = call("DeleteRecords", 2, timeout_ms=5000)
        kinds = wanted.api.request
        partition = kinds.DeleteRecordsPartition(partition_index=0, offset=9)
        wanted.request.topics.append(kinds.DeleteRecordsTopic(name="events", partitions=[partition]))
        answer = machine.ask(wanted)
        assert answer.topics[0].partitions[0].error_code == 0


def disk_of(image: Image) -> CrashDisk:
    """A machine's disk that holds these files, none of them in memory."""
    disk = CrashDisk(Random(1))
    for path, content in image.items():
        disk.names.make_directories(os.path.dirname(path))
        inode: Inode = disk.names.create_file(path)
        inode.cache += content
        inode.stable += content
        inode.low_water = len(content)
        inode.cold.update(range(-(-len(content) // PAGE)))
        disk.used += len(content)
    for change in disk.names.pending:
        change.settle()
    disk.names.pending = []
    return disk


# ---- questions

Answers = dict[str, Any]
"""What the node said, by question. A partition's records are bytes; what it refused is the name of an error."""


class Questions:
    """Everything a client can ask about the files, asked of one machine. known: what it answered before the flip."""

    def __init__(self, life: Life, known: Answers | None = None, random: Random | None = None) -> None:
        self.life = life
        self.known = known
        self.random = random or Random(0)
        self.answers: Answers = {}
        self.wrong: list[str] = []
        self.refused: list[str] = []

    def ask(self, machine: Machine) -> None:
        """Ask everything; what differs from `known` and is no error is in `wrong` afterwards."""
        self._metadata(machine)
        for timestamp in (-1, -2, -3, *self._timestamps()):
            answer = machine.ask(list_offsets(timestamp))
            for topic in answer.topics:
                for p in topic.partitions:
                    told = (p.timestamp, p.offset, p.leader_epoch)
                    self._note(f"offset of {timestamp} in {topic.name}-{p.partition_index}", told, p.error_code)
        for epoch in range(-1, 8):
            for topic in machine.ask(epoch_end(epoch)).topics:
                for p in topic.partitions:
                    told = (p.leader_epoch, p.end_offset)
                    self._note(f"end of epoch {epoch} in {topic.topic}-{p.partition}", told, p.error_code)
        for topic in machine.ask(producers()).topics:
            for p in topic.partitions:
                told = sorted(
                    (s.producer_id, s.producer_epoch, s.last_sequence, s.last_timestamp, s.current_txn_start_offset)
                    for s in p.active_producers
                )
                self._note(f"producers of {topic.name}-{p.partition_index}", told, p.error_code)
        self._positions(machine)
        for place in PARTITIONS:
            self._records(machine, place)
        for place in PARTITIONS:
            self._append(machine, place)
        machine.wait(1.5)  # what a read noticed on the way is told by the next look around the house

    def _metadata(self, machine: Machine) -> None:
        told = machine.ask(metadata())
        self._note("cluster", (told.cluster_id, told.controller_id, [b.node_id for b in told.brokers]), 0)
        for topic in told.topics:
            for p in topic.partitions:
                where = (topic.topic_id, topic.is_internal, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes)
                self._note(f"metadata of {topic.name}-{p.partition_index}", where, topic.error_code or p.error_code)
        self._note("topics", sorted(topic.name for topic in told.topics), 0)
        for result in machine.ask(configs()).results:
            settings = sorted((entry.name, entry.value) for entry in result.configs)
            self._note(f"configuration of {result.resource_name}", settings, result.error_code)

    def _timestamps(self) -> Iterable[int]:
        base = WALL_MS
        return (
            base + 500,
            base + 3_000,
            base + 100_900,
            base + 102_000,
            base + 201_000,
            base + 270_500,
            base + 999_000,
        )

    def _positions(self, machine: Machine) -> None:
        answer = machine.ask(positions(), lambda found: found.groups[0].error_code)
        group = answer.groups[0]
        told = [
            (topic.name, p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata)
            for topic in group.topics
            for p in topic.partitions
        ]
        self._note("positions", sorted(told), group.error_code)

    def _records(self, machine: Machine, place: tuple[str, int]) -> None:
        name = f"records of {place[0]}-{place[1]}"
        if self.known is None:
            found = machine.ask(fetch(*place, 9 if place == ("events", 0) else 0)).responses[0].partitions[0]
            assert found.error_code == 0
            data = bytes(found.records)
            offset = max(header.next_offset for _, header in batches(memoryview(data)))
            while offset < found.high_watermark:
                more = machine.ask(fetch(*place, offset)).responses[0].partitions[0]
                assert more.error_code == 0
                assert more.records
                data += bytes(more.records)
                offset = max(header.next_offset for _, header in batches(memoryview(data)))
            self.answers[name] = data
            self.answers[f"ends of {place[0]}-{place[1]}"] = (found.log_start_offset, found.high_watermark)
            return
        data = self.known[name]
        starts = {header.base_offset: (at, header.next_offset) for at, header in batches(memoryview(data))}
        low, high = self.known[f"ends of {place[0]}-{place[1]}"]
        samples = self.random.sample(range(low, high), 4)
        offset = low
        while offset < high:  # from the start to the end, over what is damaged
            following = self._fetch(machine, place, offset, data, starts)
            offset = following if following > offset else self._behind(starts, offset)
        for offset in samples:
            self._fetch(machine, place, offset, data, starts)
        for offset, error in ((low - 1, 1), (high, 0), (high + 1, 1)):
            if offset < 0:
                continue
            p = machine.ask(fetch(*place, offset)).responses[0].partitions[0]
            if (error and not p.error_code) or p.records:
                self.wrong.append(f"fetch at {offset} of {place}: error {p.error_code}, {len(p.records or b'')} bytes")

    def _behind(self, starts: dict[int, tuple[int, int]], offset: int) -> int:
        return min(following for _, following in starts.values() if following > offset)

    def _fetch(
        self, machine: Machine, place: tuple[str, int], offset: int, data: bytes, starts: dict[int, tuple[int, int]]
    ) -> int:
        """One Fetch; the offset behind what it brought, which is the same bytes as before the flip."""
        p = machine.ask(fetch(*place, offset)).responses[0].partitions[0]
        what = f"fetch at {offset} of {place[0]}-{place[1]}"
        if p.error_code:
            self._refuse(what, p.error_code)
            return -1
        first = max(base for base in starts if base <= offset)
        at = starts[first][0]
        found = bytes(p.records or b"")
        if not found or data[at : at + len(found)] != found:
            self.wrong.append(f"{what}: {len(found)} bytes that differ")
            return -1
        if (p.log_start_offset, p.high_watermark) != self.known_ends(place):
            self.wrong.append(f"{what}: start {p.log_start_offset}, high watermark {p.high_watermark}")
        return max(following for begin, following in starts.values() if begin < at + len(found))

    def known_ends(self, place: tuple[str, int]) -> tuple[int, int]:
        assert self.known is not None
        ends: tuple[int, int] = self.known[f"ends of {place[0]}-{place[1]}"]
        return ends

    def _append(self, machine: Machine, place: tuple[str, int]) -> None:
        """The newest batch of a producer again, and one more."""
        if place in self.life.last:
            p = machine.ask(produce(*place, self.life.last[place])).responses[0].partition_responses[0]
            self._note(f"repeated batch to {place[0]}-{place[1]}", p.base_offset, p.error_code)
        more, _ = _batch(Random(5), 999_999, WALL_MS + 300_000, -1, -1, -1)
        p = machine.ask(produce(*place, more)).responses[0].partition_responses[0]
        self._note(f"new batch to {place[0]}-{place[1]}", p.base_offset, p.error_code)
        if p.error_code == 0 and self.known is not None:
            q = machine.ask(fetch(*place, p.base_offset)).responses[0].partitions[0]
            if q.error_code:
                self._refuse(f"fetch of the new batch in {place}", q.error_code)
            elif bytes(q.records or b"")[57:] != more[57:]:
                self.wrong.append(f"the new batch in {place[0]}-{place[1]} reads otherwise")

    def _note(self, question: str, told: Any, error: int) -> None:
        if error:
            told = ErrorCode(error).name
        self.answers[question] = told
        if self.known is not None and self.known.get(question) != told:
            if error:
                self._refuse(question, error)
            else:
                self.wrong.append(f"{question}: {told} instead of {self.known.get(question)}")

    def _refuse(self, what: str, error: int) -> None:
        self.refused.append(f"{what}: {ErrorCode(error).name}")
