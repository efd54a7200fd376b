"""Listeners and connections of one node: accepting, refusing at limits, ending those that are idle or too slow.

Connections of the controller's listeners (*peers*: other nodes, and tools) have memory and descriptors of their own,
and are refused at no limit of clients: whatever these do, the cluster goes on. So it does for *replicas*: who came
through a broker's listener, counts as a client until he has shown that he is another broker, who follows this one.
Where clients are at a limit, and there are other brokers, a few may come in *on trial*: whose first request is no
replica's Fetch is refused then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Protocol

from duramen.config import ListenerAddress
from duramen.ports import Listener, Transport, World
from duramen.server.api.services import EventReport, LiveSettings
from duramen.server.net.bound_sockets import refusal
from duramen.server.net.connection import ClientConnection, ReceiveContext
from duramen.server.net.listener_type import ListenerType
from duramen.server.net.memory_limit import CONTROLLER_SHARE, REPLY_BYTES, REQUEST_BYTES, MemoryShares
from duramen.server.net.receive_buffers import BufferPool

PRINCIPAL = "User:ANONYMOUS"
IDLE_CHECK_SECONDS = 5.0
SPARE_DESCRIPTORS = 32
"""For the journal, listeners, pipes and the metrics' connections, at least; an eighth of what there is for segments
beyond their bound."""

MOST_PEERS = 512
"""Connections of the controller's listeners, at most a quarter of all there is room for: they bring no file with them,
but a stranger must not have them take the last descriptor either."""

MOST_ON_TRIAL = 16
"""Connections beyond a limit that have not shown yet whose they are: another one ends the oldest of them."""

TRIAL_SECONDS = 1.0
"""How long they have for it, at least. A broker sends its Fetch as soon as it is connected."""

FETCH = Struct(">hh")
"""Key and version with which a request begins; those of a replica's Fetch."""

