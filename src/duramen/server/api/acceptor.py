"""Listeners and connections of one broker: accepting, refusing at limits, ending those that are idle or too slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from duramen.config import ListenerAddress
from duramen.ports import Listener, Transport, World
from duramen.server.api.services import EventReport, LiveSettings
from duramen.server.net.bound_sockets import refusal
from duramen.server.net.connection import ClientConnection, ReceiveContext
from duramen.server.net.memory_limit import REQUEST_BYTES, MemoryShares
from duramen.server.net.receive_buffers import BufferPool

PRINCIPAL = "User:ANONYMOUS"
IDLE_CHECK_SECONDS = 5.0
SPARE_DESCRIPTORS = 32
"""For the journal, listeners, pipes and the metrics' connections, at least; an eighth of what there is for segments
beyond their bound."""

UNFINISHED_SECONDS = 30
"""How long a frame may take to arrive while others wait for its buffer."""

UNREAD_SECONDS = 10
"""How long replies may be left unread while others wait for their memory."""

UNREAD_CHECK_SECONDS = 1.0


class ConnectionCounts(Protocol):
    """What is counted of connections."""

    connections_opened: int
    connections_closed: int
    connections_refused: int


class Acceptor:
    """See the module. on_gone: called with every connection that ended."""

    def __init__(self, world: World, settings: LiveSettings, metrics: ConnectionCounts, report: EventReport) -> None:
        self._world = world
        self._clock = clock = world.clock
        self._settings = settings
        self._metrics = metrics
        self._report = report
        self.on_gone: Callable[[ClientConnection], None] = lambda connection: None
        self.pool = BufferPool(REQUEST_BYTES)
        self.receiver = ReceiveContext(
            self.pool,
            settings.config.integer("socket.request.max.bytes"),
            lambda connection, view: None,  # see `open`
            self._on_closed,
            clock.monotonic,
            clock.call_soon,
            clock.call_last,
            clock.call_later,
        )
        self.receiver.unread.on_short = self._memory_is_short
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

    def bound_memory(self, shares: MemoryShares) -> None:
        """Keep requests and unread replies below what the process may use. Before `bind`."""
        self.pool.bound(shares.requests)
        self.receiver.max_frame_bytes = min(self.receiver.max_frame_bytes, shares.requests)
        self.receiver.unread.bound(shares.replies)

    # ---- listening -------------------------------------------------------------------------------------------

    def bind(self, most_files: int) -> None:
        """Take every listener's address; who connects now waits until `open`. ConfigError when one is taken.

        most_files: how many files of segments the node may have open. The log directories are open. What takes the
        last descriptor takes them down: a file that cannot be opened cannot be synced.
        """
        most = self._world.disk.descriptor_limit()
        self._room = max(most // 8, most - min(most_files, most // 2) - most // 8 - SPARE_DESCRIPTORS)
        for address in self._settings.config.listeners:
            try:
                listener = self._world.network.listen(
                    address.host,
                    address.port,
                    lambda transport, name=address.name: self._accept(name, transport),  # type: ignore[misc]
                )
            except OSError as error:
                raise refusal("listeners", str(address), f"{address.name}://127.0.0.1:PORT", error) from error
            self.listeners.append((address, listener))

    def open(self, on_frame: Callable[[ClientConnection, memoryview], None]) -> None:
        """Serve, those who came early first: each frame goes to `on_frame`."""
        self.receiver.on_frame = on_frame
        self._open = True
        early, self._early = self._early, []
        for name, transport in early:
            self._accept(name, transport)
        self._clock.call_later(IDLE_CHECK_SECONDS, self._check_idle)

    def _accept(self, listener: str, transport: Transport) -> None:
        config = self._settings.config
        host = transport.peer.rpartition(":")[0]
        metrics = self._metrics
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
            self._metrics.connections_closed += 1
        self.on_gone(connection)
        if reason != "closed by the peer":
            self._report("connection-closed", peer=connection.transport.peer, reason=reason)
        self.receiver.feed_starved()

    def _check_idle(self) -> None:
        if self._closing:
            return
        limit = self._settings.config.integer("connections.max.idle.ms")
        if limit >= 0:
            oldest = self._clock.monotonic() - limit / 1000
            for connection in list(self.connections):
                if connection.last_active < oldest and (connection.muted or not connection.pending):
                    connection.close(f"idle for {limit} ms (connections.max.idle.ms)")
        self.pool.reclaim()
        if self.receiver.is_short:
            self._shed()
        self.receiver.feed_starved()
        self._clock.call_later(IDLE_CHECK_SECONDS, self._check_idle)

    def _shed(self) -> None:
        """No buffer memory is left: end those who began a frame long ago and keep everybody else from reading."""
        oldest = self._clock.monotonic() - UNFINISHED_SECONDS
        begun = [(c.frame_started, c) for c in self.connections if c.frame_started is not None]
        for started, connection in sorted(begun, key=lambda entry: entry[0]):
            if started > oldest or not self.receiver.is_short:
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
