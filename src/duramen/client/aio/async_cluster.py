"""The client of one cluster on asyncio: the calls of `blocking.cluster.Cluster` as coroutines, any number at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from duramen.client.aio.async_connection import ConnectionLimits
from duramen.client.aio.async_connection_pool import AsyncConnectionPool
from duramen.client.aio.async_retries import AsyncRetries
from duramen.client.protocol import fetch as fetching
from duramen.client.protocol import metadata, outcomes
from duramen.client.protocol import produce as producing
from duramen.client.protocol.connection_classes import ConnectionClass, class_of
from duramen.client.protocol.fetch import DEFAULT_MAX_BYTES, FETCH, FetchedBytes, FetchOptions, FetchWish
from duramen.client.protocol.list_offsets import LIST_OFFSETS, ListedOffset, OffsetsWish
from duramen.client.protocol.metadata import METADATA, ClusterMetadata, TopicMetadata
from duramen.client.protocol.produce import INIT_PRODUCER_ID, NOT_ASKED, PRODUCE, Produced
from duramen.client.protocol.routes import ANY, CoordinatorKey, Route
from duramen.client.protocol.versions import ApiVersions
from duramen.errors import DuramenError, KafkaError, NetworkError
from duramen.model import TopicId, TopicPartition
from duramen.ports import Buffer
from duramen.wire.messages import API

_T = TypeVar("_T")
_LIMITS = ConnectionLimits()


class AsyncCluster:
    """A client of one cluster, for the tasks of one event loop. Use it with `async with`, or `close` it.

    bootstrap, client_id, timeout_s, first_contact_s: as of `Cluster`. request_timeout_s: a node that says nothing for
    so long while an answer is due is hung up on. max_frame_bytes: longest answer that memory is taken for. in_flight:
    requests without an answer on one connection, more wait. waiting_connections: to one node, for calls that let it
    wait, each of which has one to itself; more wait for their turn, so follow many partitions by `fetch_many`. idle_s:
    after which a connection without requests is closed.

    Calls raise what those of `Cluster` raise. Any may be cancelled: what it sent may take effect, and its answer is
    dropped. Batches of one producer id to one partition that are in flight together may arrive in another order when
    they are sent again: await each before the next.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "duramen",
        timeout_s: float = 30.0,
        request_timeout_s: float = 15.0,
        max_frame_bytes: int = _LIMITS.max_frame_bytes,
        in_flight: int = _LIMITS.in_flight,
        waiting_connections: int = 64,
        idle_s: float = _LIMITS.idle_s,
        first_contact_s: float | None = None,
    ) -> None:
        limits = _LIMITS._replace(
            max_frame_bytes=max_frame_bytes, in_flight=in_flight, silence_s=request_timeout_s, idle_s=idle_s
        )
        self._request_timeout_ms = int(request_timeout_s * 1000)
        self._pool = AsyncConnectionPool(bootstrap, client_id, limits, waiting_connections, first_contact_s)
        self._retries = AsyncRetries(self._pool, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up; calls that are under way raise ClosedError (OutcomeUnknownError, where what they sent may take
        effect and they may not send it again), and so does every later one."""
        await self._pool.close()

    # ---- what there is ---------------------------------------------------------------------------------------

    async def api_versions(self) -> ApiVersions:
        """What a node of the cluster serves; `.is_duramen` tells Duramen from a foreign Kafka."""

        async def ask(until: float) -> ApiVersions:
            return (await self._pool.to(None, ConnectionClass.CALLS, until)).versions

        return await self._retries.retry("ApiVersions", ANY, ask)

    async def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """Nodes, and these topics (None: all), asked now. A topic that is not there carries its error."""
        names = None if topics is None else list(topics)
        view = self._pool.view
        return await self._retries.retry("Metadata", ANY, lambda until: self._pool.find(view.refresh(names), until))

    async def partitions(self, topic: str, *, create: bool = False) -> list[int]:
        """Numbers of a topic's partitions, ascending, asked now; KafkaError UNKNOWN_TOPIC_OR_PARTITION.

        create: a topic that is not there is made first, where the cluster makes those that clients ask for.
        """
        return sorted((await self._refresh_topic(topic, create=create)).partitions)

    async def topic_id(self, topic: str) -> TopicId:
        """A topic's id (16 bytes; zeros where the cluster has none), asked now. Errors as `partitions`."""
        return (await self._refresh_topic(topic)).topic_id

    async def topic_names(self, topic_ids: Iterable[TopicId], *, timeout_s: float | None = None) -> dict[TopicId, str]:
        """Names of the topics with these ids, asked now; those that are not there are left out."""
        request = metadata.request_by_id(API[METADATA].request, topic_ids)
        return metadata.names_parsed(await self.call(ANY, METADATA, request, timeout_s=timeout_s))

    async def _refresh_topic(self, topic: str, *, create: bool = False) -> TopicMetadata:
        pool = self._pool
        return await self._retries.retry(
            f"Metadata of {topic}", ANY, lambda until: pool.find(pool.view.refresh_topic(topic, create=create), until)
        )

    async def leader(self, tp: TopicPartition) -> int:
        """Node id of a partition's leader, as far as is known."""
        view = self._pool.view
        return await self._retries.retry(f"leader of {tp}", tp, lambda until: self._pool.find(view.leader(tp), until))

    async def coordinator(self, wanted: CoordinatorKey) -> int:
        """Node id of a coordinator, as far as is known."""
        view = self._pool.view

        async def ask(until: float) -> int:
            return (await self._pool.find(view.coordinator(wanted), until)).id

        return await self._retries.retry(f"coordinator of {wanted.key}", wanted, ask)

    def forget(self, route: Route) -> None:
        """The way there is asked for again at the next call: a node has answered that it leads somewhere else."""
        self._pool.view.forget(route)

    # ---- any API ---------------------------------------------------------------------------------------------

    async def call(
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
        """Send a message of any declared API where the route leads; the response. All as of `Cluster.call`.

        wait_s: how long the node itself may wait before it answers; above 0 the call has a connection to itself.
        """
        pool = self._pool
        kind = class_of(key, wait_s)

        async def attempt(until: float) -> Any:
            node = await pool.find(pool.view.node_of(route), until)
            try:
                response = await pool.call(node, kind, key, request, until, highest, wait_s)
            except NetworkError as error:
                outcomes.check_known(error, resend=resend)
                raise
            if code_of is not None:
                outcomes.check(code_of(response), API[key].name, resend=resend)
            return response

        return await self._retries.retry(API[key].name, route, attempt, timeout_s)

    async def call_leaders(
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
        pool = self._pool

        async def ask(leader: int, tps: list[TopicPartition], until: float) -> dict[TopicPartition, _T | KafkaError]:
            node = await pool.find(pool.view.node_of(leader), until)
            return parsed(await pool.call(node, class_of(key, 0.0), key, request(tps), until), tps)

        return await self._retries.from_leaders(API[key].name, wanted, ask, timeout_s)

    # ---- reading ---------------------------------------------------------------------------------------------

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: int = 0, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset of each partition at a time (ms since 1970) or at LATEST, EARLIEST, MAX_TIMESTAMP.

        One request per leader. isolation 1: LATEST is the last stable offset. The first partition that fails for good
        raises its KafkaError.
        """
        wish = OffsetsWish(wanted, isolation, self._request_timeout_ms)
        return wish.granted(
            await self.call_leaders(LIST_OFFSETS, wanted, wish.request, wish.parsed, timeout_s=timeout_s)
        )

    async def fetch(
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

        max_wait_ms 0 shares a connection with other reads; above, the call has one to itself. The rest as of
        `Cluster.fetch`.
        """
        answers = await self.fetch_many(
            {tp: offset},
            max_bytes,
            isolation,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            topic_ids=None if topic_id is None else {tp.topic: topic_id},
            timeout_s=timeout_s,
        )
        return fetching.granted(answers[tp])

    async def fetch_many(
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
        return await self._fetch(FetchWish(wanted, options, topic_ids or {}), timeout_s, partial=False)

    async def fetch_available(
        self,
        wanted: Mapping[TopicPartition, int],
        max_bytes: int = DEFAULT_MAX_BYTES,
        isolation: int = 0,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        topic_ids: Mapping[str, TopicId] | None = None,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, FetchedBytes | DuramenError]:
        """As `fetch_many`, but what one partition is refused, whether that may pass or not, holds up no other: it is
        the value of that partition. Only while none has an answer are they asked again, and the last error raised."""
        options = FetchOptions(max_bytes, max_bytes, isolation, max_wait_ms, min_bytes)
        return await self._fetch(FetchWish(wanted, options, topic_ids or {}), timeout_s, partial=True)

    async def _fetch(self, wish: FetchWish, timeout_s: float | None, *, partial: bool) -> dict[TopicPartition, Any]:
        wait_s = wish.options.max_wait_ms / 1000
        kind = class_of(FETCH, wait_s)
        pool = self._pool

        async def ask(
            leader: int, tps: list[TopicPartition], until: float
        ) -> dict[TopicPartition, FetchedBytes | KafkaError]:
            node = await pool.find(pool.view.node_of(leader), until)
            ids = await pool.find(pool.view.topic_ids(tps), until)
            request, highest = wish.request(tps, ids)
            return wish.parsed(await pool.call(node, kind, FETCH, request, until, highest, wait_s), tps, ids)

        return await self._retries.from_leaders("Fetch", wish.offsets, ask, timeout_s, partial=partial)

    # ---- writing ---------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str | None = None, transaction_timeout_ms: int = 60_000
    ) -> tuple[int, int]:
        """(producer id, producer epoch) for an idempotent producer, or of a transactional id."""
        route, request = producing.id_request(transactional_id, transaction_timeout_ms)
        return producing.id_parsed(await self.call(route, INIT_PRODUCER_ID, request, code_of=producing.id_code))

    async def produce(
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

        resend, receipt: as of `Cluster.produce`. The batch must stay as it is until the call returns, cancelled or not.
        """
        pool = self._pool
        again = producing.may_resend(batch) if resend is None else resend

        async def attempt(until: float) -> Produced:
            topic_id = (await pool.find(pool.view.topic(tp.topic), until)).topic_id
            request, highest = producing.request(
                tp, [batch], acks, topic_id, self._request_timeout_ms, receipts=receipt
            )
            node = await pool.find(pool.view.node_of(tp), until)
            if acks == 0:
                connection = await pool.to(node, ConnectionClass.WRITES, until)
                await connection.send_only(PRODUCE, request, until, highest)
                return NOT_ASKED
            try:
                response = await pool.call(node, ConnectionClass.WRITES, PRODUCE, request, until, highest)
                return producing.parsed(response, tp)
            except (NetworkError, KafkaError) as error:
                outcomes.check_known(error, resend=again)
                raise

        return await self._retries.retry(f"Produce to {tp}", tp, attempt, timeout_s)
