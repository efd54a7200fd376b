"""Produce requests of one batch, as most are: decoded from what is known of earlier ones, answered from a template.

From the client id to the partition's index such requests are the same bytes again and again; only correlation id and
batch differ. What those bytes mean is kept (`KnownProduces`), and the rest is read here as the decoder would read it.
Whatever is not as usual (a tagged field, no batch, bytes after the message, an authorizer to be asked) is left to the
decoder. Two replies for the same partition and version differ only in correlation id, base offset, append time and log
start: the template is what the ordinary encoder makes, taken apart where these numbers stand.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode, KafkaError
from duramen.model import NO_TIMESTAMP
from duramen.partition.replica.batch_rules import RecordsRefusedError
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.server.api.authorizer import AllowAll
from duramen.server.api.leader_hints import NOT_THE_LEADER, LeaderHints
from duramen.server.api.request import Request
from duramen.server.api.transactional_appends import TransactionalBatch
from duramen.wire.frame import SIZE_BYTES, encode_request, encode_response
from duramen.wire.messages import API
from duramen.wire.messages.produce import ProduceResponse

if TYPE_CHECKING:
    from duramen.server.api.services import Services
    from duramen.server.net.connection import ClientConnection

FIRST_VERSION_WITH_LEADER_HINTS = 10
FIRST_VERSION_WITH_TOPIC_IDS = 13
UNKNOWN_OUTCOME = "not acknowledged in time; the outcome is unknown"
_TOLD_WITH_LOG_START = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""Refusals with which Kafka tells where the log starts; a producer sees whether what it lost is only deleted."""
_PartitionResponse = ProduceResponse.PartitionProduceResponse
_TopicResponse = ProduceResponse.TopicProduceResponse
_RecordError = ProduceResponse.BatchIndexAndErrorMessage

FIRST_VERSION_WITH_LOG_START = 5
MAX_TEMPLATES = 10_000

_SENTINEL = 0x5AA5_0FF0_C33C_9669
_SENTINEL_BYTES = _SENTINEL.to_bytes(8, "big")
_BEFORE_CORRELATION = 4
_BEFORE_MIDDLE = 8

FIRST_VERSION = 9
"""Older ones have other length fields, and are rare."""

PREFIX_START = 8
"""Behind key, version and correlation id: the length of the client id."""
CLIENT_START = PREFIX_START + 2
BEFORE_TOPIC = 1 + 1 + 2 + 4 + 1
"""No tagged fields, the length of the transactional id, acks, timeout, the number of topics."""
BEHIND_TOPIC = 1 + 4
"""The number of partitions and the index of the one."""
TOPIC_ID_BYTES = 16

TAIL_BYTES = 3
"""No tagged fields of the partition, of the topic, of the request."""
LARGEST_FRAME = 1 << 14
"""Bytes. In these the batch's length takes at most two; for larger ones decoding is no burden."""

LONGEST_PREFIX = 512
"""Bytes. Client ids may be of 16 KB, and what is learnt stays."""

MOST_PREFIXES = 4096
"""Kept of each version; a producer has one for each partition it writes to, producers of one client id share them."""


class ReplyTemplate:
    """The reply to an append to one partition, in one version."""

    __slots__ = ("_head", "_middle", "_pack", "_tail", "_with_start")

    def __init__(self, version: int, reply: bytes) -> None:
        # Nothing but the base offset follows the topic's name, so the last place that looks like it is it.
        numbers = reply.rindex(_SENTINEL_BYTES)
        self._with_start = version >= FIRST_VERSION_WITH_LOG_START
        self._head = reply[:_BEFORE_CORRELATION]
        self._middle = reply[_BEFORE_MIDDLE:numbers]
        self._tail = reply[numbers + (24 if self._with_start else 16) :]
        fields = "qqq" if self._with_start else "qq"
        self._pack = Struct(f">4si{len(self._middle)}s{fields}{len(self._tail)}s").pack

    def reply(self, correlation_id: int, base_offset: int, append_time: int, start: int) -> bytes:
        """The whole frame."""
        if self._with_start:
            return self._pack(self._head, correlation_id, self._middle, base_offset, append_time, start, self._tail)
        return self._pack(self._head, correlation_id, self._middle, base_offset, append_time, self._tail)


