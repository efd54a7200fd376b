"""A table in a compacted topic, read and changed with an `AsyncCluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from duramen.client.aio.async_cluster import AsyncCluster
from duramen.client.protocol import conditional_append as conditional
from duramen.client.protocol.conditional_append import CONDITIONAL_APPEND
from duramen.client.protocol.list_offsets import EARLIEST
from duramen.client.protocol.metadata import error_code, only
from duramen.client.protocol.record_table import (
    FROM_START,
    AppendTable,
    ReadTable,
    RecordTable,
    TableAsk,
    TableReading,
    TableStretch,
)
from duramen.client.protocol.routes import CONTROLLER
from duramen.dlsn import LogEnd
from duramen.errors import ErrorCode, KafkaError, TopicReplacedError
from duramen.model import NO_TOPIC_ID, TopicPartition
from duramen.wire.batch import NewRecord, build_batch
from duramen.wire.messages import API

_T = TypeVar("_T")
_CREATE_TOPICS: Final = 19
_READ_COMMITTED: Final = 1
_FETCH_BYTES: Final = 1 << 20
_WAIT_MS: Final = 500
_TIMEOUT_MS: Final = 15_000
_ABSENT: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class AsyncRecordTable(Generic[_T]):
    """What a table in the first partition of a topic says. What was read is kept, and read on from its end each time,
    so that nobody sees less than what was acknowledged before. settings: of the topic, which whoever writes first
    makes. Calls raise what those of `AsyncCluster` raise."""

    def __init__(self, cluster: AsyncCluster, topic: str, settings: Mapping[str, str], table: RecordTable[_T]) -> None:
        self._cluster = cluster
        self._topic = topic
        self._settings = settings
        self._partition = TopicPartition(topic, 0)
        self._log = table
        self._topic_id = NO_TOPIC_ID
        self._turn = asyncio.Lock()
        self._coming: asyncio.Task[Mapping[str, _T]] | None = None
        """A reading that has not begun: whoever asks until then gets what it finds."""

    async def records(self) -> Mapping[str, _T]:
        """All records by name, as they are now."""
        coming = self._coming
        if coming is None:
            coming = self._coming = asyncio.ensure_future(self._read_on())
            coming.add_done_callback(lambda task: task.cancelled() or task.exception())  # its callers may be gone
        return await asyncio.shield(coming)

    async def _read_on(self) -> Mapping[str, _T]:
        async with self._turn:
            self._coming = None
            await self._run(self._log.read())
            return dict(self._log.records)

    async def change(self, decide: Callable[[Mapping[str, _T]], Sequence[NewRecord]]) -> None:
        """As `RecordTable.change`; on stable storage when it returns."""
        async with self._turn:
            await self._run(self._log.change(decide))

    async def _run(self, work: TableReading) -> None:
        producer: tuple[int, int] | None = None
        try:
            ask: TableAsk = next(work)
            while True:
                if isinstance(ask, ReadTable):
                    ask = work.send(await self._read(ask))
                else:
                    # A producer id makes the batch known when it comes twice. It is of this change alone, and so is
                    # its sequence: what is refused has not taken it.
                    producer = producer or await self._cluster.init_producer_id()
                    ask = work.send(await self._append(ask, *producer))
        except StopIteration:
            return

    async def _read(self, ask: ReadTable) -> TableStretch | None:
        topic = (await self._cluster.metadata([self._topic])).topics.get(self._topic)
        if topic is None or topic.error in _ABSENT:
            self._topic_id = NO_TOPIC_ID
            return TableStretch(b"", (), 0) if ask.offset <= 0 else None
        if topic.error:
            raise KafkaError(topic.error, f"topic {self._topic}: {topic.error.name}")
        known, self._topic_id = self._topic_id, topic.topic_id
        if ask.offset > 0 and topic.topic_id != known:
            return None
        offset = ask.offset
        if offset == FROM_START:
            offset = (await self._cluster.list_offsets({self._partition: EARLIEST}))[self._partition].offset
        try:
            found = await self._cluster.fetch(
                self._partition,
                offset,
                _FETCH_BYTES,
                _READ_COMMITTED,
                max_wait_ms=_WAIT_MS if ask.wait else 0,
                topic_id=topic.topic_id,
            )
        except TopicReplacedError:
            return None
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            raise
        return TableStretch(found.data, found.aborted, found.last_stable_offset)

    async def _append(self, ask: AppendTable, producer_id: int, producer_epoch: int) -> bool:
        if self._topic_id == NO_TOPIC_ID:
            await self._create()
        batch = build_batch(ask.rows, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=0)
        request = conditional.request(
            self._partition, self._topic_id, batch, LogEnd(ask.expected), close=False, timeout_ms=_TIMEOUT_MS
        )
        response = await self._cluster.call(
            self._partition, CONDITIONAL_APPEND, request, code_of=lambda response: int(response.error_code)
        )
        answer = conditional.parsed(response)
        if answer.code not in (ErrorCode.NONE, ErrorCode.END_IS_ELSEWHERE):
            raise KafkaError(answer.code, f"topic {self._topic}: {answer.message or answer.code.name}")
        return answer.code is ErrorCode.NONE

    async def _create(self) -> None:
        message = API[_CREATE_TOPICS].request
        configs = [message.CreatableTopicConfig(name=name, value=text) for name, text in self._settings.items()]
        wanted = message.CreatableTopic(name=self._topic, num_partitions=1, replication_factor=-1, configs=configs)
        request = message.new(topics=[wanted], timeout_ms=_TIMEOUT_MS)

        def code_of(response: object) -> int:
            code = int(only(getattr(response, "topics", ()), self._topic).error_code)
            return 0 if code == ErrorCode.TOPIC_ALREADY_EXISTS else code

        response = await self._cluster.call(CONTROLLER, _CREATE_TOPICS, request, code_of=code_of)
        if code := code_of(response):
            said = only(response.topics, self._topic).error_message or ""
            raise KafkaError(error_code(code), f"topic {self._topic}: {said}")
