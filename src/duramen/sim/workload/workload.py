"""What the clients of a simulation do: scripts that create topics, produce, read, share work in a group, and read back.

Every record's value is unique and names its producer and number. Scripts retry what Kafka's clients retry, send a
batch again unchanged under its sequence number, and hand everything they learn to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from duramen.client.loop.node_client import NodeRequest, call
from duramen.errors import ErrorCode
from duramen.model import NO_TIMESTAMP, TopicPartition
from duramen.ports import Clock
from duramen.sim.check.coverage import Coverage
from duramen.sim.check.invariants import InvariantViolated, Ledger
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.timestamp_faults import Stamps
from duramen.wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    NewRecord,
    Record,
    batches,
    build_batch,
    check_crc,
    records,
    stamp_max_timestamp,
)

MAX_INFLATED_BYTES = 1 << 20
RETRY_S = 0.05
MORE_WHILE_FAULTS = 10
EARLIEST, LATEST = -2, -1
MOST_IN_FLIGHT = 5
"""Batches that a producer has under way at most: what the broker remembers of each."""
SURVEY_ATTEMPTS = 5
"""How often a survey asks for what is refused."""
DAMAGED_ON_THE_WAY = 0.01
"""Chance that a batch of several in flight reaches the broker with a bit changed."""


@dataclass(slots=True)
class Scene:
    """What every script of one simulation shares. topics: partitions by topic name. starts: of the node so far.

    copies: of the topics that have more than one.
    """

    random: Random
    clock: Clock
    ledger: Ledger
    note: Callable[[str], None]
    topics: dict[str, int]
    configs: dict[str, dict[str, str]]
    stamps: Stamps
    coverage: Coverage = field(default_factory=Coverage)
    copies: dict[str, int] = field(default_factory=dict)
    starts: Callable[[], int] = lambda: 0
    created: set[str] = field(default_factory=set)
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    faults_on: bool = True
    reading_on: bool = True

    def partitions(self) -> list[TopicPartition]:
        """Every partition of the workload, in order."""
        return [TopicPartition(topic, n) for topic, count in sorted(self.topics.items()) for n in range(count)]

    def is_stable(self, tp: TopicPartition) -> bool:
        """Whether the partition's topic promises stable storage."""
        return tp.topic in self.ledger.stable


def unexpected(what: str, code: int) -> InvariantViolated:
    """A code that no client should meet in this workload."""
    return InvariantViolated("NoUnexpectedError", f"{what}: {ErrorCode(code).name}")


def create_topics(scene: Scene) -> Script:
    """Create every topic of the scene, as often as it takes."""
    for name, partitions in sorted(scene.topics.items()):
        yield from create_topic(scene, name, partitions, scene.configs[name])
        scene.created.add(name)


def create_topic(scene: Scene, name: str, partitions: int, configs: dict[str, str]) -> Script:
    """Create a topic, as often as it takes; that it exists already may be the work of a lost reply's request."""
    topic = new_topic(name, partitions, configs, scene.copies.get(name, 1))
    while True:
        response = yield call("CreateTopics", 7, topics=[topic], timeout_ms=5000)
        code = response.topics[0].error_code if response is not None else None
        scene.note(f"create {name}: {code}")
        if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        too_few = code == ErrorCode.INVALID_REPLICATION_FACTOR and name in scene.copies  # are registered by now
        if code is not None and not ErrorCode(code).retriable and not too_few:
            raise unexpected(f"create {name}", code)
        yield RETRY_S


def new_topic(name: str, partitions: int, configs: dict[str, str], copies: int = 1) -> Any:
    """What a CreateTopics request says of one topic."""
    request = call("CreateTopics", 7).api.request
    return request.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=copies,
        configs=[request.CreatableTopicConfig(name=key, value=value) for key, value in sorted(configs.items())],
    )


# -- producing


