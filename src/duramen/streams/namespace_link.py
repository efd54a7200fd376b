"""What a back end has to do about namespaces: paths of them, from its root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from duramen.client.protocol.namespaces import NamespaceRecord


class DescribedNamespace(NamedTuple):
    """What is written about a namespace, and the settings that those around it give to new streams in it."""

    record: NamespaceRecord
    inherited: Mapping[str, str]


class NamespaceLink(Protocol):
    """A back end. Raises KafkaError and the other errors of duramen.errors."""

    async def defaults_for(self, stream: str) -> Mapping[str, str]:
        """Settings that a new stream has to be given; none where the back end gives them itself."""
        ...

    async def paths(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """Paths of the namespaces in one ("": in the root) from there on, as `NamespaceTree.list`."""
        ...

    async def describe(self, path: str) -> DescribedNamespace:
        """NoSuchNamespaceError."""
        ...

    async def put(self, path: str, defaults: Mapping[str, str], *, only_new: bool) -> NamespaceRecord:
        """Set its defaults; only_new: NamespaceExistsError where something is written about it."""
        ...

    async def delete(self, path: str, *, recursive: bool) -> None:
        """NoSuchNamespaceError, NamespaceNotEmptyError."""
        ...
