"""What a client knows of a cluster, and what it has to ask to find the node that a request is for.

A `Lookup` is a generator: it yields each `Question` that any node can answer, is sent the `Reply`, and returns what was
looked for. Who runs it has the connections. What is known already needs no question.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from duramen.client.protocol import metadata
from duramen.client.protocol.addresses import Address
from duramen.client.protocol.metadata import (
    METADATA,
    NO_LEADER,
    ClusterMetadata,
    ClusterNode,
    TopicMetadata,
    error_code,
)
from duramen.client.protocol.routes import CONTROLLER, Anywhere, CoordinatorKey, Route
from duramen.client.protocol.versions import ApiVersions
from duramen.errors import DuramenError, ErrorCode, KafkaError, NetworkError
from duramen.model import TopicId, TopicPartition
from duramen.wire.messages import API

FIND_COORDINATOR: Final = 10
_KEYS_FROM: Final = 4
"""First version of FindCoordinator that asks for several (KIP-699)."""

_T = TypeVar("_T")


class Question(NamedTuple):
    """Something that any node can be asked. Equal questions have the same answer.

    coordinator: FindCoordinator; else Metadata of these topics (None: all), which may be created.
    """

    topics: tuple[str, ...] | None
    create: bool = False
    coordinator: CoordinatorKey | None = None

    @property
    def key(self) -> int:
        """The API."""
        return METADATA if self.coordinator is None else FIND_COORDINATOR

    def request(self, versions: ApiVersions) -> Any:
        """The request, for a node that serves these versions."""
        message = API[self.key].request
        wanted = self.coordinator
        if wanted is None:
            return metadata.request(message, None if self.topics is None else list(self.topics), create=self.create)
        if versions.version(FIND_COORDINATOR) >= _KEYS_FROM:
            return message.new(key_type=wanted.kind, coordinator_keys=[wanted.key])
        return message.new(key=wanted.key, key_type=wanted.kind)


class Reply(NamedTuple):
    """The response to a question, and the versions of the node that gave it."""

    response: Any
    versions: ApiVersions


Lookup = Generator[Question, Reply, _T]


class ClusterView:
    """Nodes, topics with their leaders, and coordinators, as nodes have told them last."""

    def __init__(self, bootstrap: Sequence[Address]) -> None:
        self._bootstrap = bootstrap
        self._nodes: dict[int, ClusterNode] = {}
        self._controller = NO_LEADER
        self._topics: dict[str, TopicMetadata] = {}
        self._coordinators: dict[CoordinatorKey, ClusterNode] = {}

    def addresses(self) -> list[Address]:
        """Where any node may be found: those that are known, then those that the client was given."""
        return list(dict.fromkeys([*((node.host, node.port) for node in self._nodes.values()), *self._bootstrap]))

    def unreachable(self, node: ClusterNode, error: NetworkError) -> NetworkError:
        """The error of a connect, which says who gave the address."""
        if (node.host, node.port) in self._bootstrap:
            return error
        hint = "which is what the cluster tells clients to use, see advertised.listeners of the node"
        return type(error)(f"{error}; {hint}")

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

    # ---- lookups ---------------------------------------------------------------------------------------------

    def node_of(self, route: Route) -> Lookup[ClusterNode | None]:
        """The node where the route leads now, None for any; KafkaError when the cluster does not know."""
        if isinstance(route, CoordinatorKey):
            return (yield from self.coordinator(route))
        if isinstance(route, TopicPartition):
            return (yield from self._node((yield from self.leader(route))))
        if isinstance(route, Anywhere):
            if route is not CONTROLLER:
                return None
            if self._controller not in self._nodes:
                yield from self.refresh([])
            return self._nodes.get(self._controller)
        return (yield from self._node(route))

    def refresh(self, topics: Iterable[str] | None, *, create: bool = False) -> Lookup[ClusterMetadata]:
        """Ask about these topics (None: all) and remember the answer. create: as `metadata.request`."""
        response, _ = yield Question(None if topics is None else tuple(topics), create)
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

    def topic(self, name: str) -> Lookup[TopicMetadata]:
        """What is known of a topic, asked for if it is nothing yet; KafkaError says why there is none."""
        known = self._topics.get(name)
        if known is None:
            known = (yield from self.refresh([name])).topics.get(name)
            if known is None or known.error:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else known.error
                raise KafkaError(code, f"topic {name}: {code.name}")
        return known

    def refresh_topic(self, name: str, *, create: bool = False) -> Lookup[TopicMetadata]:
        """A topic, asked for whatever is known of it. create: make one that is not there, as `metadata.request`."""
        self.forget([name])
        if create:
            yield from self.refresh([name], create=True)
        return (yield from self.topic(name))

    def topic_ids(self, tps: Iterable[TopicPartition]) -> Lookup[dict[str, TopicId]]:
        """Ids of the topics of these partitions, by name."""
        names = dict.fromkeys(tp.topic for tp in tps)
        found: dict[str, TopicId] = {}
        for name in names:
            found[name] = (yield from self.topic(name)).topic_id
        return found

    def leader(self, tp: TopicPartition) -> Lookup[int]:
        """Node id of a partition's leader; KafkaError when the partition is unknown or has none now."""
        topic = yield from self.topic(tp.topic)
        partition = topic.partitions.get(tp.partition)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp}: the topic has no such partition")
        if partition.leader == NO_LEADER:
            code = partition.error or ErrorCode.LEADER_NOT_AVAILABLE
            raise KafkaError(code, f"{tp} has no leader: {code.name}")
        if partition.leader not in self._nodes:  # it has died, and the next one is not known yet
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp}: its leader, node {partition.leader}, is not there")
        return partition.leader

    def by_leader(
        self, tps: Sequence[TopicPartition], refused: dict[TopicPartition, DuramenError] | None = None
    ) -> Lookup[dict[int, list[TopicPartition]]]:
        """The partitions by the node id of their leader; topics of which nothing is known are asked for all at once.

        refused: takes those whose leader is not known, with the reason; else that is raised.
        """
        missing = [name for name in dict.fromkeys(tp.topic for tp in tps) if name not in self._topics]
        if missing:
            yield from self.refresh(missing)
        found: dict[int, list[TopicPartition]] = {}
        for tp in tps:
            try:
                found.setdefault((yield from self.leader(tp)), []).append(tp)
            except KafkaError as error:
                if refused is None:
                    raise
                refused[tp] = error
        return found

    def coordinator(self, wanted: CoordinatorKey) -> Lookup[ClusterNode]:
        """The node that is the coordinator, asked for if it is not known."""
        known = self._coordinators.get(wanted)
        if known is not None:
            return known
        found, versions = yield Question(None, coordinator=wanted)
        if versions.version(FIND_COORDINATOR) >= _KEYS_FROM:
            found = metadata.only(found.coordinators, f"coordinator of {wanted.key}")
        if found.error_code:
            code = error_code(found.error_code)
            raise KafkaError(code, f"coordinator of {wanted.key}: {found.error_message or code.name}")
        node = self._coordinators[wanted] = ClusterNode(found.node_id, found.host, found.port)
        return node

    def _node(self, node_id: int) -> Lookup[ClusterNode]:
        if node_id not in self._nodes:
            yield from self.refresh([])
        node = self._nodes.get(node_id)
        if node is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"node {node_id} is not there now")
        return node
