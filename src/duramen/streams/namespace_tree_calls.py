"""What is asked of the namespaces in one, upon any back end."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from duramen.client.protocol.namespaces import NamespaceRecord, check_defaults, check_namespace
from duramen.errors import ConfigError
from duramen.streams.namespace_link import NamespaceLink


class NamespaceInfo(NamedTuple):
    """A namespace. path: from the root. created_at: None where nothing is written about it, and streams lie in it.

    defaults: settings of streams that are made in it, and in those inside it, unless they say otherwise; inherited:
    what those around it give. By the names of Kafka's topic settings.
    """

    path: str
    created_at: datetime | None
    defaults: dict[str, str]
    inherited: dict[str, str]


class NamespaceTreeCalls:
    """The namespace of a path at a back end, and those in it."""

    def __init__(self, link: NamespaceLink, path: str) -> None:
        self._link = link
        self._path = path

    async def list(self, prefix: str, after: str, limit: int) -> builtins.list[str]:
        """See `NamespaceTree.list`."""
        if limit < 1:
            raise ValueError(f"limit is at least 1, not {limit}")
        return await self._link.paths(self._path, prefix, after, limit)

    async def describe(self, name: str) -> NamespaceInfo:
        """See `NamespaceTree.describe`."""
        return _info(*await self._link.describe(self._of(name)))

    async def create(self, name: str, defaults: Mapping[str, object]) -> NamespaceInfo:
        """See `NamespaceTree.create`."""
        return await self._put(name, defaults, only_new=True)

    async def set_defaults(self, name: str, defaults: Mapping[str, object]) -> NamespaceInfo:
        """See `NamespaceTree.set_defaults`."""
        return await self._put(name, defaults, only_new=False)

    async def delete(self, name: str, recursive: bool) -> None:
        """See `NamespaceTree.delete`."""
        await self._link.delete(self._of(name), recursive=recursive)

    async def _put(self, name: str, defaults: Mapping[str, object], *, only_new: bool) -> NamespaceInfo:
        path = self._of(name)
        texts = setting_texts(defaults)
        check_defaults(texts)
        await self._link.put(path, texts, only_new=only_new)
        return _info(*await self._link.describe(path))

    def _of(self, name: str) -> str:
        path = "/".join(filter(None, (self._path, name)))
        if not path:
            raise ConfigError("the root is no namespace with a record of its own; name one")
        check_namespace(path)
        return path


def setting_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as in a file of properties, given with _ for each dot."""
    return {
        key.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in settings.items()
    }


def _info(record: NamespaceRecord, inherited: Mapping[str, str]) -> NamespaceInfo:
    created = None if record.created_at_ms < 0 else datetime.fromtimestamp(record.created_at_ms / 1000, UTC)
    return NamespaceInfo(record.path, created, dict(record.defaults), dict(inherited))