class SimProducer:
    """An idempotent producer for one partition: up to five batches in flight, in order, each until acknowledged.

    It makes `total` records, and up to `MORE_WHILE_FAULTS` times as many as long as there are faults to come. Its first
    batch travels alone: to a broker that does not know a producer, any sequence is the first one (Kafka 4.3).
    """

    def __init__(self, scene: Scene, name: str, tp: TopicPartition, total: int) -> None:
        self.scene = scene
        self.name = name
        self.tp = tp
        self.total = total
        self.made = 0
        self.run = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.sequence = 0
        self.known = False
        self.known_at = -1
        self.most = scene.random.choice((1, 3, MOST_IN_FLIGHT))
        self.waiting: list[tuple[int, list[bytes], bytes]] = []
        self.pause_s = 0.06
        """Between two requests at most, while there are faults to come."""

    def script(self) -> Script:
        """Produce, then end."""
        scene, random = self.scene, self.scene.random
        while self.tp.topic not in scene.created:
            yield RETRY_S
        yield from self._begin()
        while self._goes_on() or self.waiting:
            most = random.randint(1, self.most) if self.known else 1
            while self._goes_on() and len(self.waiting) < most:
                self._make_batch()
            if len(self.waiting) == MOST_IN_FLIGHT:
                scene.coverage.hit("five batches in flight")
            if scene.faults_on:
                yield random.uniform(0.0, self.pause_s)
            sent = self.waiting if self.known else self.waiting[:1]
            asked = scene.ledger.facts
            replies = yield [self._request(batch) for _, _, batch in sent]
            if not self._take(replies, asked):
                yield RETRY_S * random.uniform(0.5, 1.5)
                if self.producer_id < 0:
                    yield from self._begin()

    def _goes_on(self) -> bool:
        limit = self.total * MORE_WHILE_FAULTS if self.scene.faults_on else self.total
        return self.made < limit

    def _begin(self) -> Script:
        """Get a producer id; batches not yet acknowledged start over under it."""
        while True:
            response = yield call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=60000)
            if response is not None and response.error_code == ErrorCode.NONE:
                break
            if response is not None and not ErrorCode(response.error_code).retriable:
                raise unexpected(f"{self.name} init", response.error_code)
            yield RETRY_S
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
        self.run += 1
        self.known, self.known_at = False, -1
        self.sequence = 0
        self.scene.note(f"{self.name} is producer {self.producer_id}")
        again, self.waiting = self.waiting, []
        for _, values, _ in again:
            self._put(values)

    def _make_batch(self) -> None:
        random = self.scene.random
        values = []
        for _ in range(random.choice((1, 1, 2, 5, 12))):
            padding = random.choice((0, 10, 100, 700))
            values.append(f"{self.name}:{self.made:06} ".encode() + b"." * padding)
            self.made += 1
        self._put(values)

    def _put(self, values: list[bytes]) -> None:
        now = self.scene.clock.wall_ms()
        rows, denied = self.scene.stamps.stamp(self.tp, self._rows(values, now))
        batch = build_batch(
            rows,
            compression=self.scene.random.choice((0, 0, 0, 1)),
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
        )
        if denied:
            stamp_max_timestamp(batch, NO_TIMESTAMP)
            self.scene.coverage.hit("batch whose header denies its timestamps")
        stamp = max(timestamp for _, _, _, timestamp in rows)
        self._tell_produced(values, now if stamp == NO_TIMESTAMP else stamp, len(batch))
        self.waiting.append((self.sequence, values, bytes(batch)))
        self.sequence += len(values)

    def _rows(self, values: Sequence[bytes], now: int) -> list[NewRecord]:
        unique = "compact" in self.scene.configs[self.tp.topic].get("cleanup.policy", "")
        name = self.name.encode()
        return [(value.split(b" ", 1)[0] if unique else name, value, [], now) for value in values]

    def _tell_produced(self, values: Sequence[bytes], now: int, size: int) -> None:
        self.scene.ledger.produced(self.tp, values, now, size)

    def _tell_acknowledged(self, offset: int, value: bytes, asked: int) -> None:
        self.scene.ledger.acknowledged(self.tp, offset, value, asked)

    def _request(self, batch: bytes) -> NodeRequest:
        random = self.scene.random
        if len(self.waiting) > 1 and self.scene.is_stable(self.tp) and random.random() < DAMAGED_ON_THE_WAY:
            # The broker must refuse it, and with it whatever is behind, until it is sent again. (One that has lost the
            # producer with the tail of a page-cache topic would take what is behind for the beginning.)
            place = random.randrange(HEADER_SIZE, len(batch))
            batch = batch[:place] + bytes([batch[place] ^ 1 << random.randrange(8)]) + batch[place + 1 :]
            self.scene.coverage.hit("batches in flight behind one that was damaged on the way")
        wanted = call("Produce", 9, transactional_id=None, acks=-1, timeout_ms=30000)
        kinds = wanted.api.request
        data = kinds.PartitionProduceData(index=self.tp.partition, records=batch)
        wanted.request.topic_data.append(kinds.TopicProduceData(name=self.tp.topic, partition_data=[data]))
        return wanted

    def _take(self, replies: list[Any], asked: int) -> bool:
        """Learn from the replies to what waits, sent at fact `asked`; False when something must be sent again."""
        scene = self.scene
        self._check_behind_refused(replies)
        for index, reply in enumerate(replies):
            if reply is None:
                scene.note(f"{self.name} lost a reply")
                return False
            answer = reply.responses[0].partition_responses[0]
            sequence, values, _ = self.waiting[0]
            scene.note(f"{self.name} {sequence}+{len(values)}: {answer.error_code} at {answer.base_offset}")
            if answer.error_code == ErrorCode.NONE:
                for delta, value in enumerate(values):
                    self._tell_acknowledged(answer.base_offset + delta, value, asked)
                end = answer.base_offset + len(values)
                scene.stored[self.tp] = max(end, scene.stored.get(self.tp, 0))
                self.known, self.known_at = True, asked
                del self.waiting[0]
            elif answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and index == 0:
                if scene.ledger.lasts(self.tp, self.known_at):
                    raise InvariantViolated(
                        "AcknowledgedNeverLost", f"{self.tp}: the broker forgot what precedes {self.name} {sequence}"
                    )
                self.producer_id = -1
                return False
            elif ErrorCode(answer.error_code).retriable or index:
                return False
            else:
                raise unexpected(f"{self.name} produce", answer.error_code)
        return True

    def _check_behind_refused(self, replies: list[Any]) -> None:
        """What is behind a batch that was refused for a while has to come again, in the same epoch.

        OUT_OF_ORDER_SEQUENCE_NUMBER makes librdkafka begin another, under which it sends again what may be stored.
        """
        refused = False
        for reply in replies:
            code = ErrorCode.NONE if reply is None else reply.responses[0].partition_responses[0].error_code
            if code == ErrorCode.KAFKA_STORAGE_ERROR:
                refused = True
            elif code == ErrorCode.CORRUPT_MESSAGE:
                return  # damaged on the way: those behind it are out of order, in Kafka too, whatever came of the first
            elif code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and refused:
                raise InvariantViolated("ExactlyOnce", f"{self.tp}: {self.name} has to begin an epoch behind a refusal")


