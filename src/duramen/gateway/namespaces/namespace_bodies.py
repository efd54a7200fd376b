"""Bodies of requests on namespaces, and of their answers."""

from __future__ import annotations

import msgspec


class NamespaceBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT. defaults: topic settings by their names, as texts; None leaves those that there are."""

    defaults: dict[str, str] | None = None


class ListedNamespace(msgspec.Struct):
    """One of a list. created_at: RFC 3339, null where nothing is written; fault: why its record cannot be read."""

    name: str
    created_at: str | None
    defaults: dict[str, str]
    fault: str | msgspec.UnsetType = msgspec.UNSET


class ShownNamespace(msgspec.Struct):
    """One alone. inherited: what those around it give; null where the record of one cannot be read."""

    name: str
    created_at: str | None
    defaults: dict[str, str]
    inherited: dict[str, str] | None
    fault: str | msgspec.UnsetType = msgspec.UNSET


class NamespaceList(msgspec.Struct):
    """A page of namespaces. next: its last name, where more come."""

    namespaces: list[ListedNamespace]
    next: str | None


class ListedStream(msgspec.Struct):
    """A stream of a namespace. name: in it; expires_at: RFC 3339."""

    name: str
    topic: str
    content_type: str
    expires_at: str | None


class StreamList(msgspec.Struct):
    """A page of streams. next: the last name that was looked at, where more come."""

    streams: list[ListedStream]
    next: str | None
