"""Streams of a cluster, over its protocol: with the blocking client and with the one on asyncio."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from duramen.client import ANY, CONTROLLER, EARLIEST, READ_COMMITTED
from duramen.client.protocol import conditional_append as conditional
from duramen.client.protocol import described_settings
from duramen.client.protocol.conditional_append import CONDITIONAL_APPEND
from duramen.client.protocol.deadline import Deadline
from duramen.client.protocol.described_settings import DESCRIBE_CONFIGS, TXID
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import ListedOffset
from duramen.client.protocol.metadata import error_code
from duramen.client.protocol.namespaces import NAMESPACES_TOPIC
from duramen.client.protocol.positions import OffsetQuestion, Position, Question, check_later_leader
from duramen.client.protocol.producers import ProducerProgress, progress_in
from duramen.client.protocol.record_table import FROM_START, TableStretch
from duramen.client.protocol.stream_names import names_in
from duramen.errors import ErrorCode, KafkaError, TopicReplacedError
from duramen.model import NO_PRODUCER_ID, NO_TOPIC_ID, TopicId, TopicPartition
from duramen.streams.link import SETTLED, AppendTerms, StreamKind, StreamTail, TxidKind
from duramen.streams.logged_namespaces import LoggedNamespaces
from duramen.streams.lookup import find_spot
from duramen.streams.ready_cluster import AwaitableCluster
from duramen.streams.records import Row, StreamSpot, Stretch, stretch_of
from duramen.wire.batch import build_batch, wrapped
from duramen.wire.conditional_answer import ConditionalAnswer
from duramen.wire.messages import API

_CREATE_TOPICS: Final = 19
_DELETE_TOPICS: Final = 20
_DELETE_RECORDS: Final = 21
_OPEN_WRITER: Final = 10030
_WAIT_MS: Final = 500
_FETCH_BYTES: Final = 1 << 20
FIRST_CONTACT_S: Final = 5.0
"""Until an address that takes no connection is given up, where none of them ever did; a node restarts in less."""
_NO_PLACE: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))


class _Producer(NamedTuple):
    """Who a partition knows a batch by, when it is sent again, and the sequence of the next record."""

    id: int
    epoch: int
    sequence: int


class ClusterLink:
    """A cluster. timeout_s: of each call, elections and restarts included; sleep: waits so many seconds."""

    def __init__(self, cluster: AwaitableCluster, timeout_s: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._cluster = cluster
        self._sleep = sleep
        self._timeout_s = timeout_s
        self._timeout_ms = int(timeout_s * 1000)
        self._producers: dict[str, _Producer] = {}
        self._known: set[str] = set()
        self.namespaces = LoggedNamespaces(self)

    async def topics(self) -> list[str]:
        """See `LoggedLink`."""
        found = (await self._cluster.metadata()).topics.values()
        return [topic.name for topic in found if len(topic.partitions) == 1 and not topic.is_internal]

    async def names(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """See `StreamLink`."""
        return names_in(namespace, await self.topics(), prefix, after, limit)

    async def exists(self, topic: str) -> bool:
        """See `StreamLink`."""
        return await self._id_of(topic) is not None

    async def stream_id(self, topic: str) -> str:
        """See `StreamLink`."""
        found = await self._id_of(topic)
        if found is None:
            raise _no_topic(topic)
        return _id_text(found)

    async def _id_of(self, topic: str) -> TopicId | None:
        """Asked now; None for one that is not there. KafkaError as `exists`."""
        found = (await self._cluster.metadata([topic])).topics.get(topic)
        if found is None or found.error in _NO_PLACE:
            return None
        if found.error:
            raise KafkaError(found.error, f"topic {topic}: {found.error.name}")
        if len(found.partitions) != 1:
            count = len(found.partitions)
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {topic} has {count} partitions; a stream has one")
        return found.topic_id

    async def create(self, topic: str, settings: Mapping[str, str]) -> str:
        """See `StreamLink`."""
        made = await self._create(topic, settings, validate_only=False)
        self._known.add(topic)
        return _id_text(bytes(made.topic_id or NO_TOPIC_ID))

    async def check_settings(self, namespace: str, settings: Mapping[str, str]) -> None:
        """See `LoggedLink`."""
        try:
            await self._create(f"{namespace.replace('/', '.')}.-", settings, validate_only=True)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def _create(self, topic: str, settings: Mapping[str, str], *, validate_only: bool) -> Any:
        message = API[_CREATE_TOPICS].request
        configs = [message.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
        wanted = message.CreatableTopic(name=topic, num_partitions=1, replication_factor=-1, configs=configs)
        request = message.new(topics=[wanted], timeout_ms=self._timeout_ms, validate_only=validate_only)
        return await self._ask(CONTROLLER, _CREATE_TOPICS, request, "topics")

    async def delete(self, topic: str) -> None:
        """See `StreamLink`."""
        message = API[_DELETE_TOPICS].request
        state = message.DeleteTopicState(name=topic)
        self._known.discard(topic)
        self._producers.pop(topic, None)
        request = message.new(topics=[state], topic_names=[topic], timeout_ms=self._timeout_ms)
        await self._ask(CONTROLLER, _DELETE_TOPICS, request, "responses")

    # ---- writing ---------------------------------------------------------------------------------------------

    async def append(self, topic: str, rows: Sequence[Row] | None, terms: AppendTerms) -> ConditionalAnswer:
        """See `StreamLink`. What got no answer is sent again until the time limit, and stored once."""
        await self._find(topic)
        if rows is None:
            return await self._send(topic, None, terms)
        if terms.writer is not None:
            turn = terms.writer
            return await self._send(topic, _batch(rows, turn.producer_id, turn.epoch, turn.sequence), terms)
        answer = await self._append(topic, rows, terms)
        if answer.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:  # unused for so long that the partition forgot it
            answer = await self._append(topic, rows, terms)
        return answer

    async def _append(self, topic: str, rows: Sequence[Row], terms: AppendTerms) -> ConditionalAnswer:
        """As an idempotent producer of its own."""
        known = self._producers.pop(topic, None)  # put back where it is known what became of its batch
        producer = known or _Producer(*await self._cluster.init_producer_id(), 0)
        answer = await self._send(topic, _batch(rows, *producer), terms)
        if answer.code in SETTLED:
            count = len(rows) if answer.code is ErrorCode.NONE else 0
            self._producers[topic] = producer._replace(sequence=wrapped(producer.sequence + count))
        return answer._replace(duplicate=False)  # by an attempt of this very call

    async def _send(
        self, topic: str, batch: bytearray | None, terms: AppendTerms, about: int = NO_PRODUCER_ID
    ) -> ConditionalAnswer:
        tp = TopicPartition(topic, 0)
        request = conditional.request(
            tp,
            bytes.fromhex(terms.stream_id) or NO_TOPIC_ID,
            batch,
            terms.expected_end,
            close=terms.close,
            timeout_ms=self._timeout_ms,
            producer_id=max(terms.closer, about),
        )
        try:
            return conditional.parsed(await self._call_ours(tp, CONDITIONAL_APPEND, request))
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_ID and await self.stream_id(topic) != terms.stream_id:
                raise TopicReplacedError(f"topic {topic} was deleted and made anew") from error
            raise

    async def open_writer(self, topic: str, name: str) -> int:
        """See `StreamLink`. Where no answer comes another one is opened."""
        return await self._open(topic, name, release=False, producer_id=-1)

    async def release_writer(self, topic: str, name: str, producer_id: int) -> None:
        """See `StreamLink`."""
        await self._open(topic, name, release=True, producer_id=producer_id)

    async def _open(self, topic: str, name: str, *, release: bool, producer_id: int) -> int:
        await self._find(topic)
        request = API[_OPEN_WRITER].request.new(
            topic_name=topic,
            partition=0,
            name=name,
            timeout_ms=self._timeout_ms,
            release=release,
            producer_id=producer_id,
        )
        answer = await self._call_ours(TopicPartition(topic, 0), _OPEN_WRITER, request)
        if answer.error_code:
            code = error_code(answer.error_code)
            raise KafkaError(code, answer.error_message or code.name)
        return int(answer.producer_id)

    async def progress(self, topic: str, name: str, producer_id: int) -> ProducerProgress:
        """See `StreamLink`."""
        await self._find(topic)
        return progress_in(await self._send(topic, None, AppendTerms(), about=producer_id))

    # ---- reading ---------------------------------------------------------------------------------------------

    async def locate(self, topic: str, wanted: Position) -> StreamSpot:
        """See `StreamLink`. A leader that is none any more may lack what the position names: another one is asked."""
        stream_id = await self.stream_id(topic)  # in front of all else: what is read is read by this id
        began = time.monotonic()
        deadline = Deadline(f"{wanted} in {topic}", self._timeout_s, began)
        while True:
            try:
                spot = await find_spot(wanted, partial(self._answer, TopicPartition(topic, 0)))
                return spot._replace(stream_id=stream_id)
            except KafkaError as error:
                refused = error
            found = (await self._cluster.metadata([topic])).topics[topic]
            replicas = max((len(each.replicas) for each in found.partitions.values()), default=0)
            check_later_leader(refused, wanted, replicas, time.monotonic() - began)
            await self._sleep(deadline.pause_s(refused, time.monotonic()))

    async def _answer(self, tp: TopicPartition, question: Question) -> ListedOffset | FetchedBytes | None:
        if isinstance(question, OffsetQuestion):
            return (await self._cluster.list_offsets({tp: question.timestamp}, READ_COMMITTED))[tp]
        try:
            return await self._cluster.fetch(tp, question.offset, 1, READ_COMMITTED, max_wait_ms=0)
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            raise

    async def fetch(self, topic: str, spot: StreamSpot) -> Stretch:
        """See `StreamLink`."""
        found = await self._fetch(topic, spot, 0)
        return stretch_of(found.data, found.aborted, spot)

    async def wait(self, topic: str, spot: StreamSpot) -> None:
        """See `StreamLink`."""
        await self._fetch(topic, spot, _WAIT_MS)

    async def _fetch(self, topic: str, spot: StreamSpot, wait_ms: int) -> FetchedBytes:
        await self._find(topic)
        tp = TopicPartition(topic, 0)
        id = bytes.fromhex(spot.stream_id) or None
        return await self._cluster.fetch(
            tp, spot.offset, _FETCH_BYTES, READ_COMMITTED, max_wait_ms=wait_ms, topic_id=id
        )

    async def read_namespaces(self, offset: int, *, wait: bool) -> TableStretch | None:
        """See `LoggedLink`."""
        if not await self.exists(NAMESPACES_TOPIC):
            return None if offset > 0 else TableStretch(b"", (), 0)
        tp = TopicPartition(NAMESPACES_TOPIC, 0)
        if offset == FROM_START:
            offset = (await self._cluster.list_offsets({tp: EARLIEST}, READ_COMMITTED))[tp].offset
        try:
            found = await self._cluster.fetch(
                tp, offset, _FETCH_BYTES, READ_COMMITTED, max_wait_ms=_WAIT_MS if wait else 0
            )
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            raise
        return TableStretch(found.data, found.aborted, found.last_stable_offset)

    async def state(self, topic: str) -> StreamTail:
        """See `StreamLink`."""
        await self._find(topic)
        answer = await self._send(topic, None, AppendTerms())
        if answer.code:
            raise KafkaError(answer.code, answer.message or answer.code.name)
        return StreamTail(answer.end_offset, answer.closed, answer.last_txid)

    async def kind(self, topic: str) -> StreamKind:
        """See `StreamLink`."""
        stream_id = await self.stream_id(topic)
        return StreamKind(cast(TxidKind, (await self._settings(topic, [TXID])).get(TXID) or "none"), stream_id)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """See `StreamLink`."""
        return await self._settings(topic)

    async def _settings(self, topic: str, names: Sequence[str] = ()) -> Mapping[str, str]:
        """Those of these names, or all. A node that does not know the topic yet is asked again."""
        await self._find(topic)
        request = described_settings.request([topic], names)
        reply = await self._cluster.call(ANY, DESCRIBE_CONFIGS, request, code_of=described_settings.code_of)
        return described_settings.parsed(reply)[topic]

    async def truncate(self, topic: str, before: int) -> int:
        """See `StreamLink`."""
        await self._find(topic)
        message = API[_DELETE_RECORDS].request
        share = message.DeleteRecordsTopic(
            name=topic, partitions=[message.DeleteRecordsPartition(partition_index=0, offset=before)]
        )
        request = message.new(topics=[share], timeout_ms=self._timeout_ms)
        reply = await self._cluster.call(
            TopicPartition(topic, 0), _DELETE_RECORDS, request, code_of=lambda reply: _of_partition(reply).error_code
        )
        found = _of_partition(reply)
        if found.error_code:
            code = error_code(found.error_code)
            raise KafkaError(code, f"{topic}: truncate before {before}: {code.name}")
        return int(found.low_watermark)

    async def close(self) -> None:
        """See `StreamLink`."""
        await self._cluster.close()

    async def _find(self, topic: str) -> None:
        """A call to the leader of a topic that is not there would wait for one until its time limit."""
        if topic not in self._known:
            if not await self.exists(topic):
                raise _no_topic(topic)
            self._known.add(topic)

    async def _call_ours(self, tp: TopicPartition, key: int, request: Any) -> Any:
        """A call of an API that only nodes of Duramen have."""
        try:
            return await self._cluster.call(tp, key, request, code_of=lambda reply: int(reply.error_code))
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                text = f"{error}; streams are written to nodes of Duramen, of this release or a later one"
                raise KafkaError(error.code, text) from error
            raise

    async def _ask(self, route: Any, key: int, request: Any, field: str) -> Any:
        """A request about one topic, which is refused by a KafkaError; what is answered of it."""

        def code_of(reply: Any) -> int:
            code = int(getattr(reply, field)[0].error_code)
            return 0 if code in _NO_PLACE else code  # there will be none later either

        reply = await self._cluster.call(route, key, request, code_of=code_of)
        (found,) = getattr(reply, field)
        if found.error_code:
            code = error_code(found.error_code)
            raise KafkaError(code, found.error_message or f"{found.name}: {code.name}")
        return found


def _id_text(topic_id: TopicId) -> str:
    return "" if topic_id == NO_TOPIC_ID else topic_id.hex()


def _no_topic(topic: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")


def _batch(rows: Sequence[Row], producer_id: int, epoch: int, sequence: int) -> bytearray:
    return build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def _of_partition(reply: Any) -> Any:
    return reply.topics[0].partitions[0]
