"""StageBatch: store records for a batch of a sink, durable and visible to nobody (key 10001). Version 0.

Each partition's records are checked as Produce would check them, off the loop; stored in the staging log; and when they
are committed there, one record of the sink's coordinator makes them a handle: one for what the request brings, whatever
the number of its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.config import TopicConfig
from duramen.errors import DuramenError, ErrorCode, KafkaError, StreamClosedError
from duramen.machines.sink.commands import AdmitStage, NewHandle, RecordStaged
from duramen.machines.sink.pieces import StagedPart, StagedRange
from duramen.model import INTERNAL_TOPICS, NO_TOPIC_ID, TopicId
from duramen.partition.replica.partition import Partition
from duramen.partition.sinks.staging import check_staged
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.api.services import SinkHost
from duramen.server.handlers.sink_admin import sink_error
from duramen.storage import COPIED_BYTES
from duramen.wire.messages.stage_batch import StageBatchResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

MAX_TASK_BYTES = 249
LANE = "staging-checks"
Checked = list[memoryview] | KafkaError


class Arriving:
    """One partition's records on their way to a handle."""

    __slots__ = ("config", "entry", "records", "topic_id")

    def __init__(self, entry: Any, topic_id: TopicId, config: TopicConfig, records: memoryview) -> None:
        self.entry = entry
        self.topic_id = topic_id
        self.config = config
        # What arrived in a small frame is written over when this request has returned to the loop.
        self.records = records if len(records) > COPIED_BYTES else memoryview(bytearray(records))


