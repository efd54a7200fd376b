"""Connections to the nodes of a cluster, what is known of its leaders and coordinators, and the way to each of them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from duramen.client.blocking.connection import BlockingConnection
from duramen.client.protocol import metadata
from duramen.client.protocol.metadata import (
    METADATA,
    NO_LEADER,
    ClusterMetadata,
    ClusterNode,
    TopicMetadata,
    error_code,
)
from duramen.client.protocol.routes import CONTROLLER, Anywhere, CoordinatorKey, Route
from duramen.errors import (
    ConfigError,
    DuramenError,
    ErrorCode,
    KafkaError,
    NetworkError,
    NoConnectionError,
    NothingThereError,
)
from duramen.model import TopicPartition
from duramen.wire.messages import API

FIND_COORDINATOR = 10
CONNECT_S = 5.0
"""Most seconds for one attempt to connect while there are other nodes to ask."""
_LAST_ATTEMPT_S = 1.0
_ADDRESS = re.compile(r"(?:PLAINTEXT://)?(\[[^\]]+\]|[^\[\]:/]+):([0-9]{1,5})")

Address = tuple[str, int]


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Address]:
    """(host, port) of each of "host:port,host:port" or a list of such; ConfigError."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    found = []
    for text in texts:
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or not 0 < int(match[2]) < 65536:
            raise ConfigError(f"bootstrap.servers: {text.strip()!r} is no host:port")
        found.append((match[1].strip("[]"), int(match[2])))
    return found


