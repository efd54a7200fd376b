"""WriteTxnMarkers: markers that end transactions in partitions led here. Versions 1-2.

They come from coordinators on other nodes, and from administrators who abort a transaction that hangs (as version 0 of
transactions, which fences nobody). The reply leaves when each is committed, or refused, or the node's
`request.timeout.ms` is over.

v2 the transaction version of each marker (KIP-1228)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.model import FIRST_NAMED_PRODUCER_ID, INTERNAL_TOPICS, OFFSETS_TOPIC
from duramen.partition.replica import transactional_writes
from duramen.server.api.authorizer import CLUSTER_NAME, Operation, Resource
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.write_txn_markers import WriteTxnMarkersResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

WRITTEN_STEP: Final = STEP // 4
"""Markers that are written in a step: each is a batch."""
AT_ONCE: Final = 500
"""Markers of a request that are under way together: they may all be answered in one turn of the loop."""

_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
_TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult
_COORDINATORS: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
"""A partition of `__consumer_offsets` is not ready. Who sends markers knows leaders, and tries again."""


class _Ordered(NamedTuple):
    """A marker for one partition, and what the reply says of it."""

    marker: Any
    topic: str
    partition: int
    refusal: KafkaError | None
    entry: Any


class _MarkersCall:
    """One request until all its partitions have answered, or their time is over."""

    __slots__ = ("_is_replied", "_left", "_ordered", "_request", "_response", "_written", "deadline")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._response = WriteTxnMarkersResponse.new(markers=[])
        self._ordered: list[_Ordered] = []
        self._written = 0
        """So many of them, or under way."""
        self._left = 0
        """Of those, who have not answered; and one while more are being written."""
        self._is_replied = False
        self.deadline = request.started + request.services.config.integer("request.timeout.ms") / 1000

    def order(self) -> Steps:
        """Make the reply, which says of each partition that nobody knows. A producer is in it once, as in Kafka's."""
        request = self._request
        refusal = None
        if CLUSTER_NAME in request.denied and request.denies(Operation.ALTER, Resource.CLUSTER, (CLUSTER_NAME,)):
            refusal = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers and who may alter write markers")
        results: dict[int, Any] = {}
        topics: dict[tuple[int, str], Any] = {}
        done = 0
        for marker in request.body.markers:
            producer_id, refused = marker.producer_id, refusal or _check(marker)
            done += 1
            for topic in marker.topics:
                done += 1
                for index in dict.fromkeys(topic.partition_indexes):  # once each: a marker is longer than its number
                    if producer_id not in results:
                        results[producer_id] = _Result(producer_id=producer_id, topics=[])
                        self._response.markers.append(results[producer_id])
                    if (producer_id, topic.name) not in topics:
                        topics[producer_id, topic.name] = _TopicResult(name=topic.name, partitions=[])
                        results[producer_id].topics.append(topics[producer_id, topic.name])
                    entry = _PartitionResult(partition_index=index, error_code=int(ErrorCode.REQUEST_TIMED_OUT))
                    topics[producer_id, topic.name].partitions.append(entry)
                    self._ordered.append(_Ordered(marker, topic.name, index, refused, entry))
                    done += 1
                    if done >= STEP:
                        done = 0
                        yield
                if done >= STEP:
                    done = 0
                    yield
            if done >= STEP:
                done = 0
                yield

    def begin(self) -> None:
        """Write the first ones; reply when there are none."""
        self._request.services.appends.wait_for(self)
        self._go_on()

    def _go_on(self) -> None:
        if self._written == len(self._ordered):
            self._reply()
        elif not self._is_replied:
            self._left = 1
            self._request.in_steps(self._write_some(), lambda _: self._settled())

    def _write_some(self) -> Steps:
        start = self._written
        self._written = min(start + AT_ONCE, len(self._ordered))
        for number, each in enumerate(self._ordered[start : self._written]):
            self._left += 1
            answer = partial(self._answered, each.entry)
            if each.refusal is None:
                _write(self._request, each, answer)
            else:
                answer(each.refusal)
            if (number + 1) % WRITTEN_STEP == 0:
                yield

    def _answered(self, entry: Any, error: KafkaError | None) -> None:
        """A partition has its marker, or refuses it."""
        if not self._is_replied:
            code = ErrorCode.NONE if error is None else error.code
            entry.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _COORDINATORS else code)
        self._settled()

    def _settled(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._go_on()

    def expire(self) -> None:
        """The time is over: what has not answered may still be written."""
        self._reply()

    def _reply(self) -> None:
        if not self._is_replied:
            self._is_replied = True
            self._request.services.appends.outstanding.pop(self, None)
            self._request.reply(self._response)


def handle(request: Request) -> None:
    """Write them all, reply when all are settled."""
    call = _MarkersCall(request)
    request.in_steps(call.order(), lambda _: call.begin())


def _check(marker: Any) -> KafkaError | None:
    """What no coordinator sends."""
    if not 0 <= marker.producer_id < FIRST_NAMED_PRODUCER_ID:
        return KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{marker.producer_id} is no transactional producer")
    if marker.producer_epoch < 0 or marker.transaction_version < 0:
        return KafkaError(ErrorCode.INVALID_REQUEST, "a marker with a negative epoch or version")
    return None


def _write(request: Request, each: _Ordered, done: Callable[[KafkaError | None], None]) -> None:
    services, marker, topic = request.services, each.marker, each.topic
    producer = ProducerEpoch(marker.producer_id, marker.producer_epoch)
    what = (producer, marker.transaction_result, marker.coordinator_epoch, marker.transaction_version)
    if topic == OFFSETS_TOPIC:
        services.groups.end_transaction(each.partition, *what, done)
        return
    partition = None if topic in INTERNAL_TOPICS else services.partitions.find(topic, each.partition)
    if partition is None:
        done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{each.partition} is not here"))
        return
    transactional_writes.append_marker(partition, *what, services.clock.wall_ms(), done)