class StageCall:
    """One StageBatch request until it is answered."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.response = StageBatchResponse.new(topics=[])
        self._work: list[Arriving] = []
        self._coordinator: SinkHost
        self._timer = request.services.clock.call_later(max(request.body.timeout_ms, 0) / 1000, self._expire)

    def start(self) -> None:
        """Find out what may be stored at all, and ask the coordinator whether this epoch may store it."""
        request, body = self.request, self.request.body
        for topic in body.topics:
            entries: list[Any] = []
            topic_id, name, refusal = self._topic(topic)
            self.response.topics.append(
                StageBatchResponse.StagedTopic(name=name, topic_id=topic_id, partitions=entries)
            )
            for wanted in topic.partitions:
                entry = StageBatchResponse.StagedPartition(index=wanted.index)
                entries.append(entry)
                try:
                    if refusal is not None:
                        raise refusal
                    partition = self._partition(name, wanted)
                    self._work.append(Arriving(entry, topic_id, partition.config, wanted.records))
                except KafkaError as error:
                    _refuse(entry, error)
        if len(body.task.encode()) > MAX_TASK_BYTES:
            self._fail(KafkaError(ErrorCode.INVALID_REQUEST, f"a task's name is at most {MAX_TASK_BYTES} bytes"))
        else:
            request.services.sinks.find(body.sink_id, self._found)

    def _topic(self, topic: Any) -> tuple[TopicId, str, KafkaError | None]:
        services = self.request.services
        by_id = topic.topic_id != NO_TOPIC_ID
        name = services.image.topic_name(topic.topic_id) if by_id else topic.name
        if name is None:
            return topic.topic_id, topic.name, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        refusal = None
        if self.request.denies(Operation.WRITE, Resource.TOPIC, [name]):
            refusal = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"not allowed to write to {name}")
        elif name in INTERNAL_TOPICS:
            refusal = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by its coordinator only")
        known = services.image.topic(name)
        return NO_TOPIC_ID if known is None else known.id, name, refusal

    def _partition(self, name: str, wanted: Any) -> Partition:
        services = self.request.services
        partition = services.partitions.find(name, wanted.index)
        if partition is None:
            raise KafkaError(
                services.partitions.absence(name, wanted.index), f"{name}-{wanted.index} is not served here"
            )
        if wanted.records is None or len(wanted.records) == 0:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{name}-{wanted.index}: there is no record batch")
        most = services.config.integer("duramen.sink.staged.max.bytes")
        if len(wanted.records) > most:
            text = f"{len(wanted.records)} bytes for {name}-{wanted.index}; duramen.sink.staged.max.bytes is {most}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
        if partition.is_ended:
            raise StreamClosedError(partition.tp)
        if partition.is_exclusive:
            exclusive = f"{name} is open for one writer (duramen.writer.exclusive), which no sink is"
            raise KafkaError(ErrorCode.PRODUCER_FENCED, exclusive)
        if partition.config.txid == "application":
            no = f"{name} has duramen.txid=application, an order that sinks do not keep; they can write with `assigned`"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, no)
        too_few = partition.replication.in_sync_error()
        if too_few is not None:
            raise KafkaError(too_few, f"{name}-{wanted.index}: too few in-sync replicas")
        return partition

    def _found(self, coordinator: SinkHost | KafkaError) -> None:
        if isinstance(coordinator, KafkaError):
            self._fail(coordinator)
            return
        self._coordinator = coordinator
        body = self.request.body
        command = AdmitStage(body.sink_id, body.epoch, body.batch_id, len(self._work))
        coordinator.host.submit(command, self._admitted)

    def _admitted(self, answer: Any) -> None:
        if isinstance(answer, DuramenError):
            self._fail(answer)
        elif answer:
            self._already()
        else:
            now = self.request.services.clock.wall_ms()
            work = self._work
            self.request.services.world.executor.submit(
                LANE, lambda: [_check(each, now) for each in work], self._checked
            )

    def _checked(self, results: list[Checked] | None, error: BaseException | None) -> None:
        if results is None:
            self._fail(KafkaError(ErrorCode.INVALID_RECORD, str(error)))
            return
        arrived: list[tuple[Arriving, list[memoryview]]] = []
        for each, result in zip(self._work, results, strict=True):
            if isinstance(result, KafkaError):
                _refuse(each.entry, result)
            else:
                arrived.append((each, result))
        if not arrived or self.request.parts is not None:
            self._reply()
            return
        self._work = [each for each, _ in arrived]
        now = self.request.services.clock.wall_ms()
        # The log start of the staging log stays below these bytes until their handles are recorded, or will not be.
        self._keep = self._coordinator.store([batches for _, batches in arrived], now, self._stored)

    def _stored(self, pieces: list[StagedRange] | KafkaError) -> None:
        if isinstance(pieces, KafkaError):
            self.request.services.clock.call_soon(lambda: self._keep())
            self._fail(pieces)
            return
        if self.request.parts is not None:  # told that it took too long: nobody would know the handles
            self.request.services.clock.call_soon(lambda: self._keep())
            return
        body = self.request.body
        most = self.request.services.config.integer("duramen.sink.staged.max.bytes")
        command = RecordStaged(
            body.sink_id, body.epoch, body.batch_id, body.task, tuple(_handles(self._work, pieces, most))
        )
        self._coordinator.host.submit(command, partial(self._recorded, pieces))

    def _recorded(self, pieces: list[StagedRange], answer: Any) -> None:
        self.request.services.clock.call_soon(lambda: self._keep())
        if isinstance(answer, DuramenError):
            self._fail(answer)
            return
        if answer:
            self._already()
            return
        for each, piece in zip(self._work, pieces, strict=True):
            each.entry.records = piece.next_offset - piece.first_offset
            each.entry.bytes = piece.bytes
        self._reply()

    # ---- answering -------------------------------------------------------------------------------------------

    def _already(self) -> None:
        """The batch took effect before: this task has nothing to do."""
        self.response = StageBatchResponse.new(already_committed=True, topics=[])
        self._reply()

    def _fail(self, error: DuramenError) -> None:
        self.response = StageBatchResponse.new(error_code=int(sink_error(error)), error_message=str(error), topics=[])
        self._reply()

    def _expire(self) -> None:
        self._fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "not staged in time; the outcome is unknown"))

    def _reply(self) -> None:
        self._timer.cancel()
        self.request.reply(self.response)


def _handles(work: list[Arriving], pieces: list[StagedRange], most_bytes: int) -> Iterator[NewHandle]:
    """Pieces that lie one behind the other under one handle, which each of them is told; most_bytes of a handle.

    A handle that nobody commits is moved as a whole, so it may not be larger than a piece.
    """
    first = pieces[0].first_offset
    parts: list[StagedPart] = []
    size = 0
    for each, piece in zip(work, pieces, strict=True):
        if parts and size + piece.bytes > most_bytes:
            yield NewHandle(first, tuple(parts))
            first, parts, size = piece.first_offset, [], 0
        each.entry.handle = first
        parts.append(StagedPart(each.topic_id, each.entry.index, piece.next_offset - piece.first_offset, piece.bytes))
        size += piece.bytes
    yield NewHandle(first, tuple(parts))


def _check(arriving: Arriving, now_ms: int) -> Checked:
    try:
        return check_staged(arriving.records, arriving.config, now_ms)
    except KafkaError as error:
        return error


def _refuse(entry: Any, error: KafkaError) -> None:
    entry.error_code = int(error.code)
    entry.error_message = error.message


def handle(request: Request) -> None:
    """Stage what may be staged; each partition stands or falls alone."""
    body = request.body
    if request.denies(Operation.WRITE, Resource.TRANSACTIONAL_ID, [body.sink_id]):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        request.reply(StageBatchResponse.new(error_code=int(code), error_message="not allowed to use this sink"))
        return
    StageCall(request).start()