class ConnectionPool:
    """The open connections of one client, by address, and its view of the cluster."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        client_id: str,
        max_frame_bytes: int,
        first_contact_s: float | None = None,
    ) -> None:
        """first_contact_s: for how long a first connection is tried for, where that has a limit of its own."""
        self._bootstrap = parse_bootstrap(bootstrap)
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._open: dict[Address, BlockingConnection] = {}
        self._nodes: dict[int, ClusterNode] = {}
        self._controller = NO_LEADER
        self._topics: dict[str, TopicMetadata] = {}
        self._coordinators: dict[CoordinatorKey, ClusterNode] = {}
        self._first_contact_s = first_contact_s
        self._first_tried: float | None = None
        self.closed = False

    def close(self) -> None:
        """Hang up everywhere."""
        self.closed = True
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    # ---- connections -----------------------------------------------------------------------------------------

    def to(self, route: Route, until: float) -> BlockingConnection:
        """A connection to where the route leads now; KafkaError when the cluster does not know, NetworkError."""
        if isinstance(route, CoordinatorKey):
            return self._connect(self.coordinator(route, until), until)
        if isinstance(route, TopicPartition):
            return self._connect(self._node(self.leader(route, until), until), until)
        if isinstance(route, Anywhere):
            if route is CONTROLLER:
                self._know_nodes(until)
                if self._controller in self._nodes:
                    return self._connect(self._nodes[self._controller], until)
            return self._any(until)
        return self._connect(self._node(route, until), until)

    def _connect(self, node: ClusterNode, until: float) -> BlockingConnection:
        address = (node.host, node.port)
        try:
            return self._reach(address, until)
        except NetworkError as error:
            if address in self._bootstrap:
                raise
            told = "which is what the cluster tells clients to use, see advertised.listeners of the node"
            raise NetworkError(f"{error}; {told}") from error

    def _reach(self, address: Address, until: float) -> BlockingConnection:
        connection = self._open.get(address)
        if connection is not None:
            if connection.is_usable():
                return connection
            connection.close()
        connection = self._open[address] = BlockingConnection(*address, self._client_id, until, self._max_frame_bytes)
        self._first_contact_s = None
        return connection

    def _any(self, until: float) -> BlockingConnection:
        """A connection that is open, else to a node that is known, else to one of the bootstrap addresses."""
        for connection in self._open.values():
            if connection.is_usable():
                return connection
        addresses = dict.fromkeys([*((node.host, node.port) for node in self._nodes.values()), *self._bootstrap])
        if self._first_tried is None:
            self._first_tried = time.monotonic()
        errors: list[NetworkError] = []
        for number, address in enumerate(addresses):
            try:
                return self._reach(address, self._patience(until, len(addresses) - number))
            except NetworkError as error:
                errors.append(error)
        if not errors:
            raise NetworkError("no address is known")
        there = not all(isinstance(error, NoConnectionError) for error in errors)
        failed = errors[0] if len(errors) == 1 else NetworkError("; ".join(map(str, errors)))
        if there or self._first_contact_s is None or time.monotonic() - self._first_tried < self._first_contact_s:
            raise failed
        servers = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._bootstrap)
        raise NothingThereError(
            f"no node answers at bootstrap.servers={servers}: {failed}. Is a node running, and is that its address?"
        ) from failed

    def _patience(self, until: float, addresses: int) -> float:
        """The moment by which one attempt to connect ends, where so many addresses are left."""
        now = time.monotonic()
        if self._first_contact_s is not None and self._first_tried is not None:
            left_s = self._first_tried + self._first_contact_s - now
            return min(until, now + min(CONNECT_S, max(left_s, _LAST_ATTEMPT_S)))
        return until if addresses == 1 else now + min(CONNECT_S, (until - now) / addresses)

    # ---- what is known ---------------------------------------------------------------------------------------

    def refresh(self, topics: Iterable[str] | None, until: float, *, create: bool = False) -> ClusterMetadata:
        """Ask any node about these topics (None: all) and remember the answer. create: as `metadata.request`."""
        names = None if topics is None else list(topics)
        request = metadata.request(API[METADATA].request, names, create=create)
        response = self._any(until).call(METADATA, request, until)
        if response.error_code:
            raise KafkaError(error_code(response.error_code), "the cluster does not tell its metadata")
        found = metadata.parsed(response)
        self._nodes = found.nodes
        self._controller = found.controller
        for name, topic in found.topics.items():
            if topic.error:
                self._topics.pop(name, None)
            else:
                self._topics[name] = topic
        return found

    def topic(self, name: str, until: float) -> TopicMetadata:
        """What is known of a topic, asked for if it is nothing yet; KafkaError says why there is none."""
        known = self._topics.get(name)
        if known is None:
            known = self.refresh([name], until).topics.get(name)
            if known is None or known.error:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else known.error
                raise KafkaError(code, f"topic {name}: {code.name}")
        return known

    def know(self, topics: Iterable[str], until: float) -> None:
        """Ask about those of the topics of which nothing is known, all at once."""
        missing = [name for name in dict.fromkeys(topics) if name not in self._topics]
        if missing:
            self.refresh(missing, until)

    def leader(self, tp: TopicPartition, until: float) -> int:
        """Node id of a partition's leader; KafkaError when the partition is unknown or has none now."""
        partition = self.topic(tp.topic, until).partitions.get(tp.partition)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp}: the topic has no such partition")
        if partition.leader == NO_LEADER:
            code = partition.error or ErrorCode.LEADER_NOT_AVAILABLE
            raise KafkaError(code, f"{tp} has no leader: {code.name}")
        return partition.leader

    def forget(self, route: Route | Iterable[str]) -> None:
        """What is known of these topics, or of the way there, may not hold any more: ask again at the next use."""
        if isinstance(route, CoordinatorKey):
            self._coordinators.pop(route, None)
        elif isinstance(route, TopicPartition):
            self._topics.pop(route.topic, None)
        elif isinstance(route, Anywhere):
            self._controller = NO_LEADER
        elif isinstance(route, int):
            self._nodes.pop(route, None)
        else:
            for name in route:
                self._topics.pop(name, None)

    def _know_nodes(self, until: float) -> None:
        if self._controller not in self._nodes:
            self.refresh([], until)

    def _node(self, node_id: int, until: float) -> ClusterNode:
        if node_id not in self._nodes:
            self.refresh([], until)
        node = self._nodes.get(node_id)
        if node is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"node {node_id} is not there now")
        return node

    def coordinator(self, wanted: CoordinatorKey, until: float) -> ClusterNode:
        """The node that is the coordinator, asked for if it is not known."""
        node = self._coordinators.get(wanted)
        if node is None:
            node = self._coordinators[wanted] = self._find_coordinator(wanted, until)
        return node

    def _find_coordinator(self, wanted: CoordinatorKey, until: float) -> ClusterNode:
        connection = self._any(until)
        message = API[FIND_COORDINATOR].request
        if connection.versions.version(FIND_COORDINATOR) >= 4:
            request = message.new(key_type=wanted.kind, coordinator_keys=[wanted.key])
            answers = connection.call(FIND_COORDINATOR, request, until).coordinators
            found: Any = metadata.only(answers, f"coordinator of {wanted.key}")
        else:
            found = connection.call(FIND_COORDINATOR, message.new(key=wanted.key, key_type=wanted.kind), until)
        if found.error_code:
            code = error_code(found.error_code)
            raise KafkaError(code, f"coordinator of {wanted.key}: {found.error_message or code.name}")
        return ClusterNode(found.node_id, found.host, found.port)


def may_help(error: DuramenError) -> bool:
    """Whether the same request may succeed later, perhaps elsewhere."""
    if isinstance(error, NetworkError):
        return not isinstance(error, NothingThereError)
    # Bytes that were damaged on the disk stay so: Kafka calls this retriable for those damaged on the way.
    return error.retriable and error.code != ErrorCode.CORRUPT_MESSAGE
