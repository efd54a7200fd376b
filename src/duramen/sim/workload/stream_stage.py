"""What the writers of streams share: topics, the book, requests, and the reading of whole logs at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import NodeRequest, call
from duramen.client.protocol.outcomes import MAYBE_STORED
from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.position_book import PositionBook
from duramen.sim.check.stream_book import Sent, Stored, StreamBatch, StreamBook
from duramen.sim.check.txid_book import TxidBook
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.workload import (
    EARLIEST,
    LATEST,
    MAX_INFLATED_BYTES,
    RETRY_S,
    Scene,
    create_topic,
    fetch,
    list_offset,
    unexpected,
)
from duramen.wire.batch import batches, build_batch, check_crc, records
from duramen.wire.records import control
from duramen.wire.records.control import ControlType

NAMED, RACED, CLOSED, CLOSED_CACHED, OWNED, OWNED_CACHED, TXIDS, TXIDS_CACHED, ASSIGNED, GATHERED = (
    "named",
    "raced",
    "closed",
    "closed-cached",
    "owned",
    "owned-cached",
    "txids",
    "txids-cached",
    "assigned",
    "gathered",
)
"""Written to by named writers; written to at named offsets; closed under way, on stable storage and in the page cache;
opened for one writer at a time, likewise; with transaction ids of their writers, likewise, and with the leader's;
written to by many who share their batches."""
STABLE: Final = (NAMED, CLOSED, RACED, OWNED, TXIDS, ASSIGNED, GATHERED)
PAGE_CACHE: Final = {"duramen.ack.durability": "page-cache"}
TIMEOUT_MS: Final = 10000
CLOSED_CODES: Final = (ErrorCode.STREAM_CLOSED, ErrorCode.POLICY_VIOLATION)
"""What a closed stream answers: an append of ours, and a Produce."""
FENCED_CODES: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class Told(NamedTuple):
    """The answer to an append, whichever API it came by. code: None where there was no answer."""

    code: ErrorCode | None
    stored: Stored
    expected_sequence: int = -1
    last_txid: int = -1
    says_closed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the append has to be sent again: it may have taken effect, or not."""
        return self.code is None or self.code.retriable


LOST: Final = Told(None, Stored(-1, -1, -1, is_duplicate=False))


