"""A back end that blocks, for the tasks of an event loop: each call in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from duramen.client.protocol.namespaces import NamespaceRecord
from duramen.client.protocol.positions import Position
from duramen.client.protocol.producers import ProducerProgress
from duramen.errors import ClosedError
from duramen.streams.immediate import run
from duramen.streams.link import AppendTerms, StreamKind, StreamLink, StreamTail
from duramen.streams.namespace_link import DescribedNamespace
from duramen.streams.records import Row, StreamSpot, Stretch
from duramen.wire.conditional_answer import ConditionalAnswer

_T = TypeVar("_T")
_Work = Callable[[StreamLink], Coroutine[Any, Any, _T]]

THREADS: Final = 32
"""Calls that run at a time; more wait for their turn. A reader that waits for records has one, too."""


class ThreadedLink:
    """opens: makes a back end for one thread at a time; as many are made as calls run at once, and kept."""

    def __init__(self, opens: Callable[[], StreamLink]) -> None:
        self.namespaces = ThreadedNamespaces(self)
        self._opens = opens
        self._idle: list[StreamLink] = []
        self._all: list[StreamLink] = []
        self._threads = ThreadPoolExecutor(THREADS, "duramen-streams")
        self._is_closed = False

    async def do(self, work: _Work[_T]) -> _T:
        """What is done with a back end, in a thread. A caller that is cancelled leaves it going."""
        if self._is_closed:
            raise ClosedError("this namespace was closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def _run(self, work: _Work[_T]) -> _T:
        try:
            link = self._idle.pop()  # in one step, as `append` is
        except IndexError:
            link = self._opens()
            self._all.append(link)
        try:
            return run(work(link))
        finally:
            self._idle.append(link)

    async def names(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """See `StreamLink`, as of all methods here."""
        return await self.do(lambda link: link.names(namespace, prefix, after, limit))

    async def exists(self, topic: str) -> bool:
        return await self.do(lambda link: link.exists(topic))

    async def stream_id(self, topic: str) -> str:
        return await self.do(lambda link: link.stream_id(topic))

    async def create(self, topic: str, settings: Mapping[str, str]) -> str:
        return await self.do(lambda link: link.create(topic, settings))

    async def delete(self, topic: str) -> None:
        await self.do(lambda link: link.delete(topic))

    async def append(self, topic: str, rows: Sequence[Row] | None, terms: AppendTerms) -> ConditionalAnswer:
        return await self.do(lambda link: link.append(topic, rows, terms))

    async def open_writer(self, topic: str, name: str) -> int:
        return await self.do(lambda link: link.open_writer(topic, name))

    async def release_writer(self, topic: str, name: str, producer_id: int) -> None:
        await self.do(lambda link: link.release_writer(topic, name, producer_id))

    async def progress(self, topic: str, name: str, producer_id: int) -> ProducerProgress:
        return await self.do(lambda link: link.progress(topic, name, producer_id))

    async def locate(self, topic: str, wanted: Position) -> StreamSpot:
        return await self.do(lambda link: link.locate(topic, wanted))

    async def fetch(self, topic: str, spot: StreamSpot) -> Stretch:
        return await self.do(lambda link: link.fetch(topic, spot))

    async def wait(self, topic: str, spot: StreamSpot) -> None:
        await self.do(lambda link: link.wait(topic, spot))

    async def state(self, topic: str) -> StreamTail:
        return await self.do(lambda link: link.state(topic))

    async def kind(self, topic: str) -> StreamKind:
        return await self.do(lambda link: link.kind(topic))

    async def settings(self, topic: str) -> Mapping[str, str]:
        return await self.do(lambda link: link.settings(topic))

    async def truncate(self, topic: str, before: int) -> int:
        return await self.do(lambda link: link.truncate(topic, before))

    async def close(self) -> None:
        """Ends what still runs; calling it again does nothing."""
        self._is_closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        for link in list(self._all):
            run(link.close())
        self._threads.shutdown()


class ThreadedNamespaces:
    """See `NamespaceLink`."""

    def __init__(self, link: ThreadedLink) -> None:
        self._link = link

    async def defaults_for(self, stream: str) -> Mapping[str, str]:
        """See `NamespaceLink`, as of all methods here."""
        return await self._link.do(lambda link: link.namespaces.defaults_for(stream))

    async def paths(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        return await self._link.do(lambda link: link.namespaces.paths(namespace, prefix, after, limit))

    async def describe(self, path: str) -> DescribedNamespace:
        return await self._link.do(lambda link: link.namespaces.describe(path))

    async def put(self, path: str, defaults: Mapping[str, str], *, only_new: bool) -> NamespaceRecord:
        return await self._link.do(lambda link: link.namespaces.put(path, defaults, only_new=only_new))

    async def delete(self, path: str, *, recursive: bool) -> None:
        await self._link.do(lambda link: link.namespaces.delete(path, recursive=recursive))
