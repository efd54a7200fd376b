"""A namespace on asyncio: the calls of `Namespace` and `NamespaceTree` as coroutines."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from duramen.client.aio import AsyncCluster
from duramen.dlsn import Dlsn
from duramen.streams.address import Address, parse_address
from duramen.streams.aio.async_reader import AsyncMergedReader
from duramen.streams.aio.async_stream import AsyncStream
from duramen.streams.aio.threaded_link import ThreadedLink
from duramen.streams.cluster_link import FIRST_CONTACT_S, ClusterLink
from duramen.streams.link import StreamLink, TxidKind
from duramen.streams.namespace import blocking_link, login_of
from duramen.streams.namespace_calls import PAGE, NamespaceCalls
from duramen.streams.namespace_tree_calls import NamespaceInfo, NamespaceTreeCalls

if TYPE_CHECKING:
    from duramen.streams.gateway_login import GatewayLogin


async def open_async_namespace(
    uri: str, *, timeout_s: float = 30.0, token: str | None = None, ca_file: str | None = None
) -> AsyncNamespace:
    """As `streams.open`: `async with await streams.aio.open(uri) as finance`. For the tasks of one event loop.

    Over the nodes' protocol all is on the loop, any number of calls at once; a gateway and a directory are called in
    threads, some 32 at once, of which a reader that waits for records has one.
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is a number of seconds above 0, not {timeout_s}")
    address = parse_address(uri)
    login = await asyncio.to_thread(login_of, address, token, ca_file)  # which reads the system's certificates
    return AsyncNamespace(NamespaceCalls(await _link(address, timeout_s, login), address.namespace), uri)


async def _link(address: Address, timeout_s: float, login: GatewayLogin | None) -> StreamLink:
    if address.gateway:
        return ThreadedLink(partial(blocking_link, address, timeout_s, login))
    if address.directory:
        link = await asyncio.to_thread(blocking_link, address, timeout_s, login)  # which is safe from several threads
        return ThreadedLink(lambda: link)
    cluster = AsyncCluster(
        address.nodes, client_id="duramen-streams", timeout_s=timeout_s, first_contact_s=FIRST_CONTACT_S
    )
    return ClusterLink(cluster, timeout_s, asyncio.sleep)


class AsyncNamespace:
    """The streams below one path. All as of `Namespace`; use it with `async with`, or `close` it."""

    def __init__(self, calls: NamespaceCalls, address: str) -> None:
        self.address = address
        self.path = calls.path
        self.namespaces = AsyncNamespaceTree(calls.namespaces)
        self._calls = calls

    def __repr__(self) -> str:
        return f"<duramen.streams.aio.AsyncNamespace {self.path!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As of `Namespace`; calls that are under way end with an error."""
        await self._calls.close()

    async def create(
        self, name: str, *, exclusive: bool = False, txid: TxidKind = "none", **settings: object
    ) -> AsyncStream:
        """As of `Namespace`."""
        return AsyncStream(await self._calls.create(name, exclusive, txid, settings))

    async def list(self, prefix: str = "", *, after: str = "", limit: int = PAGE) -> list[str]:
        """As of `Namespace`."""
        return await self._calls.list(prefix, after, limit)

    async def exists(self, name: str) -> bool:
        """As of `Namespace`."""
        return await self._calls.exists(name)

    async def delete(self, name: str) -> None:
        """As of `Namespace`."""
        await self._calls.delete(name)

    async def stream(self, name: str) -> AsyncStream:
        """As of `Namespace`."""
        return AsyncStream(await self._calls.stream(name))

    async def merged(
        self,
        names: Sequence[str],
        *,
        start_txid: int | None = None,
        start: Mapping[str, Dlsn] | None = None,
        follow: bool = False,
    ) -> AsyncMergedReader:
        """As of `Namespace`."""
        return AsyncMergedReader(await self._calls.merged(names, start_txid, start, follow=follow))


class AsyncNamespaceTree:
    """The namespaces in one. All as of `NamespaceTree`."""

    def __init__(self, calls: NamespaceTreeCalls) -> None:
        self._calls = calls

    async def list(self, prefix: str = "", *, after: str = "", limit: int = PAGE) -> builtins.list[str]:
        """As of `NamespaceTree`."""
        return await self._calls.list(prefix, after, limit)

    async def describe(self, name: str = "") -> NamespaceInfo:
        """As of `NamespaceTree`."""
        return await self._calls.describe(name)

    async def create(self, name: str, **defaults: object) -> NamespaceInfo:
        """As of `NamespaceTree`."""
        return await self._calls.create(name, defaults)

    async def set_defaults(self, name: str = "", **defaults: object) -> NamespaceInfo:
        """As of `NamespaceTree`."""
        return await self._calls.set_defaults(name, defaults)

    async def delete(self, name: str = "", *, recursive: bool = False) -> None:
        """As of `NamespaceTree`."""
        await self._calls.delete(name, recursive)
