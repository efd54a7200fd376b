"""The door: accepts connections, turns frames into requests, and hands each to its handler.

The only place (with the reply path in `api/request.py`) where any exception is caught: whatever one client provokes
ends at worst that client's connection.
"""

from __future__ import annotations

from functools import partial
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING

from duramen.config import ListenerAddress
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.ports import Listener, Transport
from duramen.server.api.authorizer import NOBODY, AllowAll, Resource
from duramen.server.api.request import Request
from duramen.server.api.sliced_work import Work
from duramen.server.dispatch import MAX_ELEMENTS, TABLE, Row
from duramen.server.handlers import api_versions, too_many_elements
from duramen.server.handlers.produce import ProduceRequest
from duramen.server.handlers.produce_fast_path import KnownProduces
from duramen.server.metrics.metrics import NO_API
from duramen.server.net.connection import ClientConnection, ReceiveContext
from duramen.server.net.receive_buffers import BufferPool
from duramen.wire.errors import TooManyElementsError
from duramen.wire.frame import API_VERSIONS
from duramen.wire.messages import API
from duramen.wire.runtime import HEADER_TAGS, skip_tags

if TYPE_CHECKING:
    from duramen.server.broker import Broker

PRINCIPAL = "User:ANONYMOUS"
PRODUCE = 0
HEADER = Struct(">hhih")
"""Key, version, correlation id and the length of the client id."""
HEADER_BYTES = HEADER.size
REFUSED_PRODUCE_VERSIONS = (0, 1, 2)
SMALL_BYTES = 32 * 1024
"""Requests up to here are decoded at once: milliseconds when they are full of the smallest elements. Not below
KEPT_BY_REFERENCE_BYTES."""

MAX_ELEMENTS_AT_ONCE = 2_000
"""Of a Produce request above SMALL_BYTES, whose bytes are usually those of records: two milliseconds."""

BUFFER_CAP_BYTES = 512 * 1024 * 1024
IDLE_CHECK_SECONDS = 5.0
SPARE_DESCRIPTORS = 32
"""For the journal, listeners, pipes and the metrics' connections, at least; an eighth of what there is for segments
beyond their bound."""

UNFINISHED_SECONDS = 30
"""How long a frame may take to arrive while others wait for its buffer."""

UNREAD_SECONDS = 10
"""How long replies may be left unread while others wait for their memory."""

UNREAD_CHECK_SECONDS = 1.0