# -- reading


def fetch(tp: TopicPartition, offset: int, *, epoch: int = -1, wait_ms: int = 0, max_bytes: int = 65536) -> NodeRequest:
    """A Fetch of one partition without a session. epoch: of the record before `offset`, so that loss shows."""
    wanted = call("Fetch", 12, max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, isolation_level=0)
    kinds = wanted.api.request
    partition = kinds.FetchPartition(
        partition=tp.partition, fetch_offset=offset, last_fetched_epoch=epoch, partition_max_bytes=max_bytes
    )
    wanted.request.topics.append(kinds.FetchTopic(topic=tp.topic, partitions=[partition]))
    return wanted


def fetched(tp: TopicPartition, data: Any, offset: int) -> Iterator[tuple[BatchHeader, Record]]:
    """The fetched records from `offset` on, each with the header of its batch; checks each batch's CRC."""
    view = memoryview(data or b"")
    for position, header in batches(view):
        batch = view[position : position + header.size]
        if not check_crc(batch, header):
            raise InvariantViolated("Immutability", f"{tp}: the batch at offset {header.base_offset} fails its CRC")
        for record in records(batch, header, max_bytes=MAX_INFLATED_BYTES):
            if record.offset >= offset:
                yield header, record


def read_records(tp: TopicPartition, start: int = 0, end: int | None = None) -> Steps[list[tuple[BatchHeader, Record]]]:
    """Every record from `start` up to `end`, or to the high watermark; each with the header of its batch."""
    found: list[tuple[BatchHeader, Record]] = []
    offset = start
    while end is None or offset < end:
        response = yield fetch(tp, offset)
        answer = response.responses[0].partitions[0] if response is not None else None
        if answer is None or answer.error_code != ErrorCode.NONE:
            if answer is not None and not ErrorCode(answer.error_code).retriable:
                raise unexpected(f"fetch {tp} at {offset}", answer.error_code)
            yield RETRY_S
            continue
        found += fetched(tp, answer.records, offset)
        offset = found[-1][0].next_offset if found else offset
        if end is None and offset >= answer.high_watermark:
            break
    return found


def decoded(tp: TopicPartition, data: Any, offset: int) -> Iterator[tuple[int, int, bytes]]:
    """(offset, epoch, value) of the fetched records from `offset` on; checks each batch's CRC."""
    for header, record in fetched(tp, data, offset):
        yield record.offset, header.leader_epoch, bytes(record.value or b"")


def offsets_request(tp: TopicPartition, timestamp: int) -> NodeRequest:
    """A ListOffsets of one partition."""
    wanted = call("ListOffsets", 7, replica_id=-1, isolation_level=0)
    kinds = wanted.api.request
    partition = kinds.ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
    wanted.request.topics.append(kinds.ListOffsetsTopic(name=tp.topic, partitions=[partition]))
    return wanted