@lru_cache(maxsize=MAX_TEMPLATES)
def reply_template(version: int, topic_name: str, topic_id: bytes, index: int) -> ReplyTemplate:
    """The template for a partition in one version; bounded, because partitions are many and come and go."""
    entry = ProduceResponse.PartitionProduceResponse(
        index=index, base_offset=_SENTINEL, log_append_time_ms=NO_TIMESTAMP, log_start_offset=0
    )
    topic = ProduceResponse.TopicProduceResponse(name=topic_name, topic_id=topic_id, partition_responses=[entry])
    parts = encode_response(API[0], version, 0, ProduceResponse.new(responses=[topic]))
    return ReplyTemplate(version, b"".join(parts))  # type: ignore[arg-type]


class Destination:
    """Where a request of one batch goes, and what it waits for. `timeout` is in seconds."""

    __slots__ = (
        "acks", "client_bytes", "index", "partition", "row", "template", "timeout", "topic_id", "topic_name",
        "transactional_id", "version",
    )  # fmt: skip

    def __init__(
        self, request: Request, topic: Any, index: int, acks: int, timeout_ms: int, partition: Partition
    ) -> None:
        self.row = request.row
        self.client_bytes = request.connection.client_bytes
        self.version = request.version
        self.topic_name: str = topic.name
        self.topic_id: bytes = topic.topic_id
        self.index = index
        self.acks = acks
        self.timeout = max(timeout_ms, 0) / 1000
        self.partition = partition
        self.template: ReplyTemplate | None = None
        self.transactional_id: str | None = request.body.transactional_id


class ProduceRequest(Request):
    """A Produce request. If it brings one batch, as most do, it is also the callback of that batch's append."""

    __slots__ = ("deadline", "to")

    to: Destination | None

    def append(self, to: Destination, batch: memoryview) -> None:
        """Append the only batch of this request."""
        self.to = to
        self.deadline = self.started + to.timeout
        services = self.services
        appends = services.appends
        appends.outstanding[self] = None  # `OutstandingAppends.wait_for`, without the call
        if not appends.sweeping:
            appends.sweep_later()
        services.cold_reads.busy_at = self.started
        if to.transactional_id is None:
            to.partition.append(batch, to.acks, services.clock.wall_ms(), self)
        else:
            batches = (TransactionalBatch(to.partition, batch, self),)
            services.transactional_appends.append(to.transactional_id, to.version, to.acks, batches)

    def __call__(self, result: Appended | KafkaError) -> None:
        """The partition's answer; one that comes after the timeout changes nothing."""
        services = self.services
        services.appends.outstanding.pop(self, None)
        to = self.to
        assert to is not None
        if self.parts is not None:
            return
        if type(result) is Appended:
            if to.acks == 0:
                self.reply_nothing()
                return
            template = to.template
            if template is None:
                template = to.template = reply_template(to.version, to.topic_name, to.topic_id, to.index)
            self.complete((template.reply(self.correlation_id, *result),))
        else:
            assert isinstance(result, KafkaError)
            self.refuse(to.topic_name, to.topic_id, to.index, to.acks, result, to.partition.tp.topic, to.partition)

    def refuse(
        self,
        topic_name: str,
        topic_id: bytes,
        index: int,
        acks: int,
        error: KafkaError,
        known_as: str | None,
        partition: Partition | None = None,
    ) -> None:
        """Answer for the only batch that it was not appended, or that its outcome is not known.

        topic_name: as the reply has it, "" where it has the id; known_as: the topic's name, if it has one.
        """
        if acks == 0:
            self.count_errors({int(error.code): 1})
            self.drop_connection(f"a produce with acks=0 failed: {error.message}")
            self.reply_nothing()
            return
        entry = _PartitionResponse(index=index)
        fill_error(entry, error, partition)
        topic = _TopicResponse(name=topic_name, topic_id=topic_id, partition_responses=[entry])
        response = ProduceResponse.new(responses=[topic])
        if error.code in NOT_THE_LEADER and self.version >= FIRST_VERSION_WITH_LEADER_HINTS:
            hints = LeaderHints(self, ProduceResponse)
            hints.name(entry, known_as, index)
            response.node_endpoints = hints.endpoints
        self.reply(response)

    def expire(self) -> None:
        """The request's timeout passed."""
        self(KafkaError(ErrorCode.REQUEST_TIMED_OUT, UNKNOWN_OUTCOME))


