"""What requests on namespaces ask for: names, pages and defaults. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from duramen.client.protocol.namespaces import check_defaults, check_namespace
from duramen.errors import ConfigError
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.request_json import decoded_json
from duramen.gateway.namespaces.namespace_bodies import NamespaceBody

PAGE: Final = 1000
PAGE_MAX: Final = 10_000
LIST: Final = "streams"
"""After a namespace: its streams. So no namespace ends with it."""

_BODY: Final = msgspec.json.Decoder(NamespaceBody)
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


class PageWish(NamedTuple):
    """Which names: those that begin with `prefix` and come after `after`, at most `limit`."""

    prefix: str
    after: str
    limit: int


def named(path: str) -> str:
    """The namespace of a path. Problem 400, 404 for a sub-resource."""
    last = path.rpartition("/")[2]
    if last.startswith(".") and last.strip("."):
        raise ProblemError(404, "no-such-namespace", f"path: there is no {last[:80]!r} here; see docs/http.md")
    try:
        check_namespace(path)
    except ConfigError as error:
        raise bad_request("path", str(error)) from None
    if last == LIST:
        raise bad_request("path", f"no namespace's last segment is {LIST}: that lists the streams of one")
    return path


def wanted_page(given: Iterable[tuple[str, str]]) -> PageWish:
    """The page of a query. Problem 400."""
    found = _once(given)
    limit = found.get("limit", str(PAGE))
    if not _NUMBER.fullmatch(limit) or not 1 <= int(limit) <= PAGE_MAX:
        raise bad_request("limit", f"it is no whole number from 1 to {PAGE_MAX}")
    return PageWish(found.get("prefix", ""), found.get("after", ""), int(limit))


def is_recursive(given: Iterable[tuple[str, str]]) -> bool:
    """Whether a DELETE deletes all that is below, too. Problem 400."""
    text = _once(given).get("recursive", "false")
    if text not in ("true", "false"):
        raise bad_request("recursive", "it is neither true nor false")
    return text == "true"


def wanted_defaults(body: bytes) -> dict[str, str] | None:
    """The defaults of a PUT's body; None where it says nothing of them. Problem 400."""
    if not body:
        return None
    defaults = decoded_json(body, _BODY, "body", '{"defaults": {"retention.ms": "…"}}').defaults
    try:
        check_defaults(defaults or {})
    except ConfigError as error:
        raise bad_request("defaults", str(error)) from None
    return defaults


def page_of(names: Iterable[str], wish: PageWish) -> tuple[list[str], str | None]:
    """The names of a page, sorted, and the last one where more come after it."""
    found = sorted(name for name in names if name.startswith(wish.prefix) and name > wish.after)
    page = found[: wish.limit]
    return page, page[-1] if len(found) > wish.limit else None


def _once(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in given:
        if name in found:
            raise bad_request(name, "it is given twice")
        found[name] = text
    return found
