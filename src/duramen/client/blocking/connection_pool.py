"""Connections to the nodes of a cluster, by address, and the way to each node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from duramen.client.blocking.connection import BlockingConnection
from duramen.client.protocol.addresses import Address, parse_bootstrap
from duramen.client.protocol.cluster_view import ClusterView, Lookup, Reply
from duramen.client.protocol.first_contact import FirstContact
from duramen.client.protocol.metadata import ClusterNode
from duramen.client.protocol.routes import Route
from duramen.errors import NetworkError

_T = TypeVar("_T")


class ConnectionPool:
    """The open connections of one client, and its view of the cluster."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        client_id: str,
        max_frame_bytes: int,
        first_contact_s: float | None = None,
    ) -> None:
        """first_contact_s: for how long a first connection is tried for, where that has a limit of its own."""
        addresses = parse_bootstrap(bootstrap)
        self.view = ClusterView(addresses)
        self.closed = False
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._open: dict[Address, BlockingConnection] = {}
        self._first_contact = FirstContact(addresses, first_contact_s)

    def close(self) -> None:
        """Hang up everywhere."""
        self.closed = True
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def find(self, lookup: Lookup[_T], until: float) -> _T:
        """What the lookup finds; its questions go to any node. KafkaError when the cluster does not know."""
        try:
            question = next(lookup)
            while True:
                connection = self._any(until)
                response = connection.call(question.key, question.request(connection.versions), until)
                question = lookup.send(Reply(response, connection.versions))
        except StopIteration as done:
            found: _T = done.value
            return found

    def to(self, route: Route, until: float) -> BlockingConnection:
        """A connection to where the route leads now; KafkaError when the cluster does not know, NetworkError."""
        node = self.find(self.view.node_of(route), until)
        return self._any(until) if node is None else self._connect(node, until)

    def _connect(self, node: ClusterNode, until: float) -> BlockingConnection:
        try:
            return self._reach((node.host, node.port), until)
        except NetworkError as error:
            raise self.view.unreachable(node, error) from error

    def _reach(self, address: Address, until: float) -> BlockingConnection:
        connection = self._open.get(address)
        if connection is not None:
            if connection.is_usable():
                return connection
            connection.close()
        connection = self._open[address] = BlockingConnection(*address, self._client_id, until, self._max_frame_bytes)
        self._first_contact.reached()
        return connection

    def _any(self, until: float) -> BlockingConnection:
        """A connection that is open, else to a node that is known, else to one of the bootstrap addresses."""
        for connection in self._open.values():
            if connection.is_usable():
                return connection
        addresses = self.view.addresses()
        contact = self._first_contact
        contact.begin(time.monotonic())
        errors: list[NetworkError] = []
        for number, address in enumerate(addresses):
            try:
                return self._reach(address, contact.patience(time.monotonic(), until, len(addresses) - number))
            except NetworkError as error:
                errors.append(error)
        raise contact.failure(errors, time.monotonic()) from (errors[0] if errors else None)