class StreamStage:
    """Of one world. spawn: runs a script on a client of its own. copies: of each topic at most."""

    def __init__(self, scene: Scene, random: Random, spawn: Callable[[str, Script], object], copies: int = 1) -> None:
        self.scene = scene
        self.random = random
        self.book = StreamBook(scene.ledger, scene.coverage)
        self.txids = TxidBook(scene.ledger, (TXIDS, TXIDS_CACHED), (ASSIGNED,))
        self.positions = PositionBook(scene.ledger)
        self.stored: dict[TopicPartition, dict[bytes, int]] = {}
        """Offsets by value, as the logs were read at last."""
        self.spawn = spawn
        self.is_made = False
        self.may_begin: Callable[[], bool] = lambda: True
        self.running = 0
        """Scripts of writers that have not ended."""
        self.following = 0
        """Likewise of those who go on as long as there are writers."""
        self._times: dict[bytes, int] = {}
        """By first value of a batch: when it was made, so that it is the same whenever it is sent again."""
        size = {"internal.segment.bytes": str(random.choice((600, 2000, 100_000)))}
        self.configs = {topic: dict(size) for topic in STABLE}
        self.configs[OWNED]["duramen.writer.exclusive"] = "true"
        self.configs[TXIDS]["duramen.txid"] = "application"
        self.configs[ASSIGNED]["duramen.txid"] = "assigned"
        scene.ledger.stable |= self.configs.keys()
        self.configs[CLOSED_CACHED] = size | PAGE_CACHE
        self.configs[OWNED_CACHED] = self.configs[OWNED] | PAGE_CACHE
        self.configs[TXIDS_CACHED] = self.configs[TXIDS] | PAGE_CACHE
        if copies > 1:
            for topic, configs in self.configs.items():
                count = random.randint(2, copies)
                scene.copies[topic] = count
                scene.ledger.behind.add(topic)
                configs["min.insync.replicas"] = str(random.randint(1, count))

    def partitions(self) -> list[TopicPartition]:
        """Of all topics."""
        return [TopicPartition(topic, 0) for topic in self.configs]

    def run(self, name: str, script: Script) -> None:
        """Let somebody act beside the others, once the topics are there."""
        self.running += 1

        def counted() -> Script:
            yield from self._behind_set_up(script)
            self.running -= 1

        self.spawn(name, counted())

    def follow(self, name: str, script: Script) -> None:
        """Likewise somebody who ends when the others have."""
        self.following += 1

        def counted() -> Script:
            yield from self._behind_set_up(script)
            self.following -= 1

        self.spawn(name, counted())

    def _behind_set_up(self, script: Script) -> Script:
        while not self.is_made:
            yield RETRY_S
        yield from script

    def set_up(self) -> Script:
        """Make the topics."""
        while not self.may_begin():
            yield RETRY_S
        for topic, configs in self.configs.items():
            yield from create_topic(self.scene, topic, 1, configs)
        self.is_made = True

    # ---- appends -----------------------------------------------------------------------------------------------

    def request(self, tp: TopicPartition, sent: Sent, *, by_produce: bool = False) -> NodeRequest:
        """The append as a ConditionalAppend, or as Kafka's clients send it."""
        data: bytes | None = None
        if sent.values:
            producer = sent.producer or ProducerEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            data = bytes(
                build_batch(
                    [(b"k", value, [], time) for value, time in zip(sent.values, self._made(sent), strict=True)],
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    base_sequence=sent.sequence,
                )
            )
        if not by_produce:
            return call(
                "ConditionalAppend",
                1,
                topic_name=tp.topic,
                partition=tp.partition,
                timeout_ms=TIMEOUT_MS,
                expected_offset=sent.expected,
                expected_epoch=sent.epoch,
                close=sent.closes,
                records=data,
            )
        wanted = call("Produce", 9, transactional_id=None, acks=-1, timeout_ms=TIMEOUT_MS)
        kinds = wanted.api.request
        partition = kinds.PartitionProduceData(index=tp.partition, records=data)
        wanted.request.topic_data.append(kinds.TopicProduceData(name=tp.topic, partition_data=[partition]))
        return wanted

    def append(self, name: str, tp: TopicPartition, *appends: Sent, by_produce: bool = False) -> Steps[list[Told]]:
        """Send these at once, in order; the book hears of what is acknowledged."""
        asked = self.scene.ledger.facts
        for sent in appends:
            self.book.sent(tp, sent)
            self.txids.sent(tp, sent, asked)
        answers = yield [self.request(tp, sent, by_produce=by_produce) for sent in appends]
        found = []
        for sent, answer in zip(appends, answers, strict=True):
            told = LOST
            if answer is not None:
                told = _of_produce(answer) if by_produce else _of_append(answer)
            if sent.producer is None and not by_produce:
                if told.code is None or told.code in (ErrorCode.NONE, *MAYBE_STORED):
                    self.book.left_open(sent)
                else:
                    self.book.refused(tp, sent, told.code)
            self.scene.note(f"{name} {tp} {sent.values[:1]}{' and close' if sent.closes else ''}: {told}")
            if told.says_closed:
                self.book.heard_closed(tp, f"{name}, who sent {sent.values[:1]}")
            if told.code == ErrorCode.NONE:
                self._acknowledged(tp, sent._replace(asked=asked), told.stored)
            elif told.code == ErrorCode.TXID_OUT_OF_ORDER:
                self.txids.refused(tp, sent, told.last_txid)
            found.append(told)
        return found

    def _acknowledged(self, tp: TopicPartition, sent: Sent, stored: Stored) -> None:
        self.book.acknowledged(tp, sent, stored)
        self.txids.acknowledged(tp, sent)
        times = (-1,) * len(sent.values) if tp.topic == ASSIGNED else self._made(sent)
        self.positions.acknowledged(tp, sent, stored, times)

    def _made(self, sent: Sent) -> tuple[int, ...]:
        """The timestamps of a batch's records."""
        if sent.txids or not sent.values:
            return sent.txids
        return (self._times.setdefault(sent.values[0], self.scene.clock.wall_ms()),) * len(sent.values)

    def open(self, name: str, tp: TopicPartition, release: int | None = None) -> Steps[tuple[ErrorCode | None, int]]:
        """OpenWriter, or to give up this producer id: the code (None: no answer) and the producer id."""
        given = {"release": release is not None, "producer_id": -1 if release is None else release}
        wanted = call("OpenWriter", 0, topic_name=tp.topic, partition=tp.partition, name=name, **given)
        wanted.request.timeout_ms = TIMEOUT_MS
        answer = yield wanted
        if answer is None:
            self.scene.note(f"{name} lost the answer to its OpenWriter")
            return None, -1
        code = ErrorCode(answer.error_code)
        self.scene.note(f"{name} {tp} opens: {code.name}, {answer.producer_id} at {answer.end_offset}")
        if code == ErrorCode.NONE:
            self.book.opened(tp, answer.producer_id, answer.end_offset)
        return code, int(answer.producer_id)

    def power_failed(self) -> None:
        """What page-cache topics hold may be gone."""
        self.book.power_failed()
        self.txids.power_failed()

    def damaged(self) -> None:
        """A bit at rest has changed."""
        self.book.damaged()
        self.positions.has_damage = True

    # ---- the end -----------------------------------------------------------------------------------------------

    def read_all(self) -> Script:
        """Read every log, and ask for the verdict."""
        for tp in self.partitions():
            asked = self.scene.ledger.facts
            start = yield from list_offset(self.scene, tp, EARLIEST)
            self.positions.log_begins(tp, start, asked)
            end = yield from list_offset(self.scene, tp, LATEST)
            found = yield from self._read(tp, start, end)
            self.scene.note(f"{tp}: {len(found)} batches in {start}..{end}")
            self.book.log_read(tp, start, end, found)
            self.txids.log_read(tp, found)
            places = {value: batch.base + at for batch in found for at, value in enumerate(batch.values)}
            self.stored[tp] = {value: offset for value, offset in places.items() if offset >= start}

    def _read(self, tp: TopicPartition, start: int, end: int) -> Steps[list[StreamBatch]]:
        found: list[StreamBatch] = []
        offset = start
        while offset < end:
            response = yield fetch(tp, offset)
            answer = None if response is None else response.responses[0].partitions[0]
            if answer is None or answer.error_code != ErrorCode.NONE:
                if answer is not None and not ErrorCode(answer.error_code).retriable:
                    raise unexpected(f"fetch {tp} at {offset}", answer.error_code)
                yield RETRY_S
                continue
            for batch in _read_batches(tp, answer.records):
                if batch.base >= offset or batch.base + len(batch.values) > offset:
                    found.append(batch)
            offset = _next_offset(answer.records, offset)
        return found


