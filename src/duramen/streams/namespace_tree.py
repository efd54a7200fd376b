"""The namespaces in one, and what is written about it."""

from __future__ import annotations

from typing import Final

from duramen.streams.immediate import run
from duramen.streams.namespace_tree_calls import NamespaceInfo, NamespaceTreeCalls

PAGE: Final = 1000


class NamespaceTree:
    """The namespaces in one, by their paths from there; "" is that one itself. `Namespace.namespaces` gives it.

    A namespace is there while streams lie in it, or its defaults are written down. Calls raise what those of
    `Namespace` raise; ConfigError or KafkaError INVALID_CONFIG for settings that no stream can have.
    """

    def __init__(self, calls: NamespaceTreeCalls) -> None:
        self._calls = calls

    def list(self, prefix: str = "", *, after: str = "", limit: int = PAGE) -> list[str]:
        """Paths that begin with `prefix`, sorted, at most `limit`; the next page is `after` the last one."""
        return run(self._calls.list(prefix, after, limit))

    def describe(self, name: str = "") -> NamespaceInfo:
        """A namespace. NoSuchNamespaceError where there is none."""
        return run(self._calls.describe(name))

    def create(self, name: str, **defaults: object) -> NamespaceInfo:
        """Make a namespace, durably. NamespaceExistsError where its defaults are written down already.

        defaults: settings of the streams that are made in it from now on, with _ for each dot.
        """
        return run(self._calls.create(name, defaults))

    def set_defaults(self, name: str = "", **defaults: object) -> NamespaceInfo:
        """Write down the defaults of a namespace, instead of those that it has, durably."""
        return run(self._calls.set_defaults(name, defaults))

    def delete(self, name: str = "", *, recursive: bool = False) -> None:
        """Delete a namespace. NoSuchNamespaceError; NamespaceNotEmptyError where streams or namespaces lie in it.

        recursive: delete them, too, the streams first; the same call completes one that was cut short.
        """
        run(self._calls.delete(name, recursive))