def list_offset(scene: Scene, tp: TopicPartition, timestamp: int) -> Steps[int]:
    """The offset ListOffsets gives for the timestamp (EARLIEST, LATEST, ...), as the script's value."""
    while True:
        asked = scene.ledger.facts
        response = yield offsets_request(tp, timestamp)
        answer = response.topics[0].partitions[0] if response is not None else None
        if answer is not None and answer.error_code == ErrorCode.NONE:
            if timestamp == EARLIEST:
                scene.ledger.start_seen(tp, answer.offset, asked)
            elif timestamp == LATEST:
                scene.ledger.end_seen(tp, answer.offset, asked)
            return int(answer.offset)
        if answer is not None and not ErrorCode(answer.error_code).retriable:
            raise unexpected(f"list offsets of {tp}", answer.error_code)
        yield RETRY_S


class SimReader:
    """Follows one partition from its start, and steps back where the broker says that its past was lost."""

    def __init__(self, scene: Scene, name: str, tp: TopicPartition) -> None:
        self.scene = scene
        self.name = name
        self.tp = tp
        self.offset = 0
        self.epoch = -1
        self.read_at = -1
        self.sleeps = tp.topic in scene.ledger.retention and scene.random.random() < 0.5
        """Whether it now and then stays away so long that retention overtakes it."""
        self.tells_epoch = scene.random.random() < 0.5
        """Whether it says of which epoch its last record was, as followers do and consumers do not."""

    def script(self) -> Script:
        """Read until the scene says that reading is over."""
        scene, random = self.scene, self.scene.random
        while self.tp.topic not in scene.created:
            yield RETRY_S
        while scene.reading_on:
            asked = scene.ledger.facts
            wait_ms = random.choice((0, 0, 5, 50))
            max_bytes = random.choice((1, 500, 65536))
            epoch = self.epoch if self.tells_epoch else -1
            response = yield fetch(self.tp, self.offset, epoch=epoch, wait_ms=wait_ms, max_bytes=max_bytes)
            if response is None:
                yield RETRY_S
                continue
            yield from self._take(response.responses[0].partitions[0], asked)
            yield random.choice((0.0, 0.002, 0.01))
            if self.sleeps and random.random() < 0.1:
                yield random.uniform(0.5, 3.0)

    def _take(self, answer: Any, asked: int) -> Script:
        scene, tp = self.scene, self.tp
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            yield from self._step_back(asked)
            return
        if answer.error_code != ErrorCode.NONE:
            if not ErrorCode(answer.error_code).retriable:
                raise unexpected(f"{self.name} fetch {tp} at {self.offset}", answer.error_code)
            if answer.error_code == ErrorCode.CORRUPT_MESSAGE:
                scene.coverage.hit("damage told to a client")
            scene.note(f"{self.name} {tp}: {answer.error_code}")
            yield RETRY_S
            return
        if answer.diverging_epoch.epoch >= 0:
            end = answer.diverging_epoch.end_offset
            scene.note(f"{self.name} {tp}: {self.offset} diverged at {end}")
            scene.coverage.hit("reader found its past truncated")
            if scene.ledger.lasts(tp, self.read_at) and end < self.offset:
                raise InvariantViolated("NothingReadVanishes", f"{tp}: read up to {self.offset}, diverged at {end}")
            self.offset, self.epoch = min(end, self.offset), answer.diverging_epoch.epoch
            return
        scene.ledger.end_seen(tp, answer.high_watermark, asked)
        scene.ledger.start_seen(tp, answer.log_start_offset, asked)
        first = self.offset
        for offset, epoch, value in decoded(tp, answer.records, self.offset):
            if offset != self.offset:
                raise InvariantViolated("Order", f"{tp}: {self.name} was given offset {offset} at {self.offset}")
            scene.ledger.read(tp, offset, epoch, value, asked)
            self.offset, self.epoch, self.read_at = offset + 1, epoch, asked
        if self.offset > first:
            scene.note(f"{self.name} {tp} read {first}..{self.offset} of epoch {self.epoch}")

    def _step_back(self, asked: int) -> Script:
        """Out of range: below the log start after a deletion, or above the end of a page-cache topic."""
        scene, tp = self.scene, self.tp
        start = yield from list_offset(scene, tp, EARLIEST)
        end = yield from list_offset(scene, tp, LATEST)
        scene.note(f"{self.name} {tp}: {self.offset} is outside {start}..{end}")
        if self.offset < start:
            scene.coverage.hit("reader below the log start")
            self.offset, self.epoch = start, -1
        elif end < self.offset:
            if scene.ledger.lasts(tp, self.read_at):
                raise InvariantViolated("NothingReadVanishes", f"{tp}: read up to {self.offset}, now it ends at {end}")
            scene.coverage.hit("page-cache topic lost a tail")
            self.offset, self.epoch = end, -1