def _of_append(answer: Any) -> Told:
    stored = Stored(answer.base_offset, answer.leader_epoch, answer.end_offset, answer.duplicate, answer.end_epoch)
    code = ErrorCode(answer.error_code)
    says_closed = answer.closed or code == ErrorCode.STREAM_CLOSED
    return Told(code, stored, answer.expected_sequence, answer.last_txid, says_closed)


def _of_produce(answer: Any) -> Told:
    told = answer.responses[0].partition_responses[0]
    code = ErrorCode(told.error_code)
    stored = Stored(told.base_offset, -1, -1, is_duplicate=False)
    return Told(code, stored, says_closed=code == ErrorCode.POLICY_VIOLATION)


def _read_batches(tp: TopicPartition, data: Any) -> Iterator[StreamBatch]:
    view = memoryview(data or b"")
    for position, header in batches(view):
        batch = view[position : position + header.size]
        if not check_crc(batch, header):
            raise InvariantViolated("Immutability", f"{tp}: the batch at offset {header.base_offset} fails its CRC")
        producer = ProducerEpoch(header.producer_id, header.producer_epoch)
        place = header.base_offset, header.leader_epoch, producer, header.base_sequence
        if header.is_control:
            (record,) = records(batch, header, max_bytes=MAX_INFLATED_BYTES)
            kind, message = control.decode(record.key or b"", record.value or b"")
            opens = message.producer_id if kind == ControlType.WRITER_OPENED else None
            yield StreamBatch(*place, [], kind == ControlType.STREAM_CLOSED, opens, (record.timestamp,))
        else:
            found = list(records(batch, header, max_bytes=MAX_INFLATED_BYTES))
            values = [bytes(record.value or b"") for record in found]
            yield StreamBatch(*place, values, txids=tuple(record.timestamp for record in found))


def _next_offset(data: Any, offset: int) -> int:
    for _, header in batches(memoryview(data or b"")):
        offset = max(offset, header.next_offset)
    return offset
