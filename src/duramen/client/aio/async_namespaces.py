"""The namespaces of a cluster, read and changed with an `AsyncCluster`."""

from __future__ import annotations

from duramen.client.aio.async_cluster import AsyncCluster
from duramen.client.aio.async_record_table import AsyncRecordTable
from duramen.client.protocol.namespace_log import NamespaceLog
from duramen.client.protocol.namespaces import NAMESPACES_SETTINGS, NAMESPACES_TOPIC, NamespaceRecord, defaults_for


class AsyncNamespaces(AsyncRecordTable[NamespaceRecord]):
    """What the namespaces of a cluster say, by path."""

    def __init__(self, cluster: AsyncCluster) -> None:
        super().__init__(cluster, NAMESPACES_TOPIC, NAMESPACES_SETTINGS, NamespaceLog())

    async def defaults_for(self, stream: str) -> dict[str, str]:
        """Settings of a new stream, as of `namespaces.defaults_for`; at once for one that lies in none."""
        return defaults_for(stream, await self.records()) if "/" in stream else {}