class Door:
    """Listeners and connections of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clock = broker.clock
        config = broker.config
        self.pool = BufferPool(BUFFER_CAP_BYTES)
        self.receiver = ReceiveContext(
            self.pool,
            config.integer("socket.request.max.bytes"),
            self._on_frame,
            self._on_closed,
            broker.clock.monotonic,
            broker.clock.call_soon,
            broker.clock.call_last,
            broker.clock.call_later,
        )
        self.receiver.unread.on_short = self._memory_is_short
        self.known_produces = KnownProduces()
        self.listeners: list[tuple[ListenerAddress, Listener]] = []
        self.connections: dict[ClientConnection, None] = {}
        self._by_host: dict[str, int] = {}
        self._early: list[tuple[str, Transport]] = []
        self._room = 0
        """Connections beside which the node can still open its files."""
        self._open = False
        self._closing = False
        self._shedding = False
        """Whether `_shed_unread` will be called."""

    # ---- listening -------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Take every listener's address; who connects now waits until `open`. OSError when one is taken.

        The log directories are open. Who takes the last descriptor takes them down: a file that cannot be opened cannot
        be synced.
        """
        most = self._broker.world.disk.descriptor_limit()
        files = max(self._broker.store.directories[0].hot.files.limit, 0)
        self._room = max(most // 8, most - min(files, most // 2) - most // 8 - SPARE_DESCRIPTORS)
        for address in self._broker.config.listeners:
            listener = self._broker.world.network.listen(
                address.host or "0.0.0.0",
                address.port,
                lambda transport, name=address.name: self._accept(name, transport),  # type: ignore[misc]
            )
            self.listeners.append((address, listener))

    def open(self) -> None:
        """Serve, those who came early first."""
        self._open = True
        early, self._early = self._early, []
        for name, transport in early:
            self._accept(name, transport)
        self._clock.call_later(IDLE_CHECK_SECONDS, self._check_idle)

    def _accept(self, listener: str, transport: Transport) -> None:
        config = self._broker.config
        host = transport.peer.rpartition(":")[0]
        metrics = self._broker.metrics
        if (
            self._closing
            or len(self.connections) + len(self._early) >= self._room
            or len(self.connections) >= config.integer("max.connections")
            or self._by_host.get(host, 0) >= config.integer("max.connections.per.ip")
        ):
            metrics.connections_refused += 1
            transport.close()
            return
        if not self._open:
            self._early.append((listener, transport))
            return
        metrics.connections_opened += 1
        self._by_host[host] = self._by_host.get(host, 0) + 1
        self.connections[ClientConnection(self.receiver, transport, listener, PRINCIPAL)] = None

    def _on_closed(self, connection: ClientConnection, reason: str) -> None:
        if self.connections.pop(connection, 0) is None:
            host = connection.transport.peer.rpartition(":")[0]
            left = self._by_host.get(host, 1) - 1
            if left:
                self._by_host[host] = left
            else:
                self._by_host.pop(host, None)
            self._broker.metrics.connections_closed += 1
        self._broker.cold_reads.forget(connection)
        if reason != "closed by the peer":
            self._broker.report("connection-closed", peer=connection.transport.peer, reason=reason)
        self.receiver.feed_starved()

    def _check_idle(self) -> None:
        if self._closing:
            return
        limit = self._broker.config.integer("connections.max.idle.ms")
        if limit >= 0:
            oldest = self._clock.monotonic() - limit / 1000
            for connection in list(self.connections):
                if connection.last_active < oldest and (connection.muted or not connection.pending):
                    connection.close(f"idle for {limit} ms (connections.max.idle.ms)")
        self.pool.reclaim()
        if self.pool.exhausted:
            self._shed()
        self.receiver.feed_starved()
        self._clock.call_later(IDLE_CHECK_SECONDS, self._check_idle)

    def _shed(self) -> None:
        """No buffer memory is left: end those who began a frame long ago and keep everybody else from reading."""
        oldest = self._clock.monotonic() - UNFINISHED_SECONDS
        begun = [(c.frame_started, c) for c in self.connections if c.frame_started is not None]
        for started, connection in sorted(begun, key=lambda entry: entry[0]):
            if started > oldest or not self.pool.exhausted:
                return
            connection.close(f"a frame unfinished after {UNFINISHED_SECONDS} s, while buffer memory is short")

    def _memory_is_short(self) -> None:
        if not self._shedding:
            self._shedding = True
            self._clock.call_later(UNREAD_CHECK_SECONDS, self._shed_unread)

    def _shed_unread(self) -> None:
        """Memory is short: end those who have left replies unread for long since."""
        self._shedding = False
        short_since = self.receiver.unread.short_since
        if short_since is None or self._closing:
            return
        oldest = self._clock.monotonic() - UNREAD_SECONDS
        for connection in list(self.connections):
            since = connection.outbox.unread_since
            if since is not None and max(since, short_since) <= oldest:
                connection.close(f"replies unread for {UNREAD_SECONDS} s, while memory for replies is short")
        self._memory_is_short()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._closing = True
        for _, listener in self.listeners:
            listener.close()
        for _, transport in self._early:
            transport.close()
        for connection in list(self.connections):
            connection.close("the server stops")

    # ---- requests --------------------------------------------------------------------------------------------

    def _on_frame(self, connection: ClientConnection, view: memoryview) -> None:
        broker = self._broker
        key = -1
        try:
            if len(view) < HEADER_BYTES:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"a request of {len(view)} bytes has no header")
            key, version, correlation_id, length = HEADER.unpack_from(view)
            if key == PRODUCE and self.known_produces.take(broker, connection, view, version, correlation_id, length):
                return
            row = TABLE.get(key)
            if row is None or not row.lowest <= version <= row.highest:
                self._refuse_version(connection, view, row, key, version, correlation_id)
                return
            position = HEADER_BYTES + length if length > 0 else HEADER_BYTES
            client = view[HEADER_BYTES:position].tobytes()
            if client != connection.client_bytes:
                connection.know_client(client, length)
            if version >= row.flexible_from:
                position = position + 1 if view[position] == 0 else skip_tags(view, position, HEADER_TAGS)
            is_small = len(view) <= SMALL_BYTES
            make = row.request_class if is_small else row.large_class
            request = make(broker, connection, row, version, correlation_id)
            connection.expect(request)
            # Bytes behind the message are ignored, as Kafka does: librdkafka sends some (Metadata v11 and up).
            if is_small:
                request.body, _ = row.request.decode_from(view, version, position)
            elif not self._decoded_at_once(request, view, position):
                broker.large_work.add(connection, self._take_large(request, view, position))
                return
            if type(broker.authorizer) is not AllowAll:
                request.denied = self._denied(request, row)
            row.handle(request)
            if type(request) is ProduceRequest:
                self.known_produces.learn(view, request)
        except (DuramenError, IndexError) as error:
            broker.metrics.error(key if key in TABLE else NO_API)
            connection.close(str(error))
        except Exception as error:  # noqa: BLE001 the connection loop: one client's request must not end the server
            broker.metrics.error(key if key in TABLE else NO_API)
            broker.report_bug("request-failed", error, api=key, peer=connection.transport.peer)
            connection.close(f"internal error: {error!r}")

    def _decoded_at_once(self, request: Request, view: memoryview, position: int) -> bool:
        """Whether a large request was decoded here: a Produce of few batches."""
        if request.row.api.key != PRODUCE:
            return False
        try:
            request.body, _ = request.row.request.decode_bounded(view, request.version, position, MAX_ELEMENTS_AT_ONCE)
        except TooManyElementsError:
            return False
        return True

    def _take_large(self, request: Request, view: memoryview, position: int) -> Work:
        """Decode beside the loop and handle the request; what its handler does in steps comes next."""
        row = request.row
        decode = row.request.bounded_decoder(request.version)
        handle = row.handle_large
        try:
            try:
                request.body, _ = yield partial(decode, view, position, row.most)
            except TooManyElementsError:
                if row.api.key not in too_many_elements.ANSWERED:
                    raise
                request.body, _ = yield partial(decode, view, position, MAX_ELEMENTS)
                handle = too_many_elements.refuse
            del view
            if type(self._broker.authorizer) is not AllowAll:
                request.denied = self._denied(request, row)
            handle(request)
        except Exception as error:  # noqa: BLE001 as above
            request.fail(error)

    def _denied(self, request: Request, row: Row) -> frozenset[str]:
        if row.resource is Resource.NONE:
            return NOBODY
        return self._broker.authorizer.denied(
            request.connection.principal,
            request.connection.transport.peer,
            row.operation,
            row.resource,
            row.names(request.body),
        )

    def _refuse_version(
        self,
        connection: ClientConnection,
        view: memoryview,
        row: Row | None,
        key: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Hang up, as Kafka does for all but ApiVersions (KIP-511); Produce 0-2 is answered here (decision 0007)."""
        if key == PRODUCE and version in REFUSED_PRODUCE_VERSIONS:
            self._refuse_old_produce(connection, view, version, correlation_id)
        elif row is not None and key == API_VERSIONS:
            request = Request(self._broker, connection, row, 0, correlation_id)
            connection.expect(request)
            request.reply(api_versions.response(request, ErrorCode.UNSUPPORTED_VERSION))
        else:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"API key {key} version {version} is not served")

    def _refuse_old_produce(
        self, connection: ClientConnection, view: memoryview, version: int, correlation_id: int
    ) -> None:
        """Produce 0-2 is advertised (KAFKA-18659) and answered UNSUPPORTED_VERSION, in its own layout.

        Its body is v3's without the leading transactional id, so v3's decoder reads it behind a null one.
        """
        (length,) = unpack_from(">h", view, 8)
        body = b"\xff\xff" + bytes(view[10 + max(length, 0) :])
        request = Request(self._broker, connection, TABLE[PRODUCE], version, correlation_id)
        connection.expect(request)
        decoded, _ = API[PRODUCE].request.decode_bounded(body, 3, 0, MAX_ELEMENTS_AT_ONCE)
        if decoded.acks == 0:
            request.drop_connection(f"Produce v{version} with acks=0 cannot be told that it is not supported")
            return
        out = [pack(">i", len(decoded.topic_data))]
        for topic in decoded.topic_data:
            name = topic.name.encode()
            out.append(pack(f">h{len(name)}si", len(name), name, len(topic.partition_data)))
            for data in topic.partition_data:
                out.append(pack(">ihq", data.index, int(ErrorCode.UNSUPPORTED_VERSION), -1))
                if version >= 2:
                    out.append(pack(">q", -1))
        if version >= 1:
            out.append(pack(">i", 0))
        payload = b"".join(out)
        request.complete([pack(">ii", 4 + len(payload), correlation_id), payload])