FETCH_KEY, FIRST_OF_REPLICAS = 1, 17

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
        self._clock = world.clock
        self._settings = settings
        self._metrics = metrics
        self._report = report
        self.on_gone: Callable[[ClientConnection], None] = lambda connection: None
        self.receiver = self._context(ListenerType.BROKER, REQUEST_BYTES, REPLY_BYTES)
        self.peer_receiver = self._context(
            ListenerType.CONTROLLER, REQUEST_BYTES // CONTROLLER_SHARE, REPLY_BYTES // CONTROLLER_SHARE
        )
        self.replica_receiver = self._context(
            ListenerType.BROKER, REQUEST_BYTES // CONTROLLER_SHARE, REPLY_BYTES // CONTROLLER_SHARE
        )
        self.receiver.on_peer = self.replica_receiver.on_peer = self._follows
        self.listeners: list[tuple[ListenerAddress, Listener]] = []
        """Those for clients."""
        self.controller_listeners: list[tuple[ListenerAddress, Listener]] = []
        self.connections: dict[ClientConnection, None] = {}
        """Those of clients."""
        self.peers: dict[ClientConnection, None] = {}
        self.replicas: dict[ClientConnection, None] = {}
        """Those of other brokers that follow this one."""
        self.on_trial: dict[ClientConnection, bool] = {}
        """Those of whom nobody knows whether they are; whether their first request has come."""
        self.has_followers: Callable[[], bool] = lambda: False
        """Whether there are other brokers, which may follow this one."""
        self._by_host: dict[str, int] = {}
        """Of clients."""
        self._early: dict[ListenerType, list[tuple[str, Transport]]] = {each: [] for each in ListenerType}
        self._room = dict.fromkeys(ListenerType, 0)
        """Connections beside which the node can still open its files."""
        self._open = ListenerType(0)
        self._closing = False
        self._checks_idle = False
        self._shedding: set[ReceiveContext] = set()
        """Those whose `_shed_unread` will be called."""

    def _context(self, listener_type: ListenerType, requests: int, replies: int) -> ReceiveContext:
        clock = self._clock
        receiver = ReceiveContext(
            listener_type,
            BufferPool(requests),
            self._settings.config.integer("socket.request.max.bytes"),
            lambda connection, view: None,  # see `open`
            self._on_closed,
            clock.monotonic,
            clock.call_soon,
            clock.call_last,
            clock.call_later,
        )
        receiver.unread.bound(replies)
        receiver.unread.on_short = partial(self._memory_is_short, receiver)
        return receiver

    @property
    def pool(self) -> BufferPool:
        """Buffers of clients' requests."""
        return self.receiver.pool

    @property
    def receivers(self) -> tuple[ReceiveContext, ReceiveContext, ReceiveContext]:
        """Of clients, of peers and of replicas."""
        return self.receiver, self.peer_receiver, self.replica_receiver

    @property
    def everybody(self) -> list[ClientConnection]:
        """Clients, peers and replicas."""
        return [*self.connections, *self.peers, *self.replicas, *self.on_trial]

    def _of(self, receiver: ReceiveContext) -> dict[ClientConnection, None]:
        if receiver is self.receiver:
            return self.connections
        return self.peers if receiver is self.peer_receiver else self.replicas

    def bound_memory(self, shares: MemoryShares) -> None:
        """Keep requests and unread replies below what the process may use. Before `bind`."""
        for receiver in self.receivers:
            share = 1 if receiver is self.receiver else CONTROLLER_SHARE
            receiver.pool.bound(shares.requests // share)
            receiver.max_frame_bytes = min(receiver.max_frame_bytes, shares.requests // share)
            receiver.unread.bound(shares.replies // share)

    # ---- listening -------------------------------------------------------------------------------------------

    def bind(self, most_files: int) -> None:
        """Take every listener's address; who connects now waits until `open`. ConfigError when one is taken.

        most_files: how many files of segments the node may have open. The log directories are open. What takes the
        last descriptor takes them down: a file that cannot be opened cannot be synced.
        """
        most = self._world.disk.descriptor_limit()
        room = max(most // 8, most - min(most_files, most // 2) - most // 8 - SPARE_DESCRIPTORS)
        config = self._settings.config
        peers = min(MOST_PEERS, room // 4) if config.controller_listeners else 0
        self._room = {ListenerType.BROKER: room - peers, ListenerType.CONTROLLER: peers}
        for kind, addresses, listeners in (
            (ListenerType.BROKER, config.listeners, self.listeners),
            (ListenerType.CONTROLLER, config.controller_listeners, self.controller_listeners),
        ):
            for address in addresses:
                try:
                    listener = self._world.network.listen(
                        address.host, address.port, partial(self._accept, kind, address.name)
                    )
                except OSError as error:
                    free = f"{address.name}://127.0.0.1:PORT"
                    every = (*config.listeners, *config.controller_listeners)
                    example = ",".join(free if each == address else str(each) for each in every)
                    raise refusal("listeners", str(address), example, error) from error
                listeners.append((address, listener))

    def open(self, kind: ListenerType, on_frame: Callable[[ClientConnection, memoryview], None]) -> None:
        """Serve the listeners of this type, those who came early first: each frame goes to `on_frame`."""
        if kind is ListenerType.BROKER:
            self.receiver.on_frame = on_frame
            self.replica_receiver.on_frame = partial(self._on_replica_frame, on_frame)
        else:
            self.peer_receiver.on_frame = on_frame
        self._open |= kind
        early, self._early[kind] = self._early[kind], []
        for name, transport in early:
            self._accept(kind, name, transport)
        if not self._checks_idle:
            self._checks_idle = True
            self._clock.call_later(IDLE_CHECK_SECONDS, self._check_idle)

    def _accept(self, kind: ListenerType, listener: str, transport: Transport) -> None:
        host = transport.peer.rpartition(":")[0]
        is_full = self._is_full(kind, host)
        on_trial = is_full and self._takes_on_trial(kind)
        if self._closing or (is_full and not on_trial):
            self._metrics.connections_refused += 1
            transport.close()
            return
        if kind not in self._open:
            self._early[kind].append((listener, transport))
            return
        self._metrics.connections_opened += 1
        if kind is ListenerType.CONTROLLER:
            self.peers[ClientConnection(self.peer_receiver, transport, listener, PRINCIPAL)] = None
            return
        if on_trial:
            self.on_trial[ClientConnection(self.replica_receiver, transport, listener, PRINCIPAL)] = False
            if len(self.on_trial) > MOST_ON_TRIAL:
                self._refuse(next(iter(self.on_trial)))
            return
        self._by_host[host] = self._by_host.get(host, 0) + 1
        self.connections[ClientConnection(self.receiver, transport, listener, PRINCIPAL)] = None

    def _is_full(self, kind: ListenerType, host: str) -> bool:
        """Whether a client, or a peer, is one too many."""
        if kind is ListenerType.CONTROLLER:
            return len(self.peers) + len(self._early[kind]) >= self._room[kind]
        config = self._settings.config
        reserved = len(self.replicas) + len(self.on_trial)
        if self.has_followers():
            reserved = max(reserved, min(MOST_ON_TRIAL, self._room[kind] // 4))
        return (
            len(self.connections) + reserved + len(self._early[kind]) >= self._room[kind]
            or len(self.connections) >= config.integer("max.connections")
            or self._by_host.get(host, 0) >= config.integer("max.connections.per.ip")
        )

    def _takes_on_trial(self, kind: ListenerType) -> bool:
        """Whether it may be a replica's, and there is room for that."""
        if kind is not ListenerType.BROKER or kind not in self._open or not self.has_followers():
            return False
        return len(self.connections) + len(self.replicas) + len(self.on_trial) < self._room[kind]

    def _on_replica_frame(
        self, on_frame: Callable[[ClientConnection, memoryview], None], connection: ClientConnection, view: memoryview
    ) -> None:
        if connection not in self.replicas:
            key, version = FETCH.unpack_from(view) if len(view) >= FETCH.size else (-1, -1)
            if self.on_trial.get(connection, True) or key != FETCH_KEY or version < FIRST_OF_REPLICAS:
                self._refuse(connection)
                return
            self.on_trial[connection] = True
        on_frame(connection, view)

    def _refuse(self, connection: ClientConnection) -> None:
        """It has not shown that it is a replica's."""
        self._metrics.connections_refused += 1
        connection.close("too many connections (max.connections, max.connections.per.ip)")

    def _follows(self, connection: ClientConnection) -> None:
        """It is a replica's: no client any more."""
        if self._forget_client(connection):
            connection.move(self.replica_receiver)
        else:
            self.on_trial.pop(connection, None)
        self.replicas[connection] = None

    def _forget_client(self, connection: ClientConnection) -> bool:
        """It does not count among clients any more; whether it did."""
        if self.connections.pop(connection, 0) is not None:
            return False
        host = connection.transport.peer.rpartition(":")[0]
        left = self._by_host.get(host, 1) - 1
        if left:
            self._by_host[host] = left
        else:
            self._by_host.pop(host, None)
        return True

    def _on_closed(self, connection: ClientConnection, reason: str) -> None:
        others = (self.peers, self.replicas, self.on_trial)
        if self._forget_client(connection) or any(known.pop(connection, 0) != 0 for known in others):
            self._metrics.connections_closed += 1
        self.on_gone(connection)
        if reason != "closed by the peer":
            self._report("connection-closed", peer=connection.transport.peer, reason=reason)
        connection.receiver.feed_starved()

    def _check_idle(self) -> None:
        if self._closing:
            return
        limit = self._settings.config.integer("connections.max.idle.ms")
        if limit >= 0:
            oldest = self._clock.monotonic() - limit / 1000
            for connection in self.everybody:
                if connection.last_active < oldest and (connection.muted or not connection.pending):
                    connection.close(f"idle for {limit} ms (connections.max.idle.ms)")
        for connection in list(self.on_trial):
            if connection.last_active < self._clock.monotonic() - TRIAL_SECONDS:
                self._refuse(connection)
        for receiver in self.receivers:
            receiver.pool.reclaim()
            if receiver.is_short:
                self._shed(receiver)
            receiver.feed_starved()
        self._clock.call_later(IDLE_CHECK_SECONDS, self._check_idle)

    def _shed(self, receiver: ReceiveContext) -> None:
        """No buffer memory is left: end those who began a frame long ago and keep everybody else from reading."""
        oldest = self._clock.monotonic() - UNFINISHED_SECONDS
        begun = [(c.frame_started, c) for c in self._of(receiver) if c.frame_started is not None]
        for started, connection in sorted(begun, key=lambda entry: entry[0]):
            if started > oldest or not receiver.is_short:
                return
            connection.close(f"a frame unfinished after {UNFINISHED_SECONDS} s, while buffer memory is short")

    def _memory_is_short(self, receiver: ReceiveContext) -> None:
        if receiver not in self._shedding:
            self._shedding.add(receiver)
            self._clock.call_later(UNREAD_CHECK_SECONDS, partial(self._shed_unread, receiver))

    def _shed_unread(self, receiver: ReceiveContext) -> None:
        """Memory is short: end those who have left replies unread for long since."""
        self._shedding.discard(receiver)
        short_since = receiver.unread.short_since
        if short_since is None or self._closing:
            return
        oldest = self._clock.monotonic() - UNREAD_SECONDS
        for connection in list(self._of(receiver)):
            since = connection.outbox.unread_since
            if since is not None and max(since, short_since) <= oldest:
                connection.close(f"replies unread for {UNREAD_SECONDS} s, while memory for replies is short")
        self._memory_is_short(receiver)

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._closing = True
        for _, listener in (*self.listeners, *self.controller_listeners):
            listener.close()
        for early in self._early.values():
            for _, transport in early:
                transport.close()
        for connection in self.everybody:
            connection.close("the server stops")
