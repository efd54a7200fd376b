"""The client of one cluster: blocking calls that find the right node, wait for it, and try again if that may help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.client.blocking.connection_pool import ConnectionPool
from duramen.client.blocking.retries import Asked, Retries
from duramen.client.protocol import fetch as fetching
from duramen.client.protocol import outcomes
from duramen.client.protocol import produce as producing
from duramen.client.protocol.fetch import DEFAULT_MAX_BYTES, FETCH, FetchedBytes, FetchOptions, FetchWish
from duramen.client.protocol.list_offsets import LIST_OFFSETS, ListedOffset, OffsetsWish
from duramen.client.protocol.metadata import ClusterMetadata, TopicMetadata
from duramen.client.protocol.produce import INIT_PRODUCER_ID, NOT_ASKED, PRODUCE, Produced
from duramen.client.protocol.routes import ANY, CoordinatorKey, Route
from duramen.client.protocol.versions import ApiVersions
from duramen.errors import KafkaError, NetworkError
from duramen.model import TopicId, TopicPartition
from duramen.ports import Buffer
from duramen.wire.messages import API

_T = TypeVar("_T")


class Cluster:
    """A client of one cluster, for one thread. Use it as a context manager, or `close` it.

    bootstrap: "host:port,..." or a list of such. timeout_s: limit of each call unless it is given its own, restarts
    and elections included. request_timeout_s: when a node that does not answer is given up and asked again.
    max_frame_bytes: longest answer that memory is taken for. first_contact_s: when NothingThereError is raised, instead
    of trying on, while none of the addresses ever took a connection; None: at the limit of the call.

    Calls raise KafkaError (the cluster refused, by its code), DeadlineError (time is up; `last` says what stood in the
    way), NetworkError, wire.errors.DecodeError (not a node of Kafka's protocol), ClosedError.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "duramen",
        timeout_s: float = 30.0,
        request_timeout_s: float = 15.0,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        first_contact_s: float | None = None,
    ) -> None:
        self._request_timeout_ms = int(request_timeout_s * 1000)
        self._pool = ConnectionPool(bootstrap, client_id, max_frame_bytes, first_contact_s)
        self._retries = Retries(self._pool, timeout_s, request_timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; the object cannot be used any more."""
        self._pool.close()

    # ---- what there is ---------------------------------------------------------------------------------------

    def api_versions(self) -> ApiVersions:
        """What a node of the cluster serves; `.is_duramen` tells Duramen from a foreign Kafka."""
        return self._retries.retry("ApiVersions", ANY, lambda until: self._pool.to(ANY, until).versions)

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """Nodes, and these topics (None: all), asked now. A topic that is not there carries its error."""
        names = None if topics is None else list(topics)
        return self._retries.retry(
            "Metadata", ANY, lambda until: self._pool.find(self._pool.view.refresh(names), until)
        )

    def partitions(self, topic: str, *, create: bool = False) -> list[int]:
        """Numbers of a topic's partitions, ascending, asked now; KafkaError UNKNOWN_TOPIC_OR_PARTITION.

        create: a topic that is not there is made first, where the cluster makes those that clients ask for.
        """
        return sorted(self._refresh_topic(topic, create=create).partitions)

    def topic_id(self, topic: str) -> TopicId:
        """A topic's id (16 bytes; zeros where the cluster has none), asked now. Errors as `partitions`."""
        return self._refresh_topic(topic).topic_id

    def _refresh_topic(self, topic: str, *, create: bool = False) -> TopicMetadata:
        pool = self._pool
        return self._retries.retry(
            f"Metadata of {topic}", ANY, lambda until: pool.find(pool.view.refresh_topic(topic, create=create), until)
        )

    def leader(self, tp: TopicPartition) -> int:
        """Node id of a partition's leader, as far as is known."""
        view = self._pool.view
        return self._retries.retry(f"leader of {tp}", tp, lambda until: self._pool.find(view.leader(tp), until))

    def coordinator(self, wanted: CoordinatorKey) -> int:
        """Node id of a coordinator, as far as is known."""
        what = f"coordinator of {wanted.key}"
        view = self._pool.view
        return self._retries.retry(what, wanted, lambda until: self._pool.find(view.coordinator(wanted), until).id)

    # ---- any API ---------------------------------------------------------------------------------------------

    def call(
        self,
        route: Route,
        key: int,
        request: Any,
        *,
        code_of: Callable[[Any], int] | None = None,
        resend: bool = True,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
        highest: int | None = None,
    ) -> Any:
        """Send a message of any declared API (`API[key].request.new(...)`) where the route leads; the response.

        route: ANY, CONTROLLER, a node id, a TopicPartition (its leader) or a Coordinator.
        code_of: the error code in a response; retriable ones are tried again (and the way is asked anew) until the time
        limit, others are left in the response for the caller. resend=False: never send twice what may have taken
        effect; OutcomeUnknownError then. wait_s: how long the node itself may wait before it answers.
        """

        def attempt(until: float) -> Any:
            connection = self._pool.to(route, until)
            try:
                response = connection.call(key, request, until, highest)
            except NetworkError as error:
                outcomes.check_known(error, resend=resend)
                raise
            if code_of is not None:
                outcomes.check(code_of(response), API[key].name, resend=resend)
            return response

        return self._retries.retry(API[key].name, route, attempt, timeout_s, wait_s)

    def call_leaders(
        self,
        key: int,
        wanted: Iterable[TopicPartition],
        request: Callable[[list[TopicPartition]], Any],
        parsed: Callable[[Any, list[TopicPartition]], dict[TopicPartition, _T | KafkaError]],
        *,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, _T | KafkaError]:
        """Ask each leader about its share of the partitions, with one request, and gather what `parsed` finds.

        Retriable refusals and lost leaders are tried again; other refusals are values of the result.
        """

        def ask(connections: Mapping[BlockingConnection, list[TopicPartition]], until: float) -> Iterable[Asked]:
            for connection, tps in connections.items():
                yield connection, key, request(tps), None

        return self._retries.from_leaders(API[key].name, wanted, ask, parsed, timeout_s)

    # ---- reading ---------------------------------------------------------------------------------------------

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: int = 0, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset of each partition at a time (ms since 1970) or at LATEST, EARLIEST, MAX_TIMESTAMP.

        One request per leader. isolation 1: LATEST is the last stable offset. The first partition that fails for good
        raises its KafkaError.
        """
        wish = OffsetsWish(wanted, isolation, self._request_timeout_ms)
        return wish.granted(self.call_leaders(LIST_OFFSETS, wanted, wish.request, wish.parsed, timeout_s=timeout_s))

    def fetch(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
        isolation: int = 0,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        topic_id: TopicId | None = None,
        timeout_s: float | None = None,
    ) -> FetchedBytes:
        """Whole batches from the one that holds `offset`; none (empty data) when nothing came in `max_wait_ms`.

        max_bytes: at most, but for a first batch that is larger. topic_id: of the topic that is meant, if it matters;
        TopicReplacedError when another one has its name. KafkaError OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE.
        """
        answers = self.fetch_many(
            {tp: offset},
            max_bytes,
            isolation,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            topic_ids=None if topic_id is None else {tp.topic: topic_id},
            timeout_s=timeout_s,
        )
        return fetching.granted(answers[tp])

    def fetch_many(
        self,
        wanted: Mapping[TopicPartition, int],
        max_bytes: int = DEFAULT_MAX_BYTES,
        isolation: int = 0,
        *,
        partition_max_bytes: int | None = None,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        topic_ids: Mapping[str, TopicId] | None = None,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, FetchedBytes | KafkaError]:
        """As `fetch` for many partitions from their offsets, with one request per leader.

        max_bytes: of each request. Partitions named first are filled first. What a partition is refused for good is its
        value; retriable refusals are tried again.
        """
        options = FetchOptions(max_bytes, partition_max_bytes or max_bytes, isolation, max_wait_ms, min_bytes)
        wish = FetchWish(wanted, options, topic_ids or {})
        ids: dict[str, TopicId] = {}

        def ask(connections: Mapping[BlockingConnection, list[TopicPartition]], until: float) -> Iterable[Asked]:
            ids.update(self._pool.find(self._pool.view.topic_ids(wanted), until))
            for connection, tps in connections.items():
                request, highest = wish.request(tps, ids)
                yield connection, FETCH, request, highest

        return self._retries.from_leaders(
            "Fetch",
            wanted,
            ask,
            lambda response, tps: wish.parsed(response, tps, ids),
            timeout_s,
            max_wait_ms / 1000,
        )

    # ---- writing ---------------------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str | None = None, transaction_timeout_ms: int = 60_000
    ) -> tuple[int, int]:
        """(producer id, producer epoch) for an idempotent producer, or of a transactional id."""
        route, request = producing.id_request(transactional_id, transaction_timeout_ms)
        return producing.id_parsed(self.call(route, INIT_PRODUCER_ID, request, code_of=producing.id_code))

    def produce(
        self,
        tp: TopicPartition,
        batch: Buffer,
        acks: int = -1,
        *,
        resend: bool | None = None,
        receipt: bool = False,
        timeout_s: float | None = None,
    ) -> Produced:
        """Append one finished batch (base offset 0, valid CRC); where it went, once `acks` is satisfied.

        resend: whether it may be sent again when no answer came. By default only if it names a producer id, for then
        the partition knows it again; without one that is an OutcomeUnknownError, and so is a time-out of the node.
        receipt: ask how safe the batch is there.
        """
        again = producing.may_resend(batch) if resend is None else resend

        def attempt(until: float) -> Produced:
            topic_id = self._pool.find(self._pool.view.topic(tp.topic), until).topic_id
            request, highest = producing.request(
                tp, [batch], acks, topic_id, self._request_timeout_ms, receipts=receipt
            )
            connection = self._pool.to(tp, until)
            if acks == 0:
                connection.send_only(PRODUCE, request, until, highest)
                return NOT_ASKED
            try:
                return producing.parsed(connection.call(PRODUCE, request, until, highest), tp)
            except (NetworkError, KafkaError) as error:
                outcomes.check_known(error, resend=again)
                raise

        return self._retries.retry(f"Produce to {tp}", tp, attempt, timeout_s)
