"""The blocking client of a cluster behind awaitable calls, and what both clients have in common for streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from duramen.client import Cluster
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import ListedOffset
from duramen.client.protocol.metadata import ClusterMetadata
from duramen.client.protocol.routes import Route
from duramen.model import TopicId, TopicPartition


class AwaitableCluster(Protocol):
    """The calls of `AsyncCluster` that streams need."""

    async def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata: ...

    async def call(
        self, route: Route, key: int, request: Any, *, code_of: Callable[[Any], int] | None = None
    ) -> Any: ...

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: int = 0
    ) -> dict[TopicPartition, ListedOffset]: ...

    async def fetch(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int = 0,
        isolation: int = 0,
        *,
        max_wait_ms: int = 0,
        topic_id: TopicId | None = None,
    ) -> FetchedBytes: ...

    async def init_producer_id(self) -> tuple[int, int]: ...

    async def close(self) -> None: ...


async def sleep(seconds: float) -> None:
    """As `asyncio.sleep`, but over when it is awaited."""
    time.sleep(seconds)


class ReadyCluster:
    """A `Cluster`, each call of which is over when it is awaited. For one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        return self._cluster.metadata(topics)

    async def call(self, route: Route, key: int, request: Any, *, code_of: Callable[[Any], int] | None = None) -> Any:
        return self._cluster.call(route, key, request, code_of=code_of)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: int = 0
    ) -> dict[TopicPartition, ListedOffset]:
        return self._cluster.list_offsets(wanted, isolation)

    async def fetch(
        self,
        tp: TopicPartition,
        offset: int,
        max_bytes: int = 0,
        isolation: int = 0,
        *,
        max_wait_ms: int = 0,
        topic_id: TopicId | None = None,
    ) -> FetchedBytes:
        return self._cluster.fetch(tp, offset, max_bytes, isolation, max_wait_ms=max_wait_ms, topic_id=topic_id)

    async def init_producer_id(self) -> tuple[int, int]:
        return self._cluster.init_producer_id()

    async def close(self) -> None:
        self._cluster.close()
