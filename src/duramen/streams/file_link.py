"""Streams in a directory that this process owns: the embedded engine, without a server."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, cast

from duramen.client.protocol.fetch import FetchedBytes, whole_batches
from duramen.client.protocol.list_offsets import EARLIEST, LATEST, ListedOffset
from duramen.client.protocol.namespaces import NAMESPACES_TOPIC
from duramen.client.protocol.positions import OffsetQuestion, Position, Question, check_later_leader
from duramen.client.protocol.producers import ProducerProgress, progress_in
from duramen.client.protocol.record_table import FROM_START, TableStretch
from duramen.client.protocol.stream_names import names_in
from duramen.config import BrokerConfig
from duramen.config.topic import validate_topic_configs
from duramen.embedded import TopicStream, open_log
from duramen.errors import ConfigError, DeadlineError, ErrorCode, KafkaError, TopicReplacedError
from duramen.model import NO_TIMESTAMP, TopicPartition
from duramen.streams.link import AppendTerms, StreamKind, StreamTail, TxidKind
from duramen.streams.logged_namespaces import LoggedNamespaces
from duramen.streams.lookup import find_spot
from duramen.streams.records import Row, StreamSpot, Stretch, stretch_of
from duramen.wire.batch import build_batch
from duramen.wire.conditional_answer import ConditionalAnswer

_PARTITION: Final = 0
_WAIT_S: Final = 0.5


class FileLink:
    """A log directory. Safe from several threads. timeout_s: of each append."""

    def __init__(self, directory: str, timeout_s: float) -> None:
        self._log = open_log(directory)
        self._timeout_s = timeout_s
        self._creating = threading.Lock()
        self.namespaces = LoggedNamespaces(self)

    async def topics(self) -> list[str]:
        """See `LoggedLink`."""
        return [name for name in self._log.topics() if self._log.topic(name).partitions == 1]

    async def check_settings(self, namespace: str, settings: Mapping[str, str]) -> None:
        """See `LoggedLink`."""
        try:
            validate_topic_configs(BrokerConfig({}), settings)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    async def names(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """See `StreamLink`."""
        return names_in(namespace, await self.topics(), prefix, after, limit)

    async def exists(self, topic: str) -> bool:
        """See `StreamLink`."""
        if topic not in self._log.topics():
            return False
        count = self._log.topic(topic).partitions
        if count != 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {topic} has {count} partitions; a stream has one")
        return True

    async def stream_id(self, topic: str) -> str:
        """See `StreamLink`."""
        self._check(topic)
        return self._log.topic(topic).topic_id.hex()

    async def create(self, topic: str, settings: Mapping[str, str]) -> str:
        """See `StreamLink`."""
        with self._creating:
            if topic in self._log.topics():
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic} exists")
            return self._log.topic(topic, 1, settings).topic_id.hex()

    async def delete(self, topic: str) -> None:
        """See `StreamLink`."""
        self._log.delete_topic(topic)

    async def append(self, topic: str, rows: Sequence[Row] | None, terms: AppendTerms) -> ConditionalAnswer:
        """See `StreamLink`."""
        turn = terms.writer
        id, epoch, sequence = (-1, -1, -1) if turn is None else (turn.producer_id, turn.epoch, turn.sequence)
        batch = (
            None if rows is None else build_batch(rows, producer_id=id, producer_epoch=epoch, base_sequence=sequence)
        )
        try:
            return self._by_id(topic, terms.stream_id).append(
                batch, terms.expected_end, close=terms.close, about=terms.closer, timeout_s=self._timeout_s
            )
        except TimeoutError as error:
            raise DeadlineError(str(error)) from error

    async def open_writer(self, topic: str, name: str) -> int:
        """See `StreamLink`."""
        return self._stream(topic).open_writer(name)

    async def release_writer(self, topic: str, name: str, producer_id: int) -> None:
        """See `StreamLink`."""
        self._stream(topic).release_writer(name, producer_id)

    async def progress(self, topic: str, name: str, producer_id: int) -> ProducerProgress:
        """See `StreamLink`."""
        return progress_in(self._stream(topic).append(None, about=producer_id, timeout_s=self._timeout_s))

    async def locate(self, topic: str, wanted: Position) -> StreamSpot:
        """See `StreamLink`."""
        stream_id = await self.stream_id(topic)
        try:
            return (await find_spot(wanted, partial(self._answer, topic)))._replace(stream_id=stream_id)
        except KafkaError as error:
            check_later_leader(error, wanted, 1, 0.0)
            raise

    async def _answer(self, topic: str, question: Question) -> ListedOffset | FetchedBytes | None:
        stream = self._stream(topic)
        if not isinstance(question, OffsetQuestion):
            return _read(stream, topic, question.offset)
        found = self._log.topic(topic)
        if question.timestamp == EARLIEST:
            return ListedOffset(found.start_offset(_PARTITION), NO_TIMESTAMP, -1)
        if question.timestamp == LATEST:
            state = stream.state()
            return ListedOffset(state.end_offset, NO_TIMESTAMP, state.leader_epoch)
        offset = found.offset_at(_PARTITION, question.timestamp)
        return ListedOffset(-1 if offset is None else offset, question.timestamp, -1)

    async def fetch(self, topic: str, spot: StreamSpot) -> Stretch:
        """See `StreamLink`."""
        chunk = self._by_id(topic, spot.stream_id).read(spot.offset)
        return stretch_of(chunk.data, chunk.aborted, spot)

    async def wait(self, topic: str, spot: StreamSpot) -> None:
        """See `StreamLink`."""
        self._by_id(topic, spot.stream_id).wait(spot.offset, _WAIT_S)

    async def read_namespaces(self, offset: int, *, wait: bool) -> TableStretch | None:
        """See `LoggedLink`. Appends of this process are committed when they are answered."""
        if not await self.exists(NAMESPACES_TOPIC):
            return None if offset > 0 else TableStretch(b"", (), 0)
        stream = self._stream(NAMESPACES_TOPIC)
        if wait:
            stream.wait(max(offset, 0), _WAIT_S)
        try:
            first = self._log.topic(NAMESPACES_TOPIC).start_offset(_PARTITION)
            return TableStretch(*stream.read(first if offset == FROM_START else offset))
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            raise

    async def state(self, topic: str) -> StreamTail:
        """See `StreamLink`."""
        found = self._stream(topic).state()
        return StreamTail(found.end_offset, found.closed, found.last_txid)

    async def kind(self, topic: str) -> StreamKind:
        """See `StreamLink`."""
        self._check(topic)
        found = self._log.topic(topic)
        return StreamKind(cast(TxidKind, TopicStream(found).txid_kind()), found.topic_id.hex())

    async def settings(self, topic: str) -> Mapping[str, str]:
        """See `StreamLink`."""
        return self._stream(topic).settings()

    async def truncate(self, topic: str, before: int) -> int:
        """See `StreamLink`."""
        self._check(topic)
        return self._log.topic(topic).truncate(_PARTITION, before)

    async def close(self) -> None:
        """See `StreamLink`."""
        self._log.close()

    def _stream(self, topic: str) -> TopicStream:
        self._check(topic)
        return TopicStream(self._log.topic(topic))

    def _by_id(self, topic: str, stream_id: str) -> TopicStream:
        """The stream that is meant; "" for any of the name. TopicReplacedError."""
        self._check(topic)
        found = self._log.topic(topic)
        if stream_id and found.topic_id.hex() != stream_id:
            raise TopicReplacedError(f"topic {topic} was deleted and made anew")
        return TopicStream(found)

    def _check(self, topic: str) -> None:
        """`EmbeddedLog.topic` would make one that is not there."""
        if topic not in self._log.topics():
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")


def _read(stream: TopicStream, topic: str, offset: int) -> FetchedBytes | None:
    """What a node would answer to a Fetch; None where the offset is out of range."""
    try:
        chunk = stream.read(offset)
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        raise
    data = memoryview(chunk.data)
    _, next_offset = whole_batches(data, topic)
    return FetchedBytes(
        TopicPartition(topic, _PARTITION), offset, data, max(offset, next_offset), chunk.bound, chunk.bound, -1, []
    )