def fill_error(entry: Any, error: KafkaError, partition: Partition | None = None) -> str:
    """Write a refusal, the partition's if it is one, into a partition's response; returns its text."""
    entry.error_code = int(error.code)
    if partition is not None and (error.code in _TOLD_WITH_LOG_START or isinstance(error, RecordsRefusedError)):
        entry.log_start_offset = partition.log_start_offset
    entry.base_offset = -1
    entry.error_message = error.message
    if isinstance(error, RecordsRefusedError):
        entry.record_errors = [
            _RecordError(batch_index=index, batch_index_error_message=text) for index, text in error.errors
        ]
    return error.message


class KnownProduces:
    """What Produce requests begin with, and where that sends a batch."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, dict[bytes, Destination]] = {}
        """By version, by prefix."""

    def handle_known(
        self,
        services: Services,
        connection: ClientConnection,
        view: memoryview,
        version: int,
        correlation: int,
        client: int,
    ) -> bool:
        """Handle the frame in `view`, whose client id has so many bytes, if it begins like an earlier one."""
        known = self._known.get(version)
        end = CLIENT_START + client + BEFORE_TOPIC
        if known is None or client < 0 or len(view) <= end:
            return False
        transactional_id = view[CLIENT_START + client + 1]  # one more than its bytes; 0 without
        if transactional_id:
            end += transactional_id - 1
            if transactional_id > 127 or len(view) <= end:
                return False
        end += BEHIND_TOPIC + (TOPIC_ID_BYTES if version >= FIRST_VERSION_WITH_TOPIC_IDS else view[end])
        prefix = view[PREFIX_START:end].tobytes()
        to = known.get(prefix)
        if to is None or to.client_bytes != connection.client_bytes or type(services.access.authorizer) is not AllowAll:
            return False
        if to.partition.closed:
            del known[prefix]
            return False
        batch = batch_behind(view, end)
        if batch is None:
            return False
        request = ProduceRequest(services, connection, to.row, version, correlation)
        connection.expect(request)
        request.append(to, batch)
        return True

    def learn(self, view: memoryview, request: ProduceRequest) -> None:
        """Remember how a decoded request of one batch begins, if it is just as our encoder would write it."""
        to = request.to
        version, client = request.version, request.connection.client_id
        if to is None or version < FIRST_VERSION or len(view) > LARGEST_FRAME:
            return
        by_name = version < FIRST_VERSION_WITH_TOPIC_IDS
        topic = 1 + len(to.topic_name.encode()) if by_name else TOPIC_ID_BYTES
        id_bytes = 0 if to.transactional_id is None else len(to.transactional_id.encode())
        end = CLIENT_START + len(to.client_bytes) + BEFORE_TOPIC + id_bytes + topic + BEHIND_TOPIC
        prefix = view[PREFIX_START:end].tobytes()
        known = self._known.setdefault(version, {})
        if topic > 127 or id_bytes > 126 or len(prefix) > LONGEST_PREFIX or prefix in known:
            return
        parts = encode_request(request.row.api, version, request.correlation_id, client, request.body)
        if b"".join(parts)[SIZE_BYTES:] == view:  # type: ignore[arg-type]  # no spans in a request
            if len(known) >= MOST_PREFIXES:
                known.clear()
            known[prefix] = to


def batch_behind(view: memoryview, position: int) -> memoryview | None:
    """The batch whose length is at `position` of a message that ends behind it as usual; None for any other end."""
    if len(view) < position + 2 + TAIL_BYTES:
        return None
    size = view[position]
    position += 1
    if size > 127:
        more = view[position]
        if more > 127:
            return None
        size = size & 127 | more << 7
        position += 1
    end = position + size - 1  # the length counts one more
    if size < 2 or end + TAIL_BYTES != len(view) or view[end] or view[end + 1] or view[end + 2]:
        return None
    return view[position:end]
