"""The nodes of a cluster as one of them tells, fenced ones too, and which of them answer: asked of all at once.

The client library leaves out those that are fenced, and waits long for one that was killed or stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka.admin import ClusterMetadata

from duramen.cli.shared.connection import ClusterAccess
from duramen.cli.shared.preflight import places_of
from duramen.cli.shared.quorum_look import Address, reason_of, shown
from duramen.client.blocking.connection import MAX_FRAME_BYTES, BlockingConnection
from duramen.errors import DuramenError
from duramen.wire.messages import API

NODE_SECONDS: Final = 2.0
"""For a node to answer; one that is well takes milliseconds."""
_DESCRIBE_CLUSTER: Final = 60
_MOST_ASKED: Final = 16
_T = TypeVar("_T")


class KnownNode(NamedTuple):
    """A broker that is registered. trouble: why it does not answer, where it does not."""

    id: int
    host: str
    port: int
    fenced: bool = False
    trouble: str | None = None

    @property
    def address(self) -> Address:
        return self.host, self.port

    def __str__(self) -> str:
        return f"node {self.id} ({shown(self.address)})"


def nodes_of(metadata: ClusterMetadata) -> list[KnownNode]:
    """Those that the client library knows: not fenced ones."""
    found = metadata.brokers.items()
    return [KnownNode(each.id, each.host or "", each.port or 0) for _, each in sorted(found)]


def served(
    cluster: ClusterAccess, metadata: ClusterMetadata, partitions: Iterable[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Those whose leader answers, or cannot be asked; for one that is dead and not fenced the library waits long."""
    nodes = nodes_of(metadata)
    if len(nodes) < 2 or not cluster.is_plaintext:
        return list(partitions)
    answers = asked([node.address for node in nodes], NODE_SECONDS, _nothing)
    silent = {node.id for node, answer in zip(nodes, answers, strict=True) if isinstance(answer, str)}
    topics = metadata.topics
    return [(name, number) for name, number in partitions if topics[name].partitions[number].leader not in silent]


def look_at_nodes(cluster: ClusterAccess, seconds: float = NODE_SECONDS) -> list[KnownNode]:
    """All that are registered, by id; none where they cannot be asked: over TLS, or nobody answers."""
    if not cluster.is_plaintext:
        return []
    places = places_of(cluster.bootstrap)
    first = dict(zip(places, asked(places, seconds, _registered), strict=True))
    told: list[KnownNode] = next((each for each in first.values() if not isinstance(each, str)), [])
    others = [node.address for node in told if node.address not in first]
    answers = {**first, **dict(zip(others, asked(others, seconds, _nothing), strict=True))}
    return [
        node._replace(trouble=answer) if isinstance(answer := answers[node.address], str) else node for node in told
    ]


def _nothing(_connection: BlockingConnection, _until: float) -> None:
    """It answers: the versions that it serves are known."""


def asked(places: Sequence[Address], seconds: float, ask: Callable[[BlockingConnection, float], _T]) -> list[_T | str]:
    """What `ask` gets from each of these addresses, or why nothing came in time."""

    def one(place: Address) -> _T | str:
        until = time.monotonic() + seconds
        try:
            connection = BlockingConnection(*place, "duramen-cli", until, MAX_FRAME_BYTES)
        except (DuramenError, OSError) as error:
            return reason_of(place, error)
        try:
            return ask(connection, until)
        except (DuramenError, OSError) as error:
            return reason_of(place, error)
        finally:
            connection.close()

    with ThreadPoolExecutor(_MOST_ASKED, "node-look") as threads:
        return list(threads.map(one, places))


def _registered(connection: BlockingConnection, until: float) -> list[KnownNode]:
    request = API[_DESCRIBE_CLUSTER].request.new(include_fenced_brokers=True)
    answer: Any = connection.call(_DESCRIBE_CLUSTER, request, until)
    found = [
        KnownNode(each.broker_id, each.host, each.port, bool(getattr(each, "is_fenced", False)))
        for each in answer.brokers
    ]
    return sorted(found)