def read_back(scene: Scene, tps: Iterable[TopicPartition], found: dict[TopicPartition, list[Any]]) -> Script:
    """Read every partition from start to end into `found` and ask the invariants for their verdict."""
    for tp in tps:
        start, end, everything = yield from read_whole(scene, tp)
        scene.note(f"read back {tp}: {start}..{end}")
        scene.ledger.final(tp, start, everything)
        found[tp] = everything


def read_whole(scene: Scene, tp: TopicPartition) -> Steps[tuple[int, int, list[tuple[int, int, bytes]]]]:
    """Log start, high watermark and what lies between; begun anew where retention was quicker."""
    while True:
        start = yield from list_offset(scene, tp, EARLIEST)
        end = yield from list_offset(scene, tp, LATEST)
        everything: list[tuple[int, int, bytes]] = []
        offset = start
        while offset < end:
            asked = scene.ledger.facts
            response = yield fetch(tp, offset)
            answer = response.responses[0].partitions[0] if response is not None else None
            if answer is None:
                yield RETRY_S
                continue
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and tp.topic in scene.ledger.retention:
                break
            if answer.error_code != ErrorCode.NONE:
                if not ErrorCode(answer.error_code).retriable:
                    raise unexpected(f"read back {tp} at {offset}", answer.error_code)
                yield RETRY_S
                continue
            for entry in decoded(tp, answer.records, offset):
                everything.append(entry)
                scene.ledger.read(tp, *entry, asked)
                offset = entry[0] + 1
        else:
            return start, end, everything


def survey(scene: Scene, *, judge: bool) -> Script:
    """Read what is there, once and without demands: each partition, until its end or a typed refusal.

    judge: ask the invariants for a verdict over it, too.
    """
    for tp in scene.partitions():
        offset, attempts = 0, 0
        everything: list[tuple[int, int, bytes]] = []
        while attempts < SURVEY_ATTEMPTS:
            asked = scene.ledger.facts
            response = yield fetch(tp, offset)
            answer = response.responses[0].partitions[0] if response is not None else None
            if answer is None or answer.error_code != ErrorCode.NONE:
                attempts += 1
                if answer is not None and answer.error_code == ErrorCode.CORRUPT_MESSAGE:
                    scene.coverage.hit("damage told to a client")
                if answer is not None and answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not everything:
                    offset = yield from earliest_or(scene, tp, offset)
                yield RETRY_S
                continue
            for entry in decoded(tp, answer.records, offset):
                everything.append(entry)
                scene.ledger.read(tp, *entry, asked)
                offset = entry[0] + 1
            if offset >= answer.high_watermark:
                break
        if everything and judge:
            scene.ledger.final(tp, everything[0][0], everything)
        scene.note(f"{tp}: {len(everything)} records can be read")


def earliest_or(scene: Scene, tp: TopicPartition, offset: int) -> Steps[int]:
    """The log start; the offset again when that cannot be had."""
    response = yield offsets_request(tp, EARLIEST)
    answer = response.topics[0].partitions[0] if response is not None else None
    return offset if answer is None or answer.error_code != ErrorCode.NONE else int(answer.offset)


def delete_records(scene: Scene, tp: TopicPartition, before: int) -> Script:
    """Ask for the records below `before` to be deleted; retries until it knows the outcome."""
    scene.ledger.deletion_asked(tp, before)
    while True:
        wanted = call("DeleteRecords", 2, timeout_ms=5000)
        kinds = wanted.api.request
        partition = kinds.DeleteRecordsPartition(partition_index=tp.partition, offset=before)
        wanted.request.topics.append(kinds.DeleteRecordsTopic(name=tp.topic, partitions=[partition]))
        asked = scene.ledger.facts
        response = yield wanted
        answer = response.topics[0].partitions[0] if response is not None else None
        scene.note(f"delete {tp} before {before}: {answer and answer.error_code}")
        if answer is not None and answer.error_code == ErrorCode.NONE:
            scene.ledger.start_seen(tp, answer.low_watermark, asked)
            scene.ledger.deleted(tp, answer.low_watermark)
            return
        if answer is not None and not ErrorCode(answer.error_code).retriable:
            raise unexpected(f"delete records of {tp}", answer.error_code)
        yield RETRY_S
