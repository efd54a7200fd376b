"""What is asked of a namespace, upon any back end."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Final

from duramen.client.protocol.stream_names import check_path, topic_of
from duramen.dlsn import Dlsn
from duramen.errors import ErrorCode, KafkaError
from duramen.streams.errors import NoSuchStreamError, StreamExistsError
from duramen.streams.link import StreamLink, TxidKind
from duramen.streams.merge_cursor import MergeCursor, merge_at
from duramen.streams.namespace_tree_calls import NamespaceTreeCalls, setting_texts
from duramen.streams.stream_calls import StreamCalls

PAGE: Final = 1000


class NamespaceCalls:
    """The namespace of a path at a back end."""

    def __init__(self, link: StreamLink, path: str) -> None:
        self.path = path
        self.namespaces = NamespaceTreeCalls(link.namespaces, path)
        self._link = link

    async def close(self) -> None:
        """See `Namespace.close`."""
        await self._link.close()

    async def create(self, name: str, exclusive: bool, txid: TxidKind, settings: Mapping[str, object]) -> StreamCalls:
        """See `Namespace.create`."""
        if not isinstance(exclusive, bool):
            raise TypeError(f"exclusive is True or False, not {exclusive!r:.80}")
        topic = topic_of(self.path, name)
        defaults = await self._link.namespaces.defaults_for(topic.replace(".", "/"))
        texts = {**defaults, **setting_texts(settings)}
        if exclusive:
            texts["duramen.writer.exclusive"] = "true"
        if txid != "none":
            texts["duramen.txid"] = txid
        try:
            stream_id = await self._link.create(topic, texts)
        except KafkaError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                raise StreamExistsError(name) from error
            raise
        return StreamCalls(self._link, name, topic, stream_id)

    async def list(self, prefix: str, after: str, limit: int) -> builtins.list[str]:
        """See `Namespace.list`."""
        if limit < 1:
            raise ValueError(f"limit is at least 1, not {limit}")
        return await self._link.names(self.path, prefix, after, limit)

    async def exists(self, name: str) -> bool:
        """See `Namespace.exists`."""
        return await self._link.exists(topic_of(self.path, name))

    async def delete(self, name: str) -> None:
        """See `Namespace.delete`."""
        try:
            await self._link.delete(topic_of(self.path, name))
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchStreamError(name) from error
            raise

    async def stream(self, name: str) -> StreamCalls:
        """See `Namespace.stream`."""
        check_path("stream", name)
        topic = topic_of(self.path, name)
        try:
            return StreamCalls(self._link, name, topic, await self._link.stream_id(topic))
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchStreamError(name) from error
            raise

    async def merged(
        self, names: Sequence[str], start_txid: int | None, start: Mapping[str, Dlsn] | None, *, follow: bool
    ) -> MergeCursor:
        """See `Namespace.merged`."""
        if isinstance(names, str):
            raise TypeError(f"streams are merged by a list of their names, not {names!r:.80}")
        return await merge_at([await self.stream(name) for name in names], start_txid, start, follow=follow)
