"""WriteTxnMarkers: markers that end transactions in partitions led here. Versions 1-2.

They come from coordinators on other nodes, and from administrators who abort a transaction that hangs (as version 0 of
transactions, which fences nobody). The reply leaves when each is committed, or refused, or the node's
`request.timeout.ms` is over.

v2 the transaction version of each marker (KIP-1228)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.model import FIRST_SINK_PRODUCER_ID, INTERNAL_TOPICS, OFFSETS_TOPIC
from duramen.server.api.authorizer import CLUSTER_NAME, Operation, Resource
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.write_txn_markers import WriteTxnMarkersResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

_COORDINATORS: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
"""A partition of `__consumer_offsets` is not ready. Who sends markers knows leaders, and tries again."""


class _MarkersCall:
    """One request until all its partitions have answered, or their time is over."""

    __slots__ = ("_is_replied", "_left", "_request", "_response", "_results", "_topics", "deadline")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._response = WriteTxnMarkersResponse.new(markers=[])
        self._results: dict[int, Any] = {}
        """By producer id, which is in the reply once, as in Kafka's."""
        self._topics: dict[tuple[int, str], Any] = {}
        self._left = 1
        """Partitions that have not answered, and one while there may be more."""
        self._is_replied = False
        self.deadline = request.started + request.services.config.integer("request.timeout.ms") / 1000

    def entry(self, producer_id: int, topic: str, index: int) -> Any:
        """What the reply says of a partition; until it has answered, that nobody knows."""
        result = self._results.get(producer_id)
        if result is None:
            result = WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=producer_id, topics=[])
            self._results[producer_id] = result
            self._response.markers.append(result)
        of_topic = self._topics.get((producer_id, topic))
        if of_topic is None:
            of_topic = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=topic, partitions=[])
            self._topics[producer_id, topic] = of_topic
            result.topics.append(of_topic)
        entry = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
            partition_index=index, error_code=int(ErrorCode.REQUEST_TIMED_OUT)
        )
        of_topic.partitions.append(entry)
        self._left += 1
        return entry

    def answered(self, entry: Any, error: KafkaError | None) -> None:
        """A partition has its marker, or refuses it."""
        if not self._is_replied:
            code = ErrorCode.NONE if error is None else error.code
            entry.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _COORDINATORS else code)
            self._settled()

    def sent(self) -> None:
        """There are no more partitions."""
        self._settled()
        if not self._is_replied:
            self._request.services.appends.wait_for(self)

    def _settled(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._reply()

    def expire(self) -> None:
        """The time is over: what has not answered may still be written."""
        if not self._is_replied:
            self._reply()

    def _reply(self) -> None:
        self._is_replied = True
        self._request.services.appends.outstanding.pop(self, None)
        self._request.reply(self._response)


def handle(request: Request) -> None:
    """Write them all, reply when all are settled."""
    call = _MarkersCall(request)
    request.in_steps(_write_all(request, call), lambda _: call.sent())


def _write_all(request: Request, call: _MarkersCall) -> Steps:
    refusal = None
    if CLUSTER_NAME in request.denied and request.denies(Operation.ALTER, Resource.CLUSTER, (CLUSTER_NAME,)):
        refusal = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers and administrators write markers")
    done = 0
    for marker in request.body.markers:
        refused = refusal or _check(marker)
        for topic in marker.topics:
            for index in dict.fromkeys(topic.partition_indexes):  # once each: a marker is longer than its number
                answer = partial(call.answered, call.entry(marker.producer_id, topic.name, index))
                if refused is None:
                    _write(request, marker, topic.name, index, answer)
                else:
                    answer(refused)
                done += 1
                if done % STEP == 0:
                    yield
            done += 1
            if done % STEP == 0:
                yield


def _check(marker: Any) -> KafkaError | None:
    """What no coordinator sends."""
    if not 0 <= marker.producer_id < FIRST_SINK_PRODUCER_ID:
        return KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{marker.producer_id} is no transactional producer")
    if marker.producer_epoch < 0 or marker.transaction_version < 0:
        return KafkaError(ErrorCode.INVALID_REQUEST, "a marker with a negative epoch or version")
    return None


def _write(request: Request, marker: Any, topic: str, index: int, done: Callable[[KafkaError | None], None]) -> None:
    services = request.services
    producer = ProducerEpoch(marker.producer_id, marker.producer_epoch)
    what = (producer, marker.transaction_result, marker.coordinator_epoch, marker.transaction_version)
    if topic == OFFSETS_TOPIC:
        services.groups.end_transaction(index, *what, done)
        return
    partition = None if topic in INTERNAL_TOPICS else services.partitions.find(topic, index)
    if partition is None:
        done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} is not here"))
        return
    partition.append_marker(*what, services.clock.wall_ms(), done)
