"""Streams of a cluster, over its protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from duramen.client import CONTROLLER, EARLIEST, LATEST, READ_COMMITTED, Cluster
from duramen.client.protocol.metadata import error_code
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.streams.link import StreamAnswer, Stretch
from duramen.streams.records import Row
from duramen.wire.batch import build_batch, wrapped
from duramen.wire.messages import API

_CREATE_TOPICS: Final = 19
_DELETE_TOPICS: Final = 20
_DELETE_RECORDS: Final = 21
_CONDITIONAL_APPEND: Final = 10031
_WAIT_MS: Final = 500
FIRST_CONTACT_S: Final = 5.0
"""Until an address that takes no connection is given up, where none of them ever did; a node restarts in less."""
_NO_PLACE: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))


class _Producer(NamedTuple):
    """Who a partition knows a batch by, when it is sent again, and the sequence of the next record."""

    id: int
    epoch: int
    sequence: int


class ClusterLink:
    """A cluster, for one thread at a time. timeout_s: of each call, elections and restarts included."""

    def __init__(self, nodes: str, timeout_s: float) -> None:
        self._cluster = Cluster(
            nodes, client_id="duramen-streams", timeout_s=timeout_s, first_contact_s=FIRST_CONTACT_S
        )
        self._timeout_ms = int(timeout_s * 1000)
        self._producers: dict[str, _Producer] = {}
        self._known: set[str] = set()

    def topics(self) -> list[str]:
        """See `StreamLink`."""
        found = self._cluster.metadata().topics.values()
        return sorted(topic.name for topic in found if len(topic.partitions) == 1 and not topic.is_internal)

    def exists(self, topic: str) -> bool:
        """See `StreamLink`."""
        found = self._cluster.metadata([topic]).topics.get(topic)
        if found is None or found.error in _NO_PLACE:
            return False
        if found.error:
            raise KafkaError(found.error, f"topic {topic}: {found.error.name}")
        if len(found.partitions) != 1:
            count = len(found.partitions)
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"topic {topic} has {count} partitions; a stream has one")
        return True

    def create(self, topic: str, settings: Mapping[str, str]) -> None:
        """See `StreamLink`."""
        message = API[_CREATE_TOPICS].request
        configs = [message.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
        wanted = message.CreatableTopic(name=topic, num_partitions=1, replication_factor=-1, configs=configs)
        request = message.new(topics=[wanted], timeout_ms=self._timeout_ms)
        self._ask(CONTROLLER, _CREATE_TOPICS, request, "topics")

    def delete(self, topic: str) -> None:
        """See `StreamLink`."""
        message = API[_DELETE_TOPICS].request
        state = message.DeleteTopicState(name=topic)
        self._known.discard(topic)
        self._producers.pop(topic, None)
        request = message.new(topics=[state], topic_names=[topic], timeout_ms=self._timeout_ms)
        self._ask(CONTROLLER, _DELETE_TOPICS, request, "responses")

    def append(self, topic: str, rows: Sequence[Row] | None, expected: int, *, close: bool) -> StreamAnswer:
        """See `StreamLink`. What got no answer is sent again until the time limit, and stored once."""
        self._find(topic)
        answer = self._append(topic, rows, expected, close=close)
        if answer.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:  # unused for so long that the partition forgot it
            answer = self._append(topic, rows, expected, close=close)
        return answer

    def _append(self, topic: str, rows: Sequence[Row] | None, expected: int, *, close: bool) -> StreamAnswer:
        producer = self._producers.pop(topic, None)  # put back where it is known what became of its batch
        batch = None
        if rows is not None:
            producer = producer or _Producer(*self._cluster.init_producer_id(), 0)
            batch = build_batch(
                rows, producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=producer.sequence
            )
        request = API[_CONDITIONAL_APPEND].request.new(
            topic_name=topic, expected_offset=expected, close=close, records=batch, timeout_ms=self._timeout_ms
        )
        try:
            answer = _answer(self._call(TopicPartition(topic, 0), _CONDITIONAL_APPEND, request))
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                text = f"{error}; streams are written to nodes of Duramen, of this release or a later one"
                raise KafkaError(error.code, text) from error
            raise
        if producer is not None and answer.code in (ErrorCode.NONE, ErrorCode.END_IS_ELSEWHERE):
            count = len(rows or ()) if answer.code is ErrorCode.NONE else 0
            self._producers[topic] = producer._replace(sequence=wrapped(producer.sequence + count))
        return answer

    def fetch(self, topic: str, offset: int) -> Stretch:
        """See `StreamLink`."""
        return self._fetch(topic, offset, 0)

    def wait(self, topic: str, offset: int) -> None:
        """See `StreamLink`."""
        self._fetch(topic, offset, _WAIT_MS)

    def _fetch(self, topic: str, offset: int, wait_ms: int) -> Stretch:
        self._find(topic)
        found = self._cluster.fetch(
            TopicPartition(topic, 0), offset, isolation=READ_COMMITTED, max_wait_ms=wait_ms, max_bytes=1 << 20
        )
        return Stretch(found.data, found.aborted, found.last_stable_offset)

    def bounds(self, topic: str) -> tuple[int, int]:
        """See `StreamLink`."""
        return self._offset(topic, EARLIEST), self._offset(topic, LATEST)

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """See `StreamLink`."""
        found = self._offset(topic, timestamp_ms)
        return None if found < 0 else found

    def _offset(self, topic: str, when: int) -> int:
        self._find(topic)
        tp = TopicPartition(topic, 0)
        return self._cluster.list_offsets({tp: when}, READ_COMMITTED)[tp].offset

    def truncate(self, topic: str, before: int) -> int:
        """See `StreamLink`."""
        self._find(topic)
        message = API[_DELETE_RECORDS].request
        share = message.DeleteRecordsTopic(
            name=topic, partitions=[message.DeleteRecordsPartition(partition_index=0, offset=before)]
        )
        request = message.new(topics=[share], timeout_ms=self._timeout_ms)
        reply = self._call(
            TopicPartition(topic, 0), _DELETE_RECORDS, request, lambda reply: _of_partition(reply).error_code
        )
        found = _of_partition(reply)
        if found.error_code:
            code = error_code(found.error_code)
            raise KafkaError(code, f"{topic}: truncate before {before}: {code.name}")
        return int(found.low_watermark)

    def close(self) -> None:
        """See `StreamLink`."""
        self._cluster.close()

    def _find(self, topic: str) -> None:
        """A call to the leader of a topic that is not there would wait for one until its time limit."""
        if topic not in self._known:
            if not self.exists(topic):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
            self._known.add(topic)

    def _call(self, route: Any, key: int, request: Any, code_of: Any = None) -> Any:
        return self._cluster.call(
            route, key, request, code_of=code_of or (lambda reply: int(reply.error_code)), wait_s=0.0
        )

    def _ask(self, route: Any, key: int, request: Any, field: str) -> None:
        """A request about one topic, which is refused by a KafkaError."""

        def code_of(reply: Any) -> int:
            code = int(getattr(reply, field)[0].error_code)
            return 0 if code in _NO_PLACE else code  # there will be none later either

        reply = self._call(route, key, request, code_of)
        (found,) = getattr(reply, field)
        if found.error_code:
            code = error_code(found.error_code)
            raise KafkaError(code, found.error_message or f"{found.name}: {code.name}")


def _of_partition(reply: Any) -> Any:
    return reply.topics[0].partitions[0]


def _answer(reply: Any) -> StreamAnswer:
    return StreamAnswer(
        error_code(reply.error_code),
        reply.error_message or "",
        reply.base_offset,
        reply.end_offset,
        reply.leader_epoch,
        bool(reply.durability),
        reply.copies,
        reply.closed,
    )
