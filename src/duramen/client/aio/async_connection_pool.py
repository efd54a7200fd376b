"""Connections of an asyncio client to the nodes of a cluster, by address and class, and the way to each node.

A class that may be shared has one connection to each address. A request that waits has one for itself while it waits;
idle ones are used again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from duramen.client.aio.async_connection import AsyncConnection, ConnectionLimits
from duramen.client.protocol.addresses import Address, address_text, addresses_text, parse_bootstrap
from duramen.client.protocol.cluster_view import ClusterView, Lookup, Question, Reply
from duramen.client.protocol.connect_backoff import ConnectBackoff
from duramen.client.protocol.connection_classes import ConnectionClass
from duramen.client.protocol.first_contact import CONNECT_S, FirstContact
from duramen.client.protocol.metadata import ClusterNode
from duramen.errors import ClosedError, NetworkError, NoConnectionError

_T = TypeVar("_T")


class _Waiters:
    """The connections to one address whose requests wait."""

    __slots__ = ("idle", "left", "open", "queue")

    def __init__(self) -> None:
        self.open = 0
        """All of them, those that are being made included."""
        self.idle: list[AsyncConnection] = []
        self.left: dict[AsyncConnection, None] = {}
        """Their callers are gone and their answers have not come; oldest first."""
        self.queue: deque[asyncio.Future[AsyncConnection | None]] = deque()
        """Callers for which there is no connection and no place for one; then there is none that is idle or left."""

    def next(self) -> asyncio.Future[AsyncConnection | None] | None:
        """Take the first caller out of the queue that was not cancelled."""
        while self.queue:
            turn = self.queue.popleft()
            if not turn.done():
                return turn
        return None


class AsyncConnectionPool:
    """The open connections of one client, and its view of the cluster. Moments are those of the loop's clock."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        client_id: str,
        limits: ConnectionLimits,
        waiting_connections: int,
        first_contact_s: float | None = None,
    ) -> None:
        """waiting_connections: most to one address for requests that wait. first_contact_s: as ConnectionPool's."""
        addresses = parse_bootstrap(bootstrap)
        self.view = ClusterView(addresses)
        self.closed = False
        self._client_id = client_id
        self._limits = limits
        self._waiting_connections = waiting_connections
        self._first_contact = FirstContact(addresses, first_contact_s)
        self._shared: dict[tuple[Address, ConnectionClass], AsyncConnection] = {}
        self._waiters: dict[Address, _Waiters] = {}
        self._all: set[AsyncConnection] = set()
        self._backoffs: dict[Address, ConnectBackoff] = {}
        self._failed_at: dict[Address, float] = {}
        """When a connect failed or a connection ended; where any node will do, such an address is tried last."""
        self._tasks: dict[Any, asyncio.Task[Any]] = {}
        """What is being done for several callers: connects by address and class, questions."""

    async def close(self) -> None:
        """Hang up everywhere."""
        self.closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for connection in list(self._all):
            connection.close("this client was closed")
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)  # the transports end with this turn of the loop

    async def find(self, lookup: Lookup[_T], until: float) -> _T:
        """What the lookup finds; its questions go to any node. KafkaError when the cluster does not know."""
        try:
            question = next(lookup)
            while True:
                question = lookup.send(await self._joined(question, until, self._ask, question))
        except StopIteration as done:
            found: _T = done.value
            return found

    async def call(
        self,
        node: ClusterNode | None,
        kind: ConnectionClass,
        key: int,
        request: Any,
        until: float,
        highest: int | None = None,
        wait_s: float = 0.0,
    ) -> Any:
        """The response of a node (None: any) on a connection of this class. Errors as AsyncConnection.call."""
        if kind is not ConnectionClass.WAITS:
            connection = await self.to(node, kind, until)
            return await connection.call(key, request, until, highest)
        address = (await self.to(None, ConnectionClass.CALLS, until)).address if node is None else _address(node)
        connection = await self._waiting(address, node, until)
        try:
            return await connection.call(key, request, until, highest, wait_s)
        finally:
            self._release(connection)

    async def to(self, node: ClusterNode | None, kind: ConnectionClass, until: float) -> AsyncConnection:
        """A connection of this class that may be shared, to a node or to any."""
        if node is None:
            return await self._any(kind, until)
        return self._shared.get((_address(node), kind)) or await self._reach_node(node, kind, until)

    async def _reach_node(self, node: ClusterNode, kind: ConnectionClass, until: float) -> AsyncConnection:
        try:
            return await self._reach(_address(node), kind, until)
        except NetworkError as error:
            raise self.view.unreachable(node, error) from error

    # ---- for several callers at once ---------------------------------------------------------------------------

    async def _joined(
        self, what: Any, until: float, begin: Callable[..., Coroutine[Any, Any, _T]], *arguments: Any
    ) -> _T:
        """The result of what is being done already, or of `begin(*arguments, until)`.

        A caller that is cancelled, or late, leaves it going for the others.
        """
        task = self._tasks.get(what)
        if task is None:
            if self.closed:
                raise ClosedError("this client was closed")
            task = self._tasks[what] = asyncio.get_running_loop().create_task(begin(*arguments, until))
            task.add_done_callback(partial(self._done, what))
        await asyncio.wait((task,), timeout=max(0.0, until - asyncio.get_running_loop().time()))
        if not task.done():
            raise NoConnectionError(f"no answer in time from {addresses_text(self.view.addresses())}")
        if task.cancelled():
            raise ClosedError("this client was closed")
        if (error := task.exception()) is not None:
            raise error.with_traceback(None)  # the callers share it
        found: _T = task.result()
        return found

    def _done(self, what: Any, task: asyncio.Task[Any]) -> None:
        del self._tasks[what]
        if not task.cancelled():
            task.exception()  # every caller may be gone

    # ---- any node ----------------------------------------------------------------------------------------------

    async def _ask(self, question: Question, until: float) -> Reply:
        connection = await self._any(ConnectionClass.CALLS, until)
        if len(self.view.addresses()) > 1:  # a node that hangs is not the only one that can be asked
            until = min(until, asyncio.get_running_loop().time() + CONNECT_S)
        response = await connection.call(question.key, question.request(connection.versions), until)
        return Reply(response, connection.versions)

    async def _any(self, kind: ConnectionClass, until: float) -> AsyncConnection:
        """The open connection with the fewest requests, else one to a node that is known or a bootstrap address."""
        there = [connection for (_, its_kind), connection in self._shared.items() if its_kind is kind]
        if there:
            return min(there, key=lambda connection: connection.in_flight)
        loop = asyncio.get_running_loop()
        addresses = sorted(self.view.addresses(), key=lambda address: self._failed_at.get(address, 0.0))
        contact = self._first_contact
        contact.begin(loop.time())
        errors: list[NetworkError] = []
        for number, address in enumerate(addresses):
            try:
                return await self._reach(address, kind, contact.patience(loop.time(), until, len(addresses) - number))
            except NetworkError as error:
                errors.append(error)
        raise contact.failure(errors, loop.time()) from (errors[0] if errors else None)

    # ---- shared connections ------------------------------------------------------------------------------------

    async def _reach(self, address: Address, kind: ConnectionClass, until: float) -> AsyncConnection:
        connection = self._shared.get((address, kind))
        if connection is None:
            return await self._joined((address, kind), until, self._open_shared, address, kind)
        return connection

    async def _open_shared(self, address: Address, kind: ConnectionClass, until: float) -> AsyncConnection:
        connection = await self._open(address, kind, until)
        self._shared[address, kind] = connection
        return connection

    async def _open(self, address: Address, kind: ConnectionClass, until: float) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        now = loop.time()
        backoff = self._backoffs.get(address)
        if backoff is not None and backoff.holds(now):
            raise NoConnectionError(backoff.reason)
        if self.closed:
            raise ClosedError("this client was closed")
        client_id = self._client_id
        try:
            connection = await AsyncConnection.open(
                address,
                client_id,
                self._limits,
                min(until, now + CONNECT_S),
                on_quiet=self._quiet,
                on_closed=partial(self._closed, kind),
            )
        except NetworkError as error:
            if backoff is None:
                backoff = self._backoffs[address] = ConnectBackoff()
            self._failed_at[address] = loop.time()
            backoff.failed(str(error), loop.time())
            raise
        self._backoffs.pop(address, None)
        self._first_contact.reached()
        if self.closed:
            connection.close("this client was closed")
            raise ClosedError("this client was closed")
        self._all.add(connection)
        return connection

    def _closed(self, kind: ConnectionClass, connection: AsyncConnection) -> None:
        if connection not in self._all:
            return
        self._all.discard(connection)
        self._failed_at[connection.address] = asyncio.get_running_loop().time()
        if kind is ConnectionClass.WAITS:
            waiters = self._waiters[connection.address]
            if connection in waiters.idle:
                waiters.idle.remove(connection)
            waiters.left.pop(connection, None)
            self._one_less(waiters)
        elif self._shared.get((connection.address, kind)) is connection:
            del self._shared[connection.address, kind]

    # ---- connections for requests that wait --------------------------------------------------------------------

    async def _waiting(self, address: Address, node: ClusterNode | None, until: float) -> AsyncConnection:
        """A connection that no one else uses, to be given back by `_release`."""
        waiters = self._waiters.get(address)
        if waiters is None:
            waiters = self._waiters[address] = _Waiters()
        if not waiters.idle and waiters.open >= self._waiting_connections and waiters.left:
            next(iter(waiters.left)).close("its place is needed")
        if waiters.idle:
            return waiters.idle.pop()
        if waiters.open < self._waiting_connections:
            waiters.open += 1
        elif (connection := await self._turn(address, waiters, until)) is not None:
            return connection
        try:
            return await self._open(address, ConnectionClass.WAITS, until)
        except BaseException as error:
            self._one_less(waiters)
            if node is not None and isinstance(error, NetworkError):
                raise self.view.unreachable(node, error) from error
            raise

    async def _turn(self, address: Address, waiters: _Waiters, until: float) -> AsyncConnection | None:
        """Wait for a connection that another caller gives back, or None for the place of one that was closed."""
        if self.closed:
            raise ClosedError("this client was closed")
        turn: asyncio.Future[AsyncConnection | None] = asyncio.get_running_loop().create_future()
        waiters.queue.append(turn)
        try:
            async with asyncio.timeout_at(until):
                return await self._taken(turn, waiters)
        except TimeoutError:
            raise NoConnectionError(f"{address_text(*address)}: too many requests wait there") from None

    async def _taken(self, turn: asyncio.Future[AsyncConnection | None], waiters: _Waiters) -> AsyncConnection | None:
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in waiters.queue:
                    waiters.queue.remove(turn)
            elif (connection := turn.result()) is None:
                self._one_less(waiters)
            else:
                self._release(connection)
            raise

    def _release(self, connection: AsyncConnection) -> None:
        """Its caller is done with it, or gone."""
        if connection.closed:
            return
        waiters = self._waiters[connection.address]
        if not connection.in_flight:
            self._free(connection, waiters)
        elif waiters.queue:
            connection.close("its place is needed")
        else:
            waiters.left[connection] = None

    def _quiet(self, connection: AsyncConnection) -> None:
        """The last answer that was due has come: there may be no caller any more."""
        waiters = self._waiters.get(connection.address)
        if waiters is not None and connection in waiters.left:
            del waiters.left[connection]
            self._free(connection, waiters)

    def _free(self, connection: AsyncConnection, waiters: _Waiters) -> None:
        if (turn := waiters.next()) is not None:
            turn.set_result(connection)
        else:
            waiters.idle.append(connection)

    @staticmethod
    def _one_less(waiters: _Waiters) -> None:
        """A connection is gone: its place is the next caller's."""
        if (turn := waiters.next()) is not None:
            turn.set_result(None)
        else:
            waiters.open -= 1


def _address(node: ClusterNode) -> Address:
    return node.host, node.port
