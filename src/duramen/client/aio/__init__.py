"""The client on asyncio, for programs whose calls are coroutines: many requests in flight on few connections."""

from duramen.client.aio.async_cluster import AsyncCluster

__all__ = ["AsyncCluster"]
