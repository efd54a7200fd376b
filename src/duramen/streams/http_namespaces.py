"""Namespaces by way of a gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from duramen.client.protocol.namespaces import NamespaceRecord
from duramen.streams.errors import NamespaceExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from duramen.streams.gateway_connection import GatewayConnection
from duramen.streams.http_words import GatewayError
from duramen.streams.namespace_link import DescribedNamespace

_ALL: Final = "/v1/namespaces"
_PAGE_MAX: Final = 1000


class HttpNamespaces:
    """See `NamespaceLink`."""

    def __init__(self, gateway: GatewayConnection) -> None:
        self._gateway = gateway

    async def defaults_for(self, _stream: str) -> Mapping[str, str]:
        """See `NamespaceLink`: the gateway gives them."""
        return {}

    async def paths(self, namespace: str, prefix: str, after: str, limit: int) -> list[str]:
        """See `NamespaceLink`."""
        front = f"{namespace}/" if namespace else ""
        found = pages(self._gateway, _ALL, "namespaces", front + prefix, front + after if after else "", limit)
        return [path[len(front) :] for path in found]

    async def describe(self, path: str) -> DescribedNamespace:
        """See `NamespaceLink`."""
        try:
            body = self._gateway.ask("GET", f"{_ALL}/{path}").json()
        except GatewayError as error:
            if error.problem == "no-such-namespace":
                raise NoSuchNamespaceError(path) from error
            raise
        return DescribedNamespace(_record(body), body.get("inherited") or {})

    async def put(self, path: str, defaults: Mapping[str, str], *, only_new: bool) -> NamespaceRecord:
        """See `NamespaceLink`."""
        headers = {"Content-Type": "application/json"} | ({"If-None-Match": "*"} if only_new else {})
        try:
            body = json.dumps({"defaults": dict(defaults)}).encode()
            return _record(self._gateway.ask("PUT", f"{_ALL}/{path}", body, headers).json())
        except GatewayError as error:
            if error.problem == "exists":
                raise NamespaceExistsError(path) from error
            raise

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See `NamespaceLink`."""
        try:
            self._gateway.ask("DELETE", f"{_ALL}/{path}{'?recursive=true' if recursive else ''}")
        except GatewayError as error:
            if error.problem == "no-such-namespace":
                raise NoSuchNamespaceError(path) from error
            if error.problem == "not-empty":
                raise NamespaceNotEmptyError(path) from error
            raise


def pages(gateway: GatewayConnection, path: str, field: str, prefix: str, after: str, limit: int) -> list[str]:
    """The names that a gateway lists, page by page, at most `limit`."""
    found: list[str] = []
    while len(found) < limit:
        page = {"prefix": prefix, "after": after, "limit": min(_PAGE_MAX, limit - len(found))}
        body = gateway.ask("GET", f"{path}?{urlencode(page)}").json()
        found += [each["name"] for each in body[field]]
        after = body["next"]
        if not after:
            break
    return found


def _record(body: Mapping[str, Any]) -> NamespaceRecord:
    created = body["created_at"]
    at = -1 if created is None else round(datetime.fromisoformat(created).timestamp() * 1000)
    return NamespaceRecord(body["name"], at, body["defaults"])
